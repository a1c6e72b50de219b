/*
 * plugins/kernels/cuda/kernels/rows.cu - rows of experts and their activation.
 *
 *   selected   token 0: 2 0   token 1: 2 1          rows sorted by (expert, token),
 *   rows       expert 0: t0 + 31 zeros  expert 1: t1 + 31 zeros  expert 2: t0 t1 + 30
 *
 * A block per expert finds its choices in order, so that the result does not depend on the order of
 * threads.  Only the device knows the number of rows: row kernels are launched for the largest
 * possible number, and blocks past the last row return.
 */
#include "arguments.h"
#include "language.cuh"
#include "parts.cuh"
#include "shared.h"

HD_INLINE uint32_t places_of(const struct hd_rows_args *op)
{
    return op->token_count * op->experts_per_token;
}

HD_KERNEL(count_rows, 256, hd_assignment)
{
    HD_SHARED(hd_sum_shared, shared);
    double count = 0; /* whole numbers are exact */
    for (uint32_t place = hd_thread(); place < places_of(&args.op); place += hd_threads()) {
        count += args.op.selected[place] == (int32_t)hd_block_x() ? 1 : 0;
    }
    count = hd_block_sum_f64(count, shared->wide_slots);
    if (hd_thread() == 0) {
        args.counts[hd_block_x()] = (int32_t)count;
    }
}

HD_KERNEL(place_experts, 32, hd_assignment)
{
    int32_t begin = 0;
    if (hd_thread() != 0) {
        return;
    }
    for (uint32_t e = 0; e < args.op.experts; e++) {
        const int32_t padded = (args.counts[e] + (int32_t)HD_ROW_BLOCK - 1) / (int32_t)HD_ROW_BLOCK;
        args.op.offsets[e] = begin;
        begin += padded * (int32_t)HD_ROW_BLOCK;
    }
    args.op.offsets[args.op.experts] = begin;
}

/* The rank of the thread's choice among those of the block; `total` gets their number. */
HD_INLINE uint32_t rank_of(const struct hd_match_shared *shared, uint32_t *total)
{
    const uint32_t below = (1u << hd_lane()) - 1u;
    uint32_t rank = hd_bit_count(shared->ballots[hd_warp()] & below), all = 0;
    for (uint32_t warp = 0; warp < hd_threads() / HD_WARP; warp++) {
        const uint32_t count = hd_bit_count(shared->ballots[warp]);
        rank += warp < hd_warp() ? count : 0;
        all += count;
    }
    *total = all;
    return rank;
}

HD_KERNEL(place_rows, 256, hd_assignment)
{
    HD_SHARED(hd_match_shared, shared);
    const uint32_t expert = hd_block_x(), places = places_of(&args.op);
    const int is_last = expert + 1 == args.op.experts;
    const uint32_t end = is_last ? args.row_max : (uint32_t)args.op.offsets[expert + 1];
    uint32_t next = (uint32_t)args.op.offsets[expert];
    for (uint32_t begin = 0; begin < places; begin += hd_threads()) {
        const uint32_t place = begin + hd_thread();
        const int is_mine = place < places && args.op.selected[place] == (int32_t)expert;
        uint32_t total;
        hd_match(shared, is_mine);
        const uint32_t row = next + rank_of(shared, &total);
        if (is_mine) {
            args.op.row_of[place] = (int32_t)row;
            args.op.source[row] = (int32_t)place;
        }
        next += total;
    }
    for (uint32_t row = next + hd_thread(); row < end; row += hd_threads()) {
        args.op.source[row] = -1;
    }
}

HD_KERNEL(permute, 128, hd_rows_args)
{
    const uint32_t row = hd_block_x(), width = args.width;
    if ((int32_t)row >= args.offsets[args.experts]) {
        return;
    }
    const int32_t place = args.source[row];
    uint16_t *to = (uint16_t *)args.rows.data + (size_t)row * width;
    if (place >= 0) {
        const size_t token = (uint32_t)place / args.experts_per_token;
        copy_row((const uint16_t *)args.x + token * width, to, width);
        return;
    }
    for (uint32_t i = hd_thread(); i < width; i += hd_threads()) {
        to[i] = 0;
    }
}

/* sum += gate x rows[row_of[token, j]], for each j in order; gates NULL: 1. */
HD_INLINE void add_rows(const struct hd_rows_args *args, uint32_t column, float *sum,
                        const uint32_t step)
{
    const size_t first = (size_t)hd_block_x() * args->experts_per_token;
    const float *gates = (const float *)args->gates;
    for (uint32_t j = 0; j < args->experts_per_token; j++) {
        const size_t row = (size_t)args->row_of[first + j];
        const float gate = gates != NULL ? gates[first + j] : 1;
        float value[HD_VECTOR];
        hd_load((const uint16_t *)args->rows.data + row * args->width + column, value, step);
        for (uint32_t i = 0; i < step; i++) {
            sum[i] += gate * value[i];
        }
    }
}

HD_INLINE void permute_token_backward(const struct hd_rows_args *args, const uint32_t step)
{
    const size_t at = (size_t)hd_block_x() * args->width;
    struct hd_rows_args plain = *args;
    plain.gates = NULL;
    for (uint32_t i = hd_thread() * step; i < args->width; i += hd_threads() * step) {
        float sum[HD_VECTOR];
        hd_load_f32((const float *)args->add + at + i, sum, step);
        add_rows(&plain, i, sum, step);
        hd_store(sum, (uint16_t *)args->dx + at + i, step);
    }
}

HD_KERNEL(permute_backward, 128, hd_rows_args)
{
    HD_BY_VECTOR(permute_token_backward, args.width, &args);
}

HD_INLINE void combine_token(const struct hd_rows_args *args, const uint32_t step)
{
    const size_t at = (size_t)hd_block_x() * args->width;
    for (uint32_t i = hd_thread() * step; i < args->width; i += hd_threads() * step) {
        float sum[HD_VECTOR];
        hd_load((const uint16_t *)args->residual + at + i, sum, step);
        add_rows(args, i, sum, step);
        hd_store(sum, (uint16_t *)args->out + at + i, step);
    }
}

HD_KERNEL(combine, 128, hd_rows_args)
{
    HD_BY_VECTOR(combine_token, args.width, &args);
}

/* --- the activation --------------------------------------------------------------------------- */

HD_INLINE float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

HD_INLINE void swiglu_row(const struct hd_swiglu_args *args, const uint32_t step)
{
    const size_t row = hd_block_x(), width = args->expert_width;
    const uint16_t *gate = (const uint16_t *)args->gate_up + row * 2 * width;
    uint16_t *h = (uint16_t *)args->h + row * width;
    for (uint32_t i = hd_thread() * step; i < width; i += hd_threads() * step) {
        float g[HD_VECTOR], u[HD_VECTOR];
        hd_load(gate + i, g, step);
        hd_load(gate + width + i, u, step);
        for (uint32_t j = 0; j < step; j++) {
            g[j] = g[j] * sigmoid(g[j]) * u[j];
        }
        hd_store(g, h + i, step);
    }
}

HD_KERNEL(swiglu, 256, hd_swiglu_args)
{
    if (args.offsets != NULL && (int32_t)hd_block_x() >= args.offsets[args.experts]) {
        return;
    }
    HD_BY_VECTOR(swiglu_row, args.expert_width, &args);
}

/* One vector of a row; returns its part of the gate's gradient.  dgate_up may be gate_up. */
HD_INLINE float swiglu_part_backward(const struct hd_swiglu_args *args, uint32_t i, float gate,
                                     const uint32_t step)
{
    const size_t width = args->expert_width, at = (size_t)hd_block_x() * width + i;
    const size_t wide = (size_t)hd_block_x() * 2 * width + i;
    float g[HD_VECTOR], u[HD_VECTOR], e[HD_VECTOR], weighted[HD_VECTOR], sum = 0;
    hd_load((const uint16_t *)args->gate_up + wide, g, step);
    hd_load((const uint16_t *)args->gate_up + wide + width, u, step);
    hd_load((const uint16_t *)args->e + at, e, step);
    for (uint32_t j = 0; j < step; j++) {
        const float s = sigmoid(g[j]), h = g[j] * s * u[j], given = gate * e[j];
        sum += e[j] * h;
        weighted[j] = gate * h;
        u[j] = given * u[j] * s * (1 + g[j] * (1 - s));
        g[j] = given * g[j] * s;
    }
    hd_store(weighted, (uint16_t *)args->weighted + at, step);
    hd_store(u, (uint16_t *)args->dgate_up + wide, step);
    hd_store(g, (uint16_t *)args->dgate_up + wide + width, step);
    return sum;
}

HD_INLINE void clear_row(const struct hd_swiglu_args *args)
{
    const size_t row = hd_block_x(), width = args->expert_width;
    for (uint32_t i = hd_thread(); i < width; i += hd_threads()) {
        ((uint16_t *)args->weighted)[row * width + i] = 0;
        ((uint16_t *)args->dgate_up)[row * 2 * width + i] = 0;
        ((uint16_t *)args->dgate_up)[(row * 2 + 1) * width + i] = 0;
    }
}

HD_KERNEL(swiglu_backward, 256, hd_swiglu_args)
{
    HD_SHARED(hd_sum_shared, shared);
    const uint32_t row = hd_block_x(), width = args.expert_width;
    float gate = 1, sum = 0;
    if (args.offsets != NULL && (int32_t)row >= args.offsets[args.experts]) {
        return;
    }
    const int32_t place = args.gates != NULL ? args.source[row] : 0;
    if (place < 0) {
        clear_row(&args);
        return;
    }
    if (args.gates != NULL) {
        gate = ((const float *)args.gates)[place];
    }
    if (width % HD_VECTOR == 0) {
        for (uint32_t i = hd_thread() * HD_VECTOR; i < width; i += hd_threads() * HD_VECTOR) {
            sum += swiglu_part_backward(&args, i, gate, HD_VECTOR);
        }
    } else {
        for (uint32_t i = hd_thread(); i < width; i += hd_threads()) {
            sum += swiglu_part_backward(&args, i, gate, 1);
        }
    }
    sum = hd_block_sum(sum, shared->slots);
    if (args.gates != NULL && hd_thread() == 0) {
        ((float *)args.dgates)[place] = sum;
    }
}
