#include "conform/kernel.h"

#include <assert.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3 };

/* Bits that must not change: what two microbatches of one step leave behind. */
struct outcome {
    double terms[2][HD_CHAIN_TERM_MAX];
    uint64_t gradients;
};

static hd_status kernel_laws_run_step(struct hd_bench *bench, struct outcome *outcome)
{
    struct hd_chain *chain = &bench->chain;
    hd_status status = HD_OK;

    memset(outcome, 0, sizeof *outcome);
    hd_chain_zero_gradients(chain);
    for (uint32_t microbatch = 0; microbatch < 2 && status == HD_OK; microbatch++) {
        chain->microbatch = microbatch;
        hd_chain_draw_tokens(chain, bench->check->subject->seed + microbatch);
        status = hd_chain_forward(chain, 0);
        memcpy(outcome->terms[microbatch], chain->terms, sizeof chain->terms);
        status = status == HD_OK ? hd_chain_backward(chain) : status;
    }
    outcome->gradients = hd_chain_hash(chain, HD_GRADIENT);
    return status;
}

static void kernel_laws_expect_step(struct hd_bench *bench, const char *what,
                                    const struct outcome *wanted, struct outcome *outcome)
{
    struct hd_conform_case *check = bench->check;
    const hd_status status = kernel_laws_run_step(bench, outcome);

    HD_HOLD(check, status == HD_OK, "%s: %s: a pass returns %s: %s", bench->precision, what,
            hd_status_name(status), check->report.text);
    HD_HOLD(check,
            wanted == NULL || memcmp(wanted->terms, outcome->terms, sizeof wanted->terms) == 0,
            "%s: %s changes a term of the loss", bench->precision, what);
    HD_HOLD(check, wanted == NULL || wanted->gradients == outcome->gradients,
            "%s: %s changes the bits of a gradient", bench->precision, what);
}

static void kernel_laws_expect_whole(struct hd_bench *bench, const char *what)
{
    HD_HOLD(bench->check, hd_bench_is_whole(bench),
            "%s: %s writes beside a region that it was given", bench->precision, what);
}

static hd_status kernel_laws_update_all(struct hd_bench *bench)
{
    const struct hd_update update = {.size = sizeof update,
                                     .step = 1,
                                     .learning_rate = 1e-3,
                                     .beta1 = 0.9,
                                     .beta2 = 0.95,
                                     .epsilon = 1e-8,
                                     .weight_decay = 0.1,
                                     .gradient_scale = 1};
    hd_status status = HD_OK;

    for (uint32_t stage = 0; stage < bench->chain.stage_count && status == HD_OK; stage++) {
        status = bench->harness.ops->update(bench->chain.stages[stage].stage, &update);
    }
    return status;
}

static hd_status kernel_laws_norms_all(struct hd_bench *bench)
{
    hd_status status = HD_OK;

    for (uint32_t stage = 0; stage < bench->chain.stage_count && status == HD_OK; stage++) {
        const struct hd_chain_stage *at = &bench->chain.stages[stage];
        double *squared =
            hd_guard_take(at->needs.tensor_count * sizeof *squared, sizeof *squared, 0xff);
        assert(squared != NULL);
        status = bench->harness.ops->norms(at->stage, squared);
        if (!hd_guard_is_whole(squared)) {
            hd_conform_fail(bench->check, "norms writes beside the numbers that it was given");
        }
        hd_guard_give(squared);
    }
    return status;
}

/* --- regions: stage_needs against what is taken --------------------------------------------- */

static void kernel_laws_judge_regions(struct hd_conform_case *check,
                                      const struct hd_stage_spec *model)
{
    struct outcome outcome;
    struct hd_bench bench;

    if (!hd_bench_open(&bench, check, model, &hd_cut_in_two)) {
        return;
    }
    kernel_laws_expect_whole(&bench, "stage_create or tensor_copy");
    for (uint32_t step = 0; step < 2 && !hd_conform_is_decided(check); step++) {
        kernel_laws_expect_step(&bench, "a step", NULL, &outcome);
        kernel_laws_expect_whole(&bench, "a forward or a backward");
        HD_HOLD(check, kernel_laws_norms_all(&bench) == HD_OK, "norms fails: %s",
                check->report.text);
        kernel_laws_expect_whole(&bench, "norms");
        HD_HOLD(check, kernel_laws_update_all(&bench) == HD_OK, "update fails: %s",
                check->report.text);
        kernel_laws_expect_whole(&bench, "update");
        HD_HOLD(check, hd_chain_forward(&bench.chain, 1) == HD_OK, "an evaluation fails: %s",
                check->report.text);
        kernel_laws_expect_whole(&bench, "an evaluation");
    }
    hd_bench_close(&bench);
}

void hd_conform_kernel_regions(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_laws_judge_regions);
}

/* --- K2 ------------------------------------------------------------------------------------ */

static void kernel_laws_judge_frugal(struct hd_conform_case *check,
                                     const struct hd_stage_spec *model)
{
    struct outcome outcome;
    struct hd_bench bench;
    uint64_t before = 0;

    if (!hd_bench_open(&bench, check, model, &hd_cut_in_two)) {
        return;
    }
    /* A device's driver has threads, which hold on the heap what is under way. */
    const int has_driver = bench.harness.device.stream != NULL;
    check->allocation_count = 0;
    /* A library may set itself up in the first step; after it, what the process holds stays. */
    for (uint32_t step = 0; step < STEPS; step++) {
        const hd_status status = kernel_laws_run_step(&bench, &outcome);
        HD_HOLD(check,
                status == HD_OK && kernel_laws_norms_all(&bench) == HD_OK &&
                    kernel_laws_update_all(&bench) == HD_OK,
                "a step fails: %s", check->report.text);
        HD_HOLD(check, check->allocation_count == 0,
                "%s: step %u takes memory of the host %u times", bench.precision, step + 1,
                check->allocation_count);
        const uint64_t held = (uint64_t)mallinfo2().uordblks;
        HD_HOLD(check, step < 2 || held <= before || has_driver,
                "%s: step %u leaves %llu bytes more on the heap", bench.precision, step + 1,
                (unsigned long long)(held - before));
        before = held;
    }
    hd_bench_close(&bench);
}

void hd_conform_kernel_frugal(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_laws_judge_frugal);
}

/* --- K3 ------------------------------------------------------------------------------------ */

/* Another payload slot, other rubbish in it and in scratch, another lease and microbatch. */
static void kernel_laws_move_payloads(struct hd_bench *bench, int fill)
{
    struct hd_chain *chain = &bench->chain;
    const uint64_t alignment = bench->harness.device.alignment;

    for (uint32_t stage = 0; stage < chain->stage_count; stage++) {
        struct hd_chain_stage *at = &chain->stages[stage];
        unsigned char *slot = hd_guard_take(at->needs.payload_bytes, alignment, fill);
        assert(slot != NULL);
        hd_guard_give(at->payload);
        at->payload = slot;
        memset(at->memory.scratch, fill, at->needs.scratch_bytes);
        at->generation += 41;
    }
}

/* The microbatches of a step in the order of GPipe: F0 F1 B0 B1, with a payload and boundaries for
   each, which lie where the first run's did not. */
static hd_status kernel_laws_run_interleaved(struct hd_bench *benches, uint32_t count)
{
    hd_status status = HD_OK;

    for (uint32_t i = 0; i < count && status == HD_OK; i++) {
        status = hd_chain_forward(&benches[i].chain, 0);
    }
    for (uint32_t i = 0; i < count && status == HD_OK; i++) {
        status = hd_chain_backward(&benches[i].chain);
    }
    return status;
}

/* One microbatch alone gives the bits that it gives while another is under way on the device. */
static void kernel_laws_judge_neighbour(struct hd_bench *bench, const struct hd_stage_spec *model)
{
    struct hd_conform_case *check = bench->check;
    struct hd_bench both[2];

    hd_chain_zero_gradients(&bench->chain);
    hd_chain_draw_tokens(&bench->chain, 7);
    hd_status status = kernel_laws_run_interleaved(bench, 1);
    const uint64_t alone = hd_chain_hash(&bench->chain, HD_GRADIENT);
    for (uint32_t i = 0; i < 2; i++) {
        both[i] = *bench;
        memset(&both[i].chain, 0, sizeof both[i].chain);
        if (hd_chain_open(&both[i].chain, &bench->harness, model, hd_cut_in_two.blocks,
                          hd_cut_in_two.stage_count) != HD_OK) {
            hd_conform_fail(check, "a second model cannot be had: %s", check->report.text);
            return;
        }
        hd_chain_draw(&both[i].chain, check->subject->seed);
        hd_chain_draw_tokens(&both[i].chain, 7 + i);
    }
    status = status == HD_OK ? kernel_laws_run_interleaved(both, 2) : status;
    HD_HOLD(check, status == HD_OK, "a pass returns %s: %s", hd_status_name(status),
            check->report.text);
    HD_HOLD(check, alone == hd_chain_hash(&both[0].chain, HD_GRADIENT),
            "%s: a microbatch under way beside it changes the bits of a gradient",
            bench->precision);
    hd_chain_close(&both[0].chain);
    hd_chain_close(&both[1].chain);
}

static void kernel_laws_judge_repeatable(struct hd_conform_case *check,
                                         const struct hd_stage_spec *model)
{
    static const int fills[] = {0x00, 0xff, 0x5a};
    struct outcome wanted, outcome;
    struct hd_bench bench;

    if (!hd_bench_open(&bench, check, model, &hd_cut_in_two)) {
        return;
    }
    kernel_laws_expect_step(&bench, "a first step", NULL, &wanted);
    kernel_laws_expect_step(&bench, "a second run", &wanted, &outcome);
    for (uint32_t i = 0; i < 3 && !hd_conform_is_decided(check); i++) {
        kernel_laws_move_payloads(&bench, fills[i]);
        kernel_laws_expect_step(&bench, "another slot and other rubbish", &wanted, &outcome);
    }
    if (!hd_conform_is_decided(check)) {
        kernel_laws_judge_neighbour(&bench, model);
    }
    hd_bench_close(&bench);
}

void hd_conform_kernel_repeatable(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_laws_judge_repeatable);
}

/* --- K4 ------------------------------------------------------------------------------------ */

static void kernel_laws_judge_model_cuts(struct hd_conform_case *check,
                                         const struct hd_stage_spec *model)
{
    static const struct hd_cut cuts[] = {
        {{4}, 1}, {{2, 2}, 2}, {{1, 3}, 2}, {{3, 1}, 2}, {{1, 1, 1, 1}, 4}};
    struct outcome wanted = {0}, outcome;

    for (uint32_t i = 0; i < 5 && !hd_conform_is_decided(check); i++) {
        struct hd_bench bench;
        char what[64];
        if (!hd_bench_open(&bench, check, model, &cuts[i]) || !hd_bench_has_tensors(&bench)) {
            return;
        }
        snprintf(what, sizeof what, "a cut into %u stages, of %u blocks first,",
                 cuts[i].stage_count, cuts[i].blocks[0]);
        kernel_laws_expect_step(&bench, what, i == 0 ? NULL : &wanted, &outcome);
        wanted = i == 0 ? outcome : wanted;
        hd_bench_close(&bench);
    }
}

static void kernel_laws_judge_splittable(struct hd_conform_case *check,
                                         const struct hd_stage_spec *model)
{
    struct hd_stage_spec dense = *model;

    kernel_laws_judge_model_cuts(check, model);
    dense.experts = dense.experts_per_token = dense.expert_count = 0;
    if (!hd_conform_is_decided(check) && model->precision != HD_PRECISION_MXFP8) {
        kernel_laws_judge_model_cuts(check, &dense);
    }
}

void hd_conform_kernel_splittable(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_laws_judge_splittable);
}

/* --- K5 ------------------------------------------------------------------------------------ */

static void kernel_laws_judge_who_writes(struct hd_conform_case *check,
                                         const struct hd_stage_spec *model)
{
    struct hd_bench bench;

    if (!hd_bench_open(&bench, check, model, &hd_cut_in_two) || !hd_bench_has_tensors(&bench)) {
        return;
    }
    struct hd_chain *chain = &bench.chain;
    HD_HOLD(check, hd_chain_forward(chain, 0) == HD_OK && hd_chain_backward(chain) == HD_OK,
            "a pass fails: %s", check->report.text);
    const uint64_t before = hd_chain_hash(chain, HD_GRADIENT);
    HD_HOLD(check,
            hd_chain_forward(chain, 0) == HD_OK && hd_chain_forward(chain, 1) == HD_OK &&
                kernel_laws_norms_all(&bench) == HD_OK && kernel_laws_update_all(&bench) == HD_OK,
            "a pass fails: %s", check->report.text);
    HD_HOLD(check, hd_chain_hash(chain, HD_GRADIENT) == before,
            "%s: a forward, a norm or an update writes a gradient", bench.precision);
    hd_bench_close(&bench);
}

/* All gradients in one row, in global order; owned by the caller. */
static double *kernel_laws_read_gradients(struct hd_chain *chain, uint64_t *count)
{
    struct hd_tensor about;

    *count = 0;
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        *count += hd_chain_tensor(chain, tensor, &about);
    }
    double *values = malloc(*count * sizeof *values);
    uint64_t at = 0;
    assert(values != NULL);
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        hd_chain_read(chain, tensor, HD_GRADIENT, values + at);
        at += hd_chain_tensor(chain, tensor, &about);
    }
    return values;
}

/* After a second, equal backward the gradients are twice what they were, tensor by tensor, up to
   the order in which a product is added onto what is there. */
static void kernel_laws_judge_doubling(struct hd_conform_case *check,
                                       const struct hd_stage_spec *model)
{
    struct hd_bench bench;
    uint64_t count;

    if (!hd_bench_open(&bench, check, model, &hd_cut_in_two)) {
        return;
    }
    struct hd_chain *chain = &bench.chain;
    HD_HOLD(check, hd_chain_forward(chain, 0) == HD_OK && hd_chain_backward(chain) == HD_OK,
            "a pass fails: %s", check->report.text);
    double *once = kernel_laws_read_gradients(chain, &count);
    HD_HOLD(check, hd_chain_backward(chain) == HD_OK, "a second backward fails: %s",
            check->report.text);
    double *twice = kernel_laws_read_gradients(chain, &count);
    uint64_t at = 0;
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        struct hd_tensor about;
        const uint64_t end = at + hd_chain_tensor(chain, tensor, &about);
        double apart = 0, length = 0;
        for (; at < end; at++) {
            const double off = twice[at] - 2 * once[at];
            apart += off * off;
            length += 4 * once[at] * once[at];
        }
        HD_HOLD(check, apart <= 1e-8 * length,
                "%s: a second backward does not double the gradient of %s", bench.precision,
                about.name);
    }
    free(once);
    free(twice);
    hd_bench_close(&bench);
}

static void kernel_laws_judge_additive(struct hd_conform_case *check,
                                       const struct hd_stage_spec *model)
{
    kernel_laws_judge_who_writes(check, model);
    if (!hd_conform_is_decided(check)) {
        kernel_laws_judge_doubling(check, model);
    }
}

void hd_conform_kernel_additive(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_laws_judge_additive);
}

/* B in stages that were made for it, I and W in stages that were made for these. */
static void kernel_laws_judge_halves(struct hd_conform_case *check,
                                     const struct hd_stage_spec *given)
{
    struct hd_stage_spec model = *given;
    uint64_t gradients[2];

    for (uint32_t split = 0; split < 2; split++) {
        struct hd_bench bench;
        model.split_backward = split;
        if (!hd_bench_open(&bench, check, &model, &hd_cut_in_two)) {
            return;
        }
        struct hd_chain *chain = &bench.chain;
        HD_HOLD(check, hd_chain_forward(chain, 0) == HD_OK, "a forward fails: %s",
                check->report.text);
        const hd_status status = split ? hd_chain_backward_split(chain) : hd_chain_backward(chain);
        HD_HOLD(check, status == HD_OK, "%s: %s returns %s: %s", bench.precision,
                split ? "I or W" : "B", hd_status_name(status), check->report.text);
        kernel_laws_expect_whole(&bench, split ? "I or W" : "B");
        gradients[split] = hd_chain_hash(chain, HD_GRADIENT);
        hd_bench_close(&bench);
    }
    HD_HOLD(check, gradients[0] == gradients[1], "%s: I then W give other bits than B",
            hd_model_name(&model));
}

void hd_conform_kernel_halves(struct hd_conform_case *check)
{
    const struct hd_kernel_ops *ops = check->plugin->ops;

    if (ops->backward_input == NULL) {
        hd_conform_skip(check, "has no split backward");
        return;
    }
    hd_conform_each_variant(check, kernel_laws_judge_halves);
}
