/*
 * train/safetensors.h - reads and writes the file format of parameters.
 *
 * What heddle writes has a SHA-256 of each tensor in the metadata ("sha256:NAME"), so a reader can
 * check the part that it needs without reading the rest.
 */
#ifndef HEDDLE_TRAIN_SAFETENSORS_H
#define HEDDLE_TRAIN_SAFETENSORS_H

#include "train/safetensors_header.h"

/* Opens the file and reads its header.  On an error, HD_EXIT_USAGE with the file as place, the file
   is closed. */
hd_status hd_safetensors_open(struct hd_safetensors *file, const char *path,
                              struct hd_problem *problem);
void hd_safetensors_close(
    struct hd_safetensors *file); /* also a file that was never opened, with descriptor -1 */

/*
 * Reads one tensor into `values`, float (dtype HD_F32) or double (HD_F64).  It converts F64, F32,
 * BF16 and F16, and refuses other types.  If the file has its SHA-256, the bytes are checked.
 * HD_EXIT_USAGE names file and tensor. [any-thread]
 */
struct hd_safetensors_target {
    uint32_t dtype; /* HD_F32 or HD_F64 */
    void *values;   /* [hd_safetensors_count] */
};
hd_status hd_safetensors_read(const struct hd_safetensors *file,
                              const struct hd_safetensors_tensor *tensor,
                              struct hd_safetensors_target target, struct hd_problem *problem);

/* --- writing: the caller makes the list, and writes the bytes of the tensors itself ----------- */

/* Fills bytes and offset of every tensor, in the order of the list; returns the length of the whole
   file.  Types are F32 or F64; others assert. */
uint64_t hd_safetensors_lay_out(struct hd_safetensors_tensor *tensors, uint32_t tensor_count);

/* Length and header as they begin the file, with one digest for each tensor; `bytes` is their
   length, which hd_safetensors_lay_out has counted on.  Owned, free(). */
char *hd_safetensors_header(const struct hd_safetensors_tensor *tensors, uint32_t tensor_count,
                            const uint8_t (*digests)[HD_HASH_BYTES], uint64_t *bytes);

#endif /* HEDDLE_TRAIN_SAFETENSORS_H */
