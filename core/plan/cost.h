/* plan/cost.h - the costed timeline; internal to core/plan. */
#ifndef HEDDLE_PLAN_COST_H
#define HEDDLE_PLAN_COST_H

#include "plan/timeline.h"

/* Fills start, end, transfer_ticks, exposed_ticks and handoffs.local of a zeroed timeline. */
hd_status hd_cost_fill(const struct hd_pipeline *pipeline, const struct hd_timeline_costs *costs,
                       struct hd_timeline *timeline, struct hd_problem *problem);

#endif /* HEDDLE_PLAN_COST_H */
