/*
 * Law 6: the slots of channels and payload pools, and whether every rank still reaches its end.
 *
 * With the depths, or more, the plan ends whatever its actions and transfers cost.  With fewer
 * slots it may or may not: often any one channel can have one slot less, but not all of them
 * together.  So if a channel gets less than its depth, the plan is run with sources that wait for
 * the release of the message `slots` before their own.  A payload pool always needs H_s.
 */
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "plan/flow.h"
#include "plan/refuse.h"

#include <assert.h>

/* The numbers of one key of the ini file. */
struct slot_list {
    const char *key, *what;
    uint32_t count, wanted;
    const uint32_t *values;
};

static hd_status slots_check_list(const struct slot_list *list, struct hd_problem *problem)
{
    if (list->count > 1 && list->count != list->wanted) {
        hd_problem_key(problem, "%s", list->key);
        hd_problem_remedy(problem, "give auto, one number for all, or %u numbers", list->wanted);
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%u numbers for %u %s",
                              list->count, list->wanted, list->what);
    }
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->values[i] == 0) {
            hd_problem_key(problem, "%s", list->key);
            hd_problem_remedy(problem, "give at least 1, or auto");
            return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                                  "number %u is 0, but nothing can move without a slot", i + 1);
        }
    }
    return HD_OK;
}

/* What the list gives to member `index`: its own number, the one for all, or `otherwise`. */
static uint32_t slots_given(const uint32_t *values, uint32_t count, uint32_t index,
                            uint32_t otherwise)
{
    if (count == 0) {
        return otherwise;
    }
    return values[count == 1 ? 0 : index];
}

/* Appends " forward 8 8 7 backward 2 2 2", the depths of the remote channels. */
static void slots_append_depths(const struct hd_pipeline *pipeline, char *text,
                                uint32_t capacity_bytes)
{
    const uint32_t most_bytes = capacity_bytes - 8; /* leaves room for " ..." */
    uint32_t direction = 0;
    bool fits = true;

    for (uint32_t i = 0; fits && i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *const channel = &pipeline->channels[i];
        if (!hd_pipeline_is_remote(channel)) {
            continue;
        }
        if (channel->direction != direction) {
            direction = channel->direction;
            fits = hd_text_append(text, most_bytes, " %s",
                                  direction == HD_FORWARD ? "forward" : "backward");
        }
        fits = fits && hd_text_append(text, most_bytes, " %u", channel->depth);
    }
    if (!fits) {
        hd_text_append(text, capacity_bytes, " ...");
    }
}

/* Returns whether any channel gets less than its depth. */
static bool slots_set_transfer(struct hd_pipeline *pipeline, const struct hd_slot_request *request)
{
    bool is_short = false;

    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        struct hd_pipeline_channel *const channel = &pipeline->channels[i];
        if (hd_pipeline_is_remote(channel)) {
            channel->slots = slots_given(request->transfer, request->transfer_count,
                                         channel->remote_index, channel->depth + 1);
            is_short = is_short || channel->slots < channel->depth;
        }
    }
    return is_short;
}

/* A plan that then deadlocks is refused, and its channels keep the slots that they had. */
static hd_status slots_give_transfer(struct hd_pipeline *pipeline,
                                     const struct hd_slot_request *request,
                                     struct hd_problem *problem)
{
    uint32_t *const before = hd_plan_take(pipeline->channel_count, sizeof *before, problem);
    hd_status status = HD_OK;

    if (before == NULL) {
        return HD_NO_MEMORY;
    }
    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        before[i] = pipeline->channels[i].slots;
    }
    if (slots_set_transfer(pipeline, request)) {
        status = hd_flow_order(pipeline, true, NULL, problem);
    }
    if (status != HD_OK) {
        for (uint32_t i = 0; i < pipeline->channel_count; i++) {
            pipeline->channels[i].slots = before[i];
        }
    }
    if (problem->law == 6) {
        hd_problem_key(problem, "pipeline.transfer_slots");
        hd_problem_remedy(problem, "give auto, or the depths by boundary,");
        slots_append_depths(pipeline, problem->remedy, sizeof problem->remedy);
    }
    hd_memory_give(before);
    return status;
}

/* The first forward on `rank` that finds no free slot, and the action that would release one. */
struct full_pool {
    uint32_t rank, stage, slots;
    uint64_t forward, release; /* action indices */
};

static bool slots_find_full_pool(const struct hd_pipeline *pipeline, struct full_pool *pool)
{
    const uint64_t end = pipeline->rank_begin[pool->rank + 1];
    uint32_t held = 0;
    bool is_full = false;

    for (uint64_t i = pipeline->rank_begin[pool->rank]; i < end; i++) {
        const struct hd_action *const action = &pipeline->actions[i];
        if (action->stage != pool->stage) {
            continue;
        }
        if (action->kind == HD_FORWARD && held == pool->slots && !is_full) {
            pool->forward = i;
            is_full = true;
        } else if (action->kind == HD_FORWARD) {
            held++;
        }
        if (i == hd_flow_payload_end(pipeline, pool->stage, action->microbatch)) {
            if (is_full) {
                pool->release = i;
                return true;
            }
            held--;
        }
    }
    return false;
}

static hd_status slots_refuse_pool(const struct hd_pipeline *pipeline, uint32_t stage,
                                   uint32_t slots, struct hd_problem *problem)
{
    struct full_pool pool = {
        .rank = hd_flow_home(pipeline, 0, stage), .stage = stage, .slots = slots};
    uint32_t replica = 0;
    char places[2][64];

    while (!slots_find_full_pool(pipeline, &pool)) {
        replica++;
        assert(replica < pipeline->replica_count);
        pool.rank = hd_flow_home(pipeline, replica, stage);
    }
    problem->cycle[0] = '\0';
    hd_text_append(problem->cycle, sizeof problem->cycle, "rank %u at %s waits for %s", pool.rank,
                   hd_action_place(pipeline, pool.forward, places[0]),
                   hd_action_place(pipeline, pool.release, places[1]));
    hd_problem_key(problem, "pipeline.payload_slots");
    hd_problem_remedy(problem, "give auto, or at least %u", pipeline->retention[stage]);
    return hd_law_refuse(problem, 6, pool.rank, "stage %u needs %u slots, but has %u", stage,
                         pipeline->retention[stage], slots);
}

static hd_status slots_check_pools(const struct hd_pipeline *pipeline,
                                   const struct hd_slot_request *request,
                                   struct hd_problem *problem)
{
    for (uint32_t stage = 0; stage < pipeline->stage_count; stage++) {
        const uint32_t slots = slots_given(request->payload, request->payload_count, stage,
                                           pipeline->retention[stage]);
        if (slots < pipeline->retention[stage]) {
            return slots_refuse_pool(pipeline, stage, slots, problem);
        }
    }
    return HD_OK;
}

void hd_pipeline_log(const struct hd_pipeline *pipeline)
{
    char text[512] = "";

    for (uint32_t i = 0; i < pipeline->replica_count * pipeline->stage_count; i++) {
        if (!hd_text_append(text, sizeof text - 8, " %u", pipeline->stage_rank[i])) {
            hd_text_append(text, sizeof text, " ...");
            break;
        }
    }
    hd_log(HD_LOG_DEBUG,
           "plan: %s: %u ranks, %u stages, %u microbatches, %llu actions, %u ticks asap; stages on "
           "ranks%s",
           pipeline->schedule, pipeline->rank_count, pipeline->stage_count,
           pipeline->microbatch_count, (unsigned long long)pipeline->action_count,
           pipeline->asap_ticks, text);
    text[0] = '\0';
    slots_append_depths(pipeline, text, sizeof text);
    hd_log(HD_LOG_DEBUG, "plan: depths of the channels%s", text);
}

hd_status hd_pipeline_give_slots(struct hd_pipeline *pipeline,
                                 const struct hd_slot_request *request, struct hd_problem *problem)
{
    const struct slot_list transfer = {"pipeline.transfer_slots", "remote channels",
                                       request->transfer_count, pipeline->remote_count,
                                       request->transfer};
    const struct slot_list payload = {"pipeline.payload_slots", "stages", request->payload_count,
                                      pipeline->stage_count, request->payload};
    hd_status status = slots_check_list(&transfer, problem);

    if (status == HD_OK) {
        status = slots_check_list(&payload, problem);
    }
    if (status == HD_OK) {
        status = slots_check_pools(pipeline, request, problem);
    }
    if (status == HD_OK) {
        status = slots_give_transfer(pipeline, request, problem);
    }
    if (status != HD_OK) {
        return status;
    }
    for (uint32_t stage = 0; stage < pipeline->stage_count; stage++) {
        pipeline->payload_slots[stage] = slots_given(request->payload, request->payload_count,
                                                     stage, pipeline->retention[stage]);
    }
    return HD_OK;
}

/* A serial transport waits for a send slot where the plan's source waits for a release.  The plan
   proves that there is no cycle in fewer slots only if every channel has its depth (serial.c). */
bool hd_pipeline_needs_all_sends(const struct hd_pipeline *pipeline, bool has_overlap)
{
    bool lacks_slots = pipeline->issue_order == HD_ISSUE_PROGRAM;

    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        lacks_slots |= pipeline->channels[i].slots < pipeline->channels[i].depth;
    }
    return !has_overlap || (pipeline->is_serial && lacks_slots);
}
