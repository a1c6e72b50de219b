/* output/trace.c - makes trace.json from the records that the ranks have left. */
#include "plan/flow.h"
#include "report/trace_json.h"
#include "output/overlap.h"
#include "output/output.h"

#include <stdlib.h>

/* The most of one action: three waits and passes, two launches, a transfer, resident waits at both
   ends. */
enum { RECORDS_OF_ACTION = 8 };

/* The trace while it is filled. */
struct tracing {
    const struct hd_session *session;
    struct hd_trace trace;
    struct hd_trace_record *records;
};

/* One action of one step. */
struct place {
    uint32_t rank, step;
    uint64_t index;               /* of the action, in the plan */
    const struct hd_record *row;  /* its own */
    const struct hd_record *next; /* of the rank's next action; NULL: this is the last */
};

static void trace_push(struct tracing *tracing, const struct hd_trace_record *record, uint32_t kind,
                       uint64_t begin_ns, uint64_t end_ns)
{
    struct hd_trace_record *out = &tracing->records[tracing->trace.record_count++];

    *out = *record;
    out->kind = kind;
    out->begin_ns = begin_ns;
    out->end_ns = end_ns;
}

static void trace_push_own(struct tracing *tracing, const struct place *place,
                           const struct hd_trace_record *record)
{
    const struct hd_record *row = place->row;
    const uint64_t free_ns = row->sent_ns > row->end_ns ? row->sent_ns : row->end_ns;
    const struct {
        uint32_t kind;
        uint64_t begin_ns, end_ns;
    } spans[] = {
        {HD_TRACE_EXPOSED_WAIT, row->begin_ns, row->ready_ns},
        {HD_TRACE_CREDIT_WAIT, row->ready_ns, row->claim_ns},
        {HD_TRACE_LAUNCH, row->claim_ns, row->run_ns},
        {HD_TRACE_COMPUTE, row->run_ns, row->end_ns},
        {HD_TRACE_LAUNCH, row->end_ns, place->next != NULL ? place->next->begin_ns : free_ns},
    };

    for (unsigned i = 0; i < sizeof spans / sizeof spans[0]; i++) {
        if (spans[i].kind == HD_TRACE_COMPUTE || spans[i].end_ns > spans[i].begin_ns) {
            trace_push(tracing, record, spans[i].kind, spans[i].begin_ns, spans[i].end_ns);
        }
    }
}

/* If an end of the transfer is unknown, and within a rank, the span is the time in which the source
   handed it over. */
static void trace_push_transfer(struct tracing *tracing, const struct place *place,
                                struct hd_trace_record record, struct hd_passage way)
{
    const struct hd_pipeline *pipeline = tracing->session->job->pipeline;
    const struct hd_pipeline_channel *channel = &pipeline->channels[record.channel];

    record.bytes = tracing->session->job->needs[channel->boundary].boundary_bytes;
    if (hd_pipeline_is_remote(channel)) {
        record.unknown = (way.begin_ns == 0 ? HD_TRACE_BEGIN_UNKNOWN : 0u) |
                         (way.end_ns == 0 ? HD_TRACE_END_UNKNOWN : 0u);
    }
    if (!hd_pipeline_is_remote(channel) || record.unknown != 0) {
        way.begin_ns = place->row->end_ns;
        way.end_ns = place->row->sent_ns;
    }
    trace_push(tracing, &record, HD_TRACE_TRANSFER, way.begin_ns, way.end_ns);
}

/* The transfer, and the time before it moved, at each end that held its device. */
static void trace_push_handoff(struct tracing *tracing, const struct place *place,
                               struct hd_trace_record record)
{
    const struct hd_pipeline *pipeline = tracing->session->job->pipeline;
    const uint32_t consumer = hd_flow_consumer(pipeline, &pipeline->actions[place->index]);
    const struct hd_record *reader = hd_kept_record(tracing->session, consumer, place->step);
    const struct hd_passage way = hd_record_transfer(place->row, reader, place->step);
    const struct hd_passage *ends[] = {&place->row->out, &reader->in};
    const uint32_t ranks[] = {place->rank, hd_pipeline_rank_of(pipeline, consumer)};
    const uint64_t until_ns = way.begin_ns > 0 ? way.begin_ns : way.end_ns;

    trace_push_transfer(tracing, place, record, way);
    for (unsigned i = 0; i < 2; i++) {
        if (ends[i]->step == place->step && ends[i]->resident_ns > 0 &&
            ends[i]->resident_ns < until_ns) {
            record.rank = ranks[i];
            trace_push(tracing, &record, HD_TRACE_RESIDENT, until_ns - ends[i]->resident_ns,
                       until_ns);
        }
    }
}

static void trace_push_action(struct tracing *tracing, const struct place *place)
{
    const struct hd_pipeline *pipeline = tracing->session->job->pipeline;
    const struct hd_action *action = &pipeline->actions[place->index];
    struct hd_trace_record record = {
        .rank = place->rank,
        .step = place->step,
        .stage = action->stage,
        .microbatch = action->microbatch,
        .action = action->kind,
        .channel = HD_TRACE_NO_CHANNEL,
    };

    trace_push_own(tracing, place, &record);
    record.channel = hd_flow_out_channel(pipeline, action);
    if (record.channel != HD_NO_CHANNEL) {
        trace_push_handoff(tracing, place, record);
    }
}

static void trace_push_rank(struct tracing *tracing, uint32_t rank, struct hd_kept_steps steps)
{
    const struct hd_pipeline *pipeline = tracing->session->job->pipeline;
    const uint64_t begin = pipeline->rank_begin[rank];
    const uint64_t count = pipeline->rank_begin[rank + 1] - begin;

    for (uint32_t i = steps.count; i > 0; i--) {
        const uint32_t step = steps.last + 1 - i;
        const struct hd_record *rows = hd_kept_records(tracing->session, rank, step);
        for (uint64_t k = 0; k < count; k++) {
            const struct place place = {rank, step, begin + k, &rows[k],
                                        k + 1 < count ? &rows[k + 1] : NULL};
            trace_push_action(tracing, &place);
        }
    }
}

hd_status hd_output_write_trace(const struct hd_session *session, struct hd_problem *problem)
{
    const struct hd_pipeline *pipeline = session->job->pipeline;
    const uint64_t record_max =
        RECORDS_OF_ACTION * session->shared.record_count * pipeline->rank_count;
    struct tracing tracing = {
        .session = session,
        .records = calloc(record_max + 1, sizeof *tracing.records),
    };
    hd_status status = HD_NO_MEMORY;

    if (tracing.records != NULL) {
        for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
            trace_push_rank(&tracing, rank, hd_kept_steps(session));
        }
        tracing.trace.rank_count = pipeline->rank_count;
        tracing.trace.channel_count = pipeline->channel_count;
        tracing.trace.channels = pipeline->channels;
        tracing.trace.records = tracing.records;
        status = hd_trace_json_write(&session->rundir, &tracing.trace, problem);
    } else {
        hd_problem_no_memory(problem, 0, "trace.json");
    }
    free(tracing.records);
    return status;
}
