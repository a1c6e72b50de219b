/* bench/skew_work.c - compute that lasts as long as a stage, and its times. */
#include "bench/skew_work.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/try.h"
#include "engine/region.h"
#include "train/initial.h"

#include <assert.h>
#include <math.h>
#include <time.h>

enum { CALIBRATION_COUNT = 50, WORK_TRIAL = 64, LOOK_UNITS = 16, PASS_TRIALS = 5 };

/* How often the host polls while the device computes. */
#define LOOK_NS     50000u
#define PASS_MAX    100000u
#define PATIENCE_NS (60 * HD_S_NS) /* limit of the calibration */
#define NS_A_MS     1e6

double hd_skew_since(uint64_t begin_ns, uint64_t now_ns)
{
    return (double)((int64_t)now_ns - (int64_t)begin_ns) / NS_A_MS;
}

struct hd_channel_stats hd_skew_stats(const struct hd_pair *pair)
{
    struct hd_channel_stats stats = {.size = sizeof stats};

    if (pair->drive.ops->stats != NULL) {
        pair->drive.ops->stats(pair->drive.transport, pair->out.index, &stats);
    }
    return stats;
}

static void skew_work_look(struct hd_skew_watch *watch)
{
    if (watch->seen_ns == 0 && hd_skew_stats(watch->pair).finished_count >= watch->finished_goal) {
        watch->seen_ns = hd_now_ns();
    }
}

static uint64_t skew_work_process_cpu_ns(void)
{
    struct timespec spent;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return (uint64_t)spent.tv_sec * HD_S_NS + (uint64_t)spent.tv_nsec;
}

/* --- the host -------------------------------------------------------------------------------- */

static void work_unit(struct hd_skew_work *work)
{
    for (uint32_t i = 0; i < HD_SKEW_WORK_FLOATS; i++) {
        work->left[i] = work->left[i] * 0.999f + work->right[i];
    }
}

static void work_stage(struct hd_skew_work *work, struct hd_skew_watch *watch)
{
    for (uint64_t unit = 0; unit < work->stage_units; unit++) {
        work_unit(work);
        if (watch != NULL && unit % LOOK_UNITS == 0) {
            skew_work_look(watch);
        }
    }
}

/* The fastest of several trials, because other load only slows them down. */
static void skew_work_calibrate_host(struct hd_skew_work *work, uint64_t stage_ns)
{
    uint64_t best_ns = UINT64_MAX;

    for (uint32_t i = 0; i < HD_SKEW_WORK_FLOATS; i++) {
        work->left[i] = 1;
        work->right[i] = 1e-3f;
    }
    work->stage_units = WORK_TRIAL;
    for (uint32_t trial = 0; trial < CALIBRATION_COUNT; trial++) {
        const uint64_t begin_ns = hd_now_ns();
        work_stage(work, NULL);
        const uint64_t spent_ns = hd_now_ns() - begin_ns;
        best_ns = spent_ns < best_ns ? spent_ns : best_ns;
    }
    work->stage_units = stage_ns * WORK_TRIAL / (best_ns > 0 ? best_ns : 1);
    work->stage_units += work->stage_units == 0;
}

static void skew_work_compute_on_host(struct hd_skew_work *work, struct hd_skew_watch *watch,
                                      struct hd_skew_times *times, uint64_t *end_ns)
{
    const uint64_t own_ns = hd_thread_cpu_ns(), begin_ns = hd_now_ns();

    work_stage(work, watch);
    *end_ns = hd_now_ns();
    const uint64_t own = hd_thread_cpu_ns() - own_ns;
    times->compute_begin = hd_skew_since(times->origin_ns, begin_ns);
    times->compute = hd_skew_since(begin_ns, *end_ns);
    times->stolen = fmax(0, times->compute - (double)own / NS_A_MS);
}

/* --- a stage on its device, without an engine ------------------------------------------------- */

static const struct hd_lent *skew_work_lent_of(const struct hd_bench_stage *stage)
{
    return &stage->device->lent;
}

static hd_status skew_work_take_regions(struct hd_bench_stage *stage, uint64_t token_bytes)
{
    const struct hd_lent *lent = skew_work_lent_of(stage);
    const struct hd_regions regions = {.ops = lent->ops,
                                       .kernel = lent->kernel,
                                       .alignment = hd_lent_alignment(lent),
                                       .is_device = lent->about.memory == HD_MEMORY_CUDA};
    const struct hd_stage_needs *needs = &stage->needs;
    const struct {
        uint64_t bytes;
        void **out;
    } rows[] = {
        {needs->parameter_bytes, &stage->memory.parameters},
        {needs->optimizer_bytes, &stage->memory.optimizer},
        {needs->scratch_bytes, &stage->memory.scratch},
        {needs->gradient_bytes[HD_DENSE], &stage->memory.gradients[HD_DENSE]},
        {needs->gradient_bytes[HD_EXPERT], &stage->memory.gradients[HD_EXPERT]},
        {token_bytes, &stage->tokens},
        {needs->boundary_bytes, &stage->output},
        {needs->term_count * sizeof(double), &stage->terms},
    };

    stage->memory.size = sizeof stage->memory;
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        HD_TRY(hd_regions_take(&regions, rows[i].bytes, "bench", rows[i].out));
        if (rows[i].bytes > 0) {
            HD_TRY(hd_regions_fill(&regions, *rows[i].out, rows[i].bytes, 0));
        }
    }
    return HD_OK;
}

static hd_status skew_work_draw_tensor(struct hd_bench_stage *stage,
                                       const struct hd_stage_spec *spec, uint64_t seed,
                                       uint32_t index)
{
    const struct hd_lent *lent = skew_work_lent_of(stage);
    struct hd_tensor tensor = {.size = sizeof tensor};

    HD_TRY(lent->ops->tensor(stage->instance, index, &tensor));
    void *values = hd_memory_take(hd_tensor_count(&tensor) * sizeof(double), 4096, "bench");
    if (values == NULL) {
        return HD_NO_MEMORY;
    }
    hd_initial_fill(&tensor, seed, spec->init_std, values);
    const hd_status status = lent->ops->tensor_copy(stage->instance, index, HD_MASTER, 1, values);
    hd_memory_give(values);
    return status;
}

/* Any tokens will do: how even the routing is depends on the drawn router. */
static hd_status skew_work_draw_tokens(struct hd_bench_stage *stage,
                                       const struct hd_stage_spec *spec)
{
    const uint64_t count = (uint64_t)spec->batch * spec->sequence;
    int32_t *tokens = hd_memory_take(count * sizeof *tokens, 4096, "bench");

    if (tokens == NULL) {
        return HD_NO_MEMORY;
    }
    for (uint64_t i = 0; i < count; i++) {
        tokens[i] = (int32_t)(i * 2654435761u % spec->vocabulary);
    }
    const hd_status status =
        hd_lent_copy_now(skew_work_lent_of(stage), stage->tokens, tokens, count * sizeof *tokens);
    hd_memory_give(tokens);
    return status;
}

static hd_status skew_work_create_stage(struct hd_bench_stage *stage,
                                        const struct hd_stage_spec *spec, uint64_t seed)
{
    const struct hd_lent *lent = skew_work_lent_of(stage);

    HD_TRY(lent->ops->stage_needs(&lent->host, spec, &stage->needs));
    HD_TRY(skew_work_take_regions(stage, (uint64_t)spec->batch * spec->sequence * sizeof(int32_t)));
    HD_TRY(lent->ops->stage_create(lent->kernel, spec, &stage->memory, &stage->instance));
    for (uint32_t i = 0; i < stage->needs.tensor_count; i++) {
        HD_TRY(skew_work_draw_tensor(stage, spec, seed, i));
    }
    return skew_work_draw_tokens(stage, spec);
}

hd_status hd_bench_stage_open(struct hd_bench_stage *stage, struct hd_drive_device *device,
                              const struct hd_stage_spec *spec, uint64_t seed,
                              struct hd_problem *problem)
{
    assert(spec->has_embedding && !spec->has_head && spec->block_count > 0);
    *stage = (struct hd_bench_stage){.device = device, .needs = {.size = sizeof stage->needs}};
    const hd_status status = skew_work_create_stage(stage, spec, seed);
    return status == HD_OK ? HD_OK : hd_drive_device_blame(device, status, problem);
}

void hd_bench_stage_close(struct hd_bench_stage *stage)
{
    if (stage->instance != NULL) {
        skew_work_lent_of(stage)->ops->stage_destroy(stage->instance);
        stage->instance = NULL;
    }
}

/* Enqueues `count` passes. */
static hd_status skew_work_forward(const struct hd_bench_stage *stage, uint32_t count)
{
    const struct hd_pass pass = {.size = sizeof pass,
                                 .tokens = stage->tokens,
                                 .output = stage->output,
                                 .terms = stage->terms,
                                 .label_scale = 1,
                                 .auxiliary_scale = 1};

    for (uint32_t i = 0; i < count; i++) {
        HD_TRY(skew_work_lent_of(stage)->ops->forward(stage->instance, &pass));
    }
    return HD_OK;
}

/* --- a device -------------------------------------------------------------------------------- */

/* Enqueues the work between two marks, polls until the second is passed, and returns the times of
   both.  As in the engine, only its thread makes progress on the transport meanwhile. */
static hd_status skew_work_run_passes(const struct hd_skew_work *work, struct hd_skew_watch *watch,
                                      uint64_t deadline_ns, uint64_t passed_ns[2])
{
    const struct hd_lent *lent = &work->stage->device->lent;
    hd_status status;
    uint64_t marks[2];

    HD_TRY(lent->ops->mark(lent->kernel, &marks[0]));
    HD_TRY(skew_work_forward(work->stage, (uint32_t)work->stage_units));
    HD_TRY(lent->ops->mark(lent->kernel, &marks[1]));
    do {
        status = lent->ops->reached(lent->kernel, marks[1], LOOK_NS, &passed_ns[1]);
        if (watch != NULL) {
            skew_work_look(watch);
        }
    } while (status == HD_IN_PROGRESS && hd_now_ns() < deadline_ns);
    if (status == HD_OK) {
        status = lent->ops->reached(lent->kernel, marks[0], 0, &passed_ns[0]);
    }
    return status == HD_IN_PROGRESS ? HD_TIMEOUT : status;
}

static hd_status skew_work_calibrate_device(struct hd_skew_work *work, uint64_t stage_ns)
{
    uint64_t best_ns = UINT64_MAX, passed_ns[2];

    work->stage_units = 1;
    for (uint32_t trial = 0; trial < PASS_TRIALS; trial++) {
        HD_TRY(skew_work_run_passes(work, NULL, hd_now_ns() + PATIENCE_NS, passed_ns));
        best_ns = hd_min_u64(best_ns, passed_ns[1] - passed_ns[0]);
    }
    best_ns = hd_max_u64(best_ns, 1);
    work->stage_units = hd_min_u64((stage_ns + best_ns / 2) / best_ns, PASS_MAX);
    work->stage_units += work->stage_units == 0;
    return HD_OK;
}

/* --- either ---------------------------------------------------------------------------------- */

hd_status hd_skew_calibrate(struct hd_skew_work *work, uint64_t stage_ns)
{
    if (work->stage != NULL) {
        return skew_work_calibrate_device(work, stage_ns);
    }
    skew_work_calibrate_host(work, stage_ns);
    return HD_OK;
}

hd_status hd_skew_compute(struct hd_skew_work *work, struct hd_skew_watch *watch,
                          struct hd_skew_times *times, uint64_t *end_ns)
{
    const uint64_t all_ns = skew_work_process_cpu_ns(), own_ns = hd_thread_cpu_ns();
    uint64_t passed_ns[2] = {0};
    hd_status status = HD_OK;

    if (work->stage == NULL) {
        skew_work_compute_on_host(work, watch, times, end_ns);
    } else {
        status = skew_work_run_passes(work, watch, watch->pair->deadline_ns, passed_ns);
        *end_ns = passed_ns[1];
        times->compute_begin = hd_skew_since(times->origin_ns, passed_ns[0]);
        times->compute = hd_skew_since(passed_ns[0], passed_ns[1]);
        times->stolen = NAN;
    }
    const uint64_t own = hd_thread_cpu_ns() - own_ns, all = skew_work_process_cpu_ns() - all_ns;
    times->thread = fmax(0, ((double)all - (double)own) / NS_A_MS);
    return status;
}

static void skew_work_sleep_until(uint64_t until_ns)
{
    const struct timespec until = {(time_t)(until_ns / HD_S_NS), (long)(until_ns % HD_S_NS)};

    while (hd_now_ns() < until_ns) {
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
}

void hd_skew_be_late(struct hd_skew_work *work, uint64_t origin_ns, uint64_t late_ns)
{
    if (work->stage != NULL) {
        skew_work_sleep_until(origin_ns + late_ns);
    }
    while (hd_now_ns() - origin_ns < late_ns) {
        work_unit(work);
    }
}
