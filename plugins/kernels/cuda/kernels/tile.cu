/*
 * plugins/kernels/cuda/kernels/tile.cu - BF16 products by tensor cores, also of experts.
 *
 *   FPROP  C[rows, columns] = A[rows, depth] B[columns, depth]^T
 *   DGRAD  C[rows, columns] = A[rows, depth] B[depth, columns]
 *   WGRAD  C[rows, columns] += A[depth, rows]^T B[depth, columns]
 *
 *        depth 32 x 4 stages        a block of 8 warps computes 128 x 128 of C,
 *   A  |====|====|====|====|        a warp 64 x 32 of it, in 4 x 4 fragments of 16 x 8;
 *   B  |====|====|====|====|        a stage is loaded three stages ahead of its use
 *
 * Only the device knows how many rows an expert has: the grid is sized for the worst routing,
 * each block finds its expert in `offsets`, and blocks past the last tile return.  The sum over
 * the depth has the same order for every row, so a token's bits do not depend on its row.  The 8
 * x 8 matrices of a transposed operand are transposed as they are loaded.  Rows are multiples of
 * 8 elements.
 */
#include "arguments.h"
#include "language.cuh"
#include "places.h"
#include "shared.h"

#define HD_TILE_STRIDE \
    (HD_TILE_DEPTH + 8u) /* elements from row to row; padded against bank conflicts */
#define HD_TRANSPOSED_STRIDE (HD_TILE_ROWS + 8u)

/* An operand of a block: 128 free indices from `first`, and the whole depth. */
struct hd_tile_side {
    const uint16_t *data;
    uint32_t first, limit;  /* free indices */
    uint32_t depth, stride; /* of the whole sum; elements from row to row */
};

struct hd_tile_part {
    struct hd_tile_side a, b;
    uint64_t c;
    uint32_t is_there;
};

/* Loads depth [depth, depth + 32) of [free][depth], or if transposed of [depth][free]. */
HD_INLINE void load_side(const struct hd_tile_side *side, uint32_t depth, uint16_t *to,
                         const int is_transposed)
{
    HD_UNROLL
    for (uint32_t part = 0; part < 2; part++) {
        const uint32_t chunk = part * 256u + hd_thread();
        const uint32_t row = is_transposed ? chunk / 16 : chunk / 4;
        const uint32_t column = (is_transposed ? chunk % 16 : chunk % 4) * 8;
        const uint32_t free = side->first + (is_transposed ? column : row);
        const uint32_t deep = depth + (is_transposed ? row : column);
        const int is_there = free < side->limit && deep < side->depth;
        const uint64_t at = is_transposed ? (uint64_t)deep * side->stride + free
                                          : (uint64_t)free * side->stride + deep;
        hd_copy_async(to + row * (is_transposed ? HD_TRANSPOSED_STRIDE : HD_TILE_STRIDE) + column,
                      side->data + (is_there ? at : 0), is_there ? 16 : 0);
    }
}

/* The 16 rows from `row` and 16 of the depth from `depth`, as mma reads A. */
HD_INLINE void load_a(const uint16_t *tile, uint32_t row, uint32_t depth, uint32_t *out,
                      const int is_transposed)
{
    const uint32_t lane = hd_lane();
    if (is_transposed) {
        hd_load_transposed(out, tile + (depth + lane % 8 + lane / 16 * 8) * HD_TRANSPOSED_STRIDE +
                                    row + lane / 8 % 2 * 8);
    } else {
        hd_load_matrices(out, tile + (row + lane % 16) * HD_TILE_STRIDE + depth + lane / 16 * 8);
    }
}

/* 16 columns from `column` and 16 of the depth: two fragments of B. */
HD_INLINE void load_b(const uint16_t *tile, uint32_t column, uint32_t depth, uint32_t *out,
                      const int is_transposed)
{
    const uint32_t lane = hd_lane();
    if (is_transposed) {
        hd_load_transposed(out, tile +
                                    (depth + lane % 8 + lane / 8 % 2 * 8) * HD_TRANSPOSED_STRIDE +
                                    column + lane / 16 * 8);
    } else {
        hd_load_matrices(out, tile + (column + lane % 8 + lane / 16 * 8) * HD_TILE_STRIDE + depth +
                                  lane / 8 % 2 * 8);
    }
}

/* One stage: 32 of the depth. */
HD_INLINE void multiply_stage(const uint16_t *a, const uint16_t *b, float (*sums)[4][4],
                              const int a_transposed, const int b_transposed)
{
    const uint32_t row = hd_warp() / 4 * 64, column = hd_warp() % 4 * 32;
    HD_UNROLL
    for (uint32_t depth = 0; depth < HD_TILE_DEPTH; depth += 16) {
        uint32_t left[4][4], right[2][4];
        HD_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            load_a(a, row + i * 16, depth, left[i], a_transposed);
        }
        HD_UNROLL
        for (uint32_t j = 0; j < 2; j++) {
            load_b(b, column + j * 16, depth, right[j], b_transposed);
        }
        HD_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            HD_UNROLL
            for (uint32_t j = 0; j < 4; j++) {
                hd_multiply(sums[i][j], left[i], &right[j / 2][j % 2 * 2]);
            }
        }
    }
}

HD_INLINE float add_at(const struct hd_tile *args, uint64_t at)
{
    return args->add_is_f32 ? ((const float *)args->add)[at]
                            : hd_f32_of(((const uint16_t *)args->add)[at]);
}

/* Two neighbours of C. */
HD_INLINE void put_pair(const struct hd_tile *args, uint64_t at, float low, float high)
{
    if (args->adds_to_c) {
        ((float *)args->c)[at] += low;
        ((float *)args->c)[at + 1] += high;
        return;
    }
    if (args->add != NULL) {
        low = add_at(args, at) + low;
        high = add_at(args, at + 1) + high;
    }
    if (args->c_is_f32) {
        ((float *)args->c)[at] = low;
        ((float *)args->c)[at + 1] = high;
    } else {
        *(uint32_t *)(void *)((uint16_t *)args->c + at) = hd_bf16_pair(low, high);
    }
}

HD_INLINE void put_tile(const struct hd_tile *args, const struct hd_tile_part *part,
                        float (*sums)[4][4])
{
    const uint32_t row = part->a.first + hd_warp() / 4 * 64 + hd_lane() / 4;
    const uint32_t column = part->b.first + hd_warp() % 4 * 32 + hd_lane() % 4 * 2;
    HD_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        HD_UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t at_column = column + j * 8;
            HD_UNROLL
            for (uint32_t half = 0; half < 2; half++) {
                const uint32_t at_row = row + i * 16 + half * 8;
                if (at_row < part->a.limit && at_column < part->b.limit) {
                    put_pair(args, part->c + (uint64_t)at_row * args->columns + at_column,
                             sums[i][j][2 * half], sums[i][j][2 * half + 1]);
                }
            }
        }
    }
}

HD_INLINE void load_stage(const struct hd_tile_part *part, struct hd_tile_shared *shared,
                          uint32_t stage, const int a_transposed, const int b_transposed)
{
    const uint32_t slot = stage % HD_TILE_STAGES, depth = stage * HD_TILE_DEPTH;
    if (depth < part->a.depth) {
        load_side(&part->a, depth, shared->a[slot], a_transposed);
        load_side(&part->b, depth, shared->b[slot], b_transposed);
    }
    hd_copy_commit(); /* also an empty group, so that the count of groups stays the same */
}

HD_INLINE void make_tile(const struct hd_tile *args, const struct hd_tile_part *part,
                         struct hd_tile_shared *shared, const int a_transposed,
                         const int b_transposed)
{
    /* A warp with its part of the tile past the end of C only takes part in loads. */
    const int is_there = part->a.first + hd_warp() / 4 * 64 < part->a.limit &&
                         part->b.first + hd_warp() % 4 * 32 < part->b.limit;
    float sums[4][4][4];
    HD_UNROLL
    for (uint32_t i = 0; i < 64; i++) {
        sums[i / 16][i / 4 % 4][i % 4] = 0;
    }
    HD_UNROLL
    for (uint32_t stage = 0; stage + 1 < HD_TILE_STAGES; stage++) {
        load_stage(part, shared, stage, a_transposed, b_transposed);
    }
    for (uint32_t stage = 0; stage * HD_TILE_DEPTH < part->a.depth; stage++) {
        hd_copy_wait(2);
        hd_sync(); /* all threads have loaded this stage, and have read the slot to fill */
        load_stage(part, shared, stage + HD_TILE_STAGES - 1, a_transposed, b_transposed);
        if (is_there) {
            multiply_stage(shared->a[stage % HD_TILE_STAGES], shared->b[stage % HD_TILE_STAGES],
                           sums, a_transposed, b_transposed);
        }
    }
    put_tile(args, part, sums);
}

/* FPROP, DGRAD: block y counts tiles of rows, expert by expert. */
HD_INLINE struct hd_tile_part part_of_rows(const struct hd_tile *args, uint32_t b_stride)
{
    struct hd_tile_part part;
    struct hd_tile_place place = {0, hd_block_y() * HD_TILE_ROWS, args->rows};
    part.is_there = 1;
    if (args->offsets != NULL) {
        place = hd_tile_find(args->offsets, args->expert_count, hd_block_y());
        part.is_there = place.expert < args->expert_count;
    }
    part.a.data = args->a;
    part.a.first = place.first;
    part.a.limit = place.end;
    part.a.depth = args->depth;
    part.a.stride = args->depth;
    part.b.data = args->b + (part.is_there ? place.expert * args->matrix : 0);
    part.b.first = hd_block_x() * HD_TILE_COLUMNS;
    part.b.limit = args->columns;
    part.b.depth = args->depth;
    part.b.stride = b_stride;
    part.c = 0;
    return part;
}

/* WGRAD: block z is an expert, with its own rows of A and B and its own C. */
HD_INLINE struct hd_tile_part part_of_depth(const struct hd_tile *args)
{
    struct hd_tile_part part;
    uint32_t begin = 0, depth = args->depth;
    if (args->offsets != NULL) {
        begin = (uint32_t)args->offsets[hd_block_z()];
        depth = (uint32_t)args->offsets[hd_block_z() + 1] - begin;
    }
    part.is_there = depth > 0;
    part.a.data = args->a + (uint64_t)begin * args->rows;
    part.a.first = hd_block_y() * HD_TILE_ROWS;
    part.a.limit = args->rows;
    part.a.depth = depth;
    part.a.stride = args->rows;
    part.b.data = args->b + (uint64_t)begin * args->columns;
    part.b.first = hd_block_x() * HD_TILE_COLUMNS;
    part.b.limit = args->columns;
    part.b.depth = depth;
    part.b.stride = args->columns;
    part.c = hd_block_z() * args->matrix;
    return part;
}

HD_KERNEL(tile_fprop, 256, hd_tile)
{
    HD_SHARED(hd_tile_shared, shared);
    const struct hd_tile_part part = part_of_rows(&args, args.depth);
    if (part.is_there) {
        make_tile(&args, &part, shared, 0, 0);
    }
}

HD_KERNEL(tile_dgrad, 256, hd_tile)
{
    HD_SHARED(hd_tile_shared, shared);
    const struct hd_tile_part part = part_of_rows(&args, args.columns);
    if (part.is_there) {
        make_tile(&args, &part, shared, 0, 1);
    }
}

HD_KERNEL(tile_wgrad, 256, hd_tile)
{
    HD_SHARED(hd_tile_shared, shared);
    const struct hd_tile_part part = part_of_depth(&args);
    if (part.is_there) {
        make_tile(&args, &part, shared, 1, 1);
    }
}
