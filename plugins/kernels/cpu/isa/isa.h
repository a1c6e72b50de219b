/*
 * plugins/kernels/cpu/isa/isa.h - how the files of this folder name their functions.
 *
 * HD_ISA is avx512 or plain.  An op is written once, as an inlined body with a last argument
 * that says whether A is BF16; ISA_OP makes one function for each of the two tables from it.
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
        return isa_##name(device, arguments, true);                                         \
    }                                                                                       \
    hd_status ISA(name##_f32)(struct hd_ops_device * device, const struct args *arguments)  \
    {                                                                                       \
        return isa_##name(device, arguments, false);                                        \
    }

HD_OPS_EACH(ISA_OP_DECLARE)
void ISA(widen)(struct hd_cpu_operand from, uint32_t rows, uint32_t columns, float *to);
void ISA(finish)(const struct hd_cpu_product *product, const float *sums);
#ifdef __AVX512F__
void ISA(pack_weights)(struct hd_cpu_operand from, uint32_t k_count, uint32_t column_count,
                       bool is_transposed, uint16_t *to);
void ISA(pack_source)(struct hd_cpu_operand from, uint32_t row_count, uint32_t k_count,
                      bool is_transposed, uint16_t *to);
#endif

#endif /* HEDDLE_CPU_ISA_H */
