#include "run/job_plan.h"
#include "base/try.h"
#include "plan/csv.h"

#include <heddle/transport.h>

#include <string.h>

static hd_status job_plan_check_key(const struct hd_config *config, const char *key, uint32_t asked,
                                    uint32_t found, struct hd_problem *problem)
{
    if (strcmp(hd_config_place(config, "pipeline", key), "default") == 0 || asked == found) {
        return HD_OK;
    }
    hd_config_blame(config, "pipeline", key, problem);
    hd_problem_remedy(problem, "leave the key out: the CSV file sets it");
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%u, but %s has %u", asked,
                          config->pipeline.schedule, found);
}

/* P, S and m come from the file; a key that contradicts the file is an error. */
static hd_status job_plan_from_csv(struct hd_config *config, struct hd_pipeline **pipeline,
                                   struct hd_problem *problem)
{
    struct hd_pipeline_source source = {0};

    HD_TRY(hd_csv_read(config->pipeline.schedule, &source, problem));
    const uint32_t ranks = source.rank_count;
    const uint32_t stages_per_rank = source.stage_count / ranks;
    const uint32_t microbatches = source.microbatch_count;
    HD_TRY(hd_pipeline_from_actions(&source, pipeline, problem));
    HD_TRY(job_plan_check_key(config, "ranks", config->pipeline.ranks, ranks, problem));
    HD_TRY(job_plan_check_key(config, "microbatches", config->pipeline.microbatches, microbatches,
                              problem));
    if (config->pipeline.stages_per_rank > 0) {
        HD_TRY(job_plan_check_key(config, "stages_per_rank", config->pipeline.stages_per_rank,
                                  stages_per_rank, problem));
    }
    config->pipeline.ranks = ranks;
    config->pipeline.stages_per_rank = stages_per_rank;
    config->pipeline.microbatches = microbatches;
    return HD_OK;
}

static hd_status job_plan_from_schedule(const struct hd_config *config,
                                        const struct hd_plugins *plugins,
                                        struct hd_pipeline **pipeline, struct hd_problem *problem)
{
    const struct hd_schedule_ops *ops = plugins->schedule->plugin.ops;
    const uint32_t usual = ops->stages_per_rank > 0 ? ops->stages_per_rank : 1;
    const uint32_t stages_per_rank =
        config->pipeline.stages_per_rank > 0 ? config->pipeline.stages_per_rank : usual;
    const uint64_t stage_count = (uint64_t)config->pipeline.ranks * stages_per_rank;

    if (stage_count > HD_STAGE_MAX) {
        hd_problem_key(problem, "pipeline.stages_per_rank");
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_PLAN,
                              "%u ranks with %u stages each are more than %u stages",
                              config->pipeline.ranks, stages_per_rank, HD_STAGE_MAX);
    }
    const struct hd_shape shape = {
        .size = sizeof shape,
        .rank_count = config->pipeline.ranks,
        .stage_count = (uint32_t)stage_count,
        .microbatch_count = config->pipeline.microbatches,
        .flags = plugins->is_forward_only ? HD_FORWARD_ONLY : 0,
        .option_count = plugins->schedule->plugin.option_count,
        .options = plugins->schedule_options,
    };
    return hd_pipeline_from_schedule(plugins->schedule->name, ops, &shape, pipeline, problem);
}

static hd_status job_plan_order_transfers(const struct hd_config *config,
                                          const struct hd_plugins *plugins,
                                          struct hd_pipeline *pipeline, struct hd_problem *problem)
{
    const struct hd_plugin *carrier = hd_plugins_carrier(plugins);

    pipeline->issue_order = config->transport.issue_order;
    pipeline->has_overlap = config->pipeline.overlap;
    pipeline->is_copied = carrier != NULL && (carrier->capabilities & HD_TRANSPORT_IN_PLACE) == 0;
    pipeline->is_serial = carrier != NULL && (carrier->capabilities & HD_TRANSPORT_SERIAL) != 0;
    if (!pipeline->is_serial || config->debug.fault == HD_CONFIG_UNPROVEN_ORDER) {
        return HD_OK;
    }
    return hd_pipeline_verify_serial(pipeline, problem);
}

hd_status hd_job_plan(struct hd_config *config, const struct hd_plugins *plugins,
                      struct hd_pipeline **pipeline, struct hd_problem *problem)
{
    const struct hd_slot_request request = {
        .transfer_count = config->pipeline.transfer_slots.count,
        .transfer = config->pipeline.transfer_slots.values,
        .payload_count = config->pipeline.payload_slots.count,
        .payload = config->pipeline.payload_slots.values,
    };

    *pipeline = NULL;
    hd_status status = hd_config_is_csv(config)
                           ? job_plan_from_csv(config, pipeline, problem)
                           : job_plan_from_schedule(config, plugins, pipeline, problem);
    if (status == HD_OK) {
        status = hd_pipeline_give_slots(*pipeline, &request, problem);
    }
    if (status == HD_OK) {
        status = job_plan_order_transfers(config, plugins, *pipeline, problem);
    }
    if (status != HD_OK) {
        hd_pipeline_destroy(*pipeline);
        *pipeline = NULL;
    }
    return status;
}
