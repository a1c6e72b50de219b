/*
 * plan/pipeline.h - the plan of all ranks, verified, and everything the core derives from it.
 *
 * One immutable object: it is printed, drawn, simulated, executed and compared with the measured
 * trace.  It is made from a schedule plugin or from a CSV file.  Either way its actions pass the
 * same laws (schedule.h), in time linear in the actions.  It uses no clock, no process, no I/O.
 *
 *   action index   0 .. action_count-1, rank by rank, in the order of the rank's plan; idle ticks
 *                  are not actions, they are counted in idle_before
 *   channel        one boundary in one direction of one replica; the transport carries remote
 *                  channels, the engine keeps a pool for each local one (source = target)
 *   message        one handoff on a channel; sequence = its number in the order of the source.  On
 *                  a remote channel the target reads messages in the same order (law 5)
 *
 * plan/flow.h tells which action produces, consumes and releases a message.
 *
 * Time is in ticks: F 1, B 2, I 1, W 1.  All arrays belong to the object until destroy.
 *
 * Sources: docs/architecture.md, "The plan"; the report, sections 6.1 to 6.4.
 */
#ifndef HEDDLE_PLAN_PIPELINE_H
#define HEDDLE_PLAN_PIPELINE_H

#include "base/hash.h"
#include "base/problem.h"

#include <heddle/schedule.h>

#include <stdbool.h>

#define HD_NO_ACTION  UINT32_MAX
#define HD_NO_CHANNEL UINT32_MAX

/* The three passes of index_of.  B and I share one: a stage runs one of them for a microbatch. */
enum hd_pass_kind {
    HD_PASS_FORWARD = 0,  /* F */
    HD_PASS_BACKWARD = 1, /* B or I */
    HD_PASS_WEIGHT = 2,   /* W */
    HD_PASS_COUNT = 3
};

/* In which order ranks issue the transfers of a serial transport (plan/issue.h). */
enum hd_issue_order {
    HD_ISSUE_CANONICAL = 0, /* one order for all ranks */
    HD_ISSUE_GROUPED = 1,   /* the same, and a rank posts the transfers of one tick together */
    HD_ISSUE_PROGRAM = 2,   /* each rank's own order */
};

struct hd_pipeline_channel {
    uint32_t boundary;  /* between stages boundary and boundary + 1 */
    uint32_t direction; /* HD_FORWARD or HD_BACKWARD, as in transport.h */
    uint32_t replica;
    uint32_t source, target; /* ranks; equal: local */
    uint32_t message_count;  /* of a step */
    uint32_t depth;          /* law 6: the greatest j - i + 1 with i unreleased when j is taken */
    uint32_t slots;          /* remote: depth + 1, or what the user asks for; local: depth */
    uint32_t message_begin;  /* where its part of hd_pipeline.messages begins */
    uint32_t remote_index;   /* its number among remote channels; HD_NO_CHANNEL if it is local */
};

/* True if the messages of `channel` cross between ranks. [any-thread] */
static inline bool hd_pipeline_is_remote(const struct hd_pipeline_channel *channel)
{
    return channel->source != channel->target;
}

/*
 * The send slots of a remote channel, for a transport that is not in place.  Two let a transfer run
 * beside the next action.  Without overlap a receive is posted only just before it is consumed, and
 * law 6 then promises only that the message `slots` before has been received: so every slot needs a
 * send slot.
 */
static inline uint32_t hd_pipeline_send_slots(const struct hd_pipeline_channel *channel,
                                              bool needs_all)
{
    return needs_all || channel->slots < 2 ? channel->slots : 2;
}

/* The class of a handoff in the asap timeline. */
enum hd_handoff_class {
    HD_HANDOFF_LOCAL = 0,   /* within one rank */
    HD_HANDOFF_HIDDEN = 1,  /* the receiver starts another action between the end of the producer
                               and the start of the consumer */
    HD_HANDOFF_EXPOSED = 2, /* it does not: the receiver waits for the transfer */
    HD_HANDOFF_CLASS_COUNT = 3
};

struct hd_pipeline_handoffs {
    uint64_t local, hidden, exposed;
};

struct hd_pipeline {
    char schedule[256]; /* the plugin's name, or the CSV file */
    uint32_t rank_count, stage_count, microbatch_count, replica_count;
    uint32_t issue_order; /* enum hd_issue_order; the caller sets it */
    bool is_forward_only;
    bool is_split;     /* it has I and W; other microbatches may still have B */
    bool is_ascending; /* law 8; a plan that breaks it runs outside the bitwise oracle */
    bool has_idle;     /* the schedule draws idle ticks */
    bool is_serial;    /* the transport moves one transfer at a time; the caller sets it */
    bool is_copied;    /* the transport is not in place: sources have slots; the caller sets it */
    bool has_overlap;  /* receives are posted early; the caller sets it */

    uint32_t *stage_rank; /* [replica_count, stage_count] */
    uint8_t *replica_of;  /* [microbatch_count] */
    uint64_t
        *rank_begin; /* [rank_count + 1]: rank r has actions [rank_begin[r], rank_begin[r+1]) */
    uint64_t action_count;     /* below 2^32 */
    struct hd_action *actions; /* [action_count] */
    uint32_t *idle_before;     /* [action_count], ticks; NULL if the plan has none */
    uint32_t *index_of;        /* [HD_PASS_COUNT, stage_count, microbatch_count] -> action index, or
                              HD_NO_ACTION */
    uint32_t *asap_start;      /* [action_count], ticks */
    uint32_t asap_ticks;       /* length of the step */

    uint32_t *sequence; /* [action_count]: of the message that the action sends, or HD_NO_ACTION */
    uint32_t *messages; /* [channel.message_begin + sequence] -> the action that sends it */

    uint32_t *retention;     /* [stage_count]: H_s = max F - B (split: F - W), over replicas */
    uint32_t *payload_slots; /* [stage_count]: slots of each pool: H_s, or what the user asks for */
    uint32_t *peak_copies;   /* [rank_count]: the same maximum for all stages of the rank */
    uint32_t *loss_ranks;    /* [replica_count]: the rank of stage S-1; [0] is the loss rank */
    uint32_t remote_count;   /* channels that cross between ranks */
    uint32_t channel_count;
    struct hd_pipeline_channel *channels; /* by replica: all forward by boundary, then, unless
                                             forward-only, all backward by boundary */
    struct hd_pipeline_handoffs handoffs; /* in the asap timeline */
};

/* Makes a plan with a schedule.  It asks the schedule's refuse() and checks the limits of
   schedule.h first (exit 4), then the laws in the order 3 1 2 5 4.  The first broken law fills
   problem->law, and problem->cycle for law 4.  HD_EXIT_PLAN.  Every channel and pool has its slots
   (auto) when it returns. */
hd_status hd_pipeline_from_schedule(const char *name, const struct hd_schedule_ops *ops,
                                    const struct hd_shape *shape, struct hd_pipeline **pipeline,
                                    struct hd_problem *problem);

/* The actions of a CSV file, as plan/csv.h reads it, for hd_pipeline_from_actions. */
struct hd_pipeline_source {
    char name[256];
    uint32_t rank_count, stage_count, microbatch_count, replica_count;
    bool is_forward_only;
    uint32_t *stage_rank;      /* [replica_count, stage_count] */
    uint8_t *replica_of;       /* [microbatch_count]; NULL if all are 0 */
    uint64_t *rank_begin;      /* [rank_count + 1], into actions */
    struct hd_action *actions; /* idle ones included */
};

/* Takes over the arrays of `source`, which come from hd_memory_take, even if it fails. */
hd_status hd_pipeline_from_actions(struct hd_pipeline_source *source, struct hd_pipeline **pipeline,
                                   struct hd_problem *problem);

void hd_pipeline_destroy(struct hd_pipeline *pipeline); /* takes NULL */

/* Logs placement and depths at level debug. */
void hd_pipeline_log(const struct hd_pipeline *pipeline);

/* Whether every slot needs a send slot. */
bool hd_pipeline_needs_all_sends(const struct hd_pipeline *pipeline, bool has_overlap);

/*
 * Gives every channel and every payload pool its slots.
 *
 * transfer  count 0 is auto: depth + 1.  Count 1 is that many for all remote channels.  Otherwise
 *           it has one number for each remote channel, in the order of `channels`.  If a channel
 *           gets fewer than its depth, all of them are verified together (law 6, strict: a source
 *           waits for the release of the message `slots` before its own).  A plan that deadlocks
 *           is refused, with the cycle and the depths.
 * payload   the same by stage, where auto is H_s; fewer than H_s are refused, by law 6 too.
 *
 * HD_EXIT_PLAN; HD_EXIT_USAGE for a list of the wrong length.
 */
struct hd_slot_request {
    uint32_t transfer_count;
    const uint32_t *transfer;
    uint32_t payload_count;
    const uint32_t *payload;
};
hd_status hd_pipeline_give_slots(struct hd_pipeline *pipeline,
                                 const struct hd_slot_request *request, struct hd_problem *problem);

/* Checks law 7, for transports that are HD_TRANSPORT_SERIAL: transfers issued in issue_order cause
   no cycle of waits.  In the canonical and the grouped order only slots matter: no legal plan has a
   cycle if each channel has its depth or more; with fewer slots one may appear.  HD_EXIT_PLAN. */
hd_status hd_pipeline_verify_serial(const struct hd_pipeline *pipeline, struct hd_problem *problem);

/* The index of a channel in channels; HD_NO_CHANNEL for gradients of a forward-only plan.
   [any-thread] */
uint32_t hd_pipeline_channel(const struct hd_pipeline *pipeline, uint32_t boundary,
                             uint32_t direction, uint32_t replica);

static inline uint32_t hd_pipeline_find(const struct hd_pipeline *pipeline, enum hd_pass_kind pass,
                                        uint32_t stage, uint32_t microbatch)
{
    const uint64_t row = (uint64_t)pass * pipeline->stage_count + stage;
    return pipeline->index_of[row * pipeline->microbatch_count + microbatch];
}

/* The rank that runs action `index`; a binary search. */
uint32_t hd_pipeline_rank_of(const struct hd_pipeline *pipeline, uint64_t index);

/* 1, 2, 1, 1 for F, B, I, W. */
uint32_t hd_action_ticks(uint8_t kind);

/* "4B2" (replica 1: "4B2'"); returns text. */
const char *hd_action_text(const struct hd_action *action, char text[32]);

/* "4B2 (action 7)": its place in the rank's plan, counted from 1 without idle ticks; returns
   place. */
const char *hd_action_place(const struct hd_pipeline *pipeline, uint64_t index, char place[64]);

/* Adds the shape, placement, actions and slots of the plan to `hash`.  The caller adds sizes,
   plugins, options and instruction set, so that ranks compare one digest. */
void hd_pipeline_hash(const struct hd_pipeline *pipeline, struct hd_hash *hash);

#endif /* HEDDLE_PLAN_PIPELINE_H */
