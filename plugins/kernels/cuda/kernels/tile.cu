/*
 * plugins/kernels/cuda/kernels/tile.cu - BF16 products by tensor cores, also of experts.
 *
 *   FPROP  C[rows, columns] = A[rows, depth] B[columns, depth]^T
 *   DGRAD  C[rows, columns] = A[rows, depth] B[depth, columns]
 *   WGRAD  C[rows, columns] += A[depth, rows]^T B[depth, columns]
 *
 *        depth 32 x 4 stages        a block of 8 warps makes 128 x 128 of C,
 *   A  |====|====|====|====|        a warp 64 x 32 of it, in 4 x 4 fragments of 16 x 8;
 *   B  |====|====|====|====|        a stage is loaded three before it is used
 *
 * How many rows an expert has only the device knows: the grid is that of the worst routing, each
 * block finds its expert in `offsets`, and blocks past the last tile leave.  The sum runs over the
 * depth in one order for every row, so a token's bits do not depend on its row.  Where an operand
 * lies the other way round its 8 x 8 matrices are turned as they are loaded.  Rows are multiples of
 * 8 elements.
 */
#include "arguments.h"
#include "language.cuh"
#include "places.h"
#include "shared.h"

#define HD_TILE_LINE   (HD_TILE_DEPTH + 8u) /* elements from row to row; the pad parts the banks */
#define HD_TURNED_LINE (HD_TILE_ROWS + 8u)

/* What a block multiplies: 128 free indices of each operand from `first`, all of the depth. */
struct hd_tile_side {
    const uint16_t *data;
    uint32_t first, limit; /* free indices */
    uint32_t depth, line;  /* of the whole sum; elements from row to row */
};

struct hd_tile_part {
    struct hd_tile_side a, b;
    uint64_t c;
    uint32_t is_there;
};

/* Loads depth [depth, depth + 32): as it lies [free][depth], or turned [depth][free]. */
HD_INLINE void load_side(const struct hd_tile_side *side, uint32_t depth, uint16_t *to,
                         const int is_turned)
{
    HD_UNROLL
    for (uint32_t part = 0; part < 2; part++) {
        const uint32_t chunk = part * 256u + hd_thread();
        const uint32_t row = is_turned ? chunk / 16 : chunk / 4;
        const uint32_t column = (is_turned ? chunk % 16 : chunk % 4) * 8;
        const uint32_t free = side->first + (is_turned ? column : row);
        const uint32_t deep = depth + (is_turned ? row : column);
        const int is_there = free < side->limit && deep < side->depth;
        const uint64_t at =
            is_turned ? (uint64_t)deep * side->line + free : (uint64_t)free * side->line + deep;
        hd_copy_async(to + row * (is_turned ? HD_TURNED_LINE : HD_TILE_LINE) + column,
                      side->data + (is_there ? at : 0), is_there ? 16 : 0);
    }
}

/* The 16 rows from `row` and 16 of the depth from `depth`, as mma reads A. */
HD_INLINE void load_a(const uint16_t *tile, uint32_t row, uint32_t depth, uint32_t *out,
                      const int is_turned)
{
    const uint32_t lane = hd_lane();
    if (is_turned) {
        hd_load_turned(out, tile + (depth + lane % 8 + lane / 16 * 8) * HD_TURNED_LINE + row +
                                lane / 8 % 2 * 8);
    } else {
        hd_load_matrices(out, tile + (row + lane % 16) * HD_TILE_LINE + depth + lane / 16 * 8);
    }
}

/* 16 columns from `column` and 16 of the depth: two fragments of B. */
HD_INLINE void load_b(const uint16_t *tile, uint32_t column, uint32_t depth, uint32_t *out,
                      const int is_turned)
{
    const uint32_t lane = hd_lane();
    if (is_turned) {
        hd_load_turned(out, tile + (depth + lane % 8 + lane / 8 % 2 * 8) * HD_TURNED_LINE + column +
                                lane / 16 * 8);
    } else {
        hd_load_matrices(out, tile + (column + lane % 8 + lane / 16 * 8) * HD_TILE_LINE + depth +
                                  lane / 8 % 2 * 8);
    }
}

/* One stage: 32 of the depth. */
HD_INLINE void multiply_stage(const uint16_t *a, const uint16_t *b, float (*sums)[4][4],
                              const int a_turned, const int b_turned)
{
    const uint32_t row = hd_warp() / 4 * 64, column = hd_warp() % 4 * 32;
    HD_UNROLL
    for (uint32_t depth = 0; depth < HD_TILE_DEPTH; depth += 16) {
        uint32_t left[4][4], right[2][4];
        HD_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            load_a(a, row + i * 16, depth, left[i], a_turned);
        }
        HD_UNROLL
        for (uint32_t j = 0; j < 2; j++) {
            load_b(b, column + j * 16, depth, right[j], b_turned);
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
                          uint32_t stage, const int a_turned, const int b_turned)
{
    const uint32_t slot = stage % HD_TILE_STAGES, depth = stage * HD_TILE_DEPTH;
    if (depth < part->a.depth) {
        load_side(&part->a, depth, shared->a[slot], a_turned);
        load_side(&part->b, depth, shared->b[slot], b_turned);
    }
    hd_copy_commit(); /* an empty group keeps the count even at the end */
}

HD_INLINE void make_tile(const struct hd_tile *args, const struct hd_tile_part *part,
                         struct hd_tile_shared *shared, const int a_turned, const int b_turned)
{
    /* A warp whose part of the tile is past the end of C loads with the others, and rests. */
    const int is_there = part->a.first + hd_warp() / 4 * 64 < part->a.limit &&
                         part->b.first + hd_warp() % 4 * 32 < part->b.limit;
    float sums[4][4][4];
    HD_UNROLL
    for (uint32_t i = 0; i < 64; i++) {
        sums[i / 16][i / 4 % 4][i % 4] = 0;
    }
    HD_UNROLL
    for (uint32_t stage = 0; stage + 1 < HD_TILE_STAGES; stage++) {
        load_stage(part, shared, stage, a_turned, b_turned);
    }
    for (uint32_t stage = 0; stage * HD_TILE_DEPTH < part->a.depth; stage++) {
        hd_copy_wait(2);
        hd_sync(); /* everyone's part of this stage is there, and the slot to fill is read */
        load_stage(part, shared, stage + HD_TILE_STAGES - 1, a_turned, b_turned);
        if (is_there) {
            multiply_stage(shared->a[stage % HD_TILE_STAGES], shared->b[stage % HD_TILE_STAGES],
                           sums, a_turned, b_turned);
        }
    }
    put_tile(args, part, sums);
}

/* FPROP, DGRAD: block y counts tiles of rows, of one expert after another. */
HD_INLINE struct hd_tile_part part_of_rows(const struct hd_tile *args, uint32_t b_line)
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
    part.a.line = args->depth;
    part.b.data = args->b + (part.is_there ? place.expert * args->matrix : 0);
    part.b.first = hd_block_x() * HD_TILE_COLUMNS;
    part.b.limit = args->columns;
    part.b.depth = args->depth;
    part.b.line = b_line;
    part.c = 0;
    return part;
}

/* WGRAD: block z is an expert, which has its own rows of A and B and its own C. */
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
    part.a.line = args->rows;
    part.b.data = args->b + (uint64_t)begin * args->columns;
    part.b.first = hd_block_x() * HD_TILE_COLUMNS;
    part.b.limit = args->columns;
    part.b.depth = depth;
    part.b.line = args->columns;
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
