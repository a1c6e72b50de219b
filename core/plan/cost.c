/*
 * The costed timeline: one pass over an order in which everything comes after what it waits for,
 * so every time is known when it is asked for.
 */
#include "plan/cost.h"

#include "base/memory.h"
#include "plan/derive.h"
#include "plan/flow.h"
#include "plan/serial.h"

#include <assert.h>

struct cost_run {
    const struct hd_pipeline *pipeline;
    const struct hd_timeline_costs *costs;
    struct hd_timeline *timeline;
    double
        *arrival; /* [action_count]: of what the action sends; blocking: when it begins to move */
    double *rank_end; /* [rank_count]: when the rank is free */
    double *line_end; /* serial: [rank_count]; else [channel_count]: when the line is free */
};

static double later(double a, double b)
{
    return a > b ? a : b;
}

static double cost_of(const struct hd_timeline_costs *costs, const struct hd_action *action)
{
    const double *table = costs->weight_gradient;
    if (action->kind == HD_FORWARD) {
        table = costs->forward;
    } else if (action->kind == HD_BACKWARD) {
        table = costs->backward;
    } else if (action->kind == HD_BACKWARD_INPUT) {
        table = costs->input_gradient;
    }
    assert(table != NULL && table[action->stage] >= 0);
    return table[action->stage];
}

/* When the input of `index` is there, given that its rank is free at `rank_free`. */
static double input_time(struct cost_run *run, uint32_t index, double rank_free)
{
    const struct hd_pipeline *const pipeline = run->pipeline;
    const struct hd_action *const action = &pipeline->actions[index];
    const uint32_t producer = hd_flow_producer(pipeline, action);

    if (producer == HD_NO_ACTION) {
        return rank_free;
    }
    const struct hd_pipeline_channel *const channel =
        &pipeline->channels[hd_flow_in_channel(pipeline, action)];
    if (channel->source == channel->target) {
        run->timeline->handoffs.local++;
        return later(rank_free, run->timeline->end[producer]);
    }
    double arrival = run->arrival[producer];
    if (run->costs->mode == HD_TRANSFER_BLOCKING) {
        arrival = later(rank_free, arrival) + run->costs->transfer[channel->boundary];
    }
    const double before =
        index > pipeline->rank_begin[channel->target] ? run->timeline->end[index - 1] : 0;
    run->timeline->exposed_ticks += later(0, arrival - later(run->timeline->end[producer], before));
    return later(rank_free, arrival);
}

/* A transfer that holds nobody, over a line that moves one at a time: its channel, or both ranks.
 */
static void move(struct cost_run *run, uint32_t sender)
{
    const struct hd_pipeline *const pipeline = run->pipeline;
    const uint32_t index = hd_flow_out_channel(pipeline, &pipeline->actions[sender]);
    const struct hd_pipeline_channel *const channel = &pipeline->channels[index];
    const int is_serial = run->costs->mode == HD_TRANSFER_SERIAL;
    double *const first = &run->line_end[is_serial ? channel->source : index];
    double *const second = &run->line_end[is_serial ? channel->target : index];
    const double begin = later(run->timeline->end[sender], later(*first, *second));

    run->arrival[sender] = begin + run->costs->transfer[channel->boundary];
    *first = run->arrival[sender];
    *second = run->arrival[sender];
}

static void send(struct cost_run *run, uint32_t index, double *rank_end)
{
    const struct hd_pipeline *const pipeline = run->pipeline;
    const uint32_t channel_index = hd_flow_out_channel(pipeline, &pipeline->actions[index]);

    if (channel_index == HD_NO_CHANNEL ||
        pipeline->channels[channel_index].source == pipeline->channels[channel_index].target) {
        return;
    }
    const double ticks = run->costs->transfer[pipeline->channels[channel_index].boundary];
    assert(ticks >= 0);
    run->timeline->transfer_ticks += ticks;
    if (run->costs->mode == HD_TRANSFER_BLOCKING) {
        run->arrival[index] = *rank_end;
        *rank_end += ticks;
    } else if (run->costs->mode == HD_TRANSFER_OVERLAPPED) {
        move(run, index);
    }
}

static void act(struct cost_run *run, uint32_t index)
{
    const struct hd_pipeline *const pipeline = run->pipeline;
    const struct hd_action *const action = &pipeline->actions[index];
    double *const rank_end = &run->rank_end[hd_flow_home(pipeline, action->replica, action->stage)];
    double start = *rank_end;

    if (!run->costs->is_unlimited) {
        const uint32_t release = hd_flow_slot_release(pipeline, index);
        if (release != HD_NO_ACTION) {
            start = later(start, run->timeline->end[release]);
        }
    }
    /* Blocking: the target is held just before its consumer, so after the wait for a slot. */
    start = input_time(run, index, start);
    run->timeline->start[index] = start;
    run->timeline->end[index] = start + cost_of(run->costs, action);
    *rank_end = run->timeline->end[index];
    send(run, index, rank_end);
}

static hd_status run_order(struct cost_run *run, uint32_t *order, uint64_t entry_count,
                           struct hd_problem *problem)
{
    const uint32_t is_bounded = !run->costs->is_unlimited;
    const hd_status status = run->costs->mode == HD_TRANSFER_SERIAL
                                 ? hd_serial_order(run->pipeline, is_bounded, order, problem)
                                 : hd_flow_order(run->pipeline, is_bounded, order, problem);

    for (uint64_t i = 0; status == HD_OK && i < entry_count; i++) {
        if (order[i] & HD_SERIAL_TRANSFER) {
            move(run, order[i] & ~HD_SERIAL_TRANSFER);
        } else {
            act(run, order[i]);
        }
    }
    return status;
}

static uint64_t count_entries(const struct hd_pipeline *pipeline, uint32_t mode)
{
    uint64_t entry_count = pipeline->action_count;
    for (uint32_t i = 0; mode == HD_TRANSFER_SERIAL && i < pipeline->channel_count; i++) {
        if (pipeline->channels[i].source != pipeline->channels[i].target) {
            entry_count += pipeline->channels[i].message_count;
        }
    }
    return entry_count;
}

hd_status hd_cost_fill(const struct hd_pipeline *pipeline, const struct hd_timeline_costs *costs,
                       struct hd_timeline *timeline, struct hd_problem *problem)
{
    const uint64_t entry_count = count_entries(pipeline, costs->mode);
    struct cost_run run = {.pipeline = pipeline, .costs = costs, .timeline = timeline};
    uint32_t *const order = hd_plan_take(entry_count, sizeof *order, problem);
    hd_status status = HD_NO_MEMORY;

    assert(costs->mode <= HD_TRANSFER_SERIAL);
    run.arrival = hd_plan_take(pipeline->action_count, sizeof(double), problem);
    run.rank_end = hd_plan_take(pipeline->rank_count, sizeof(double), problem);
    run.line_end = hd_plan_take((uint64_t)pipeline->channel_count + pipeline->rank_count,
                                sizeof(double), problem);
    if (order != NULL && run.arrival != NULL && run.rank_end != NULL && run.line_end != NULL) {
        status = run_order(&run, order, entry_count, problem);
    }
    hd_memory_give(run.line_end);
    hd_memory_give(run.rank_end);
    hd_memory_give(run.arrival);
    hd_memory_give(order);
    return status;
}
