/* What the core derives from a plan: channels, the asap timeline, depths and copies. */
#include "plan/derive.h"

#include "base/memory.h"
#include "base/number.h"
#include "plan/flow.h"
#include "plan/refuse.h"

#include <assert.h>

static void derive_place_channel(struct hd_pipeline *pipeline, uint32_t replica, uint32_t direction,
                                 uint32_t boundary)
{
    const uint32_t index = hd_pipeline_channel(pipeline, boundary, direction, replica);
    const uint32_t low = hd_flow_home(pipeline, replica, boundary);
    const uint32_t high = hd_flow_home(pipeline, replica, boundary + 1);
    struct hd_pipeline_channel *const channel = &pipeline->channels[index];

    channel->boundary = boundary;
    channel->direction = direction;
    channel->replica = replica;
    channel->source = direction == HD_FORWARD ? low : high;
    channel->target = direction == HD_FORWARD ? high : low;
}

static void derive_number_channels(struct hd_pipeline *pipeline)
{
    uint32_t counts[256] = {0};
    uint32_t begin = 0;

    for (uint32_t i = 0; i < pipeline->microbatch_count; i++) {
        counts[pipeline->replica_of[i]]++;
    }
    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        struct hd_pipeline_channel *const channel = &pipeline->channels[i];
        channel->message_count = counts[channel->replica];
        channel->message_begin = begin;
        channel->remote_index =
            hd_pipeline_is_remote(channel) ? pipeline->remote_count++ : HD_NO_CHANNEL;
        begin += channel->message_count;
    }
    assert(begin <= pipeline->action_count);
}

static void derive_number_messages(struct hd_pipeline *pipeline, uint32_t *sent)
{
    for (uint64_t i = 0; i < pipeline->action_count; i++) {
        const uint32_t index = hd_flow_out_channel(pipeline, &pipeline->actions[i]);
        if (index == HD_NO_CHANNEL) {
            pipeline->sequence[i] = HD_NO_ACTION;
            continue;
        }
        const uint32_t sequence = sent[index]++;
        pipeline->sequence[i] = sequence;
        pipeline->messages[pipeline->channels[index].message_begin + sequence] = (uint32_t)i;
    }
}

hd_status hd_derive_channels(struct hd_pipeline *pipeline, struct hd_problem *problem)
{
    const uint32_t directions = pipeline->is_forward_only ? 1 : 2;
    const uint32_t boundaries = pipeline->stage_count - 1;

    pipeline->channel_count = pipeline->replica_count * directions * boundaries;
    pipeline->channels = hd_plan_take(pipeline->channel_count, sizeof *pipeline->channels, problem);
    pipeline->sequence = hd_plan_take(pipeline->action_count, sizeof(uint32_t), problem);
    pipeline->messages = hd_plan_take(pipeline->action_count, sizeof(uint32_t), problem);
    uint32_t *const sent = hd_plan_take(pipeline->channel_count, sizeof *sent, problem);
    if (pipeline->channels == NULL || pipeline->sequence == NULL || pipeline->messages == NULL ||
        sent == NULL) {
        hd_memory_give(sent);
        return HD_NO_MEMORY;
    }
    for (uint32_t replica = 0; replica < pipeline->replica_count; replica++) {
        for (uint32_t boundary = 0; boundary < boundaries; boundary++) {
            derive_place_channel(pipeline, replica, HD_FORWARD, boundary);
            if (!pipeline->is_forward_only) {
                derive_place_channel(pipeline, replica, HD_BACKWARD, boundary);
            }
        }
    }
    derive_number_channels(pipeline);
    derive_number_messages(pipeline, sent);
    hd_memory_give(sent);
    return HD_OK;
}

static uint32_t derive_asap_end(const struct hd_pipeline *pipeline, uint32_t index)
{
    return pipeline->asap_start[index] + hd_action_ticks(pipeline->actions[index].kind);
}

hd_status hd_derive_asap(struct hd_pipeline *pipeline, struct hd_problem *problem)
{
    uint32_t *const order = hd_plan_take(pipeline->action_count, sizeof *order, problem);
    uint32_t *const ends = hd_plan_take(pipeline->rank_count, sizeof *ends, problem);
    hd_status status = HD_NO_MEMORY;

    pipeline->asap_start = hd_plan_take(pipeline->action_count, sizeof(uint32_t), problem);
    if (order != NULL && ends != NULL && pipeline->asap_start != NULL) {
        status = hd_flow_order(pipeline, false, order, problem);
    }
    for (uint64_t i = 0; status == HD_OK && i < pipeline->action_count; i++) {
        const uint32_t index = order[i];
        const struct hd_action *const action = &pipeline->actions[index];
        uint32_t *const end = &ends[hd_flow_home(pipeline, action->replica, action->stage)];
        const uint32_t producer = hd_flow_producer(pipeline, action);
        const uint32_t input = producer == HD_NO_ACTION ? 0 : derive_asap_end(pipeline, producer);
        pipeline->asap_start[index] = hd_max_u32(*end, input);
        *end = derive_asap_end(pipeline, index);
        pipeline->asap_ticks = hd_max_u32(pipeline->asap_ticks, *end);
    }
    hd_memory_give(ends);
    hd_memory_give(order);
    return status;
}

/* A message takes its slot when its source action starts, and releases it when its last reader
   ends. Within one tick releases come first. */
static uint32_t derive_find_depth(const struct hd_pipeline *pipeline,
                                  const struct hd_pipeline_channel *channel)
{
    const uint32_t *const messages = &pipeline->messages[channel->message_begin];
    uint32_t oldest = 0; /* the first message that is not yet released */
    uint32_t depth = 0;

    for (uint32_t taken = 0; taken < channel->message_count; taken++) {
        const uint32_t now = pipeline->asap_start[messages[taken]];
        while (oldest < taken) {
            const struct hd_action *const source = &pipeline->actions[messages[oldest]];
            if (derive_asap_end(pipeline, hd_flow_releaser(pipeline, source)) > now) {
                break;
            }
            oldest++;
        }
        depth = hd_max_u32(depth, taken - oldest + 1);
    }
    return depth;
}

void hd_derive_depths(struct hd_pipeline *pipeline)
{
    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        struct hd_pipeline_channel *const channel = &pipeline->channels[i];
        channel->depth = derive_find_depth(pipeline, channel);
        channel->slots = channel->depth + hd_pipeline_is_remote(channel);
    }
}

hd_status hd_derive_retention(struct hd_pipeline *pipeline, struct hd_problem *problem)
{
    const uint64_t homes = (uint64_t)pipeline->replica_count * pipeline->stage_count;
    uint32_t *const held = hd_plan_take(homes, sizeof *held, problem);

    if (held == NULL) {
        return HD_NO_MEMORY;
    }
    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        uint32_t copies = 0;
        for (uint64_t i = pipeline->rank_begin[rank]; i < pipeline->rank_begin[rank + 1]; i++) {
            const struct hd_action *const action = &pipeline->actions[i];
            const uint64_t home = (uint64_t)action->replica * pipeline->stage_count + action->stage;
            if (action->kind == HD_FORWARD) {
                uint32_t *const most = &pipeline->retention[action->stage];
                *most = hd_max_u32(*most, ++held[home]);
                pipeline->peak_copies[rank] = hd_max_u32(pipeline->peak_copies[rank], ++copies);
            }
            /* A forward-only step keeps nothing once the action is over. */
            if (action->kind == HD_BACKWARD || action->kind == HD_BACKWARD_WEIGHT ||
                pipeline->is_forward_only) {
                held[home]--;
                copies--;
            }
        }
    }
    for (uint32_t stage = 0; stage < pipeline->stage_count; stage++) {
        pipeline->payload_slots[stage] = pipeline->retention[stage];
    }
    hd_memory_give(held);
    return HD_OK;
}
