/*
 * plugins/kernels/cuda/kernels/optimizer.cu - AdamW, copies and norms.
 *
 * Loshchilov and Hutter 2019: the decay is decoupled, it does not enter the moments.  Blocks sum
 * squares, then one block sums theirs, in float64; the count decides the number of blocks.
 */
#include "arguments.h"
#include "language.cuh"
#include "shared.h"

HD_KERNEL(convert, 256, hd_optimizer_args)
{
    const uint64_t stride = (uint64_t)hd_blocks() * hd_threads();
    for (uint64_t at = (uint64_t)hd_block_x() * hd_threads() + hd_thread(); at < args.count;
         at += stride) {
        ((uint16_t *)args.copy)[at] = hd_bf16_of(((const float *)args.master)[at]);
    }
}

HD_KERNEL(adamw, 256, hd_adamw)
{
    const uint64_t stride = (uint64_t)hd_blocks() * hd_threads();
    float *master = (float *)args.op.master, *moment1 = (float *)args.op.moment1;
    float *moment2 = (float *)args.op.moment2;
    for (uint64_t at = (uint64_t)hd_block_x() * hd_threads() + hd_thread(); at < args.op.count;
         at += stride) {
        const float g = ((const float *)args.op.gradient)[at] * args.clip;
        const float first = args.beta1 * moment1[at] + args.rest1 * g;
        const float second = args.beta2 * moment2[at] + args.rest2 * g * g;
        const float next =
            args.keep * master[at] - args.step * first / (sqrtf(second) / args.root + args.epsilon);
        moment1[at] = first;
        moment2[at] = second;
        master[at] = next;
        if (args.op.copy != NULL) {
            ((uint16_t *)args.op.copy)[at] = hd_bf16_of(next);
        }
    }
}

HD_KERNEL(square_sum, 256, hd_square_sum)
{
    HD_SHARED(hd_sum_shared, shared);
    const uint64_t stride = (uint64_t)hd_blocks() * hd_threads();
    double sum = 0;
    for (uint64_t at = (uint64_t)hd_block_x() * hd_threads() + hd_thread(); at < args.count;
         at += stride) {
        sum += (double)args.gradient[at] * (double)args.gradient[at];
    }
    sum = hd_block_sum_f64(sum, shared->wide_slots);
    if (hd_thread() == 0) {
        args.partial[hd_block_x()] = sum;
    }
}

HD_KERNEL(square_end, 256, hd_square_sum)
{
    HD_SHARED(hd_sum_shared, shared);
    double sum = 0;
    for (uint32_t at = hd_thread(); at < args.partial_count; at += hd_threads()) {
        sum += args.partial[at];
    }
    sum = hd_block_sum_f64(sum, shared->wide_slots);
    if (hd_thread() == 0) {
        *args.squared = sum;
    }
}
