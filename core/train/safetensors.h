/*
 * train/safetensors.h - the file format of parameters, read strictly and written piece by piece.
 *
 *   8 bytes   length of the header, little-endian
 *   header    {"__metadata__": {text: text}, NAME: {"dtype": "F32", "shape": [4, 8],
 *              "data_offsets": [0, 128]}, ...}, padded with blanks
 *   data      the tensors, row-major and little-endian, one after the other without a gap
 *
 * A file is whatever somebody sent, so the reader believes nothing.  The grammar above is fixed and
 * three levels deep, so it is read without recursion, number by number, exactly; every offset
 * is held against the shape and against the file's length.  A refusal names the file and, where
 * there is one, the tensor.
 *
 * What heddle writes carries a SHA-256 of each tensor in the metadata ("sha256:NAME"), so that a
 * reader can check the part that it needs without reading the rest.  Source: the format's
 * description in huggingface/safetensors.
 */
#ifndef HEDDLE_TRAIN_SAFETENSORS_H
#define HEDDLE_TRAIN_SAFETENSORS_H

#include "base/hash.h"
#include "base/problem.h"

#include <stdint.h>

#define HD_SAFETENSORS_HEADER_BYTES_MAX 100000000u /* as the reference implementation has it */
#define HD_SAFETENSORS_DIMENSION_MAX    8u
#define HD_SAFETENSORS_LENGTH_BYTES     8u

struct hd_safetensors_tensor {
    const char *name;   /* UTF-8; borrowed */
    const char *type;   /* "F32"; borrowed */
    const char *sha256; /* hex, from the metadata; NULL: not said */
    uint32_t dimension_count;
    uint64_t shape[HD_SAFETENSORS_DIMENSION_MAX];
    uint64_t offset, bytes; /* in the file, counted from its first byte */
};

struct hd_safetensors_note {
    const char *key, *value; /* borrowed from the file */
};

/* One open file; read-only after open, and inherited by fork. */
struct hd_safetensors {
    char path[4096];
    int descriptor;
    uint64_t file_bytes;
    uint32_t tensor_count, note_count;
    struct hd_safetensors_tensor *tensors; /* [tensor_count], by name; owned */
    struct hd_safetensors_note *notes;     /* [note_count], the metadata, by key; owned */
    char *text;                            /* the header, names cut out in place; owned */
    uint8_t header_digest[HD_HASH_BYTES];  /* of length and header */
};

/* Opens and reads the header.  HD_EXIT_USAGE with the file as place for whatever is wrong; the file
   is then closed already. */
hd_status hd_safetensors_open(struct hd_safetensors *file, const char *path,
                              struct hd_problem *problem);
void hd_safetensors_close(struct hd_safetensors *file); /* also of zeroes with descriptor -1 */

/* The header alone, as in a file of so many bytes; file->path is only for messages.  Everything but
   descriptor and digest is filled.  What hd_safetensors_open and a fuzzer share. */
hd_status hd_safetensors_parse(struct hd_safetensors *file, const char *header,
                               uint64_t header_bytes, struct hd_problem *problem);

/* NULL: the file has no tensor of exactly this name. */
const struct hd_safetensors_tensor *hd_safetensors_find(const struct hd_safetensors *file,
                                                        const char *name);
const char *hd_safetensors_note(const struct hd_safetensors *file, const char *key); /* or NULL */

/* Elements of a tensor. */
uint64_t hd_safetensors_count(const struct hd_safetensors_tensor *tensor);

/*
 * Reads one tensor whole into `values`, float (dtype HD_F32) or double (HD_F64): F64, F32, BF16 and
 * F16 are converted, another type is refused.  Where the file says its SHA-256, the bytes are held
 * against it.  HD_EXIT_USAGE names file and tensor. [any-thread]
 */
struct hd_safetensors_target {
    uint32_t dtype; /* HD_F32 or HD_F64 */
    void *values;   /* [hd_safetensors_count] */
};
hd_status hd_safetensors_read(const struct hd_safetensors *file,
                              const struct hd_safetensors_tensor *tensor,
                              struct hd_safetensors_target target, struct hd_problem *problem);

/* --- writing: the caller has a list of names, types and shapes, and puts the bytes itself ----- */

/* Gives every tensor its bytes and its offset, in the order of the list; returns the length of the
   whole file.  A type that is not F32 or F64 asserts. */
uint64_t hd_safetensors_lay_out(struct hd_safetensors_tensor *tensors, uint32_t tensor_count);

/* Length and header as they stand in the file, with one digest a tensor; `bytes` comes back.  It is
   as long as hd_safetensors_lay_out took it to be.  Owned, free(). */
char *hd_safetensors_header(const struct hd_safetensors_tensor *tensors, uint32_t tensor_count,
                            const uint8_t (*digests)[HD_HASH_BYTES], uint64_t *bytes);

#endif /* HEDDLE_TRAIN_SAFETENSORS_H */
