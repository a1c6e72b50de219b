/* Look-ups in a finished plan: channels, ranks, names; its hash and its end. */
#include "plan/pipeline.h"

#include "base/memory.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

void hd_pipeline_destroy(struct hd_pipeline *pipeline)
{
    if (pipeline == NULL) {
        return;
    }
    void *const owned[] = {pipeline->stage_rank,    pipeline->replica_of,  pipeline->rank_begin,
                           pipeline->actions,       pipeline->idle_before, pipeline->index_of,
                           pipeline->asap_start,    pipeline->sequence,    pipeline->messages,
                           pipeline->retention,     pipeline->peak_copies, pipeline->loss_ranks,
                           pipeline->payload_slots, pipeline->channels};
    for (uint32_t i = 0; i < sizeof owned / sizeof owned[0]; i++) {
        hd_memory_give(owned[i]);
    }
    hd_memory_give(pipeline);
}

uint32_t hd_pipeline_channel(const struct hd_pipeline *pipeline, uint32_t boundary,
                             uint32_t direction, uint32_t replica)
{
    const uint32_t boundary_count = pipeline->stage_count - 1;
    const uint32_t direction_count = pipeline->is_forward_only ? 1 : 2;

    assert(boundary < boundary_count && replica < pipeline->replica_count);
    assert(direction == HD_FORWARD || direction == HD_BACKWARD);
    if (direction == HD_FORWARD) {
        return replica * direction_count * boundary_count + boundary;
    }
    if (pipeline->is_forward_only) {
        return HD_NO_CHANNEL;
    }
    return (replica * direction_count + 1) * boundary_count + boundary;
}

uint32_t hd_pipeline_rank_of(const struct hd_pipeline *pipeline, uint64_t index)
{
    uint32_t low = 0;
    uint32_t high = pipeline->rank_count;

    assert(index < pipeline->action_count);
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (pipeline->rank_begin[middle] <= index) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

uint32_t hd_action_ticks(uint8_t kind)
{
    return kind == HD_BACKWARD ? 2 : 1;
}

const char *hd_action_text(const struct hd_action *action, char text[32])
{
    snprintf(text, 32, "%u%c%u%s", action->stage, action->kind, action->microbatch,
             action->replica > 0 ? "'" : "");
    return text;
}

const char *hd_action_place(const struct hd_pipeline *pipeline, uint64_t index, char place[64])
{
    const uint32_t rank = hd_pipeline_rank_of(pipeline, index);
    char text[32];

    snprintf(place, 64, "%s (action %llu)", hd_action_text(&pipeline->actions[index], text),
             (unsigned long long)(index - pipeline->rank_begin[rank] + 1));
    return place;
}

static void pipeline_hash_array(struct hd_hash *hash, const uint32_t *values, uint64_t count)
{
    hd_hash_add_u64(hash, count);
    for (uint64_t i = 0; i < count; i++) {
        hd_hash_add_u64(hash, values[i]);
    }
}

/* Hashes eight bytes for each action, in an order that does not depend on padding or byte order. */
static void pipeline_hash_actions(struct hd_hash *hash, const struct hd_pipeline *pipeline)
{
    uint8_t block[512][8];
    uint32_t filled = 0;

    for (uint64_t i = 0; i < pipeline->action_count; i++) {
        const struct hd_action *const action = &pipeline->actions[i];
        const uint64_t word = (uint64_t)action->stage << 50 | (uint64_t)action->microbatch << 32 |
                              (uint64_t)action->kind << 24 | (uint64_t)action->replica << 16 |
                              action->flags;
        for (uint32_t byte = 0; byte < 8; byte++) {
            block[filled][byte] = (uint8_t)(word >> (8 * byte));
        }
        filled++;
        if (filled == 512 || i + 1 == pipeline->action_count) {
            hd_hash_add(hash, block, (uint64_t)filled * 8);
            filled = 0;
        }
    }
}

void hd_pipeline_hash(const struct hd_pipeline *pipeline, struct hd_hash *hash)
{
    hd_hash_add_text(hash, pipeline->schedule);
    hd_hash_add_u64(hash, pipeline->rank_count);
    hd_hash_add_u64(hash, pipeline->stage_count);
    hd_hash_add_u64(hash, pipeline->microbatch_count);
    hd_hash_add_u64(hash, pipeline->replica_count);
    hd_hash_add_u64(hash, pipeline->is_forward_only);
    pipeline_hash_array(hash, pipeline->stage_rank,
                        (uint64_t)pipeline->replica_count * pipeline->stage_count);
    hd_hash_add(hash, pipeline->replica_of, pipeline->microbatch_count);
    for (uint32_t rank = 0; rank <= pipeline->rank_count; rank++) {
        hd_hash_add_u64(hash, pipeline->rank_begin[rank]);
    }
    pipeline_hash_actions(hash, pipeline);
    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        hd_hash_add_u64(hash, pipeline->channels[i].slots);
    }
    pipeline_hash_array(hash, pipeline->payload_slots, pipeline->stage_count);
    if (pipeline->is_serial) {
        hd_hash_add_text(hash, "serial");
        hd_hash_add_u64(hash, pipeline->issue_order);
    }
}
