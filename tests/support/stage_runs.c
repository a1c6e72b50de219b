/* tests/support/stage_runs.c - one step of a small model, and how far two plugins are apart. */
#include "support/stage_runs.h"
#include "conform/mirror.h"
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct hd_stage_spec hd_stage_model(const struct hd_stage_shape *shape, uint32_t precision)
{
    struct hd_stage_spec model = hd_chain_model();
    model.width = shape->width;
    model.heads = shape->heads;
    model.key_value_heads = shape->key_value_heads;
    model.experts = shape->experts;
    model.experts_per_token = shape->experts_per_token;
    model.expert_width = shape->expert_width;
    model.vocabulary = shape->vocabulary;
    model.sequence = shape->sequence;
    model.batch = shape->batch;
    model.normalize_gates = shape->normalize;
    model.precision = precision;
    return model;
}

const char *hd_stage_standin(const char *option)
{
    return hd_harness_cuda(1, option);
}

/* One whole step: forward, backward, and an update of learning rate 1e-3. */
void hd_stage_step(struct hd_chain *chain)
{
    const struct hd_update update = {.size = sizeof update,
                                     .step = 1,
                                     .learning_rate = 1e-3,
                                     .beta1 = 0.9,
                                     .beta2 = 0.95,
                                     .epsilon = 1e-6,
                                     .weight_decay = 0.1,
                                     .gradient_scale = 0.5};
    hd_chain_poison(chain);
    CU_ASSERT_EQUAL_FATAL(hd_chain_forward(chain, 0), HD_OK);
    CU_ASSERT_EQUAL_FATAL(hd_chain_backward(chain), HD_OK);
    for (uint32_t i = 0; i < chain->stage_count; i++) {
        CU_ASSERT_EQUAL(chain->harness->ops->update(chain->stages[i].stage, &update), HD_OK);
    }
}

enum { LIMIT_MS = 300000 }; /* of a pass, on a busy machine and emulated */

static void open_plugin(struct hd_harness *harness, const char *plugin)
{
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(plugin, ":"), plugin);
    CU_ASSERT_EQUAL_FATAL(hd_harness_open(harness, name, strchr(plugin, ':') + 1), 0);
    if (harness->device.memory != HD_MEMORY_HOST) {
        CU_ASSERT_EQUAL_FATAL(hd_mirror_open(harness, LIMIT_MS), HD_OK);
    }
}

void hd_stage_open(struct hd_harness *harness, struct hd_chain *chain,
                   const struct hd_stage_spec *model, const char *plugin)
{
    static const uint32_t both[] = {2};
    open_plugin(harness, plugin);
    CU_ASSERT_EQUAL_FATAL(hd_chain_open(chain, harness, model, both, 1), HD_OK);
    hd_chain_draw(chain, 11);
}

void hd_stage_close(struct hd_harness *harness, struct hd_chain *chain)
{
    hd_chain_close(chain);
    hd_harness_close(harness);
}

static const uint32_t copies[HD_STAGE_COPY_COUNT] = {HD_GRADIENT, HD_MOMENT1, HD_MOMENT2,
                                                     HD_MASTER};

static struct hd_stage_residuals measure(struct hd_chain *made, struct hd_chain *right)
{
    struct hd_stage_residuals residuals = {0};
    CU_ASSERT_EQUAL_FATAL(made->term_count, right->term_count);
    CU_ASSERT_FATAL(made->tensor_count <= HD_STAGE_TENSOR_MAX);
    for (uint32_t term = 0; term < made->term_count; term++) {
        const double error = fabs(made->terms[term] / right->terms[term] - 1);
        residuals.term = error <= residuals.term ? residuals.term : error; /* a NaN stays */
    }
    for (uint32_t tensor = 0; tensor < made->tensor_count; tensor++) {
        for (unsigned copy = 0; copy < HD_STAGE_COPY_COUNT; copy++) {
            residuals.tensor[tensor][copy] = hd_chain_residual(made, right, tensor, copies[copy]);
        }
    }
    return residuals;
}

static void expect(const char *shape, const char *what, double error, double bound)
{
    if (!(error <= bound)) {
        printf("\n    %s: %s: %.2e, above %.2e", shape, what, error, bound);
    }
    CU_ASSERT(error <= bound);
}

struct hd_stage_residuals hd_stage_run_beside(struct hd_chain *right,
                                              const struct hd_stage_spec *model, const char *plugin)
{
    struct hd_harness harness;
    struct hd_chain chain;
    hd_stage_open(&harness, &chain, model, plugin);
    hd_stage_step(&chain);
    const struct hd_stage_residuals residuals = measure(&chain, right);
    hd_stage_close(&harness, &chain);
    return residuals;
}

void hd_stage_judge(const char *name, struct hd_chain *right, const struct hd_stage_residuals *made,
                    const struct hd_stage_residuals *spec, const struct hd_stage_floor *floor)
{
    expect(name, "the terms", made->term, fmax(floor->term, spec != NULL ? 1.5 * spec->term : 0));
    for (uint32_t tensor = 0; tensor < right->tensor_count; tensor++) {
        struct hd_tensor about;
        hd_chain_tensor(right, tensor, &about);
        const double error = spec != NULL ? spec->tensor[tensor][HD_STAGE_GRADIENT] : 0;
        const double gradient = fmax(floor->gradient, 1.5 * error);
        expect(name, about.name, made->tensor[tensor][HD_STAGE_GRADIENT], gradient);
        expect(name, about.name, made->tensor[tensor][HD_STAGE_MOMENT1], gradient);
        expect(name, about.name, made->tensor[tensor][HD_STAGE_MOMENT2], 2 * gradient);
        expect(name, about.name, made->tensor[tensor][HD_STAGE_MASTER], floor->master);
    }
}

void hd_stage_judge_plugin(const struct hd_stage_shape *shape, uint32_t precision,
                           const char *plugin)
{
    struct hd_harness harness;
    struct hd_chain right;
    struct hd_stage_spec model = hd_stage_model(shape, HD_PRECISION_F32);
    hd_stage_open(&harness, &right, &model, "reference:float64=on");
    hd_stage_step(&right);
    model.precision = precision;
    const struct hd_stage_residuals spec = hd_stage_run_beside(&right, &model, "reference:");
    const struct hd_stage_residuals made = hd_stage_run_beside(&right, &model, plugin);
    hd_stage_judge(shape->name, &right, &made, &spec, &(struct hd_stage_floor){5e-3, 2e-2, 1e-2});
    hd_stage_close(&harness, &right);
}

struct hd_stage_bits hd_stage_bits_of(const struct hd_stage_spec *model, const uint32_t *blocks,
                                      uint32_t stages, const char *plugin)
{
    struct hd_harness harness;
    struct hd_chain chain;
    open_plugin(&harness, plugin);
    CU_ASSERT_EQUAL_FATAL(hd_chain_open(&chain, &harness, model, blocks, stages), HD_OK);
    hd_chain_draw(&chain, 11);
    hd_stage_step(&chain);
    const struct hd_stage_bits bits = {chain.loss, hd_chain_hash(&chain, HD_GRADIENT),
                                       hd_chain_hash(&chain, HD_MASTER)};
    CU_ASSERT(isfinite(chain.loss));
    hd_stage_close(&harness, &chain);
    return bits;
}

void hd_stage_expect_equal(struct hd_stage_bits one, struct hd_stage_bits other)
{
    CU_ASSERT_EQUAL(one.loss, other.loss);
    CU_ASSERT_EQUAL(one.gradient, other.gradient);
    CU_ASSERT_EQUAL(one.master, other.master);
}
