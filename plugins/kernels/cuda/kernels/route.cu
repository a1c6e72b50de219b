/*
 * plugins/kernels/cuda/kernels/route.cu - the router, all in float32.
 *
 *   p = softmax(x W^T), gates = the k largest p (or their shares), two terms in float64
 *
 * One warp per token; a product has written the logits into `probability`.  Terms: a block per
 * expert, then one block over the experts and tokens.
 */
#include "arguments.h"
#include "language.cuh"
#include "shared.h"

#define HD_MINUS_INFINITY hd_float_of(0xff800000u)

/* p = softmax(p); returns the log of the sum. */
HD_INLINE float softmax_row(float *p, uint32_t count)
{
    float most = HD_MINUS_INFINITY, sum = 0;
    for (uint32_t e = hd_lane(); e < count; e += HD_WARP) {
        most = hd_larger(p[e], most);
    }
    most = hd_warp_max(most);
    for (uint32_t e = hd_lane(); e < count; e += HD_WARP) {
        p[e] = expf(p[e] - most);
        sum += p[e];
    }
    sum = hd_warp_sum(sum);
    for (uint32_t e = hd_lane(); e < count; e += HD_WARP) {
        p[e] /= sum;
    }
    hd_sync_warp();
    return most + logf(sum);
}

HD_INLINE int is_taken(const int32_t *selected, uint32_t count, uint32_t expert)
{
    int taken = 0;
    for (uint32_t j = 0; j < count; j++) {
        taken |= (uint32_t)selected[j] == expert;
    }
    return taken;
}

/* The larger p; the lower index among equal ones, and if a NaN prevents an order. */
HD_INLINE uint32_t better_of(const float *p, uint32_t count, uint32_t one, uint32_t other)
{
    if (one == count || other == count) {
        return one == count ? other : one;
    }
    const int is_other = p[other] > p[one] || (!(p[one] > p[other]) && other < one);
    return is_other ? other : one;
}

HD_INLINE uint32_t best_expert(const float *p, uint32_t count, const int32_t *selected,
                               uint32_t taken_count)
{
    uint32_t best = count;
    for (uint32_t e = hd_lane(); e < count; e += HD_WARP) {
        if (!is_taken(selected, taken_count, e)) {
            best = better_of(p, count, best, e);
        }
    }
    for (uint32_t mask = HD_WARP / 2; mask > 0; mask /= 2) {
        best = better_of(p, count, best, hd_xor_u32(best, mask));
    }
    return best;
}

HD_KERNEL(route, 128, hd_route_args)
{
    const uint32_t token = hd_block_x() * (hd_threads() / HD_WARP) + hd_warp();
    const uint32_t experts = args.experts, chosen = args.experts_per_token;
    if (token >= args.token_count) {
        return;
    }
    float *p = (float *)args.probability + (size_t)token * experts;
    float *gates = (float *)args.gates + (size_t)token * chosen;
    int32_t *selected = args.selected + (size_t)token * chosen;
    float total = 0;
    const float lse = softmax_row(p, experts);
    for (uint32_t j = 0; j < chosen; j++) {
        const uint32_t best = best_expert(p, experts, selected, j);
        total += p[best];
        if (hd_lane() == 0) {
            selected[j] = (int32_t)best;
        }
        hd_sync_warp();
    }
    for (uint32_t j = hd_lane(); j < chosen; j += HD_WARP) {
        gates[j] = p[selected[j]] / (args.normalize ? total : 1);
    }
    if (hd_lane() == 0) {
        ((float *)args.lse)[token] = lse;
    }
}

/* One expert: the number of its tokens, and its part of the balance. */
HD_KERNEL(route_experts, 256, hd_route_sums)
{
    HD_SHARED(hd_sum_shared, shared);
    const uint32_t expert = hd_block_x(), tokens = args.op.token_count;
    const uint32_t places = tokens * args.op.experts_per_token;
    double count = 0, mean = 0; /* whole numbers are exact */
    for (uint32_t place = hd_thread(); place < places; place += hd_threads()) {
        count += args.op.selected[place] == (int32_t)expert ? 1 : 0;
    }
    for (uint32_t token = hd_thread(); token < tokens; token += hd_threads()) {
        mean +=
            (double)((const float *)args.op.probability)[(size_t)token * args.op.experts + expert];
    }
    count = hd_block_sum_f64(count, shared->wide_slots);
    mean = hd_block_sum_f64(mean, shared->wide_slots);
    if (hd_thread() == 0) {
        args.op.counts[expert] = (int32_t)count;
        args.partial[expert] = count / places * (mean / tokens);
    }
}

HD_KERNEL(route_terms, 256, hd_route_sums)
{
    HD_SHARED(hd_sum_shared, shared);
    double balance = 0, z = 0;
    for (uint32_t e = hd_thread(); e < args.op.experts; e += hd_threads()) {
        balance += args.partial[e];
    }
    for (uint32_t token = hd_thread(); token < args.op.token_count; token += hd_threads()) {
        const double lse = (double)((const float *)args.op.lse)[token];
        z += lse * lse;
    }
    balance = hd_block_sum_f64(balance, shared->wide_slots);
    z = hd_block_sum_f64(z, shared->wide_slots);
    if (hd_thread() == 0) {
        *args.op.balance = args.op.balance_scale * args.op.experts * balance;
        *args.op.z = args.op.z_scale * (z / args.op.token_count);
    }
}

/* The gradient of p of expert e of a token, from its gates and the balance. */
HD_INLINE float gradient_of(const struct hd_route_gradient *args, uint32_t token, uint32_t e,
                            float inner, float total)
{
    const uint32_t chosen = args->op.experts_per_token;
    const int32_t *selected = args->op.selected + (size_t)token * chosen;
    const float *dgates = (const float *)args->op.dgates + (size_t)token * chosen;
    const double load = args->op.counts[e] / ((double)args->op.token_count * chosen);
    float dp = (float)(args->op.balance_scale * args->op.experts * load / args->op.token_count);
    for (uint32_t j = 0; j < chosen; j++) {
        if ((uint32_t)selected[j] == e) {
            dp += args->op.normalize ? (dgates[j] - inner) / total : dgates[j];
        }
    }
    return dp;
}

/* dl of one token. */
HD_KERNEL(route_backward, 128, hd_route_gradient)
{
    const uint32_t token = hd_block_x() * (hd_threads() / HD_WARP) + hd_warp();
    const uint32_t experts = args.op.experts, chosen = args.op.experts_per_token;
    if (token >= args.op.token_count) {
        return;
    }
    const float *p = (const float *)args.op.probability + (size_t)token * experts;
    const float *gates = (const float *)args.op.gates + (size_t)token * chosen;
    const float *dgates = (const float *)args.op.dgates + (size_t)token * chosen;
    const int32_t *selected = args.op.selected + (size_t)token * chosen;
    const float z_part =
        (float)(2 * args.op.z_scale / args.op.token_count) * ((const float *)args.op.lse)[token];
    float *dl = args.dl + (size_t)token * experts, total = 0, inner = 0, mean = 0;
    for (uint32_t j = 0; j < chosen; j++) {
        total += p[selected[j]];
        inner += gates[j] * dgates[j];
    }
    for (uint32_t e = hd_lane(); e < experts; e += HD_WARP) {
        dl[e] = gradient_of(&args, token, e, inner, total);
        mean += p[e] * dl[e];
    }
    mean = hd_warp_sum(mean);
    for (uint32_t e = hd_lane(); e < experts; e += HD_WARP) {
        dl[e] = p[e] * (dl[e] - mean) + z_part * p[e];
    }
}
