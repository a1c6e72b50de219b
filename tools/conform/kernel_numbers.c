#include "conform/kernel_checks.h"

#include "base/clock.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PASS_COUNT = 20, UNLABELLED_EVERY = 7 };

/* The relative error of a slope: the most that is allowed, and where the search ends. */
#define APART_MAX   0.006
#define GOOD_ENOUGH 0.002
#define STEEP       1e-3 /* a slope that is small against it may be rounding */

/* --- gradients ----------------------------------------------------------------------------- */

/* The loss where one tensor is its values plus `step` times `direction`. */
static double kernel_numbers_loss_at(struct hd_chain *chain, uint32_t tensor, const double *values,
                                     const double *direction, double step)
{
    struct hd_tensor about;
    const uint64_t count = hd_chain_tensor(chain, tensor, &about);
    double *moved = malloc(count * sizeof *moved);

    assert(moved != NULL);
    for (uint64_t i = 0; i < count; i++) {
        moved[i] = values[i] + step * direction[i];
    }
    hd_chain_write(chain, tensor, HD_MASTER, moved);
    free(moved);
    return hd_chain_forward(chain, 1) == HD_OK ? chain->loss : NAN;
}

/* The least error of the slope, relative to it, over shrinking steps.  A long step adds curvature
   and other choices of experts, a short one the rounding of the loss. */
static double kernel_numbers_disagreement(struct hd_chain *chain, uint32_t tensor,
                                          const double *values, const double *direction,
                                          double wanted)
{
    double least = INFINITY;

    for (double step = 0.05; step > 2e-4 && least > GOOD_ENOUGH; step /= 2) {
        const double ahead = kernel_numbers_loss_at(chain, tensor, values, direction, step);
        const double behind = kernel_numbers_loss_at(chain, tensor, values, direction, -step);
        const double apart = fabs((ahead - behind) / (2 * step) - wanted) / (fabs(wanted) + STEEP);
        least = apart < least ? apart : least;
    }
    hd_chain_write(chain, tensor, HD_MASTER, values);
    return least;
}

/* An element of a direction.  Kind 0 is the gradient itself and finds a wrong length.  Kind 1
   has the same length in every element, mostly with the sign of the gradient, and also finds a
   term that is missing where the gradient is zero. */
static double kernel_numbers_toward(struct hd_conform_case *check, uint32_t kind, double gradient)
{
    if (kind == 0) {
        return gradient;
    }
    const uint64_t drawn = hd_conform_draw(check) % 8;
    const bool is_up = gradient == 0 ? drawn < 4 : (gradient > 0) == (drawn > 0);
    return is_up ? 1 : -1;
}

static void kernel_numbers_judge_slope(struct hd_kernel_rig *rig, uint32_t tensor, double *worst)
{
    struct hd_chain *chain = &rig->chain;
    struct hd_tensor about;
    const uint64_t count = hd_chain_tensor(chain, tensor, &about);
    double *values = malloc(3 * count * sizeof *values);
    double *gradient = values + count, *direction = gradient + count;
    double length = 0;

    assert(values != NULL);
    hd_chain_read(chain, tensor, HD_MASTER, values);
    hd_chain_read(chain, tensor, HD_GRADIENT, gradient);
    for (uint64_t i = 0; i < count; i++) {
        length += gradient[i] * gradient[i];
    }
    length = sqrt(length);
    for (uint32_t kind = length > 0 ? 0 : 1; kind < 2; kind++) {
        double wanted = 0, span = 0;
        for (uint64_t i = 0; i < count; i++) {
            direction[i] = kernel_numbers_toward(rig->check, kind, gradient[i]);
            span += direction[i] * direction[i];
        }
        for (uint64_t i = 0; i < count; i++) {
            direction[i] /= sqrt(span);
            wanted += direction[i] * gradient[i];
        }
        const double apart = kernel_numbers_disagreement(chain, tensor, values, direction, wanted);
        *worst = apart > *worst ? apart : *worst;
        HD_HOLD(rig->check, apart < APART_MAX,
                "%s: the gradient disagrees with finite differences by at least %.1f %%",
                about.name, 100 * apart);
    }
    free(values);
}

void hd_conform_kernel_gradient(struct hd_conform_case *check)
{
    struct hd_stage_spec model = hd_conform_model(HD_PRECISION_F32);
    struct hd_kernel_rig rig;
    double worst = 0;

    if (!hd_conform_is_served(check, &model) ||
        !hd_kernel_rig_open(&rig, check, &model, &hd_cut_whole)) {
        hd_conform_skip(
            check,
            "does not support f32; the loss of other types is too coarse for finite differences");
        return;
    }
    struct hd_chain *chain = &rig.chain;
    for (uint64_t i = 0; i < (uint64_t)model.batch * model.sequence; i += UNLABELLED_EVERY) {
        chain->targets[i] = -1;
    }
    if (!hd_kernel_rig_has_tensors(&rig) || !hd_kernel_rig_pass(&rig)) {
        return;
    }
    for (uint32_t i = 0; i < chain->tensor_count && !hd_conform_is_decided(check); i++) {
        kernel_numbers_judge_slope(&rig, i, &worst);
    }
    hd_conform_remark(check, "%u tensors, largest error %.2f %%", chain->tensor_count, 100 * worst);
    hd_kernel_rig_close(&rig);
}

/* --- norms --------------------------------------------------------------------------------- */

void hd_conform_kernel_norms(struct hd_kernel_rig *rig)
{
    struct hd_conform_case *check = rig->check;
    struct hd_chain *chain = &rig->chain;
    double *squared = calloc(chain->tensor_count, sizeof *squared);

    assert(squared != NULL);
    if (!hd_kernel_rig_pass(rig)) {
        return;
    }
    HD_HOLD(check, rig->harness.ops->norms(chain->stages[0].stage, squared) == HD_OK,
            "norms fails: %s", check->report.text);
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        struct hd_tensor about;
        const uint64_t count = hd_chain_tensor(chain, tensor, &about);
        double *values = malloc(count * sizeof *values), wanted = 0;
        assert(values != NULL);
        hd_chain_read(chain, tensor, HD_GRADIENT, values);
        for (uint64_t i = 0; i < count; i++) {
            wanted += values[i] * values[i];
        }
        free(values);
        HD_HOLD(check, fabs(squared[tensor] - wanted) <= 1e-9 * wanted,
                "%s: the squared gradients of %s sum to %.12g, but norms gives %.12g", rig->variant,
                about.name, wanted, squared[tensor]);
    }
    free(squared);
}

/* --- the update ---------------------------------------------------------------------------- */

/* One element, in double. */
struct element {
    double master, moment1, moment2;
};

static void kernel_numbers_step_element(struct element *at, double gradient, bool decays,
                                        const struct hd_update *update)
{
    const double scaled = gradient * update->gradient_scale;

    at->moment1 = update->beta1 * at->moment1 + (1 - update->beta1) * scaled;
    at->moment2 = update->beta2 * at->moment2 + (1 - update->beta2) * scaled * scaled;
    const double mean = at->moment1 / (1 - pow(update->beta1, update->step));
    const double variance = at->moment2 / (1 - pow(update->beta2, update->step));
    const double decay = decays ? update->weight_decay * at->master : 0;
    at->master -= update->learning_rate * (mean / (sqrt(variance) + update->epsilon) + decay);
}

static const struct hd_update kernel_numbers_updates[] = {
    {sizeof(struct hd_update), 1, 0.01, 0.9, 0.95, 1e-4, 0.5, 0.25},
    {sizeof(struct hd_update), 2, 0.02, 0.9, 0.95, 1e-4, 0.5, 1.0},
};

/* Whether the moments are those of the element, up to the rounding of float32. */
static bool kernel_numbers_is_moment(double found, double wanted)
{
    return fabs(found - wanted) <= 1e-4 * fabs(wanted) + 1e-30;
}

/* Two steps with one gradient.  The tolerance is that of float32 masters. */
static void kernel_numbers_judge_updated(struct hd_kernel_rig *rig, uint32_t tensor,
                                         const double *before)
{
    struct hd_chain *chain = &rig->chain;
    struct hd_tensor about;
    const uint64_t count = hd_chain_tensor(chain, tensor, &about);
    double *values = malloc(4 * count * sizeof *values);
    const double *moment1 = values + 2 * count, *moment2 = values + 3 * count;

    assert(values != NULL);
    hd_chain_read(chain, tensor, HD_MASTER, values);
    hd_chain_read(chain, tensor, HD_GRADIENT, values + count);
    hd_chain_read(chain, tensor, HD_MOMENT1, values + 2 * count);
    hd_chain_read(chain, tensor, HD_MOMENT2, values + 3 * count);
    for (uint64_t i = 0; i < count; i++) {
        struct element at = {before[i], 0, 0};
        for (uint32_t step = 0; step < 2; step++) {
            kernel_numbers_step_element(&at, values[count + i], about.decays != 0,
                                        &kernel_numbers_updates[step]);
        }
        HD_HOLD(rig->check, fabs(values[i] - at.master) <= 2e-6 * (1 + fabs(at.master)),
                "%s: two updates make element %llu of %s %.9g, but AdamW makes it %.9g",
                rig->variant, (unsigned long long)i, about.name, values[i], at.master);
        HD_HOLD(rig->check,
                kernel_numbers_is_moment(moment1[i], at.moment1) &&
                    kernel_numbers_is_moment(moment2[i], at.moment2),
                "%s: after two updates the moments of element %llu of %s are %.6g and %.6g, but "
                "AdamW makes them %.6g and %.6g",
                rig->variant, (unsigned long long)i, about.name, moment1[i], moment2[i], at.moment1,
                at.moment2);
    }
    free(values);
}

/* An update renews everything that derives from the masters: rewriting them changes nothing. */
static void kernel_numbers_judge_renewal(struct hd_kernel_rig *rig)
{
    struct hd_chain *chain = &rig->chain;

    hd_status status = hd_chain_forward(chain, 1);
    const double loss = chain->loss;
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        struct hd_tensor about;
        double *values = malloc(hd_chain_tensor(chain, tensor, &about) * sizeof *values);
        assert(values != NULL);
        hd_chain_read(chain, tensor, HD_MASTER, values);
        hd_chain_write(chain, tensor, HD_MASTER, values);
        free(values);
    }
    status = status == HD_OK ? hd_chain_forward(chain, 1) : status;
    HD_HOLD(rig->check, status == HD_OK && memcmp(&loss, &chain->loss, sizeof loss) == 0,
            "%s: after an update a forward still uses the old parameters", rig->variant);
}

void hd_conform_kernel_update(struct hd_kernel_rig *rig)
{
    struct hd_conform_case *check = rig->check;
    struct hd_chain *chain = &rig->chain;
    double **before = calloc(chain->tensor_count, sizeof *before);

    assert(before != NULL);
    if (!hd_kernel_rig_pass(rig)) {
        return;
    }
    const uint64_t gradients = hd_chain_hash(chain, HD_GRADIENT);
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        struct hd_tensor about;
        before[tensor] = malloc(hd_chain_tensor(chain, tensor, &about) * sizeof **before);
        assert(before[tensor] != NULL);
        hd_chain_read(chain, tensor, HD_MASTER, before[tensor]);
    }
    for (uint32_t step = 0; step < 2; step++) {
        HD_HOLD(check,
                rig->harness.ops->update(chain->stages[0].stage, &kernel_numbers_updates[step]) ==
                    HD_OK,
                "%s: update %u fails: %s", rig->variant, step + 1, check->report.text);
    }
    HD_HOLD(check, hd_chain_hash(chain, HD_GRADIENT) == gradients,
            "%s: an update writes a gradient", rig->variant);
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        if (!hd_conform_is_decided(check)) {
            kernel_numbers_judge_updated(rig, tensor, before[tensor]);
        }
        free(before[tensor]);
    }
    free(before);
    kernel_numbers_judge_renewal(rig);
}

/* --- speed --------------------------------------------------------------------------------- */

/* A wider model than that of the laws. */
void hd_conform_kernel_speed(struct hd_conform_case *check)
{
    struct hd_stage_spec model = hd_conform_model(HD_PRECISION_BF16);
    struct hd_kernel_rig rig;
    uint64_t forward_ns = 0, backward_ns = 0;

    model.width = 256;
    model.expert_width = 384;
    model.sequence = 128;
    if (!hd_conform_is_served(check, &model)) {
        model.precision = HD_PRECISION_F32;
    }
    if (!hd_conform_is_served(check, &model) ||
        !hd_kernel_rig_open(&rig, check, &model, &hd_cut_whole)) {
        hd_conform_skip(check, "supports neither bf16 nor f32: %s", check->report.text);
        return;
    }
    struct hd_chain *chain = &rig.chain;
    for (uint32_t i = 0; i <= PASS_COUNT; i++) {
        const uint64_t begin_ns = hd_now_ns();
        HD_HOLD(check, hd_chain_forward(chain, 0) == HD_OK, "a forward fails: %s",
                check->report.text);
        const uint64_t middle_ns = hd_now_ns();
        HD_HOLD(check, hd_chain_backward(chain) == HD_OK, "a backward fails: %s",
                check->report.text);
        if (i > 0) { /* libraries initialise themselves in the first */
            forward_ns += middle_ns - begin_ns;
            backward_ns += hd_now_ns() - middle_ns;
        }
    }
    hd_conform_remark(check, "%s, width 256, 256 tokens, 4 blocks: F %.2f ms, B %.2f ms",
                      rig.variant, (double)forward_ns / (1e6 * PASS_COUNT),
                      (double)backward_ns / (1e6 * PASS_COUNT));
    hd_kernel_rig_close(&rig);
}
