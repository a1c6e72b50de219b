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

/* Serial: how far a rank's transfers have come. */
struct cost_line {
    uint32_t head;  /* where its group begins, in the lists of issue */
    uint32_t moved; /* transfers of the group that have moved */
    double begin;   /* all of the group is posted, and the one before it is over */
    double end;     /* the last that has arrived */
};

struct cost_run {
    const struct hd_pipeline *pipeline;
    const struct hd_timeline_costs *costs;
    struct hd_timeline *timeline;
    struct hd_issue issue;   /* serial only */
    struct cost_line *lines; /* [rank_count] */
    double *rank_end;        /* [rank_count]: when the rank is free */
    double *channel_end;     /* [channel_count]: when its last transfer has arrived */
};

static double cost_later(double a, double b)
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
        run->timeline->handoffs.local++;
        return cost_later(rank_free, run->timeline->end[producer]);
    }
    if (run->costs->mode == HD_TRANSFER_BLOCKING) {
        run->timeline->depart[producer] = cost_later(rank_free, run->timeline->end[producer]);
        run->timeline->arrive[producer] =
            run->timeline->depart[producer] + run->costs->transfer[channel->boundary];
    }
    const double arrival = run->timeline->arrive[producer];
    const double before =
        index > pipeline->rank_begin[channel->target] ? run->timeline->end[index - 1] : 0;
    run->timeline->exposed_ticks +=
        cost_later(0, arrival - cost_later(run->timeline->end[producer], before));
    return cost_later(rank_free, arrival);
}

/* A transfer that holds nobody, over a channel that moves one at a time. */
static void cost_move(struct cost_run *run, uint32_t sender)
{
    const struct hd_pipeline *const pipeline = run->pipeline;
    const uint32_t channel = hd_flow_out_channel(pipeline, &pipeline->actions[sender]);
    const double begin = cost_later(run->timeline->end[sender], run->channel_end[channel]);

    run->timeline->depart[sender] = begin;
    run->timeline->arrive[sender] =
        begin + run->costs->transfer[pipeline->channels[channel].boundary];
    run->channel_end[channel] = run->timeline->arrive[sender];
}

/* The first of a group to move: what is sent must be written, and what is received needs a slot. */
static void cost_begin_group(struct cost_run *run, uint32_t rank)
{
    struct cost_line *const line = &run->lines[rank];

    line->begin = line->end;
    for (uint32_t i = line->head; i < run->issue.group_end[line->head]; i++) {
        uint32_t wanted = run->issue.sender[i];
        if (hd_issue_source(run->pipeline, wanted) != rank) {
            wanted = run->costs->is_unlimited ? HD_NO_ACTION
                                              : hd_flow_slot_release(run->pipeline, wanted);
        }
        if (wanted != HD_NO_ACTION) {
            line->begin = cost_later(line->begin, run->timeline->end[wanted]);
        }
    }
}

/* One that has its turn at both its ranks; those of a group move side by side. */
static void cost_move_in_turn(struct cost_run *run, uint32_t sender)
{
    const struct hd_pipeline *const pipeline = run->pipeline;
    const uint32_t channel = hd_flow_out_channel(pipeline, &pipeline->actions[sender]);
    const uint32_t ends[2] = {pipeline->channels[channel].source,
                              pipeline->channels[channel].target};
    double begin = 0;

    for (uint32_t i = 0; i < 2; i++) {
        if (run->lines[ends[i]].moved == 0) {
            cost_begin_group(run, ends[i]);
        }
        begin = cost_later(begin, run->lines[ends[i]].begin);
    }
    run->timeline->depart[sender] = begin;
    run->timeline->arrive[sender] =
        begin + run->costs->transfer[pipeline->channels[channel].boundary];
    for (uint32_t i = 0; i < 2; i++) {
        struct cost_line *const line = &run->lines[ends[i]];
        line->end = cost_later(line->end, run->timeline->arrive[sender]);
        line->moved++;
        if (line->head + line->moved == run->issue.group_end[line->head]) {
            line->head += line->moved;
            line->moved = 0;
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
    run->timeline->transfer_ticks += ticks;
    if (run->costs->mode == HD_TRANSFER_BLOCKING) {
        *rank_end += ticks; /* from the action's end: where its target takes it up, too */
    } else if (run->costs->mode == HD_TRANSFER_OVERLAPPED) {
        cost_move(run, index);
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
            start = cost_later(start, run->timeline->end[release]);
        }
    }
    /* Blocking: the target is held just before its consumer, so after the wait for a slot. */
    start = cost_input_time(run, index, start);
    run->timeline->start[index] = start;
    run->timeline->end[index] = start + cost_of(run->costs, action);
    *rank_end = run->timeline->end[index];
    cost_send(run, index, rank_end);
}

static hd_status cost_find_order(struct cost_run *run, uint32_t *order, struct hd_problem *problem)
{
    const uint32_t is_bounded = !run->costs->is_unlimited;

    if (run->costs->mode == HD_TRANSFER_SERIAL) {
        return hd_serial_order(run->pipeline, &run->issue, is_bounded, order, problem);
    }
    return hd_flow_order(run->pipeline, is_bounded, order, problem);
}

static hd_status cost_run_order(struct cost_run *run, struct hd_problem *problem)
{
    /* Actions, and serial transfers: each of those is in two lists. */
    const uint64_t entry_count = run->pipeline->action_count + run->issue.count / 2;
    uint32_t *const order = hd_plan_take(entry_count, sizeof *order, problem);
    hd_status status = order != NULL ? cost_find_order(run, order, problem) : HD_NO_MEMORY;

    for (uint64_t i = 0; status == HD_OK && i < entry_count; i++) {
        if (order[i] & HD_SERIAL_TRANSFER) {
            cost_move_in_turn(run, order[i] & ~HD_SERIAL_TRANSFER);
        } else {
            cost_act(run, order[i]);
        }
    }
    hd_memory_give(order);
    return status;
}

static hd_status cost_begin_lines(struct cost_run *run, struct hd_problem *problem)
{
    if (run->costs->mode != HD_TRANSFER_SERIAL) {
        return HD_OK;
    }
    const hd_status status = hd_issue_create(run->pipeline, &run->issue, problem);
    for (uint32_t rank = 0; status == HD_OK && rank < run->pipeline->rank_count; rank++) {
        run->lines[rank].head = run->issue.begin[rank];
    }
    return status;
}

hd_status hd_cost_fill(const struct hd_pipeline *pipeline, const struct hd_timeline_costs *costs,
                       struct hd_timeline *timeline, struct hd_problem *problem)
{
    struct cost_run run = {.pipeline = pipeline, .costs = costs, .timeline = timeline};
    hd_status status = HD_NO_MEMORY;

    assert(costs->mode <= HD_TRANSFER_SERIAL);
    run.rank_end = hd_plan_take(pipeline->rank_count, sizeof(double), problem);
    run.channel_end = hd_plan_take(pipeline->channel_count, sizeof(double), problem);
    run.lines = hd_plan_take(pipeline->rank_count, sizeof *run.lines, problem);
    if (run.rank_end != NULL && run.channel_end != NULL && run.lines != NULL) {
        status = cost_begin_lines(&run, problem);
    }
    if (status == HD_OK) {
        status = cost_run_order(&run, problem);
    }
    hd_issue_finish(&run.issue);
    hd_memory_give(run.lines);
    hd_memory_give(run.channel_end);
    hd_memory_give(run.rank_end);
    return status;
}
