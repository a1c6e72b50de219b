/*
 * tests/test_kernel_laws.c - the laws of kernel.h, kept by the stage program over `reference`.
 *
 * Bits are compared, not residuals: how a model is cut, where a payload lies and what lay
 * there before must not matter.  What a payload must not be trusted with is refused.
 *
 * Source: kernel.h, laws K3 to K8.
 */
#include "support/check.h"
#include "support/kernel_harness.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t two_blocks[] = {2}, each_block[] = {1, 1};

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

/* --- memory: K2 and K6 ------------------------------------------------------------------------ */

static uint32_t allocation_count;

static void *refuse_to_allocate(void *context, uint64_t bytes, uint64_t alignment, const char *tag)
{
    (void)context;
    (void)bytes;
    (void)alignment;
    (void)tag;
    allocation_count++;
    return NULL;
}

static void test_passes_allocate_nothing(void)
{
    const struct hd_update update = {
        .size = sizeof update, .step = 1, .learning_rate = 1e-3, .gradient_scale = 1};
    struct fixture fixture;
    double norms[64];
    open_fixture(&fixture, HD_PRECISION_BF16);
    fixture.harness.host.alloc = refuse_to_allocate;
    allocation_count = 0;
    CU_ASSERT_EQUAL(hd_chain_forward(&fixture.chain, 0), HD_OK);
    CU_ASSERT_EQUAL(hd_chain_backward(&fixture.chain), HD_OK);
    CU_ASSERT_FATAL(fixture.chain.tensor_count <= 64);
    CU_ASSERT_EQUAL(fixture.harness.ops->norms(fixture.chain.stages[0].stage, norms), HD_OK);
    CU_ASSERT_EQUAL(fixture.harness.ops->update(fixture.chain.stages[0].stage, &update), HD_OK);
    CU_ASSERT_EQUAL(allocation_count, 0);
    close_fixture(&fixture);
}

/* What a pass reads only is as it was; what it writes does not depend on what was there. */
static void test_boundaries_are_read_or_written(void)
{
    struct hd_harness harness;
    struct hd_chain chain;
    uint64_t gradients[2];
    const struct hd_stage_spec model = wider_model(HD_PRECISION_BF16);
    CU_ASSERT_EQUAL_FATAL(hd_harness_open(&harness, "reference", NULL), 0);
    CU_ASSERT_EQUAL_FATAL(hd_chain_open(&chain, &harness, &model, each_block, 2), HD_OK);
    hd_chain_draw(&chain, 3);
    struct hd_chain_stage *last = &chain.stages[1];
    const uint64_t bytes = last->needs.boundary_bytes;
    char *input = malloc(bytes), *gradient = malloc(bytes);
    CU_ASSERT_FATAL(input != NULL && gradient != NULL);
    for (unsigned i = 0; i < 2; i++) {
        memset(last->input, i ? 0xff : 0, bytes);
        memset(last->input_gradient, i ? 0xff : 0, bytes);
        hd_chain_zero_gradients(&chain);
        CU_ASSERT_EQUAL(hd_chain_forward(&chain, 0), HD_OK);
        CU_ASSERT_EQUAL(hd_chain_backward(&chain), HD_OK);
        gradients[i] = hd_chain_hash(&chain, HD_GRADIENT);
        CU_ASSERT(i == 0 || memcmp(input, last->input, bytes) == 0);
        CU_ASSERT(i == 0 || memcmp(gradient, last->input_gradient, bytes) == 0);
        memcpy(input, last->input, bytes);
        memcpy(gradient, last->input_gradient, bytes);
    }
    CU_ASSERT_EQUAL(gradients[0], gradients[1]);
    free(input);
    free(gradient);
    hd_chain_close(&chain);
    hd_harness_close(&harness);
}

/* --- the update
 * ------------------------------------------------------------------------------------ */

static void check_updated(struct hd_chain *chain, uint32_t tensor, const struct hd_update *u,
                          const double *before)
{
    struct hd_tensor about;
    double after[48 * 32], gradient[48 * 32];
    const uint64_t count = hd_chain_tensor(chain, tensor, &about);
    hd_chain_read(chain, tensor, HD_MASTER, after);
    hd_chain_read(chain, tensor, HD_GRADIENT, gradient);
    for (uint64_t i = 0; i < count; i++) {
        /* The first step: moments over their bias are the gradient and its square. */
        const double g = gradient[i] * u->gradient_scale;
        const double decay = about.decays ? u->learning_rate * u->weight_decay * before[i] : 0;
        const double wanted = before[i] - decay - u->learning_rate * g / (fabs(g) + u->epsilon);
        CU_ASSERT_DOUBLE_EQUAL(after[i], wanted, 1e-6);
    }
}

static void test_update_is_adamw(void)
{
    const struct hd_update update = {.size = sizeof update,
                                     .step = 1,
                                     .learning_rate = 0.01,
                                     .beta1 = 0.9,
                                     .beta2 = 0.95,
                                     .epsilon = 1e-4,
                                     .weight_decay = 0.5,
                                     .gradient_scale = 0.25};
    struct fixture fixture;
    open_fixture(&fixture, HD_PRECISION_BF16);
    struct hd_chain *chain = &fixture.chain;
    static double before[64][64 * 32];
    CU_ASSERT_FATAL(chain->tensor_count <= 64);
    CU_ASSERT_EQUAL(hd_chain_forward(chain, 0), HD_OK);
    CU_ASSERT_EQUAL(hd_chain_backward(chain), HD_OK);
    const uint64_t gradients = hd_chain_hash(chain, HD_GRADIENT);
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        hd_chain_read(chain, tensor, HD_MASTER, before[tensor]);
    }
    CU_ASSERT_EQUAL(fixture.harness.ops->update(chain->stages[0].stage, &update), HD_OK);
    CU_ASSERT_EQUAL(hd_chain_hash(chain, HD_GRADIENT), gradients);
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        struct hd_tensor about;
        if (hd_chain_tensor(chain, tensor, &about) <= 48 * 32) {
            check_updated(chain, tensor, &update, before[tensor]);
        }
    }

    /* An update renews what derives from the masters, as writing them does. */
    CU_ASSERT_EQUAL(hd_chain_forward(chain, 1), HD_OK);
    const double loss = chain->loss;
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        hd_chain_read(chain, tensor, HD_MASTER, before[tensor]);
        hd_chain_write(chain, tensor, HD_MASTER, before[tensor]);
    }
    CU_ASSERT_EQUAL(hd_chain_forward(chain, 1), HD_OK);
    CU_ASSERT_EQUAL(chain->loss, loss);
    close_fixture(&fixture);
}

/* --- stamps ----------------------------------------------------------------------------------- */

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
    CU_ASSERT_EQUAL(hd_chain_backward(chain), HD_PROTOCOL);
    CU_ASSERT_PTR_NOT_NULL(strstr(fixture.harness.failure, "stage 0, microbatch 2"));
    CU_ASSERT_PTR_NOT_NULL(strstr(fixture.harness.failure, "expected the payload of generation 3"));
    CU_ASSERT_PTR_NOT_NULL(strstr(fixture.harness.failure, "generation 4 of microbatch 2"));

    chain->stages[0].generation = 4;
    chain->microbatch = 1;
    CU_ASSERT_EQUAL(hd_chain_backward(chain), HD_PROTOCOL);
    CU_ASSERT_PTR_NOT_NULL(strstr(fixture.harness.failure, "stage 0, microbatch 1"));
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
    double norms[64], length = 0;
    CU_ASSERT_FATAL(chain->tensor_count <= 64);
    CU_ASSERT_EQUAL(chain->harness->ops->norms(chain->stages[0].stage, norms), HD_OK);
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
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

static double squared_gradient(struct hd_chain *chain, const char *name)
{
    double values[48 * 32], sum = 0;
    struct hd_tensor about;
    const int64_t tensor = hd_chain_find(chain, name);
    CU_ASSERT_FATAL(tensor >= 0);
    CU_ASSERT_FATAL(hd_chain_tensor(chain, (uint32_t)tensor, &about) == 48 * 32);
    hd_chain_read(chain, (uint32_t)tensor, HD_GRADIENT, values);
    for (unsigned i = 0; i < 48 * 32; i++) {
        sum += values[i] * values[i];
    }
    return sum;
}

/* A router of zeros ties all experts: the lower index wins, so that 2 and 3 get no token. */
static void test_idle_expert_adds_nothing(void)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    const double zeros[4 * 32] = {0};
    struct fixture fixture;
    open_fixture(&fixture, HD_PRECISION_F32);
    const int64_t gate = hd_chain_find(&fixture.chain, "model.layers.0.mlp.gate.weight");
    CU_ASSERT_FATAL(gate >= 0);
    hd_chain_write(&fixture.chain, (uint32_t)gate, HD_MASTER, zeros);
    CU_ASSERT_EQUAL(hd_chain_forward(&fixture.chain, 0), HD_OK);
    CU_ASSERT_EQUAL(hd_chain_backward(&fixture.chain), HD_OK);
    for (unsigned i = 0; i < 12; i++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%u.%s.weight", i / 3, parts[i % 3]);
        CU_ASSERT_EQUAL(squared_gradient(&fixture.chain, name) > 0, i / 3 < 2);
    }
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
    {"K4: one stage of two blocks gives the bits of two stages", test_cut_changes_no_bit},
    {"K3: slot, rubbish and microbatch number change no bit", test_slot_changes_no_bit},
    {"an evaluation gives the bits of a forward", test_evaluation_gives_the_same_bits},
    {"K5: a second backward doubles the gradients", test_backward_adds},
    {"K2: no pass allocates", test_passes_allocate_nothing},
    {"K6: boundaries are read or written, never both", test_boundaries_are_read_or_written},
    {"an update is AdamW, and renews the copies", test_update_is_adamw},
    {"K7: a stale or foreign stamp is refused by name", test_stale_stamp_is_refused},
    {"K8: an overwritten routing is refused", test_overwritten_routing_is_refused},
    {"a microbatch without labels has no loss and no gradient", test_missing_labels},
    {"labels add up", test_labels_add_up},
    {"an idle expert adds nothing", test_idle_expert_adds_nothing},
    {"K8: a NaN reaches the loss and the norm", test_nan_is_loud},
};

int main(void)
{
    return hd_check_main("kernel_laws", checks, HD_CHECK_COUNT(checks));
}
