/*
 * bench/plan.h - how long planning takes: everything that one rank needs before its first step.
 *
 * The time covers the schedule, the laws, the asap timeline, channels with depths and slots,
 * retention, the digest, and the program of one rank.  The plan is that of all ranks, because every
 * rank makes it.  Each repetition is a process of its own, so that its pages are fresh and its peak
 * memory is that of the plan.
 *
 * Yardstick: as many 16-byte actions written to fresh memory and read again.
 */
#ifndef HEDDLE_BENCH_PLAN_H
#define HEDDLE_BENCH_PLAN_H

#include "bench/bench.h"
#include "run/job.h"

struct hd_bench_plan {
    const char *schedule;                               /* borrowed from the configuration */
    uint32_t rank_count, stage_count, microbatch_count; /* of the plan */
    uint64_t action_count;
    struct hd_bench_spread pipeline_seconds; /* schedule to slots */
    struct hd_bench_spread hash_seconds;
    struct hd_bench_spread program_seconds; /* of rank 0 */
    struct hd_bench_spread seconds;         /* the three together */
    struct hd_bench_spread pass_seconds;    /* the yardstick */
    struct hd_bench_spread peak_bytes;      /* peak resident memory of the process */
    double nanoseconds_per_action;          /* of the median */
    double ratio;                           /* median over that of the yardstick */
};

/* Plans `iterations` times (at most HD_BENCH_ITERATIONS_MAX), each in a child of its own.
   `config` is borrowed. HD_EXIT_PLAN as hd_job_plan; HD_EXIT_FAILED when a child fails. */
hd_status hd_bench_plan(struct hd_config *config, const struct hd_plugins *plugins,
                        uint32_t iterations, struct hd_bench_plan *result,
                        struct hd_problem *problem);

#endif /* HEDDLE_BENCH_PLAN_H */
