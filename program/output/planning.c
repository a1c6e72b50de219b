#include "output/planning.h"

#include "base/clock.h"
#include "base/memory.h"
#include "plan/issue.h"
#include "run/costs.h"
#include "run/job_plan.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Finding where copies stop growing costs about 16 P^2 S actions; larger plans are not asked. */
enum { STEADY_ROUNDS = 4, STEADY_ACTIONS_MAX = 1 << 19, LAYER_BYTES = 12 };

static hd_status planning_out_of_memory(struct hd_problem *problem)
{
    return hd_problem_set(problem, HD_NO_MEMORY, HD_EXIT_FAILED, "no memory for the plan");
}

/* Without a kernel there are no sizes to agree on: the digest is the plan's alone. */
static void planning_hash_pipeline(struct hd_planning *planning)
{
    uint8_t digest[HD_HASH_BYTES];
    struct hd_hash hash;

    hd_hash_begin(&hash);
    hd_pipeline_hash(planning->job.pipeline, &hash);
    hd_hash_end(&hash, digest);
    hd_hash_text(digest, planning->hash);
}

static hd_status planning_make_job(struct hd_planning *planning, struct hd_config *config,
                                   const struct hd_planning_request *request,
                                   struct hd_problem *problem)
{
    hd_status status;

    if (request->plugins.kernel != NULL) {
        status = hd_job_create(&planning->job, config, &request->plugins, problem);
        if (status == HD_OK) {
            memcpy(planning->hash, planning->job.hash, sizeof planning->hash);
        }
    } else {
        planning->job.config = config;
        planning->job.plugins = request->plugins;
        status = hd_job_plan(config, &request->plugins, &planning->job.pipeline, problem);
        if (status == HD_OK) {
            planning_hash_pipeline(planning);
        }
    }
    /* What a schedule refuses, or a law, is the fault of the plan that the key asks for. */
    if (status != HD_OK && problem->exit_code == HD_EXIT_PLAN && problem->place[0] == '\0') {
        hd_problem_place(problem, "%s", hd_config_place(config, "pipeline", "schedule"));
        if (problem->key[0] == '\0') {
            hd_problem_key(problem, "pipeline.schedule");
        }
    }
    return status;
}

/* What the order of law 7 costs: beside it, the same costs for transfers side by side. */
static hd_status planning_price_order(struct hd_planning *planning, struct hd_problem *problem)
{
    struct hd_config config = *planning->job.config; /* borrows its lists */
    struct hd_pipeline pipeline = *planning->job.pipeline;
    struct hd_timeline *timeline = NULL;

    if (config.cost.mode == HD_TRANSFER_BLOCKING ||
        !(pipeline.is_serial || config.cost.mode == HD_TRANSFER_SERIAL)) {
        return HD_OK;
    }
    config.cost.mode = HD_TRANSFER_OVERLAPPED;
    pipeline.is_serial = 0;
    const hd_status status = hd_costs_timeline(&config, &pipeline, &timeline, problem);
    if (status == HD_OK) {
        planning->facts.issue_order = hd_issue_name(pipeline.issue_order);
        planning->facts.side_by_side_ticks = timeline->length;
    }
    hd_timeline_destroy(timeline);
    return status;
}

static hd_status planning_make_timeline(struct hd_planning *planning,
                                        const struct hd_planning_request *request,
                                        struct hd_problem *problem)
{
    const struct hd_pipeline *pipeline = planning->job.pipeline;

    if (pipeline->is_serial) {
        planning->facts.issue_order = hd_issue_name(pipeline->issue_order);
    }
    if (request->timeline != HD_TIMELINE_COSTED) {
        return hd_timeline_create(pipeline, request->timeline, NULL, &planning->timeline, problem);
    }
    const hd_status status =
        hd_costs_timeline(planning->job.config, pipeline, &planning->timeline, problem);
    return status == HD_OK ? planning_price_order(planning, problem) : status;
}

static uint64_t planning_bytes_of_gb(double gb)
{
    return (uint64_t)llround(gb * 1e9);
}

/* [memory] replaces what the kernel says: state by rank, payload by peak copies of the rank. */
static void planning_apply_memory(struct hd_planning *planning, uint64_t budget_bytes)
{
    const struct hd_config *config = planning->job.config;
    const struct hd_pipeline *pipeline = planning->job.pipeline;
    const int has_state = !isnan(config->memory.state_gb);
    const int has_copy = !isnan(config->memory.copy_gb);

    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        struct hd_footprint print = {0};
        if (planning->job.footprints != NULL && !(has_state && has_copy)) {
            print = planning->job.footprints[rank];
        }
        if (has_state) {
            print.state_bytes = planning_bytes_of_gb(config->memory.state_gb);
        }
        if (has_copy) {
            print.payload_bytes =
                pipeline->peak_copies[rank] * planning_bytes_of_gb(config->memory.copy_gb);
        }
        print.total_bytes =
            print.state_bytes + print.payload_bytes + print.transfer_bytes + print.scratch_bytes;
        print.fits = budget_bytes == 0 || print.total_bytes <= budget_bytes;
        planning->footprints[rank] = print;
    }
    snprintf(planning->memory_source, sizeof planning->memory_source, "from %s%s%s%s",
             has_state ? "memory.state_gb" : "", has_state && has_copy ? " and " : "",
             has_copy ? "memory.copy_gb (by copies)" : "",
             has_state && has_copy ? "" : ", the rest from the kernel");
}

static hd_status planning_size_ranks(struct hd_planning *planning, const char *missing_reason,
                                     struct hd_problem *problem)
{
    const struct hd_config *config = planning->job.config;
    const struct hd_candidate *kernel = planning->job.plugins.kernel;
    const int has_state = !isnan(config->memory.state_gb);
    const int has_copy = !isnan(config->memory.copy_gb);
    struct hd_plan_facts *facts = &planning->facts;

    facts->memory_source = planning->memory_source;
    facts->budget_bytes =
        isnan(config->memory.budget_gb) ? 0 : planning_bytes_of_gb(config->memory.budget_gb);
    if (!(has_state && has_copy) && planning->job.footprints == NULL) {
        snprintf(planning->memory_source, sizeof planning->memory_source, "bytes unknown: %s",
                 kernel != NULL ? "the kernel cannot run these stages" : missing_reason);
        return HD_OK;
    }
    if (!has_state && !has_copy) {
        facts->footprints = planning->job.footprints;
        snprintf(planning->memory_source, sizeof planning->memory_source, "from kernel %s",
                 kernel->plugin.name);
        return HD_OK;
    }
    planning->footprints = hd_memory_take(
        planning->job.pipeline->rank_count * sizeof *planning->footprints, 64, "plan");
    if (planning->footprints == NULL) {
        return planning_out_of_memory(problem);
    }
    facts->footprints = planning->footprints;
    planning_apply_memory(planning, facts->budget_bytes);
    return HD_OK;
}

/* Of one message over `boundary`: the kernel's word, or the residual stream's size. */
static uint64_t planning_boundary_bytes(const struct hd_planning *planning, uint32_t boundary)
{
    const struct hd_config *config = planning->job.config;
    if (planning->job.needs != NULL) {
        return planning->job.needs[boundary].boundary_bytes;
    }
    const uint64_t element_bytes = config->kernels.precision == HD_CONFIG_F32 ? 4 : 2;
    return (uint64_t)config->data.microbatch_size * config->model.sequence * config->model.width *
           element_bytes;
}

static void planning_count_transfers(struct hd_planning *planning)
{
    const struct hd_pipeline *pipeline = planning->job.pipeline;
    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *channel = &pipeline->channels[i];
        if (hd_pipeline_is_remote(channel)) {
            planning->facts.transfer_count += channel->message_count;
            planning->facts.transfer_bytes +=
                channel->message_count * planning_boundary_bytes(planning, channel->boundary);
        }
    }
}

/* Fills copies [rank_count] of the same plan with other microbatches; 0 where it is refused. */
static int planning_copies_with(const struct hd_planning *planning, uint32_t microbatches,
                                uint32_t *copies)
{
    struct hd_config config = *planning->job.config; /* borrows its lists */
    struct hd_pipeline *pipeline = NULL;
    struct hd_problem problem = {0};

    config.pipeline.microbatches = microbatches;
    config.pipeline.transfer_slots.count = 0;
    config.pipeline.payload_slots.count = 0;
    if (hd_job_plan(&config, &planning->job.plugins, &pipeline, &problem) != HD_OK) {
        return 0;
    }
    memcpy(copies, pipeline->peak_copies, pipeline->rank_count * sizeof *copies);
    hd_pipeline_destroy(pipeline);
    return 1;
}

/* Walks down from four rounds: the least m from which whole rounds, and m itself, have the steady
   copies. `steady` and `copies` are [rank_count]. */
static uint32_t planning_find_steady(const struct hd_planning *planning, uint32_t *steady,
                                     uint32_t *copies)
{
    const uint32_t ranks = planning->job.pipeline->rank_count;
    const uint64_t bytes = ranks * sizeof *copies;
    uint32_t least = 0;

    if (!planning_copies_with(planning, STEADY_ROUNDS * ranks, steady) ||
        !planning_copies_with(planning, 2 * STEADY_ROUNDS * ranks, copies)) {
        return UINT32_MAX;
    }
    if (memcmp(steady, copies, bytes) != 0) {
        return 0;
    }
    for (uint32_t count = STEADY_ROUNDS * ranks; count > 0; count--) {
        const int is_steady =
            planning_copies_with(planning, count, copies) && memcmp(steady, copies, bytes) == 0;
        if (!is_steady && count % ranks == 0) {
            break;
        }
        least = is_steady ? count : least;
    }
    return least;
}

static hd_status planning_ask_steady(struct hd_planning *planning, struct hd_problem *problem)
{
    const struct hd_pipeline *pipeline = planning->job.pipeline;
    const uint64_t ranks = pipeline->rank_count;

    planning->facts.steady_from = UINT32_MAX;
    if (planning->job.plugins.schedule == NULL || pipeline->is_forward_only ||
        ranks * ranks * pipeline->stage_count * 16 > STEADY_ACTIONS_MAX) {
        return HD_OK;
    }
    uint32_t *copies = hd_memory_take(2 * ranks * sizeof *copies, 64, "plan");
    if (copies == NULL) {
        return planning_out_of_memory(problem);
    }
    planning->facts.steady_from = planning_find_steady(planning, copies, copies + ranks);
    hd_memory_give(copies);
    return HD_OK;
}

static void planning_add_note(struct hd_planning *planning, const char *text)
{
    struct hd_plan_facts *facts = &planning->facts;
    assert(facts->note_count < HD_PLAN_NOTE_MAX);
    snprintf(planning->notes[facts->note_count], HD_PLANNING_TEXT_BYTES, "%s", text);
    facts->notes[facts->note_count] = planning->notes[facts->note_count];
    facts->note_count++;
}

/* What `run` would refuse of a plan that is a good plan. */
static void planning_add_notes(struct hd_planning *planning)
{
    const struct hd_candidate *kernel = planning->job.plugins.kernel;
    const struct hd_model *model = &planning->job.model;
    char text[HD_PLANNING_TEXT_BYTES];

    if (kernel == NULL) {
        return;
    }
    if (model->is_short) {
        snprintf(text, sizeof text, "%u layers cannot fill %u stages: run refuses this",
                 model->layers, model->stage_count);
        planning_add_note(planning, text);
    }
    const struct hd_kernel_ops *ops = kernel->plugin.ops;
    if (planning->job.pipeline->is_split && ops->backward_input == NULL) {
        snprintf(text, sizeof text, "kernel %s has no split backward: run refuses this",
                 kernel->plugin.name);
        planning_add_note(planning, text);
    }
}

static hd_status planning_write_layers(struct hd_planning *planning, struct hd_problem *problem)
{
    const struct hd_model *model = &planning->job.model;
    const uint32_t bytes = model->stage_count * LAYER_BYTES + 1;

    if (planning->job.plugins.kernel == NULL) {
        return HD_OK;
    }
    planning->layers = hd_memory_take(bytes, 64, "plan");
    if (planning->layers == NULL) {
        return planning_out_of_memory(problem);
    }
    hd_model_split_text(model, planning->layers, bytes);
    planning->facts.layers = planning->layers;
    return HD_OK;
}

hd_status hd_planning_create(struct hd_planning *planning, struct hd_config *config,
                             const struct hd_planning_request *request, struct hd_problem *problem)
{
    const uint64_t begin_ns = hd_now_ns();

    memset(planning, 0, sizeof *planning);
    hd_status status = planning_make_job(planning, config, request, problem);
    if (status == HD_OK) {
        status = planning_make_timeline(planning, request, problem);
    }
    const uint64_t end_ns = hd_now_ns();
    if (status == HD_OK) {
        status = planning_size_ranks(planning, request->missing_reason, problem);
    }
    if (status == HD_OK) {
        status = planning_write_layers(planning, problem);
    }
    if (status == HD_OK) {
        status = planning_ask_steady(planning, problem);
    }
    if (status != HD_OK) {
        hd_planning_finish(planning);
        return status;
    }
    planning_count_transfers(planning);
    planning_add_notes(planning);
    planning->facts.pipeline = planning->job.pipeline;
    planning->facts.needs = planning->job.needs;
    planning->facts.timeline = planning->timeline;
    planning->facts.hash = planning->hash;
    planning->facts.plan_seconds = (double)(end_ns - begin_ns) / (double)HD_S_NS;
    return HD_OK;
}

void hd_planning_finish(struct hd_planning *planning)
{
    hd_timeline_destroy(planning->timeline);
    hd_memory_give(planning->footprints);
    hd_memory_give(planning->layers);
    hd_job_finish(&planning->job);
    memset(planning, 0, sizeof *planning);
}
