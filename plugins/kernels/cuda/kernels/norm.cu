/*
 * plugins/kernels/cuda/kernels/norm.cu - embed, rms_norm, rope.
 *
 *   y = w x r,  r = 1 / sqrt(mean x^2 + epsilon)
 *   dx = add + r (w dy - x r^2 mean(w dy x)),  dw += sum over rows of dy x r
 *
 * Blocks sum over chunks of rows, then sum_chunks adds the chunks in order.  The chunks are summed
 * before rms_norm_backward, which may overwrite dy.
 */
#include "arguments.h"
#include "language.cuh"
#include "parts.cuh"
#include "shared.h"

HD_KERNEL(embed, 256, hd_embed_args)
{
    const uint32_t token = hd_block_x();
    const uint16_t *table = (const uint16_t *)args.table;
    copy_row(table + (size_t)args.tokens[token] * args.width,
             (uint16_t *)args.x + (size_t)token * args.width, args.width);
}

HD_INLINE int is_first(struct hd_match_shared *shared, const int32_t *tokens, uint32_t token)
{
    for (uint32_t begin = 0; begin < token; begin += hd_threads()) {
        const uint32_t other = begin + hd_thread();
        uint32_t found = 0;
        hd_match(shared, other < token && tokens[other] == tokens[token]);
        for (uint32_t warp = 0; warp < hd_threads() / HD_WARP; warp++) {
            found |= shared->ballots[warp];
        }
        if (found) {
            return 0;
        }
    }
    return 1;
}

HD_INLINE void add_row(const uint16_t *from, float *to, uint32_t width)
{
    for (uint32_t i = hd_thread(); i < width; i += hd_threads()) {
        to[i] += hd_f32_of(from[i]);
    }
}

/* The first occurrence of an entry adds the rows of all its occurrences, in order. */
HD_KERNEL(embed_backward, 256, hd_embed_args)
{
    HD_SHARED(hd_match_shared, shared);
    const uint32_t token = hd_block_x();
    const int32_t entry = args.tokens[token];
    const uint16_t *dx = (const uint16_t *)args.dx;
    float *row = (float *)args.dtable + (size_t)entry * args.width;
    if (!is_first(shared, args.tokens, token)) {
        return;
    }
    for (uint32_t begin = token; begin < args.token_count; begin += hd_threads()) {
        const uint32_t other = begin + hd_thread();
        hd_match(shared, other < args.token_count && args.tokens[other] == entry);
        for (uint32_t at = 0; at < hd_threads() && begin + at < args.token_count; at++) {
            if (shared->ballots[at / HD_WARP] == 0) {
                at += HD_WARP - 1;
            } else if (shared->ballots[at / HD_WARP] >> (at % HD_WARP) & 1u) {
                add_row(dx + (size_t)(begin + at) * args.width, row, args.width);
            }
        }
    }
}

HD_INLINE void norm_row(const struct hd_norm_args *args, float *slots, const uint32_t step)
{
    const size_t row = hd_block_x(), at = row * args->width;
    const uint16_t *x = (const uint16_t *)args->x + at;
    const float *weight = (const float *)args->weight;
    uint16_t *y = (uint16_t *)args->y + at;
    float sum = 0;
    for (uint32_t i = hd_thread() * step; i < args->width; i += hd_threads() * step) {
        float value[HD_VECTOR];
        hd_load(x + i, value, step);
        for (uint32_t j = 0; j < step; j++) {
            sum += value[j] * value[j];
        }
    }
    const float mean = hd_block_sum(sum, slots) / (float)args->width;
    const float rstd = 1 / sqrtf(mean + (float)args->epsilon);
    for (uint32_t i = hd_thread() * step; i < args->width; i += hd_threads() * step) {
        float value[HD_VECTOR], factor[HD_VECTOR];
        hd_load(x + i, value, step);
        hd_load_f32(weight + i, factor, step);
        for (uint32_t j = 0; j < step; j++) {
            value[j] = factor[j] * value[j] * rstd;
        }
        hd_store(value, y + i, step);
    }
    if (hd_thread() == 0) {
        ((float *)args->rstd)[row] = rstd;
    }
}

HD_KERNEL(rms_norm, 256, hd_norm_args)
{
    HD_SHARED(hd_sum_shared, shared);
    HD_BY_VECTOR(norm_row, args.width, &args, shared->slots);
}

/* One thread's part of mean(w dy x). */
HD_INLINE float norm_inner(const struct hd_norm_args *args, size_t at, const uint32_t step)
{
    const uint16_t *x = (const uint16_t *)args->x + at, *dy = (const uint16_t *)args->dy + at;
    const float *weight = (const float *)args->weight;
    float sum = 0;
    for (uint32_t i = hd_thread() * step; i < args->width; i += hd_threads() * step) {
        float value[HD_VECTOR], given[HD_VECTOR], factor[HD_VECTOR];
        hd_load(x + i, value, step);
        hd_load(dy + i, given, step);
        hd_load_f32(weight + i, factor, step);
        for (uint32_t j = 0; j < step; j++) {
            sum += factor[j] * given[j] * value[j];
        }
    }
    return sum;
}

HD_INLINE void norm_row_backward(const struct hd_norm_args *args, float *slots, const uint32_t step)
{
    const size_t row = hd_block_x(), at = row * args->width;
    const uint16_t *x = (const uint16_t *)args->x + at, *dy = (const uint16_t *)args->dy + at;
    const uint16_t *add = (const uint16_t *)args->add;
    const float *weight = (const float *)args->weight;
    const float rstd = ((const float *)args->rstd)[row];
    const float mean = hd_block_sum(norm_inner(args, at, step), slots) / (float)args->width;
    for (uint32_t i = hd_thread() * step; i < args->width; i += hd_threads() * step) {
        float value[HD_VECTOR], given[HD_VECTOR], factor[HD_VECTOR], rest[HD_VECTOR];
        hd_load(x + i, value, step);
        hd_load(dy + i, given, step);
        hd_load_f32(weight + i, factor, step);
        if (add != NULL) {
            hd_load(add + at + i, rest, step);
        }
        for (uint32_t j = 0; j < step; j++) {
            const float own = rstd * (factor[j] * given[j] - value[j] * rstd * rstd * mean);
            value[j] = add != NULL ? rest[j] + own : own;
        }
        hd_store(value, (uint16_t *)args->dx + at + i, step);
    }
}

HD_KERNEL(rms_norm_backward, 256, hd_norm_args)
{
    HD_SHARED(hd_sum_shared, shared);
    HD_BY_VECTOR(norm_row_backward, args.width, &args, shared->slots);
}

/* One column and one chunk of rows. */
HD_KERNEL(norm_weights, 256, hd_norm_weights)
{
    const uint32_t width = args.op.width, column = hd_block_x() * hd_threads() + hd_thread();
    const uint32_t begin = hd_block_y() * args.chunk_rows, end = begin + args.chunk_rows;
    const uint16_t *x = (const uint16_t *)args.op.x, *dy = (const uint16_t *)args.op.dy;
    float sum = 0;
    if (column >= width) {
        return;
    }
    for (uint32_t row = begin; row < end && row < args.op.row_count; row++) {
        const size_t at = (size_t)row * width + column;
        sum += hd_f32_of(dy[at]) * hd_f32_of(x[at]) * ((const float *)args.op.rstd)[row];
    }
    args.partial[(size_t)hd_block_y() * width + column] = sum;
}

HD_KERNEL(sum_chunks, 256, hd_chunk_sum)
{
    const uint32_t column = hd_block_x() * hd_threads() + hd_thread();
    float sum = 0;
    if (column >= args.width) {
        return;
    }
    for (uint32_t chunk = 0; chunk < args.chunk_count; chunk++) {
        sum += args.partial[(size_t)chunk * args.width + column];
    }
    args.target[column] += sum;
}

/* The pairs (i, i + c/2) of all heads of one token. */
HD_KERNEL(rope, 256, hd_rope_args)
{
    const uint32_t token = hd_block_x(), pairs = args.head_width / 2;
    const size_t table = (size_t)(token % args.sequence) * pairs;
    const size_t at = (size_t)token * args.heads * args.head_width;
    const float *cosine = (const float *)args.cosine + table;
    const float *sine = (const float *)args.sine + table;
    for (uint32_t each = hd_thread(); each < args.heads * pairs; each += hd_threads()) {
        const uint32_t pair = each % pairs;
        const size_t first = at + (size_t)(each / pairs) * args.head_width + pair;
        const size_t second = first + pairs;
        const float one = hd_f32_of(((const uint16_t *)args.x)[first]);
        const float other = hd_f32_of(((const uint16_t *)args.x)[second]);
        const float c = cosine[pair], s = args.inverse ? -sine[pair] : sine[pair];
        ((uint16_t *)args.y)[first] = hd_bf16_of(one * c - other * s);
        ((uint16_t *)args.y)[second] = hd_bf16_of(other * c + one * s);
    }
}
