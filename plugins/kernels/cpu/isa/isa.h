/*
 * plugins/kernels/cpu/isa/isa.h - how a file of this folder names what it gives.
 *
 * HD_ISA is avx512 or plain.  An op is written once as an inlined body whose last
 * argument says whether A is BF16, and ISA_OP makes the functions of both tables of it.
 */
#ifndef HEDDLE_CPU_ISA_H
#define HEDDLE_CPU_ISA_H

#include "../device.h"
#include "simd_math.h"

#ifndef HD_ISA
#define HD_ISA plain
#endif
#define ISA_PASTE(name, isa)  hd_cpu_##name##_##isa
#define ISA_EXPAND(name, isa) ISA_PASTE(name, isa)
#define ISA(name)             ISA_EXPAND(name, HD_ISA)

#define ISA_OP_DECLARE(name, args)                                                           \
    hd_status ISA(name##_bf16)(struct hd_ops_device * device, const struct args *arguments); \
    hd_status ISA(name##_f32)(struct hd_ops_device * device, const struct args *arguments);

#define ISA_OP(name, args)                                                                  \
    hd_status ISA(name##_bf16)(struct hd_ops_device * device, const struct args *arguments) \
    {                                                                                       \
        return isa_##name(device, arguments, 1);                                            \
    }                                                                                       \
    hd_status ISA(name##_f32)(struct hd_ops_device * device, const struct args *arguments)  \
    {                                                                                       \
        return isa_##name(device, arguments, 0);                                            \
    }

ISA_OP_DECLARE(embed, hd_embed_args)
ISA_OP_DECLARE(embed_backward, hd_embed_args)
ISA_OP_DECLARE(rms_norm, hd_norm_args)
ISA_OP_DECLARE(rms_norm_backward, hd_norm_args)
ISA_OP_DECLARE(rope, hd_rope_args)
ISA_OP_DECLARE(attention, hd_attention_args)
ISA_OP_DECLARE(attention_backward, hd_attention_args)
ISA_OP_DECLARE(route, hd_route_args)
ISA_OP_DECLARE(route_backward, hd_route_args)
ISA_OP_DECLARE(assign, hd_rows_args)
ISA_OP_DECLARE(permute, hd_rows_args)
ISA_OP_DECLARE(permute_backward, hd_rows_args)
ISA_OP_DECLARE(combine, hd_rows_args)
ISA_OP_DECLARE(swiglu, hd_swiglu_args)
ISA_OP_DECLARE(swiglu_backward, hd_swiglu_args)
ISA_OP_DECLARE(head_loss, hd_head_args)
ISA_OP_DECLARE(head_loss_backward, hd_head_args)
ISA_OP_DECLARE(quantise, hd_quantise_args)
ISA_OP_DECLARE(dequantise, hd_quantise_args)
ISA_OP_DECLARE(convert, hd_optimizer_args)
ISA_OP_DECLARE(adamw, hd_optimizer_args)
ISA_OP_DECLARE(square_sum, hd_optimizer_args)

void ISA(widen)(struct hd_cpu_operand from, uint32_t rows, uint32_t columns, float *to);
void ISA(finish)(const struct hd_cpu_product *product, const float *sums);
#ifdef __AVX512F__
void ISA(pack_weights)(struct hd_cpu_operand from, uint32_t k_count, uint32_t column_count,
                       uint32_t turned, uint16_t *to);
void ISA(pack_source)(struct hd_cpu_operand from, uint32_t row_count, uint32_t k_count,
                      uint32_t turned, uint16_t *to);
#endif

#endif /* HEDDLE_CPU_ISA_H */
