#include "conform/kernel.h"

#include "base/clock.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PASS_COUNT = 20 };

/* How far a slope may be off its gradient, and from where on no better one is looked for. */
#define APART_MAX   0.03
#define GOOD_ENOUGH 0.01

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

/* The best agreement of slope and gradient over steps that shrink: too long a step sees curvature,
   and another choice of experts; too short a one the rounding of the loss. */
static double kernel_numbers_disagreement(struct hd_chain *chain, uint32_t tensor,
                                          const double *values, const double *direction,
                                          double wanted)
{
    double least = INFINITY;

    for (double step = 0.05; step > 2e-4 && least > GOOD_ENOUGH; step /= 2) {
        const double ahead = kernel_numbers_loss_at(chain, tensor, values, direction, step);
        const double behind = kernel_numbers_loss_at(chain, tensor, values, direction, -step);
        const double apart = fabs((ahead - behind) / (2 * step) - wanted) / fabs(wanted);
        least = apart < least ? apart : least;
    }
    hd_chain_write(chain, tensor, HD_MASTER, values);
    return least;
}

/* An element of a direction: along the gradient itself, which finds a wrong length; or one as long
   for every element, most with the gradient's sign, which also finds what is missing where the
   gradient is zero. */
static double kernel_numbers_toward(struct hd_conform_case *check, uint32_t kind, double gradient)
{
    if (kind == 0) {
        return gradient;
    }
    const uint64_t drawn = hd_conform_draw(check) % 8;
    const int is_up = gradient == 0 ? drawn < 4 : (gradient > 0) == (drawn > 0);
    return is_up ? 1 : -1;
}

static void kernel_numbers_judge_slope(struct hd_bench *bench, uint32_t tensor, double *worst)
{
    struct hd_chain *chain = &bench->chain;
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
    for (uint32_t kind = 0; kind < 2 && length > 1e-3; kind++) {
        double wanted = 0, span = 0;
        for (uint64_t i = 0; i < count; i++) {
            direction[i] = kernel_numbers_toward(bench->check, kind, gradient[i]);
            span += direction[i] * direction[i];
        }
        for (uint64_t i = 0; i < count; i++) {
            direction[i] /= sqrt(span);
            wanted += direction[i] * gradient[i];
        }
        const double apart = kernel_numbers_disagreement(chain, tensor, values, direction, wanted);
        *worst = apart > *worst ? apart : *worst;
        HD_HOLD(bench->check, apart < APART_MAX,
                "%s: along its gradient the loss has another slope, off by %.1f %% at best",
                about.name, 100 * apart);
    }
    free(values);
}

void hd_conform_kernel_gradient(struct hd_conform_case *check)
{
    struct hd_stage_spec model = hd_conform_model(HD_PRECISION_F32);
    struct hd_bench bench;
    double worst = 0;

    if (!hd_bench_open(&bench, check, &model, &hd_cut_whole)) {
        hd_conform_skip(check, "does not serve f32, and a loss in less has no slope");
        return;
    }
    if (!hd_bench_has_tensors(&bench)) {
        return;
    }
    struct hd_chain *chain = &bench.chain;
    HD_HOLD(check, hd_chain_forward(chain, 0) == HD_OK && hd_chain_backward(chain) == HD_OK,
            "a pass fails: %s", check->report.text);
    for (uint32_t i = 0; i < chain->tensor_count && !hd_conform_is_decided(check); i++) {
        kernel_numbers_judge_slope(&bench, i, &worst);
    }
    hd_conform_remark(check, "%u tensors, the worst slope off by %.2f %%", chain->tensor_count,
                      100 * worst);
    hd_bench_close(&bench);
}

/* --- norms --------------------------------------------------------------------------------- */

static void kernel_numbers_judge_norms(struct hd_conform_case *check,
                                       const struct hd_stage_spec *model)
{
    struct hd_bench bench;

    if (!hd_bench_open(&bench, check, model, &hd_cut_whole) || !hd_bench_has_tensors(&bench)) {
        return;
    }
    struct hd_chain *chain = &bench.chain;
    double *squared = calloc(chain->tensor_count, sizeof *squared);
    assert(squared != NULL);
    HD_HOLD(check,
            hd_chain_forward(chain, 0) == HD_OK && hd_chain_backward(chain) == HD_OK &&
                bench.harness.ops->norms(chain->stages[0].stage, squared) == HD_OK,
            "a pass fails: %s", check->report.text);
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
                "%s: the squared gradients of %s sum to %.12g, and it says %.12g", bench.precision,
                about.name, wanted, squared[tensor]);
    }
    free(squared);
    hd_bench_close(&bench);
}

void hd_conform_kernel_norms(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_numbers_judge_norms);
}

/* --- the update ---------------------------------------------------------------------------- */

/* AdamW in double, for one element. */
struct element {
    double master, moment1, moment2;
};

static void kernel_numbers_step_element(struct element *at, double gradient, int decays,
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

/* Two steps with one gradient; masters are float32 at least, so is what they are held against. */
static void kernel_numbers_judge_updated(struct hd_bench *bench, uint32_t tensor,
                                         const double *before)
{
    struct hd_chain *chain = &bench->chain;
    struct hd_tensor about;
    const uint64_t count = hd_chain_tensor(chain, tensor, &about);
    double *values = malloc(2 * count * sizeof *values);

    assert(values != NULL);
    hd_chain_read(chain, tensor, HD_MASTER, values);
    hd_chain_read(chain, tensor, HD_GRADIENT, values + count);
    for (uint64_t i = 0; i < count; i++) {
        struct element at = {before[i], 0, 0};
        for (uint32_t step = 0; step < 2; step++) {
            kernel_numbers_step_element(&at, values[count + i], (int)about.decays,
                                        &kernel_numbers_updates[step]);
        }
        HD_HOLD(bench->check, fabs(values[i] - at.master) <= 2e-6 * (1 + fabs(at.master)),
                "%s: two updates make element %llu of %s %.9g, and AdamW %.9g", bench->precision,
                (unsigned long long)i, about.name, values[i], at.master);
    }
    free(values);
}

/* What derives from the masters is renewed: writing them as they are changes nothing more. */
static void kernel_numbers_judge_renewal(struct hd_bench *bench)
{
    struct hd_chain *chain = &bench->chain;

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
    HD_HOLD(bench->check, status == HD_OK && memcmp(&loss, &chain->loss, sizeof loss) == 0,
            "%s: after an update a forward still computes with what was before", bench->precision);
}

static void kernel_numbers_judge_update(struct hd_conform_case *check,
                                        const struct hd_stage_spec *model)
{
    struct hd_bench bench;

    if (!hd_bench_open(&bench, check, model, &hd_cut_whole) || !hd_bench_has_tensors(&bench)) {
        return;
    }
    struct hd_chain *chain = &bench.chain;
    double **before = calloc(chain->tensor_count, sizeof *before);
    assert(before != NULL);
    HD_HOLD(check, hd_chain_forward(chain, 0) == HD_OK && hd_chain_backward(chain) == HD_OK,
            "a pass fails: %s", check->report.text);
    const uint64_t gradients = hd_chain_hash(chain, HD_GRADIENT);
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        struct hd_tensor about;
        before[tensor] = malloc(hd_chain_tensor(chain, tensor, &about) * sizeof **before);
        assert(before[tensor] != NULL);
        hd_chain_read(chain, tensor, HD_MASTER, before[tensor]);
    }
    for (uint32_t step = 0; step < 2; step++) {
        HD_HOLD(check,
                bench.harness.ops->update(chain->stages[0].stage, &kernel_numbers_updates[step]) ==
                    HD_OK,
                "%s: update %u fails: %s", bench.precision, step + 1, check->report.text);
    }
    HD_HOLD(check, hd_chain_hash(chain, HD_GRADIENT) == gradients,
            "%s: an update writes a gradient", bench.precision);
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        if (!hd_conform_is_decided(check)) {
            kernel_numbers_judge_updated(&bench, tensor, before[tensor]);
        }
        free(before[tensor]);
    }
    free(before);
    kernel_numbers_judge_renewal(&bench);
    hd_bench_close(&bench);
}

void hd_conform_kernel_update(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_numbers_judge_update);
}

/* --- speed --------------------------------------------------------------------------------- */

/* Ten times as wide as what the laws are asked of. */
void hd_conform_kernel_speed(struct hd_conform_case *check)
{
    struct hd_stage_spec model = hd_conform_model(HD_PRECISION_BF16);
    struct hd_bench bench;
    uint64_t forward_ns = 0, backward_ns = 0;

    model.width = 256;
    model.expert_width = 384;
    model.sequence = 128;
    if (!hd_bench_open(&bench, check, &model, &hd_cut_whole)) {
        return;
    }
    struct hd_chain *chain = &bench.chain;
    for (uint32_t i = 0; i <= PASS_COUNT; i++) {
        const uint64_t begin_ns = hd_now_ns();
        HD_HOLD(check, hd_chain_forward(chain, 0) == HD_OK, "a forward fails: %s",
                check->report.text);
        const uint64_t middle_ns = hd_now_ns();
        HD_HOLD(check, hd_chain_backward(chain) == HD_OK, "a backward fails: %s",
                check->report.text);
        if (i > 0) { /* the first sets libraries up */
            forward_ns += middle_ns - begin_ns;
            backward_ns += hd_now_ns() - middle_ns;
        }
    }
    hd_conform_remark(check, "bf16, width 256, 256 tokens, 4 blocks: F %.2f ms, B %.2f ms",
                      (double)forward_ns / (1e6 * PASS_COUNT),
                      (double)backward_ns / (1e6 * PASS_COUNT));
    hd_bench_close(&bench);
}
