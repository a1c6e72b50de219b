/* plugins/kernels/cpu/device.c - which processor this is, and how much scratch its ops want. */
#include "device.h"

#include <assert.h>
#include <dnnl.h>
#include <string.h>

#ifdef __x86_64__
extern const struct hd_cpu_lane hd_cpu_lane_avx512;
#endif
extern const struct hd_cpu_lane hd_cpu_lane_plain;

/* From the best down; the last runs anywhere. */
static uint32_t list_lanes(const struct hd_cpu_lane *lanes[2])
{
    uint32_t count = 0;
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        lanes[count++] = &hd_cpu_lane_avx512;
    }
#endif
    lanes[count++] = &hd_cpu_lane_plain;
    return count;
}

const struct hd_cpu_lane *hd_cpu_lane(const char *name)
{
    const struct hd_cpu_lane *lanes[2];
    const uint32_t count = list_lanes(lanes);
    for (uint32_t lane = 0; lane < count; lane++) {
        if (strcmp(name, "auto") == 0 || strcmp(name, lanes[lane]->name) == 0) {
            return lanes[lane];
        }
    }
    return NULL;
}

uint32_t hd_cpu_native_bf16(void)
{
#ifdef __x86_64__
    const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    return (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
#else
    return 0;
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

static uint64_t floats(uint64_t count)
{
    return hd_cpu_round(count * sizeof(float));
}

static uint64_t larger(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

static uint64_t attention_bytes(const struct hd_stage_spec *spec)
{
    const uint64_t sequence = spec->sequence, width = spec->width / spec->heads;
    return 4 * floats(HD_CPU_QUERIES * sequence) + floats(HD_CPU_QUERIES * width) +
           2 * floats(sequence * width) + hd_cpu_product_bytes(HD_CPU_QUERIES, sequence, width);
}

static uint64_t head_bytes(const struct hd_stage_spec *spec, uint64_t tokens)
{
    const uint64_t columns = spec->vocabulary < HD_HEAD_CHUNK ? spec->vocabulary : HD_HEAD_CHUNK;
    return 2 * floats(tokens * columns) + floats(tokens * spec->width) + 3 * floats(tokens) +
           hd_cpu_product_bytes(tokens, columns, spec->width);
}

/* The widest of the block's products: dense over all tokens, an expert's over one piece. */
static uint64_t gemm_bytes(const struct hd_stage_spec *spec, uint64_t tokens)
{
    const uint64_t inner = 2 * (uint64_t)spec->expert_width;
    const uint64_t rows = spec->experts ? HD_CPU_ROW_PIECE : tokens;
    return larger(hd_cpu_product_bytes(tokens, spec->width, spec->width),
                  hd_cpu_product_bytes(rows, inner, spec->width));
}

uint64_t hd_cpu_scratch_bytes(const struct hd_stage_spec *spec)
{
    const uint64_t tokens = (uint64_t)spec->batch * spec->sequence;
    uint64_t bytes = larger(gemm_bytes(spec, tokens), attention_bytes(spec));
    bytes = larger(bytes, floats(tokens * spec->experts));
    return spec->has_head ? larger(bytes, head_bytes(spec, tokens)) : bytes;
}
