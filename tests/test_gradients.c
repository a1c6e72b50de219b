/*
 * tests/test_gradients.c - what the reference kernel computes, and the laws it keeps.
 *
 * The float64 reference is held against central differences of its own loss, entry by
 * entry, for every tensor; the float32 and bf16 ones against the float64 one.  A probe that
 * changed the routing would be off by far more than the bound: the loss jumps there.
 *
 * Sources: kernel.h, laws K3 to K8; shared facts payload.md and olmoe_names.md; the
 * four-point rule (f(-2h) - 8 f(-h) + 8 f(h) - f(2h)) / 12h.
 */
#include "support/check.h"
#include "support/kernel_harness.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t one_block[] = {1}, two_blocks[] = {2}, each_block[] = {1, 1};

/* --- central differences -------------------------------------------------------------------- */

struct shape {
    const char *name;
    uint32_t layers, key_value_heads, experts, experts_per_token, normalize;
    double balance, z;
};

static const struct shape shapes[] = {
    {"MoE block, gates as they are, both terms", 1, 0, 4, 2, 0, 0.7, 0.3},
    {"MoE block, gates normalised, both terms", 1, 0, 4, 2, 1, 0.7, 0.3},
    {"MoE block, no terms", 1, 0, 4, 2, 0, 0, 0},
    {"MoE block, one of three experts, normalised", 1, 0, 3, 1, 1, 0.7, 0.3},
    {"MoE block, every expert chosen", 1, 0, 2, 2, 0, 0.7, 0.3},
    {"MoE block, four heads share two key-value heads", 1, 2, 4, 2, 0, 0.7, 0.3},
    {"dense block", 1, 0, 0, 0, 0, 0.7, 0.3},
    {"dense block, four heads share one key-value head", 1, 1, 0, 0, 0, 0.7, 0.3},
    {"two MoE blocks in one stage", 2, 0, 4, 2, 0, 0.7, 0.3},
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
static double tensor_error(struct hd_chain *chain, uint32_t tensor)
{
    struct hd_tensor about;
    const uint64_t count = hd_chain_tensor(chain, tensor, &about);
    double *values = malloc(2 * count * sizeof *values), *gradient = values + count;
    double worst = 0, largest = 0;
    CU_ASSERT_PTR_NOT_NULL_FATAL(values);
    hd_chain_read(chain, tensor, HD_MASTER, values);
    hd_chain_read(chain, tensor, HD_GRADIENT, gradient);
    for (uint64_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs(probe(chain, tensor, values, i) - gradient[i]));
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
    CU_ASSERT_EQUAL_FATAL(hd_harness_open(&harness, "reference", "float64=on"), 0);
    CU_ASSERT_EQUAL_FATAL(
        hd_chain_open(&chain, &harness, &model, shape->layers == 1 ? one_block : two_blocks, 1),
        HD_OK);
    hd_chain_draw(&chain, 7);
    chain.targets[3] = -1; /* one label is missing */
    CU_ASSERT_EQUAL_FATAL(hd_chain_forward(&chain, 0), HD_OK);
    CU_ASSERT_EQUAL_FATAL(hd_chain_backward(&chain), HD_OK);
    for (uint32_t tensor = 0; tensor < chain.tensor_count; tensor++) {
        struct hd_tensor about;
        hd_chain_tensor(&chain, tensor, &about);
        const double error = tensor_error(&chain, tensor);
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

/* --- bitwise laws ----------------------------------------------------------------------------- */

struct outcome {
    double terms[HD_CHAIN_TERM_MAX];
    uint64_t gradients;
};

/* F and B of two microbatches over stages of blocks[0], .. blocks. */
static struct outcome run_cut(const struct hd_stage_spec *model, const uint32_t *blocks,
                              uint32_t stage_count)
{
    struct hd_harness harness;
    struct hd_chain chain;
    struct outcome outcome;
    CU_ASSERT_EQUAL_FATAL(hd_harness_open(&harness, "reference", NULL), 0);
    CU_ASSERT_EQUAL_FATAL(hd_chain_open(&chain, &harness, model, blocks, stage_count), HD_OK);
    hd_chain_draw(&chain, 11);
    for (uint32_t microbatch = 0; microbatch < 2; microbatch++) {
        chain.microbatch = microbatch;
        hd_chain_draw_tokens(&chain, 100 + microbatch);
        CU_ASSERT_EQUAL(hd_chain_forward(&chain, 0), HD_OK);
        CU_ASSERT_EQUAL(hd_chain_backward(&chain), HD_OK);
    }
    memset(&outcome, 0, sizeof outcome);
    memcpy(outcome.terms, chain.terms, sizeof outcome.terms);
    outcome.gradients = hd_chain_hash(&chain, HD_GRADIENT);
    hd_chain_close(&chain);
    hd_harness_close(&harness);
    return outcome;
}

static void test_cut_changes_no_bit(void)
{
    static const uint32_t precisions[] = {HD_PRECISION_BF16, HD_PRECISION_F32};
    for (unsigned i = 0; i < 4; i++) {
        struct hd_stage_spec model = wider_model(precisions[i % 2]);
        model.experts = i < 2 ? 4 : 0;
        const struct outcome whole = run_cut(&model, two_blocks, 1);
        const struct outcome cut = run_cut(&model, each_block, 2);
        CU_ASSERT_EQUAL(memcmp(whole.terms, cut.terms, sizeof whole.terms), 0);
        CU_ASSERT_EQUAL(whole.gradients, cut.gradients);
    }
}

/* One bf16 chain of one stage. */
struct fixture {
    struct hd_harness harness;
    struct hd_chain chain;
};

static void open_fixture(struct fixture *fixture, uint32_t precision)
{
    const struct hd_stage_spec model = wider_model(precision);
    CU_ASSERT_EQUAL_FATAL(hd_harness_open(&fixture->harness, "reference", NULL), 0);
    CU_ASSERT_EQUAL_FATAL(hd_chain_open(&fixture->chain, &fixture->harness, &model, two_blocks, 1),
                          HD_OK);
    hd_chain_draw(&fixture->chain, 5);
}

static void close_fixture(struct fixture *fixture)
{
    hd_chain_close(&fixture->chain);
    hd_harness_close(&fixture->harness);
}

static void test_slot_changes_no_bit(void)
{
    struct fixture fixture;
    struct hd_chain *chain = &fixture.chain;
    struct hd_chain_stage *at = &chain->stages[0];
    double terms[HD_CHAIN_TERM_MAX];
    open_fixture(&fixture, HD_PRECISION_BF16);
    CU_ASSERT_EQUAL(hd_chain_forward(chain, 0), HD_OK);
    CU_ASSERT_EQUAL(hd_chain_backward(chain), HD_OK);
    const uint64_t before = hd_chain_hash(chain, HD_GRADIENT);
    memcpy(terms, chain->terms, sizeof terms);

    /* Another slot, other rubbish in it and in scratch, another microbatch's number. */
    char *kept = at->payload, *other = hd_memory_take(at->needs.payload_bytes + 64, 4096, "test");
    at->payload = other + 64;
    memset(other, 0x5a, at->needs.payload_bytes + 64);
    memset(at->memory.scratch, 0x3c, at->needs.scratch_bytes);
    chain->microbatch = 6;
    at->generation = 40;
    hd_chain_zero_gradients(chain);
    CU_ASSERT_EQUAL(hd_chain_forward(chain, 0), HD_OK);
    memset(at->memory.scratch, 0xff, at->needs.scratch_bytes); /* no pass leaves data in scratch */
    CU_ASSERT_EQUAL(hd_chain_backward(chain), HD_OK);
    CU_ASSERT_EQUAL(hd_chain_hash(chain, HD_GRADIENT), before);
    CU_ASSERT_EQUAL(memcmp(terms, chain->terms, sizeof terms), 0);
    at->payload = kept;
    hd_memory_give(other);
    close_fixture(&fixture);
}

static void test_evaluation_gives_the_same_bits(void)
{
    struct fixture fixture;
    double terms[HD_CHAIN_TERM_MAX];
    open_fixture(&fixture, HD_PRECISION_BF16);
    CU_ASSERT_EQUAL(hd_chain_forward(&fixture.chain, 0), HD_OK);
    memcpy(terms, fixture.chain.terms, sizeof terms);
    memset(fixture.chain.terms, 0, sizeof terms);
    CU_ASSERT_EQUAL(hd_chain_forward(&fixture.chain, 1), HD_OK);
    CU_ASSERT_EQUAL(memcmp(terms, fixture.chain.terms, sizeof terms), 0);
    CU_ASSERT_EQUAL(hd_chain_backward(&fixture.chain), HD_OK); /* the payload is still whole */
    close_fixture(&fixture);
}

static void test_backward_adds(void)
{
    struct fixture fixture;
    double norm[2][64];
    open_fixture(&fixture, HD_PRECISION_F32);
    struct hd_chain_stage *at = &fixture.chain.stages[0];
    CU_ASSERT_EQUAL(hd_chain_forward(&fixture.chain, 0), HD_OK);
    for (unsigned i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL(hd_chain_backward(&fixture.chain), HD_OK);
        CU_ASSERT_EQUAL(fixture.harness.ops->norms(at->stage, norm[i]), HD_OK);
    }
    for (uint32_t tensor = 0; tensor < fixture.chain.tensor_count; tensor++) {
        CU_ASSERT(norm[0][tensor] >= 0);
        CU_ASSERT_DOUBLE_EQUAL(norm[1][tensor], 4 * norm[0][tensor], 1e-5 * norm[1][tensor]);
    }
    close_fixture(&fixture);
}

/* --- stamps -------------------------------------------------------------------------------------
 */

static void test_stale_stamp_is_refused(void)
{
    struct fixture fixture;
    open_fixture(&fixture, HD_PRECISION_BF16);
    struct hd_chain *chain = &fixture.chain;
    chain->stages[0].generation = 4;
    chain->microbatch = 2;
    CU_ASSERT_EQUAL(hd_chain_forward(chain, 0), HD_OK);
    const uint64_t before = hd_chain_hash(chain, HD_GRADIENT);

    chain->stages[0].generation = 3;
    chain->microbatch = 1;
    CU_ASSERT_EQUAL(hd_chain_backward(chain), HD_PROTOCOL);
    CU_ASSERT_PTR_NOT_NULL(strstr(fixture.harness.failure, "stage 0, microbatch 1"));
    CU_ASSERT_PTR_NOT_NULL(strstr(fixture.harness.failure, "expected the payload of generation 3"));
    CU_ASSERT_PTR_NOT_NULL(strstr(fixture.harness.failure, "generation 4 of microbatch 2"));
    CU_ASSERT_EQUAL(hd_chain_hash(chain, HD_GRADIENT), before);

    memset(chain->stages[0].payload, 0xff, 256); /* a released slot, poisoned */
    CU_ASSERT_EQUAL(hd_chain_backward(chain), HD_PROTOCOL);
    CU_ASSERT_PTR_NOT_NULL(strstr(fixture.harness.failure, "no payload of this stage"));
    close_fixture(&fixture);
}

static void test_overwritten_routing_is_refused(void)
{
    struct fixture fixture;
    open_fixture(&fixture, HD_PRECISION_BF16);
    struct hd_chain_stage *at = &fixture.chain.stages[0];
    CU_ASSERT_EQUAL(hd_chain_forward(&fixture.chain, 0), HD_OK);
    memset((char *)at->payload + 256, 0x77, at->needs.payload_bytes - 256);
    CU_ASSERT_EQUAL(hd_chain_backward(&fixture.chain), HD_PROTOCOL);
    CU_ASSERT_PTR_NOT_NULL(strstr(fixture.harness.failure, "the routing of block 0"));
    close_fixture(&fixture);
}

/* --- labels, idle experts, non-finite values
 * ------------------------------------------------------ */

static double gradient_length(struct hd_chain *chain)
{
    double length = 0;
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        double norms[64];
        CU_ASSERT(chain->tensor_count <= 64);
        CU_ASSERT_EQUAL(chain->harness->ops->norms(chain->stages[0].stage, norms), HD_OK);
        length += norms[tensor];
    }
    return sqrt(length);
}

static void test_missing_labels(void)
{
    struct fixture fixture;
    open_fixture(&fixture, HD_PRECISION_F32);
    struct hd_chain *chain = &fixture.chain;
    chain->auxiliary_scale = 0;
    CU_ASSERT_EQUAL(hd_chain_forward(chain, 0), HD_OK);
    CU_ASSERT(chain->loss > 0);

    for (uint32_t i = 0; i < 32; i++) {
        chain->targets[i] = i % 2 ? -100 : -1;
    }
    CU_ASSERT_EQUAL(hd_chain_forward(chain, 0), HD_OK);
    CU_ASSERT_EQUAL(hd_chain_backward(chain), HD_OK);
    CU_ASSERT_EQUAL(chain->loss, 0.0);
    CU_ASSERT_EQUAL(gradient_length(chain), 0.0);
    close_fixture(&fixture);
}

/* The chunked loss is additive over labels: two halves of them give the whole. */
static void test_labels_add_up(void)
{
    struct fixture fixture;
    int32_t targets[32];
    double whole, halves = 0;
    open_fixture(&fixture, HD_PRECISION_F32);
    fixture.chain.auxiliary_scale = 0;
    CU_ASSERT_EQUAL(hd_chain_forward(&fixture.chain, 1), HD_OK);
    whole = fixture.chain.loss;
    memcpy(targets, fixture.chain.targets, sizeof targets);
    for (uint32_t half = 0; half < 2; half++) {
        for (uint32_t i = 0; i < 32; i++) {
            fixture.chain.targets[i] = i % 2 == half ? targets[i] : -1;
        }
        CU_ASSERT_EQUAL(hd_chain_forward(&fixture.chain, 1), HD_OK);
        halves += fixture.chain.loss;
    }
    CU_ASSERT_DOUBLE_EQUAL(whole, halves, 1e-12 * whole);
    close_fixture(&fixture);
}

/* With router rows 2 and 3 equal and the others far above, experts 2 and 3 get nothing. */
static void test_idle_expert_adds_nothing(void)
{
    struct fixture fixture;
    struct hd_tensor about;
    double *router, sum = 0;
    open_fixture(&fixture, HD_PRECISION_F32);
    struct hd_chain *chain = &fixture.chain;
    chain->model.z_weight = 0;
    const int64_t norm = hd_chain_find(chain, "model.layers.0.post_attention_layernorm.weight");
    const int64_t gate = hd_chain_find(chain, "model.layers.0.mlp.gate.weight");
    const uint64_t count = hd_chain_tensor(chain, (uint32_t)gate, &about);
    CU_ASSERT_FATAL(norm >= 0 && gate >= 0 && count == 128);
    /* Zero logits for all: ties go to the lower index, so experts 0 and 1 get every token. */
    router = calloc(count, sizeof *router);
    CU_ASSERT_PTR_NOT_NULL_FATAL(router);
    hd_chain_write(chain, (uint32_t)gate, HD_MASTER, router);
    CU_ASSERT_EQUAL(hd_chain_forward(chain, 0), HD_OK);
    CU_ASSERT_EQUAL(hd_chain_backward(chain), HD_OK);
    for (uint32_t expert = 0; expert < 4; expert++) {
        double values[48 * 32];
        char name[128];
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%u.up_proj.weight", expert);
        const int64_t tensor = hd_chain_find(chain, name);
        CU_ASSERT_FATAL(tensor >= 0);
        hd_chain_read(chain, (uint32_t)tensor, HD_GRADIENT, values);
        sum = 0;
        for (unsigned i = 0; i < 48 * 32; i++) {
            sum += values[i] * values[i];
        }
        CU_ASSERT_EQUAL(sum > 0, expert < 2);
    }
    free(router);
    close_fixture(&fixture);
}

static void test_nan_is_loud(void)
{
    static const char *const places[] = {"model.embed_tokens.weight",
                                         "model.layers.0.self_attn.q_proj.weight",
                                         "model.layers.0.mlp.gate.weight",
                                         "model.layers.1.input_layernorm.weight", "lm_head.weight"};
    for (unsigned i = 0; i < sizeof places / sizeof places[0]; i++) {
        struct fixture fixture;
        struct hd_tensor about;
        open_fixture(&fixture, HD_PRECISION_BF16);
        struct hd_chain *chain = &fixture.chain;
        const int64_t tensor = hd_chain_find(chain, places[i]);
        CU_ASSERT_FATAL(tensor >= 0);
        const uint64_t count = hd_chain_tensor(chain, (uint32_t)tensor, &about);
        double *values = malloc(count * sizeof *values);
        CU_ASSERT_PTR_NOT_NULL_FATAL(values);
        for (uint64_t at = 0; at < count; at++) {
            values[at] = NAN;
        }
        hd_chain_write(chain, (uint32_t)tensor, HD_MASTER, values);
        CU_ASSERT_EQUAL(hd_chain_forward(chain, 0), HD_OK);
        CU_ASSERT_FALSE(isfinite(chain->loss));
        CU_ASSERT_EQUAL(hd_chain_backward(chain), HD_OK);
        CU_ASSERT_FALSE(isfinite(gradient_length(chain)));
        free(values);
        close_fixture(&fixture);
    }
}

static const struct hd_check checks[] = {
    {"float64 gradients are the central differences, every tensor", test_central_differences},
    {"float32 gradients are within 1e-5 of float64", test_float32_residual},
    {"bf16 gradients are within 2e-2 of float64 in the mean, 3e-2 each (2 blocks: 5e-2)",
     test_bf16_residual},
    {"K4: one stage of two blocks gives the bits of two stages", test_cut_changes_no_bit},
    {"K3: slot, rubbish and microbatch number change no bit", test_slot_changes_no_bit},
    {"an evaluation gives the bits of a forward", test_evaluation_gives_the_same_bits},
    {"K5: a second backward doubles the gradients", test_backward_adds},
    {"K7: a stale or foreign stamp is refused by name", test_stale_stamp_is_refused},
    {"K8: an overwritten routing is refused", test_overwritten_routing_is_refused},
    {"a microbatch without labels has no loss and no gradient", test_missing_labels},
    {"labels add up", test_labels_add_up},
    {"an idle expert adds nothing", test_idle_expert_adds_nothing},
    {"K8: a NaN reaches the loss and the norm", test_nan_is_loud},
};

int main(void)
{
    return hd_check_main("gradients", checks, HD_CHECK_COUNT(checks));
}
