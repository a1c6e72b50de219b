#include "plan/issue.h"

#include "base/memory.h"
#include "plan/flow.h"
#include "plan/refuse.h"

#include <assert.h>

const char *hd_issue_name(uint32_t order)
{
    static const char *const names[] = {"canonical", "grouped", "program"};
    assert(order <= HD_ISSUE_PROGRAM);
    return names[order];
}

uint32_t hd_issue_source(const struct hd_pipeline *pipeline, uint32_t sender)
{
    const struct hd_action *const action = &pipeline->actions[sender];
    return hd_flow_home(pipeline, action->replica, action->stage);
}

uint32_t hd_issue_target(const struct hd_pipeline *pipeline, uint32_t sender)
{
    const uint32_t channel = hd_flow_out_channel(pipeline, &pipeline->actions[sender]);
    return pipeline->channels[channel].target;
}

static uint32_t issue_end_tick(const struct hd_pipeline *pipeline, uint32_t index)
{
    return pipeline->asap_start[index] + hd_action_ticks(pipeline->actions[index].kind);
}

/* Channel number `place` in the order that breaks ties: boundary, backward first, replica. */
static uint32_t issue_nth_channel(const struct hd_pipeline *pipeline, uint32_t place)
{
    const uint32_t replica = place % pipeline->replica_count;
    place /= pipeline->replica_count;
    if (pipeline->is_forward_only) {
        return hd_pipeline_channel(pipeline, place, HD_FORWARD, replica);
    }
    return hd_pipeline_channel(pipeline, place / 2, place % 2 == 0 ? HD_BACKWARD : HD_FORWARD,
                               replica);
}

/* Sorts all remote messages by the end of their producer: a stable counting sort.  Two messages of
   one channel never end at one tick. */
static void issue_sort_messages(const struct hd_pipeline *pipeline, uint32_t *places,
                                uint32_t *sorted)
{
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < pipeline->channel_count; i++) {
            const struct hd_pipeline_channel *const channel =
                &pipeline->channels[issue_nth_channel(pipeline, i)];
            for (uint32_t j = 0; hd_pipeline_is_remote(channel) && j < channel->message_count;
                 j++) {
                const uint32_t sender = pipeline->messages[channel->message_begin + j];
                const uint32_t tick = issue_end_tick(pipeline, sender);
                if (pass == 0) {
                    places[tick + 1]++;
                } else {
                    sorted[places[tick]++] = sender;
                }
            }
        }
        for (uint32_t tick = 0; pass == 0 && tick <= pipeline->asap_ticks; tick++) {
            places[tick + 1] += places[tick];
        }
    }
}

static void issue_count_lists(const struct hd_pipeline *pipeline, struct hd_issue *issue)
{
    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *const channel = &pipeline->channels[i];
        if (hd_pipeline_is_remote(channel)) {
            issue->begin[channel->source + 1] += channel->message_count;
            issue->begin[channel->target + 1] += channel->message_count;
        }
    }
    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        issue->begin[rank + 1] += issue->begin[rank];
    }
    issue->count = issue->begin[pipeline->rank_count];
}

/* Copies one order to the lists of all ranks; tails[rank] is where the next entry goes. */
static hd_status issue_fill_canonical(const struct hd_pipeline *pipeline, struct hd_issue *issue,
                                      uint32_t *tails, struct hd_problem *problem)
{
    uint32_t *const sorted = hd_plan_take(issue->count / 2, sizeof *sorted, problem);
    uint32_t *const places =
        hd_plan_take((uint64_t)pipeline->asap_ticks + 2, sizeof *places, problem);
    const hd_status status = sorted != NULL && places != NULL ? HD_OK : HD_NO_MEMORY;

    if (status == HD_OK) {
        issue_sort_messages(pipeline, places, sorted);
        for (uint64_t i = 0; i < issue->count / 2; i++) {
            issue->sender[tails[hd_issue_source(pipeline, sorted[i])]++] = sorted[i];
            issue->sender[tails[hd_issue_target(pipeline, sorted[i])]++] = sorted[i];
        }
    }
    hd_memory_give(places);
    hd_memory_give(sorted);
    return status;
}

static bool issue_sends_remote(const struct hd_pipeline *pipeline, uint32_t index)
{
    const uint32_t channel = hd_flow_out_channel(pipeline, &pipeline->actions[index]);
    return channel != HD_NO_CHANNEL && hd_pipeline_is_remote(&pipeline->channels[channel]);
}

static void issue_fill_program(const struct hd_pipeline *pipeline, struct hd_issue *issue,
                               uint32_t *tails)
{
    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        for (uint64_t i = pipeline->rank_begin[rank]; i < pipeline->rank_begin[rank + 1]; i++) {
            const uint32_t producer = hd_flow_producer(pipeline, &pipeline->actions[i]);
            if (producer != HD_NO_ACTION && issue_sends_remote(pipeline, producer)) {
                issue->sender[tails[rank]++] = producer;
            }
            if (issue_sends_remote(pipeline, (uint32_t)i)) {
                issue->sender[tails[rank]++] = (uint32_t)i;
            }
        }
    }
}

/* Transfers of one tick do not wait for each other, so a rank may post them together. */
static void issue_mark_groups(const struct hd_pipeline *pipeline, struct hd_issue *issue)
{
    const uint32_t group_max = pipeline->issue_order == HD_ISSUE_GROUPED ? HD_ISSUE_GROUP_MAX : 1;

    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        uint32_t end = issue->begin[rank];
        for (uint32_t first = end; first < issue->begin[rank + 1]; first = end) {
            const uint32_t tick = issue_end_tick(pipeline, issue->sender[first]);
            while (end < issue->begin[rank + 1] && end < first + group_max &&
                   issue_end_tick(pipeline, issue->sender[end]) == tick) {
                end++;
            }
            for (uint32_t i = first; i < end; i++) {
                issue->group_end[i] = end;
            }
        }
    }
}

hd_status hd_issue_create(const struct hd_pipeline *pipeline, struct hd_issue *issue,
                          struct hd_problem *problem)
{
    const uint64_t ranks = pipeline->rank_count;
    uint32_t *const tails = hd_plan_take(ranks, sizeof *tails, problem);
    hd_status status = HD_NO_MEMORY;

    *issue = (struct hd_issue){.begin = hd_plan_take(ranks + 1, sizeof *issue->begin, problem)};
    if (tails != NULL && issue->begin != NULL) {
        issue_count_lists(pipeline, issue);
        issue->sender = hd_plan_take(issue->count, sizeof *issue->sender, problem);
        issue->group_end = hd_plan_take(issue->count, sizeof *issue->group_end, problem);
    }
    if (issue->sender != NULL && issue->group_end != NULL) {
        for (uint32_t rank = 0; rank < ranks; rank++) {
            tails[rank] = issue->begin[rank];
        }
        status = HD_OK;
        if (pipeline->issue_order == HD_ISSUE_PROGRAM) {
            issue_fill_program(pipeline, issue, tails);
        } else {
            status = issue_fill_canonical(pipeline, issue, tails, problem);
        }
    }
    hd_memory_give(tails);
    if (status != HD_OK) {
        hd_issue_finish(issue);
        return status;
    }
    issue_mark_groups(pipeline, issue);
    return HD_OK;
}

void hd_issue_finish(struct hd_issue *issue)
{
    hd_memory_give(issue->group_end);
    hd_memory_give(issue->sender);
    hd_memory_give(issue->begin);
    *issue = (struct hd_issue){0};
}
