/*
 * tests/test_mxfp8_error.c - how far MXFP8 is from exact, and that only the feed-forward is in it.
 *
 * Products of quantised operands and gradients of a stage are held against float64, within bounds
 * that follow from the format (docs/sources.md: three bits of fraction, 2.65 % a value, 3.8 % a
 * product); and above what bf16 would give, or nothing was quantised.
 */
#include "base/bf16.h"
#include "base/memory.h"
#include "plugins/kernels/transformer/transformer.h"
#include "support/check.h"
#include "support/kernel_harness.h"
#include "support/routing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern const struct hd_ops reference_ops_bf16;

#define GEMM_ERROR_MAX     0.06
#define GEMM_ERROR_MIN     0.02
#define GRADIENT_ERROR_MAX 0.15
#define COSINE_MIN         0.99

/* --- one product, by form --------------------------------------------------------------------- */

enum { M = 64, N = 64, K = 256 };

static uint64_t state;

static double uniform(void)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return ((double)(state >> 11) + 0.5) / 0x1p53;
}

static double gaussian(void)
{
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

/* docs/sources.md, "Numbers of our own". */
static double draw(uint32_t family, uint32_t channel)
{
    const double value = gaussian();
    switch (family) {
    case 1:
        return channel % 128 == 5 ? 50 * value : value;
    case 2:
        return (value < 0 ? -1 : 1) * exp(gaussian());
    default:
        return value;
    }
}

/* [free, contraction], quantised along the contraction, which lies along the rows or the columns;
   `images` gets what the bytes mean, `values` the source. */
static void quantise(uint32_t family, uint32_t is_columnwise, double *values, double *images)
{
    static uint16_t source[N * K], target[N * K];
    static uint8_t elements[N * K], scales[N * K / 32];
    struct hd_quantise_args args = {.source = source,
                                    .target = target,
                                    .rows = is_columnwise ? K : N,
                                    .columns = is_columnwise ? N : K};
    struct hd_matrix *copy = is_columnwise ? &args.columnwise : &args.rowwise;
    *copy = (struct hd_matrix){elements, scales, HD_E4M3, args.rows, args.columns};
    for (uint32_t i = 0; i < N * K; i++) {
        const uint32_t at = is_columnwise ? i % K * N + i / K : i;
        source[at] = hd_bf16_from_float((float)draw(family, i % K));
        values[i] = (double)hd_bf16_to_float(source[at]);
    }
    CU_ASSERT_EQUAL(reference_ops_bf16.quantise(NULL, &args), HD_OK);
    CU_ASSERT_EQUAL(reference_ops_bf16.dequantise(NULL, &args), HD_OK);
    for (uint32_t i = 0; i < N * K; i++) {
        const uint32_t at = is_columnwise ? i % K * N + i / K : i;
        images[i] = (double)hd_bf16_to_float(target[at]);
    }
}

static double product(const double *left, const double *right, uint32_t row, uint32_t column)
{
    double sum = 0;
    for (uint32_t l = 0; l < K; l++) {
        sum += left[row * K + l] * right[column * K + l];
    }
    return sum;
}

/* By whether the contraction runs down the columns of the left operand, and of the right. */
static const struct {
    const char *name;
    uint32_t left_columnwise, right_columnwise;
} forms[] = {{"fprop", 0, 0}, {"dgrad", 0, 1}, {"wgrad", 1, 1}};

static double gemm_error(uint32_t family, uint32_t form)
{
    static double values[2][N * K], images[2][N * K];
    double difference = 0, length = 0;
    state = 17 + family;
    quantise(family, forms[form].left_columnwise, values[0], images[0]);
    quantise(family, forms[form].right_columnwise, values[1], images[1]);
    for (uint32_t i = 0; i < M * N; i++) {
        const double exact = product(values[0], values[1], i / N, i % N);
        const double got = product(images[0], images[1], i / N, i % N);
        difference += (got - exact) * (got - exact);
        length += exact * exact;
    }
    return sqrt(difference / length);
}

static void test_products(void)
{
    static const char *const families[] = {"gaussian", "1/128 channels x50", "lognormal"};
    for (uint32_t i = 0; i < 9; i++) {
        const double error = gemm_error(i / 3, i % 3);
        if (error > GEMM_ERROR_MAX || error < GEMM_ERROR_MIN) {
            printf("\n    %s, %s: %.4f\n", families[i / 3], forms[i % 3].name, error);
        }
        CU_ASSERT(error <= GEMM_ERROR_MAX && error >= GEMM_ERROR_MIN);
    }
}

/* --- a stage, beside the same one in float64 -------------------------------------------------- */

static struct hd_stage_spec model_of(uint32_t precision)
{
    struct hd_stage_spec model = hd_chain_model();
    model.width = 64;
    model.heads = 4;
    model.expert_width = 96;
    model.vocabulary = 64;
    model.sequence = 32;
    model.precision = precision;
    return model;
}

struct bench {
    struct hd_harness harness;
    struct hd_chain chain;
};

static void open_bench(struct bench *bench, const char *kernel, const char *options,
                       const struct hd_stage_spec *model)
{
    const uint32_t blocks = model->layers;
    CU_ASSERT_EQUAL_FATAL(hd_harness_open(&bench->harness, kernel, options), 0);
    CU_ASSERT_EQUAL_FATAL(hd_chain_open(&bench->chain, &bench->harness, model, &blocks, 1), HD_OK);
    hd_chain_draw(&bench->chain, 23);
}

static void close_bench(struct bench *bench)
{
    hd_chain_close(&bench->chain);
    hd_harness_close(&bench->harness);
}

static void run(struct bench *bench)
{
    CU_ASSERT_EQUAL(hd_chain_forward(&bench->chain, 0), HD_OK);
    CU_ASSERT_EQUAL(hd_chain_backward(&bench->chain), HD_OK);
}

static void compare_gradients(struct bench *given, struct bench *exact)
{
    double largest = 0;
    for (uint32_t tensor = 0; tensor < exact->chain.tensor_count; tensor++) {
        struct hd_tensor about;
        hd_chain_tensor(&exact->chain, tensor, &about);
        const double error = hd_chain_residual(&given->chain, &exact->chain, tensor, HD_GRADIENT);
        const double cosine =
            hd_chain_cosine(&given->chain, &exact->chain, about.name, HD_GRADIENT);
        if (error > GRADIENT_ERROR_MAX || cosine < COSINE_MIN) {
            printf("\n    %s: error %.4f, cosine %.5f\n", about.name, error, cosine);
        }
        CU_ASSERT(error <= GRADIENT_ERROR_MAX);
        CU_ASSERT(cosine >= COSINE_MIN);
        largest = error > largest ? error : largest;
    }
    CU_ASSERT(largest >= GEMM_ERROR_MIN);
}

/* As a run draws them: deviation 0.02.  (The harness draws experts that outweigh the stream.) */
static void shrink_matrices(struct hd_chain *chain)
{
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        static double values[96 * 64];
        struct hd_tensor about;
        const uint64_t count = hd_chain_tensor(chain, tensor, &about);
        CU_ASSERT_FATAL(count <= 96 * 64);
        const double length = hd_chain_length(chain, about.name, HD_MASTER);
        hd_chain_read(chain, tensor, HD_MASTER, values);
        for (uint64_t i = 0; about.initial == HD_INITIAL_NORMAL && i < count; i++) {
            values[i] *= 0.02 * sqrt((double)count) / length;
        }
        hd_chain_write(chain, tensor, HD_MASTER, values);
    }
}

/* All experts take every token, so that both precisions route alike; or there are none. */
static void check_stage(const char *kernel, uint32_t experts)
{
    struct bench given, exact;
    struct hd_stage_spec model = model_of(HD_PRECISION_MXFP8);
    model.experts = model.experts_per_token = experts;
    open_bench(&given, kernel, NULL, &model);
    model.precision = HD_PRECISION_F32;
    open_bench(&exact, "reference", "float64=on", &model);
    shrink_matrices(&given.chain);
    shrink_matrices(&exact.chain);
    run(&given);
    run(&exact);
    CU_ASSERT_DOUBLE_EQUAL(given.chain.loss, exact.chain.loss, 0.02 * exact.chain.loss);
    CU_ASSERT_NOT_EQUAL(given.chain.loss, exact.chain.loss);
    compare_gradients(&given, &exact);
    close_bench(&given);
    close_bench(&exact);
}

static void test_gradients(void)
{
    for (uint32_t experts = 0; experts <= 2; experts += 2) {
        check_stage("reference", experts);
        if (access(hd_check_plugin("heddle_kernel_cpu.so"), R_OK) == 0) {
            check_stage("cpu", experts);
        }
    }
}

/* --- the payload: what is in MXFP8 there, and what is not ------------------------------------- */

/* One block without a head; see payload.md for the order of the lines. */
struct lines {
    uint64_t rows, scales, gate_up, end; /* bytes from the payload's start */
    uint64_t row_max;
};

static uint64_t whole_lines(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static struct lines lines_of(const struct hd_chain *chain)
{
    const struct hd_stage_spec *model = &chain->model;
    const uint64_t tokens = (uint64_t)model->batch * model->sequence;
    const uint64_t width = model->width, is_mxfp8 = model->precision == HD_PRECISION_MXFP8;
    struct lines lines = {.end = chain->stages[0].needs.payload_bytes};
    lines.row_max = (tokens * model->experts_per_token + 31ull * model->experts) / 32 * 32;
    lines.gate_up = lines.end - whole_lines(lines.row_max * 4 * model->expert_width);
    lines.scales = lines.gate_up - (is_mxfp8 ? whole_lines(lines.row_max * width / 32) : 0);
    lines.rows = lines.scales - whole_lines(lines.row_max * width * (is_mxfp8 ? 1 : 2));
    return lines;
}

/* Two stages, so that the first has no head. */
static void open_first(struct bench *bench, uint32_t precision)
{
    struct hd_stage_spec model = model_of(precision);
    model.experts_per_token = 1;
    CU_ASSERT_EQUAL_FATAL(hd_harness_open(&bench->harness, "reference", NULL), 0);
    CU_ASSERT_EQUAL_FATAL(
        hd_chain_open(&bench->chain, &bench->harness, &model, (uint32_t[]){1, 1}, 2), HD_OK);
    hd_chain_draw(&bench->chain, 23);
    hd_chain_fix_routing(&bench->chain);
    /* 33 tokens for expert 0, 31 for expert 1: padded to 64 and 32. */
    for (uint32_t token = 0; token < 64; token++) {
        bench->chain.tokens[token] = (int32_t)(4 * (token % 8)) + (token < 33 ? 0 : 1);
    }
    memset(bench->chain.stages[0].payload, 0, bench->chain.stages[0].needs.payload_bytes);
}

static void test_all_else_has_the_bits_of_bf16(void)
{
    struct bench given, plain;
    open_first(&given, HD_PRECISION_MXFP8);
    open_first(&plain, HD_PRECISION_BF16);
    CU_ASSERT_EQUAL(hd_chain_forward(&given.chain, 0), HD_OK);
    CU_ASSERT_EQUAL(hd_chain_forward(&plain.chain, 0), HD_OK);
    const struct lines lines = lines_of(&given.chain);
    CU_ASSERT_EQUAL(lines.rows, lines_of(&plain.chain).rows);
    /* All lines before the rows: attention, residual stream, router, maps. */
    const char *const one = given.chain.stages[0].payload, *const other =
                                                               plain.chain.stages[0].payload;
    CU_ASSERT_EQUAL(memcmp(one + 256, other + 256, lines.rows - 256), 0);
    CU_ASSERT_NOT_EQUAL(memcmp(given.chain.stages[1].input, plain.chain.stages[1].input,
                               given.chain.stages[1].needs.boundary_bytes),
                        0);
    close_bench(&given);
    close_bench(&plain);
}

static void check_row(const struct lines *lines, const char *payload, const char *plain,
                      uint64_t row)
{
    const uint64_t width = 64, first = row * width;
    const uint8_t *elements = (const uint8_t *)payload + lines->rows + first;
    const uint8_t *scales = (const uint8_t *)payload + lines->scales + first / 32;
    uint16_t source[64], images[64];
    uint8_t wanted[64], wanted_scales[2];
    memcpy(source, plain + lines->rows + first * 2, sizeof source);
    const struct hd_quantise_args args = {
        .source = source,
        .target = images,
        .rowwise = {wanted, wanted_scales, HD_E4M3, 1, (uint32_t)width},
        .rows = 1,
        .columns = (uint32_t)width};
    CU_ASSERT_EQUAL(reference_ops_bf16.quantise(NULL, &args), HD_OK);
    CU_ASSERT_EQUAL(memcmp(elements, wanted, sizeof wanted), 0);
    CU_ASSERT_EQUAL(memcmp(scales, wanted_scales, sizeof wanted_scales), 0);
}

/* Rows are quantised from those of bf16; the 31 + 1 of padding are zero, with the scale 00. */
static void test_rows_of_the_payload(void)
{
    static const uint8_t zeros[64];
    struct bench given, plain;
    open_first(&given, HD_PRECISION_MXFP8);
    open_first(&plain, HD_PRECISION_BF16);
    CU_ASSERT_EQUAL(hd_chain_forward(&given.chain, 0), HD_OK);
    CU_ASSERT_EQUAL(hd_chain_forward(&plain.chain, 0), HD_OK);
    const struct lines lines = lines_of(&given.chain);
    const char *payload = given.chain.stages[0].payload;
    for (uint64_t row = 0; row < 96; row++) {
        check_row(&lines, payload, plain.chain.stages[0].payload, row);
        const int is_padding = (row >= 33 && row < 64) || row >= 95;
        CU_ASSERT_EQUAL(memcmp(payload + lines.rows + row * 64, zeros, 64) == 0, is_padding);
        CU_ASSERT_EQUAL(memcmp(payload + lines.scales + row * 2, zeros, 2) == 0, is_padding);
    }
    close_bench(&given);
    close_bench(&plain);
}

/* --- what is not finite ----------------------------------------------------------------------- */

/* An infinite activation makes its block NaN, never zero: it reaches the norm. */
static void test_infinity_is_loud(void)
{
    struct bench bench;
    struct hd_tensor about;
    double norms[64], sum = 0, values[64];
    struct hd_stage_spec model = model_of(HD_PRECISION_MXFP8);
    model.layers = 1;
    open_bench(&bench, "reference", NULL, &model);
    const int64_t norm =
        hd_chain_find(&bench.chain, "model.layers.0.post_attention_layernorm.weight");
    CU_ASSERT_FATAL(norm >= 0 && bench.chain.tensor_count <= 64);
    CU_ASSERT_EQUAL(hd_chain_tensor(&bench.chain, (uint32_t)norm, &about), 64);
    hd_chain_read(&bench.chain, (uint32_t)norm, HD_MASTER, values);
    values[7] = INFINITY;
    hd_chain_write(&bench.chain, (uint32_t)norm, HD_MASTER, values);
    run(&bench);
    CU_ASSERT_EQUAL(bench.harness.ops->norms(bench.chain.stages[0].stage, norms), HD_OK);
    for (uint32_t tensor = 0; tensor < bench.chain.tensor_count; tensor++) {
        sum += norms[tensor];
    }
    CU_ASSERT_FALSE(isfinite(bench.chain.loss));
    CU_ASSERT_FALSE(isfinite(sum));
    close_bench(&bench);
}

static const struct hd_check checks[] = {
    {"a product is within 6 %, in every form and family", test_products},
    {"gradients are within 15 %, with cosines above 0.99", test_gradients},
    {"all but the experts has the bits of bf16", test_all_else_has_the_bits_of_bf16},
    {"C85: rows are quantised, padding is zero with scale 00", test_rows_of_the_payload},
    {"an infinity reaches the loss and the norm", test_infinity_is_loud},
};

int main(void)
{
    return hd_check_main("mxfp8_error", checks, HD_CHECK_COUNT(checks));
}
