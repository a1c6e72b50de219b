/* bench/plan.c - planning, timed in a process of its own for each repetition. */
#include "bench/plan.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/memory.h"
#include "engine/program.h"
#include "run/job_plan.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* What a repetition measures: seconds, and bytes at the peak. */
enum { PIPELINE, HASH, PROGRAM, ALL, PASS, PEAK, VALUE_COUNT };

/* What a child leaves for its parent. */
struct sample {
    bool is_done;
    struct hd_bench_plan plan; /* only its counts */
    double values[VALUE_COUNT];
    struct hd_problem problem;
};

/* What the functions of one repetition hand on. */
struct trial {
    struct hd_config *config;
    const struct hd_plugins *plugins;
    struct sample sample; /* of the last child */
};

static double plan_seconds_since(uint64_t begin_ns)
{
    return (double)(hd_now_ns() - begin_ns) * 1e-9;
}

static void plan_hash_pipeline(const struct hd_pipeline *pipeline)
{
    uint8_t digest[HD_HASH_BYTES];
    struct hd_hash hash;

    hd_hash_begin(&hash);
    hd_pipeline_hash(pipeline, &hash);
    hd_hash_end(&hash, digest);
}

static void plan_once(void *context, void *answer)
{
    const struct trial *const trial = context;
    struct sample *const sample = answer;
    struct hd_pipeline *pipeline = NULL;
    struct hd_program program = {0};
    struct rusage usage;

    uint64_t begin_ns = hd_now_ns();
    hd_status status = hd_job_plan(trial->config, trial->plugins, &pipeline, &sample->problem);
    sample->values[PIPELINE] = plan_seconds_since(begin_ns);
    if (status != HD_OK) {
        return;
    }
    begin_ns = hd_now_ns();
    plan_hash_pipeline(pipeline);
    sample->values[HASH] = plan_seconds_since(begin_ns);
    begin_ns = hd_now_ns();
    status = hd_program_create(pipeline, 0, &program, &sample->problem);
    sample->values[PROGRAM] = plan_seconds_since(begin_ns);
    getrusage(RUSAGE_SELF, &usage);
    sample->values[ALL] = sample->values[PIPELINE] + sample->values[HASH] + sample->values[PROGRAM];
    sample->values[PEAK] = (double)usage.ru_maxrss * 1024.0;
    sample->plan = (struct hd_bench_plan){.rank_count = pipeline->rank_count,
                                          .stage_count = pipeline->stage_count,
                                          .microbatch_count = pipeline->microbatch_count,
                                          .action_count = pipeline->action_count};
    sample->is_done = status == HD_OK;
    hd_program_finish(&program);
    hd_pipeline_destroy(pipeline);
}

/* The sum is kept where the compiler must write it, or it would not read at all. */
static void plan_pass_once(void *context, void *answer)
{
    const struct trial *const trial = context;
    const uint64_t count = trial->sample.plan.action_count;
    struct sample *const sample = answer;
    volatile uint64_t kept;
    uint64_t sum = 0;

    const uint64_t begin_ns = hd_now_ns();
    struct hd_action *actions = hd_memory_take(count * sizeof *actions, 64, "yardstick");
    if (actions == NULL) {
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        actions[i] = (struct hd_action){.kind = HD_FORWARD, .microbatch = (uint32_t)i};
    }
    for (uint64_t i = 0; i < count; i++) {
        sum += actions[i].microbatch + actions[i].stage;
    }
    kept = sum;
    (void)kept;
    sample->values[PASS] = plan_seconds_since(begin_ns);
    sample->is_done = true;
    hd_memory_give(actions);
}

/* Runs `work` in a child; its sample is in trial->sample when this returns HD_OK. */
static hd_status plan_try_in_child(struct trial *trial, void (*work)(void *context, void *answer),
                                   struct hd_problem *problem)
{
    const struct hd_child_request request = {
        .work = work, .context = trial, .answer_bytes = sizeof trial->sample};
    struct hd_child child;

    if (hd_child_start(&child, &request) != HD_OK) {
        return hd_problem_set(problem, HD_SYSTEM, HD_EXIT_FAILED,
                              "cannot start a child process: %s", strerror(errno));
    }
    hd_child_wait(&child, UINT64_MAX);
    const int state = hd_child_stop(&child);
    memcpy(&trial->sample, child.answer, sizeof trial->sample);
    hd_child_free(&child);
    if (trial->sample.is_done) {
        return HD_OK;
    }
    if (trial->sample.problem.exit_code != 0) {
        *problem = trial->sample.problem;
        return HD_INVALID;
    }
    return hd_problem_set(problem, HD_SYSTEM, HD_EXIT_FAILED,
                          "the process that measures ended early%s",
                          WIFSIGNALED(state) ? ", by a signal" : "");
}

/* `rows`: one row a quantity, one column a repetition. */
static void plan_conclude(double *rows, uint32_t iterations, struct hd_bench_plan *result)
{
    struct hd_bench_spread *const spreads[VALUE_COUNT] = {
        [PIPELINE] = &result->pipeline_seconds, [HASH] = &result->hash_seconds,
        [PROGRAM] = &result->program_seconds,   [ALL] = &result->seconds,
        [PASS] = &result->pass_seconds,         [PEAK] = &result->peak_bytes,
    };

    for (uint32_t row = 0; row < VALUE_COUNT; row++) {
        hd_bench_spread(rows + (uint64_t)row * iterations, iterations, spreads[row]);
    }
    result->nanoseconds_per_action = result->seconds.median * 1e9 / (double)result->action_count;
    result->ratio = hd_bench_ratio(result->seconds.median, result->pass_seconds.median);
}

hd_status hd_bench_plan(struct hd_config *config, const struct hd_plugins *plugins,
                        uint32_t iterations, struct hd_bench_plan *result,
                        struct hd_problem *problem)
{
    const uint64_t bytes = (uint64_t)VALUE_COUNT * iterations * sizeof(double);
    struct trial trial = {.config = config, .plugins = plugins};
    double *rows = hd_memory_take(bytes, 64, "bench");
    hd_status status = HD_OK;

    assert(iterations > 0 && iterations <= HD_BENCH_ITERATIONS_MAX);
    *result = (struct hd_bench_plan){0};
    if (rows == NULL) {
        return hd_problem_no_memory(problem, bytes, "results");
    }
    for (uint32_t i = 0; status == HD_OK && i < iterations; i++) {
        status = plan_try_in_child(&trial, plan_once, problem);
        if (status != HD_OK) {
            break;
        }
        for (uint32_t row = 0; row < VALUE_COUNT; row++) {
            rows[(uint64_t)row * iterations + i] = trial.sample.values[row];
        }
        *result = trial.sample.plan;
        result->schedule = config->pipeline.schedule;
        status = plan_try_in_child(&trial, plan_pass_once, problem);
        rows[(uint64_t)PASS * iterations + i] = trial.sample.values[PASS];
    }
    if (status == HD_OK) {
        plan_conclude(rows, iterations, result);
    }
    hd_memory_give(rows);
    return status;
}
