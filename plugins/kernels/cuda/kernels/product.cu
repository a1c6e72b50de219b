/*
 * plugins/kernels/cuda/kernels/product.cu - a product of any operands, in float32.
 *
 * C[i,j] = sum over l, ascending, of A(i,l) B(l,j).  A block computes 64 x 64 of C, a thread 4 x 4.
 * It is for the router, with float32 weights, and for shapes that neither the tensor cores' kernel
 * nor cuBLASLt supports.  With experts, block z is an expert.
 */
#include "arguments.h"
#include "language.cuh"
#include "shared.h"

/* The part of the product that a block computes. */
struct hd_product_part {
    uint64_t a, b, c;
    uint32_t rows, depth;
};

HD_INLINE struct hd_product_part part_of(const struct hd_product *args)
{
    struct hd_product_part part;
    part.a = 0;
    part.b = 0;
    part.c = 0;
    part.rows = args->rows;
    part.depth = args->depth;
    if (args->grouping == HD_GROUPED_CHUNKS) {
        const uint32_t begin = hd_block_z() * args->chunk_depth, left = args->depth - begin;
        part.a = begin * args->a_depth_step;
        part.b = begin * args->b_depth_step;
        part.c = hd_block_z() * args->matrix;
        part.depth = left < args->chunk_depth ? left : args->chunk_depth;
    } else if (args->grouping != HD_GROUPED_NOT) {
        const uint32_t expert = hd_block_z();
        const uint32_t begin = (uint32_t)args->offsets[expert];
        const uint32_t count = (uint32_t)args->offsets[expert + 1] - begin;
        if (args->grouping == HD_GROUPED_ROWS) {
            part.a = begin * args->a_step;
            part.b = expert * args->matrix;
            part.c = (uint64_t)begin * args->columns;
            part.rows = count;
        } else {
            part.a = begin * args->a_depth_step;
            part.b = begin * args->b_depth_step;
            part.c = expert * args->matrix;
            part.depth = count;
        }
    }
    return part;
}

HD_INLINE float value_at(const void *data, uint64_t at, uint32_t is_f32)
{
    return is_f32 ? ((const float *)data)[at] : hd_f32_of(((const uint16_t *)data)[at]);
}

/* 64 x 16 of an operand -> tile[depth][free]; neighbouring threads load neighbouring elements. */
struct hd_panel {
    const void *data;
    uint64_t at, step, depth_step;
    uint32_t first, limit, depth, depth_limit, is_f32;
};

HD_INLINE void load_panel(const struct hd_panel *panel, float (*tile)[HD_PRODUCT_TILE + 4])
{
    for (uint32_t i = hd_thread(); i < HD_PRODUCT_TILE * HD_PRODUCT_DEPTH; i += hd_threads()) {
        const int is_along = panel->depth_step == 1;
        const uint32_t free = is_along ? i / HD_PRODUCT_DEPTH : i % HD_PRODUCT_TILE;
        const uint32_t deep = is_along ? i % HD_PRODUCT_DEPTH : i / HD_PRODUCT_TILE;
        const uint32_t index = panel->first + free, l = panel->depth + deep;
        float value = 0;
        if (index < panel->limit && l < panel->depth_limit) {
            value = value_at(panel->data, panel->at + index * panel->step + l * panel->depth_step,
                             panel->is_f32);
        }
        tile[deep][free] = value;
    }
}

HD_INLINE void put_product(const struct hd_product *args, uint64_t at, float sum)
{
    if (args->adds_to_c) {
        ((float *)args->c)[at] += sum;
        return;
    }
    const float value = args->add != NULL ? value_at(args->add, at, args->add_is_f32) + sum : sum;
    if (args->c_is_f32) {
        ((float *)args->c)[at] = value;
    } else {
        ((uint16_t *)args->c)[at] = hd_bf16_of(value);
    }
}

HD_INLINE void multiply_panels(const struct hd_product_shared *shared, float (*sums)[4])
{
    const uint32_t row = hd_thread() / 16 * 4, column = hd_thread() % 16 * 4;
    for (uint32_t l = 0; l < HD_PRODUCT_DEPTH; l++) {
        HD_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            HD_UNROLL
            for (uint32_t j = 0; j < 4; j++) {
                sums[i][j] += shared->a[l][row + i] * shared->b[l][column + j];
            }
        }
    }
}

HD_KERNEL(product, 256, hd_product)
{
    HD_SHARED(hd_product_shared, shared);
    const struct hd_product_part part = part_of(&args);
    const uint32_t row = hd_block_y() * HD_PRODUCT_TILE, column = hd_block_x() * HD_PRODUCT_TILE;
    float sums[4][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}};
    if (row >= part.rows || (args.grouping == HD_GROUPED_DEPTH && part.depth == 0)) {
        return; /* an idle expert changes nothing */
    }
    struct hd_panel a = {args.a,    part.a, args.a_step, args.a_depth_step, row,
                         part.rows, 0,      part.depth,  args.a_is_f32};
    struct hd_panel b = {args.b,       part.b, args.b_step, args.b_depth_step, column,
                         args.columns, 0,      part.depth,  args.b_is_f32};
    for (uint32_t depth = 0; depth < part.depth; depth += HD_PRODUCT_DEPTH) {
        a.depth = depth;
        b.depth = depth;
        load_panel(&a, shared->a);
        load_panel(&b, shared->b);
        hd_sync();
        multiply_panels(shared, sums);
        hd_sync();
    }
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t at_row = row + hd_thread() / 16 * 4 + i / 4;
        const uint32_t at_column = column + hd_thread() % 16 * 4 + i % 4;
        if (at_row < part.rows && at_column < args.columns) {
            put_product(&args, part.c + (uint64_t)at_row * args.columns + at_column,
                        sums[i / 4][i % 4]);
        }
    }
}
