#include "report/plan_json.h"

#include "base/json.h"

#include <math.h>

static void plan_json_add_list(struct cJSON *parent, const char *key, const uint32_t *values,
                               uint32_t count)
{
    struct cJSON *list = hd_json_array(parent, key);
    for (uint32_t i = 0; i < count; i++) {
        hd_json_u64(list, NULL, values[i]);
    }
}

static void plan_json_add_times(const struct hd_plan_facts *facts, struct cJSON *parent)
{
    const struct hd_timeline *timeline = facts->timeline;

    hd_json_text(parent, "timeline", hd_plan_timeline_name(timeline->kind));
    hd_json_number(parent, "ticks", timeline->length);
    hd_json_number(parent, "total_ticks", timeline->total);
    hd_json_number(parent, "empty_ticks", timeline->empty);
    hd_json_number(parent, "bubble", timeline->bubble);
    hd_json_number(parent, "bubble_over_ideal", timeline->bubble_over_ideal);
    if (timeline->kind == HD_TIMELINE_COSTED) {
        hd_json_number(parent, "transfer_ticks", timeline->transfer_ticks);
        hd_json_number(parent, "exposed_ticks", timeline->exposed_ticks);
        hd_json_number(parent, "straggler",
                       timeline->straggler == HD_NO_STRAGGLER ? (double)NAN
                                                              : (double)timeline->straggler);
    }
}

/* A costed plan has no classes: hidden and exposed are times there. */
static void plan_json_add_handoffs(const struct hd_plan_facts *facts, struct cJSON *parent)
{
    const struct hd_pipeline_handoffs *handoffs = &facts->timeline->handoffs;
    struct cJSON *object = hd_json_object(parent, "handoffs");

    hd_json_u64(object, "local", handoffs->local);
    if (facts->timeline->kind == HD_TIMELINE_COSTED) {
        hd_json_null(object, "hidden");
        hd_json_null(object, "exposed");
    } else {
        hd_json_u64(object, "hidden", handoffs->hidden);
        hd_json_u64(object, "exposed", handoffs->exposed);
    }
}

/* What law 7 costs; null if the transport is not serial. */
static void plan_json_add_serial(const struct hd_plan_facts *facts, struct cJSON *parent)
{
    if (facts->issue_order == NULL) {
        hd_json_null(parent, "serial");
        return;
    }
    struct cJSON *object = hd_json_object(parent, "serial");
    hd_json_text(object, "issue_order", facts->issue_order);
    if (facts->side_by_side_ticks > 0) {
        hd_json_number(object, "ticks", facts->timeline->length);
        hd_json_number(object, "side_by_side_ticks", facts->side_by_side_ticks);
    }
}

static void plan_json_add_channels(const struct hd_pipeline *pipeline, bool is_remote,
                                   const char *key, struct cJSON *parent)
{
    struct cJSON *list = hd_json_array(parent, key);
    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *channel = &pipeline->channels[i];
        if (hd_pipeline_is_remote(channel) != is_remote) {
            continue;
        }
        struct cJSON *item = hd_json_object(list, NULL);
        hd_json_u64(item, "boundary", channel->boundary);
        hd_json_text(item, "direction", channel->direction == HD_FORWARD ? "forward" : "backward");
        hd_json_u64(item, "source", channel->source);
        hd_json_u64(item, "target", channel->target);
        hd_json_u64(item, "depth", channel->depth);
        hd_json_u64(item, "slots", channel->slots);
        if (pipeline->replica_count > 1) {
            hd_json_u64(item, "replica", channel->replica);
        }
    }
}

static void plan_json_add_bytes(struct cJSON *parent, const char *key, const uint64_t *bytes)
{
    if (bytes != NULL) {
        hd_json_u64(parent, key, *bytes);
    } else {
        hd_json_null(parent, key);
    }
}

static void plan_json_add_memory(const struct hd_plan_facts *facts, struct cJSON *parent)
{
    struct cJSON *list = hd_json_array(parent, "memory");
    for (uint32_t rank = 0; rank < facts->pipeline->rank_count; rank++) {
        const struct hd_footprint *print = facts->footprints ? &facts->footprints[rank] : NULL;
        struct cJSON *item = hd_json_object(list, NULL);
        hd_json_u64(item, "rank", rank);
        plan_json_add_bytes(item, "state_bytes", print ? &print->state_bytes : NULL);
        plan_json_add_bytes(item, "payload_bytes", print ? &print->payload_bytes : NULL);
        plan_json_add_bytes(item, "transfer_bytes", print ? &print->transfer_bytes : NULL);
        plan_json_add_bytes(item, "scratch_bytes", print ? &print->scratch_bytes : NULL);
        plan_json_add_bytes(item, "total_bytes", print ? &print->total_bytes : NULL);
        if (print != NULL) {
            hd_json_flag(item, "fits", print->fits);
        } else {
            hd_json_null(item, "fits");
        }
    }
    hd_json_text(parent, "memory_source", facts->memory_source);
}

static void plan_json_add_actions(const struct hd_plan_facts *facts, struct cJSON *parent)
{
    const struct hd_pipeline *pipeline = facts->pipeline;
    struct cJSON *list = hd_json_array(parent, "actions");

    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        for (uint64_t i = pipeline->rank_begin[rank]; i < pipeline->rank_begin[rank + 1]; i++) {
            const struct hd_action *action = &pipeline->actions[i];
            const char kind[2] = {(char)action->kind, '\0'};
            struct cJSON *item = hd_json_object(list, NULL);
            hd_json_u64(item, "rank", rank);
            hd_json_number(item, "tick", facts->timeline->start[i]);
            hd_json_text(item, "kind", kind);
            hd_json_u64(item, "stage", action->stage);
            hd_json_u64(item, "microbatch", action->microbatch);
            if (pipeline->replica_count > 1) {
                hd_json_u64(item, "replica", action->replica);
            }
        }
    }
}

static void plan_json_add_steady(const struct hd_plan_facts *facts, struct cJSON *parent)
{
    if (facts->steady_from == 0 || facts->steady_from == UINT32_MAX) {
        hd_json_null(parent, "copies_steady_from");
    } else {
        hd_json_u64(parent, "copies_steady_from", facts->steady_from);
    }
}

/* By stage: slots of the payload pool and bytes of one; null if no kernel is known. */
static void plan_json_add_pools(const struct hd_plan_facts *facts, struct cJSON *parent)
{
    if (facts->needs == NULL) {
        hd_json_null(parent, "payload_slots");
        hd_json_null(parent, "payload_slot_bytes");
        return;
    }
    struct cJSON *slots = hd_json_array(parent, "payload_slots");
    struct cJSON *bytes = hd_json_array(parent, "payload_slot_bytes");
    for (uint32_t stage = 0; stage < facts->pipeline->stage_count; stage++) {
        const struct hd_stage_needs *needs = &facts->needs[stage];
        hd_json_u64(slots, NULL,
                    (uint64_t)facts->pipeline->payload_slots[stage] * needs->acquisitions);
        hd_json_u64(bytes, NULL, needs->payload_bytes);
    }
}

void hd_plan_json(const struct hd_plan_facts *facts, bool has_actions, struct cJSON *parent)
{
    const struct hd_pipeline *pipeline = facts->pipeline;

    hd_json_text(parent, "schedule", pipeline->schedule);
    hd_json_text(parent, "placement", hd_plan_placement(pipeline));
    hd_json_u64(parent, "ranks", pipeline->rank_count);
    hd_json_u64(parent, "stages", pipeline->stage_count);
    hd_json_u64(parent, "microbatches", pipeline->microbatch_count);
    plan_json_add_times(facts, parent);
    plan_json_add_list(parent, "peak_copies", pipeline->peak_copies, pipeline->rank_count);
    plan_json_add_steady(facts, parent);
    plan_json_add_list(parent, "retention", pipeline->retention, pipeline->stage_count);
    plan_json_add_pools(facts, parent);
    hd_json_u64(parent, "loss_rank", pipeline->loss_ranks[0]);
    plan_json_add_list(parent, "stage_rank", pipeline->stage_rank, pipeline->stage_count);
    plan_json_add_handoffs(facts, parent);
    plan_json_add_serial(facts, parent);
    plan_json_add_channels(pipeline, true, "channels", parent);
    plan_json_add_channels(pipeline, false, "local_channels", parent);
    hd_json_u64(parent, "transfers", facts->transfer_count);
    hd_json_u64(parent, "bytes_per_step", facts->transfer_bytes);
    hd_json_flag(parent, "ascending", pipeline->is_ascending);
    plan_json_add_memory(facts, parent);
    hd_json_text(parent, "hash", facts->hash);
    hd_json_number(parent, "plan_seconds", facts->plan_seconds);
    if (has_actions) {
        plan_json_add_actions(facts, parent);
    }
}
