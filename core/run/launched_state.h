/*
 * run/launched_state.h - the messages of a launched run (run/launched.h): from the shared memory of
 * one process over the link into that of another.
 */
#ifndef HEDDLE_RUN_LAUNCHED_STATE_H
#define HEDDLE_RUN_LAUNCHED_STATE_H

#include "launch/link.h"
#include "run/shared.h"

enum hd_say {
    HD_SAY_BEGIN = HD_LINK_MESSAGE, /* the hub: the run's directory */
    HD_SAY_STATE,                   /* a member: the state of its rank */
    HD_SAY_STATES,                  /* the hub: the states of all ranks */
    HD_SAY_EVENT,                   /* a member: struct hd_launch_event */
    HD_SAY_ABORT,                   /* both: struct hd_problem, the cause */
    HD_SAY_RESULT,                  /* a member: struct hd_rank_result */
    HD_SAY_CHANNEL,                 /* a member: struct hd_channel_result of one channel */
    HD_SAY_RECORDS,                 /* a member: its records of the last steps */
};

static inline uint64_t hd_age_ns(uint64_t now_ns, uint64_t then_ns)
{
    return now_ns > then_ns ? now_ns - then_ns : 0;
}

/* A member sends to the hub, the hub to all members. */
void hd_launched_tell(struct hd_link *link, uint32_t kind, const void *bytes, uint64_t count);

/* A member sends the state of its rank, the hub those of all ranks.  What is received goes onto the
   board, except for this process's own rank. */
void hd_launched_tell_states(struct hd_link *link, const struct hd_shared *shared);
void hd_launched_take_states(const struct hd_link *link, const struct hd_shared *shared,
                             const struct hd_link_message *message);

/* A member sends what its rank has left; the hub stores it in its own memory. */
void hd_launched_tell_results(struct hd_link *link, const struct hd_shared *shared);
void hd_launched_take_results(const struct hd_shared *shared,
                              const struct hd_link_message *message);

#endif /* HEDDLE_RUN_LAUNCHED_STATE_H */
