/* isa/swiglu.c - the experts' activation and its backward. */
#include "isa.h"

INLINE vf isa_sigmoid(vf value)
{
    return splat(1.0f) / (splat(1.0f) + exp_of(-value));
}

INLINE uint32_t isa_row_count_of(const struct hd_swiglu_args *args)
{
    return args->offsets == NULL ? args->row_count : (uint32_t)args->offsets[args->experts];
}

INLINE hd_status isa_swiglu(struct hd_ops_device *device, const struct hd_swiglu_args *args,
                            bool bf16)
{
    (void)device;
    const struct view gate_up = view_of(args->gate_up, bf16), h = view_of(args->h, bf16);
    const uint32_t width = args->expert_width;
    const uint32_t row_count = isa_row_count_of(args);
    for (uint32_t row = 0; row < row_count; row++) {
        const uint64_t first = (uint64_t)row * width;
        for (uint32_t at = 0; at < width; at += LANES) {
            const uint32_t step = step_of(at, width);
            const vf gate = load(gate_up, 2 * first + at, step);
            const vf up = load(gate_up, 2 * first + width + at, step);
            store(h, first + at, step, gate * isa_sigmoid(gate) * up);
        }
    }
    return HD_OK;
}

/* One row of a token, weighted by `weight`; returns the sum of e h. */
INLINE float isa_swiglu_slope_row(const struct hd_swiglu_args *args, uint32_t row, float weight,
                                  bool bf16)
{
    const struct view gate_up = view_of(args->gate_up, bf16), e = view_of(args->e, bf16);
    const struct view dgate_up = view_of(args->dgate_up, bf16);
    const struct view weighted = view_of(args->weighted, bf16);
    const uint32_t width = args->expert_width;
    const uint64_t first = (uint64_t)row * width;
    const vf scale = splat(weight);
    vf sum = {0};
    for (uint32_t at = 0; at < width; at += LANES) {
        const uint32_t step = step_of(at, width);
        const vf gate = load(gate_up, 2 * first + at, step);
        const vf up = load(gate_up, 2 * first + width + at, step);
        const vf s = isa_sigmoid(gate), silu = gate * s, h = silu * up;
        const vf slope = load(e, first + at, step), dh = scale * slope;
        sum = multiply_add(slope, h, sum);
        const vf bend = multiply_add(silu, splat(1.0f) - s, s); /* s (1 + g (1 - s)) */
        store(dgate_up, 2 * first + at, step, dh * up * bend);
        store(dgate_up, 2 * first + width + at, step, dh * silu);
        store(weighted, first + at, step, scale * h);
    }
    return sum_of(sum);
}

INLINE hd_status isa_swiglu_backward(struct hd_ops_device *device,
                                     const struct hd_swiglu_args *args, bool bf16)
{
    (void)device;
    const uint64_t bytes = args->expert_width * (bf16 ? sizeof(uint16_t) : sizeof(float));
    const float *gates = args->gates;
    const uint32_t row_count = isa_row_count_of(args);
    for (uint32_t row = 0; row < row_count; row++) {
        const int32_t source = args->source == NULL ? (int32_t)row : args->source[row];
        if (source < 0) {
            memset((char *)args->dgate_up + 2 * row * bytes, 0, 2 * bytes);
            memset((char *)args->weighted + row * bytes, 0, bytes);
            continue;
        }
        const float weight = gates == NULL ? 1.0f : gates[source];
        const float slope = isa_swiglu_slope_row(args, row, weight, bf16);
        if (args->dgates != NULL) {
            ((float *)args->dgates)[source] = slope;
        }
    }
    return HD_OK;
}

ISA_OP(swiglu, hd_swiglu_args)
ISA_OP(swiglu_backward, hd_swiglu_args)
