#include "engine/order.h"
#include "base/memory.h"
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
    const uint32_t has_all = order->place_of != NULL && order->posts != NULL;
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
        return hd_problem_set(problem, status, HD_EXIT_FAILED,
                              "no memory for the order of rank %u's transfers", program->rank);
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

void hd_order_begin(struct hd_order *order, uint32_t is_eager)
{
    order->gone_count = 0;
    order->moved_count = 0;
    order->wanted_count = is_eager ? order->post_count : 0;
}

void hd_order_want(struct hd_order *order, struct hd_program_message message)
{
    const uint32_t place = order_place_of(order, message);
    const uint32_t group_end = place + order->posts[place].group_left + 1;

    if (group_end > order->wanted_count) {
        order->wanted_count = group_end;
    }
}

static uint32_t order_can_go(const struct hd_order_post *post, const struct hd_lane *lanes)
{
    const struct hd_lane *lane = &lanes[post->message.lane];
    const uint64_t sequence = lane->base + post->message.sequence;

    return sequence <
           (post->is_send ? lane->written_count : lane->released_count + lane->channel->slots);
}

hd_status hd_order_post(struct hd_order *order, struct hd_lane *lanes)
{
    hd_status status = HD_OK;

    while (status == HD_OK && order->gone_count < order->wanted_count) {
        const struct hd_order_post *group = &order->posts[order->gone_count];
        const uint32_t count = group->group_left + 1;
        for (uint32_t i = 0; i < count; i++) {
            if (!order_can_go(&group[i], lanes)) {
                return HD_OK;
            }
        }
        for (uint32_t i = 0; status == HD_OK && i < count; i++) {
            struct hd_lane *lane = &lanes[group[i].message.lane];
            status = group[i].is_send ? hd_lane_send_next(lane, group[i].group_left)
                                      : hd_lane_post_next(lane, group[i].group_left);
            order->gone_count += status == HD_OK;
        }
    }
    return status;
}

uint32_t hd_order_group(const struct hd_order *order, struct hd_program_message message)
{
    return order->posts[order_place_of(order, message)].group_begin;
}
