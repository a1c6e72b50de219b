/*
 * test_gpu_stages.c - whole stages of the plugin cuda on a real GPU; skipped where there is none.
 *
 * The same comparisons as test_cuda_stages.c, with the libraries that the plugin loads by itself,
 * and larger shapes: several tiles each way, heads of 128, ragged ends.  docs/gpu.md says when it
 * last ran.
 *
 *   test_gpu_stages [step]     step: one step of a small model in bf16 and in mxfp8, no more
 *
 * STANDIN=1 runs it over the stand-ins, which judges the program and no GPU (emulated_gpu.test.sh).
 */
#include "support/check.h"
#include "support/stage_runs.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct hd_stage_shape shapes[] = {
    {"several tiles each way", 256, 4, 2, 8, 2, 192, 320, 200, 2, 0},
    {"nothing a multiple of 16", 36, 2, 2, 3, 3, 20, 50, 70, 1, 1},
    {"dense, key heads shared by two", 128, 4, 2, 0, 0, 200, 96, 130, 2, 0},
    {"idle experts, more of them than tokens", 48, 4, 4, 12, 1, 40, 32, 5, 1, 0},
    {"heads of 128", 256, 2, 2, 4, 2, 128, 9000, 65, 1, 0},
    {"dense, blocks of 32, tiles of scales left unfilled", 160, 4, 2, 0, 0, 288, 96, 160, 2, 0},
};

static const struct hd_stage_shape small = {"a tile of queries", 64, 2, 1, 3, 2, 32, 40, 24, 1, 0};

static int is_standin;

static const char *plugin_with(const char *option)
{
    return hd_harness_cuda(is_standin, option);
}

static void judge_all(uint32_t precision, const char *plugin)
{
    for (unsigned i = 0; i < HD_CHECK_COUNT(shapes); i++) {
        const uint32_t tokens = shapes[i].sequence * shapes[i].batch;
        const int is_odd = shapes[i].width % 32 != 0 || shapes[i].expert_width % 32 != 0 ||
                           (shapes[i].experts == 0 && tokens % 32 != 0);
        if (precision == HD_PRECISION_BF16 || !is_odd) {
            hd_stage_judge_plugin(&shapes[i], precision, plugin);
        }
    }
}

static void test_bf16(void)
{
    judge_all(HD_PRECISION_BF16, plugin_with(NULL));
}

static void test_own_products(void)
{
    judge_all(HD_PRECISION_BF16, plugin_with("products=own"));
}

static void test_mxfp8(void)
{
    judge_all(HD_PRECISION_MXFP8, plugin_with(NULL));
    /* where the first was native */
    judge_all(HD_PRECISION_MXFP8, plugin_with("mxfp8=emulated"));
}

/* Repeated, cut and recomputed: the same bits. */
static void test_bits(void)
{
    static const uint32_t both[] = {2}, each[] = {1, 1};
    for (uint32_t precision = HD_PRECISION_BF16; precision <= HD_PRECISION_MXFP8; precision++) {
        struct hd_stage_spec model = hd_stage_model(&shapes[0], precision);
        const struct hd_stage_bits whole = hd_stage_bits_of(&model, both, 1, plugin_with(NULL));
        hd_stage_expect_equal(whole, hd_stage_bits_of(&model, both, 1, plugin_with(NULL)));
        hd_stage_expect_equal(whole, hd_stage_bits_of(&model, each, 2, plugin_with(NULL)));
        model.recompute = HD_RECOMPUTE_FULL;
        hd_stage_expect_equal(whole, hd_stage_bits_of(&model, both, 1, plugin_with(NULL)));
        model.recompute = HD_RECOMPUTE_EXPERTS;
        hd_stage_expect_equal(whole, hd_stage_bits_of(&model, each, 2, plugin_with(NULL)));
    }
}

static void test_step(void)
{
    hd_stage_judge_plugin(&small, HD_PRECISION_BF16, plugin_with(NULL));
    hd_stage_judge_plugin(&small, HD_PRECISION_MXFP8, plugin_with(NULL));
}

int main(int argument_count, char **arguments)
{
    static const struct hd_check checks[] = {
        {"one step beside the reference", test_step},
        {"a step in bf16 beside the reference", test_bf16},
        {"the same by our own products", test_own_products},
        {"a step in mxfp8 beside the reference", test_mxfp8},
        {"K3, K4 and recomputation: the same bits", test_bits},
    };
    const char *standin = getenv("STANDIN");
    struct hd_harness harness;
    is_standin = standin != NULL && strcmp(standin, "1") == 0;
    if (access(hd_check_plugin("heddle_kernel_cuda.so"), R_OK) != 0) {
        return hd_check_skip("the kernel cuda is not built here: nvcc is not installed");
    }
    if (hd_harness_open(&harness, "cuda", strchr(plugin_with(NULL), ':') + 1) != 0) {
        return hd_check_skip(harness.failure);
    }
    hd_harness_close(&harness);
    const int is_step = argument_count > 1 && strcmp(arguments[1], "step") == 0;
    return hd_check_main("gpu_stages", checks, is_step ? 1 : HD_CHECK_COUNT(checks));
}
