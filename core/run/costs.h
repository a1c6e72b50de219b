/* run/costs.h - the lists of [cost], read for one pipeline. */
#ifndef HEDDLE_RUN_COSTS_H
#define HEDDLE_RUN_COSTS_H

#include "config/config.h"
#include "plan/timeline.h"

/* Checks the four lists of one number a stage; a list of one number holds for all stages.
   HD_EXIT_USAGE for any other length. */
hd_status hd_costs_check(const struct hd_config *config, uint32_t stage_count,
                         struct hd_problem *problem);

/* The costed timeline of `pipeline`.  A serial pipeline costs its transfers as serial unless
   cost.mode is blocking.  HD_EXIT_USAGE for a list of a wrong length. */
hd_status hd_costs_timeline(const struct hd_config *config, const struct hd_pipeline *pipeline,
                            struct hd_timeline **timeline, struct hd_problem *problem);

#endif /* HEDDLE_RUN_COSTS_H */
