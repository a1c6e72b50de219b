/*
 * run/job.h - everything that is fixed before a rank starts.
 *
 *   job_plan.c    schedule or CSV -> pipeline: verified, with slots          hd_job_plan
 *   model.c       the ini's model, cut into the pipeline's stages            hd_model_create
 *   job.c         what each stage needs, bytes per rank, the plan's hash     hd_job_create
 *   job_check.c   whether all of it can run                                  hd_job_check
 */
#ifndef HEDDLE_RUN_JOB_H
#define HEDDLE_RUN_JOB_H

#include "base/hash.h"
#include "base/problem.h"
#include "config/config.h"
#include "plan/footprint.h"
#include "plan/pipeline.h"
#include "run/model.h"
#include "run/plugins.h"

struct hd_job {
    struct hd_config *config;  /* borrowed */
    struct hd_plugins plugins; /* borrowed */
    struct hd_pipeline *pipeline;
    struct hd_model model;
    struct hd_stage_needs *needs;    /* [stage_count]; NULL: hd_job_check refuses the job */
    struct hd_footprint *footprints; /* [rank_count]; NULL when `needs` is NULL */
    char hash[HD_HASH_TEXT_BYTES];   /* what all ranks must agree on */
    double seconds;                  /* that it took to create the job */
};

/* Makes all of it; without a kernel the pipeline alone, and the hash is the pipeline's.  `config`
   and `plugins` are borrowed until finish; a CSV sets the config's ranks, stages_per_rank and
   microbatches.  On failure the job is finished already. */
hd_status hd_job_create(struct hd_job *job, struct hd_config *config,
                        const struct hd_plugins *plugins, struct hd_problem *problem);
void hd_job_finish(struct hd_job *job);

/* Of this machine; static.  A kernel may compute other bits with another instruction set, so such
   ranks must not agree. */
const char *hd_job_instruction_set(void);

/* The plan splits backwards, and the kernel has only whole ones. */
bool hd_job_lacks_halves(const struct hd_job *job);

#endif /* HEDDLE_RUN_JOB_H */
