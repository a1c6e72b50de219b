/*
 * plugins/kernels/cuda/kernels/head.cu - the loss, a chunk of columns of the vocabulary at a time.
 *
 * The forward keeps, per token, the greatest logit so far, the sum of exponentials relative to it
 * and the logit of the target; the backward computes the same logits again.  A GEMM computes
 * logits.
 */
#include "arguments.h"
#include "language.cuh"
#include "shared.h"

HD_KERNEL(head_begin, 256, hd_head_state)
{
    const uint32_t token = hd_block_x() * hd_threads() + hd_thread();
    if (token < args.op.token_count) {
        args.greatest[token] = hd_float_of(0xff800000u);
        args.sum[token] = 0;
        args.wanted[token] = 0;
    }
}

/* One token, the columns of one chunk. */
HD_KERNEL(head_chunk, 256, hd_head_state)
{
    HD_SHARED(hd_sum_shared, shared);
    const uint32_t token = hd_block_x();
    const float *logits = args.logits + (size_t)token * args.count;
    const float before = args.greatest[token], old = args.sum[token];
    const int64_t column = args.op.targets[token] - (int64_t)args.first;
    float top = before, sum = 0;
    for (uint32_t v = hd_thread(); v < args.count; v += hd_threads()) {
        top = hd_larger(logits[v], top);
    }
    top = hd_block_max(top, shared->slots);
    for (uint32_t v = hd_thread(); v < args.count; v += hd_threads()) {
        sum += expf(logits[v] - top);
    }
    sum = hd_block_sum(sum, shared->slots);
    if (hd_thread() == 0) {
        args.greatest[token] = top;
        args.sum[token] = (old > 0 ? old * expf(before - top) : old) + sum;
        if (column >= 0 && column < (int64_t)args.count) {
            args.wanted[token] = logits[column];
        }
    }
}

/* One block: lse of every token, and the term. */
HD_KERNEL(head_end, 256, hd_head_state)
{
    HD_SHARED(hd_sum_shared, shared);
    double loss = 0;
    for (uint32_t token = hd_thread(); token < args.op.token_count; token += hd_threads()) {
        const float lse = args.greatest[token] + logf(args.sum[token]);
        ((float *)args.op.lse)[token] = lse;
        loss += args.op.targets[token] >= 0 ? (double)lse - (double)args.wanted[token] : 0;
    }
    loss = hd_block_sum_f64(loss, shared->wide_slots);
    if (hd_thread() == 0) {
        *args.op.loss = args.op.label_scale * loss;
    }
}

/* dl of one token; zero if it has no label. */
HD_KERNEL(head_gradient, 256, hd_head_state)
{
    const uint32_t token = hd_block_x();
    const float *logits = args.logits + (size_t)token * args.count;
    uint16_t *dl = args.dlogits + (size_t)token * args.count;
    const int64_t column = args.op.targets[token] - (int64_t)args.first;
    const int is_labelled = args.op.targets[token] >= 0;
    const float lse = ((const float *)args.op.lse)[token], scale = (float)args.op.label_scale;
    for (uint32_t v = hd_thread(); v < args.count; v += hd_threads()) {
        const float one = (int64_t)v == column ? 1 : 0;
        dl[v] = is_labelled ? hd_bf16_of(scale * (expf(logits[v] - lse) - one)) : (uint16_t)0;
    }
}

/* Rounds a float32 sum, with another addend if there is one. */
HD_KERNEL(round, 256, hd_rounded)
{
    const uint64_t at = (uint64_t)hd_block_x() * hd_threads() + hd_thread();
    if (at < args.count) {
        args.to[at] = hd_bf16_of(args.add != NULL ? args.from[at] + args.add[at] : args.from[at]);
    }
}
