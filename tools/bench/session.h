/*
 * bench/session.h - one run without files, and what it took.
 *
 * The three parts of `heddle bench step` differ in the job that they run and in what they hold the
 * result against; this is what they share.
 */
#ifndef HEDDLE_BENCH_SESSION_H
#define HEDDLE_BENCH_SESSION_H

#include "report/run_json.h"
#include "bench/bench.h"
#include "run/session.h"

struct hd_bench_session {
    struct hd_bench_spread step_seconds; /* of rank 0: actions, meeting, optimizer */
    struct hd_bench_spread span_seconds; /* first pass's begin to last pass's end, over all ranks;
                                            of the steps that the trace keeps */
    struct hd_run_overlap overlap;       /* of the same steps */
    double compute_seconds; /* in passes, all ranks, a step; mean from step 3 on, if there is one */
    uint64_t action_count;  /* of all ranks and steps */
    uint64_t engine_cpu_ns; /* in that time: of the steps' threads in hd_engine_step */
    uint64_t wait_cpu_ns;   /* and of it in waits for other ranks */
    char device[160];
};

/* Runs the job's train.steps; the first `warmup` of them do not count. */
hd_status hd_bench_session_run(struct hd_job *job, uint32_t warmup, struct hd_bench_session *result,
                               struct hd_problem *problem);

/* Likewise, with recording on in odd steps and off in even ones: seconds of each, and their ratio,
   the median over pairs of steps that follow each other.  `warmup` is even. */
struct hd_bench_recording {
    struct hd_bench_spread on, off;
    double ratio;
};
hd_status hd_bench_session_pairs(struct hd_job *job, uint32_t warmup,
                                 struct hd_bench_recording *result, struct hd_problem *problem);

#endif /* HEDDLE_BENCH_SESSION_H */
