/*
 * isa/head.c - the loss, over HD_HEAD_CHUNK columns of the vocabulary at a time.
 *
 * The forward keeps, per token, the largest logit so far and the sum of exp(logit - largest).
 * The backward computes the logits of each chunk again, and dl from them.
 */
#include "isa.h"

#include <math.h>

struct chunk {
    const struct hd_head_args *args;
    struct hd_cpu_arena arena;
    bool bf16;
    uint32_t first, count, widest;   /* columns of this chunk, and of the scratch */
    float *logits;                   /* [T, widest] */
    void *dlogits;                   /* A [T, widest] */
    float *dx;                       /* [T, width] */
    float *largest, *sum, *labelled; /* [T] */
};

INLINE struct chunk isa_chunk_of(const struct hd_ops_device *device,
                                 const struct hd_head_args *args, bool bf16)
{
    struct chunk chunk = {.args = args, .arena = device->scratch, .bf16 = bf16};
    const uint64_t tokens = args->token_count;
    chunk.widest = args->vocabulary < HD_HEAD_CHUNK ? args->vocabulary : HD_HEAD_CHUNK;
    chunk.logits = hd_cpu_take(&chunk.arena, tokens * chunk.widest * sizeof(float));
    chunk.dlogits = hd_cpu_take(&chunk.arena, tokens * chunk.widest * sizeof(float));
    chunk.dx = hd_cpu_take(&chunk.arena, tokens * args->width * sizeof(float));
    chunk.largest = hd_cpu_take(&chunk.arena, tokens * sizeof(float));
    chunk.sum = hd_cpu_take(&chunk.arena, tokens * sizeof(float));
    chunk.labelled = hd_cpu_take(&chunk.arena, tokens * sizeof(float));
    return chunk;
}

INLINE struct hd_cpu_operand isa_matrix_of(const struct chunk *chunk, const void *data,
                                           uint64_t first)
{
    const uint64_t size = chunk->bf16 ? sizeof(uint16_t) : sizeof(float);
    return (struct hd_cpu_operand){.data =
                                       (char *)(uintptr_t)data + first * chunk->args->width * size,
                                   .dtype = chunk->bf16 ? (uint32_t)HD_BF16 : (uint32_t)HD_F32,
                                   .stride = chunk->args->width};
}

INLINE struct hd_cpu_operand isa_head_floats_of(float *data, uint32_t stride)
{
    return (struct hd_cpu_operand){.data = data, .dtype = HD_F32, .stride = stride};
}

INLINE hd_status isa_compute_logits(struct hd_ops_device *device, const struct chunk *chunk)
{
    const struct hd_cpu_product product = {
        .a = isa_matrix_of(chunk, chunk->args->x, 0),
        .b = isa_matrix_of(chunk, chunk->args->weight, chunk->first),
        .c = isa_head_floats_of(chunk->logits, chunk->count),
        .m = chunk->args->token_count,
        .n = chunk->count,
        .k = chunk->args->width,
        .layout = HD_CPU_B};
    return hd_cpu_multiply(device, chunk->arena, &product);
}

/* Moves to the next chunk; false after the last. */
INLINE bool isa_next_chunk(struct chunk *chunk)
{
    chunk->first += chunk->count;
    const uint32_t left = chunk->args->vocabulary - chunk->first;
    chunk->count = left < HD_HEAD_CHUNK ? left : HD_HEAD_CHUNK;
    return left > 0;
}

/* The label's column within this chunk, or -1. */
INLINE int64_t isa_label_of(const struct chunk *chunk, uint32_t token)
{
    const int64_t target = (int64_t)chunk->args->targets[token] - chunk->first;
    return target >= 0 && target < chunk->count ? target : -1;
}

/* A target outside of the vocabulary counts as no label (K8: an index stays in range). */
INLINE bool isa_has_label(const struct hd_head_args *args, uint32_t token)
{
    return args->targets[token] >= 0 && (uint32_t)args->targets[token] < args->vocabulary;
}

INLINE void isa_add_up(const struct chunk *chunk, uint32_t token)
{
    const float *row = chunk->logits + (uint64_t)token * chunk->count;
    const uint32_t count = chunk->count;
    float largest = chunk->first == 0 ? row[0] : chunk->largest[token];
    vf top = splat(largest);
    uint32_t at = 0;
    for (; at + LANES <= count; at += LANES) {
        top = larger(load_f32(row + at, LANES), top);
    }
    largest = max_of(top);
    for (; at < count; at++) {
        largest = row[at] > largest ? row[at] : largest;
    }
    vf sum = {0};
    for (at = 0; at < count; at += LANES) {
        const uint32_t step = step_of(at, count);
        sum += first_of(exp_of(load_f32(row + at, step) - splat(largest)), step);
    }
    float total = sum_of(sum);
    if (chunk->first > 0) {
        total += chunk->sum[token] * expf(chunk->largest[token] - largest);
    }
    chunk->largest[token] = largest;
    chunk->sum[token] = total;
    const int64_t label = isa_label_of(chunk, token);
    if (label >= 0) {
        chunk->labelled[token] = row[label];
    }
}

INLINE hd_status isa_head_loss(struct hd_ops_device *device, const struct hd_head_args *args,
                               bool bf16)
{
    struct chunk chunk = isa_chunk_of(device, args, bf16);
    while (isa_next_chunk(&chunk)) {
        HD_TRY(isa_compute_logits(device, &chunk));
        for (uint32_t token = 0; token < args->token_count; token++) {
            isa_add_up(&chunk, token);
        }
    }
    double loss = 0;
    for (uint32_t token = 0; token < args->token_count; token++) {
        const float lse = chunk.largest[token] + logf(chunk.sum[token]);
        ((float *)args->lse)[token] = lse;
        if (isa_has_label(args, token)) {
            loss += (double)lse - (double)chunk.labelled[token];
        }
    }
    *args->loss = args->label_scale * loss;
    return HD_OK;
}

INLINE void isa_slope_row(const struct chunk *chunk, uint32_t token)
{
    const uint64_t first = (uint64_t)token * chunk->count;
    float *row = chunk->logits + first;
    const struct view dlogits = view_of(chunk->dlogits, chunk->bf16);
    const int64_t label = isa_label_of(chunk, token);
    const vf shift = splat(((const float *)chunk->args->lse)[token]);
    const float weight = isa_has_label(chunk->args, token) ? (float)chunk->args->label_scale : 0.0f;
    for (uint32_t at = 0; at < chunk->count; at += LANES) {
        const uint32_t step = step_of(at, chunk->count);
        store_f32(row + at, step, exp_of(load_f32(row + at, step) - shift));
    }
    if (label >= 0) {
        row[label] -= 1.0f;
    }
    for (uint32_t at = 0; at < chunk->count; at += LANES) {
        const uint32_t step = step_of(at, chunk->count);
        store(dlogits, first + at, step, load_f32(row + at, step) * splat(weight));
    }
}

/* dx += dl W and dW += dl^T x of this chunk. */
INLINE hd_status isa_spread_chunk(struct hd_ops_device *device, const struct chunk *chunk)
{
    const struct hd_head_args *args = chunk->args;
    const struct hd_cpu_operand dlogits = {.data = chunk->dlogits,
                                           .dtype =
                                               chunk->bf16 ? (uint32_t)HD_BF16 : (uint32_t)HD_F32,
                                           .stride = chunk->count};
    const struct hd_cpu_product input = {.a = dlogits,
                                         .b = isa_matrix_of(chunk, args->weight, chunk->first),
                                         .c = isa_head_floats_of(chunk->dx, args->width),
                                         .m = args->token_count,
                                         .n = args->width,
                                         .k = chunk->count,
                                         .accumulate = chunk->first > 0};
    float *dweight = (float *)args->dweight + (uint64_t)chunk->first * args->width;
    const struct hd_cpu_product weight = {.a = dlogits,
                                          .b = isa_matrix_of(chunk, args->x, 0),
                                          .c = isa_head_floats_of(dweight, args->width),
                                          .m = chunk->count,
                                          .n = args->width,
                                          .k = args->token_count,
                                          .layout = HD_CPU_A,
                                          .accumulate = 1};
    HD_TRY(hd_cpu_multiply(device, chunk->arena, &input));
    return hd_cpu_multiply(device, chunk->arena, &weight);
}

INLINE hd_status isa_head_loss_backward(struct hd_ops_device *device,
                                        const struct hd_head_args *args, bool bf16)
{
    struct chunk chunk = isa_chunk_of(device, args, bf16);
    while (isa_next_chunk(&chunk)) {
        HD_TRY(isa_compute_logits(device, &chunk));
        for (uint32_t token = 0; token < args->token_count; token++) {
            isa_slope_row(&chunk, token);
        }
        HD_TRY(isa_spread_chunk(device, &chunk));
    }
    const struct view dx = view_of(args->dx, bf16);
    const uint64_t count = (uint64_t)args->token_count * args->width;
    for (uint64_t at = 0; at < count; at += LANES) {
        const uint32_t step = step_of(at, count);
        store(dx, at, step, load_f32(chunk.dx + at, step));
    }
    return HD_OK;
}

ISA_OP(head_loss, hd_head_args)
ISA_OP(head_loss_backward, hd_head_args)
