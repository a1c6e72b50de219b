/* bench/skew.c - lateness by lateness: compute alone, and compute with a message under way. */
#include "bench/skew.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/try.h"
#include "bench/bench.h"
#include "bench/skew_work.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { GATHER_BYTES = 256, DEPTH = 2 };

/* In stages. */
static const double skew_lateness[HD_SKEW_POINT_MAX] = {0, 0.25, 0.5, 1, 2};

#define NS_A_MS 1e6

/* --- one repetition -------------------------------------------------------------------------- */

struct trial {
    struct hd_drive_rank *rank;
    const struct hd_skew_request *request;
    struct hd_skew_work *work;
    struct hd_pair *pair;
    bool has_one_clock;
};

/* Both at once. */
static hd_status skew_begin(const struct trial *trial, struct hd_skew_times *times)
{
    hd_pair_renew(trial->pair);
    const hd_status status = hd_pair_fence(trial->pair);

    *times = (struct hd_skew_times){
        .origin_ns = hd_now_ns(), .transfer_begin = NAN, .transfer_end = NAN, .resident = NAN};
    return status;
}

/* What the transport has told of this message; times that it does not know are 0. */
static double skew_told(const struct hd_skew_times *times, uint64_t time_ns)
{
    return time_ns > 0 ? hd_skew_since(times->origin_ns, time_ns) : NAN;
}

static void skew_keep_transfer(const struct hd_pair *pair, struct hd_skew_times *times,
                               uint64_t sequence)
{
    const struct hd_transfer *transfer = &pair->transfer;

    if (transfer->size != 0 && transfer->sequence == sequence) {
        times->transfer_begin = skew_told(times, transfer->begin_ns);
        times->transfer_end = skew_told(times, transfer->end_ns);
    }
}

static hd_status skew_run_source(const struct trial *trial, struct hd_skew_times *times)
{
    struct hd_pair *pair = trial->pair;
    const uint64_t sequence = pair->out.sent_count;
    const struct hd_channel_stats before = hd_skew_stats(pair);
    struct hd_skew_watch watch = {pair, before.finished_count + 1, 0};
    uint64_t end_ns = 0;

    HD_TRY(hd_pair_reserve(pair, sequence + 1));
    HD_TRY(hd_pair_fill(pair, sequence));
    HD_TRY(hd_pair_settle(pair));
    HD_TRY(skew_begin(trial, times));
    HD_TRY(hd_lane_send_next(&pair->out, 0));
    HD_TRY(hd_skew_compute(trial->work, &watch, times, &end_ns));
    HD_TRY(hd_lane_wait(&pair->out, sequence, pair->deadline_ns));
    const uint64_t free_ns = hd_now_ns();
    /* A device ends before the host learns of it. */
    times->source_wait = hd_skew_since(end_ns, watch.seen_ns != 0 && pair->shape.device != NULL
                                                   ? hd_max_u64(watch.seen_ns, end_ns)
                                                   : free_ns);
    times->free = hd_skew_since(times->origin_ns, watch.seen_ns != 0 ? watch.seen_ns : free_ns);
    skew_keep_transfer(pair, times, sequence);
    times->resident = (double)(hd_skew_stats(pair).resident_ns - before.resident_ns) / NS_A_MS;
    return HD_OK;
}

/* When the message is readable: for the host, or for what comes next in the stream. */
static hd_status skew_receive(struct hd_pair *pair, uint64_t *readable_ns)
{
    const struct hd_lent *lent = pair->drive.device;
    uint64_t mark;

    HD_TRY(hd_pair_receive(pair));
    if (lent == NULL) {
        *readable_ns = hd_now_ns();
        return HD_OK;
    }
    HD_TRY(lent->ops->mark(lent->kernel, &mark));
    return hd_pair_reach(pair, mark, readable_ns);
}

static hd_status skew_run_target(const struct trial *trial, uint64_t late_ns,
                                 struct hd_skew_times *times)
{
    struct hd_pair *pair = trial->pair;
    const uint64_t sequence = pair->received;
    uint64_t readable_ns = 0;

    if (trial->request->is_posted_early) {
        HD_TRY(hd_pair_expect(pair, sequence + 1));
    }
    HD_TRY(skew_begin(trial, times));
    hd_skew_be_late(trial->work, times->origin_ns, late_ns);
    times->arrival = hd_skew_since(times->origin_ns, hd_now_ns());
    HD_TRY(hd_pair_expect(pair, sequence + 1));
    HD_TRY(skew_receive(pair, &readable_ns));
    times->readable = hd_skew_since(times->origin_ns, readable_ns);
    skew_keep_transfer(pair, times, sequence);
    HD_TRY(hd_pair_check(pair, sequence));
    return hd_lane_release_next(&pair->in);
}

/* The same with nothing under way. */
static hd_status skew_run_alone(const struct trial *trial, uint64_t late_ns,
                                struct hd_skew_times *times)
{
    struct hd_skew_watch none = {trial->pair, UINT64_MAX, 0}; /* looks as often */
    uint64_t end_ns;

    HD_TRY(skew_begin(trial, times));
    if (trial->rank->rank == 0) {
        HD_TRY(hd_skew_compute(trial->work, &none, times, &end_ns));
    } else {
        hd_skew_be_late(trial->work, times->origin_ns, late_ns);
    }
    return hd_pair_fence(trial->pair);
}

/* --- one lateness ---------------------------------------------------------------------------- */

/* One row a quantity, one column a repetition; as the doubles of a point. */
enum { QUANTITY_COUNT = sizeof(struct hd_skew_point) / sizeof(double) };
_Static_assert(sizeof(struct hd_skew_point) % sizeof(double) == 0, "a point is doubles alone");

/* The target's clock is the source's, or else both begin at the same fence. */
static void skew_conclude(const struct trial *trial, const struct hd_skew_times *alone,
                          const struct hd_skew_times *mine, const struct hd_skew_times *theirs,
                          struct hd_skew_point *point)
{
    const double shift =
        trial->has_one_clock ? hd_skew_since(mine->origin_ns, theirs->origin_ns) : 0;

    point->arrival_ms = theirs->arrival + shift;
    point->solo_ms = alone->compute;
    point->compute_ms = mine->compute;
    point->begin_ms = mine->compute_begin;
    point->stolen_ms = mine->stolen;
    point->thread_ms = mine->thread;
    point->source_wait_ms = mine->source_wait;
    point->target_wait_ms = theirs->readable - theirs->arrival;
    point->readable_ms = theirs->readable + shift;
    point->free_ms = mine->free;
    /* Each end knows its own: the source when it began, the target when all was there. */
    point->transfer_begin_ms = mine->transfer_begin;
    point->transfer_end_ms =
        isnan(theirs->transfer_end) ? mine->transfer_end : theirs->transfer_end + shift;
    point->resident_ms = mine->resident;
}

static hd_status skew_repeat(const struct trial *trial, double late_ms, struct hd_skew_point *point)
{
    const bool is_source = trial->rank->rank == 0;
    const uint64_t late_ns = (uint64_t)(late_ms * NS_A_MS);
    struct hd_skew_times alone, mine, theirs;

    *point = (struct hd_skew_point){.late_ms = late_ms};
    HD_TRY(skew_run_alone(trial, late_ns, &alone));
    HD_TRY(is_source ? skew_run_source(trial, &mine) : skew_run_target(trial, late_ns, &mine));
    HD_TRY(hd_pair_swap(trial->pair, &mine, &theirs, sizeof mine));
    if (is_source) {
        skew_conclude(trial, &alone, &mine, &theirs, point);
    }
    return HD_OK;
}

static void skew_take_medians(const struct hd_skew_point *points, uint32_t count,
                              struct hd_skew_point *median)
{
    double values[HD_SKEW_ITERATIONS_MAX];
    struct hd_bench_spread spread;

    for (uint32_t quantity = 0; quantity < QUANTITY_COUNT; quantity++) {
        uint32_t known = 0;
        for (uint32_t i = 0; i < count; i++) {
            double value;
            memcpy(&value, (const char *)&points[i] + quantity * sizeof value, sizeof value);
            if (!isnan(value)) {
                values[known++] = value;
            }
        }
        hd_bench_spread(values, known, &spread);
        memcpy((char *)median + quantity * sizeof(double), &spread.median, sizeof(double));
    }
}

static hd_status skew_measure_point(const struct trial *trial, double late_ms,
                                    struct hd_skew_point *median)
{
    static struct hd_skew_point points[HD_SKEW_ITERATIONS_MAX];
    const struct hd_skew_request *request = trial->request;
    struct hd_skew_point unread;

    for (uint32_t i = 0; i < request->warmup; i++) {
        HD_TRY(skew_repeat(trial, late_ms, &unread));
    }
    for (uint32_t i = 0; i < request->iterations; i++) {
        HD_TRY(skew_repeat(trial, late_ms, &points[i]));
    }
    skew_take_medians(points, request->iterations, median);
    return HD_OK;
}

/* --- one transport --------------------------------------------------------------------------- */

/* One wrong message makes the times meaningless. */
static hd_status skew_check_messages(struct hd_pair *pair, struct hd_problem *problem)
{
    if (pair->wrong_count == 0) {
        return HD_OK;
    }
    return hd_problem_set(problem, HD_PROTOCOL, HD_EXIT_FAILED,
                          "%s: %llu of %llu messages arrived wrong", pair->plugin.plugin->name,
                          (unsigned long long)pair->wrong_count,
                          (unsigned long long)pair->checked_count);
}

static hd_status skew_measure_series(struct trial *trial, struct hd_skew_series *found,
                                     struct hd_problem *problem)
{
    struct hd_pair *pair = trial->pair;

    for (uint32_t i = 0; i < HD_SKEW_POINT_MAX; i++) {
        const double late_ms = skew_lateness[i] * (double)trial->request->stage_ns / NS_A_MS;
        const hd_status status = skew_measure_point(trial, late_ms, &found->points[i]);
        if (status != HD_OK) {
            return hd_pair_blame(pair, status, problem);
        }
    }
    HD_TRY(skew_check_messages(pair, problem));
    const struct hd_channel_stats stats = hd_skew_stats(pair);
    memcpy(found->carrier, stats.lane, sizeof found->carrier);
    found->period_us = (uint32_t)(pair->period_ns / 1000);
    HD_TRY(hd_pair_close(pair, problem));
    found->point_count = HD_SKEW_POINT_MAX;
    return HD_OK;
}

static hd_status skew_measure_all(struct trial *trial, struct hd_drive_device *device,
                                  struct hd_skew *result, struct hd_problem *problem)
{
    const struct hd_skew_request *request = trial->request;
    const unsigned char *bodies[2];
    hd_status status = hd_pair_bodies(request->bytes, bodies);

    if (status != HD_OK) {
        return hd_problem_no_memory(problem, 2 * request->bytes, "messages");
    }
    result->series_count = request->series_count;
    for (uint32_t i = 0; status == HD_OK && i < request->series_count; i++) {
        struct hd_skew_series *found = &result->series[i];
        memcpy(found->transport, request->series[i].name, sizeof found->transport);
        found->has_thread = request->series[i].has_thread;
        *trial->pair = (struct hd_pair){.plugin = request->series[i].plugin,
                                        .shape = {.bytes = request->bytes,
                                                  .depth = DEPTH,
                                                  .has_thread = request->series[i].has_thread,
                                                  .has_engine_pulse = 1,
                                                  .bodies = {bodies[0], bodies[1]},
                                                  .device = device}};
        status = hd_pair_open(trial->pair, trial->rank, i, problem);
        if (status == HD_OK) {
            status = skew_measure_series(trial, found, problem);
        }
    }
    hd_memory_give((void *)bodies[0]);
    return status;
}

/* On a device only rank 0 computes, because both ranks may share the device. */
static hd_status skew_calibrate(struct trial *trial, struct hd_skew *result,
                                struct hd_problem *problem)
{
    struct hd_skew_work *work = trial->work;
    hd_status status = HD_OK;

    if (work->stage == NULL || trial->rank->rank == 0) {
        status = hd_skew_calibrate(work, trial->request->stage_ns);
    }
    if (status != HD_OK) {
        return hd_drive_device_blame(work->stage->device, status, problem);
    }
    result->pass_count = work->stage != NULL ? (uint32_t)work->stage_units : 0;
    hd_log(HD_LOG_DEBUG, "bench skew: %llu units of compute last a stage of %llu ns",
           (unsigned long long)work->stage_units, (unsigned long long)trial->request->stage_ns);
    status = hd_bootstrap_fence(trial->rank->bootstrap, hd_now_ns() + trial->rank->timeout_ns);
    return status == HD_OK ? HD_OK
                           : hd_problem_set(problem, status, hd_exit_of(status),
                                            "rank %u did not begin in time", 1 - trial->rank->rank);
}

/* Opens the device of this rank and the stage that it computes; rank 1 opens both but computes
   nothing. */
static hd_status skew_open_device(const struct hd_drive_rank *rank, struct hd_drive_device *device,
                                  struct hd_bench_stage *stage, struct hd_problem *problem)
{
    const struct hd_skew_request *request = rank->context;

    HD_TRY(hd_drive_device_open(device, rank, &request->lender, request->bytes, problem));
    return hd_bench_stage_open(stage, device, &request->block, request->seed, problem);
}

/* Rank 1 measures too, but its results are not read. */
static hd_status skew_body(struct hd_drive_rank *rank, struct hd_problem *problem)
{
    static struct hd_skew_work work;
    static struct hd_skew unread;
    static struct hd_pair pair;
    static struct hd_drive_device device;
    static struct hd_bench_stage stage;
    const struct hd_skew_request *request = rank->context;
    const bool has_device = request->lender.kernel != NULL;
    struct hd_skew *result = rank->rank == 0 ? rank->results : &unread;
    struct trial trial = {rank, request, &work, &pair, hd_drive_share_host(request->link)};

    if (has_device) {
        HD_TRY(skew_open_device(rank, &device, &stage, problem));
        work.stage = &stage;
        snprintf(result->device, sizeof result->device, "%s", device.lent.about.effective);
    }
    HD_TRY(skew_calibrate(&trial, result, problem));
    HD_TRY(skew_measure_all(&trial, has_device ? &device : NULL, result, problem));
    hd_bench_stage_close(&stage);
    hd_drive_device_close(&device);
    return HD_OK;
}

hd_status hd_bench_skew(const struct hd_skew_request *request, struct hd_skew *result,
                        struct hd_problem *problem)
{
    const struct hd_drive_ranks ranks = {
        .context = request,
        .result_bytes = sizeof *result,
        .gather_bytes = GATHER_BYTES,
        .timeout_ns = (uint64_t)(request->timeout_s * 1e9),
        .link = request->link,
        .body = skew_body,
    };
    hd_status status = HD_OK;

    assert(request->iterations > 0 && request->iterations <= HD_SKEW_ITERATIONS_MAX);
    *result = (struct hd_skew){0};
    for (uint32_t i = 0; status == HD_OK && i < request->series_count; i++) {
        status = hd_pair_check_hosts(&request->series[i].plugin, request->link, problem);
    }
    if (status == HD_OK) {
        status = hd_drive_ranks_run(&ranks, result, problem);
    }
    result->stage_ms = (double)request->stage_ns / NS_A_MS;
    result->bytes = request->bytes;
    result->iterations = request->iterations;
    result->is_posted_early = request->is_posted_early;
    return status;
}
