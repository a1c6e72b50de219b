/*
 * plan/pipeline.h - the plan of all ranks, verified, and everything the core derives from it.
 *
 * One immutable object: what is printed, drawn, simulated, executed and compared with the
 * measured trace is this.  It is made from a schedule plugin or from a CSV file, whoever made the
 * actions they pass the same laws (schedule.h), in time linear in the actions.  No clock, no
 * process, no I/O.
 *
 *   action index   0 .. action_count-1, rank by rank, in the order of the rank's plan; idle ticks
 *                  are no actions, they stand in idle_before
 *   channel        one boundary in one direction of one replica; remote ones go to the transport,
 *                  local ones (source = target) are pools of the engine
 *   message        one handoff on a channel; sequence = its number in the order of the source.  On
 *                  a remote channel the target meets them in the same order (law 5)
 *
 * plan/flow.h answers who produces, consumes and releases what.
 *
 * Time is in ticks: F 1, B 2, I 1, W 1.  Memory belongs to the object until destroy.
 *
 * Sources: DESIGN.md, section 4; the report, sections 6.1 to 6.4.
 */
#ifndef HEDDLE_PLAN_PIPELINE_H
#define HEDDLE_PLAN_PIPELINE_H

#include "base/hash.h"
#include "base/problem.h"

#include <heddle/schedule.h>

#include <stdbool.h>

#define HD_NO_ACTION  UINT32_MAX
#define HD_NO_CHANNEL UINT32_MAX

/* The three passes that index_of tells apart: B and I share a place, since a plan has one of
   them. */
enum hd_pass_kind {
    HD_PASS_FORWARD = 0,
    HD_PASS_BACKWARD = 1,
    HD_PASS_WEIGHT = 2,
    HD_PASS_COUNT = 3
};

/* How a serial transport's transfers are issued (plan/issue.h). */
enum hd_issue_order { HD_ISSUE_CANONICAL = 0, HD_ISSUE_GROUPED = 1, HD_ISSUE_PROGRAM = 2 };

struct hd_pipeline_channel {
    uint32_t boundary;  /* between stages boundary and boundary + 1 */
    uint32_t direction; /* HD_FORWARD or HD_BACKWARD, as in transport.h */
    uint32_t replica;
    uint32_t source, target; /* ranks; equal: local */
    uint32_t message_count;  /* of a step */
    uint32_t depth;          /* law 6: the greatest j - i + 1, i unreleased when j is taken, asap */
    uint32_t slots;          /* what it is given: depth + 1, or what the user says; a local one has
                           its depth, always: nothing is under way on it */
    uint32_t message_begin;  /* of its part of hd_pipeline.messages */
    uint32_t remote_index;   /* its number among the remote channels; HD_NO_CHANNEL: local */
};

/* True if the messages of `channel` cross between ranks. [any-thread] */
static inline bool hd_pipeline_is_remote(const struct hd_pipeline_channel *channel)
{
    return channel->source != channel->target;
}

/* What a handoff is by the asap timeline: within a rank; or hidden, if the receiver starts another
   action between the producer's end and the consumer's start; or exposed. */
enum hd_handoff_class {
    HD_HANDOFF_LOCAL = 0,
    HD_HANDOFF_HIDDEN = 1,
    HD_HANDOFF_EXPOSED = 2,
    HD_HANDOFF_CLASS_COUNT = 3
};

struct hd_pipeline_handoffs {
    uint64_t local, hidden, exposed;
};

struct hd_pipeline {
    char schedule[256]; /* the plugin's name, or the CSV file */
    uint32_t rank_count, stage_count, microbatch_count, replica_count;
    uint32_t is_forward_only;
    uint32_t is_split;     /* has I and W; B may stand beside them, for other microbatches */
    uint32_t is_ascending; /* law 8; 0 marks a plan that runs outside the bitwise oracle */
    uint32_t has_idle;     /* the schedule draws idle ticks */
    uint32_t is_serial;    /* the transport moves one transfer at a time: set by the caller */
    uint32_t issue_order;  /* enum hd_issue_order; likewise */

    uint32_t *stage_rank; /* [replica_count, stage_count] */
    uint8_t *replica_of;  /* [microbatch_count] */
    uint64_t
        *rank_begin; /* [rank_count + 1]: a rank's actions are [rank_begin[r], rank_begin[r+1]) */
    uint64_t action_count;     /* below 2^32 */
    struct hd_action *actions; /* [action_count] */
    uint32_t *idle_before;     /* [action_count], ticks; NULL if there are none */
    uint32_t *index_of;        /* [HD_PASS_COUNT, stage_count, microbatch_count] -> action index or
                                  HD_NO_ACTION */
    uint32_t *asap_start;      /* [action_count], ticks */
    uint32_t asap_ticks;       /* length of the step */

    uint32_t *sequence; /* [action_count]: of the message that the action sends, or HD_NO_ACTION */
    uint32_t *messages; /* [channel.message_begin + sequence] -> the action that sends it */

    uint32_t *retention; /* [stage_count]: H_s = max F - B (split: F - W), the larger replica's */
    uint32_t
        *payload_slots;    /* [stage_count]: what each pool is given: H_s, or what the user says */
    uint32_t *peak_copies; /* [rank_count]: the same count per rank */
    uint32_t *loss_ranks;  /* [replica_count]: where stage S-1 lies; [0] is the loss rank */
    uint32_t channel_count;
    uint32_t remote_count; /* the channels of them that cross between ranks */
    struct hd_pipeline_channel
        *channels; /* by replica; in it all forward by boundary, then all backward by boundary
                      (forward-only: no backward ones) */
    struct hd_pipeline_handoffs handoffs; /* classes of the asap timeline */
};

/* From a schedule.  Its refuse() and the limits of schedule.h come first (exit 4), then the laws
   in the order 3 1 2 5 4; the first broken fills law, and cycle for 4.  HD_EXIT_PLAN.  Every
   channel and pool has its slots (auto) when it returns. */
hd_status hd_pipeline_from_schedule(const char *name, const struct hd_schedule_ops *ops,
                                    const struct hd_shape *shape, struct hd_pipeline **pipeline,
                                    struct hd_problem *problem);

/* The actions of a CSV file, in memory (plan/csv.h reads it): what hd_pipeline_from_actions
   takes. */
struct hd_pipeline_source {
    char name[256];
    uint32_t rank_count, stage_count, microbatch_count, replica_count;
    uint32_t is_forward_only;
    uint32_t *stage_rank;      /* [replica_count, stage_count] */
    uint8_t *replica_of;       /* [microbatch_count]; NULL: all 0 */
    uint64_t *rank_begin;      /* [rank_count + 1], into actions */
    struct hd_action *actions; /* idle ones included */
};

/* Takes over what `source` owns (its pointers, from hd_memory_take), also on failure. */
hd_status hd_pipeline_from_actions(struct hd_pipeline_source *source, struct hd_pipeline **pipeline,
                                   struct hd_problem *problem);

void hd_pipeline_destroy(struct hd_pipeline *pipeline); /* takes NULL */

/*
 * Gives every channel its slots.  Count 0 is auto, depth + 1; count 1 is that many for all remote
 * channels; else one number per remote channel, in the order of `channels`: by boundary, forward
 * then backward.  Channels that get
 * fewer than their depth are verified jointly (law 6, strict: a source action waits for the release
 * of the message `slots` before its own); what deadlocks is refused, naming cycle and vector of
 * depths. `payload_slots` likewise per stage: below H_s is refused: "stage 0 needs 8 slots, has 7"
 * (law 6 is reported as the law of both).  HD_EXIT_PLAN; a list of a wrong length HD_EXIT_USAGE.
 */
struct hd_slot_request {
    uint32_t transfer_count;
    const uint32_t *transfer;
    uint32_t payload_count;
    const uint32_t *payload;
};
hd_status hd_pipeline_give_slots(struct hd_pipeline *pipeline,
                                 const struct hd_slot_request *request, struct hd_problem *problem);

/* Law 7, for transports that are HD_TRANSPORT_SERIAL: with transfers issued in issue_order, nothing
   waits for itself.  In the canonical order, and grouped, slots alone decide: with the depths or
   more no legal plan has a cycle, with fewer one may appear.  HD_EXIT_PLAN. */
hd_status hd_pipeline_verify_serial(const struct hd_pipeline *pipeline, struct hd_problem *problem);

/* The channel of a boundary, direction and replica, an index into channels; HD_NO_CHANNEL for a
   gradient of a forward-only plan. [any-thread] */
uint32_t hd_pipeline_channel(const struct hd_pipeline *pipeline, uint32_t boundary,
                             uint32_t direction, uint32_t replica);

static inline uint32_t hd_pipeline_find(const struct hd_pipeline *pipeline, enum hd_pass_kind pass,
                                        uint32_t stage, uint32_t microbatch)
{
    const uint64_t row = (uint64_t)pass * pipeline->stage_count + stage;
    return pipeline->index_of[row * pipeline->microbatch_count + microbatch];
}

/* Of the handoff that the action `consumer` reads, under a timeline whose actions start at `start`,
   in ticks; HD_HANDOFF_CLASS_COUNT: it reads none. [any-thread] */
uint32_t hd_pipeline_handoff_class(const struct hd_pipeline *pipeline, const uint32_t *start,
                                   uint32_t consumer);

/* The rank whose plan holds action `index`; a binary search. */
uint32_t hd_pipeline_rank_of(const struct hd_pipeline *pipeline, uint64_t index);

/* 1, 2, 1, 1 for F, B, I, W. */
uint32_t hd_action_ticks(uint8_t kind);

/* "4B2" (replica 1: "4B2'"); returns text. */
const char *hd_action_text(const struct hd_action *action, char text[32]);

/* Adds all that is the plan's: shape, placement, actions, slots.  The caller adds sizes, plugins,
   options and instruction set, so that ranks can compare one digest. */
void hd_pipeline_hash(const struct hd_pipeline *pipeline, struct hd_hash *hash);

#endif /* HEDDLE_PLAN_PIPELINE_H */
