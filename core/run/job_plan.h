/*
 * run/job_plan.h - the pipeline of a configuration: the schedule's actions or a CSV's, with slots
 * and with the order of transfers that the transport needs.
 */
#ifndef HEDDLE_RUN_JOB_PLAN_H
#define HEDDLE_RUN_JOB_PLAN_H

#include "config/config.h"
#include "plan/pipeline.h"
#include "run/plugins.h"

/* A CSV sets the config's ranks, stages_per_rank and microbatches.  *pipeline is NULL on failure:
   HD_EXIT_PLAN for a plan that breaks a law, HD_EXIT_USAGE for a key that contradicts the CSV. */
hd_status hd_job_plan(struct hd_config *config, const struct hd_plugins *plugins,
                      struct hd_pipeline **pipeline, struct hd_problem *problem);

#endif /* HEDDLE_RUN_JOB_PLAN_H */
