/*
 * train/numpy.h - the header of a .npy file, read strictly.
 *
 * Versions 1 to 3: magic, version, length of the header (2 bytes in version 1, else 4), and a
 * Python dict with exactly descr, fortran_order and shape.  Source: numpy.lib.format's description.
 */
#ifndef HEDDLE_TRAIN_NUMPY_H
#define HEDDLE_TRAIN_NUMPY_H

#include <stdbool.h>
#include <stdint.h>

#define HD_NUMPY_REASON_BYTES 256u

struct hd_numpy {
    uint64_t data_offset; /* bytes before the first element */
    uint64_t count;       /* elements */
    uint32_t item_bytes;  /* 1, 2, 4 or 8 */
    bool is_signed;
};

/* True if the bytes begin with the magic. */
bool hd_numpy_is(const uint8_t *bytes, uint64_t byte_count);

/* Fills `header`; or returns false, and a sentence without its full stop in `reason`.  Accepts one
   dimension of little-endian integers in C order. */
bool hd_numpy_read(const uint8_t *bytes, uint64_t byte_count, struct hd_numpy *header,
                   char reason[HD_NUMPY_REASON_BYTES]);

#endif /* HEDDLE_TRAIN_NUMPY_H */
