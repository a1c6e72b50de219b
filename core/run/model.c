#include "run/model.h"
#include "base/memory.h"
#include "base/try.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS_AUTO = 8 };

static uint32_t model_layers_of(const struct hd_config *config, uint32_t stage_count)
{
    if (config->model.layers > 0) {
        return config->model.layers;
    }
    if (config->model.split.count > 0) {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < config->model.split.count; i++) {
            sum += config->model.split.values[i];
        }
        return sum;
    }
    return stage_count > LAYERS_AUTO ? stage_count : LAYERS_AUTO;
}

/* The first (layers mod stages) stages get one layer more. */
static uint32_t model_even_share(uint32_t layers, uint32_t stage_count, uint32_t stage)
{
    return layers / stage_count + (stage < layers % stage_count);
}

static hd_status model_check_split(const struct hd_config *config, uint32_t stage_count,
                                   uint32_t layers, struct hd_problem *problem)
{
    const struct hd_config_counts *split = &config->model.split;
    uint64_t sum = 0;

    if (split->count == 0) {
        return HD_OK;
    }
    for (uint32_t i = 0; i < split->count; i++) {
        sum += split->values[i];
    }
    if (split->count != stage_count) {
        hd_problem_remedy(problem, "give %u numbers, one a stage", stage_count);
        hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%u entries for %u stages", split->count,
                       stage_count);
    } else if (sum != layers) {
        hd_problem_remedy(problem, "let the entries add up to model.layers, or leave layers out");
        hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                       "the entries add up to %llu layers, model.layers is %u",
                       (unsigned long long)sum, layers);
    } else {
        return HD_OK;
    }
    hd_config_blame(config, "model", "split", problem);
    return HD_INVALID;
}

/* Ticks of one stage; a list of one number holds for all stages. */
static double model_cost_of(const struct hd_config_numbers *numbers, uint32_t stage)
{
    assert(numbers->count > 0);
    return numbers->values[numbers->count == 1 ? 0 : stage];
}

/* The values that are the same for all stages. */
static struct hd_stage_spec model_spec_of(const struct hd_config *config)
{
    return (struct hd_stage_spec){
        .size = sizeof(struct hd_stage_spec),
        .width = config->model.width,
        .heads = config->model.heads,
        .key_value_heads = config->model.key_value_heads,
        .experts = config->model.experts,
        .experts_per_token = config->model.experts_per_token,
        .expert_width = config->model.expert_width,
        .vocabulary = config->model.vocabulary,
        .sequence = config->model.sequence,
        .batch = config->data.microbatch_size,
        .normalize_gates = config->model.normalize_gates,
        .rope_theta = config->model.rope_theta,
        .norm_epsilon = config->model.norm_epsilon,
        .init_std = config->model.initial_deviation,
        .balance_weight = config->model.balance_loss,
        .z_weight = config->model.z_loss,
        .precision = config->kernels.precision,
        .recompute = config->kernels.recompute,
        .expert_count = config->model.experts,
        .scale_rule = config->kernels.scale_rule,
        .half_batches = config->model.half_batches,
    };
}

static void model_fill_spec(const struct hd_config *config, const struct hd_pipeline *pipeline,
                            uint32_t stage, struct hd_stage_spec *spec)
{
    const double tick_us = config->cost.tick_us;

    *spec = model_spec_of(config);
    spec->stage = stage;
    spec->has_embedding = stage == 0;
    spec->has_head = stage == pipeline->stage_count - 1;
    spec->split_backward = pipeline->is_split;
    spec->forward_us = tick_us * model_cost_of(&config->cost.forward, stage);
    spec->backward_us = tick_us * model_cost_of(&config->cost.backward, stage);
    spec->input_gradient_us = tick_us * model_cost_of(&config->cost.input_gradient, stage);
    spec->weight_gradient_us = tick_us * model_cost_of(&config->cost.weight_gradient, stage);
}

void hd_model_block(const struct hd_config *config, double forward_us, struct hd_stage_spec *spec)
{
    *spec = model_spec_of(config);
    spec->layers = 1;
    spec->block_count = 1;
    spec->has_embedding = 1;
    spec->forward_us = forward_us;
}

hd_status hd_cost_list_check(const struct hd_config *config, const char *key,
                             const struct hd_config_numbers *numbers, uint32_t count,
                             struct hd_problem *problem)
{
    if (numbers->count == 1 || numbers->count == count) {
        return HD_OK;
    }
    hd_config_blame(config, "cost", key, problem);
    hd_problem_remedy(problem, "give one number, or %u", count);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%u numbers where %u are needed",
                          numbers->count, count);
}

static hd_status model_check_costs(const struct hd_config *config, uint32_t stage_count,
                                   struct hd_problem *problem)
{
    const struct {
        const char *key;
        const struct hd_config_numbers *numbers;
    } lists[] = {
        {"forward", &config->cost.forward},
        {"backward", &config->cost.backward},
        {"input_gradient", &config->cost.input_gradient},
        {"weight_gradient", &config->cost.weight_gradient},
    };
    hd_status status = HD_OK;

    for (unsigned i = 0; status == HD_OK && i < sizeof lists / sizeof lists[0]; i++) {
        status = hd_cost_list_check(config, lists[i].key, lists[i].numbers, stage_count, problem);
    }
    return status;
}

hd_status hd_model_create(struct hd_config *config, const struct hd_pipeline *pipeline,
                          struct hd_model *model, struct hd_problem *problem)
{
    const uint32_t stage_count = pipeline->stage_count;
    const uint32_t layers = model_layers_of(config, stage_count);
    uint32_t first_block = 0;

    HD_TRY(model_check_split(config, stage_count, layers, problem));
    HD_TRY(model_check_costs(config, stage_count, problem));
    struct hd_stage_spec *specs = hd_memory_take(stage_count * sizeof *specs, 64, "model");
    if (specs == NULL) {
        return hd_problem_no_memory(problem, stage_count * sizeof *specs, "the stages");
    }
    for (uint32_t stage = 0; stage < stage_count; stage++) {
        model_fill_spec(config, pipeline, stage, &specs[stage]);
        specs[stage].layers = layers;
        specs[stage].first_block = first_block;
        specs[stage].block_count = config->model.split.count > 0
                                       ? config->model.split.values[stage]
                                       : model_even_share(layers, stage_count, stage);
        first_block += specs[stage].block_count;
    }
    assert(first_block == layers);
    *model = (struct hd_model){
        .stage_count = stage_count,
        .layers = layers,
        .is_short = layers < stage_count,
        .specs = specs,
    };
    return HD_OK;
}

void hd_model_finish(struct hd_model *model)
{
    hd_memory_give(model->specs);
    model->specs = NULL;
}

hd_status hd_model_check(const struct hd_model *model, const struct hd_config *config,
                         struct hd_problem *problem)
{
    if (!model->is_short) {
        return HD_OK;
    }
    hd_config_blame(config, "model", "layers", problem);
    hd_problem_remedy(problem, "use at least %u layers, or fewer ranks or stages_per_rank",
                      model->stage_count);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%u layers cannot fill %u stages",
                          model->layers, model->stage_count);
}

/* The host's fail(): keeps the plugin's sentence. */
static hd_status model_keep_error(void *context, const struct hd_error *error)
{
    return hd_problem_set(context, error->status, HD_EXIT_USAGE, "%s", error->text);
}

static void model_ignore_log(void *context, uint32_t level, const char *text)
{
    (void)context;
    (void)level;
    (void)text;
}

hd_status hd_model_needs(const struct hd_model *model, const struct hd_plugin *kernel,
                         const struct hd_host *host, struct hd_stage_needs *needs,
                         struct hd_problem *problem)
{
    const struct hd_kernel_ops *ops = kernel->ops;
    struct hd_host listening = *host;

    listening.context = problem;
    listening.fail = model_keep_error;
    listening.log = model_ignore_log;
    for (uint32_t stage = 0; stage < model->stage_count; stage++) {
        memset(&needs[stage], 0, sizeof needs[stage]);
        needs[stage].size = sizeof needs[stage];
        const hd_status status = ops->stage_needs(&listening, &model->specs[stage], &needs[stage]);
        if (status < 0) {
            hd_problem_place(problem, "kernel %s", kernel->name);
            return hd_problem_set(problem, status, HD_EXIT_USAGE, "cannot run stage %u: %s", stage,
                                  hd_status_name(status));
        }
        assert(needs[stage].payload_bytes > 0); /* kernel.h: never 0, the stamp */
        if (needs[stage].acquisitions == 0) {
            needs[stage].acquisitions = 1;
        }
    }
    return HD_OK;
}

const char *hd_model_split_text(const struct hd_model *model, char *text, uint32_t capacity)
{
    uint32_t length = 0;

    text[0] = '\0';
    for (uint32_t stage = 0; stage < model->stage_count && length < capacity; stage++) {
        length += (uint32_t)snprintf(text + length, capacity - length, "%s%u", stage > 0 ? "," : "",
                                     model->specs[stage].block_count);
    }
    return text;
}
