/*
 * test_cuda_stages.c - whole stages through the plugin cuda, over stand-ins: nothing here is a GPU.
 *
 * The plugin is the one that is installed; what it loads is not: the CUDA stand-in keeps memory
 * that the host cannot touch and streams that are late, runs the plugin's kernels emulated, and the
 * cuBLASLt stand-in multiplies.  So the host side is what is tested: launches, addresses, copies,
 * marks, plans, and what becomes of errors.
 */
#include "conform/mirror.h"
#include "standin/standin.h"
#include "support/check.h"
#include "support/stage_runs.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HD_WITH_CUDA_KERNEL

static const struct hd_stage_shape shapes[] = {
    {"tensor cores, two tiles of queries", 64, 2, 1, 3, 2, 32, 40, 72, 1, 0},
    {"nothing a multiple of 16", 36, 2, 2, 3, 3, 20, 50, 35, 1, 1},
    {"dense, key heads shared by two", 64, 4, 2, 0, 0, 72, 96, 17, 1, 0},
    {"idle experts, more of them than tokens", 48, 4, 4, 12, 1, 40, 32, 5, 1, 0},
};
static const struct hd_stage_shape dense_mxfp8 = {
    "dense, blocks of 32", 64, 4, 2, 0, 0, 96, 40, 32, 1, 0};

static void open_standin(struct hd_harness *harness, struct hd_chain *chain,
                         const struct hd_stage_spec *model)
{
    hd_stage_open(harness, chain, model, hd_stage_standin(NULL));
}

/* --- beside the reference --------------------------------------------------------------------- */

static void judge_shape(const struct hd_stage_shape *shape, uint32_t precision, const char *option)
{
    hd_stage_judge_plugin(shape, precision, hd_stage_standin(option));
}

static void test_cublaslt(void)
{
    for (unsigned i = 0; i < HD_CHECK_COUNT(shapes); i++) {
        judge_shape(&shapes[i], HD_PRECISION_BF16, NULL);
    }
}

static void test_own_products(void)
{
    judge_shape(&shapes[2], HD_PRECISION_BF16, "products=own");
}

static void test_no_algorithm(void)
{
    setenv("STANDIN_CUBLASLT", "algorithms=odd", 1);
    judge_shape(&shapes[2], HD_PRECISION_BF16, NULL);
    setenv("STANDIN_CUBLASLT", "algorithms=none", 1);
    judge_shape(&shapes[3], HD_PRECISION_BF16, NULL);
    unsetenv("STANDIN_CUBLASLT");
}

static void test_mxfp8(void)
{
    judge_shape(&shapes[0], HD_PRECISION_MXFP8, NULL);
    judge_shape(&dense_mxfp8, HD_PRECISION_MXFP8, NULL);
}

/* Native products begin with compute capability 10.0 (test_cuda_mxfp8.c), and this is 9.0. */
static void test_native_is_refused(void)
{
    static const uint32_t both[] = {2};
    const struct hd_stage_spec model = hd_stage_model(&dense_mxfp8, HD_PRECISION_MXFP8);
    const char *plugin = hd_stage_standin("mxfp8=native");
    struct hd_harness harness;
    struct hd_chain chain;
    CU_ASSERT_EQUAL_FATAL(hd_harness_open(&harness, "cuda", strchr(plugin, ':') + 1), 0);
    CU_ASSERT_EQUAL_FATAL(hd_mirror_open(&harness, 60000), HD_OK);
    CU_ASSERT_EQUAL(hd_chain_open(&chain, &harness, &model, both, 1), HD_UNSUPPORTED);
    CU_ASSERT_PTR_NOT_NULL(strstr(harness.failure, "mxfp8 = native"));
    CU_ASSERT_PTR_NOT_NULL(strstr(harness.failure, "compute capability 10.0"));
    hd_stage_close(&harness, &chain);
}

/* --- beside itself ---------------------------------------------------------------------------- */

static void test_cut_and_recompute(void)
{
    static const uint32_t both[] = {2}, each[] = {1, 1};
    for (uint32_t precision = HD_PRECISION_BF16; precision <= HD_PRECISION_MXFP8; precision++) {
        struct hd_stage_spec model = hd_stage_model(&shapes[0], precision);
        model.sequence = 16;
        const struct hd_stage_bits whole =
            hd_stage_bits_of(&model, both, 1, hd_stage_standin(NULL));
        model.recompute = precision == HD_PRECISION_BF16 ? HD_RECOMPUTE_FULL : HD_RECOMPUTE_EXPERTS;
        hd_stage_expect_equal(whole, hd_stage_bits_of(&model, each, 2, hd_stage_standin(NULL)));
    }
}

/* Terms of two halves are added on the device. */
static void test_half_batches(void)
{
    struct hd_stage_spec model = hd_stage_model(&shapes[3], HD_PRECISION_BF16);
    struct hd_harness harness;
    struct hd_chain right;
    model.batch = 2;
    model.half_batches = 2;
    hd_stage_open(&harness, &right, &model, "reference:");
    hd_stage_step(&right);
    const struct hd_stage_residuals made =
        hd_stage_run_beside(&right, &model, hd_stage_standin(NULL));
    hd_stage_judge("halves", &right, &made, NULL, &(struct hd_stage_floor){5e-3, 4e-2, 1e-2});
    hd_stage_close(&harness, &right);
}

/* --- what a pass does and does not do
 * ------------------------------------------------------------- */

static void test_frugal(void)
{
    static const char *const calls[] = {"cudaMalloc",
                                        "cudaHostAlloc",
                                        "cudaFree",
                                        "cudaStreamSynchronize",
                                        "cudaEventSynchronize",
                                        "cudaDeviceSynchronize",
                                        "cudaEventCreateWithFlags",
                                        "cudaHostRegister",
                                        "cuModuleLoadData"};
    const struct hd_stage_spec model = hd_stage_model(&shapes[3], HD_PRECISION_BF16);
    uint64_t before[HD_CHECK_COUNT(calls)];
    struct hd_harness harness;
    struct hd_chain chain;
    open_standin(&harness, &chain, &model);
    for (unsigned i = 0; i < HD_CHECK_COUNT(calls); i++) {
        before[i] = standin_call_count(calls[i]);
    }
    const uint64_t launches = standin_call_count("cuLaunchKernel");
    const uint64_t copies = standin_call_count("cudaMemcpyAsync");
    const uint64_t asked = standin_call_count("cudaPointerGetAttributes");
    hd_stage_step(&chain);
    /* CUDA is asked of the host's end of a copy, and not of the device's. */
    CU_ASSERT(standin_call_count("cudaPointerGetAttributes") - asked <=
              standin_call_count("cudaMemcpyAsync") - copies);
    for (unsigned i = 0; i < HD_CHECK_COUNT(calls); i++) {
        CU_ASSERT_EQUAL(standin_call_count(calls[i]), before[i]);
    }
    CU_ASSERT(standin_call_count("cuLaunchKernel") > launches + 50);
    CU_ASSERT_PTR_NOT_NULL(strstr(harness.device.effective, "MXFP8 emulated"));
    CU_ASSERT_PTR_NOT_NULL(harness.device.stream);
    hd_stage_close(&harness, &chain);
}

/* --- errors
 * --------------------------------------------------------------------------------------- */

static void test_stale_payload(void)
{
    const struct hd_stage_spec model = hd_stage_model(&shapes[3], HD_PRECISION_BF16);
    struct hd_harness harness;
    struct hd_chain chain;
    open_standin(&harness, &chain, &model);
    CU_ASSERT_EQUAL(hd_chain_forward(&chain, 0), HD_OK);
    chain.stages[0].generation = 7;
    CU_ASSERT_EQUAL(hd_chain_backward(&chain), HD_PROTOCOL);
    CU_ASSERT_PTR_NOT_NULL(strstr(harness.failure, "expected the payload of generation 7, found "
                                                   "generation 1"));
    CU_ASSERT_EQUAL(hd_chain_forward(&chain, 0), HD_PROTOCOL); /* it sticks */
    hd_stage_close(&harness, &chain);
}

/* A payload of NaN has no stamp; the routing behind it is wild, and followed by nobody. */
static void test_poisoned_payload(void)
{
    const struct hd_stage_spec model = hd_stage_model(&shapes[0], HD_PRECISION_BF16);
    struct hd_harness harness;
    struct hd_chain chain;
    open_standin(&harness, &chain, &model);
    CU_ASSERT_EQUAL(hd_chain_forward(&chain, 0), HD_OK);
    hd_chain_poison(&chain);
    CU_ASSERT_EQUAL(hd_chain_backward(&chain), HD_PROTOCOL);
    CU_ASSERT_PTR_NOT_NULL(strstr(harness.failure, "found no payload of this stage"));
    hd_stage_close(&harness, &chain);
}

static void open_bare(struct hd_harness *harness)
{
    CU_ASSERT_EQUAL_FATAL(hd_harness_open(harness, "cuda", strchr(hd_stage_standin(NULL), ':') + 1),
                          0);
}

static void test_out_of_memory(void)
{
    struct hd_harness harness;
    void *memory = NULL;
    open_bare(&harness);
    CU_ASSERT_EQUAL(standin_fault("cudaMalloc:1:2"), 0);
    CU_ASSERT_EQUAL(harness.ops->allocate(harness.kernel, 4096, "test", &memory), HD_NO_MEMORY);
    CU_ASSERT_PTR_NOT_NULL(strstr(harness.failure, "cudaMalloc"));
    hd_harness_close(&harness);
}

/* The time of a mark is the device's, noted on the host's clock somewhat late; whichever mark is
   asked for first, the earlier one has the earlier time. */
static void test_times_in_order(void)
{
    enum { ROUND_COUNT = 200 };
    struct hd_harness harness;
    uint32_t backward_count = 0;
    open_bare(&harness);
    for (uint32_t round = 0; round < ROUND_COUNT; round++) {
        uint64_t marks[2], passed_ns[2] = {0};
        for (uint32_t i = 0; i < 2; i++) {
            CU_ASSERT_EQUAL_FATAL(harness.ops->mark(harness.kernel, &marks[i]), HD_OK);
        }
        for (uint32_t i = 2; i-- > 0;) {
            CU_ASSERT_EQUAL_FATAL(
                harness.ops->reached(harness.kernel, marks[i], UINT64_MAX, &passed_ns[i]), HD_OK);
        }
        backward_count += passed_ns[0] > passed_ns[1];
    }
    CU_ASSERT_EQUAL(backward_count, 0);
    hd_harness_close(&harness);
}

struct watcher {
    struct hd_harness *harness;
    hd_status status;
};

static void *wait_for_ever(void *argument)
{
    struct watcher *watcher = argument;
    uint64_t mark = 0, passed_ns;
    watcher->status = watcher->harness->ops->mark(watcher->harness->kernel, &mark);
    if (watcher->status == HD_OK) {
        watcher->status =
            watcher->harness->ops->reached(watcher->harness->kernel, mark, UINT64_MAX, &passed_ns);
    }
    return NULL;
}

/* Work that never ends, and somebody who waits for it: abort, from another thread, ends the wait.
   What the device may still write to is then leaked, so this check is the last. */
static void test_abort(void)
{
    struct hd_harness harness;
    struct watcher watcher = {&harness, HD_OK};
    void *memory = NULL;
    pthread_t thread;
    uint64_t mark = 0, passed_ns;
    open_bare(&harness);
    CU_ASSERT_EQUAL_FATAL(harness.ops->allocate(harness.kernel, 4096, "test", &memory), HD_OK);
    CU_ASSERT_EQUAL(standin_fault("cudaMemsetAsync:1:hang"), 0);
    CU_ASSERT_EQUAL(harness.ops->copy(harness.kernel, memory, NULL, 4096, 0xff), HD_OK);
    CU_ASSERT_EQUAL(harness.ops->mark(harness.kernel, &mark), HD_OK);
    CU_ASSERT_EQUAL(harness.ops->reached(harness.kernel, mark, 1000000, &passed_ns),
                    HD_IN_PROGRESS);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, wait_for_ever, &watcher), 0);
    harness.ops->abort(harness.kernel);
    pthread_join(thread, NULL);
    CU_ASSERT_EQUAL(watcher.status, HD_ABORTED);
    hd_harness_close(&harness);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"over stand-ins: a step beside the reference", test_cublaslt},
        {"over stand-ins: the same by our own products", test_own_products},
        {"over stand-ins: the same where cuBLASLt has no algorithm", test_no_algorithm},
        {"over stand-ins: mxfp8 beside the reference", test_mxfp8},
        {"over stand-ins: native mxfp8 is refused below 10.0", test_native_is_refused},
        {"over stand-ins: K4 and recomputation, the same bits", test_cut_and_recompute},
        {"over stand-ins: two half batches", test_half_batches},
        {"over stand-ins: K2, and no wait inside a step", test_frugal},
        {"over stand-ins: K7, a stale payload is reported by reached", test_stale_payload},
        {"over stand-ins: K8, wild routing is followed by nobody", test_poisoned_payload},
        {"over stand-ins: no memory is a sentence", test_out_of_memory},
        {"over stand-ins: the times of marks are in their order", test_times_in_order},
        {"over stand-ins: abort ends a wait", test_abort},
    };
    return hd_check_main("cuda_stages", checks, HD_CHECK_COUNT(checks));
}
#else
int main(void)
{
    return hd_check_skip("the kernel cuda is not built here: nvcc is not installed");
}
#endif
