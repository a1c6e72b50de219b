#include "conform/kernel_checks.h"

#include <assert.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3 };

/* The result of a step of two microbatches, whose bits must not change. */
struct outcome {
    double terms[2][HD_CHAIN_TERM_MAX];
    uint64_t gradients;
};

/* No pass leaves data in scratch for another pass. */
static void kernel_laws_soil_scratch(struct hd_kernel_rig *rig)
{
    for (uint32_t stage = 0; stage < rig->chain.stage_count; stage++) {
        const struct hd_chain_stage *at = &rig->chain.stages[stage];
        memset(at->memory.scratch, rig->soil, at->needs.scratch_bytes);
    }
    rig->soil = (unsigned char)(rig->soil + 37);
}

static hd_status kernel_laws_run_step(struct hd_kernel_rig *rig, struct outcome *outcome)
{
    struct hd_chain *chain = &rig->chain;
    hd_status status = HD_OK;

    memset(outcome, 0, sizeof *outcome);
    hd_chain_zero_gradients(chain);
    for (uint32_t microbatch = 0; microbatch < 2 && status == HD_OK; microbatch++) {
        chain->microbatch = rig->first_microbatch + microbatch;
        hd_chain_draw_tokens(chain, rig->check->subject->seed + microbatch);
        status = hd_chain_forward(chain, 0);
        kernel_laws_soil_scratch(rig);
        memcpy(outcome->terms[microbatch], chain->terms, sizeof chain->terms);
        status = status == HD_OK ? hd_chain_backward(chain) : status;
    }
    outcome->gradients = hd_chain_hash(chain, HD_GRADIENT);
    return status;
}

static void kernel_laws_expect_step(struct hd_kernel_rig *rig, const char *what,
                                    const struct outcome *wanted, struct outcome *outcome)
{
    struct hd_conform_case *check = rig->check;
    const hd_status status = kernel_laws_run_step(rig, outcome);

    HD_HOLD(check, status == HD_OK, "%s: %s: a pass returns %s: %s", rig->variant, what,
            hd_status_name(status), check->report.text);
    HD_HOLD(check,
            wanted == NULL || memcmp(wanted->terms, outcome->terms, sizeof wanted->terms) == 0,
            "%s: %s changes a term of the loss", rig->variant, what);
    HD_HOLD(check, wanted == NULL || wanted->gradients == outcome->gradients,
            "%s: %s changes the bits of a gradient", rig->variant, what);
}

static void kernel_laws_expect_whole(struct hd_kernel_rig *rig, const char *what)
{
    HD_HOLD(rig->check, hd_kernel_rig_is_whole(rig),
            "%s: %s writes outside of the regions that it was given", rig->variant, what);
}

static hd_status kernel_laws_update_all(struct hd_kernel_rig *rig)
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

    for (uint32_t stage = 0; stage < rig->chain.stage_count && status == HD_OK; stage++) {
        status = rig->harness.ops->update(rig->chain.stages[stage].stage, &update);
    }
    return status;
}

static hd_status kernel_laws_norms_all(struct hd_kernel_rig *rig)
{
    hd_status status = HD_OK;

    for (uint32_t stage = 0; stage < rig->chain.stage_count && status == HD_OK; stage++) {
        const struct hd_chain_stage *at = &rig->chain.stages[stage];
        double *squared =
            hd_guard_take(at->needs.tensor_count * sizeof *squared, sizeof *squared, 0xff);
        assert(squared != NULL);
        status = rig->harness.ops->norms(at->stage, squared);
        if (!hd_guard_is_whole(squared)) {
            hd_conform_fail(rig->check, "norms writes outside of the array that it was given");
        }
        hd_guard_give(squared);
    }
    return status;
}

/* --- regions ------------------------------------------------------------------------------- */

void hd_conform_kernel_regions(struct hd_kernel_rig *rig)
{
    struct hd_conform_case *check = rig->check;
    struct outcome outcome;

    kernel_laws_expect_whole(rig, "stage_create or tensor_copy");
    for (uint32_t step = 0; step < 2 && !hd_conform_is_decided(check); step++) {
        kernel_laws_expect_step(rig, "a step", NULL, &outcome);
        kernel_laws_expect_whole(rig, "a forward or a backward");
        HD_HOLD(check, kernel_laws_norms_all(rig) == HD_OK, "norms fails: %s", check->report.text);
        kernel_laws_expect_whole(rig, "norms");
        HD_HOLD(check, kernel_laws_update_all(rig) == HD_OK, "update fails: %s",
                check->report.text);
        kernel_laws_expect_whole(rig, "update");
        HD_HOLD(check, hd_chain_forward(&rig->chain, 1) == HD_OK, "an evaluation fails: %s",
                check->report.text);
        kernel_laws_expect_whole(rig, "an evaluation");
    }
}

/* --- K2 ------------------------------------------------------------------------------------ */

void hd_conform_kernel_frugal(struct hd_kernel_rig *rig)
{
    struct hd_conform_case *check = rig->check;
    /* The threads of a device's driver allocate memory for transfers under way. */
    const bool has_driver = rig->harness.device.stream != NULL;
    struct outcome outcome;
    uint64_t before = 0;

    check->allocation_count = 0;
    /* A library may initialise itself in the first step; from then on nothing more is held. */
    for (uint32_t step = 0; step < STEPS; step++) {
        const hd_status status = kernel_laws_run_step(rig, &outcome);
        HD_HOLD(check,
                status == HD_OK && kernel_laws_norms_all(rig) == HD_OK &&
                    kernel_laws_update_all(rig) == HD_OK,
                "a step fails: %s", check->report.text);
        HD_HOLD(check, check->allocation_count == 0,
                "%s: step %u allocates memory of the host %u times", rig->variant, step + 1,
                check->allocation_count);
        const uint64_t held = (uint64_t)mallinfo2().uordblks;
        HD_HOLD(check, step < 2 || held <= before || has_driver,
                "%s: step %u leaves %llu bytes more on the heap", rig->variant, step + 1,
                (unsigned long long)(held - before));
        before = held;
    }
}

/* --- K3 ------------------------------------------------------------------------------------ */

/* Another payload slot, at another place of its page; other contents of it and of scratch; another
   lease; microbatches of another number. */
static void kernel_laws_move_payloads(struct hd_kernel_rig *rig, uint32_t move, int fill)
{
    struct hd_chain *chain = &rig->chain;
    const uint64_t alignment = rig->harness.device.alignment;

    rig->first_microbatch = 5 * (move + 1);

    for (uint32_t stage = 0; stage < chain->stage_count; stage++) {
        struct hd_chain_stage *at = &chain->stages[stage];
        unsigned char *slot =
            hd_guard_take(at->needs.payload_bytes + (move + 1) * alignment, alignment, fill);
        assert(slot != NULL);
        hd_guard_give(at->payload);
        at->payload = slot;
        memset(at->memory.scratch, fill, at->needs.scratch_bytes);
        at->generation += 41;
    }
}

/* Runs the microbatches of a step in the order of GPipe: F0 F1 B0 B1.  Each has its own payload and
   boundaries, at other addresses than those of the first run. */
static hd_status kernel_laws_run_interleaved(struct hd_kernel_rig *rigs, uint32_t count)
{
    hd_status status = HD_OK;

    for (uint32_t i = 0; i < count && status == HD_OK; i++) {
        status = hd_chain_forward(&rigs[i].chain, 0);
    }
    for (uint32_t i = 0; i < count && status == HD_OK; i++) {
        status = hd_chain_backward(&rigs[i].chain);
    }
    return status;
}

/* A microbatch alone gives the same bits as beside another one that is under way. */
static void kernel_laws_judge_neighbour(struct hd_kernel_rig *rig)
{
    struct hd_conform_case *check = rig->check;
    struct hd_kernel_rig both[2];

    hd_chain_zero_gradients(&rig->chain);
    hd_chain_draw_tokens(&rig->chain, 7);
    hd_status status = kernel_laws_run_interleaved(rig, 1);
    const uint64_t alone = hd_chain_hash(&rig->chain, HD_GRADIENT);
    for (uint32_t i = 0; i < 2; i++) {
        both[i] = *rig;
        memset(&both[i].chain, 0, sizeof both[i].chain);
        if (hd_chain_open(&both[i].chain, &rig->harness, &rig->chain.model, hd_cut_in_two.blocks,
                          hd_cut_in_two.stage_count) != HD_OK) {
            hd_conform_fail(check, "cannot create a second model: %s", check->report.text);
            return;
        }
        hd_chain_draw(&both[i].chain, check->subject->seed);
        hd_chain_draw_tokens(&both[i].chain, 7 + i);
    }
    status = status == HD_OK ? kernel_laws_run_interleaved(both, 2) : status;
    HD_HOLD(check, status == HD_OK, "a pass returns %s: %s", hd_status_name(status),
            check->report.text);
    HD_HOLD(check, alone == hd_chain_hash(&both[0].chain, HD_GRADIENT),
            "%s: another microbatch under way changes the bits of a gradient", rig->variant);
    hd_chain_close(&both[0].chain);
    hd_chain_close(&both[1].chain);
}

void hd_conform_kernel_repeatable(struct hd_kernel_rig *rig)
{
    static const int fills[] = {0x00, 0xff, 0x5a};
    struct outcome wanted, outcome;

    kernel_laws_expect_step(rig, "a first step", NULL, &wanted);
    kernel_laws_expect_step(rig, "a second run", &wanted, &outcome);
    for (uint32_t i = 0; i < 3 && !hd_conform_is_decided(rig->check); i++) {
        kernel_laws_move_payloads(rig, i, fills[i]);
        kernel_laws_expect_step(rig, "another slot, other contents or another microbatch number",
                                &wanted, &outcome);
    }
    if (!hd_conform_is_decided(rig->check)) {
        kernel_laws_judge_neighbour(rig);
    }
}

/* --- K4 ------------------------------------------------------------------------------------ */

static void kernel_laws_judge_model_cuts(struct hd_conform_case *check,
                                         const struct hd_stage_spec *model)
{
    static const struct hd_cut cuts[] = {
        {{4}, 1}, {{2, 2}, 2}, {{1, 3}, 2}, {{3, 1}, 2}, {{1, 1, 1, 1}, 4}};
    struct outcome wanted = {0}, outcome;

    for (uint32_t i = 0; i < 5 && !hd_conform_is_decided(check); i++) {
        struct hd_kernel_rig rig;
        char what[64];
        if (!hd_kernel_rig_open(&rig, check, model, &cuts[i]) || !hd_kernel_rig_has_tensors(&rig)) {
            return;
        }
        snprintf(what, sizeof what, "a cut into %u stages, the first of %u blocks,",
                 cuts[i].stage_count, cuts[i].blocks[0]);
        kernel_laws_expect_step(&rig, what, i == 0 ? NULL : &wanted, &outcome);
        wanted = i == 0 ? outcome : wanted;
        hd_kernel_rig_close(&rig);
    }
}

static void kernel_laws_judge_splittable(struct hd_conform_case *check,
                                         const struct hd_stage_spec *model)
{
    struct hd_stage_spec dense = *model;

    kernel_laws_judge_model_cuts(check, model);
    dense.experts = dense.experts_per_token = dense.expert_count = 0;
    if (!hd_conform_is_decided(check) && model->experts > 0 &&
        model->precision != HD_PRECISION_MXFP8) {
        kernel_laws_judge_model_cuts(check, &dense);
    }
}

void hd_conform_kernel_splittable(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_laws_judge_splittable);
}

/* --- K5 ------------------------------------------------------------------------------------ */

void hd_conform_kernel_writers(struct hd_kernel_rig *rig)
{
    struct hd_conform_case *check = rig->check;
    struct hd_chain *chain = &rig->chain;

    if (!hd_kernel_rig_pass(rig)) {
        return;
    }
    const uint64_t before = hd_chain_hash(chain, HD_GRADIENT);
    HD_HOLD(check,
            hd_chain_forward(chain, 0) == HD_OK && hd_chain_forward(chain, 1) == HD_OK &&
                kernel_laws_norms_all(rig) == HD_OK && kernel_laws_update_all(rig) == HD_OK,
            "a pass fails: %s", check->report.text);
    HD_HOLD(check, hd_chain_hash(chain, HD_GRADIENT) == before,
            "%s: a forward, a norm or an update writes a gradient", rig->variant);
}

/* All gradients, in global order; owned by the caller. */
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

/* A second, equal backward doubles every gradient, up to the rounding of adding a product to
   what is there already. */
void hd_conform_kernel_doubling(struct hd_kernel_rig *rig)
{
    struct hd_conform_case *check = rig->check;
    struct hd_chain *chain = &rig->chain;
    uint64_t count, at = 0;

    if (!hd_kernel_rig_pass(rig)) {
        return;
    }
    double *once = kernel_laws_read_gradients(chain, &count);
    HD_HOLD(check, hd_chain_backward(chain) == HD_OK, "a second backward fails: %s",
            check->report.text);
    double *twice = kernel_laws_read_gradients(chain, &count);
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
                "%s: a second backward does not double the gradient of %s", rig->variant,
                about.name);
    }
    free(once);
    free(twice);
}

/* B runs in stages created for B, I and W in stages created for a split backward. */
static void kernel_laws_judge_halves(struct hd_conform_case *check,
                                     const struct hd_stage_spec *given)
{
    struct hd_stage_spec model = *given;
    uint64_t gradients[2];

    for (uint32_t split = 0; split < 2; split++) {
        struct hd_kernel_rig rig;
        model.split_backward = split;
        if (!hd_kernel_rig_open(&rig, check, &model, &hd_cut_in_two)) {
            return;
        }
        struct hd_chain *chain = &rig.chain;
        HD_HOLD(check, hd_chain_forward(chain, 0) == HD_OK, "a forward fails: %s",
                check->report.text);
        const hd_status status = split ? hd_chain_backward_split(chain) : hd_chain_backward(chain);
        HD_HOLD(check, status == HD_OK, "%s: %s returns %s: %s", rig.variant,
                split ? "I or W" : "B", hd_status_name(status), check->report.text);
        kernel_laws_expect_whole(&rig, split ? "I or W" : "B");
        gradients[split] = hd_chain_hash(chain, HD_GRADIENT);
        hd_kernel_rig_close(&rig);
    }
    HD_HOLD(check, gradients[0] == gradients[1], "%s: I then W give other bits than B",
            hd_variant_name(&model));
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
