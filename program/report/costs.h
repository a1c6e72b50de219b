/* report/costs.h - the lists of [cost], read for one pipeline. */
#ifndef HEDDLE_REPORT_COSTS_H
#define HEDDLE_REPORT_COSTS_H

#include "config/config.h"
#include "report/timeline.h"

/* The costed timeline of `pipeline`.  A serial pipeline costs its transfers as serial unless
   cost.mode is blocking.  HD_EXIT_USAGE for a list of a wrong length. */
hd_status hd_costs_timeline(const struct hd_config *config, const struct hd_pipeline *pipeline,
                            struct hd_timeline **timeline, struct hd_problem *problem);

#endif /* HEDDLE_REPORT_COSTS_H */
