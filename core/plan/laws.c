/*
 * Laws 3, 1, 2, 5 and 8: what can be said of a plan by looking actions up, without running it.
 * Law 4 stands in flow.c, 6 in slots.c, 7 in serial.c.
 */
#include "plan/derive.h"
#include "plan/flow.h"

#include "base/memory.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const laws_pass_names[HD_PASS_COUNT] = {"forwards", "backwards",
                                                           "weight passes"};

hd_status hd_law_refuse(struct hd_problem *problem, uint32_t law, uint32_t rank, const char *format,
                        ...)
{
    char message[sizeof problem->message];
    va_list arguments;

    assert(law >= 1 && law <= 7);
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    problem->law = law;
    hd_problem_place(problem, "rank %u", rank);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_PLAN, "%s", message);
}

/* "action 13": what a reader counts in the rank's row, idle ticks left out. */
static uint32_t laws_place_of(const struct hd_pipeline *pipeline, uint32_t rank, uint64_t index)
{
    return (uint32_t)(index - pipeline->rank_begin[rank] + 1);
}

static hd_status laws_refuse_home(const struct hd_pipeline *pipeline, uint32_t rank, uint64_t index,
                                  struct hd_problem *problem)
{
    const struct hd_action *const action = &pipeline->actions[index];
    const uint32_t place = laws_place_of(pipeline, rank, index);
    char text[32];

    hd_action_text(action, text);
    if (action->stage >= pipeline->stage_count) {
        hd_problem_remedy(problem, "name a stage below %u", pipeline->stage_count);
        return hd_law_refuse(problem, 3, rank, "%s, action %u, is of stage %u, and there are %u",
                             text, place, action->stage, pipeline->stage_count);
    }
    if (action->replica >= pipeline->replica_count) {
        hd_problem_remedy(problem, "name a replica below %u", pipeline->replica_count);
        return hd_law_refuse(problem, 3, rank, "%s, action %u, is of replica %u, and there are %u",
                             text, place, action->replica, pipeline->replica_count);
    }
    const uint32_t home = hd_flow_home(pipeline, action->replica, action->stage);
    hd_problem_remedy(problem, "move it to rank %u", home);
    return hd_law_refuse(problem, 3, rank, "%s, action %u, is not at home: stage %u is on rank %u",
                         text, place, action->stage, home);
}

hd_status hd_laws_home(const struct hd_pipeline *pipeline, struct hd_problem *problem)
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

/* HD_PASS_COUNT: no pass of a step. */
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
    const uint32_t place = laws_place_of(pipeline, rank, index);
    char text[32];

    hd_action_text(action, text);
    if (laws_pass_of(action->kind) == HD_PASS_COUNT) {
        return hd_law_refuse(problem, 1, rank, "action %u is of kind %u, and no pass of a step",
                             place, action->kind);
    }
    if (action->microbatch >= pipeline->microbatch_count) {
        return hd_law_refuse(problem, 1, rank,
                             "%s, action %u, is of microbatch %u, and there are %u", text, place,
                             action->microbatch, pipeline->microbatch_count);
    }
    if (action->replica != pipeline->replica_of[action->microbatch]) {
        return hd_law_refuse(problem, 1, rank,
                             "%s, action %u, is of replica %u, but microbatch %u runs in replica "
                             "%u",
                             text, place, action->replica, action->microbatch,
                             pipeline->replica_of[action->microbatch]);
    }
    return hd_law_refuse(problem, 1, rank, "%s, action %u, in a plan of forwards only", text,
                         place);
}

static hd_status laws_refuse_double(const struct hd_pipeline *pipeline, uint32_t first,
                                    uint64_t second, struct hd_problem *problem)
{
    const uint32_t rank = hd_pipeline_rank_of(pipeline, first);
    char texts[2][32];

    hd_action_text(&pipeline->actions[first], texts[0]);
    hd_action_text(&pipeline->actions[second], texts[1]);
    hd_problem_remedy(problem, "drop one of them");
    return hd_law_refuse(problem, 1, rank, "%s, action %u, and %s, action %u, do the same work",
                         texts[0], laws_place_of(pipeline, rank, first), texts[1],
                         laws_place_of(pipeline, rank, second));
}

/* Enters every action under its pass, stage and microbatch; what does not fit is refused. */
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

/* A W belongs to an I, and only to an I. */
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

/* One cell of a table names a stage and a microbatch, and may so ask for an index of gigabytes that
   next to nothing would fill. */
static int laws_is_hopeless(const struct hd_pipeline *pipeline)
{
    const uint64_t forwards = (uint64_t)pipeline->stage_count * pipeline->microbatch_count;
    return pipeline->action_count < forwards / 64;
}

hd_status hd_laws_complete(struct hd_pipeline *pipeline, struct hd_problem *problem)
{
    const uint64_t count =
        (uint64_t)HD_PASS_COUNT * pipeline->stage_count * pipeline->microbatch_count;

    if (laws_is_hopeless(pipeline)) {
        hd_problem_remedy(problem, "look for a stage or a microbatch with a digit too many");
        return hd_law_refuse(problem, 1, 0,
                             "%llu actions are far from the %llu forwards that %u stages of %u "
                             "microbatches need",
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
    const uint32_t rank = hd_pipeline_rank_of(pipeline, early);
    char texts[2][32];

    hd_action_text(&pipeline->actions[early], texts[0]);
    hd_action_text(&pipeline->actions[late], texts[1]);
    hd_problem_remedy(problem, "move %s behind it", texts[0]);
    return hd_law_refuse(problem, 2, rank, "%s, action %u, stands before %s, action %u", texts[0],
                         laws_place_of(pipeline, rank, early), texts[1],
                         laws_place_of(pipeline, rank, late));
}

hd_status hd_laws_causal(const struct hd_pipeline *pipeline, struct hd_problem *problem)
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
    const uint32_t rank = hd_pipeline_rank_of(pipeline, index);
    const struct hd_action *const action = &pipeline->actions[index];
    const uint32_t channel_index = hd_flow_in_channel(pipeline, action);
    const struct hd_pipeline_channel *const channel = &pipeline->channels[channel_index];
    const uint32_t sent = pipeline->messages[channel->message_begin + expected];
    char texts[3][32];

    hd_action_text(action, texts[0]);
    hd_action_text(&pipeline->actions[hd_flow_producer(pipeline, action)], texts[1]);
    hd_action_text(&pipeline->actions[sent], texts[2]);
    hd_problem_remedy(problem, "let both ranks run boundary %u in one order", channel->boundary);
    return hd_law_refuse(problem, 5, rank,
                         "%s, action %u, takes %s as message %u of boundary %u, but rank %u sends "
                         "%s there",
                         texts[0], laws_place_of(pipeline, rank, index), texts[1], expected,
                         channel->boundary, channel->source, texts[2]);
}

/* Only remote channels are lines: a local pool hands out any of its slots. */
hd_status hd_laws_matched(const struct hd_pipeline *pipeline, struct hd_problem *problem)
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
    pipeline->is_ascending = 1;
    if (pipeline->is_forward_only) {
        return;
    }
    for (uint32_t stage = 0; stage < pipeline->stage_count; stage++) {
        uint32_t backwards[256] = {0}; /* by replica: one past the last B or I */
        uint32_t ends[256] = {0};      /* likewise B or W */
        for (uint32_t i = 0; i < pipeline->microbatch_count; i++) {
            const uint8_t replica = pipeline->replica_of[i];
            const uint32_t backward = hd_pipeline_find(pipeline, HD_PASS_BACKWARD, stage, i);
            const uint32_t end = hd_flow_payload_end(pipeline, stage, i);
            if (backward < backwards[replica] || end < ends[replica]) {
                pipeline->is_ascending = 0;
                return;
            }
            backwards[replica] = backward + 1;
            ends[replica] = end + 1;
        }
    }
}
