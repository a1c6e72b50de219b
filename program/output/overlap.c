#include "output/overlap.h"
#include "plan/flow.h"
#include "report/costs.h"

#include <assert.h>
#include <math.h>

/* What the sums over all handoffs need. */
struct sums {
    const struct hd_session *session;
    const struct hd_timeline *costed; /* NULL: none */
    struct hd_run_overlap *overlap;
    double tick_seconds;
    double planned_hidden, kept; /* over all steps */
};

struct hd_kept_steps hd_kept_steps(const struct hd_session *session)
{
    const struct hd_config *config = session->job->config;
    const struct hd_results *results = session->shared.results;

    if (results == NULL || !results->has_hash || !config->output.trace ||
        results->steps_done < session->steps_before) {
        return (struct hd_kept_steps){0};
    }
    const uint32_t own = results->steps_done - session->steps_before;
    return (struct hd_kept_steps){
        results->steps_done, own < config->output.trace_steps ? own : config->output.trace_steps};
}

const struct hd_record *hd_kept_records(const struct hd_session *session, uint32_t rank,
                                        uint32_t step)
{
    const uint32_t kept = session->job->config->output.trace_steps;

    assert(step > 0 && kept > 0);
    return hd_shared_records(&session->shared, rank) +
           (uint64_t)((step - 1) % kept) * session->shared.actions_max;
}

const struct hd_record *hd_kept_record(const struct hd_session *session, uint32_t action,
                                       uint32_t step)
{
    const struct hd_pipeline *pipeline = session->job->pipeline;
    const uint32_t rank = hd_pipeline_rank_of(pipeline, action);

    return hd_kept_records(session, rank, step) + (action - pipeline->rank_begin[rank]);
}

/* How long [begin, end) and [other_begin, other_end) run together. */
static uint64_t overlap_together_ns(uint64_t begin, uint64_t end, uint64_t other_begin,
                                    uint64_t other_end)
{
    const uint64_t from = begin > other_begin ? begin : other_begin;
    const uint64_t to = end < other_end ? end : other_end;

    return to > from ? to - from : 0;
}

static void overlap_add(struct hd_run_transfers *row, double transfer, double exposed)
{
    row->transfer_seconds += transfer;
    row->exposed_seconds += exposed;
    row->hidden_seconds += transfer - exposed;
}

/* Adds a handoff of the costed plan; returns its hidden seconds. */
static double overlap_add_costed(struct sums *sums, uint32_t producer, uint32_t class)
{
    if (sums->costed == NULL) {
        return 0;
    }
    const struct hd_transfer_ticks ticks =
        hd_timeline_transfer(sums->session->job->pipeline, sums->costed, producer);
    overlap_add(&sums->overlap->costed[class], ticks.transfer * sums->tick_seconds,
                ticks.exposed * sums->tick_seconds);
    return (ticks.transfer - ticks.exposed) * sums->tick_seconds;
}

static void overlap_add_measured(struct sums *sums, uint32_t producer, double planned)
{
    const struct hd_pipeline *pipeline = sums->session->job->pipeline;
    const uint32_t consumer = hd_flow_consumer(pipeline, &pipeline->actions[producer]);
    const uint32_t class = hd_flow_handoff_class(pipeline, pipeline->asap_start, consumer);
    const struct hd_kept_steps steps = hd_kept_steps(sums->session);

    for (uint32_t i = 0; i < steps.count; i++) {
        const uint32_t step = steps.last - i;
        const struct hd_record *reader = hd_kept_record(sums->session, consumer, step);
        const struct hd_passage way =
            hd_record_transfer(hd_kept_record(sums->session, producer, step), reader, step);
        if (way.begin_ns == 0 || way.end_ns == 0) {
            sums->overlap->unknown_count++;
            continue;
        }
        const uint64_t end_ns = way.end_ns > way.begin_ns ? way.end_ns : way.begin_ns;
        const double whole = (double)(end_ns - way.begin_ns) * 1e-9;
        const double exposed =
            (double)overlap_together_ns(way.begin_ns, end_ns, reader->begin_ns, reader->ready_ns) *
            1e-9;
        overlap_add(&sums->overlap->measured[class], whole / steps.count, exposed / steps.count);
        sums->planned_hidden += planned;
        sums->kept += fmin(planned, whole - exposed);
    }
}

static double overlap_efficiency_of(const struct hd_run_transfers rows[HD_HANDOFF_CLASS_COUNT])
{
    double transfer = 0, hidden = 0;

    for (unsigned i = 0; i < HD_HANDOFF_CLASS_COUNT; i++) {
        transfer += rows[i].transfer_seconds;
        hidden += rows[i].hidden_seconds;
    }
    return transfer > 0 ? hidden / transfer : NAN;
}

/* Nothing was measured, or [cost] does not fit the plan. */
static void overlap_blank(struct hd_run_transfers rows[HD_HANDOFF_CLASS_COUNT])
{
    for (unsigned i = 0; i < HD_HANDOFF_CLASS_COUNT; i++) {
        rows[i] = (struct hd_run_transfers){NAN, NAN, NAN};
    }
}

double hd_overlap_measure(const struct hd_session *session, struct hd_run_overlap *overlap)
{
    const struct hd_pipeline *pipeline = session->job->pipeline;
    struct hd_problem ignored = {0};
    struct hd_timeline *costed = NULL;
    struct sums sums = {.session = session, .overlap = overlap};

    *overlap = (struct hd_run_overlap){0};
    sums.tick_seconds = session->job->config->cost.tick_us * 1e-6;
    if (hd_costs_timeline(session->job->config, pipeline, &costed, &ignored) == HD_OK) {
        sums.costed = costed;
    }
    for (uint32_t i = 0; i < pipeline->action_count; i++) {
        const uint32_t consumer = hd_flow_consumer(pipeline, &pipeline->actions[i]);
        if (consumer == HD_NO_ACTION) {
            continue;
        }
        const uint32_t class = hd_flow_handoff_class(pipeline, pipeline->asap_start, consumer);
        overlap->counts[class]++;
        if (class != HD_HANDOFF_LOCAL) {
            overlap_add_measured(&sums, i, overlap_add_costed(&sums, i, class));
        }
    }
    overlap->step_count = hd_kept_steps(session).count;
    for (uint32_t rank = 0; session->shared.ranks != NULL && rank < pipeline->rank_count; rank++) {
        overlap->lost_count += session->shared.ranks[rank].lost_reports;
    }
    if (overlap->step_count == 0) {
        overlap_blank(overlap->measured);
    }
    if (costed == NULL) {
        overlap_blank(overlap->costed);
    }
    overlap->efficiency_measured = overlap_efficiency_of(overlap->measured);
    overlap->efficiency_costed = overlap_efficiency_of(overlap->costed);
    overlap->kept = sums.planned_hidden > 0 ? sums.kept / sums.planned_hidden : NAN;
    const double bubble = costed != NULL ? costed->bubble : NAN;
    hd_timeline_destroy(costed);
    return bubble;
}
