/*
 * plan/flow.h - who waits for whom in a plan: the edges of its graph, and the order they leave.
 *
 * An action waits for at most three others: the one before it on its rank, the producer of its
 * input, and, where slots are bounded, the release of the message `slots` before the one that it
 * sends.  All of them are looked up, none is stored.
 *
 *   message      sent by   consumed by    released at the end of
 *   activation   sF        (s+1)F         (s+1)B, or (s+1)W if split, or (s+1)F if forward-only
 *   gradient     sB or sI  (s-1)B or I    the same
 *
 * Valid once laws 3 and 1 hold.  [any-thread]
 *
 * Sources: DESIGN.md, section 4; facts/plan_numbers.md, "Laws, slots and arenas".
 */
#ifndef HEDDLE_PLAN_FLOW_H
#define HEDDLE_PLAN_FLOW_H

#include "plan/pipeline.h"

/* The rank that holds `stage` of `replica`. */
static inline uint32_t hd_flow_home(const struct hd_pipeline *pipeline, uint32_t replica,
                                    uint32_t stage)
{
    return pipeline->stage_rank[(uint64_t)replica * pipeline->stage_count + stage];
}

static inline uint32_t hd_flow_is_backward(const struct hd_action *action)
{
    return action->kind == HD_BACKWARD || action->kind == HD_BACKWARD_INPUT;
}

/* The action whose output `action` consumes over a channel; HD_NO_ACTION: the tokens, the loss, or
   nothing but its own stage's work. */
static inline uint32_t hd_flow_producer(const struct hd_pipeline *pipeline,
                                        const struct hd_action *action)
{
    if (action->kind == HD_FORWARD && action->stage > 0) {
        return hd_pipeline_find(pipeline, HD_PASS_FORWARD, action->stage - 1, action->microbatch);
    }
    if (hd_flow_is_backward(action) && action->stage + 1 < pipeline->stage_count) {
        return hd_pipeline_find(pipeline, HD_PASS_BACKWARD, action->stage + 1, action->microbatch);
    }
    return HD_NO_ACTION;
}

/* The action that consumes what `action` sends; HD_NO_ACTION: it sends nothing. */
static inline uint32_t hd_flow_consumer(const struct hd_pipeline *pipeline,
                                        const struct hd_action *action)
{
    if (action->kind == HD_FORWARD && action->stage + 1 < pipeline->stage_count) {
        return hd_pipeline_find(pipeline, HD_PASS_FORWARD, action->stage + 1, action->microbatch);
    }
    if (hd_flow_is_backward(action) && action->stage > 0) {
        return hd_pipeline_find(pipeline, HD_PASS_BACKWARD, action->stage - 1, action->microbatch);
    }
    return HD_NO_ACTION;
}

/* The action at whose end the payload of `stage` and `microbatch` is free. */
static inline uint32_t hd_flow_payload_end(const struct hd_pipeline *pipeline, uint32_t stage,
                                           uint32_t microbatch)
{
    enum hd_pass_kind pass = HD_PASS_FORWARD;
    if (!pipeline->is_forward_only) {
        pass = HD_PASS_BACKWARD;
        if (pipeline->is_split &&
            hd_pipeline_find(pipeline, HD_PASS_WEIGHT, stage, microbatch) != HD_NO_ACTION) {
            pass = HD_PASS_WEIGHT;
        }
    }
    return hd_pipeline_find(pipeline, pass, stage, microbatch);
}

/* The action at whose end the message that `action` sends gives its slot back; `action` sends. */
static inline uint32_t hd_flow_releaser(const struct hd_pipeline *pipeline,
                                        const struct hd_action *action)
{
    if (action->kind == HD_FORWARD) {
        return hd_flow_payload_end(pipeline, action->stage + 1, action->microbatch);
    }
    return hd_pipeline_find(pipeline, HD_PASS_BACKWARD, action->stage - 1, action->microbatch);
}

/* The channel that `action` sends on, or that its input comes from; HD_NO_CHANNEL: none. */
uint32_t hd_flow_out_channel(const struct hd_pipeline *pipeline, const struct hd_action *action);
uint32_t hd_flow_in_channel(const struct hd_pipeline *pipeline, const struct hd_action *action);

/* The action that must end before `action_index` may take the slot of what it sends, with the slots
   that its channel is given; HD_NO_ACTION: none. */
uint32_t hd_flow_slot_release(const struct hd_pipeline *pipeline, uint32_t action_index);

/* An order of all actions in which each comes after all that it waits for (bounded: slots
   included). `order` [action_count], or NULL.  A plan that has none is refused, by law 4 or 6, with
   its cycle; linear in the actions. */
hd_status hd_flow_order(const struct hd_pipeline *pipeline, uint32_t is_bounded, uint32_t *order,
                        struct hd_problem *problem);

#endif /* HEDDLE_PLAN_FLOW_H */
