/*
 * Law 7: each rank moves one transfer at a time, in the order of its list.
 *
 * A transfer moves once both its ranks have come to its group, and each of them can post all of its
 * group: what it sends is written, and what it receives has a slot.
 *
 * Why the canonical order never deadlocks if every channel has its depth: put each action at its
 * start in asap and each transfer at the end of its producer; then whatever waits comes later than
 * what it waits for.  With fewer slots a source waits against that order, and a cycle may close.
 * In the order of the programs two ranks may each have to send first.
 */
#include "plan/serial.h"

#include "base/memory.h"
#include "base/text.h"
#include "plan/flow.h"
#include "plan/refuse.h"

#include <assert.h>

struct serial {
    const struct hd_pipeline *pipeline;
    const struct hd_issue *issue;
    bool is_bounded;
    uint32_t *head;   /* [rank_count]: where its group begins, in the lists */
    uint32_t *left;   /* [rank_count]: transfers of that group that have not moved */
    uint32_t *cursor; /* [rank_count]: the next action */
    uint32_t *ready;  /* [rank_count]: a stack */
    bool *is_ready;   /* [rank_count] */
    bool *is_moved;   /* [action_count]: its message has crossed */
    uint32_t ready_count;
    uint32_t *order; /* may be NULL */
    uint64_t done_count, moved_count;
};

static bool serial_is_done(const struct serial *serial, uint32_t index)
{
    return index < serial->cursor[hd_issue_source(serial->pipeline, index)];
}

static bool serial_is_local(const struct hd_pipeline *pipeline, uint32_t sender)
{
    return hd_issue_source(pipeline, sender) == hd_issue_target(pipeline, sender);
}

/* A node of the graph of waits: an action, or the transfer of what it sends. */
struct node {
    uint32_t index; /* HD_NO_ACTION if there is nothing to wait for */
    bool is_transfer;
};

static const struct node serial_nothing = {HD_NO_ACTION, false};

static struct node serial_action_wait(const struct serial *serial, uint32_t index)
{
    const struct hd_pipeline *const pipeline = serial->pipeline;
    const uint32_t producer = hd_flow_producer(pipeline, &pipeline->actions[index]);

    if (producer != HD_NO_ACTION) {
        const bool is_local = serial_is_local(pipeline, producer);
        if (is_local ? !serial_is_done(serial, producer) : !serial->is_moved[producer]) {
            return (struct node){producer, !is_local};
        }
    }
    if (serial->is_bounded) {
        const uint32_t release = hd_flow_slot_release(pipeline, index);
        if (release != HD_NO_ACTION && !serial_is_done(serial, release)) {
            return (struct node){release, false};
        }
    }
    return serial_nothing;
}

static bool serial_is_at(const struct serial *serial, uint32_t rank, uint32_t sender)
{
    const struct hd_issue *const issue = serial->issue;
    const uint32_t head = serial->head[rank];

    for (uint32_t i = head; i < issue->begin[rank + 1] && i < issue->group_end[head]; i++) {
        if (issue->sender[i] == sender) {
            return true;
        }
    }
    return false;
}

/* The first transfer of the rank's group that has not moved. */
static uint32_t serial_first_left(const struct serial *serial, uint32_t rank)
{
    uint32_t at = serial->head[rank];

    while (serial->is_moved[serial->issue->sender[at]]) {
        at++;
        assert(at < serial->issue->begin[rank + 1]);
    }
    return serial->issue->sender[at];
}

/* What a rank waits for before it can post all of its group. */
static struct node serial_post_wait(const struct serial *serial, uint32_t rank)
{
    const struct hd_issue *const issue = serial->issue;
    const uint32_t head = serial->head[rank];

    for (uint32_t i = head; i < issue->group_end[head]; i++) {
        uint32_t wanted = issue->sender[i];
        if (hd_issue_source(serial->pipeline, wanted) != rank) {
            wanted =
                serial->is_bounded ? hd_flow_slot_release(serial->pipeline, wanted) : HD_NO_ACTION;
        }
        if (wanted != HD_NO_ACTION && !serial_is_done(serial, wanted)) {
            return (struct node){wanted, false};
        }
    }
    return serial_nothing;
}

static struct node serial_transfer_wait(const struct serial *serial, uint32_t sender)
{
    const uint32_t ends[2] = {hd_issue_source(serial->pipeline, sender),
                              hd_issue_target(serial->pipeline, sender)};

    if (!serial_is_done(serial, sender)) {
        return (struct node){sender, false};
    }
    for (uint32_t i = 0; i < 2; i++) {
        if (!serial_is_at(serial, ends[i], sender)) {
            return (struct node){serial_first_left(serial, ends[i]), true};
        }
        const struct node wait = serial_post_wait(serial, ends[i]);
        if (wait.index != HD_NO_ACTION) {
            return wait;
        }
    }
    return serial_nothing;
}

static void serial_make_ready(struct serial *serial, uint32_t rank)
{
    if (!serial->is_ready[rank]) {
        serial->is_ready[rank] = true;
        serial->ready[serial->ready_count++] = rank;
    }
}

static void serial_note(struct serial *serial, uint32_t entry)
{
    if (serial->order != NULL) {
        serial->order[serial->done_count + serial->moved_count] = entry;
    }
}

static void serial_run_actions(struct serial *serial, uint32_t rank)
{
    const struct hd_pipeline *const pipeline = serial->pipeline;
    const uint32_t end = (uint32_t)pipeline->rank_begin[rank + 1];

    while (serial->cursor[rank] < end) {
        const uint32_t index = serial->cursor[rank];
        const struct hd_action *const action = &pipeline->actions[index];
        if (serial_action_wait(serial, index).index != HD_NO_ACTION) {
            return;
        }
        serial_note(serial, index);
        serial->cursor[rank]++;
        serial->done_count++;
        if (action->stage > 0) {
            serial_make_ready(serial, hd_flow_home(pipeline, action->replica, action->stage - 1));
        }
        if (action->stage + 1 < pipeline->stage_count) {
            serial_make_ready(serial, hd_flow_home(pipeline, action->replica, action->stage + 1));
        }
    }
}

static void serial_begin_group(struct serial *serial, uint32_t rank)
{
    const uint32_t head = serial->head[rank];
    const bool is_over = head == serial->issue->begin[rank + 1];
    serial->left[rank] = is_over ? 0 : serial->issue->group_end[head] - head;
}

static void serial_leave(struct serial *serial, uint32_t rank)
{
    assert(serial->left[rank] > 0);
    serial->left[rank]--;
    if (serial->left[rank] == 0) {
        serial->head[rank] = serial->issue->group_end[serial->head[rank]];
        serial_begin_group(serial, rank);
    }
}

static void serial_move(struct serial *serial, uint32_t sender)
{
    const uint32_t source = hd_issue_source(serial->pipeline, sender);
    const uint32_t target = hd_issue_target(serial->pipeline, sender);

    serial_note(serial, sender | HD_SERIAL_TRANSFER);
    serial->is_moved[sender] = true;
    serial->moved_count++;
    serial_leave(serial, source);
    serial_leave(serial, target);
    serial_make_ready(serial, source);
    serial_make_ready(serial, target);
}

/* Moves the first transfer of the rank's group that can move; false if none can. */
static bool serial_run_transfer(struct serial *serial, uint32_t rank)
{
    const struct hd_issue *const issue = serial->issue;
    const uint32_t head = serial->head[rank];

    for (uint32_t i = head; i < issue->begin[rank + 1] && i < issue->group_end[head]; i++) {
        const uint32_t sender = issue->sender[i];
        if (!serial->is_moved[sender] &&
            serial_transfer_wait(serial, sender).index == HD_NO_ACTION) {
            serial_move(serial, sender);
            return true;
        }
    }
    return false;
}

static struct node serial_next_node(const struct serial *serial, struct node node)
{
    const struct hd_pipeline *const pipeline = serial->pipeline;

    if (!node.is_transfer) {
        /* Its rank has come to an earlier action, or to this one. */
        const uint32_t rank = hd_issue_source(pipeline, node.index);
        return serial_action_wait(serial, serial->cursor[rank]);
    }
    return serial_transfer_wait(serial, node.index);
}

static bool serial_write_node(const struct serial *serial, struct node node,
                              struct hd_problem *problem)
{
    const struct hd_pipeline *const pipeline = serial->pipeline;
    const struct node next = serial_next_node(serial, node);
    const uint32_t rank = hd_issue_source(pipeline, node.index);
    const uint32_t at = node.is_transfer ? node.index : serial->cursor[rank];
    char texts[2][32];

    hd_action_text(&pipeline->actions[at], texts[0]);
    hd_action_text(&pipeline->actions[next.index], texts[1]);
    return hd_text_append(problem->cycle, sizeof problem->cycle - 8,
                          "%srank %u at %s%s waits for %s%s", problem->cycle[0] == '\0' ? "" : "; ",
                          rank, node.is_transfer ? "the transfer of " : "", texts[0],
                          next.is_transfer ? "the transfer of " : "", texts[1]);
}

/* Two nodes are the same if they are one transfer, or actions of one rank. */
static bool serial_is_same(const struct serial *serial, struct node a, struct node b)
{
    if (a.is_transfer || b.is_transfer) {
        return a.is_transfer == b.is_transfer && a.index == b.index;
    }
    return hd_issue_source(serial->pipeline, a.index) == hd_issue_source(serial->pipeline, b.index);
}

static hd_status serial_refuse_cycle(const struct serial *serial, struct hd_problem *problem)
{
    const struct hd_pipeline *const pipeline = serial->pipeline;
    uint32_t stuck = 0;

    while (serial->cursor[stuck] == pipeline->rank_begin[stuck + 1]) {
        stuck++;
        assert(stuck < pipeline->rank_count);
    }
    struct node first = {serial->cursor[stuck], false};
    for (uint32_t step = 0; step < (HD_ISSUE_GROUP_MAX + 2) * pipeline->rank_count; step++) {
        first = serial_next_node(serial, first); /* more steps than nodes lead into the cycle */
    }
    struct node node = first;
    bool fits = true;
    problem->cycle[0] = '\0';
    do {
        fits = serial_write_node(serial, node, problem);
        node = serial_next_node(serial, node);
    } while (fits && !serial_is_same(serial, node, first));
    if (!fits) {
        hd_text_append(problem->cycle, sizeof problem->cycle, "; ...");
    }
    const uint32_t rank = hd_issue_source(pipeline, first.index);
    char text[32];
    hd_action_text(&pipeline->actions[first.is_transfer ? first.index : serial->cursor[rank]],
                   text);
    const bool is_program = pipeline->issue_order == HD_ISSUE_PROGRAM;
    hd_problem_key(problem, is_program ? "transport.issue_order" : "pipeline.transfer_slots");
    hd_problem_remedy(problem, is_program ? "give canonical, in which all ranks issue in one order"
                                          : "give auto, or choose a transport that is not serial");
    return hd_law_refuse(problem, 7, rank, "with one transfer at a time %s, %s%s can never start",
                         is_program ? "in the order of the programs" : "and these slots",
                         first.is_transfer ? "the transfer of " : "", text);
}

static hd_status serial_run(struct serial *serial, struct hd_problem *problem)
{
    const struct hd_pipeline *const pipeline = serial->pipeline;

    for (uint32_t rank = pipeline->rank_count; rank > 0; rank--) {
        serial->cursor[rank - 1] = (uint32_t)pipeline->rank_begin[rank - 1];
        serial->head[rank - 1] = serial->issue->begin[rank - 1];
        serial_begin_group(serial, rank - 1);
        serial_make_ready(serial, rank - 1);
    }
    while (serial->ready_count > 0) {
        const uint32_t rank = serial->ready[--serial->ready_count];
        serial->is_ready[rank] = false;
        do {
            serial_run_actions(serial, rank);
        } while (serial_run_transfer(serial, rank));
    }
    return serial->done_count < pipeline->action_count ? serial_refuse_cycle(serial, problem)
                                                       : HD_OK;
}

hd_status hd_serial_order(const struct hd_pipeline *pipeline, const struct hd_issue *issue,
                          bool is_bounded, uint32_t *order, struct hd_problem *problem)
{
    const uint64_t ranks = pipeline->rank_count;
    struct serial serial = {
        .pipeline = pipeline, .issue = issue, .is_bounded = is_bounded, .order = order};
    uint32_t *const words = hd_plan_take(4 * ranks, sizeof *words, problem);
    bool *const flags = hd_plan_take(ranks + pipeline->action_count, sizeof *flags, problem);
    hd_status status = HD_NO_MEMORY;

    if (words != NULL && flags != NULL) {
        serial.head = words;
        serial.left = words + ranks;
        serial.cursor = words + 2 * ranks;
        serial.ready = words + 3 * ranks;
        serial.is_ready = flags;
        serial.is_moved = flags + ranks;
        status = serial_run(&serial, problem);
    }
    hd_memory_give(flags);
    hd_memory_give(words);
    return status;
}

hd_status hd_pipeline_verify_serial(const struct hd_pipeline *pipeline, struct hd_problem *problem)
{
    struct hd_issue issue;
    hd_status status = hd_issue_create(pipeline, &issue, problem);

    if (status == HD_OK) {
        status = hd_serial_order(pipeline, &issue, true, NULL, problem);
        hd_issue_finish(&issue);
    }
    return status;
}
