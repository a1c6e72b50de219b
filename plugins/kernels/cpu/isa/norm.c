/* isa/norm.c - RMS normalisation, one row per token, and the rotation of query and key. */
#include "isa.h"

#include <math.h>

/* The sum of x y (w), in four independent chains, so that additions overlap. */
INLINE float isa_row_sum(struct view x, struct view y, const float *weight, uint64_t first,
                         uint32_t width)
{
    vf chain[4] = {{0}, {0}, {0}, {0}};
    uint32_t at = 0;
    for (; at + 4 * LANES <= width; at += 4 * LANES) {
        for (uint32_t part = 0; part < 4; part++) {
            const uint32_t place = at + part * LANES;
            vf left = load(x, first + place, LANES);
            if (weight != NULL) {
                left *= load_f32(weight + place, LANES);
            }
            chain[part] = multiply_add(left, load(y, first + place, LANES), chain[part]);
        }
    }
    for (; at < width; at += LANES) {
        const uint32_t step = step_of(at, width);
        vf left = load(x, first + at, step);
        if (weight != NULL) {
            left *= load_f32(weight + at, step);
        }
        chain[0] = multiply_add(left, load(y, first + at, step), chain[0]);
    }
    return sum_of((chain[0] + chain[1]) + (chain[2] + chain[3]));
}

INLINE hd_status isa_rms_norm(struct hd_ops_device *device, const struct hd_norm_args *args,
                              bool bf16)
{
    (void)device;
    const struct view x = view_of(args->x, bf16), y = view_of(args->y, bf16);
    const float *weight = args->weight;
    const float epsilon = (float)args->epsilon;
    for (uint32_t row = 0; row < args->row_count; row++) {
        const uint64_t first = (uint64_t)row * args->width;
        const float mean = isa_row_sum(x, x, NULL, first, args->width) / (float)args->width;
        const float rstd = 1.0f / sqrtf(mean + epsilon);
        ((float *)args->rstd)[row] = rstd;
        const vf scale = splat(rstd);
        for (uint32_t at = 0; at < args->width; at += LANES) {
            const uint32_t step = step_of(at, args->width);
            store(y, first + at, step,
                  load_f32(weight + at, step) * load(x, first + at, step) * scale);
        }
    }
    return HD_OK;
}

INLINE hd_status isa_rms_norm_backward(struct hd_ops_device *device,
                                       const struct hd_norm_args *args, bool bf16)
{
    (void)device;
    const struct view x = view_of(args->x, bf16), dy = view_of(args->dy, bf16);
    const struct view add = view_of(args->add, bf16), dx = view_of(args->dx, bf16);
    const float *weight = args->weight;
    float *dweight = args->dweight;
    for (uint32_t row = 0; row < args->row_count; row++) {
        const uint64_t first = (uint64_t)row * args->width;
        const float rstd = ((const float *)args->rstd)[row];
        const float mean = isa_row_sum(dy, x, weight, first, args->width) / (float)args->width;
        const vf scale = splat(rstd), pull = splat(rstd * rstd * mean);
        for (uint32_t at = 0; at < args->width; at += LANES) {
            const uint32_t step = step_of(at, args->width);
            const vf value = load(x, first + at, step), slope = load(dy, first + at, step);
            const vf gradient = load_f32(dweight + at, step);
            store_f32(dweight + at, step, multiply_add(slope * value, scale, gradient));
            vf result = scale * (load_f32(weight + at, step) * slope - value * pull);
            if (add.data != NULL) {
                result += load(add, first + at, step);
            }
            store(dx, first + at, step, result);
        }
    }
    return HD_OK;
}

/* All heads of one token: rotates each pair (i, i + half) by its angle. */
INLINE void isa_rotate(const struct hd_rope_args *args, uint64_t token, bool bf16)
{
    const struct view x = view_of(args->x, bf16), y = view_of(args->y, bf16);
    const uint32_t half = args->head_width / 2;
    const uint64_t place = token % args->sequence * half;
    const float *cosine = (const float *)args->cosine + place;
    const float *sine = (const float *)args->sine + place;
    const vf sign = splat(args->inverse ? -1.0f : 1.0f);
    for (uint32_t head = 0; head < args->heads; head++) {
        const uint64_t first = (token * args->heads + head) * args->head_width;
        for (uint32_t at = 0; at < half; at += LANES) {
            const uint32_t step = step_of(at, half);
            const vf c = load_f32(cosine + at, step), s = load_f32(sine + at, step) * sign;
            const vf low = load(x, first + at, step), high = load(x, first + half + at, step);
            store(y, first + at, step, low * c - high * s);
            store(y, first + half + at, step, high * c + low * s);
        }
    }
}

INLINE hd_status isa_rope(struct hd_ops_device *device, const struct hd_rope_args *args, bool bf16)
{
    (void)device;
    const uint64_t token_count = (uint64_t)args->batch * args->sequence;
    for (uint64_t token = 0; token < token_count; token++) {
        isa_rotate(args, token, bf16);
    }
    return HD_OK;
}

ISA_OP(rms_norm, hd_norm_args)
ISA_OP(rms_norm_backward, hd_norm_args)
ISA_OP(rope, hd_rope_args)
