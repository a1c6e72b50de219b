#include "engine/order.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/try.h"
#include "plan/flow.h"
#include "plan/issue.h"

#include <assert.h>

static uint32_t order_place_of(const struct hd_order *order, struct hd_program_message message)
{
    return order->place_of[order->first_place[message.lane] + message.sequence];
}

/* `lane_of` [channel_count] */
static void order_fill(const struct hd_pipeline *pipeline, const struct hd_issue *issue,
                       uint32_t rank, const uint32_t *lane_of, struct hd_order *order)
{
    const uint32_t begin = issue->begin[rank];
    uint32_t group_begin = 0;

    for (uint32_t place = 0; place < order->post_count; place++) {
        const uint32_t sender = issue->sender[begin + place];
        const uint32_t group_end = issue->group_end[begin + place] - begin;
        const uint32_t channel = hd_flow_out_channel(pipeline, &pipeline->actions[sender]);
        const struct hd_program_message message = {lane_of[channel], pipeline->sequence[sender]};
        order->posts[place] = (struct hd_order_post){
            .message = message,
            .is_send = pipeline->channels[channel].source == rank,
            .group_begin = group_begin,
            .group_left = group_end - place - 1,
        };
        order->place_of[order->first_place[message.lane] + message.sequence] = place;
        group_begin = place + 1 == group_end ? group_end : group_begin;
    }
}

static void *order_take(uint64_t count, uint64_t element_bytes)
{
    return hd_memory_take((count + 1) * element_bytes, 64, "program");
}

static hd_status order_make(const struct hd_pipeline *pipeline, const struct hd_program *program,
                            const struct hd_issue *issue, struct hd_order *order)
{
    uint32_t *lane_of = order_take(pipeline->channel_count, sizeof *lane_of);
    uint32_t message_count = 0;

    order->first_place = order_take(program->lane_count, sizeof *order->first_place);
    if (lane_of == NULL || order->first_place == NULL) {
        hd_memory_give(lane_of);
        return HD_NO_MEMORY;
    }
    for (uint32_t i = 0; i < program->lane_count; i++) {
        lane_of[program->lanes[i]] = i;
        order->first_place[i] = message_count;
        message_count += pipeline->channels[program->lanes[i]].message_count;
    }
    order->place_of = order_take(message_count, sizeof *order->place_of);
    order->post_count = issue->begin[program->rank + 1] - issue->begin[program->rank];
    order->posts = order_take(order->post_count, sizeof *order->posts);
    const bool has_all = order->place_of != NULL && order->posts != NULL;
    if (has_all) {
        order_fill(pipeline, issue, program->rank, lane_of, order);
    }
    hd_memory_give(lane_of);
    return has_all ? HD_OK : HD_NO_MEMORY;
}

hd_status hd_order_create(const struct hd_pipeline *pipeline, const struct hd_program *program,
                          struct hd_order *order, struct hd_problem *problem)
{
    struct hd_issue issue;

    *order = (struct hd_order){0};
    if (!pipeline->is_serial) {
        return HD_OK;
    }
    hd_status status = hd_issue_create(pipeline, &issue, problem);
    if (status != HD_OK) {
        return status;
    }
    status = order_make(pipeline, program, &issue, order);
    hd_issue_finish(&issue);
    if (status != HD_OK) {
        hd_order_finish(order);
        return hd_problem_no_memory(problem, 0, "the order of rank %u's transfers", program->rank);
    }
    return HD_OK;
}

void hd_order_finish(struct hd_order *order)
{
    hd_memory_give(order->posts);
    hd_memory_give(order->first_place);
    hd_memory_give(order->place_of);
    *order = (struct hd_order){0};
}

/* --- in a step ------------------------------------------------------------------------------ */

/* The order rules the remote lanes of a serial transport. */
static bool order_rules(const struct hd_act *act, const struct hd_lane *lane)
{
    return act->engine->order.post_count > 0 && !hd_lane_is_local(lane);
}

static bool order_can_post(const struct hd_order_post *post, const struct hd_lane *lanes)
{
    const struct hd_lane *lane = &lanes[post->message.lane];
    const uint64_t sequence = lane->base + post->message.sequence;

    return sequence <
           (post->is_send ? lane->written_count : lane->released_count + lane->channel->depth);
}

/* Posts what is wanted, up to the first group of which a member cannot be posted yet. */
static hd_status order_post(struct hd_order *order, struct hd_lane *lanes)
{
    while (order->posted_count < order->wanted_count) {
        const struct hd_order_post *group = &order->posts[order->posted_count];
        const uint32_t count = group->group_left + 1;
        for (uint32_t i = 0; i < count; i++) {
            if (!order_can_post(&group[i], lanes)) {
                return HD_OK;
            }
        }
        for (uint32_t i = 0; i < count; i++) {
            struct hd_lane *lane = &lanes[group[i].message.lane];
            HD_TRY(group[i].is_send ? hd_lane_send_next(lane, group[i].group_left)
                                    : hd_lane_post_next(lane, group[i].group_left));
            order->posted_count++;
        }
    }
    return HD_OK;
}

/* Posts the message with all that is before it, which law 7 has proved to be possible by now. */
static hd_status order_post_until(struct hd_engine *engine, struct hd_program_message message)
{
    struct hd_order *order = &engine->order;
    const uint32_t place = order_place_of(order, message);
    const uint32_t group_end = place + order->posts[place].group_left + 1;

    order->wanted_count = hd_max_u32(order->wanted_count, group_end);
    return order_post(order, engine->lanes);
}

hd_status hd_order_begin(const struct hd_act *act)
{
    struct hd_engine *engine = act->engine;
    struct hd_order *order = &engine->order;

    order->posted_count = 0;
    order->moved_count = 0;
    order->wanted_count = engine->setup.overlap ? order->post_count : 0;
    for (uint32_t i = 0; i < engine->lane_count; i++) {
        struct hd_lane *lane = &engine->lanes[i];
        hd_lane_begin(lane, engine->step_count);
        if (engine->setup.overlap && lane->is_target && !hd_lane_is_local(lane) &&
            !order_rules(act, lane)) {
            HD_TRY(hd_lane_post_all(lane));
        }
    }
    return order_post(order, engine->lanes);
}

hd_status hd_order_receive(const struct hd_act *act, struct hd_program_message message)
{
    struct hd_lane *lane = hd_act_lane(act, message);

    if (order_rules(act, lane)) {
        return order_post_until(act->engine, message);
    }
    return hd_lane_is_local(lane) ? HD_OK : hd_lane_post_until(lane, hd_act_sequence(act, message));
}

hd_status hd_order_send(const struct hd_act *act, struct hd_program_message message)
{
    struct hd_lane *lane = hd_act_lane(act, message);
    const uint64_t sequence = hd_act_sequence(act, message);
    const uint32_t step = act->input->step, microbatch = act->instruction->action.microbatch;

    if (!order_rules(act, lane)) {
        return hd_lane_send(lane, sequence, step, microbatch);
    }
    hd_lane_end_write(lane, sequence, step, microbatch);
    return order_post_until(act->engine, message);
}

hd_status hd_order_release(const struct hd_act *act, struct hd_program_message message)
{
    struct hd_lane *lane = hd_act_lane(act, message);

    HD_TRY(hd_lane_release(lane, hd_act_sequence(act, message)));
    if (order_rules(act, lane)) {
        return order_post(&act->engine->order, act->engine->lanes);
    }
    return act->engine->setup.overlap && !hd_lane_is_local(lane) ? hd_lane_post_all(lane) : HD_OK;
}

/* --- waits ----------------------------------------------------------------------------------- */

static hd_status order_wait_moved(const struct hd_act *act, const struct hd_order_post *post)
{
    const struct hd_engine *engine = act->engine;
    struct hd_lane *lane = hd_act_lane(act, post->message);
    const uint64_t sequence = hd_act_sequence(act, post->message);
    const bool is_in_place = (engine->transport_capabilities & HD_TRANSPORT_IN_PLACE) != 0;

    /* A released message may not be tested; in place, a sent slot becomes free only later. */
    if (lane->stream != NULL || (post->is_send ? is_in_place : sequence < lane->released_count)) {
        return HD_OK;
    }
    const hd_status status = hd_lane_test(lane, sequence);
    return status == HD_IN_PROGRESS ? hd_act_wait(act, HD_PHASE_ORDER, post->message) : status;
}

/* Waits until all posts before `end` have moved, one after another, so that the board names the
   transfer that the rank really waits for. */
static hd_status order_wait_until(const struct hd_act *act, uint32_t end)
{
    struct hd_order *order = &act->engine->order;

    for (; order->moved_count < end; order->moved_count++) {
        HD_TRY(order_wait_moved(act, &order->posts[order->moved_count]));
    }
    return HD_OK;
}

hd_status hd_order_wait(const struct hd_act *act, uint32_t phase, struct hd_program_message message)
{
    const struct hd_lane *lane = hd_act_lane(act, message);

    if (order_rules(act, lane)) {
        const struct hd_order *order = &act->engine->order;
        const uint32_t slots = phase == HD_PHASE_CREDIT ? lane->channel->send_depth : 0;
        struct hd_program_message before = message; /* the message that is in its slot */
        before.sequence -= slots;
        if (message.sequence >= slots) { /* a step leaves no transfer to the next one */
            HD_TRY(order_wait_until(act, order->posts[order_place_of(order, before)].group_begin));
        }
    }
    return hd_act_wait(act, phase, message);
}

/* In order, no transfer outlasts its step: else a rank at the end of a step could block another. */
hd_status hd_order_end(const struct hd_act *act)
{
    struct hd_engine *engine = act->engine;
    const uint64_t begin_ns = hd_now_ns();

    if (engine->order.post_count == 0) {
        return HD_OK;
    }
    assert(engine->order.posted_count == engine->order.post_count);
    const hd_status status = order_wait_until(act, engine->order.post_count);
    engine->recorder.times.wait_ns += hd_now_ns() - begin_ns;
    return status;
}
