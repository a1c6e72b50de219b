/* The symbolic timelines, asap and drawn, and the sums over any timeline. */
#include "report/timeline.h"

#include "base/memory.h"
#include "base/number.h"
#include "plan/flow.h"
#include "plan/refuse.h"

#include <assert.h>
#include <math.h>

void hd_timeline_destroy(struct hd_timeline *timeline)
{
    if (timeline == NULL) {
        return;
    }
    hd_memory_give(timeline->start);
    hd_memory_give(timeline->end);
    hd_memory_give(timeline->depart);
    hd_memory_give(timeline->arrive);
    hd_memory_give(timeline);
}

struct hd_transfer_ticks hd_timeline_transfer(const struct hd_pipeline *pipeline,
                                              const struct hd_timeline *timeline, uint32_t producer)
{
    const struct hd_action *const action = &pipeline->actions[producer];
    const uint32_t channel = hd_flow_out_channel(pipeline, action);

    assert(timeline->kind == HD_TIMELINE_COSTED);
    if (channel == HD_NO_CHANNEL || !hd_pipeline_is_remote(&pipeline->channels[channel])) {
        return (struct hd_transfer_ticks){0};
    }
    const uint32_t consumer = hd_flow_consumer(pipeline, action);
    const double depart = timeline->depart[producer], arrive = timeline->arrive[producer];
    const double before = consumer > pipeline->rank_begin[pipeline->channels[channel].target]
                              ? timeline->end[consumer - 1]
                              : 0;
    return (struct hd_transfer_ticks){arrive - depart,
                                      hd_max_f64(0, arrive - hd_max_f64(before, depart))};
}

static void timeline_draw(const struct hd_pipeline *pipeline, uint32_t *start)
{
    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        uint32_t tick = 0;
        for (uint64_t i = pipeline->rank_begin[rank]; i < pipeline->rank_begin[rank + 1]; i++) {
            start[i] = tick + pipeline->idle_before[i];
            tick = start[i] + hd_action_ticks(pipeline->actions[i].kind);
        }
    }
}

static hd_status timeline_refuse_drawn(const struct hd_pipeline *pipeline, const uint32_t *start,
                                       uint32_t index, struct hd_problem *problem)
{
    const uint32_t producer = hd_flow_producer(pipeline, &pipeline->actions[index]);
    const uint32_t ready = start[producer] + hd_action_ticks(pipeline->actions[producer].kind);
    const uint32_t rank = hd_pipeline_rank_of(pipeline, index);
    char texts[2][32];

    hd_action_text(&pipeline->actions[index], texts[0]);
    hd_action_text(&pipeline->actions[producer], texts[1]);
    hd_problem_place(problem, "rank %u", rank);
    hd_problem_remedy(problem, "use timeline asap: the order itself is legal");
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_PLAN,
                          "%s is drawn at tick %u, but needs %s of rank %u, which ends at tick %u",
                          texts[0], start[index], texts[1], hd_pipeline_rank_of(pipeline, producer),
                          ready);
}

/* Refuses the earliest action that starts before its producer ends. */
static hd_status timeline_check_drawn(const struct hd_pipeline *pipeline, const uint32_t *start,
                                      struct hd_problem *problem)
{
    uint32_t first = HD_NO_ACTION;

    for (uint32_t i = 0; i < pipeline->action_count; i++) {
        const uint32_t producer = hd_flow_producer(pipeline, &pipeline->actions[i]);
        if (producer == HD_NO_ACTION) {
            continue;
        }
        const uint32_t ready = start[producer] + hd_action_ticks(pipeline->actions[producer].kind);
        if (start[i] < ready && (first == HD_NO_ACTION || start[i] < start[first])) {
            first = i;
        }
    }
    if (first == HD_NO_ACTION) {
        return HD_OK;
    }
    return timeline_refuse_drawn(pipeline, start, first, problem);
}

static void timeline_fill_symbolic(const struct hd_pipeline *pipeline, const uint32_t *start,
                                   struct hd_timeline *timeline)
{
    for (uint64_t i = 0; i < pipeline->action_count; i++) {
        timeline->start[i] = start[i];
        timeline->end[i] = start[i] + hd_action_ticks(pipeline->actions[i].kind);
    }
    hd_flow_count_handoffs(pipeline, start, &timeline->handoffs);
}

static hd_status timeline_fill_drawn(const struct hd_pipeline *pipeline,
                                     struct hd_timeline *timeline, struct hd_problem *problem)
{
    uint32_t *const start = hd_plan_take(pipeline->action_count, sizeof *start, problem);

    if (start == NULL) {
        return HD_NO_MEMORY;
    }
    timeline_draw(pipeline, start);
    const hd_status status = timeline_check_drawn(pipeline, start, problem);
    if (status == HD_OK) {
        timeline_fill_symbolic(pipeline, start, timeline);
    }
    hd_memory_give(start);
    return status;
}

static hd_status timeline_fill_costed(const struct hd_pipeline *pipeline,
                                      const struct hd_timeline_costs *costs,
                                      struct hd_timeline *timeline, struct hd_problem *problem)
{
    struct hd_cost_times times = {.start = timeline->start,
                                  .end = timeline->end,
                                  .depart = timeline->depart,
                                  .arrive = timeline->arrive};
    const hd_status status = hd_cost_fill(pipeline, costs, &times, problem);

    timeline->handoffs.local = pipeline->handoffs.local;
    timeline->transfer_ticks = times.transfer_ticks;
    for (uint32_t i = 0; status == HD_OK && i < pipeline->action_count; i++) {
        timeline->exposed_ticks += hd_timeline_transfer(pipeline, timeline, i).exposed;
    }
    return status;
}

static void timeline_sum(const struct hd_pipeline *pipeline, struct hd_timeline *timeline)
{
    double busiest = -1, idlest = INFINITY;

    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        double busy = 0;
        for (uint64_t i = pipeline->rank_begin[rank]; i < pipeline->rank_begin[rank + 1]; i++) {
            busy += timeline->end[i] - timeline->start[i];
            if (timeline->end[i] > timeline->length) {
                timeline->length = timeline->end[i];
            }
        }
        timeline->busy += busy;
        if (busy > busiest * (1 + 1e-12)) { /* sums of equal costs may differ in the last bit */
            busiest = busy;
            timeline->straggler = rank;
        }
        idlest = busy < idlest ? busy : idlest;
    }
    if (busiest <= idlest * (1 + 1e-12)) {
        timeline->straggler = HD_NO_STRAGGLER;
    }
    timeline->total = pipeline->rank_count * timeline->length;
    timeline->empty = timeline->total - timeline->busy;
    if (timeline->busy > 0) {
        timeline->bubble = timeline->empty / timeline->total;
        timeline->bubble_over_ideal = timeline->empty / timeline->busy;
    }
}

double hd_timeline_asap_bubble(const struct hd_pipeline *pipeline)
{
    const double total = (double)pipeline->rank_count * pipeline->asap_ticks;
    double busy = 0;

    for (uint64_t i = 0; i < pipeline->action_count; i++) {
        busy += hd_action_ticks(pipeline->actions[i].kind);
    }
    return busy > 0 ? (total - busy) / total : 0;
}

hd_status hd_timeline_create(const struct hd_pipeline *pipeline, uint32_t kind,
                             const struct hd_timeline_costs *costs, struct hd_timeline **timeline,
                             struct hd_problem *problem)
{
    struct hd_timeline *const made = hd_plan_take(1, sizeof *made, problem);
    hd_status status = HD_NO_MEMORY;

    assert(kind <= HD_TIMELINE_COSTED);
    assert(kind != HD_TIMELINE_COSTED || costs != NULL);
    if (made == NULL) {
        return HD_NO_MEMORY;
    }
    made->kind = kind == HD_TIMELINE_DRAWN && !pipeline->has_idle ? HD_TIMELINE_ASAP : kind;
    made->start = hd_plan_take(pipeline->action_count, sizeof(double), problem);
    made->end = hd_plan_take(pipeline->action_count, sizeof(double), problem);
    if (made->kind == HD_TIMELINE_COSTED) {
        made->depart = hd_plan_take(pipeline->action_count, sizeof(double), problem);
        made->arrive = hd_plan_take(pipeline->action_count, sizeof(double), problem);
    }
    const bool has_moves = made->depart != NULL && made->arrive != NULL;
    if (made->start != NULL && made->end != NULL &&
        (has_moves || made->kind != HD_TIMELINE_COSTED)) {
        status = HD_OK;
        if (made->kind == HD_TIMELINE_COSTED) {
            status = timeline_fill_costed(pipeline, costs, made, problem);
        } else if (made->kind == HD_TIMELINE_DRAWN) {
            status = timeline_fill_drawn(pipeline, made, problem);
        } else {
            timeline_fill_symbolic(pipeline, pipeline->asap_start, made);
        }
    }
    if (status != HD_OK) {
        hd_timeline_destroy(made);
        return status;
    }
    timeline_sum(pipeline, made);
    *timeline = made;
    return HD_OK;
}
