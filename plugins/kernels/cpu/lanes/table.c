/* lanes/table.c - what this instruction set gives, as one constant. */
#include "lane.h"

#define TEXT(word)        #word
#define TEXT_EXPAND(word) TEXT(word)

#define TABLE(dtype, suffix)                                                                    \
    {                                                                                           \
        .size = sizeof(struct hd_ops), .activation = dtype, .statistic = HD_F32,                \
        .scratch_bytes = hd_cpu_scratch_bytes, .embed = LANE(embed_##suffix),                   \
        .embed_backward = LANE(embed_backward_##suffix), .rms_norm = LANE(rms_norm_##suffix),   \
        .rms_norm_backward = LANE(rms_norm_backward_##suffix), .gemm = hd_cpu_gemm,             \
        .rope = LANE(rope_##suffix), .attention = LANE(attention_##suffix),                     \
        .attention_backward = LANE(attention_backward_##suffix), .route = LANE(route_##suffix), \
        .route_backward = LANE(route_backward_##suffix), .assign = LANE(assign_##suffix),       \
        .permute = LANE(permute_##suffix), .permute_backward = LANE(permute_backward_##suffix), \
        .combine = LANE(combine_##suffix), .expert_gemm = hd_cpu_expert_gemm,                   \
        .swiglu = LANE(swiglu_##suffix), .swiglu_backward = LANE(swiglu_backward_##suffix),     \
        .head_loss = LANE(head_loss_##suffix),                                                  \
        .head_loss_backward = LANE(head_loss_backward_##suffix),                                \
        .quantise = LANE(quantise_##suffix), .dequantise = LANE(dequantise_##suffix),           \
        .convert = LANE(convert_##suffix), .adamw = LANE(adamw_##suffix),                       \
        .square_sum = LANE(square_sum_##suffix)                                                 \
    }

extern const struct hd_cpu_lane LANE(lane);
const struct hd_cpu_lane LANE(lane) = {.name = TEXT_EXPAND(HD_LANE),
                                       .bf16 = TABLE(HD_BF16, bf16),
                                       .f32 = TABLE(HD_F32, f32),
#ifdef __AVX512F__
                                       .pack_weights = LANE(pack_weights),
                                       .pack_source = LANE(pack_source),
#endif
                                       .widen = LANE(widen),
                                       .finish = LANE(finish)};
