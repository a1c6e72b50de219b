/*
 * test_emulated_ops.c - each op of the cuda plugin beside the same op of the reference, emulated.
 *
 * The plugin's own host code picks kernels and grids; the kernels are its own, compiled for the
 * host and run by tests/standin/device.  Nothing here has run on a GPU: test_gpu_ops.c asks the
 * same there (docs/gpu.md).
 */
#include "base/memory.h"
#include "plugins/kernels/cuda/device.h"
#include "support/check.h"
#include "tests/standin/device/emulated.h"
#include "support/op_compare.h"

#include <string.h>

static void compare_shape(const struct hd_op_shape *shape, int with_nan)
{
    char *scratch = hd_memory_take(HD_OP_SCRATCH_BYTES, 256, "scratch");
    char *memory = hd_memory_take(HD_OP_MEMORY_BYTES, 256, "memory");
    struct hd_ops_device device = hd_emulated_device(scratch, HD_OP_SCRATCH_BYTES);
    struct hd_op_run made = {
        .ops = &hd_cuda_ops, .device = &device, .shape = shape, .memory = memory};
    memset(scratch, 0xFF, HD_OP_SCRATCH_BYTES);
    hd_op_compare_with_reference(&made, with_nan);
    hd_memory_give(memory);
    hd_memory_give(scratch);
}

static void test_values(void)
{
    for (unsigned i = 0; i < hd_op_shape_count; i++) {
        compare_shape(&hd_op_shapes[i], 0);
    }
}

static void test_nan(void)
{
    for (unsigned i = 1; i < 4; i++) {
        compare_shape(&hd_op_shapes[i], 1);
    }
}

/* --- the threads' order ----------------------------------------------------------------------- */

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
    char *scratch = hd_memory_take(HD_OP_SCRATCH_BYTES, 256, "scratch");
    CU_ASSERT_FATAL(hd_op_driver_count <= 32);
    for (int descending = 0; descending < 2; descending++) {
        struct hd_ops_device device = hd_emulated_device(scratch, HD_OP_SCRATCH_BYTES);
        struct hd_op_run run = {
            .ops = &hd_cuda_ops, .device = &device, .shape = &hd_op_shapes[0], .memory = memory};
        memset(memory, 0, HD_OP_MEMORY_BYTES);
        memset(scratch, 0xFF, HD_OP_SCRATCH_BYTES);
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
