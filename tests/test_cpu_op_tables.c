/*
 * test_cpu_op_tables.c - each op of the cpu plugin beside the same op of the reference.
 *
 * Both tables get the same drawn arguments, in float32 and in BF16, and outputs full of NaN, so
 * that what an op does not write shows.  An op may sum in another order: outputs are held by the
 * residual |a - b| / |b|, whole numbers by equality.  quantise and dequantise: test_mxfp8.c, byte
 * for byte.
 */
#include "support/check.h"

#ifdef HD_WITH_CPU
#include "base/memory.h"
#include "plugins/kernels/cpu/device.h"
#include "support/op_compare.h"

#include <string.h>

enum { SCRATCH_BYTES = 32 << 20 };

static const struct hd_op_shape shapes[] = {
    {"whole vectors, packed products, three tiles", 2, 160, 128, 4, 4, 4, 2, 96, 96},
    {"nothing a multiple of 16", 1, 37, 36, 2, 1, 3, 3, 20, 50},
    {"idle experts, padding in each", 1, 5, 48, 4, 2, 12, 1, 40, 33},
    {"one token", 1, 1, 8, 1, 1, 1, 1, 8, 3},
};

static void *alloc(void *context, uint64_t bytes, uint64_t alignment_bytes, const char *tag)
{
    (void)context;
    return hd_memory_take(bytes, alignment_bytes, tag);
}

static void give(void *context, void *memory)
{
    (void)context;
    hd_memory_give(memory);
}

static const struct hd_host host = {.size = sizeof host, .alloc = alloc, .free = give};

static void compare_isa(const struct hd_cpu_isa *isa, int with_nan)
{
    char *scratch[2], *memory[2];
    for (unsigned i = 0; i < 2; i++) {
        scratch[i] = hd_memory_take(SCRATCH_BYTES, 64, "scratch");
        memory[i] = hd_memory_take(HD_OP_MEMORY_BYTES, 64, "memory");
        memset(scratch[i], 0xFF, SCRATCH_BYTES);
    }
    struct hd_op_reference plain = {&host, scratch[1], SCRATCH_BYTES};
    struct hd_ops_device device = {.host = &host,
                                   .isa = isa,
                                   .cache = hd_cpu_cache_create(&host),
                                   .scratch = {scratch[0], SCRATCH_BYTES}};
    device.native_bf16 = isa->pack_weights != NULL && hd_cpu_native_bf16();
    for (unsigned i = 0; i < 2 * sizeof shapes / sizeof shapes[0]; i++) {
        const int rounds = i % 2;
        struct hd_op_run made = {.ops = rounds ? &isa->bf16 : &isa->f32,
                                 .device = &device,
                                 .shape = &shapes[i / 2],
                                 .memory = memory[0]};
        struct hd_op_run right = {.ops = rounds ? &reference_ops_bf16 : &reference_ops_f32,
                                  .device = (struct hd_ops_device *)(void *)&plain,
                                  .shape = &shapes[i / 2],
                                  .memory = memory[1]};
        hd_op_compare_all(&made, &right, with_nan);
        if (with_nan) {
            hd_op_compare_causal(&made, &right);
        }
    }
    hd_cpu_cache_destroy(device.cache);
    for (unsigned i = 0; i < 2; i++) {
        hd_memory_give(memory[i]);
        hd_memory_give(scratch[i]);
    }
}

static void compare_all(int with_nan)
{
    static const char *const names[] = {"plain", "avx512"};
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct hd_cpu_isa *isa = hd_cpu_isa(names[i]);
        if (isa != NULL) { /* what this processor has */
            compare_isa(isa, with_nan);
        }
    }
}

static void test_values(void)
{
    compare_all(0);
}

static void test_nan(void)
{
    compare_all(1);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"every op, lane and precision gives what the reference gives", test_values},
        {"K8: a NaN goes where it goes in the reference, and in attention nowhere else", test_nan},
    };
    return hd_check_main("cpu_op_tables", checks, HD_CHECK_COUNT(checks));
}
#else
int main(void)
{
    return hd_check_skip("oneDNN is not installed");
}
#endif
