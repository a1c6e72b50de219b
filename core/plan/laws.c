/*
 * Laws 3, 1, 2, 5 and 8, which look actions up and do not run the plan.  flow.c checks law 4,
 * slots.c law 6, serial.c law 7.
 */
#include "plan/derive.h"

#include "base/memory.h"
#include "plan/flow.h"
#include "plan/refuse.h"

#include <assert.h>
#include <string.h>

static const char *const laws_pass_names[HD_PASS_COUNT] = {"forwards", "backwards",
                                                           "weight passes"};

static hd_status laws_refuse_home(const struct hd_pipeline *pipeline, uint32_t rank, uint64_t index,
                                  struct hd_problem *problem)
{
    const struct hd_action *const action = &pipeline->actions[index];
    char place[64];

    hd_action_place(pipeline, index, place);
    if (action->stage >= pipeline->stage_count) {
        hd_problem_remedy(problem, "name a stage below %u", pipeline->stage_count);
        return hd_law_refuse(problem, 3, rank, "%s names stage %u, but the last stage is %u", place,
                             action->stage, pipeline->stage_count - 1);
    }
    if (action->replica >= pipeline->replica_count) {
        hd_problem_remedy(problem, "name a replica below %u", pipeline->replica_count);
        return hd_law_refuse(problem, 3, rank, "%s names replica %u, but the last replica is %u",
                             place, action->replica, pipeline->replica_count - 1);
    }
    const uint32_t home = hd_flow_home(pipeline, action->replica, action->stage);
    hd_problem_remedy(problem, "move it to rank %u", home);
    return hd_law_refuse(problem, 3, rank, "%s is not at home: stage %u is placed on rank %u",
                         place, action->stage, home);
}

hd_status hd_laws_home(struct hd_pipeline *pipeline, struct hd_problem *problem)
{
    assert(pipeline->rank_count > 0 && pipeline->replica_count > 0);
    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        for (uint64_t i = pipeline->rank_begin[rank]; i < pipeline->rank_begin[rank + 1]; i++) {
            const struct hd_action *const action = &pipeline->actions[i];
            if (action->stage >= pipeline->stage_count ||
                action->replica >= pipeline->replica_count ||
                hd_flow_home(pipeline, action->replica, action->stage) != rank) {
                return laws_refuse_home(pipeline, rank, i, problem);
            }
        }
    }
    return HD_OK;
}

/* HD_PASS_COUNT if a step has no such kind. */
static enum hd_pass_kind laws_pass_of(uint8_t kind)
{
    switch (kind) {
    case HD_FORWARD:
        return HD_PASS_FORWARD;
    case HD_BACKWARD:
    case HD_BACKWARD_INPUT:
        return HD_PASS_BACKWARD;
    case HD_BACKWARD_WEIGHT:
        return HD_PASS_WEIGHT;
    default:
        return HD_PASS_COUNT;
    }
}

static hd_status laws_refuse_foreign(const struct hd_pipeline *pipeline, uint32_t rank,
                                     uint64_t index, struct hd_problem *problem)
{
    const struct hd_action *const action = &pipeline->actions[index];
    char place[64];

    if (laws_pass_of(action->kind) == HD_PASS_COUNT) {
        return hd_law_refuse(problem, 1, rank, "action %llu has the unknown kind %u",
                             (unsigned long long)(index - pipeline->rank_begin[rank] + 1),
                             action->kind);
    }
    hd_action_place(pipeline, index, place);
    if (action->microbatch >= pipeline->microbatch_count) {
        return hd_law_refuse(problem, 1, rank, "%s names microbatch %u, but the last one is %u",
                             place, action->microbatch, pipeline->microbatch_count - 1);
    }
    if (action->replica != pipeline->replica_of[action->microbatch]) {
        return hd_law_refuse(
            problem, 1, rank, "%s names replica %u, but microbatch %u runs in replica %u", place,
            action->replica, action->microbatch, pipeline->replica_of[action->microbatch]);
    }
    return hd_law_refuse(problem, 1, rank, "%s is not a forward, but the plan is forward-only",
                         place);
}

static hd_status laws_refuse_double(const struct hd_pipeline *pipeline, uint32_t first,
                                    uint64_t second, struct hd_problem *problem)
{
    char places[2][64];

    hd_problem_remedy(problem, "remove one of them");
    return hd_law_refuse(problem, 1, hd_pipeline_rank_of(pipeline, first),
                         "%s and %s do the same work", hd_action_place(pipeline, first, places[0]),
                         hd_action_place(pipeline, second, places[1]));
}

/* Enters every action under its pass, stage and microbatch; refuses the first that does not fit. */
static hd_status laws_fill_index(struct hd_pipeline *pipeline, struct hd_problem *problem)
{
    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        for (uint64_t i = pipeline->rank_begin[rank]; i < pipeline->rank_begin[rank + 1]; i++) {
            const struct hd_action *const action = &pipeline->actions[i];
            const enum hd_pass_kind pass = laws_pass_of(action->kind);
            if (pass == HD_PASS_COUNT || action->microbatch >= pipeline->microbatch_count ||
                action->replica != pipeline->replica_of[action->microbatch] ||
                (pipeline->is_forward_only && pass != HD_PASS_FORWARD)) {
                return laws_refuse_foreign(pipeline, rank, i, problem);
            }
            const uint64_t row = (uint64_t)pass * pipeline->stage_count + action->stage;
            uint32_t *const entry =
                &pipeline->index_of[row * pipeline->microbatch_count + action->microbatch];
            if (*entry != HD_NO_ACTION) {
                return laws_refuse_double(pipeline, *entry, i, problem);
            }
            *entry = (uint32_t)i;
            pipeline->is_split |= pass == HD_PASS_WEIGHT || action->kind == HD_BACKWARD_INPUT;
        }
    }
    return HD_OK;
}

static hd_status laws_refuse_missing(const struct hd_pipeline *pipeline, enum hd_pass_kind pass,
                                     uint32_t stage, uint32_t microbatch,
                                     struct hd_problem *problem)
{
    const uint8_t replica = pipeline->replica_of[microbatch];
    const uint8_t kinds[HD_PASS_COUNT] = {HD_FORWARD, HD_BACKWARD, HD_BACKWARD_WEIGHT};
    const struct hd_action action = {stage, microbatch, kinds[pass], replica, 0, 0};
    const uint32_t rank = hd_flow_home(pipeline, replica, stage);
    uint32_t found = 0;
    uint32_t wanted = 0;
    char text[32];

    for (uint32_t other = 0; other < pipeline->microbatch_count; other++) {
        wanted += pipeline->replica_of[other] == replica;
        found += pipeline->replica_of[other] == replica &&
                 hd_pipeline_find(pipeline, pass, stage, other) != HD_NO_ACTION;
    }
    hd_action_text(&action, text);
    hd_problem_remedy(problem, "add it to rank %u", rank);
    return hd_law_refuse(problem, 1, rank, "%s is missing: stage %u has %u of %u %s", text, stage,
                         found, wanted, laws_pass_names[pass]);
}

/* Each I has its W, and a B has none. */
static hd_status laws_check_halves(const struct hd_pipeline *pipeline, uint32_t stage,
                                   uint32_t microbatch, struct hd_problem *problem)
{
    const uint32_t backward = hd_pipeline_find(pipeline, HD_PASS_BACKWARD, stage, microbatch);
    const uint32_t weight = hd_pipeline_find(pipeline, HD_PASS_WEIGHT, stage, microbatch);

    if (pipeline->actions[backward].kind == HD_BACKWARD) {
        return weight == HD_NO_ACTION ? HD_OK
                                      : laws_refuse_double(pipeline, backward, weight, problem);
    }
    return weight != HD_NO_ACTION
               ? HD_OK
               : laws_refuse_missing(pipeline, HD_PASS_WEIGHT, stage, microbatch, problem);
}

/* A table with one mistyped cell may name so large a stage or microbatch that the index would take
   gigabytes and remain almost empty. */
static bool laws_is_hopeless(const struct hd_pipeline *pipeline)
{
    const uint64_t forwards = (uint64_t)pipeline->stage_count * pipeline->microbatch_count;
    return pipeline->action_count < forwards / 64;
}

hd_status hd_laws_complete(struct hd_pipeline *pipeline, struct hd_problem *problem)
{
    const uint64_t count =
        (uint64_t)HD_PASS_COUNT * pipeline->stage_count * pipeline->microbatch_count;

    if (laws_is_hopeless(pipeline)) {
        hd_problem_remedy(problem, "look for a stage or a microbatch with one digit too many");
        return hd_law_refuse(problem, 1, 0,
                             "the plan has %llu actions, but needs %llu forwards for %u stages and "
                             "%u microbatches",
                             (unsigned long long)pipeline->action_count,
                             (unsigned long long)count / HD_PASS_COUNT, pipeline->stage_count,
                             pipeline->microbatch_count);
    }
    pipeline->index_of = hd_plan_take(count, sizeof *pipeline->index_of, problem);
    if (pipeline->index_of == NULL) {
        return HD_NO_MEMORY;
    }
    memset(pipeline->index_of, 0xff, count * sizeof *pipeline->index_of);
    hd_status status = laws_fill_index(pipeline, problem);
    const enum hd_pass_kind last = pipeline->is_forward_only ? HD_PASS_FORWARD : HD_PASS_BACKWARD;
    for (uint32_t stage = 0; status == HD_OK && stage < pipeline->stage_count; stage++) {
        for (uint32_t i = 0; status == HD_OK && i < pipeline->microbatch_count; i++) {
            for (enum hd_pass_kind pass = HD_PASS_FORWARD; pass <= last; pass++) {
                if (hd_pipeline_find(pipeline, pass, stage, i) == HD_NO_ACTION) {
                    return laws_refuse_missing(pipeline, pass, stage, i, problem);
                }
            }
            if (pipeline->is_split) {
                status = laws_check_halves(pipeline, stage, i, problem);
            }
        }
    }
    return status;
}

static hd_status laws_refuse_order(const struct hd_pipeline *pipeline, uint32_t early,
                                   uint32_t late, struct hd_problem *problem)
{
    char places[2][64];
    char texts[2][32];

    hd_problem_remedy(problem, "move %s after %s",
                      hd_action_text(&pipeline->actions[early], texts[0]),
                      hd_action_text(&pipeline->actions[late], texts[1]));
    return hd_law_refuse(problem, 2, hd_pipeline_rank_of(pipeline, early), "%s comes before %s",
                         hd_action_place(pipeline, early, places[0]),
                         hd_action_place(pipeline, late, places[1]));
}

hd_status hd_laws_causal(struct hd_pipeline *pipeline, struct hd_problem *problem)
{
    if (pipeline->is_forward_only) {
        return HD_OK;
    }
    for (uint32_t stage = 0; stage < pipeline->stage_count; stage++) {
        for (uint32_t i = 0; i < pipeline->microbatch_count; i++) {
            const uint32_t forward = hd_pipeline_find(pipeline, HD_PASS_FORWARD, stage, i);
            const uint32_t backward = hd_pipeline_find(pipeline, HD_PASS_BACKWARD, stage, i);
            if (backward < forward) {
                return laws_refuse_order(pipeline, backward, forward, problem);
            }
            const uint32_t end = hd_flow_payload_end(pipeline, stage, i);
            if (end < backward) {
                return laws_refuse_order(pipeline, end, backward, problem);
            }
        }
    }
    return HD_OK;
}

static hd_status laws_refuse_match(const struct hd_pipeline *pipeline, uint64_t index,
                                   uint32_t expected, struct hd_problem *problem)
{
    const struct hd_action *const action = &pipeline->actions[index];
    const struct hd_pipeline_channel *const channel =
        &pipeline->channels[hd_flow_in_channel(pipeline, action)];
    const uint32_t sent = pipeline->messages[channel->message_begin + expected];
    char place[64];
    char texts[2][32];

    hd_problem_remedy(problem, "make both ranks run boundary %u in the same order",
                      channel->boundary);
    return hd_law_refuse(
        problem, 5, hd_pipeline_rank_of(pipeline, index),
        "%s takes %s as message %u of boundary %u, but rank %u sends %s as that message",
        hd_action_place(pipeline, index, place),
        hd_action_text(&pipeline->actions[hd_flow_producer(pipeline, action)], texts[0]), expected,
        channel->boundary, channel->source, hd_action_text(&pipeline->actions[sent], texts[1]));
}

/* Only remote channels keep their order: a local pool hands out any of its slots. */
hd_status hd_laws_matched(struct hd_pipeline *pipeline, struct hd_problem *problem)
{
    uint32_t *const met = hd_plan_take(pipeline->channel_count, sizeof *met, problem);
    hd_status status = met == NULL ? HD_NO_MEMORY : HD_OK;

    for (uint32_t rank = 0; status == HD_OK && rank < pipeline->rank_count; rank++) {
        const uint64_t end = pipeline->rank_begin[rank + 1];
        for (uint64_t i = pipeline->rank_begin[rank]; status == HD_OK && i < end; i++) {
            const struct hd_action *const action = &pipeline->actions[i];
            const uint32_t channel = hd_flow_in_channel(pipeline, action);
            if (channel == HD_NO_CHANNEL || pipeline->channels[channel].source == rank) {
                continue;
            }
            const uint32_t expected = met[channel]++;
            if (pipeline->sequence[hd_flow_producer(pipeline, action)] != expected) {
                status = laws_refuse_match(pipeline, i, expected, problem);
            }
        }
    }
    hd_memory_give(met);
    return status;
}

void hd_laws_ascending(struct hd_pipeline *pipeline)
{
    pipeline->is_ascending = true;
    if (pipeline->is_forward_only) {
        return;
    }
    for (uint32_t stage = 0; stage < pipeline->stage_count; stage++) {
        uint32_t backwards[256] = {0}; /* by replica: one past the last B or I */
        uint32_t ends[256] = {0};      /* by replica: one past the last B or W */
        for (uint32_t i = 0; i < pipeline->microbatch_count; i++) {
            const uint8_t replica = pipeline->replica_of[i];
            const uint32_t backward = hd_pipeline_find(pipeline, HD_PASS_BACKWARD, stage, i);
            const uint32_t end = hd_flow_payload_end(pipeline, stage, i);
            if (backward < backwards[replica] || end < ends[replica]) {
                pipeline->is_ascending = false;
                return;
            }
            backwards[replica] = backward + 1;
            ends[replica] = end + 1;
        }
    }
}
