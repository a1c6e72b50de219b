/*
 * bench/session.h - runs a job without output files, and returns its times.
 *
 * The parts of `heddle bench step` differ in the job and in the yardstick; they share this.
 */
#ifndef HEDDLE_BENCH_SESSION_H
#define HEDDLE_BENCH_SESSION_H

#include "report/run_json.h"
#include "bench/bench.h"
#include "run/session.h"

struct hd_bench_session {
    struct hd_bench_spread step_seconds; /* of rank 0: actions, vote, optimizer */
    struct hd_bench_spread span_seconds; /* from the begin of the first pass to the end of the
                                            last, all ranks; of the steps in the trace */
    struct hd_run_overlap overlap;       /* of the same steps */
    double compute_seconds;              /* in passes, all ranks, per step; mean from step 3 on */
    uint64_t action_count;               /* of all ranks and steps */
    uint64_t engine_cpu_ns;              /* of the threads in hd_engine_step, in these steps */
    uint64_t wait_cpu_ns;                /* the part of it in waits for other ranks */
    char device[160];
};

/* Runs train.steps steps; the first `warmup` of them do not count. */
hd_status hd_bench_session_run(struct hd_job *job, uint32_t warmup, struct hd_bench_session *result,
                               struct hd_problem *problem);

/* The same with recording on in odd steps and off in even ones: the seconds of both, and the median
   ratio of two steps that follow each other.  `warmup` is even. */
struct hd_bench_recording {
    struct hd_bench_spread on, off;
    double ratio;
};
hd_status hd_bench_session_pairs(struct hd_job *job, uint32_t warmup,
                                 struct hd_bench_recording *result, struct hd_problem *problem);

#endif /* HEDDLE_BENCH_SESSION_H */
