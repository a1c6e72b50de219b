/*
 * test_emulated_ops.c - each op of the cuda plugin beside the same op of the reference, emulated.
 *
 * The plugin's own host code picks kernels and grids; the kernels are its own, compiled for the
 * host and run by tests/standin/device.  Nothing here has run on a GPU: `ctest -L gpu` does that
 * (docs/gpu.md). quantise and dequantise: test_mxfp8.c, byte for byte.
 */
#include "base/memory.h"
#include "plugins/kernels/cuda/device.h"
#include "support/check.h"
#include "tests/standin/device/emulated.h"
#include "support/op_compare.h"

#include <string.h>

enum { SCRATCH_BYTES = 32 << 20 };

static const struct hd_op_shape shapes[] = {
    {"tensor cores, two tiles of rows and of queries", 1, 136, 128, 2, 1, 3, 2, 96, 96},
    {"nothing a multiple of 16, a last tile of 6", 1, 70, 36, 2, 1, 3, 3, 20, 50},
    {"idle experts, padding in each", 2, 5, 48, 4, 2, 12, 1, 40, 33},
    {"one token", 1, 1, 8, 1, 1, 1, 1, 8, 3},
    {"heads of 128, tiles of one and a ragged one", 1, 65, 256, 2, 2, 2, 1, 32, 40},
};

static void compare_shape(const struct hd_op_shape *shape, int with_nan)
{
    static const struct hd_host host = {.size = sizeof host};
    char *scratch[2], *memory[2];
    for (unsigned i = 0; i < 2; i++) {
        scratch[i] = hd_memory_take(SCRATCH_BYTES, 256, "scratch");
        memory[i] = hd_memory_take(HD_OP_MEMORY_BYTES, 256, "memory");
        memset(scratch[i], 0xFF, SCRATCH_BYTES);
    }
    struct hd_op_reference plain = {&host, scratch[1], SCRATCH_BYTES};
    struct hd_ops_device device = hd_emulated_device(scratch[0], SCRATCH_BYTES);
    struct hd_op_run made = {
        .ops = &hd_cuda_ops, .device = &device, .shape = shape, .memory = memory[0]};
    struct hd_op_run right = {.ops = &reference_ops_bf16,
                              .device = (struct hd_ops_device *)(void *)&plain,
                              .shape = shape,
                              .memory = memory[1]};
    hd_op_compare_all(&made, &right, with_nan);
    for (unsigned i = 0; i < 2; i++) {
        hd_memory_give(memory[i]);
        hd_memory_give(scratch[i]);
    }
}

static void test_values(void)
{
    for (unsigned i = 0; i < HD_CHECK_COUNT(shapes); i++) {
        compare_shape(&shapes[i], 0);
    }
}

static void test_nan(void)
{
    for (unsigned i = 1; i < HD_CHECK_COUNT(shapes) - 1; i++) {
        compare_shape(&shapes[i], 1);
    }
}

/* --- the threads' order ------------------------------------------------------------------------
 */

static void run_all(struct hd_op_run *run, uint64_t *hashes)
{
    for (unsigned i = 0; i < hd_op_driver_count; i++) {
        hd_op_run(run, &hd_op_drivers[i], 0);
        hashes[i] = 14695981039346656037ull;
        for (uint64_t at = 0; at < run->used_bytes; at++) {
            hashes[i] = (hashes[i] ^ (uint8_t)run->memory[at]) * 1099511628211ull;
        }
    }
}

/* A missing barrier shows where threads that run the other way round give other bits. */
static void test_order(void)
{
    uint64_t hashes[2][32];
    char *memory = hd_memory_take(HD_OP_MEMORY_BYTES, 256, "memory");
    char *scratch = hd_memory_take(SCRATCH_BYTES, 256, "scratch");
    CU_ASSERT_FATAL(hd_op_driver_count <= 32);
    for (int descending = 0; descending < 2; descending++) {
        struct hd_ops_device device = hd_emulated_device(scratch, SCRATCH_BYTES);
        struct hd_op_run run = {
            .ops = &hd_cuda_ops, .device = &device, .shape = &shapes[0], .memory = memory};
        memset(memory, 0, HD_OP_MEMORY_BYTES);
        memset(scratch, 0xFF, SCRATCH_BYTES);
        hd_standin_descending = descending;
        run_all(&run, hashes[descending]);
    }
    hd_standin_descending = 0;
    for (unsigned i = 0; i < hd_op_driver_count; i++) {
        CU_ASSERT_EQUAL(hashes[0][i], hashes[1][i]);
    }
    hd_memory_give(scratch);
    hd_memory_give(memory);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"emulated: every op gives what the reference gives", test_values},
        {"emulated, K8: a NaN goes where it goes in the reference", test_nan},
        {"emulated: the same bits whichever thread of a block runs first", test_order},
    };
    return hd_check_main("emulated_ops", checks, HD_CHECK_COUNT(checks));
}
