/* The costed timeline: one pass over an order in which everything comes after what it waits for. */
#include "report/cost.h"

#include "base/memory.h"
#include "base/number.h"
#include "plan/flow.h"
#include "plan/refuse.h"
#include "plan/serial.h"

#include <assert.h>

/* The transfers of one rank, of which a serial transport moves one group at a time. */
struct cost_queue {
    uint32_t head;  /* where the current group begins, in the lists of issue */
    uint32_t moved; /* transfers of the group that have moved */
    double begin;   /* when all of the group is posted and the group before it has arrived */
    double end;     /* when the last transfer so far has arrived */
};

struct cost_run {
    const struct hd_pipeline *pipeline;
    const struct hd_timeline_costs *costs;
    struct hd_cost_times *times;
    struct hd_issue issue;     /* serial only */
    struct cost_queue *queues; /* [rank_count]; serial only */
    double *rank_end;          /* [rank_count]: when the rank is free */
    double *channel_end;       /* [channel_count]: when its last transfer has arrived */
};

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

/* When `index` can start: its rank is free at `rank_free`, and its input has arrived. */
static double cost_input_time(struct cost_run *run, uint32_t index, double rank_free)
{
    const struct hd_pipeline *const pipeline = run->pipeline;
    const struct hd_action *const action = &pipeline->actions[index];
    const uint32_t producer = hd_flow_producer(pipeline, action);

    if (producer == HD_NO_ACTION) {
        return rank_free;
    }
    const struct hd_pipeline_channel *const channel =
        &pipeline->channels[hd_flow_in_channel(pipeline, action)];
    if (!hd_pipeline_is_remote(channel)) {
        return hd_max_f64(rank_free, run->times->end[producer]);
    }
    if (run->costs->mode == HD_TRANSFER_BLOCKING) {
        run->times->depart[producer] = hd_max_f64(rank_free, run->times->end[producer]);
        run->times->arrive[producer] =
            run->times->depart[producer] + run->costs->transfer[channel->boundary];
    }
    return hd_max_f64(rank_free, run->times->arrive[producer]);
}

/* Overlapped: the transfer waits for the one before it on its channel. */
static void cost_move_overlapped(struct cost_run *run, uint32_t sender)
{
    const struct hd_pipeline *const pipeline = run->pipeline;
    const uint32_t channel = hd_flow_out_channel(pipeline, &pipeline->actions[sender]);
    const double begin = hd_max_f64(run->times->end[sender], run->channel_end[channel]);

    run->times->depart[sender] = begin;
    run->times->arrive[sender] = begin + run->costs->transfer[pipeline->channels[channel].boundary];
    run->channel_end[channel] = run->times->arrive[sender];
}

/* Before a group moves, all that the rank sends is written, and all that it receives has a slot. */
static void cost_begin_group(struct cost_run *run, uint32_t rank)
{
    struct cost_queue *const queue = &run->queues[rank];

    queue->begin = queue->end;
    for (uint32_t i = queue->head; i < run->issue.group_end[queue->head]; i++) {
        uint32_t wanted = run->issue.sender[i];
        if (hd_issue_source(run->pipeline, wanted) != rank) {
            wanted = run->costs->is_unlimited ? HD_NO_ACTION
                                              : hd_flow_slot_release(run->pipeline, wanted);
        }
        if (wanted != HD_NO_ACTION) {
            queue->begin = hd_max_f64(queue->begin, run->times->end[wanted]);
        }
    }
}

/* Serial: the transfer moves once both its ranks have come to its group. */
static void cost_move_serial(struct cost_run *run, uint32_t sender)
{
    const struct hd_pipeline *const pipeline = run->pipeline;
    const uint32_t channel = hd_flow_out_channel(pipeline, &pipeline->actions[sender]);
    const uint32_t ends[2] = {pipeline->channels[channel].source,
                              pipeline->channels[channel].target};
    double begin = 0;

    for (uint32_t i = 0; i < 2; i++) {
        if (run->queues[ends[i]].moved == 0) {
            cost_begin_group(run, ends[i]);
        }
        begin = hd_max_f64(begin, run->queues[ends[i]].begin);
    }
    run->times->depart[sender] = begin;
    run->times->arrive[sender] = begin + run->costs->transfer[pipeline->channels[channel].boundary];
    for (uint32_t i = 0; i < 2; i++) {
        struct cost_queue *const queue = &run->queues[ends[i]];
        queue->end = hd_max_f64(queue->end, run->times->arrive[sender]);
        queue->moved++;
        if (queue->head + queue->moved == run->issue.group_end[queue->head]) {
            queue->head += queue->moved;
            queue->moved = 0;
        }
    }
}

static void cost_send(struct cost_run *run, uint32_t index, double *rank_end)
{
    const struct hd_pipeline *const pipeline = run->pipeline;
    const uint32_t channel_index = hd_flow_out_channel(pipeline, &pipeline->actions[index]);

    if (channel_index == HD_NO_CHANNEL ||
        !hd_pipeline_is_remote(&pipeline->channels[channel_index])) {
        return;
    }
    const double ticks = run->costs->transfer[pipeline->channels[channel_index].boundary];
    assert(ticks >= 0);
    run->times->transfer_ticks += ticks;
    if (run->costs->mode == HD_TRANSFER_BLOCKING) {
        *rank_end += ticks;
    } else if (run->costs->mode == HD_TRANSFER_OVERLAPPED) {
        cost_move_overlapped(run, index);
    }
}

static void cost_act(struct cost_run *run, uint32_t index)
{
    const struct hd_pipeline *const pipeline = run->pipeline;
    const struct hd_action *const action = &pipeline->actions[index];
    double *const rank_end = &run->rank_end[hd_flow_home(pipeline, action->replica, action->stage)];
    double start = *rank_end;

    if (!run->costs->is_unlimited) {
        const uint32_t release = hd_flow_slot_release(pipeline, index);
        if (release != HD_NO_ACTION) {
            start = hd_max_f64(start, run->times->end[release]);
        }
    }
    start = cost_input_time(run, index, start);
    run->times->start[index] = start;
    run->times->end[index] = start + cost_of(run->costs, action);
    *rank_end = run->times->end[index];
    cost_send(run, index, rank_end);
}

static hd_status cost_find_order(struct cost_run *run, uint32_t *order, struct hd_problem *problem)
{
    const bool is_bounded = !run->costs->is_unlimited;

    if (run->costs->mode == HD_TRANSFER_SERIAL) {
        return hd_serial_order(run->pipeline, &run->issue, is_bounded, order, problem);
    }
    return hd_flow_order(run->pipeline, is_bounded, order, problem);
}

static hd_status cost_run_order(struct cost_run *run, struct hd_problem *problem)
{
    /* Actions, and serial transfers, each of which is in two lists. */
    const uint64_t entry_count = run->pipeline->action_count + run->issue.count / 2;
    uint32_t *const order = hd_plan_take(entry_count, sizeof *order, problem);
    hd_status status = order != NULL ? cost_find_order(run, order, problem) : HD_NO_MEMORY;

    for (uint64_t i = 0; status == HD_OK && i < entry_count; i++) {
        if (order[i] & HD_SERIAL_TRANSFER) {
            cost_move_serial(run, order[i] & ~HD_SERIAL_TRANSFER);
        } else {
            cost_act(run, order[i]);
        }
    }
    hd_memory_give(order);
    return status;
}

static hd_status cost_begin_queues(struct cost_run *run, struct hd_problem *problem)
{
    if (run->costs->mode != HD_TRANSFER_SERIAL) {
        return HD_OK;
    }
    const hd_status status = hd_issue_create(run->pipeline, &run->issue, problem);
    for (uint32_t rank = 0; status == HD_OK && rank < run->pipeline->rank_count; rank++) {
        run->queues[rank].head = run->issue.begin[rank];
    }
    return status;
}

hd_status hd_cost_fill(const struct hd_pipeline *pipeline, const struct hd_timeline_costs *costs,
                       struct hd_cost_times *times, struct hd_problem *problem)
{
    struct cost_run run = {.pipeline = pipeline, .costs = costs, .times = times};
    hd_status status = HD_NO_MEMORY;

    assert(costs->mode <= HD_TRANSFER_SERIAL);
    run.rank_end = hd_plan_take(pipeline->rank_count, sizeof(double), problem);
    run.channel_end = hd_plan_take(pipeline->channel_count, sizeof(double), problem);
    run.queues = hd_plan_take(pipeline->rank_count, sizeof *run.queues, problem);
    if (run.rank_end != NULL && run.channel_end != NULL && run.queues != NULL) {
        status = cost_begin_queues(&run, problem);
    }
    if (status == HD_OK) {
        status = cost_run_order(&run, problem);
    }
    hd_issue_finish(&run.issue);
    hd_memory_give(run.queues);
    hd_memory_give(run.channel_end);
    hd_memory_give(run.rank_end);
    return status;
}
