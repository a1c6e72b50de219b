/* bench/step.c - one row of each part of `heddle bench step`. */
#include "bench/step.h"
#include "base/memory.h"
#include "base/try.h"
#include "output/overlap.h"
#include "report/costs.h"
#include "run/supervise.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- a session ------------------------------------------------------------------------------- */

/* Filled at the end of the run, while its shared memory is still mapped. */
struct keeping {
    struct hd_bench_session *result; /* NULL: keep the recording */
    struct hd_bench_recording *recording;
    uint32_t warmup;
    double *values; /* [train.steps] */
};

static void step_keep_steps(const struct keeping *keeping, const struct hd_session *session)
{
    const uint32_t done = session->shared.results->steps_done;
    const uint32_t count = done > keeping->warmup ? done - keeping->warmup : 0;

    memcpy(keeping->values, session->shared.step_seconds + keeping->warmup,
           count * sizeof *keeping->values);
    hd_bench_spread(keeping->values, count, &keeping->result->step_seconds);
}

/* All ranks read one clock. */
static double step_span_of(const struct hd_session *session, uint32_t step)
{
    const struct hd_pipeline *pipeline = session->job->pipeline;
    uint64_t begin_ns = UINT64_MAX, end_ns = 0;

    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        const struct hd_record *records = hd_kept_records(session, rank, step);
        const uint64_t count = pipeline->rank_begin[rank + 1] - pipeline->rank_begin[rank];
        for (uint64_t i = 0; i < count; i++) {
            begin_ns = records[i].run_ns < begin_ns ? records[i].run_ns : begin_ns;
            end_ns = records[i].end_ns > end_ns ? records[i].end_ns : end_ns;
        }
    }
    return (double)(end_ns - begin_ns) * 1e-9;
}

static void step_keep_spans(const struct keeping *keeping, const struct hd_session *session)
{
    const struct hd_kept_steps steps = hd_kept_steps(session);
    uint32_t count = 0;

    for (uint32_t i = 0; i < steps.count; i++) {
        const uint32_t step = steps.last - i;
        if (step > keeping->warmup) {
            keeping->values[count++] = step_span_of(session, step);
        }
    }
    hd_bench_spread(keeping->values, count, &keeping->result->span_seconds);
}

static void step_keep_ranks(const struct keeping *keeping, const struct hd_session *session)
{
    struct hd_bench_session *result = keeping->result;

    for (uint32_t rank = 0; rank < session->job->pipeline->rank_count; rank++) {
        const struct hd_rank_result *row = &session->shared.ranks[rank];
        if (row->counted_steps > 0) {
            result->compute_seconds += row->compute_seconds / row->counted_steps;
        }
        result->action_count += row->action_count;
        result->engine_cpu_ns += row->engine_cpu_ns;
        result->wait_cpu_ns += row->wait_cpu_ns;
    }
    snprintf(result->device, sizeof result->device, "%s", session->shared.ranks[0].device);
}

static void step_keep_pairs(const struct keeping *keeping, const struct hd_session *session)
{
    const double *seconds = session->shared.step_seconds + keeping->warmup;
    const uint32_t done = session->shared.results->steps_done;
    const uint32_t count = done > keeping->warmup ? (done - keeping->warmup) / 2 : 0;
    struct hd_bench_spread ratios;
    struct hd_bench_recording *result = keeping->recording;
    struct hd_bench_spread *const halves[] = {&result->on, &result->off};

    for (uint32_t half = 0; half < 2; half++) {
        for (uint32_t i = 0; i < count; i++) {
            keeping->values[i] = seconds[2 * i + half];
        }
        hd_bench_spread(keeping->values, count, halves[half]);
    }
    for (uint32_t i = 0; i < count; i++) {
        keeping->values[i] = hd_bench_ratio(seconds[2 * i], seconds[2 * i + 1]);
    }
    hd_bench_spread(keeping->values, count, &ratios);
    result->ratio = ratios.median;
}

static hd_status step_keep(void *context, const struct hd_session *session, int32_t exit_code,
                           struct hd_problem *problem)
{
    (void)exit_code;
    (void)problem;
    const struct keeping *keeping = context;

    if (keeping->result == NULL) {
        step_keep_pairs(keeping, session);
        return HD_OK;
    }
    hd_overlap_measure(session, &keeping->result->overlap);
    step_keep_steps(keeping, session);
    step_keep_spans(keeping, session);
    step_keep_ranks(keeping, session);
    return HD_OK;
}

static hd_status step_run(struct hd_job *job, const struct hd_session_request *request,
                          struct keeping *keeping, struct hd_problem *problem)
{
    const uint32_t steps = job->config->train.steps;
    struct hd_session session;

    assert(keeping->warmup < steps);
    keeping->values = hd_memory_take(steps * sizeof *keeping->values, 64, "bench");
    if (keeping->values == NULL) {
        return hd_problem_set(problem, HD_NO_MEMORY, HD_EXIT_FAILED,
                              "cannot allocate memory for the results");
    }
    hd_status status = hd_session_create(&session, job, request, problem);
    if (status == HD_OK) {
        session.listener = (struct hd_session_listener){.context = keeping, .on_end = step_keep};
        status = hd_supervise(&session, problem);
        hd_session_finish(&session);
    }
    hd_memory_give(keeping->values);
    return status;
}

hd_status hd_bench_session_run(struct hd_job *job, uint32_t warmup, struct hd_bench_session *result,
                               struct hd_problem *problem)
{
    const struct hd_session_request request = {.is_quiet = 1, .counts_wait_cpu = 1};
    struct keeping keeping = {.result = result, .warmup = warmup};

    *result = (struct hd_bench_session){0};
    return step_run(job, &request, &keeping, problem);
}

hd_status hd_bench_session_pairs(struct hd_job *job, uint32_t warmup,
                                 struct hd_bench_recording *result, struct hd_problem *problem)
{
    const struct hd_session_request request = {.is_quiet = 1, .trace_alternates = 1};
    struct keeping keeping = {.recording = result, .warmup = warmup};

    assert(warmup % 2 == 0 && job->config->output.trace);
    *result = (struct hd_bench_recording){.kernel = job->config->kernels.name,
                                          .rank_count = job->pipeline->rank_count,
                                          .action_count = job->pipeline->action_count};
    return step_run(job, &request, &keeping, problem);
}

/* --- the parts ------------------------------------------------------------------------------- */

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

    assert(iterations > 0 && iterations <= HD_BENCH_ITERATIONS_MAX);
    *row = (struct hd_bench_engine){.transport = job->config->transport.name,
                                    .rank_count = job->pipeline->rank_count};
    hd_call_cost(&row->yardstick);
    for (uint32_t i = 0; i < iterations; i++) {
        HD_TRY(hd_bench_session_run(job, 0, &session, problem));
        const double count = (double)session.action_count;
        actions[i] =
            hd_bench_ratio((double)session.engine_cpu_ns - (double)session.wait_cpu_ns, count) *
            1e-3;
        waits[i] = hd_bench_ratio((double)session.wait_cpu_ns, count) * 1e-3;
        row->action_count = session.action_count;
    }
    hd_bench_spread(actions, iterations, &row->action_us);
    hd_bench_spread(waits, iterations, &row->wait_us);
    row->ratio = hd_bench_ratio(row->action_us.median * 1e3,
                                row->yardstick.clock_pair_ns + row->yardstick.call_ns);
    return HD_OK;
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
        .schedule = job->config->pipeline.schedule,
        .rank_count = job->pipeline->rank_count,
        .stage_count = job->pipeline->stage_count,
        .microbatch_count = job->pipeline->microbatch_count,
        .shortest_ms = step_shortest_ms(job),
    };
    HD_TRY(hd_costs_timeline(job->config, job->pipeline, &timeline, problem));
    row->plan_seconds = timeline->length * job->config->cost.tick_us * 1e-6;
    hd_timeline_destroy(timeline);
    HD_TRY(hd_bench_session_run(job, warmup, &row->session, problem));
    row->ratio = hd_bench_ratio(row->session.span_seconds.median, row->plan_seconds);
    return HD_OK;
}
