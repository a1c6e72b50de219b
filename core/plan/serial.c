/*
 * Law 7: one transfer at a time per rank, in one canonical order.
 *
 * Every rank issues its transfers, sends and receives alike, as a subsequence of the same order of
 * all of them; a transfer moves when its producer has ended and both its ranks have come to it.
 * The order follows asap: producer's end, then boundary, backward before forward, then sequence.
 *
 * Why that never deadlocks while every channel has its depth: put actions at their start in asap
 * and transfers at their producer's end; whatever waits comes later than what it waits for.  With
 * fewer slots a source waits against that order, and a cycle may close.
 */
#include "plan/serial.h"

#include "base/memory.h"
#include "plan/derive.h"
#include "plan/flow.h"

#include <assert.h>

struct serial {
    const struct hd_pipeline *pipeline;
    uint32_t is_bounded;
    uint64_t line_count;
    uint32_t *line;    /* [line_count]: senders of remote messages, in canonical order */
    uint32_t *queue;   /* [2 line_count]: the same by rank */
    uint32_t *head;    /* [rank_count]: into queue */
    uint32_t *tail;    /* [rank_count] */
    uint32_t *cursor;  /* [rank_count]: the next action */
    uint32_t *ready;   /* [rank_count]: a stack */
    uint8_t *is_ready; /* [rank_count] */
    uint8_t *is_moved; /* [action_count]: its message has crossed */
    uint32_t ready_count;
    uint32_t *order; /* may be NULL */
    uint64_t done_count, moved_count;
};

/* Where a remote message goes, or came from. */
static uint32_t target_of(const struct hd_pipeline *pipeline, uint32_t sender)
{
    const uint32_t channel = hd_flow_out_channel(pipeline, &pipeline->actions[sender]);
    return pipeline->channels[channel].target;
}

static uint32_t source_of(const struct hd_pipeline *pipeline, uint32_t sender)
{
    const struct hd_action *const action = &pipeline->actions[sender];
    return hd_flow_home(pipeline, action->replica, action->stage);
}

static uint32_t end_tick(const struct hd_pipeline *pipeline, uint32_t index)
{
    return pipeline->asap_start[index] + hd_action_ticks(pipeline->actions[index].kind);
}

/* The channels in the order that breaks ties: boundary, backward first, replica. */
static uint32_t nth_channel(const struct hd_pipeline *pipeline, uint32_t place)
{
    const uint32_t replica = place % pipeline->replica_count;
    place /= pipeline->replica_count;
    if (pipeline->is_forward_only) {
        return hd_pipeline_channel(pipeline, place, HD_FORWARD, replica);
    }
    return hd_pipeline_channel(pipeline, place / 2, place % 2 == 0 ? HD_BACKWARD : HD_FORWARD,
                               replica);
}

static uint32_t is_remote(const struct hd_pipeline_channel *channel)
{
    return channel->source != channel->target;
}

/* A stable counting sort by the producer's end; a channel's messages end at different ticks. */
static void sort_line(struct serial *serial, uint32_t *places)
{
    const struct hd_pipeline *const pipeline = serial->pipeline;

    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < pipeline->channel_count; i++) {
            const struct hd_pipeline_channel *const channel =
                &pipeline->channels[nth_channel(pipeline, i)];
            for (uint32_t j = 0; is_remote(channel) && j < channel->message_count; j++) {
                const uint32_t sender = pipeline->messages[channel->message_begin + j];
                const uint32_t tick = end_tick(pipeline, sender);
                if (pass == 0) {
                    places[tick + 1]++;
                } else {
                    serial->line[places[tick]++] = sender;
                }
            }
        }
        for (uint32_t tick = 0; pass == 0 && tick <= pipeline->asap_ticks; tick++) {
            places[tick + 1] += places[tick];
        }
    }
}

static void fill_queues(struct serial *serial)
{
    const struct hd_pipeline *const pipeline = serial->pipeline;
    uint32_t begin = 0;

    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *const channel = &pipeline->channels[i];
        if (is_remote(channel)) {
            serial->tail[channel->source] += channel->message_count;
            serial->tail[channel->target] += channel->message_count;
        }
    }
    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        const uint32_t count = serial->tail[rank];
        serial->head[rank] = begin;
        serial->tail[rank] = begin;
        begin += count;
    }
    for (uint64_t i = 0; i < serial->line_count; i++) {
        const uint32_t sender = serial->line[i];
        serial->queue[serial->tail[source_of(pipeline, sender)]++] = sender;
        serial->queue[serial->tail[target_of(pipeline, sender)]++] = sender;
    }
}

static uint32_t is_done(const struct serial *serial, uint32_t index)
{
    return index < serial->cursor[source_of(serial->pipeline, index)];
}

static uint32_t is_local(const struct hd_pipeline *pipeline, uint32_t sender)
{
    return source_of(pipeline, sender) == target_of(pipeline, sender);
}

/* What stands in the way of a node of the graph: an action, or the transfer of what it sends. */
struct node {
    uint32_t index; /* HD_NO_ACTION: nothing */
    uint32_t is_transfer;
};

static struct node action_wait(const struct serial *serial, uint32_t index)
{
    const struct hd_pipeline *const pipeline = serial->pipeline;
    const uint32_t producer = hd_flow_producer(pipeline, &pipeline->actions[index]);

    if (producer != HD_NO_ACTION) {
        if (is_local(pipeline, producer) ? !is_done(serial, producer)
                                         : !serial->is_moved[producer]) {
            return (struct node){producer, !is_local(pipeline, producer)};
        }
    }
    if (serial->is_bounded) {
        const uint32_t release = hd_flow_slot_release(pipeline, index);
        if (release != HD_NO_ACTION && !is_done(serial, release)) {
            return (struct node){release, 0};
        }
    }
    return (struct node){HD_NO_ACTION, 0};
}

static struct node transfer_wait(const struct serial *serial, uint32_t sender)
{
    const uint32_t ends[2] = {source_of(serial->pipeline, sender),
                              target_of(serial->pipeline, sender)};

    if (!is_done(serial, sender)) {
        return (struct node){sender, 0};
    }
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t first = serial->queue[serial->head[ends[i]]];
        if (first != sender) {
            return (struct node){first, 1};
        }
    }
    return (struct node){HD_NO_ACTION, 0};
}

static void make_ready(struct serial *serial, uint32_t rank)
{
    if (!serial->is_ready[rank]) {
        serial->is_ready[rank] = 1;
        serial->ready[serial->ready_count++] = rank;
    }
}

static void note(struct serial *serial, uint32_t entry)
{
    if (serial->order != NULL) {
        serial->order[serial->done_count + serial->moved_count] = entry;
    }
}

static void run_actions(struct serial *serial, uint32_t rank)
{
    const struct hd_pipeline *const pipeline = serial->pipeline;
    const uint32_t end = (uint32_t)pipeline->rank_begin[rank + 1];

    while (serial->cursor[rank] < end) {
        const uint32_t index = serial->cursor[rank];
        const struct hd_action *const action = &pipeline->actions[index];
        if (action_wait(serial, index).index != HD_NO_ACTION) {
            return;
        }
        note(serial, index);
        serial->cursor[rank]++;
        serial->done_count++;
        if (action->stage > 0) {
            make_ready(serial, hd_flow_home(pipeline, action->replica, action->stage - 1));
        }
        if (action->stage + 1 < pipeline->stage_count) {
            make_ready(serial, hd_flow_home(pipeline, action->replica, action->stage + 1));
        }
    }
}

static uint32_t run_transfers(struct serial *serial, uint32_t rank)
{
    uint32_t moved = 0;

    while (serial->head[rank] < serial->tail[rank]) {
        const uint32_t sender = serial->queue[serial->head[rank]];
        if (transfer_wait(serial, sender).index != HD_NO_ACTION) {
            break;
        }
        const uint32_t source = source_of(serial->pipeline, sender);
        const uint32_t target = target_of(serial->pipeline, sender);
        note(serial, sender | HD_SERIAL_TRANSFER);
        serial->is_moved[sender] = 1;
        serial->moved_count++;
        serial->head[source]++;
        serial->head[target]++;
        make_ready(serial, source == rank ? target : source);
        moved++;
    }
    return moved;
}

static struct node next_node(const struct serial *serial, struct node node)
{
    const struct hd_pipeline *const pipeline = serial->pipeline;

    if (!node.is_transfer) {
        /* Its rank stands at an earlier action, or at this one. */
        const uint32_t rank = source_of(pipeline, node.index);
        return action_wait(serial, serial->cursor[rank]);
    }
    return transfer_wait(serial, node.index);
}

static int write_node(const struct serial *serial, struct node node, struct hd_problem *problem)
{
    const struct hd_pipeline *const pipeline = serial->pipeline;
    const struct node next = next_node(serial, node);
    const uint32_t rank = source_of(pipeline, node.index);
    const uint32_t at = node.is_transfer ? node.index : serial->cursor[rank];
    char texts[2][32];

    hd_action_text(&pipeline->actions[at], texts[0]);
    hd_action_text(&pipeline->actions[next.index], texts[1]);
    return hd_text_append(problem->cycle, sizeof problem->cycle - 8, "%srank %u at %s%s waits %s%s",
                          problem->cycle[0] == '\0' ? "" : "; ", rank,
                          node.is_transfer ? "the transfer of " : "", texts[0],
                          next.is_transfer ? "the transfer of " : "", texts[1]);
}

/* Two nodes are one if they stand for the same transfer, or for the place of the same rank. */
static int is_same(const struct serial *serial, struct node a, struct node b)
{
    if (a.is_transfer || b.is_transfer) {
        return a.is_transfer == b.is_transfer && a.index == b.index;
    }
    return source_of(serial->pipeline, a.index) == source_of(serial->pipeline, b.index);
}

static hd_status refuse_cycle(const struct serial *serial, struct hd_problem *problem)
{
    const struct hd_pipeline *const pipeline = serial->pipeline;
    uint32_t stuck = 0;

    while (serial->cursor[stuck] == pipeline->rank_begin[stuck + 1]) {
        stuck++;
        assert(stuck < pipeline->rank_count);
    }
    struct node first = {serial->cursor[stuck], 0};
    for (uint32_t step = 0; step < 4 * pipeline->rank_count; step++) {
        first = next_node(serial, first); /* more steps than nodes: surely inside the cycle */
    }
    struct node node = first;
    int fits;
    problem->cycle[0] = '\0';
    do {
        fits = write_node(serial, node, problem);
        node = next_node(serial, node);
    } while (fits && !is_same(serial, node, first));
    if (!fits) {
        hd_text_append(problem->cycle, sizeof problem->cycle, "; ...");
    }
    const uint32_t rank = source_of(pipeline, first.index);
    char text[32];
    hd_action_text(&pipeline->actions[first.is_transfer ? first.index : serial->cursor[rank]],
                   text);
    hd_problem_key(problem, "pipeline.transfer_slots");
    hd_problem_remedy(problem, "give auto, or a transport that moves transfers side by side");
    return hd_law_refuse(problem, 7, rank,
                         "with one transfer at a time and these slots %s%s never comes",
                         first.is_transfer ? "the transfer of " : "", text);
}

static uint64_t count_line(const struct hd_pipeline *pipeline)
{
    uint64_t line_count = 0;
    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        if (is_remote(&pipeline->channels[i])) {
            line_count += pipeline->channels[i].message_count;
        }
    }
    return line_count;
}

static hd_status run(struct serial *serial, struct hd_problem *problem)
{
    const struct hd_pipeline *const pipeline = serial->pipeline;

    for (uint32_t rank = pipeline->rank_count; rank > 0; rank--) {
        serial->cursor[rank - 1] = (uint32_t)pipeline->rank_begin[rank - 1];
        make_ready(serial, rank - 1);
    }
    while (serial->ready_count > 0) {
        const uint32_t rank = serial->ready[--serial->ready_count];
        serial->is_ready[rank] = 0;
        do {
            run_actions(serial, rank);
        } while (run_transfers(serial, rank) > 0);
    }
    return serial->done_count < pipeline->action_count ? refuse_cycle(serial, problem) : HD_OK;
}

hd_status hd_serial_order(const struct hd_pipeline *pipeline, uint32_t is_bounded, uint32_t *order,
                          struct hd_problem *problem)
{
    const uint64_t line_count = count_line(pipeline);
    const uint64_t ranks = pipeline->rank_count;
    struct serial serial = {
        .pipeline = pipeline, .is_bounded = is_bounded, .line_count = line_count, .order = order};
    uint32_t *const words = hd_plan_take(3 * line_count + 4 * ranks, 4, problem);
    uint8_t *const bytes = hd_plan_take(ranks + pipeline->action_count, 1, problem);
    uint32_t *const places = hd_plan_take((uint64_t)pipeline->asap_ticks + 2, 4, problem);
    hd_status status = HD_NO_MEMORY;

    if (words != NULL && bytes != NULL && places != NULL) {
        serial.line = words;
        serial.queue = serial.line + line_count;
        serial.head = serial.queue + 2 * line_count;
        serial.tail = serial.head + ranks;
        serial.cursor = serial.tail + ranks;
        serial.ready = serial.cursor + ranks;
        serial.is_ready = bytes;
        serial.is_moved = bytes + ranks;
        sort_line(&serial, places);
        fill_queues(&serial);
        status = run(&serial, problem);
    }
    hd_memory_give(places);
    hd_memory_give(bytes);
    hd_memory_give(words);
    return status;
}

hd_status hd_pipeline_verify_serial(const struct hd_pipeline *pipeline, struct hd_problem *problem)
{
    return hd_serial_order(pipeline, 1, NULL, problem);
}
