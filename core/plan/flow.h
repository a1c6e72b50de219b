/*
 * plan/flow.h - which action waits for which: the edges of a plan's graph, and an order of it.
 *
 * An action waits for at most three others: the one before it on its rank, the producer of its
 * input, and, where slots are bounded, the release of the message `slots` before the one that it
 * sends.  The functions look them up; no edge is stored.
 *
 *   message      sent by   consumed by    released at the end of
 *   activation   sF        (s+1)F         (s+1)B, or (s+1)W if split, or (s+1)F if forward-only
 *   gradient     sB or sI  (s-1)B or I    the same
 *
 * Valid once laws 3 and 1 hold.  [any-thread]
 *
 * Sources: docs/architecture.md, "The plan"; docs/sources.md, "Numbers of our own".
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

static inline bool hd_flow_is_backward(const struct hd_action *action)
{
    return action->kind == HD_BACKWARD || action->kind == HD_BACKWARD_INPUT;
}

/* The action whose output `action` consumes over a channel; HD_NO_ACTION if its input is the
   tokens, the loss, or a result of its own stage. */
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

/* The action that consumes what `action` sends; HD_NO_ACTION if it sends nothing. */
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

/* The action that releases the payload of `stage` and `microbatch` when it ends. */
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

/* The action that releases the slot of the message that `action` sends, when it ends.  `action`
   sends a message. */
static inline uint32_t hd_flow_releaser(const struct hd_pipeline *pipeline,
                                        const struct hd_action *action)
{
    if (action->kind == HD_FORWARD) {
        return hd_flow_payload_end(pipeline, action->stage + 1, action->microbatch);
    }
    return hd_pipeline_find(pipeline, HD_PASS_BACKWARD, action->stage - 1, action->microbatch);
}

/* The channel that `action` sends on, or receives its input from; HD_NO_CHANNEL if there is none.
   */
uint32_t hd_flow_out_channel(const struct hd_pipeline *pipeline, const struct hd_action *action);
uint32_t hd_flow_in_channel(const struct hd_pipeline *pipeline, const struct hd_action *action);

/* The action that must end before `action_index` can take the slot of its message, given the slots
   of the channel; HD_NO_ACTION if it need not wait. */
uint32_t hd_flow_slot_release(const struct hd_pipeline *pipeline, uint32_t action_index);

/* The enum hd_handoff_class of the handoff that `consumer` reads, in a timeline whose actions start
   at `start`, in ticks; HD_HANDOFF_CLASS_COUNT if it reads none. */
uint32_t hd_flow_handoff_class(const struct hd_pipeline *pipeline, const uint32_t *start,
                               uint32_t consumer);

/* Adds the classes of all handoffs in that timeline to `handoffs`. */
void hd_flow_count_handoffs(const struct hd_pipeline *pipeline, const uint32_t *start,
                            struct hd_pipeline_handoffs *handoffs);

/* Writes an order of all actions in which each comes after all that it waits for; if `is_bounded`,
   after the releases of slots too.  `order` is [action_count] or NULL.  If there is no such order,
   the plan is refused with the cycle, by law 4 or 6.  Linear in the actions. */
hd_status hd_flow_order(const struct hd_pipeline *pipeline, bool is_bounded, uint32_t *order,
                        struct hd_problem *problem);

#endif /* HEDDLE_PLAN_FLOW_H */
