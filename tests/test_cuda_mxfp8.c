/*
 * test_cuda_mxfp8.c - MXFP8 by the device's own products, whole stages over stand-ins.
 *
 * The CUDA stand-in says compute capability 10.0, so that a dense feed-forward goes natively: its
 * operands are packed by the plugin's kernels, emulated, and multiplied by the stand-in of
 * cuBLASLt, which finds scales by the documented layout and not by any code of ours.  On a GPU
 * native and emulated differ in the order of sums; here in nothing.
 */
#include "conform/mirror.h"
#include "standin/standin.h"
#include "support/check.h"
#include "support/stage_runs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HD_WITH_CUDA_KERNEL

enum { SMALL, RAGGED, SHAPE_COUNT };

/* Scale tiles are 128 x 4: of RAGGED each operand leaves some unfilled, either way. */
static const struct hd_stage_shape shapes[SHAPE_COUNT] = {
    [SMALL] = {"less than a tile", 64, 4, 2, 0, 0, 96, 40, 32, 1, 0},
    [RAGGED] = {"tiles of scales left unfilled", 160, 4, 4, 0, 0, 32, 33, 32, 1, 0},
};

/* Opens a chain of `shape` in MXFP8; what that came to. */
static hd_status open_chain(struct hd_harness *harness, struct hd_chain *chain,
                            const struct hd_stage_spec *model, const char *option)
{
    static const uint32_t both[] = {2};
    const char *plugin = hd_stage_standin(option);
    CU_ASSERT_EQUAL_FATAL(hd_harness_open(harness, "cuda", strchr(plugin, ':') + 1), 0);
    CU_ASSERT_EQUAL_FATAL(hd_mirror_open(harness, 300000), HD_OK);
    return hd_chain_open(chain, harness, model, both, 1);
}

/* What the device says of itself once such a stage is made. */
static void expect_told(const struct hd_stage_spec *model, const char *option, const char *text)
{
    struct hd_harness harness;
    struct hd_chain chain;
    CU_ASSERT_EQUAL(open_chain(&harness, &chain, model, option), HD_OK);
    if (strstr(harness.device.effective, text) == NULL) {
        printf("\n    '%s' does not say '%s'", harness.device.effective, text);
        CU_FAIL("what the device says");
    }
    hd_stage_close(&harness, &chain);
}

/* --- numbers ---------------------------------------------------------------------------------- */

static void test_beside_reference(void)
{
    for (unsigned i = 0; i < SHAPE_COUNT; i++) {
        hd_stage_judge_plugin(&shapes[i], HD_PRECISION_MXFP8, hd_stage_standin("mxfp8=native"));
    }
}

/* The largest residual of a gradient or a master, of a native step beside an emulated one. */
static double distance(struct hd_chain *emulated, const struct hd_stage_spec *model)
{
    const struct hd_stage_residuals made =
        hd_stage_run_beside(emulated, model, hd_stage_standin("mxfp8=native"));
    double largest = 0;
    for (uint32_t tensor = 0; tensor < emulated->tensor_count; tensor++) {
        for (uint32_t copy = 0; copy < HD_STAGE_COPY_COUNT; copy++) {
            const double error = made.tensor[tensor][copy];
            largest = error <= largest ? largest : error; /* a NaN stays */
        }
    }
    return largest;
}

/* The stand-in adds in one order, whatever the operands are: here even the bits are equal.  And
   with a library that finds scales elsewhere, as if ours lay wrong, they are far from it: so the
   scales are read, and the first half is a test. */
static void test_beside_emulated(void)
{
    const struct hd_stage_spec model = hd_stage_model(&shapes[RAGGED], HD_PRECISION_MXFP8);
    struct hd_harness harness;
    struct hd_chain emulated;
    hd_stage_open(&harness, &emulated, &model, hd_stage_standin("mxfp8=emulated"));
    hd_stage_step(&emulated);
    CU_ASSERT_EQUAL(distance(&emulated, &model), 0);
    setenv("STANDIN_CUBLASLT", "scales=straight", 1);
    CU_ASSERT_FALSE(distance(&emulated, &model) < 0.1);
    unsetenv("STANDIN_CUBLASLT");
    hd_stage_close(&harness, &emulated);
}

static void test_bits(void)
{
    static const uint32_t both[] = {2}, each[] = {1, 1};
    const char *plugin = hd_stage_standin("mxfp8=native");
    struct hd_stage_spec model = hd_stage_model(&shapes[SMALL], HD_PRECISION_MXFP8);
    const struct hd_stage_bits whole = hd_stage_bits_of(&model, both, 1, plugin);
    model.recompute = HD_RECOMPUTE_FULL;
    hd_stage_expect_equal(whole, hd_stage_bits_of(&model, each, 2, plugin));
}

/* --- which way -------------------------------------------------------------------------------- */

static void test_told(void)
{
    const struct hd_stage_spec dense = hd_stage_model(&shapes[SMALL], HD_PRECISION_MXFP8);
    struct hd_stage_spec mixture = dense;
    mixture.experts = mixture.experts_per_token = 2;
    expect_told(&dense, NULL, "MXFP8 native");
    expect_told(&dense, "mxfp8=emulated", "MXFP8 emulated in BF16");
    expect_told(&dense, "products=own", "MXFP8 emulated in BF16");
    expect_told(&mixture, NULL, "MXFP8 emulated in BF16");
    setenv("STANDIN_CUBLASLT", "mxfp8=none", 1);
    expect_told(&dense, NULL, "MXFP8 emulated in BF16");
    setenv("STANDIN_CUBLASLT", "mxfp8=short", 1);
    expect_told(&dense, NULL, "MXFP8 native for one of two weights");
    unsetenv("STANDIN_CUBLASLT");
    const struct hd_stage_spec plain = hd_stage_model(&shapes[SMALL], HD_PRECISION_BF16);
    expect_told(&plain, NULL, "MXFP8 native for dense feed-forwards, emulated for experts");
}

/* One of a weight's three products has no algorithm, so that none of the three is native. */
static void test_one_of_two_weights(void)
{
    static const uint32_t both[] = {2};
    const struct hd_stage_spec model = hd_stage_model(&shapes[SMALL], HD_PRECISION_MXFP8);
    const struct hd_stage_bits emulated =
        hd_stage_bits_of(&model, both, 1, hd_stage_standin("mxfp8=emulated"));
    setenv("STANDIN_CUBLASLT", "mxfp8=short", 1);
    const struct hd_stage_bits mixed = hd_stage_bits_of(&model, both, 1, hd_stage_standin(NULL));
    unsetenv("STANDIN_CUBLASLT");
    hd_stage_expect_equal(emulated, mixed);
}

static void expect_refused(const struct hd_stage_spec *model, const char *option, const char *why)
{
    struct hd_harness harness;
    struct hd_chain chain;
    CU_ASSERT_EQUAL(open_chain(&harness, &chain, model, option), HD_UNSUPPORTED);
    CU_ASSERT_PTR_NOT_NULL(strstr(harness.failure, "kernel.cuda.mxfp8 = native, but "));
    CU_ASSERT_PTR_NOT_NULL(strstr(harness.failure, why));
    hd_stage_close(&harness, &chain);
}

static void test_refused(void)
{
    const struct hd_stage_spec dense = hd_stage_model(&shapes[SMALL], HD_PRECISION_MXFP8);
    struct hd_stage_spec mixture = dense;
    mixture.experts = mixture.experts_per_token = 2;
    expect_refused(&mixture, "mxfp8=native", "only the device knows the row counts of experts");
    expect_refused(&dense, "mxfp8=native,products=own", "kernel.cuda.products");
    setenv("STANDIN_CUBLASLT", "mxfp8=short", 1);
    expect_refused(&dense, "mxfp8=native", "each of the three products");
    unsetenv("STANDIN_CUBLASLT");
}

/* --- K2 --------------------------------------------------------------------------------------- */

static void test_frugal(void)
{
    static const char *const calls[] = {"cudaMalloc", "cudaHostAlloc", "cudaStreamSynchronize",
                                        "cudaDeviceSynchronize", "cudaEventSynchronize"};
    const struct hd_stage_spec model = hd_stage_model(&shapes[SMALL], HD_PRECISION_MXFP8);
    uint64_t before[HD_CHECK_COUNT(calls)];
    struct hd_harness harness;
    struct hd_chain chain;
    CU_ASSERT_EQUAL_FATAL(open_chain(&harness, &chain, &model, "mxfp8=native"), HD_OK);
    hd_chain_draw(&chain, 11);
    for (unsigned i = 0; i < HD_CHECK_COUNT(calls); i++) {
        before[i] = standin_call_count(calls[i]);
    }
    hd_stage_step(&chain);
    for (unsigned i = 0; i < HD_CHECK_COUNT(calls); i++) {
        CU_ASSERT_EQUAL(standin_call_count(calls[i]), before[i]);
    }
    hd_stage_close(&harness, &chain);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"over stand-ins: native, a step beside the reference", test_beside_reference},
        {"over stand-ins: native has the bits of emulated; scales that lie wrong show",
         test_beside_emulated},
        {"over stand-ins: K4 and recomputation, the same bits", test_bits},
        {"over stand-ins: the device says which way", test_told},
        {"over stand-ins: a weight goes one way in all three forms", test_one_of_two_weights},
        {"over stand-ins: native or nothing names what is missing", test_refused},
        {"over stand-ins: K2, and no wait inside a step", test_frugal},
    };
    setenv("STANDIN_CUDA", "compute=100", 1);
    return hd_check_main("cuda_mxfp8", checks, HD_CHECK_COUNT(checks));
}
#else
int main(void)
{
    return hd_check_skip("the kernel cuda is not built here: nvcc is not installed");
}
#endif
