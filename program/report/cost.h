/*
 * report/cost.h - when each action runs if actions and transfers have costs.
 *
 * Transfers over a boundary that costs c, by mode:
 *   overlapped  hold no rank: one starts when its producer has ended and the one before it on its
 *               channel has arrived; the consumer waits for its arrival
 *   blocking    hold both ranks for c: the source from its action's end, the target just before its
 *               consumer, and not before the source has begun
 *   serial      as overlapped, but each rank is in one transfer at a time, in the issue order of
 *               the pipeline (plan/issue.h); the transfers of a group move at the same time
 * A local handoff costs nothing.  A source starts only when its channel has a free slot: it takes
 * the slot at its start, and the end of the last reader releases it.
 *
 * Source: docs/architecture.md, "Order first, time second".
 */
#ifndef HEDDLE_REPORT_COST_H
#define HEDDLE_REPORT_COST_H

#include "plan/pipeline.h"

enum hd_transfer_mode {
    HD_TRANSFER_OVERLAPPED = 0,
    HD_TRANSFER_BLOCKING = 1,
    HD_TRANSFER_SERIAL = 2,
};

/* Costs in ticks, none below 0; the arrays are borrowed for the call.  An array that no action of
   the plan needs (W of an unsplit plan) may be NULL. */
struct hd_timeline_costs {
    const double *forward, *backward, *input_gradient, *weight_gradient; /* [stage_count] */
    const double *transfer;                                              /* [stage_count - 1] */
    uint32_t mode;                                                       /* enum hd_transfer_mode */
    bool is_unlimited; /* as if slots never ran out, for comparison */
};

/* The result; each array is [action_count], zeroed by the caller. */
struct hd_cost_times {
    double *start, *end;
    double *depart, *arrive; /* of what the action sends to another rank */
    double transfer_ticks;   /* the sum of all transfers */
};

hd_status hd_cost_fill(const struct hd_pipeline *pipeline, const struct hd_timeline_costs *costs,
                       struct hd_cost_times *times, struct hd_problem *problem);

#endif /* HEDDLE_REPORT_COST_H */
