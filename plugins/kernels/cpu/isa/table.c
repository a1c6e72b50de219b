/* isa/table.c - what this instruction set gives, as one constant. */
#include "isa.h"

#define TEXT(word)        #word
#define TEXT_EXPAND(word) TEXT(word)

#define TABLE(dtype, suffix)                                                                  \
    {                                                                                         \
        .size = sizeof(struct hd_ops), .activation = dtype, .statistic = HD_F32,              \
        .scratch_bytes = hd_cpu_scratch_bytes, .embed = ISA(embed_##suffix),                  \
        .embed_backward = ISA(embed_backward_##suffix), .rms_norm = ISA(rms_norm_##suffix),   \
        .rms_norm_backward = ISA(rms_norm_backward_##suffix), .gemm = hd_cpu_gemm,            \
        .rope = ISA(rope_##suffix), .attention = ISA(attention_##suffix),                     \
        .attention_backward = ISA(attention_backward_##suffix), .route = ISA(route_##suffix), \
        .route_backward = ISA(route_backward_##suffix), .assign = ISA(assign_##suffix),       \
        .permute = ISA(permute_##suffix), .permute_backward = ISA(permute_backward_##suffix), \
        .combine = ISA(combine_##suffix), .expert_gemm = hd_cpu_expert_gemm,                  \
        .swiglu = ISA(swiglu_##suffix), .swiglu_backward = ISA(swiglu_backward_##suffix),     \
        .head_loss = ISA(head_loss_##suffix),                                                 \
        .head_loss_backward = ISA(head_loss_backward_##suffix),                               \
        .quantise = ISA(quantise_##suffix), .dequantise = ISA(dequantise_##suffix),           \
        .convert = ISA(convert_##suffix), .adamw = ISA(adamw_##suffix),                       \
        .square_sum = ISA(square_sum_##suffix)                                                \
    }

extern const struct hd_cpu_isa ISA(isa);
const struct hd_cpu_isa ISA(isa) = {.name = TEXT_EXPAND(HD_ISA),
                                    .bf16 = TABLE(HD_BF16, bf16),
                                    .f32 = TABLE(HD_F32, f32),
#ifdef __AVX512F__
                                    .pack_weights = ISA(pack_weights),
                                    .pack_source = ISA(pack_source),
#endif
                                    .widen = ISA(widen),
                                    .finish = ISA(finish)};
