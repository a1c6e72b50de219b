#include "output/planning.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/try.h"
#include "plan/issue.h"
#include "report/costs.h"
#include "run/job_plan.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* STEADY_ROUNDS: of microbatches, to find where copies stop growing.  STEADY_ACTIONS_MAX: the
   search plans about 16 P^2 S actions, and is left out above this.  LAYER_BYTES: of one number. */
enum { STEADY_ROUNDS = 4, STEADY_ACTIONS_MAX = 1 << 19, LAYER_BYTES = 12 };

/* The price of law 7's order: the length of the step with the same costs, but without the order. */
static hd_status planning_price_order(struct hd_planning *planning, struct hd_problem *problem)
{
    struct hd_config config = *planning->job->config; /* borrows its lists */
    struct hd_pipeline pipeline = *planning->job->pipeline;
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
    const struct hd_pipeline *pipeline = planning->job->pipeline;

    if (pipeline->is_serial) {
        planning->facts.issue_order = hd_issue_name(pipeline->issue_order);
    }
    if (request->timeline != HD_TIMELINE_COSTED) {
        return hd_timeline_create(pipeline, request->timeline, NULL, &planning->timeline, problem);
    }
    const hd_status status =
        hd_costs_timeline(planning->job->config, pipeline, &planning->timeline, problem);
    return status == HD_OK ? planning_price_order(planning, problem) : status;
}

static uint64_t planning_bytes_of_gb(double gb)
{
    return (uint64_t)llround(gb * 1e9);
}

/* [memory] replaces the kernel's numbers: the state of a rank, and the bytes of one copy. */
static void planning_apply_memory(struct hd_planning *planning, uint64_t budget_bytes)
{
    const struct hd_config *config = planning->job->config;
    const struct hd_pipeline *pipeline = planning->job->pipeline;
    const bool has_state = !isnan(config->memory.state_gb);
    const bool has_copy = !isnan(config->memory.copy_gb);

    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        struct hd_footprint print = {0};
        if (planning->job->footprints != NULL && !(has_state && has_copy)) {
            print = planning->job->footprints[rank];
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
    const struct hd_config *config = planning->job->config;
    const struct hd_candidate *kernel = planning->job->plugins.kernel;
    const bool has_state = !isnan(config->memory.state_gb);
    const bool has_copy = !isnan(config->memory.copy_gb);
    struct hd_plan_facts *facts = &planning->facts;

    facts->memory_source = planning->memory_source;
    facts->budget_bytes =
        isnan(config->memory.budget_gb) ? 0 : planning_bytes_of_gb(config->memory.budget_gb);
    if (!(has_state && has_copy) && planning->job->footprints == NULL) {
        snprintf(planning->memory_source, sizeof planning->memory_source, "bytes unknown: %s",
                 kernel != NULL ? "the kernel cannot run these stages" : missing_reason);
        return HD_OK;
    }
    if (!has_state && !has_copy) {
        facts->footprints = planning->job->footprints;
        snprintf(planning->memory_source, sizeof planning->memory_source, "from kernel %s",
                 kernel->plugin.name);
        return HD_OK;
    }
    planning->footprints = hd_memory_take(
        planning->job->pipeline->rank_count * sizeof *planning->footprints, 64, "plan");
    if (planning->footprints == NULL) {
        return hd_problem_no_memory(problem, 0, "the plan");
    }
    facts->footprints = planning->footprints;
    planning_apply_memory(planning, facts->budget_bytes);
    return HD_OK;
}

/* Of one message over `boundary`, from the kernel; without one, the size of the residual stream. */
static uint64_t planning_boundary_bytes(const struct hd_planning *planning, uint32_t boundary)
{
    const struct hd_config *config = planning->job->config;
    if (planning->job->needs != NULL) {
        return planning->job->needs[boundary].boundary_bytes;
    }
    const uint64_t element_bytes = config->kernels.precision == HD_CONFIG_F32 ? 4 : 2;
    return (uint64_t)config->data.microbatch_size * config->model.sequence * config->model.width *
           element_bytes;
}

static void planning_count_transfers(struct hd_planning *planning)
{
    const struct hd_pipeline *pipeline = planning->job->pipeline;
    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *channel = &pipeline->channels[i];
        if (hd_pipeline_is_remote(channel)) {
            planning->facts.transfer_count += channel->message_count;
            planning->facts.transfer_bytes +=
                channel->message_count * planning_boundary_bytes(planning, channel->boundary);
        }
    }
}

/* Fills copies [rank_count] of the same plan with other microbatches; false if it is refused. */
static bool planning_copies_with(const struct hd_planning *planning, uint32_t microbatches,
                                 uint32_t *copies)
{
    struct hd_config config = *planning->job->config; /* borrows its lists */
    struct hd_pipeline *pipeline = NULL;
    struct hd_problem problem = {0};

    config.pipeline.microbatches = microbatches;
    config.pipeline.transfer_slots.count = 0;
    config.pipeline.payload_slots.count = 0;
    if (hd_job_plan(&config, &planning->job->plugins, &pipeline, &problem) != HD_OK) {
        return false;
    }
    memcpy(copies, pipeline->peak_copies, pipeline->rank_count * sizeof *copies);
    hd_pipeline_destroy(pipeline);
    return true;
}

/* The smallest m such that m, and each whole round above it, has the steady copies; searched from
   STEADY_ROUNDS down.  `steady` and `copies` are [rank_count]. */
static uint32_t planning_find_steady(const struct hd_planning *planning, uint32_t *steady,
                                     uint32_t *copies)
{
    const uint32_t ranks = planning->job->pipeline->rank_count;
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
        const bool is_steady =
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
    const struct hd_pipeline *pipeline = planning->job->pipeline;
    const uint64_t ranks = pipeline->rank_count;

    planning->facts.steady_from = UINT32_MAX;
    if (planning->job->plugins.schedule == NULL || pipeline->is_forward_only ||
        ranks * ranks * pipeline->stage_count * 16 > STEADY_ACTIONS_MAX) {
        return HD_OK;
    }
    uint32_t *copies = hd_memory_take(2 * ranks * sizeof *copies, 64, "plan");
    if (copies == NULL) {
        return hd_problem_no_memory(problem, 0, "the plan");
    }
    planning->facts.steady_from = planning_find_steady(planning, copies, copies + ranks);
    hd_memory_give(copies);
    return HD_OK;
}

/* Room for the text of one more note. */
static char *planning_add_note(struct hd_planning *planning)
{
    struct hd_plan_facts *facts = &planning->facts;
    char *text = planning->notes[facts->note_count];

    assert(facts->note_count < HD_PLAN_NOTE_MAX);
    facts->notes[facts->note_count++] = text;
    return text;
}

/* Which timeline is shown instead, and what makes `run` refuse a valid plan. */
static void planning_add_notes(struct hd_planning *planning, uint32_t timeline)
{
    const struct hd_candidate *kernel = planning->job->plugins.kernel;
    const struct hd_model *model = &planning->job->model;

    if (timeline == HD_TIMELINE_DRAWN && planning->timeline->kind == HD_TIMELINE_ASAP) {
        snprintf(planning_add_note(planning), HD_PLANNING_TEXT_BYTES,
                 "the plan draws no idle ticks: its drawn timeline is the asap timeline");
    }
    if (kernel == NULL) {
        return;
    }
    if (model->is_short) {
        snprintf(planning_add_note(planning), HD_PLANNING_TEXT_BYTES,
                 "%u layers cannot fill %u stages: run refuses this", model->layers,
                 model->stage_count);
    }
    const struct hd_kernel_ops *ops = kernel->plugin.ops;
    if (planning->job->pipeline->is_split && ops->backward_input == NULL) {
        snprintf(planning_add_note(planning), HD_PLANNING_TEXT_BYTES,
                 "kernel %s has no split backward: run refuses this", kernel->plugin.name);
    }
}

static hd_status planning_write_layers(struct hd_planning *planning, struct hd_problem *problem)
{
    const struct hd_model *model = &planning->job->model;
    const uint32_t bytes = model->stage_count * LAYER_BYTES + 1;

    if (planning->job->plugins.kernel == NULL) {
        return HD_OK;
    }
    planning->layers = hd_memory_take(bytes, 64, "plan");
    if (planning->layers == NULL) {
        return hd_problem_no_memory(problem, 0, "the plan");
    }
    hd_model_split_text(model, planning->layers, bytes);
    planning->facts.layers = planning->layers;
    return HD_OK;
}

static hd_status planning_fill(struct hd_planning *planning,
                               const struct hd_planning_request *request,
                               struct hd_problem *problem)
{
    struct hd_plan_facts *facts = &planning->facts;
    const uint64_t begin_ns = hd_now_ns();

    HD_TRY(planning_make_timeline(planning, request, problem));
    facts->plan_seconds = planning->job->seconds + (double)(hd_now_ns() - begin_ns) * 1e-9;
    HD_TRY(planning_size_ranks(planning, request->missing_reason, problem));
    HD_TRY(planning_write_layers(planning, problem));
    HD_TRY(planning_ask_steady(planning, problem));
    planning_count_transfers(planning);
    planning_add_notes(planning, request->timeline);
    facts->pipeline = planning->job->pipeline;
    facts->needs = planning->job->needs;
    facts->timeline = planning->timeline;
    facts->hash = planning->job->hash;
    return HD_OK;
}

hd_status hd_planning_create(struct hd_planning *planning, const struct hd_job *job,
                             const struct hd_planning_request *request, struct hd_problem *problem)
{
    *planning = (struct hd_planning){.job = job};
    const hd_status status = planning_fill(planning, request, problem);
    if (status != HD_OK) {
        hd_planning_finish(planning);
    }
    return status;
}

void hd_planning_finish(struct hd_planning *planning)
{
    hd_timeline_destroy(planning->timeline);
    hd_memory_give(planning->footprints);
    hd_memory_give(planning->layers);
    *planning = (struct hd_planning){0};
}
