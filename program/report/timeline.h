/*
 * report/timeline.h - when each action runs, in ticks.
 *
 *   asap     dependencies only, free transfers, unlimited slots: the default
 *   drawn    the idle ticks of the schedule are kept: an action starts idle_before ticks after the
 *            end of the one before it.  Refused, naming the place, where that breaks a dependency.
 *            A plan without idle ticks gets the asap timeline, and its kind
 *   costed   times per stage, transfers that take time, the slots given (report/cost.h)
 *
 * Handoffs have classes (hidden, exposed) in asap and drawn.  In costed the quantity is time:
 * exposed = max(0, arrival - max(producer's end, end of the receiver's previous action)).
 *
 * Sources: docs/architecture.md, "The plan"; docs/sources.md.
 */
#ifndef HEDDLE_REPORT_TIMELINE_H
#define HEDDLE_REPORT_TIMELINE_H

#include "report/cost.h"
#include "plan/pipeline.h"

enum hd_timeline_kind { HD_TIMELINE_ASAP = 0, HD_TIMELINE_DRAWN = 1, HD_TIMELINE_COSTED = 2 };

#define HD_NO_STRAGGLER UINT32_MAX

struct hd_timeline {
    uint32_t kind;            /* enum hd_timeline_kind */
    double *start, *end;      /* [action_count] */
    double length;            /* of the step */
    double total, busy;       /* rank_count x length; the sum of all actions */
    double empty;             /* total - busy */
    double bubble;            /* empty / total */
    double bubble_over_ideal; /* empty / busy: (P - 1) / (V m) where all stages are alike */
    struct hd_pipeline_handoffs handoffs; /* costed: the local ones alone */
    double transfer_ticks, exposed_ticks; /* costed: all transfers, and what of them
                                              receivers wait for */
    double *depart, *arrive; /* costed: [action_count]: when the message of the action begins to
                                move to another rank, and when it has arrived; else NULL */
    uint32_t straggler;      /* the rank with the most busy time; the lowest of equals; if all ranks
                                are equal, HD_NO_STRAGGLER */
};

/* `costs` is for costed only.  Refused with HD_EXIT_PLAN: drawn, as above; costed in serial mode,
   if law 7 finds a cycle with the slots given. */
hd_status hd_timeline_create(const struct hd_pipeline *pipeline, uint32_t kind,
                             const struct hd_timeline_costs *costs, struct hd_timeline **timeline,
                             struct hd_problem *problem);
void hd_timeline_destroy(struct hd_timeline *timeline); /* takes NULL */

/* The bubble of the asap timeline: empty / total. */
double hd_timeline_asap_bubble(const struct hd_pipeline *pipeline);

/* How long the message of `producer` moves, and for how much of that the receiver has no other
   action to run; 0 and 0 if it stays on its rank or there is none.  Costed only. [any-thread] */
struct hd_transfer_ticks {
    double transfer, exposed;
};
struct hd_transfer_ticks hd_timeline_transfer(const struct hd_pipeline *pipeline,
                                              const struct hd_timeline *timeline,
                                              uint32_t producer);

#endif /* HEDDLE_REPORT_TIMELINE_H */
