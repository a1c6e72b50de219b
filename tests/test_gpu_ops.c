/*
 * test_gpu_ops.c - each op of the cuda plugin beside the same op of the reference, on a real GPU;
 * skipped where there is none.
 *
 * The rows are those of test_emulated_ops.c, and larger ones.  Everything is the plugin's own: its
 * open, its launches, its copies, cuBLASLt.  What is drawn is drawn anew each time; the seed is
 * printed, and HD_SEED repeats it.
 *
 *   test_gpu_ops [small]      small: the rows that compute-sanitizer can bear
 *
 * STANDIN=1 runs it over the stand-ins, which judges the program and no GPU (emulated_gpu.test.sh).
 */
#include "support/check.h"
#include "support/kernel_harness.h"
#include "support/op_compare.h"

#ifdef HD_WITH_CUDA_KERNEL
#include "plugins/kernels/cuda/driver.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern const struct hd_plugin hd_plugin; /* of cuda.c, which is linked */

static const struct hd_op_shape larger[] = {
    {"several tiles each way", 2, 200, 512, 8, 4, 8, 2, 256, 1000},
    {"three tiles of queries, an odd number of heads", 1, 190, 192, 3, 3, 5, 2, 72, 131},
};

static int is_standin, is_small;
static uint64_t seed;

/* --- the device ------------------------------------------------------------------------------- */

static hd_status send(const struct hd_op_mover *mover, const char *here, uint64_t begin,
                      uint64_t end)
{
    return hd_cuda_remote.copy(mover->context, mover->memory + begin, here + begin, end - begin, 0);
}

static hd_status fetch(const struct hd_op_mover *mover, char *here, uint64_t end)
{
    const hd_status status = hd_cuda_remote.copy(mover->context, here, mover->memory, end, 0);
    return status == HD_OK ? hd_cuda_remote.drain(mover->context) : status;
}

/* Memory of the device, full of NaN. */
static void *take(struct hd_ops_device *device, uint64_t bytes)
{
    void *memory = NULL;
    CU_ASSERT_EQUAL_FATAL(hd_cuda_remote.allocate(device, bytes, "test", &memory), HD_OK);
    CU_ASSERT_EQUAL_FATAL(hd_cuda_remote.copy(device, memory, NULL, bytes, 0xFF), HD_OK);
    return memory;
}

/* As a stage of this shape would have cuBLASLt's plans made. */
static hd_status prepare(struct hd_ops_device *device, const struct hd_op_shape *shape)
{
    const struct hd_stage_spec spec = {.size = sizeof spec,
                                       .layers = 1,
                                       .width = shape->width,
                                       .heads = shape->heads,
                                       .key_value_heads = shape->key_value_heads,
                                       .expert_width = shape->inner,
                                       .vocabulary = shape->vocabulary,
                                       .sequence = shape->sequence,
                                       .batch = shape->batch,
                                       .block_count = 1,
                                       .has_embedding = 1,
                                       .has_head = 1,
                                       .precision = HD_PRECISION_BF16};
    return hd_transformer_backend.prepare(device, &hd_cuda_ops, &spec);
}

static void compare_shape(const struct hd_op_shape *shape, const char *option, int with_nan)
{
    struct hd_harness harness;
    struct hd_ops_device *device = NULL;
    hd_harness_fill(&harness, &hd_plugin, strchr(hd_harness_cuda(is_standin, option), ':') + 1);
    CU_ASSERT_EQUAL_FATAL(hd_transformer_backend.open(&harness.host, 0, &harness.device, &device),
                          HD_OK);
    const struct hd_op_mover mover = {.memory = take(device, HD_OP_MEMORY_BYTES),
                                      .context = device,
                                      .send = send,
                                      .fetch = fetch};
    struct hd_op_run made = {.ops = &hd_cuda_ops,
                             .device = device,
                             .shape = shape,
                             .mover = &mover,
                             .seed = seed,
                             .memory = hd_memory_take(HD_OP_MEMORY_BYTES, 256, "memory")};
    hd_transformer_backend.bind(device, take(device, HD_OP_SCRATCH_BYTES), HD_OP_SCRATCH_BYTES);
    CU_ASSERT_EQUAL(prepare(device, shape), HD_OK);
    hd_op_compare_with_reference(&made, with_nan);
    hd_memory_give(made.memory);
    hd_transformer_backend.close(device);
    CU_ASSERT_STRING_EQUAL(harness.failure, "");
}

/* --- the checks ------------------------------------------------------------------------------- */

static void test_values(void)
{
    for (unsigned i = is_small ? 1 : 0; i < (is_small ? 4 : hd_op_shape_count); i++) {
        compare_shape(&hd_op_shapes[i], NULL, 0);
    }
    for (unsigned i = 0; !is_small && !is_standin && i < HD_CHECK_COUNT(larger); i++) {
        compare_shape(&larger[i], NULL, 0);
    }
}

static void test_own_products(void)
{
    compare_shape(&hd_op_shapes[is_small ? 2 : 0], "products=own", 0);
    if (!is_small && !is_standin) {
        compare_shape(&larger[0], "products=own", 0);
    }
}

static void test_nan(void)
{
    for (unsigned i = 1; i < (is_small ? 2 : 4); i++) {
        compare_shape(&hd_op_shapes[i], NULL, 1);
    }
}

/* 0: there is a device; else the exit code of a test that is skipped. */
static int look(void)
{
    struct hd_harness harness;
    struct hd_ops_device *device = NULL;
    hd_harness_fill(&harness, &hd_plugin, strchr(hd_harness_cuda(is_standin, NULL), ':') + 1);
    if (hd_transformer_backend.open(&harness.host, 0, &harness.device, &device) != HD_OK) {
        return hd_check_skip(harness.failure);
    }
    printf("%s, seed %llu\n", harness.device.effective, (unsigned long long)seed);
    hd_transformer_backend.close(device);
    return 0;
}

int main(int argument_count, char **arguments)
{
    static const struct hd_check checks[] = {
        {"every op gives what the reference gives", test_values},
        {"the same by our own products", test_own_products},
        {"K8: a NaN goes where it goes in the reference", test_nan},
    };
    const char *standin = getenv("STANDIN"), *given = getenv("HD_SEED");
    is_standin = standin != NULL && strcmp(standin, "1") == 0;
    is_small = argument_count > 1 && strcmp(arguments[1], "small") == 0;
    seed = given != NULL ? strtoull(given, NULL, 10) : is_standin ? 0 : (uint64_t)time(NULL) << 20;
    const int skipped = look();
    return skipped != 0 ? skipped : hd_check_main("gpu_ops", checks, HD_CHECK_COUNT(checks));
}
#else
int main(void)
{
    return hd_check_skip("the kernel cuda is not built here: nvcc is not installed");
}
#endif
