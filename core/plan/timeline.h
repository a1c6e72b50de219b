/*
 * plan/timeline.h - when each action runs, in symbolic ticks.
 *
 *   asap     dependencies only, free transfers, unlimited slots: the default
 *   drawn    the rank's idle ticks are kept, actions otherwise follow each other: start = previous
 *            end + idle_before; refused, naming the place, where that breaks a dependency; a plan
 *            without idle ticks is drawn as asap, and the kind says so
 *   costed   times per stage, transfers that take time, credits with the slots given
 *
 * Costed transfers, over a boundary that costs c:
 *   overlapped  hold nobody: one starts when its producer has ended and the one before it on its
 *               channel has arrived; the consumer waits for its arrival
 *   blocking    hold both ranks for c: the source from its action's end, the target just before its
 *               consumer, and not before the source has begun
 *   serial      as overlapped, but each rank is in one transfer at a time, in the issue order of
 *               the pipeline (plan/issue.h); those of a group move side by side
 * A local handoff costs nothing.  A source starts only when its channel has a slot: it takes it at
 * its start and gets it back at the last reader's end.
 *
 * A class (hidden, exposed) belongs to asap and drawn; under costs the quantity is time:
 * exposed = max(0, arrival - max(producer's end, end of the receiver's previous action)).
 *
 * Sources: DESIGN.md, section 4; facts/plan_numbers.md, "Timelines".
 */
#ifndef HEDDLE_PLAN_TIMELINE_H
#define HEDDLE_PLAN_TIMELINE_H

#include "plan/pipeline.h"

enum hd_timeline_kind { HD_TIMELINE_ASAP = 0, HD_TIMELINE_DRAWN = 1, HD_TIMELINE_COSTED = 2 };
enum hd_transfer_mode {
    HD_TRANSFER_OVERLAPPED = 0,
    HD_TRANSFER_BLOCKING = 1,
    HD_TRANSFER_SERIAL = 2
};

/* What things cost, in ticks, none below 0; each array borrowed for the call.  An array that no
   action of the plan needs (W of an unsplit plan) may be NULL. */
struct hd_timeline_costs {
    const double *forward, *backward, *input_gradient, *weight_gradient; /* [stage_count] */
    const double *transfer;                                              /* [stage_count - 1] */
    uint32_t mode;                                                       /* enum hd_transfer_mode */
    uint32_t is_unlimited; /* 1: as if slots never ran out (for comparison) */
};

struct hd_timeline {
    uint32_t kind;
    double *start, *end;      /* [action_count] */
    double length;            /* of the step */
    double total, busy;       /* rank_count x length; the sum of all actions */
    double empty;             /* total - busy */
    double bubble;            /* empty / total */
    double bubble_over_ideal; /* empty / busy: (P - 1) / (V m) where all stages are alike */
    struct hd_pipeline_handoffs handoffs; /* asap and drawn; costed: local only */
    double transfer_ticks, exposed_ticks; /* costed: all transfers, and what was waited for them */
    double *depart, *arrive; /* costed: [action_count], of what the action sends to another rank: it
                                begins to move, and is there; else NULL */
    uint32_t straggler;      /* the rank with the most busy time; the lowest of equals */
};

/* `costs` only for costed.  Drawn may be refused (HD_EXIT_PLAN), costed where the slots given do
   not end under law 7 in serial mode. */
hd_status hd_timeline_create(const struct hd_pipeline *pipeline, uint32_t kind,
                             const struct hd_timeline_costs *costs, struct hd_timeline **timeline,
                             struct hd_problem *problem);

/* How long what `producer` sends moves, and for how much of that the receiver has nothing else to
   do; 0 and 0 within a rank, or where it sends nothing.  Under costs only. [any-thread] */
struct hd_transfer_ticks {
    double transfer, exposed;
};
struct hd_transfer_ticks hd_timeline_transfer(const struct hd_pipeline *pipeline,
                                              const struct hd_timeline *timeline,
                                              uint32_t producer);
void hd_timeline_destroy(struct hd_timeline *timeline); /* takes NULL */

#endif /* HEDDLE_PLAN_TIMELINE_H */
