/*
 * tests/test_gradients.c - what the reference kernel computes, held against itself.
 *
 * The float64 reference is held against central differences of its own loss, entry by
 * entry, for every tensor; the float32 and bf16 ones against the float64 one.  A probe that
 * changed the routing would be off by far more than the bound: the loss jumps there.
 *
 * Source: the four-point rule (f(-2h) - 8 f(-h) + 8 f(h) - f(2h)) / 12h.
 */
#include "support/check.h"
#include "support/kernel_harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const uint32_t one_block[] = {1}, two_blocks[] = {2};

/* --- central differences -------------------------------------------------------------------- */

struct shape {
    const char *name;
    uint32_t layers, key_value_heads, experts, experts_per_token, normalize;
    double balance, z;
    uint32_t vocabulary, probe_every; /* 0: 11, and every entry */
};

static const struct shape shapes[] = {
    {"MoE block, gates as they are, both terms", 1, 0, 4, 2, 0, 0.7, 0.3, 0, 0},
    {"MoE block, gates normalised, both terms", 1, 0, 4, 2, 1, 0.7, 0.3, 0, 0},
    {"MoE block, no terms", 1, 0, 4, 2, 0, 0, 0, 0, 0},
    {"MoE block, one of three experts, normalised", 1, 0, 3, 1, 1, 0.7, 0.3, 0, 0},
    {"MoE block, every expert chosen", 1, 0, 2, 2, 0, 0.7, 0.3, 0, 0},
    {"MoE block, four heads share two key-value heads", 1, 2, 4, 2, 0, 0.7, 0.3, 0, 0},
    {"dense block", 1, 0, 0, 0, 0, 0.7, 0.3, 0, 0},
    {"dense block, four heads share one key-value head", 1, 1, 0, 0, 0, 0.7, 0.3, 0, 0},
    {"two MoE blocks in one stage", 2, 0, 4, 2, 0, 0.7, 0.3, 0, 0},
    {"a head of two chunks of columns, 8192 and 5", 1, 0, 0, 0, 0, 0, 0, 8197, 397},
};

static struct hd_stage_spec model_of(const struct shape *shape)
{
    struct hd_stage_spec model = hd_chain_model();
    model.layers = shape->layers;
    model.heads = shape->key_value_heads ? 4 : 2;
    model.key_value_heads = shape->key_value_heads;
    model.experts = shape->experts;
    model.experts_per_token = shape->experts_per_token;
    model.normalize_gates = shape->normalize;
    model.balance_weight = shape->balance;
    model.z_weight = shape->z;
    model.vocabulary = shape->vocabulary ? shape->vocabulary : model.vocabulary;
    return model;
}

static double probe(struct hd_chain *chain, uint32_t tensor, double *values, uint64_t entry)
{
    static const double weight[] = {1, -8, 8, -1}, by[] = {-2, -1, 1, 2};
    const double step = 1e-3, kept = values[entry];
    double sum = 0;
    for (unsigned i = 0; i < 4; i++) {
        values[entry] = kept + by[i] * step;
        hd_chain_write(chain, tensor, HD_MASTER, values);
        CU_ASSERT_EQUAL(hd_chain_forward(chain, 1), HD_OK);
        sum += weight[i] * chain->loss;
    }
    values[entry] = kept;
    hd_chain_write(chain, tensor, HD_MASTER, values);
    return sum / (12 * step);
}

/* The largest error of one tensor over its largest gradient; over 1 where that is zero. */
static double tensor_error(struct hd_chain *chain, uint32_t tensor, uint64_t every)
{
    struct hd_tensor about;
    const uint64_t count = hd_chain_tensor(chain, tensor, &about);
    double *values = malloc(2 * count * sizeof *values), *gradient = values + count;
    double worst = 0, largest = 0;
    CU_ASSERT_PTR_NOT_NULL_FATAL(values);
    hd_chain_read(chain, tensor, HD_MASTER, values);
    hd_chain_read(chain, tensor, HD_GRADIENT, gradient);
    for (uint64_t i = 0; i < count; i += every) {
        worst = fmax(worst, fabs(probe(chain, tensor, values, i) - gradient[i]));
    }
    for (uint64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(gradient[i]));
    }
    free(values);
    return largest > 0 ? worst / largest : worst;
}

static void check_shape(const struct shape *shape)
{
    struct hd_harness harness;
    struct hd_chain chain;
    const struct hd_stage_spec model = model_of(shape);
    const uint64_t every = shape->probe_every ? shape->probe_every : 1;
    CU_ASSERT_EQUAL_FATAL(hd_harness_open(&harness, "reference", "float64=on"), 0);
    CU_ASSERT_EQUAL_FATAL(
        hd_chain_open(&chain, &harness, &model, shape->layers == 1 ? one_block : two_blocks, 1),
        HD_OK);
    hd_chain_draw(&chain, 7);
    chain.targets[3] = -1; /* one label is missing, and one is the last column */
    chain.targets[4] = (int32_t)model.vocabulary - 1;
    CU_ASSERT_EQUAL_FATAL(hd_chain_forward(&chain, 0), HD_OK);
    CU_ASSERT_EQUAL_FATAL(hd_chain_backward(&chain), HD_OK);
    for (uint32_t tensor = 0; tensor < chain.tensor_count; tensor++) {
        struct hd_tensor about;
        hd_chain_tensor(&chain, tensor, &about);
        const double error = tensor_error(&chain, tensor, every);
        if (!(error < 1e-6)) {
            printf("\n    %s: %s: relative error %.2e", shape->name, about.name, error);
        }
        CU_ASSERT(error < 1e-6);
    }
    hd_chain_close(&chain);
    hd_harness_close(&harness);
}

static void test_central_differences(void)
{
    for (unsigned i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_shape(&shapes[i]);
    }
}

/* --- one type against another ---------------------------------------------------------------- */

struct pair {
    struct hd_harness harness[2];
    struct hd_chain chain[2];
};

/* Opens `model` twice, the second time in float64, draws both alike, and runs F and B. */
static void run_pair(struct pair *pair, const struct hd_stage_spec *model, uint64_t seed)
{
    const uint32_t blocks[] = {model->layers};
    struct hd_stage_spec exact = *model;
    exact.precision = HD_PRECISION_F32;
    CU_ASSERT_EQUAL_FATAL(hd_harness_open(&pair->harness[0], "reference", NULL), 0);
    CU_ASSERT_EQUAL_FATAL(hd_harness_open(&pair->harness[1], "reference", "float64=on"), 0);
    for (unsigned i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL_FATAL(
            hd_chain_open(&pair->chain[i], &pair->harness[i], i == 0 ? model : &exact, blocks, 1),
            HD_OK);
        hd_chain_draw(&pair->chain[i], seed);
        CU_ASSERT_EQUAL_FATAL(hd_chain_forward(&pair->chain[i], 0), HD_OK);
        CU_ASSERT_EQUAL_FATAL(hd_chain_backward(&pair->chain[i]), HD_OK);
    }
}

static void close_pair(struct pair *pair)
{
    for (unsigned i = 0; i < 2; i++) {
        hd_chain_close(&pair->chain[i]);
        hd_harness_close(&pair->harness[i]);
    }
}

static struct hd_stage_spec wider_model(uint32_t precision)
{
    struct hd_stage_spec model = hd_chain_model();
    model.width = 32;
    model.expert_width = 48;
    model.vocabulary = 64;
    model.sequence = 16;
    model.precision = precision;
    return model;
}

struct bounds {
    uint32_t precision, layers;
    double loss, gradient, mean; /* gradient: of any tensor; mean: over the tensors */
};

static void compare_types(const struct bounds *bounds, uint64_t seed)
{
    struct pair pair;
    struct hd_stage_spec model = wider_model(bounds->precision);
    double worst = 0, mean = 0;
    model.layers = bounds->layers;
    /* Every expert is chosen: a rounding that changed the routing would be no residual. */
    model.experts_per_token = bounds->precision == HD_PRECISION_BF16 ? model.experts : 2;
    run_pair(&pair, &model, seed);
    for (uint32_t tensor = 0; tensor < pair.chain[0].tensor_count; tensor++) {
        const double residual =
            hd_chain_residual(&pair.chain[0], &pair.chain[1], tensor, HD_GRADIENT);
        if (!(residual < bounds->gradient)) {
            struct hd_tensor about;
            hd_chain_tensor(&pair.chain[0], tensor, &about);
            printf("\n    %s: residual %.2e", about.name, residual);
        }
        CU_ASSERT(residual < bounds->gradient);
        worst = fmax(worst, residual);
        mean += residual / pair.chain[0].tensor_count;
    }
    const double apart = fabs(pair.chain[0].loss / pair.chain[1].loss - 1);
    printf("\n    loss %.1e, worst gradient %.1e, mean %.1e ", apart, worst, mean);
    CU_ASSERT(mean < bounds->mean);
    CU_ASSERT(apart < bounds->loss);
    close_pair(&pair);
}

static void test_float32_residual(void)
{
    const struct bounds bounds = {HD_PRECISION_F32, 2, 1e-6, 1e-5, 1e-5};
    compare_types(&bounds, 7);
    compare_types(&bounds, 8);
}

/* A bf16 rounding is 1.7e-3 rms; a gradient is behind about forty of them a block. */
static void test_bf16_residual(void)
{
    const struct bounds one = {HD_PRECISION_BF16, 1, 2e-3, 3e-2, 2e-2};
    const struct bounds two = {HD_PRECISION_BF16, 2, 2e-3, 5e-2, 2e-2};
    for (uint64_t seed = 7; seed < 11; seed++) {
        compare_types(&one, seed);
        compare_types(&two, seed);
    }
}

static const struct hd_check checks[] = {
    {"float64 gradients are the central differences, every tensor", test_central_differences},
    {"float32 gradients are within 1e-5 of float64", test_float32_residual},
    {"bf16 gradients are within 2e-2 of float64 in the mean, 3e-2 each (2 blocks: 5e-2)",
     test_bf16_residual},
};

int main(void)
{
    return hd_check_main("gradients", checks, HD_CHECK_COUNT(checks));
}
