/* isa/route.c - the router: in float32 for both types of A. */
#include "isa.h"

#include <math.h>

#define TOGETHER 4u /* experts that are summed at a time */

/* logits[first .. first + count) of one token. */
INLINE void isa_route_score(const struct hd_route_args *args, struct view x, uint32_t first,
                            float *logits)
{
    const uint32_t width = args->width;
    const uint32_t count = args->experts - first < TOGETHER ? args->experts - first : TOGETHER;
    const float *weight = (const float *)args->weight + (uint64_t)first * width;
    vf sum[TOGETHER] = {{0}};
    for (uint32_t at = 0; at < width; at += LANES) {
        const uint32_t step = step_of(at, width);
        const vf value = load(x, at, step);
        for (uint32_t expert = 0; expert < TOGETHER; expert++) {
            const uint32_t row = expert < count ? expert : 0;
            sum[expert] = multiply_add(value, load_f32(weight + (uint64_t)row * width + at, step),
                                       sum[expert]);
        }
    }
    for (uint32_t expert = 0; expert < count; expert++) {
        logits[first + expert] = sum_of(sum[expert]);
    }
}

/* Logits to probabilities, in place; returns the logsumexp. */
INLINE float isa_route_soften(float *row, uint32_t count)
{
    float top = row[0];
    for (uint32_t at = 1; at < count; at++) {
        top = row[at] > top ? row[at] : top;
    }
    vf sum = {0};
    for (uint32_t at = 0; at < count; at += LANES) {
        const uint32_t step = step_of(at, count);
        const vf value = exp_of(load_f32(row + at, step) - splat(top));
        store_f32(row + at, step, value);
        sum += load_f32(row + at, step); /* missing elements of a partial step are zero */
    }
    const float total = sum_of(sum);
    for (uint32_t at = 0; at < count; at += LANES) {
        const uint32_t step = step_of(at, count);
        store_f32(row + at, step, load_f32(row + at, step) / splat(total));
    }
    return top + logf(total);
}

/* The index of the largest value that is not in `chosen`; of equal ones the lowest index. */
INLINE int32_t isa_best_of(const float *row, uint32_t count, const int32_t *chosen, uint32_t taken)
{
    int32_t best = -1;
    for (uint32_t expert = 0; expert < count; expert++) {
        uint32_t used = 0;
        for (uint32_t pick = 0; pick < taken; pick++) {
            used |= chosen[pick] == (int32_t)expert;
        }
        if (!used && (best < 0 || row[expert] > row[best])) {
            best = (int32_t)expert;
        }
    }
    return best < 0 ? 0 : best;
}

INLINE void isa_choose_experts(const struct hd_route_args *args, uint32_t token)
{
    const uint32_t picks = args->experts_per_token;
    const float *row = (const float *)args->probability + (uint64_t)token * args->experts;
    int32_t *selected = args->selected + (uint64_t)token * picks;
    float *gates = (float *)args->gates + (uint64_t)token * picks;
    float total = 0;
    for (uint32_t pick = 0; pick < picks; pick++) {
        selected[pick] = isa_best_of(row, args->experts, selected, pick);
        gates[pick] = row[selected[pick]];
        total += gates[pick];
        args->counts[selected[pick]]++;
    }
    for (uint32_t pick = 0; args->normalize && pick < picks; pick++) {
        gates[pick] /= total;
    }
}

INLINE void isa_write_terms(const struct hd_route_args *args)
{
    const double tokens = args->token_count;
    const float *probability = args->probability, *lse = args->lse;
    double balance = 0, squares = 0;
    for (uint32_t expert = 0; expert < args->experts; expert++) {
        double sum = 0;
        for (uint32_t token = 0; token < args->token_count; token++) {
            sum += (double)probability[(uint64_t)token * args->experts + expert];
        }
        balance += args->counts[expert] / (tokens * args->experts_per_token) * (sum / tokens);
    }
    for (uint32_t token = 0; token < args->token_count; token++) {
        squares += (double)lse[token] * (double)lse[token];
    }
    *args->balance = args->balance_scale * args->experts * balance;
    *args->z = args->z_scale * squares / tokens;
}

INLINE hd_status isa_route(struct hd_ops_device *device, const struct hd_route_args *args,
                           bool bf16)
{
    (void)device;
    memset(args->counts, 0, args->experts * sizeof args->counts[0]);
    for (uint32_t token = 0; token < args->token_count; token++) {
        float *row = (float *)args->probability + (uint64_t)token * args->experts;
        const uint64_t bytes = (uint64_t)args->width * (bf16 ? sizeof(uint16_t) : sizeof(float));
        const struct view x = view_of((const char *)args->x + token * bytes, bf16);
        for (uint32_t first = 0; first < args->experts; first += TOGETHER) {
            isa_route_score(args, x, first, row);
        }
        ((float *)args->lse)[token] = isa_route_soften(row, args->experts);
        isa_choose_experts(args, token);
    }
    isa_write_terms(args);
    return HD_OK;
}

/* dl of one token: dp, then the backward of the softmax. */
INLINE void isa_slope_of_logits(const struct hd_route_args *args, uint32_t token, float *slope)
{
    const uint32_t experts = args->experts, picks = args->experts_per_token;
    const float *row = (const float *)args->probability + (uint64_t)token * experts;
    const float *dgates = (const float *)args->dgates + (uint64_t)token * picks;
    const float *gates = (const float *)args->gates + (uint64_t)token * picks;
    const int32_t *selected = args->selected + (uint64_t)token * picks;
    const double tokens = args->token_count;
    float total = 0, mean = 0, inner = 0;
    for (uint32_t expert = 0; expert < experts; expert++) {
        const double share = args->counts[expert] / (tokens * picks);
        slope[expert] = (float)(args->balance_scale * experts * share / tokens);
    }
    for (uint32_t pick = 0; pick < picks; pick++) {
        total += (uint32_t)selected[pick] < experts ? row[selected[pick]] : 0;
        mean += gates[pick] * dgates[pick];
    }
    for (uint32_t pick = 0; pick < picks; pick++) {
        if ((uint32_t)selected[pick] < experts) {
            slope[selected[pick]] += args->normalize ? (dgates[pick] - mean) / total : dgates[pick];
        }
    }
    for (uint32_t expert = 0; expert < experts; expert++) {
        inner += row[expert] * slope[expert];
    }
    const float pull = (float)(2 * args->z_scale / tokens) * ((const float *)args->lse)[token];
    for (uint32_t expert = 0; expert < experts; expert++) {
        slope[expert] = row[expert] * (slope[expert] - inner) + pull * row[expert];
    }
}

/* dx = dl W, one token. */
INLINE void isa_slope_of_input(const struct hd_route_args *args, uint32_t token, const float *slope)
{
    float *dx = (float *)args->dx + (uint64_t)token * args->width;
    const float *weight = args->weight;
    for (uint32_t at = 0; at < args->width; at += LANES) {
        const uint32_t step = step_of(at, args->width);
        vf sum = {0};
        for (uint32_t expert = 0; expert < args->experts; expert++) {
            const float *row = weight + (uint64_t)expert * args->width + at;
            sum = multiply_add(splat(slope[expert]), load_f32(row, step), sum);
        }
        store_f32(dx + at, step, sum);
    }
}

/* dW += dl^T x of TOGETHER experts: each step of columns over all tokens. */
INLINE void isa_slope_of_weight(const struct hd_route_args *args, struct view x,
                                const float *slopes, uint32_t first)
{
    const uint32_t count = args->experts - first < TOGETHER ? args->experts - first : TOGETHER;
    float *dweight = (float *)args->dweight + (uint64_t)first * args->width;
    for (uint32_t at = 0; at < args->width; at += LANES) {
        const uint32_t step = step_of(at, args->width);
        vf sum[TOGETHER] = {{0}};
        for (uint32_t token = 0; token < args->token_count; token++) {
            const float *slope = slopes + (uint64_t)token * args->experts + first;
            const vf value = load(x, (uint64_t)token * args->width + at, step);
            for (uint32_t expert = 0; expert < TOGETHER; expert++) {
                sum[expert] =
                    multiply_add(splat(slope[expert < count ? expert : 0]), value, sum[expert]);
            }
        }
        for (uint32_t expert = 0; expert < count; expert++) {
            float *target = dweight + (uint64_t)expert * args->width + at;
            store_f32(target, step, load_f32(target, step) + sum[expert]);
        }
    }
}

INLINE hd_status isa_route_backward(struct hd_ops_device *device, const struct hd_route_args *args,
                                    bool bf16)
{
    struct hd_cpu_arena arena = device->scratch;
    float *slopes =
        hd_cpu_take(&arena, (uint64_t)args->token_count * args->experts * sizeof(float));
    for (uint32_t token = 0; token < args->token_count; token++) {
        float *slope = slopes + (uint64_t)token * args->experts;
        isa_slope_of_logits(args, token, slope);
        isa_slope_of_input(args, token, slope);
    }
    for (uint32_t first = 0; first < args->experts; first += TOGETHER) {
        isa_slope_of_weight(args, view_of(args->x, bf16), slopes, first);
    }
    return HD_OK;
}

ISA_OP(route, hd_route_args)
ISA_OP(route_backward, hd_route_args)
