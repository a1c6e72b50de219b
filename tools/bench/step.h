/*
 * bench/step.h - the parts of `heddle bench step`, one row at a time.
 *
 *   model     floating-point rate of the model by the kernel of the job; beside it the rate of
 *             oneDNN on the same cores
 *   engine    CPU time of the engine per action, outside of waits, with stages that take no time;
 *             beside it the cost of a pair of clock readings and an empty call
 *   schedule  the time of a step whose stages last exactly as long as [cost] says; beside it the
 *             plan of the same costs
 *   overlap   the same with transfers that take time: the step, and the part of the transfers that
 *             was hidden; beside it the plan of the same costs
 *   recording steps with the trace beside steps without it
 */
#ifndef HEDDLE_BENCH_STEP_H
#define HEDDLE_BENCH_STEP_H

#include "bench/bench.h"
#include "bench/yardstick.h"
#include "report/run_json.h"
#include "run/session.h"

/* Of a job that was run without output files; the parts share it. */
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
    const char *kernel; /* borrowed from the job */
    uint32_t rank_count;
    uint64_t action_count; /* of one step, all ranks */
    struct hd_bench_spread on, off;
    double ratio;
};
hd_status hd_bench_session_pairs(struct hd_job *job, uint32_t warmup,
                                 struct hd_bench_recording *result, struct hd_problem *problem);

/* Forward and backward of all stages and microbatches, as the kernel counts them. */
double hd_bench_step_flops(const struct hd_job *job);

struct hd_bench_model {
    uint32_t rank_count;
    double flops; /* of one step, forward and backward, as the kernel counts them */
    struct hd_bench_session session;
    double gflops; /* flops over the median step */
    struct hd_gemm_rate yardstick;
    double big_ratio, best_ratio; /* gflops over that of the yardstick; or NaN */
};

struct hd_bench_model_request {
    const char *type;    /* of the yardstick: "bf16" or "f32" */
    uint32_t warmup;     /* steps that do not count */
    double gemm_seconds; /* of each product of the yardstick */
    uint32_t copies;     /* of the yardstick that run at once */
};
hd_status hd_bench_model(struct hd_job *job, const struct hd_bench_model_request *request,
                         struct hd_bench_model *row, struct hd_problem *problem);

struct hd_bench_engine {
    const char *transport; /* borrowed from the job */
    uint32_t rank_count;
    uint64_t action_count;            /* of one run, all ranks */
    struct hd_bench_spread action_us; /* CPU time outside waits, over runs */
    struct hd_bench_spread wait_us;   /* CPU time in waits, over runs */
    struct hd_call_cost yardstick;
    double ratio; /* the median over one clock pair and one call */
};
hd_status hd_bench_engine(struct hd_job *job, uint32_t iterations, struct hd_bench_engine *row,
                          struct hd_problem *problem);

struct hd_bench_schedule {
    const char *schedule; /* borrowed from the job */
    uint32_t rank_count, stage_count, microbatch_count;
    double shortest_ms; /* the cost of the shortest action */
    struct hd_bench_session session;
    double plan_seconds; /* costed */
    double ratio;        /* the median span over plan_seconds */
};
hd_status hd_bench_schedule(struct hd_job *job, uint32_t warmup, struct hd_bench_schedule *row,
                            struct hd_problem *problem);

#endif /* HEDDLE_BENCH_STEP_H */
