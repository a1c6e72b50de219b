/* bench/skew_work.c - compute that lasts as long as a stage, and its times. */
#include "bench/skew_work.h"
#include "base/clock.h"

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

/* --- a device -------------------------------------------------------------------------------- */

/* Enqueues the work between two marks, polls until the second is passed, and returns the times of
   both.  As in the engine, only its thread makes progress on the transport meanwhile. */
static hd_status skew_work_run_passes(const struct hd_skew_work *work, struct hd_skew_watch *watch,
                                      uint64_t deadline_ns, uint64_t passed_ns[2])
{
    const struct hd_lent *lent = &work->stage->device->lent;
    uint64_t marks[2];
    hd_status status = lent->ops->mark(lent->kernel, &marks[0]);

    if (status == HD_OK) {
        status = hd_bench_stage_forward(work->stage, (uint32_t)work->stage_units);
    }
    if (status == HD_OK) {
        status = lent->ops->mark(lent->kernel, &marks[1]);
    }
    if (status != HD_OK) {
        return status;
    }
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
    hd_status status = HD_OK;

    work->stage_units = 1;
    for (uint32_t trial = 0; status == HD_OK && trial < PASS_TRIALS; trial++) {
        status = skew_work_run_passes(work, NULL, hd_now_ns() + PATIENCE_NS, passed_ns);
        if (status == HD_OK && passed_ns[1] - passed_ns[0] < best_ns) {
            best_ns = passed_ns[1] - passed_ns[0];
        }
    }
    best_ns = best_ns > 0 ? best_ns : 1;
    work->stage_units = (stage_ns + best_ns / 2) / best_ns;
    work->stage_units = work->stage_units < PASS_MAX ? work->stage_units : PASS_MAX;
    work->stage_units += work->stage_units == 0;
    return status;
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
