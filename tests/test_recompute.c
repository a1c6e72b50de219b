/*
 * tests/test_recompute.c - what a payload holds, and in how many slots, changes no bit.
 *
 * Recomputation is compared with keeping everything; two half batches with twice as many
 * microbatches of half the size; both over the kernels and precisions that there are.
 *
 * Sources: the report, sections 6.3 and 6.4; kernel.h, laws K3, K4 and K7.
 */
#include "support/check.h"
#include "support/kernel_harness.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const uint32_t two_blocks[] = {2}, each_block[] = {1, 1};

static struct hd_stage_spec model_of(uint32_t precision, uint32_t experts)
{
    struct hd_stage_spec model = hd_chain_model();
    model.width = 64;
    model.heads = 4;
    model.key_value_heads = 2;
    model.experts = experts;
    model.expert_width = 96;
    model.vocabulary = 64;
    model.sequence = experts ? 24 : 32; /* a dense mxfp8 has blocks of 32 tokens */
    model.batch = 4;
    model.precision = precision;
    return model;
}

struct outcome {
    double terms[HD_CHAIN_TERM_MAX];
    uint64_t gradients;
    uint64_t payload_bytes; /* of the first stage */
};

static void open_chain(struct hd_harness *harness, struct hd_chain *chain, const char *kernel,
                       const struct hd_stage_spec *model, uint32_t stage_count)
{
    const uint32_t *blocks = stage_count == 1 ? two_blocks : each_block;
    CU_ASSERT_EQUAL_FATAL(hd_harness_open(harness, kernel, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(hd_chain_open(chain, harness, model, blocks, stage_count), HD_OK);
    hd_chain_draw(chain, 11);
}

static void close_chain(struct hd_harness *harness, struct hd_chain *chain)
{
    hd_chain_close(chain);
    hd_harness_close(harness);
}

/* Two microbatches, with rubbish in every scratch between forward and backward. */
static struct outcome run(const char *kernel, const struct hd_stage_spec *model,
                          uint32_t stage_count)
{
    struct hd_harness harness;
    struct hd_chain chain;
    struct outcome outcome;
    memset(&outcome, 0, sizeof outcome);
    open_chain(&harness, &chain, kernel, model, stage_count);
    for (uint32_t microbatch = 0; microbatch < 2; microbatch++) {
        chain.microbatch = microbatch;
        hd_chain_draw_tokens(&chain, 100 + microbatch);
        CU_ASSERT_EQUAL(hd_chain_forward(&chain, 0), HD_OK);
        for (uint32_t stage = 0; stage < stage_count; stage++) {
            struct hd_chain_stage *at = &chain.stages[stage];
            memset(at->memory.scratch, 0xff, at->needs.scratch_bytes);
        }
        CU_ASSERT_EQUAL(hd_chain_backward(&chain), HD_OK);
    }
    memcpy(outcome.terms, chain.terms, sizeof outcome.terms);
    outcome.gradients = hd_chain_hash(&chain, HD_GRADIENT);
    outcome.payload_bytes = chain.stages[0].needs.payload_bytes;
    close_chain(&harness, &chain);
    return outcome;
}

static int same_bits(const struct outcome *one, const struct outcome *other)
{
    return memcmp(one->terms, other->terms, sizeof one->terms) == 0 &&
           one->gradients == other->gradients;
}

/* --- every kernel and precision --------------------------------------------------------------- */

struct variant {
    const char *name, *kernel;
    uint32_t precision, experts;
};

static const struct variant variants[] = {
    {"reference, bf16", "reference", HD_PRECISION_BF16, 4},
    {"reference, bf16, dense", "reference", HD_PRECISION_BF16, 0},
    {"reference, f32", "reference", HD_PRECISION_F32, 4},
    {"reference, mxfp8", "reference", HD_PRECISION_MXFP8, 4},
    {"reference, mxfp8, dense", "reference", HD_PRECISION_MXFP8, 0},
    {"cpu, bf16", "cpu", HD_PRECISION_BF16, 4},
    {"cpu, bf16, dense", "cpu", HD_PRECISION_BF16, 0},
    {"cpu, f32", "cpu", HD_PRECISION_F32, 4},
    {"cpu, mxfp8", "cpu", HD_PRECISION_MXFP8, 4},
    {"cpu, mxfp8, dense", "cpu", HD_PRECISION_MXFP8, 0},
};

static int is_built(const char *kernel)
{
    char file[64];
    snprintf(file, sizeof file, "heddle_kernel_%s.so", kernel);
    return access(hd_check_plugin(file), R_OK) == 0;
}

static void for_each_variant(void (*check)(const struct variant *variant))
{
    unsigned run_count = 0;
    for (unsigned i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        if (is_built(variants[i].kernel)) {
            check(&variants[i]);
            run_count++;
        }
    }
    CU_ASSERT(run_count >= 4);
}

static void say_if(int differs, const struct variant *variant, const char *what)
{
    if (differs) {
        printf("\n    %s: %s\n", variant->name, what);
    }
    CU_ASSERT_FALSE(differs);
}

/* --- recomputation ---------------------------------------------------------------------------- */

static void check_recompute(const struct variant *variant)
{
    struct hd_stage_spec model = model_of(variant->precision, variant->experts);
    const struct outcome kept = run(variant->kernel, &model, 1);
    model.recompute = HD_RECOMPUTE_EXPERTS;
    const struct outcome experts = run(variant->kernel, &model, 1);
    model.recompute = HD_RECOMPUTE_FULL;
    const struct outcome full = run(variant->kernel, &model, 1);
    const struct outcome cut = run(variant->kernel, &model, 2);
    say_if(!same_bits(&kept, &experts), variant, "recompute experts differs");
    say_if(!same_bits(&kept, &full), variant, "recompute full differs");
    say_if(!same_bits(&kept, &cut), variant, "recompute full, cut in two, differs");
    CU_ASSERT(kept.payload_bytes > experts.payload_bytes);
    CU_ASSERT(experts.payload_bytes > full.payload_bytes);
}

static void test_recomputation_changes_no_bit(void)
{
    for_each_variant(check_recompute);
}

/* The routing is not in the payload, so nothing there can send a row astray. */
static void test_full_has_only_inputs_to_overwrite(void)
{
    struct hd_harness harness;
    struct hd_chain chain;
    struct hd_stage_spec model = model_of(HD_PRECISION_BF16, 4);
    model.recompute = HD_RECOMPUTE_FULL;
    open_chain(&harness, &chain, "reference", &model, 1);
    struct hd_chain_stage *at = &chain.stages[0];
    CU_ASSERT_EQUAL(hd_chain_forward(&chain, 0), HD_OK);
    memset((char *)at->payload + 256, 0x77, at->needs.payload_bytes - 256);
    CU_ASSERT_EQUAL(hd_chain_backward(&chain), HD_OK);
    memset(at->payload, 0xff, 256);
    CU_ASSERT_EQUAL(hd_chain_backward(&chain), HD_PROTOCOL);
    close_chain(&harness, &chain);
}

/* --- two half batches
 * ----------------------------------------------------------------------------- */

/* The same samples as microbatches of half the size: their terms are added in pairs. */
static struct outcome run_apart(const struct variant *variant, const struct hd_stage_spec *model)
{
    struct hd_harness harness;
    struct hd_chain whole, chain;
    struct outcome outcome;
    struct hd_stage_spec half = *model;
    half.half_batches = 1;
    half.batch /= 2;
    const uint64_t tokens = (uint64_t)half.batch * half.sequence;
    memset(&outcome, 0, sizeof outcome);
    open_chain(&harness, &whole, variant->kernel, model, 1);
    CU_ASSERT_EQUAL_FATAL(hd_chain_open(&chain, &harness, &half, two_blocks, 1), HD_OK);
    hd_chain_draw(&chain, 11);
    chain.label_scale = whole.label_scale;
    chain.auxiliary_scale = whole.auxiliary_scale / 2;
    for (uint32_t step = 0; step < 4; step++) {
        hd_chain_draw_tokens(&whole, 100 + step / 2);
        memcpy(chain.tokens, whole.tokens + step % 2 * tokens, tokens * sizeof(int32_t));
        memcpy(chain.targets, whole.targets + step % 2 * tokens, tokens * sizeof(int32_t));
        CU_ASSERT_EQUAL(hd_chain_forward(&chain, 0), HD_OK);
        CU_ASSERT_EQUAL(hd_chain_backward(&chain), HD_OK);
        for (uint32_t term = 0; term < chain.term_count; term++) {
            outcome.terms[term] =
                step % 2 ? outcome.terms[term] + chain.terms[term] : chain.terms[term];
        }
    }
    outcome.gradients = hd_chain_hash(&chain, HD_GRADIENT);
    hd_chain_close(&chain);
    close_chain(&harness, &whole);
    return outcome;
}

static void check_halves(const struct variant *variant)
{
    struct hd_stage_spec model = model_of(variant->precision, variant->experts);
    model.half_batches = 2;
    const struct outcome apart = run_apart(variant, &model);
    const struct outcome whole = run(variant->kernel, &model, 1);
    const struct outcome cut = run(variant->kernel, &model, 2);
    model.recompute = HD_RECOMPUTE_FULL;
    const struct outcome again = run(variant->kernel, &model, 2);
    say_if(!same_bits(&whole, &apart), variant, "two halves are not two microbatches");
    say_if(!same_bits(&whole, &cut), variant, "two halves, cut in two stages, differ");
    say_if(!same_bits(&whole, &again), variant, "two halves, recomputed, differ");
}

static void test_halves_are_microbatches(void)
{
    for_each_variant(check_halves);
}

static void test_each_half_has_its_stamp(void)
{
    struct hd_harness harness;
    struct hd_chain chain;
    struct hd_stage_spec model = model_of(HD_PRECISION_BF16, 4);
    model.half_batches = 2;
    open_chain(&harness, &chain, "reference", &model, 1);
    struct hd_chain_stage *at = &chain.stages[0];
    void *const first = at->payload, *const second = at->second_payload;
    CU_ASSERT_EQUAL(hd_chain_forward(&chain, 0), HD_OK);
    at->payload = second;
    at->second_payload = first;
    CU_ASSERT_EQUAL(hd_chain_backward(&chain), HD_PROTOCOL);
    at->payload = first;
    at->second_payload = second;
    memset(second, 0xff, 256);
    CU_ASSERT_EQUAL(hd_chain_backward(&chain), HD_PROTOCOL);
    CU_ASSERT_PTR_NOT_NULL(strstr(harness.failure, "no payload of this stage"));
    close_chain(&harness, &chain);
}

/* --- evaluation
 * ------------------------------------------------------------------------------------ */

static void check_evaluation(const struct variant *variant)
{
    struct hd_harness harness;
    struct hd_chain chain;
    double terms[HD_CHAIN_TERM_MAX];
    struct hd_stage_spec model = model_of(variant->precision, variant->experts);
    model.half_batches = 2;
    model.recompute = HD_RECOMPUTE_EXPERTS;
    open_chain(&harness, &chain, variant->kernel, &model, 1);
    CU_ASSERT_EQUAL(hd_chain_forward(&chain, 0), HD_OK);
    memcpy(terms, chain.terms, sizeof terms);
    memset(chain.terms, 0, sizeof chain.terms);
    CU_ASSERT_EQUAL(hd_chain_forward(&chain, 1), HD_OK);
    say_if(memcmp(terms, chain.terms, chain.term_count * sizeof terms[0]) != 0, variant,
           "an evaluation differs from a forward");
    close_chain(&harness, &chain);
}

static void test_evaluation_gives_the_same_bits(void)
{
    for_each_variant(check_evaluation);
}

static const struct hd_check checks[] = {
    {"recomputation changes no bit", test_recomputation_changes_no_bit},
    {"full recomputation trusts the payload with no index", test_full_has_only_inputs_to_overwrite},
    {"two half batches are two microbatches of half the size", test_halves_are_microbatches},
    {"each half batch has its own stamp", test_each_half_has_its_stamp},
    {"an evaluation gives the bits of a forward, in every mode",
     test_evaluation_gives_the_same_bits},
};

int main(void)
{
    return hd_check_main("recompute", checks, HD_CHECK_COUNT(checks));
}
