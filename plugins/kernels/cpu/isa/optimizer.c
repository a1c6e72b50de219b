/* isa/optimizer.c - AdamW, rounded copies, sums of squares; widening and rounding of products. */
#include "isa.h"

#include <math.h>

INLINE vf isa_root(vf value)
{
#ifdef __AVX512F__
    return (vf)_mm512_sqrt_ps((__m512)value);
#else
    for (uint32_t lane = 0; lane < LANES; lane++) {
        value[lane] = sqrtf(value[lane]);
    }
    return value;
#endif
}

INLINE hd_status isa_convert(struct hd_ops_device *device, const struct hd_optimizer_args *args,
                             bool bf16)
{
    (void)device;
    const struct view copy = view_of(args->copy, bf16);
    const float *master = args->master;
    for (uint64_t at = 0; copy.data != NULL && at < args->count; at += LANES) {
        const uint32_t step = step_of(at, args->count);
        store(copy, at, step, load_f32(master + at, step));
    }
    return HD_OK;
}

INLINE hd_status isa_adamw(struct hd_ops_device *device, const struct hd_optimizer_args *args,
                           bool bf16)
{
    const struct hd_update *update = args->update;
    const double power1 = pow(update->beta1, update->step);
    const double power2 = pow(update->beta2, update->step);
    const vf keep1 = splat((float)update->beta1), take1 = splat((float)(1.0 - update->beta1));
    const vf keep2 = splat((float)update->beta2), take2 = splat((float)(1.0 - update->beta2));
    const vf unbias1 = splat((float)(1.0 / (1.0 - power1)));
    const vf unbias2 = splat((float)(1.0 / (1.0 - power2)));
    const vf epsilon = splat((float)update->epsilon), rate = splat((float)update->learning_rate);
    const vf clip = splat((float)update->gradient_scale);
    const double decay = args->decays ? update->learning_rate * update->weight_decay : 0.0;
    const vf shrink = splat((float)(1.0 - decay));
    float *master = args->master, *moment1 = args->moment1, *moment2 = args->moment2;
    const float *gradient = args->gradient;
    for (uint64_t at = 0; at < args->count; at += LANES) {
        const uint32_t step = step_of(at, args->count);
        const vf slope = load_f32(gradient + at, step) * clip;
        const vf first = keep1 * load_f32(moment1 + at, step) + take1 * slope;
        const vf second = keep2 * load_f32(moment2 + at, step) + take2 * slope * slope;
        const vf change = first * unbias1 / (isa_root(second * unbias2) + epsilon);
        store_f32(moment1 + at, step, first);
        store_f32(moment2 + at, step, second);
        store_f32(master + at, step, load_f32(master + at, step) * shrink - rate * change);
    }
    return isa_convert(device, args, bf16);
}

/* Sixteen sums of doubles, then one tree: the order depends on the count alone. */
INLINE hd_status isa_square_sum(struct hd_ops_device *device, const struct hd_optimizer_args *args,
                                bool bf16)
{
    (void)device, (void)bf16;
    const float *gradient = args->gradient;
    vd low = {0}, high = {0};
    for (uint64_t at = 0; at < args->count; at += LANES) {
        const vf value = load_f32(gradient + at, step_of(at, args->count));
        vhalf half[2];
        memcpy(half, &value, sizeof half);
        const vd first = __builtin_convertvector(half[0], vd);
        const vd second = __builtin_convertvector(half[1], vd);
        low += first * first;
        high += second * second;
    }
    const vd sum = low + high;
    *args->squared =
        ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
    return HD_OK;
}

void ISA(widen)(struct hd_cpu_operand from, uint32_t rows, uint32_t columns, float *to)
{
    const struct view view = view_of(from.data, 1);
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t at = 0; at < columns; at += LANES) {
            const uint32_t step = step_of(at, columns);
            store_f32(to + (uint64_t)row * columns + at, step,
                      load(view, (uint64_t)row * from.stride + at, step));
        }
    }
}

void ISA(finish)(const struct hd_cpu_product *product, const float *sums)
{
    const struct view c = view_of(product->c.data, product->c.dtype == HD_BF16);
    const struct view add = view_of(product->add.data, product->add.dtype == HD_BF16);
    for (uint32_t row = 0; row < product->m; row++) {
        for (uint32_t at = 0; at < product->n; at += LANES) {
            const uint32_t step = step_of(at, product->n);
            vf value = load_f32(sums + (uint64_t)row * product->n + at, step);
            if (add.data != NULL) {
                value += load(add, (uint64_t)row * product->add.stride + at, step);
            }
            store(c, (uint64_t)row * product->c.stride + at, step, value);
        }
    }
}

ISA_OP(convert, hd_optimizer_args)
ISA_OP(adamw, hd_optimizer_args)
ISA_OP(square_sum, hd_optimizer_args)
