/* bench/step.c - one row of each part of `heddle bench step`. */
#include "bench/step.h"
#include "base/try.h"
#include "report/costs.h"

#include <assert.h>
#include <math.h>

double hd_bench_step_flops(const struct hd_job *job)
{
    double flops = 0;

    for (uint32_t stage = 0; stage < job->pipeline->stage_count; stage++) {
        flops += job->needs[stage].forward_flops + job->needs[stage].backward_flops;
    }
    return flops * job->pipeline->microbatch_count;
}

/* The yardstick is measured before and after the steps, and the faster one counts, so that other
   load does not flatter the kernel. */
hd_status hd_bench_model(struct hd_job *job, const struct hd_bench_model_request *request,
                         struct hd_bench_model *row, struct hd_problem *problem)
{
    struct hd_gemm_rate *rate = &row->yardstick;
    struct hd_gemm_rate after;

    *row = (struct hd_bench_model){
        .rank_count = job->pipeline->rank_count,
        .flops = hd_bench_step_flops(job),
        .big_ratio = NAN,
        .best_ratio = NAN,
    };
    HD_TRY(hd_gemm_rate(request->type, request->copies, request->gemm_seconds, rate, problem));
    HD_TRY(hd_bench_session_run(job, request->warmup, &row->session, problem));
    HD_TRY(hd_gemm_rate(request->type, request->copies, request->gemm_seconds, &after, problem));
    row->gflops = hd_bench_ratio(row->flops * 1e-9, row->session.step_seconds.median);
    if (rate->row_count > 0) {
        hd_gemm_rate_join(rate, &after);
        row->big_ratio = hd_bench_ratio(row->gflops, rate->rows[rate->big].gflops);
        row->best_ratio = hd_bench_ratio(row->gflops, rate->rows[rate->best].gflops);
    }
    return HD_OK;
}

hd_status hd_bench_engine(struct hd_job *job, uint32_t iterations, struct hd_bench_engine *row,
                          struct hd_problem *problem)
{
    double actions[HD_BENCH_ITERATIONS_MAX], waits[HD_BENCH_ITERATIONS_MAX];
    struct hd_bench_session session;
    hd_status status = HD_OK;

    assert(iterations > 0 && iterations <= HD_BENCH_ITERATIONS_MAX);
    *row = (struct hd_bench_engine){.rank_count = job->pipeline->rank_count};
    hd_call_cost(&row->yardstick);
    for (uint32_t i = 0; status == HD_OK && i < iterations; i++) {
        status = hd_bench_session_run(job, 0, &session, problem);
        const double count = (double)session.action_count;
        actions[i] =
            hd_bench_ratio((double)session.engine_cpu_ns - (double)session.wait_cpu_ns, count) *
            1e-3;
        waits[i] = hd_bench_ratio((double)session.wait_cpu_ns, count) * 1e-3;
        row->action_count = session.action_count;
    }
    if (status == HD_OK) {
        hd_bench_spread(actions, iterations, &row->action_us);
        hd_bench_spread(waits, iterations, &row->wait_us);
        row->ratio = hd_bench_ratio(row->action_us.median * 1e3,
                                    row->yardstick.clock_pair_ns + row->yardstick.call_ns);
    }
    return status;
}

static double step_shortest_ms(const struct hd_job *job)
{
    double shortest_us = INFINITY;

    for (uint32_t stage = 0; stage < job->pipeline->stage_count; stage++) {
        const struct hd_stage_spec *spec = &job->model.specs[stage];
        shortest_us = fmin(shortest_us, fmin(spec->forward_us, spec->backward_us));
    }
    return shortest_us * 1e-3;
}

hd_status hd_bench_schedule(struct hd_job *job, uint32_t warmup, struct hd_bench_schedule *row,
                            struct hd_problem *problem)
{
    struct hd_timeline *timeline = NULL;

    *row = (struct hd_bench_schedule){
        .rank_count = job->pipeline->rank_count,
        .stage_count = job->pipeline->stage_count,
        .microbatch_count = job->pipeline->microbatch_count,
        .shortest_ms = step_shortest_ms(job),
    };
    hd_status status = hd_costs_timeline(job->config, job->pipeline, &timeline, problem);
    if (status != HD_OK) {
        return status;
    }
    row->plan_seconds = timeline->length * job->config->cost.tick_us * 1e-6;
    hd_timeline_destroy(timeline);
    status = hd_bench_session_run(job, warmup, &row->session, problem);
    row->ratio = hd_bench_ratio(row->session.span_seconds.median, row->plan_seconds);
    return status;
}
