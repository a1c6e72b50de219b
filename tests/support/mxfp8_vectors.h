/*
 * tests/support/mxfp8_vectors.h - blocks of 32 values and the bytes that they become.
 *
 * tests/golden/mxfp8_vectors.csv: computed in exact fractions, apart from any code here, and equal
 * to NVIDIA's conversions.
 */
#ifndef HD_TESTS_SUPPORT_MXFP8_VECTORS_H
#define HD_TESTS_SUPPORT_MXFP8_VECTORS_H

#include <stdint.h>

#define HD_MXFP8_VECTOR_MAX 384u

struct hd_mxfp8_vector {
    char name[64];
    uint8_t scale[2]; /* by scale_rule: 0 up, 1 down */
    uint8_t elements[2][32];
    float values[32];
    int is_bf16; /* each value is one */
};

/* Rows behind the last are zero. */
struct hd_mxfp8_vectors {
    struct hd_mxfp8_vector rows[HD_MXFP8_VECTOR_MAX];
    unsigned count;
};

/* Read once; static. */
const struct hd_mxfp8_vectors *hd_mxfp8_vectors(void);

#endif /* HD_TESTS_SUPPORT_MXFP8_VECTORS_H */
