/*
 * plan/timeline.h - when each action runs, in symbolic ticks.
 *
 *   asap     dependencies only, free transfers, unlimited slots: the default
 *   drawn    the rank's idle ticks are kept, actions otherwise follow each other: start = previous
 * end + idle_before; refused, naming the place, where that breaks a dependency; a plan without idle
 * ticks is drawn as asap costed   times per stage, transfers that take time, credits with the slots
 * given. overlapped: a transfer holds nobody; it starts when its producer ends (a channel moves one
 * message at a time) and the consumer waits for it.  blocking: it holds both ranks: the source from
 * its action's end, the target just before its consumer, together
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
enum hd_transfer_mode { HD_TRANSFER_OVERLAPPED = 0, HD_TRANSFER_BLOCKING = 1 };

/* What things cost, in ticks; each array borrowed. */
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
    double bubble_over_ideal; /* length / (the mean busy time of a rank) - 1; uneven stages: of the
                                 busiest? see .c */
    struct hd_pipeline_handoffs handoffs; /* asap and drawn */
    double transfer_ticks,
        exposed_ticks;  /* costed: all transfers, and what of them was waited for */
    uint32_t straggler; /* costed: the rank with the most busy time; the lowest of equals */
};

hd_status hd_timeline_create(const struct hd_pipeline *pipeline, uint32_t kind,
                             const struct hd_timeline_costs *costs, struct hd_timeline **timeline,
                             struct hd_problem *problem);
void hd_timeline_destroy(struct hd_timeline *timeline); /* takes NULL */

#endif /* HEDDLE_PLAN_TIMELINE_H */
