/*
 * run/job.h - from a configuration to everything that is fixed before a rank starts.
 *
 * The one way through the house up to the engine: schedule -> pipeline (verified, slots given) ->
 * model cut into stages -> what each stage needs -> bytes per rank -> the digest that all ranks
 * must agree on.  The floor `run` stands between report and cli: it is what `heddle run` and
 * `heddle bench` share, and it meets engine, launch and train, which do not know each other.
 */
#ifndef HEDDLE_RUN_JOB_H
#define HEDDLE_RUN_JOB_H

#include "base/hash.h"
#include "base/problem.h"
#include "config/config.h"
#include "engine/model.h"
#include "plan/footprint.h"
#include "plan/pipeline.h"
#include "plan/timeline.h"
#include "registry/registry.h"

/* The plugins of one configuration, with their options in the order of their tables; borrowed. */
struct hd_job_plugins {
    const struct hd_candidate *schedule; /* NULL: pipeline.schedule is a CSV file */
    const struct hd_candidate *transport, *kernel;
    const struct hd_candidate *inner; /* what the transport wraps; NULL: it is no hook */
    const struct hd_option_value *schedule_options, *transport_options, *kernel_options;
    const struct hd_option_value *inner_options;
    uint32_t is_forward_only; /* 1: the schedule is asked for an evaluation */
};

struct hd_job {
    struct hd_config *config; /* borrowed */
    struct hd_job_plugins plugins;
    struct hd_pipeline *pipeline;
    struct hd_model model;
    struct hd_stage_needs *needs;    /* [stage_count]; NULL: hd_job_check refuses it */
    struct hd_footprint *footprints; /* [rank_count]; NULL with it */
    char hash[HD_HASH_TEXT_BYTES];   /* what all ranks must agree on */
};

/*
 * Makes all of it.  `config` and `plugins` are borrowed until finish; a CSV sets the config's
 * ranks, stages_per_rank and microbatches.  On failure the job is finished already.
 */
hd_status hd_job_create(struct hd_job *job, struct hd_config *config,
                        const struct hd_job_plugins *plugins, struct hd_problem *problem);
void hd_job_finish(struct hd_job *job);

/* Can the job be run, not only planned?  Fewer layers than stages: HD_EXIT_USAGE; halves of a
   backward that the kernel lacks, or two replicas: HD_EXIT_PLAN. */
hd_status hd_job_check(const struct hd_job *job, struct hd_problem *problem);

/* The pipeline alone, with its slots: what `create` begins with. */
hd_status hd_job_plan(struct hd_config *config, const struct hd_job_plugins *plugins,
                      struct hd_pipeline **pipeline, struct hd_problem *problem);

/* Capabilities of what carries the tensors: the transport, or what it wraps; 0 without one. */
uint64_t hd_job_needs(const struct hd_job_plugins *plugins);

/* The costed timeline of [cost], for this pipeline; a serial one costs transfers as serial where
   cost.mode does not say blocking.  A list of a wrong length: HD_EXIT_USAGE. */
hd_status hd_job_costed(const struct hd_config *config, const struct hd_pipeline *pipeline,
                        struct hd_timeline **timeline, struct hd_problem *problem);

#endif /* HEDDLE_RUN_JOB_H */
