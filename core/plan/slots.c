/*
 * Law 6: the slots that channels and pools are given, and whether every rank still ends.
 *
 * The vector of depths ends for every timing, and more slots never hurt.  Fewer may or may not:
 * single channels can often shrink where all of them together cannot, so what is below a depth is
 * run, with a source that waits for the release of the message `slots` before its own.  A payload
 * pool knows no such choice: its stage needs H_s.
 */
#include "base/memory.h"
#include "base/text.h"
#include "plan/derive.h"
#include "plan/flow.h"

#include <assert.h>

/* What stands under one key of the ini file. */
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
                                  "number %u is 0, and nothing moves without a slot", i + 1);
        }
    }
    return HD_OK;
}

/* "the depths by boundary are 8 8 7 forward, 2 2 2 backward": the vector that always ends. */
static void slots_write_depths(const struct hd_pipeline *pipeline, struct hd_problem *problem)
{
    char *const text = problem->remedy;
    const uint32_t capacity_bytes = sizeof problem->remedy - 8;
    uint32_t direction = 0;
    int fits = 1;

    text[0] = '\0';
    hd_text_append(text, capacity_bytes, "give auto, or the depths by boundary,");
    for (uint32_t i = 0; fits && i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *const channel = &pipeline->channels[i];
        if (!hd_pipeline_is_remote(channel)) {
            continue;
        }
        if (channel->direction != direction) {
            direction = channel->direction;
            hd_text_append(text, capacity_bytes, " %s",
                           direction == HD_FORWARD ? "forward" : "backward");
        }
        fits = hd_text_append(text, capacity_bytes, " %u", channel->depth);
    }
    if (!fits) {
        hd_text_append(text, sizeof problem->remedy, " ...");
    }
}

static void slots_set_transfer(struct hd_pipeline *pipeline, const struct hd_slot_request *request)
{
    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        struct hd_pipeline_channel *const channel = &pipeline->channels[i];
        if (hd_pipeline_is_remote(channel) && request->transfer_count == 0) {
            channel->slots = channel->depth + 1;
        } else if (hd_pipeline_is_remote(channel)) {
            channel->slots =
                request->transfer[request->transfer_count == 1 ? 0 : channel->remote_index];
        }
    }
}

/* A source that never ends its plan is refused; the channels then keep what they had. */
static hd_status slots_give_transfer(struct hd_pipeline *pipeline,
                                     const struct hd_slot_request *request,
                                     struct hd_problem *problem)
{
    uint32_t *const before = hd_plan_take(pipeline->channel_count, sizeof *before, problem);
    uint32_t is_short = 0;
    hd_status status = HD_OK;

    if (before == NULL) {
        return HD_NO_MEMORY;
    }
    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        before[i] = pipeline->channels[i].slots;
    }
    slots_set_transfer(pipeline, request);
    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        is_short |= pipeline->channels[i].slots < pipeline->channels[i].depth;
    }
    if (is_short) {
        status = hd_flow_order(pipeline, 1, NULL, problem);
    }
    if (status != HD_OK) {
        for (uint32_t i = 0; i < pipeline->channel_count; i++) {
            pipeline->channels[i].slots = before[i];
        }
    }
    if (problem->law == 6) {
        hd_problem_key(problem, "pipeline.transfer_slots");
        slots_write_depths(pipeline, problem);
    }
    hd_memory_give(before);
    return status;
}

/* The forward that finds no slot on `rank`, and the pass of the same rank that would give one. */
struct full_pool {
    uint32_t rank, stage, slots;
    uint64_t forward, release; /* action indices */
};

static int slots_find_full_pool(const struct hd_pipeline *pipeline, struct full_pool *pool)
{
    const uint64_t end = pipeline->rank_begin[pool->rank + 1];
    uint32_t held = 0;
    int is_full = 0;

    for (uint64_t i = pipeline->rank_begin[pool->rank]; i < end; i++) {
        const struct hd_action *const action = &pipeline->actions[i];
        if (action->stage != pool->stage) {
            continue;
        }
        if (action->kind == HD_FORWARD && held == pool->slots && !is_full) {
            pool->forward = i;
            is_full = 1;
        } else if (action->kind == HD_FORWARD) {
            held++;
        }
        if (i == hd_flow_payload_end(pipeline, pool->stage, action->microbatch)) {
            if (is_full) {
                pool->release = i;
                return 1;
            }
            held--;
        }
    }
    return 0;
}

static hd_status slots_refuse_pool(const struct hd_pipeline *pipeline, uint32_t stage,
                                   uint32_t slots, struct hd_problem *problem)
{
    struct full_pool pool = {
        .rank = hd_flow_home(pipeline, 0, stage), .stage = stage, .slots = slots};
    uint32_t replica = 0;
    char texts[2][32];

    while (!slots_find_full_pool(pipeline, &pool)) {
        replica++;
        assert(replica < pipeline->replica_count);
        pool.rank = hd_flow_home(pipeline, replica, stage);
    }
    const uint64_t begin = pipeline->rank_begin[pool.rank];
    hd_action_text(&pipeline->actions[pool.forward], texts[0]);
    hd_action_text(&pipeline->actions[pool.release], texts[1]);
    problem->cycle[0] = '\0';
    hd_text_append(problem->cycle, sizeof problem->cycle,
                   "rank %u at %s, action %llu, waits %s, its action %llu", pool.rank, texts[0],
                   (unsigned long long)(pool.forward - begin + 1), texts[1],
                   (unsigned long long)(pool.release - begin + 1));
    hd_problem_key(problem, "pipeline.payload_slots");
    hd_problem_remedy(problem, "give auto, or at least %u", pipeline->retention[stage]);
    return hd_law_refuse(problem, 6, pool.rank, "stage %u needs %u slots, has %u", stage,
                         pipeline->retention[stage], slots);
}

static hd_status slots_check_pools(const struct hd_pipeline *pipeline,
                                   const struct hd_slot_request *request,
                                   struct hd_problem *problem)
{
    for (uint32_t stage = 0; request->payload_count > 0 && stage < pipeline->stage_count; stage++) {
        const uint32_t slots = request->payload[request->payload_count == 1 ? 0 : stage];
        if (slots < pipeline->retention[stage]) {
            return slots_refuse_pool(pipeline, stage, slots, problem);
        }
    }
    return HD_OK;
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
    for (uint32_t stage = 0; status == HD_OK && stage < pipeline->stage_count; stage++) {
        pipeline->payload_slots[stage] =
            request->payload_count == 0 ? pipeline->retention[stage]
                                        : request->payload[request->payload_count == 1 ? 0 : stage];
    }
    return status;
}
