/* isa/table.c - the functions of one instruction set, as one constant. */
#include "isa.h"

#define TEXT(word)        #word
#define TEXT_EXPAND(word) TEXT(word)

#define MEMBER_BF16(name, args) .name = ISA(name##_bf16),
#define MEMBER_F32(name, args)  .name = ISA(name##_f32),
#define TABLE(dtype, MEMBER)                                                     \
    {                                                                            \
        .size = sizeof(struct hd_ops), .activation = dtype, .statistic = HD_F32, \
        .scratch_bytes = hd_cpu_scratch_bytes, .gemm = hd_cpu_gemm,              \
        .expert_gemm = hd_cpu_expert_gemm, HD_OPS_EACH(MEMBER)                   \
    }

extern const struct hd_cpu_isa ISA(isa);
const struct hd_cpu_isa ISA(isa) = {.name = TEXT_EXPAND(HD_ISA),
                                    .bf16 = TABLE(HD_BF16, MEMBER_BF16),
                                    .f32 = TABLE(HD_F32, MEMBER_F32),
#ifdef __AVX512F__
                                    .pack_weights = ISA(pack_weights),
                                    .pack_source = ISA(pack_source),
#endif
                                    .widen = ISA(widen),
                                    .finish = ISA(finish)};
