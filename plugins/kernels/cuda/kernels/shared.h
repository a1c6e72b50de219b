/*
 * plugins/kernels/cuda/kernels/shared.h - argument structs of our own, and shared memory by kernel.
 *
 * A kernel is launched with the size of its struct of shared memory.
 */
#ifndef HD_CUDA_SHARED_H
#define HD_CUDA_SHARED_H

#include "../../transformer/remote.h"

#include <stddef.h>

/* --- arguments -------------------------------------------------------------------------------- */

struct hd_norm_weights {
    struct hd_norm_args op;
    float *partial; /* [chunks, width] */
    uint32_t chunk_rows;
};

/* target[i] += sum over chunks, ascending, of partial[chunk, i] */
struct hd_chunk_sum {
    const float *partial;
    float *target;
    uint32_t chunk_count, width;
};

struct hd_route_sums {
    struct hd_route_args op;
    double *partial; /* [E] */
};

struct hd_route_gradient {
    struct hd_route_args op;
    float *dl; /* [T, E] */
};

struct hd_assignment {
    struct hd_rows_args op;
    int32_t *counts; /* [E] */
    uint32_t row_max;
};

/* One chunk of columns of the vocabulary. */
struct hd_head_state {
    struct hd_head_args op;
    float *logits;                  /* [T, count] */
    uint16_t *dlogits;              /* [T, count] */
    float *greatest, *sum, *wanted; /* [T] */
    uint32_t first, count;
};

struct hd_rounded {
    const float *from, *add; /* add NULL: none */
    uint16_t *to;
    uint64_t count;
};

struct hd_adamw {
    struct hd_optimizer_args op; /* without `update`, which is host memory */
    float beta1, beta2, rest1, rest2, step, root, keep, clip, epsilon;
};

struct hd_square_sum {
    const float *gradient;
    double *partial, *squared;
    uint64_t count;
    uint32_t partial_count; /* blocks of square_sum */
};

/* C[i,j] = sum over l of A(i,l) B(l,j); the steps of the operands say what is transposed. */
enum hd_grouping {
    HD_GROUPED_NOT = 0,
    HD_GROUPED_ROWS = 1,  /* block z is an expert with its own rows of a and c */
    HD_GROUPED_DEPTH = 2, /* block z is an expert with its own part of the depth */
    HD_GROUPED_CHUNKS = 3 /* block z is a chunk of the depth, with its own c */
};

struct hd_product {
    const void *a, *b, *add;
    void *c;
    const int32_t *offsets; /* of experts, or NULL */
    uint64_t a_step, a_depth_step, b_step, b_depth_step;
    uint64_t matrix; /* elements of an expert's b, or of one c */
    uint32_t rows, columns, depth;
    uint32_t grouping;    /* enum hd_grouping */
    uint32_t chunk_depth; /* with chunks */
    uint32_t a_is_f32, b_is_f32, c_is_f32, add_is_f32, adds_to_c;
};

/* The same for BF16 operands whose rows are multiples of 8, by tensor cores; see tile.cu. */
struct hd_tile {
    const uint16_t *a, *b;
    const void *add;
    void *c;
    const int32_t *offsets;        /* NULL: one matrix */
    uint64_t matrix;               /* elements of an expert's b, or with WGRAD c */
    uint32_t rows, columns, depth; /* of c; `offsets` replaces the rows, or with WGRAD the depth */
    uint32_t expert_count;
    uint32_t c_is_f32, add_is_f32, adds_to_c;
};

/* An operand of a block-scaled product: the contraction contiguous, and the scales of places.h. */
struct hd_pack {
    const uint16_t *source; /* [rows, columns] */
    uint8_t *data;          /* pack_rows: [rows, columns]; pack_columns: [columns, rows] */
    uint8_t *scales;
    uint32_t rows, columns, scale_rule;
};

#define HD_PACK_ROWS 16u /* rows of a block of pack_rows, with 4 blocks of 32 each */

struct hd_attention_gradient {
    struct hd_attention_args op;
    float *inner; /* [batch, h, sequence]: D */
};

/* --- shared memory ---------------------------------------------------------------------------- */

struct hd_none_shared {
    uint32_t unused[4];
};

struct hd_sum_shared {
    double wide_slots[32];
    float slots[32];
};

struct hd_match_shared {
    uint32_t ballots[32];
};

#define HD_IMAGE_COLUMNS 128u

/* Rows are padded, so that a column is not in one bank. */
struct hd_image_shared {
    uint16_t source[HD_ROW_BLOCK][HD_IMAGE_COLUMNS + 2];
    uint16_t image[HD_ROW_BLOCK][HD_IMAGE_COLUMNS + 2];
};

#define HD_PRODUCT_TILE  64u
#define HD_PRODUCT_DEPTH 16u

struct hd_product_shared {
    float a[HD_PRODUCT_DEPTH][HD_PRODUCT_TILE + 4];
    float b[HD_PRODUCT_DEPTH][HD_PRODUCT_TILE + 4];
};

#define HD_TILE_ROWS    128u
#define HD_TILE_COLUMNS 128u
#define HD_TILE_DEPTH   32u
#define HD_TILE_STAGES  4u
/* An operand's tile is [128][32 + 8], or transposed [32][128 + 8]: the larger of the two. */
#define HD_TILE_ELEMENTS (HD_TILE_ROWS * (HD_TILE_DEPTH + 8u))

struct hd_tile_shared {
    uint16_t a[HD_TILE_STAGES][HD_TILE_ELEMENTS];
    uint16_t b[HD_TILE_STAGES][HD_TILE_ELEMENTS];
};

#define HD_QUERIES 64u /* rows of an attention tile, and keys */

#define HD_ATTENTION_SHARED(width)                       \
    struct hd_attention_##width##_shared {               \
        uint16_t queries[HD_QUERIES * ((width) + 8u)];   \
        uint16_t keys[2][HD_QUERIES * ((width) + 8u)];   \
        uint16_t values[2][HD_QUERIES * ((width) + 8u)]; \
    };                                                   \
    struct hd_gradient_##width##_shared {                \
        uint16_t own[2][HD_QUERIES * ((width) + 8u)];    \
        uint16_t first[2][HD_QUERIES * ((width) + 8u)];  \
        uint16_t second[2][HD_QUERIES * ((width) + 8u)]; \
        float lse[2][HD_QUERIES], inner[2][HD_QUERIES];  \
    }

HD_ATTENTION_SHARED(64);
HD_ATTENTION_SHARED(128);

#endif /* HD_CUDA_SHARED_H */
