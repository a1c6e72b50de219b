/*
 * The edges of a plan's graph, and hd_flow_order.
 *
 * hd_flow_order runs the plan without time: each rank runs its actions until one has to wait, and
 * the action that it waits for wakes the rank.  A rank waits for one action at a time, and an
 * action wakes at most two ranks, so the cost is linear in the actions.
 *
 * If no rank is ready and some have actions left, each of them waits for an action that has not
 * run.  Following these waits from any rank leads into a cycle, which is reported.
 */
#include "plan/flow.h"

#include "base/memory.h"
#include "base/text.h"
#include "plan/refuse.h"

#include <assert.h>
#include <stdio.h>

uint32_t hd_flow_out_channel(const struct hd_pipeline *pipeline, const struct hd_action *action)
{
    if (action->kind == HD_FORWARD && action->stage + 1 < pipeline->stage_count) {
        return hd_pipeline_channel(pipeline, action->stage, HD_FORWARD, action->replica);
    }
    if (hd_flow_is_backward(action) && action->stage > 0) {
        return hd_pipeline_channel(pipeline, action->stage - 1, HD_BACKWARD, action->replica);
    }
    return HD_NO_CHANNEL;
}

uint32_t hd_flow_in_channel(const struct hd_pipeline *pipeline, const struct hd_action *action)
{
    if (action->kind == HD_FORWARD && action->stage > 0) {
        return hd_pipeline_channel(pipeline, action->stage - 1, HD_FORWARD, action->replica);
    }
    if (hd_flow_is_backward(action) && action->stage + 1 < pipeline->stage_count) {
        return hd_pipeline_channel(pipeline, action->stage, HD_BACKWARD, action->replica);
    }
    return HD_NO_CHANNEL;
}

uint32_t hd_flow_slot_release(const struct hd_pipeline *pipeline, uint32_t action_index)
{
    const struct hd_action *const action = &pipeline->actions[action_index];
    const uint32_t channel_index = hd_flow_out_channel(pipeline, action);

    if (channel_index == HD_NO_CHANNEL) {
        return HD_NO_ACTION;
    }
    const struct hd_pipeline_channel *const channel = &pipeline->channels[channel_index];
    const uint32_t sequence = pipeline->sequence[action_index];
    if (sequence < channel->slots) {
        return HD_NO_ACTION;
    }
    const uint32_t earlier = pipeline->messages[channel->message_begin + sequence - channel->slots];
    return hd_flow_releaser(pipeline, &pipeline->actions[earlier]);
}

uint32_t hd_flow_handoff_class(const struct hd_pipeline *pipeline, const uint32_t *start,
                               uint32_t consumer)
{
    const uint32_t producer = hd_flow_producer(pipeline, &pipeline->actions[consumer]);

    if (producer == HD_NO_ACTION) {
        return HD_HANDOFF_CLASS_COUNT;
    }
    const struct hd_pipeline_channel *channel =
        &pipeline->channels[hd_flow_in_channel(pipeline, &pipeline->actions[consumer])];
    const uint32_t arrival = start[producer] + hd_action_ticks(pipeline->actions[producer].kind);
    if (!hd_pipeline_is_remote(channel)) {
        return HD_HANDOFF_LOCAL;
    }
    /* If any action of the receiver starts in between, the one before the consumer does. */
    const bool has_other =
        consumer > pipeline->rank_begin[channel->target] && start[consumer - 1] >= arrival;
    return has_other ? HD_HANDOFF_HIDDEN : HD_HANDOFF_EXPOSED;
}

void hd_flow_count_handoffs(const struct hd_pipeline *pipeline, const uint32_t *start,
                            struct hd_pipeline_handoffs *handoffs)
{
    uint64_t ignored = 0;
    uint64_t *const counts[HD_HANDOFF_CLASS_COUNT + 1] = {&handoffs->local, &handoffs->hidden,
                                                          &handoffs->exposed, &ignored};

    for (uint64_t i = 0; i < pipeline->action_count; i++) {
        ++*counts[hd_flow_handoff_class(pipeline, start, (uint32_t)i)];
    }
}

struct flow {
    const struct hd_pipeline *pipeline;
    bool is_bounded;
    uint32_t *cursor; /* [rank_count]: the next action */
    uint32_t *waits;  /* [rank_count]: the action that the rank waits for, or HD_NO_ACTION */
    uint32_t *ready;  /* [rank_count]: a stack of ranks that may go on */
    uint32_t ready_count;
    uint32_t *order; /* may be NULL */
    uint64_t done_count;
};

/* An action is done once its rank's cursor is past it; `stage` is the action's. */
static bool flow_is_done(const struct flow *flow, uint32_t replica, uint32_t stage, uint32_t index)
{
    return index < flow->cursor[hd_flow_home(flow->pipeline, replica, stage)];
}

/* The first action that `index` still waits for. */
static uint32_t flow_find_wait(const struct flow *flow, uint32_t index)
{
    const struct hd_pipeline *const pipeline = flow->pipeline;
    const struct hd_action *const action = &pipeline->actions[index];
    const uint32_t producer = hd_flow_producer(pipeline, action);

    if (producer != HD_NO_ACTION) {
        const uint32_t stage = action->kind == HD_FORWARD ? action->stage - 1 : action->stage + 1;
        if (!flow_is_done(flow, action->replica, stage, producer)) {
            return producer;
        }
    }
    if (flow->is_bounded) {
        const uint32_t release = hd_flow_slot_release(pipeline, index);
        if (release != HD_NO_ACTION) {
            const uint32_t stage =
                action->kind == HD_FORWARD ? action->stage + 1 : action->stage - 1;
            if (!flow_is_done(flow, action->replica, stage, release)) {
                return release;
            }
        }
    }
    return HD_NO_ACTION;
}

static void flow_wake(struct flow *flow, uint32_t replica, uint32_t stage, uint32_t index)
{
    const uint32_t rank = hd_flow_home(flow->pipeline, replica, stage);
    if (flow->waits[rank] == index) {
        flow->waits[rank] = HD_NO_ACTION;
        flow->ready[flow->ready_count++] = rank;
    }
}

/* A rank that waits for an action of stage s, for input or for a slot, holds stage s - 1 or s + 1.
   */
static void flow_run_rank(struct flow *flow, uint32_t rank)
{
    const struct hd_pipeline *const pipeline = flow->pipeline;
    const uint32_t end = (uint32_t)pipeline->rank_begin[rank + 1];

    for (uint32_t index = flow->cursor[rank]; index < end; index++) {
        const uint32_t wait = flow_find_wait(flow, index);
        if (wait != HD_NO_ACTION) {
            flow->waits[rank] = wait;
            return;
        }
        const struct hd_action *const action = &pipeline->actions[index];
        flow->cursor[rank] = index + 1;
        if (flow->order != NULL) {
            flow->order[flow->done_count] = index;
        }
        flow->done_count++;
        if (action->stage > 0) {
            flow_wake(flow, action->replica, action->stage - 1, index);
        }
        if (action->stage + 1 < pipeline->stage_count) {
            flow_wake(flow, action->replica, action->stage + 1, index);
        }
    }
}

static uint32_t flow_next_rank(const struct flow *flow, uint32_t rank)
{
    assert(flow->waits[rank] != HD_NO_ACTION);
    return hd_pipeline_rank_of(flow->pipeline, flow->waits[rank]);
}

/* The lowest rank of the cycle that the waits from `rank` run into. */
static uint32_t flow_find_cycle(const struct flow *flow, uint32_t rank)
{
    for (uint32_t step = 0; step < flow->pipeline->rank_count; step++) {
        rank = flow_next_rank(flow, rank); /* after rank_count steps it is in the cycle */
    }
    uint32_t lowest = rank;
    for (uint32_t at = flow_next_rank(flow, rank); at != rank; at = flow_next_rank(flow, at)) {
        lowest = at < lowest ? at : lowest;
    }
    return lowest;
}

/* "rank 0 at 0B0 waits for 1B0", and which slot that action releases if it is not its input. */
static bool flow_write_wait(const struct flow *flow, uint32_t rank, struct hd_problem *problem)
{
    const struct hd_pipeline *const pipeline = flow->pipeline;
    const struct hd_action *const action = &pipeline->actions[flow->cursor[rank]];
    const struct hd_action *const other = &pipeline->actions[flow->waits[rank]];
    const bool is_input = hd_flow_producer(pipeline, action) == flow->waits[rank];
    char texts[2][32];
    char slot[64] = "";

    if (!is_input) {
        const uint32_t boundary = action->kind == HD_FORWARD ? action->stage : action->stage - 1;
        snprintf(slot, sizeof slot, " (a %s slot of boundary %u)",
                 action->kind == HD_FORWARD ? "forward" : "backward", boundary);
    }
    hd_action_text(action, texts[0]);
    hd_action_text(other, texts[1]);
    return hd_text_append(problem->cycle, sizeof problem->cycle - 8,
                          "%srank %u at %s waits for %s%s", problem->cycle[0] == '\0' ? "" : "; ",
                          rank, texts[0], texts[1], slot);
}

static hd_status flow_refuse_cycle(const struct flow *flow, struct hd_problem *problem)
{
    const struct hd_pipeline *const pipeline = flow->pipeline;
    uint32_t stuck = 0;
    bool fits = true;
    char place[64];
    char text[32];

    while (flow->waits[stuck] == HD_NO_ACTION) {
        stuck++;
        assert(stuck < pipeline->rank_count);
    }
    const uint32_t first = flow_find_cycle(flow, stuck);
    uint32_t rank = first;
    problem->cycle[0] = '\0';
    do {
        fits = flow_write_wait(flow, rank, problem);
        rank = flow_next_rank(flow, rank);
    } while (fits && rank != first);
    if (!fits) {
        hd_text_append(problem->cycle, sizeof problem->cycle, "; ...");
    }
    return hd_law_refuse(problem, flow->is_bounded ? 6 : 4, first,
                         "%s can never start: it waits for %s, which waits for it in turn",
                         hd_action_place(pipeline, flow->cursor[first], place),
                         hd_action_text(&pipeline->actions[flow->waits[first]], text));
}

static void flow_start_ranks(struct flow *flow)
{
    const struct hd_pipeline *const pipeline = flow->pipeline;

    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        flow->cursor[rank] = (uint32_t)pipeline->rank_begin[rank];
        flow->waits[rank] = HD_NO_ACTION;
        flow->ready[flow->ready_count++] = pipeline->rank_count - 1 - rank;
    }
}

hd_status hd_flow_order(const struct hd_pipeline *pipeline, bool is_bounded, uint32_t *order,
                        struct hd_problem *problem)
{
    struct flow flow = {.pipeline = pipeline, .is_bounded = is_bounded, .order = order};
    uint32_t *const memory = hd_plan_take(3 * (uint64_t)pipeline->rank_count, 4, problem);

    if (memory == NULL) {
        return HD_NO_MEMORY;
    }
    flow.cursor = memory;
    flow.waits = memory + pipeline->rank_count;
    flow.ready = flow.waits + pipeline->rank_count;
    flow_start_ranks(&flow);
    while (flow.ready_count > 0) {
        flow_run_rank(&flow, flow.ready[--flow.ready_count]);
    }
    hd_status status = HD_OK;
    if (flow.done_count < pipeline->action_count) {
        status = flow_refuse_cycle(&flow, problem);
    }
    hd_memory_give(memory);
    return status;
}
