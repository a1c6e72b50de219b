/* Initial values: the generator's known answers, its statistics, and what they depend on. */
#include "support/check.h"

#include "train/initial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 256, COUNT = SIDE * SIDE };

static struct hd_tensor tensor_of(const char *name, uint32_t dtype, uint32_t initial)
{
    struct hd_tensor tensor = {.size = sizeof tensor,
                               .dtype = dtype,
                               .initial = initial,
                               .dimension_count = 2,
                               .shape = {SIDE, SIDE}};
    strcpy(tensor.name, name);
    return tensor;
}

static void known_answers(void)
{
    /* Random123, tests/kat_vectors, the rows "philox4x32 10": counter, key, block. */
    static const struct {
        const char *name;
        uint32_t counter[4], key[2], block[4];
    } rows[] = {
        {"all zero", {0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {"all ones",
         {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {"digits of pi",
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        uint32_t block[4];
        hd_philox(rows[i].counter, rows[i].key, block);
        CU_ASSERT(memcmp(block, rows[i].block, sizeof block) == 0);
    }
}

static void zeros_and_ones(void)
{
    static float values[COUNT];
    struct hd_tensor tensor = tensor_of("model.norm.weight", HD_F32, HD_INITIAL_ONE);

    hd_initial_fill(&tensor, 1, 0.02, values);
    for (unsigned i = 0; i < COUNT; i++) {
        CU_ASSERT_FATAL(values[i] == 1.0f);
    }
    tensor.initial = HD_INITIAL_ZERO;
    hd_initial_fill(&tensor, 1, 0.02, values);
    for (unsigned i = 0; i < COUNT; i++) {
        CU_ASSERT_FATAL(values[i] == 0.0f && !signbit(values[i]));
    }
}

/* Moments of the standard normal within four standard errors, and its tails. */
static void normal_statistics(void)
{
    static double values[COUNT];
    const double deviation = 0.02;
    double power[5] = {0};
    unsigned within_one = 0, beyond_three = 0;
    const struct hd_tensor tensor = tensor_of("a", HD_F64, HD_INITIAL_NORMAL);

    hd_initial_fill(&tensor, 7, deviation, values);
    for (unsigned i = 0; i < COUNT; i++) {
        const double x = values[i] / deviation;
        CU_ASSERT_FATAL(isfinite(x) && fabs(x) < 8.6); /* sqrt(-2 ln 2^-53) */
        double product = 1.0;
        for (unsigned k = 1; k < 5; k++) {
            product *= x;
            power[k] += product / COUNT;
        }
        within_one += fabs(x) < 1.0;
        beyond_three += fabs(x) > 3.0;
    }
    const double error = 1.0 / sqrt(COUNT);
    CU_ASSERT(fabs(power[1]) < 4 * error);
    CU_ASSERT(fabs(power[2] - 1.0) < 4 * sqrt(2.0) * error);
    CU_ASSERT(fabs(power[3]) < 4 * sqrt(15.0) * error);
    CU_ASSERT(fabs(power[4] - 3.0) < 4 * sqrt(96.0) * error);
    CU_ASSERT(fabs(within_one / (double)COUNT - 0.682689) < 4 * 0.4655 * error);
    CU_ASSERT(fabs(beyond_three / (double)COUNT - 0.0026998) < 4 * 0.0519 * error);
}

static double correlation(const double *left, const double *right, unsigned count)
{
    double both = 0.0, lefts = 0.0, rights = 0.0;
    for (unsigned i = 0; i < count; i++) {
        both += left[i] * right[i];
        lefts += left[i] * left[i];
        rights += right[i] * right[i];
    }
    return both / sqrt(lefts * rights);
}

/* Neighbours, other names and other seeds have nothing in common. */
static void independence(void)
{
    static double first[COUNT], second[COUNT];
    static const struct {
        const char *name;
        uint64_t seed;
    } others[] = {{"model.layers.1.self_attn.q_proj.weight", 2},
                  {"model.layers.1.self_attn.q_proj.weight", 1ull << 32 | 1},
                  {"model.layers.10.self_attn.q_proj.weight", 1},
                  {"model.layers.1.self_attn.k_proj.weight", 1}};
    struct hd_tensor tensor = tensor_of(others[0].name, HD_F64, HD_INITIAL_NORMAL);

    hd_initial_fill(&tensor, 1, 1.0, first);
    CU_ASSERT(fabs(correlation(first, first + 1, COUNT - 1)) < 4.0 / SIDE);
    CU_ASSERT(fabs(correlation(first, first + SIDE, COUNT - SIDE)) < 4.0 / SIDE);
    for (unsigned i = 0; i < HD_CHECK_COUNT(others); i++) {
        strcpy(tensor.name, others[i].name);
        hd_initial_fill(&tensor, others[i].seed, 1.0, second);
        CU_ASSERT(fabs(correlation(first, second, COUNT)) < 4.0 / SIDE);
    }
}

/* torchtitan 514, PyTorch 139304: values must not depend on the split nor on who draws first. */
static void order_does_not_matter(void)
{
    static float early[COUNT], late[COUNT], other[COUNT];
    const struct hd_tensor wanted =
        tensor_of("model.layers.3.mlp.gate.weight", HD_F32, HD_INITIAL_NORMAL);
    const struct hd_tensor between = tensor_of("lm_head.weight", HD_F32, HD_INITIAL_NORMAL);

    hd_initial_fill(&wanted, 1, 0.02, early);
    hd_initial_fill(&between, 1, 0.02, other);
    hd_initial_fill(&wanted, 1, 0.02, late);
    CU_ASSERT(memcmp(early, late, sizeof early) == 0);
    CU_ASSERT(memcmp(early, other, sizeof early) != 0);
}

/* An element's value is its index's, whatever the shape; stage, group and offset say nothing. */
static void only_name_and_element(void)
{
    static float whole[COUNT], part[COUNT];
    struct hd_tensor tensor = tensor_of("t", HD_F32, HD_INITIAL_NORMAL);

    hd_initial_fill(&tensor, 9, 0.5, whole);
    tensor.dimension_count = 1;
    tensor.shape[0] = 1000;
    tensor.group = HD_EXPERT;
    tensor.decays = 1;
    tensor.gradient_offset = 4096;
    CU_ASSERT(hd_tensor_count(&tensor) == 1000);
    hd_initial_fill(&tensor, 9, 0.5, part);
    CU_ASSERT(memcmp(whole, part, 1000 * sizeof whole[0]) == 0);
    CU_ASSERT(part[1000] == 0.0f);
}

static void doubles_round_to_floats(void)
{
    static double doubles[COUNT];
    static float floats[COUNT];
    struct hd_tensor tensor = tensor_of("t", HD_F64, HD_INITIAL_NORMAL);
    unsigned inexact = 0;

    hd_initial_fill(&tensor, 3, 0.02, doubles);
    tensor.dtype = HD_F32;
    hd_initial_fill(&tensor, 3, 0.02, floats);
    for (unsigned i = 0; i < COUNT; i++) {
        CU_ASSERT_FATAL(floats[i] == (float)doubles[i]);
        inexact += doubles[i] != (double)floats[i];
    }
    CU_ASSERT(inexact > COUNT / 2);
}

/* Frozen, so that a change of the recipe is seen: worked out apart, in Python (hashlib, math), from
   the recipe in initial.h. */
static void the_recipe(void)
{
    static const double expected[4] = {0.002734351648753053, -0.04279042725922734,
                                       0.027100279051441436, -0.04035507657829883};
    double values[4];
    struct hd_tensor tensor = tensor_of("model.embed_tokens.weight", HD_F64, HD_INITIAL_NORMAL);

    tensor.dimension_count = 1;
    tensor.shape[0] = 4;
    hd_initial_fill(&tensor, 1, 0.02, values);
    for (unsigned i = 0; i < 4; i++) {
        CU_ASSERT(fabs(values[i] - expected[i]) <= 1e-15 * fabs(expected[i]));
    }
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"philox 4x32-10 gives the known answers of Random123", known_answers},
        {"zero and one tensors hold zeros and ones", zeros_and_ones},
        {"normal values have the moments and tails of a normal", normal_statistics},
        {"neighbours, names and seeds are uncorrelated", independence},
        {"the same bits whoever draws first (torchtitan 514)", order_does_not_matter},
        {"a value depends on seed, name and element alone", only_name_and_element},
        {"float32 values are the float64 ones rounded once", doubles_round_to_floats},
        {"the recipe of the header, worked out apart", the_recipe},
    };
    return hd_check_main("initial", checks, HD_CHECK_COUNT(checks));
}
