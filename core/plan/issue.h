/*
 * plan/issue.h - in which order each rank issues its transfers, on a transport that is serial.
 *
 * Every remote message is in the lists of two ranks: as a send in the list of its source, as a
 * receive in the list of its target.  A rank's transfers begin to move in the order of its list,
 * one group after another (HD_TRANSPORT_SERIAL).
 *
 *   canonical  one order for all ranks: the producer's end in asap, then boundary, backward before
 *              forward, sequence; each transfer is a group of its own
 *   grouped    the same order, and what a rank sends and receives at one tick is a group
 *   program    each rank's own order: before an action what it consumes, after it what it sends.
 *              Law 7 refuses it where two ranks would wait for each other
 *
 * Source: docs/architecture.md, "Law 7"; docs/sources.md.
 */
#ifndef HEDDLE_PLAN_ISSUE_H
#define HEDDLE_PLAN_ISSUE_H

#include "plan/pipeline.h"

#define HD_ISSUE_GROUP_MAX 8u /* posts of one group at one rank */

struct hd_issue {
    uint64_t count;      /* entries of all lists: twice the remote messages of a step */
    uint32_t *begin;     /* [rank_count + 1]: a rank's list is [begin[r], begin[r + 1]) */
    uint32_t *sender;    /* [count]: the action whose message it is */
    uint32_t *group_end; /* [count]: where the group of the entry ends, in the same list */
};

/* Linear in the actions.  On HD_NO_MEMORY the lists are empty. */
hd_status hd_issue_create(const struct hd_pipeline *pipeline, struct hd_issue *issue,
                          struct hd_problem *problem);
void hd_issue_finish(struct hd_issue *issue);

/* The ranks between which the remote message of action `sender` crosses. */
uint32_t hd_issue_source(const struct hd_pipeline *pipeline, uint32_t sender);
uint32_t hd_issue_target(const struct hd_pipeline *pipeline, uint32_t sender);

/* "canonical", "grouped" or "program"; static. */
const char *hd_issue_name(uint32_t order);

#endif /* HEDDLE_PLAN_ISSUE_H */
