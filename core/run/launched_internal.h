/*
 * run/launched_internal.h - what the parents of a launched run say to each other; launched.c
 * decides when, launched_state.c packs and unpacks.
 */
#ifndef HEDDLE_RUN_LAUNCHED_INTERNAL_H
#define HEDDLE_RUN_LAUNCHED_INTERNAL_H

#include "run/session.h"

enum hd_say {
    HD_SAY_BEGIN = HD_LINK_MESSAGE, /* the hub: struct beginning */
    HD_SAY_STATE,                   /* a member: of its rank */
    HD_SAY_STATES,                  /* the hub: of all ranks */
    HD_SAY_EVENT,                   /* a member: struct hd_launch_event */
    HD_SAY_ABORT,                   /* both: struct hd_problem */
    HD_SAY_RESULT,                  /* a member: struct hd_rank_result */
    HD_SAY_LANE,                    /* a member: of one channel */
    HD_SAY_RECORDS,                 /* a member: its rows of the last steps */
};

static inline uint32_t hd_launched_rank(const struct hd_session *session)
{
    return hd_link_rank(session->request.link);
}

static inline uint64_t hd_age_ns(uint64_t now_ns, uint64_t then_ns)
{
    return now_ns > then_ns ? now_ns - then_ns : 0;
}

/* A member to the hub, the hub to all. */
void hd_launched_tell(const struct hd_session *session, uint32_t kind, const void *bytes,
                      uint64_t count);

/* A member of its rank, the hub of all; taken are those of other processes' ranks. */
void hd_launched_tell_states(struct hd_session *session);
void hd_launched_take_states(struct hd_session *session, const struct hd_link_message *message);

/* What this rank has left in its region, for the hub's. */
void hd_launched_tell_results(struct hd_session *session);
void hd_launched_take_results(struct hd_session *session, const struct hd_link_message *message);

#endif /* HEDDLE_RUN_LAUNCHED_INTERNAL_H */
