/*
 * train/safetensors_header.h - the header of a safetensors file, read strictly.
 *
 *   8 bytes   length of the header, little-endian
 *   header    {"__metadata__": {text: text}, NAME: {"dtype": "F32", "shape": [4, 8],
 *              "data_offsets": [0, 128]}, ...}, padded with blanks
 *   data      the tensors, row-major and little-endian, one after the other without a gap
 *
 * The file may come from anywhere, so the reader trusts none of it.  The grammar is fixed and three
 * levels deep, so it is read without recursion; every offset is checked against the shape and
 * against the length of the file.  A refusal names the file and the tensor.
 *
 * Source: the format's description in huggingface/safetensors.
 */
#ifndef HEDDLE_TRAIN_SAFETENSORS_HEADER_H
#define HEDDLE_TRAIN_SAFETENSORS_HEADER_H

#include "base/hash.h"
#include "base/problem.h"

#include <stdint.h>

#define HD_SAFETENSORS_HEADER_BYTES_MAX 100000000u /* the limit of the reference implementation */
#define HD_SAFETENSORS_DIMENSION_MAX    8u
#define HD_SAFETENSORS_LENGTH_BYTES     8u

struct hd_safetensors_tensor {
    const char *name;   /* UTF-8; borrowed */
    const char *type;   /* "F32"; borrowed */
    const char *sha256; /* hex, from the metadata; NULL if it has none */
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
    char *text;                            /* the header, decoded in place; owned */
    uint8_t header_digest[HD_HASH_BYTES];  /* of length and header */
};

/* Reads `header` as the header of a file of file->file_bytes; file->path is used in messages.
   Fills all but descriptor and digest. */
hd_status hd_safetensors_parse(struct hd_safetensors *file, const char *header,
                               uint64_t header_bytes, struct hd_problem *problem);

/* NULL if the file has no tensor of exactly this name, or no such note. */
const struct hd_safetensors_tensor *hd_safetensors_find(const struct hd_safetensors *file,
                                                        const char *name);
const char *hd_safetensors_note(const struct hd_safetensors *file, const char *key);

/* Elements of a tensor. */
uint64_t hd_safetensors_count(const struct hd_safetensors_tensor *tensor);

#endif /* HEDDLE_TRAIN_SAFETENSORS_HEADER_H */
