/* plugins/kernels/cpu/device.c - what this processor supports, and the scratch of the ops. */
#include "device.h"

#include <assert.h>
#include <dnnl.h>
#include <string.h>

#ifdef __x86_64__
extern const struct hd_cpu_isa hd_cpu_isa_avx512;
#endif
extern const struct hd_cpu_isa hd_cpu_isa_plain;

/* Best first; the last runs on any processor. */
static uint32_t cpu_list_isas(const struct hd_cpu_isa *isas[2])
{
    uint32_t count = 0;
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        isas[count++] = &hd_cpu_isa_avx512;
    }
#endif
    isas[count++] = &hd_cpu_isa_plain;
    return count;
}

const struct hd_cpu_isa *hd_cpu_isa(const char *name)
{
    const struct hd_cpu_isa *isas[2];
    const uint32_t count = cpu_list_isas(isas);
    for (uint32_t isa = 0; isa < count; isa++) {
        if (strcmp(name, "auto") == 0 || strcmp(name, isas[isa]->name) == 0) {
            return isas[isa];
        }
    }
    return NULL;
}

bool hd_cpu_native_bf16(void)
{
#ifdef __x86_64__
    const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    return (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
#else
    return false;
#endif
}

void *hd_cpu_take(struct hd_cpu_arena *arena, uint64_t bytes)
{
    const uint64_t taken_bytes = hd_cpu_round(bytes);
    assert(taken_bytes <= arena->left_bytes);
    void *part = arena->at;
    arena->at += taken_bytes;
    arena->left_bytes -= taken_bytes;
    return part;
}

static uint64_t cpu_floats(uint64_t count)
{
    return hd_cpu_round(count * sizeof(float));
}

static uint64_t cpu_larger(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

static uint64_t cpu_attention_bytes(const struct hd_stage_spec *spec)
{
    const uint64_t sequence = spec->sequence, width = spec->width / spec->heads;
    return 4 * cpu_floats(HD_CPU_QUERIES * sequence) + cpu_floats(HD_CPU_QUERIES * width) +
           2 * cpu_floats(sequence * width) + hd_cpu_product_bytes(HD_CPU_QUERIES, sequence, width);
}

static uint64_t cpu_head_bytes(const struct hd_stage_spec *spec, uint64_t tokens)
{
    const uint64_t columns = spec->vocabulary < HD_HEAD_CHUNK ? spec->vocabulary : HD_HEAD_CHUNK;
    return 2 * cpu_floats(tokens * columns) + cpu_floats(tokens * spec->width) +
           3 * cpu_floats(tokens) + hd_cpu_product_bytes(tokens, columns, spec->width);
}

/* The widest of the block's products: over all tokens if dense, over one piece of an expert's
   rows otherwise. */
static uint64_t cpu_gemm_bytes(const struct hd_stage_spec *spec, uint64_t tokens)
{
    const uint64_t inner = 2 * (uint64_t)spec->expert_width;
    const uint64_t rows = spec->experts ? HD_CPU_ROW_PIECE : tokens;
    return cpu_larger(hd_cpu_product_bytes(tokens, spec->width, spec->width),
                      hd_cpu_product_bytes(rows, inner, spec->width));
}

uint64_t hd_cpu_scratch_bytes(const struct hd_stage_spec *spec)
{
    const uint64_t tokens = (uint64_t)spec->batch * spec->sequence;
    uint64_t bytes = cpu_larger(cpu_gemm_bytes(spec, tokens), cpu_attention_bytes(spec));
    bytes = cpu_larger(bytes, cpu_floats(tokens * spec->experts));
    return spec->has_head ? cpu_larger(bytes, cpu_head_bytes(spec, tokens)) : bytes;
}
