/* run/bench_skew.c - lateness by lateness: compute alone, and compute with a message under way. */
#include "run/bench_skew.h"
#include "base/clock.h"
#include "base/memory.h"
#include "run/bench.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <time.h>

enum { GATHER_BYTES = 256, DEPTH = 2, WORK_FLOATS = 8192, CALIBRATION_COUNT = 50, WORK_TRIAL = 64 };
enum { LOOK_UNITS = 16 };

/* In stages. */
static const double lateness[HD_SKEW_POINT_MAX] = {0, 0.25, 0.5, 1, 2};

#define NS_A_MS 1e6

/* --- work ------------------------------------------------------------------------------------ */

/* So much of it fits into a core's own cache, and none of it into its registers. */
struct work {
    float left[WORK_FLOATS], right[WORK_FLOATS];
    uint64_t stage_units; /* what lasts a stage */
};

static void work_unit(struct work *work)
{
    for (uint32_t i = 0; i < WORK_FLOATS; i++) {
        work->left[i] = work->left[i] * 0.999f + work->right[i];
    }
}

/* Looks now and then whether the slot of the message under way is free: when it was, or 0. */
struct watch {
    struct hd_line *line;
    uint64_t finished_goal, seen_ns;
};

static struct hd_channel_stats stats_of(const struct hd_line *line)
{
    struct hd_channel_stats stats = {.size = sizeof stats};

    if (line->ops->stats != NULL) {
        line->ops->stats(line->transport, line->out, &stats);
    }
    return stats;
}

static void look(struct watch *watch)
{
    if (watch->seen_ns == 0 && stats_of(watch->line).finished_count >= watch->finished_goal) {
        watch->seen_ns = hd_now_ns();
    }
}

static void work_stage(struct work *work, struct watch *watch)
{
    for (uint64_t unit = 0; unit < work->stage_units; unit++) {
        work_unit(work);
        if (watch != NULL && unit % LOOK_UNITS == 0) {
            look(watch);
        }
    }
}

/* The fastest of several trials: neighbours only slow down. */
static void calibrate(struct work *work, uint64_t stage_ns)
{
    uint64_t best_ns = UINT64_MAX;

    for (uint32_t i = 0; i < WORK_FLOATS; i++) {
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

static uint64_t process_cpu_ns(void)
{
    struct timespec spent;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return (uint64_t)spent.tv_sec * HD_S_NS + (uint64_t)spent.tv_nsec;
}

/* --- one repetition -------------------------------------------------------------------------- */

/* Times of one rank, counted from its own begin. */
struct times {
    uint64_t origin_ns;                            /* when it left the fence */
    double compute_begin, compute, stolen, thread; /* source */
    double arrival, readable;                      /* target */
    double free, source_wait;                      /* source */
    double transfer_begin, transfer_end, resident; /* as told; resident: source */
};

struct trial {
    struct hd_bench_rank *rank;
    const struct hd_skew_request *request;
    struct work *work;
    struct hd_line *line;
    uint32_t has_one_clock;
};

static double since(uint64_t begin_ns, uint64_t now_ns)
{
    return (double)((int64_t)now_ns - (int64_t)begin_ns) / NS_A_MS;
}

static void compute(const struct trial *trial, struct times *times, struct watch *watch)
{
    const uint64_t all_ns = process_cpu_ns(), own_ns = hd_thread_cpu_ns();
    const uint64_t begin_ns = hd_now_ns();

    work_stage(trial->work, watch);
    const uint64_t end_ns = hd_now_ns();
    const uint64_t own = hd_thread_cpu_ns() - own_ns, all = process_cpu_ns() - all_ns;
    times->compute_begin = since(times->origin_ns, begin_ns);
    times->compute = since(begin_ns, end_ns);
    times->stolen = fmax(0, times->compute - (double)own / NS_A_MS);
    times->thread = fmax(0, ((double)all - (double)own) / NS_A_MS);
}

/* The target is busy elsewhere. */
static void be_late(const struct trial *trial, const struct times *times, uint64_t late_ns)
{
    while (hd_now_ns() - times->origin_ns < late_ns) {
        work_unit(trial->work);
    }
}

/* Both at once. */
static hd_status begin(const struct trial *trial, struct times *times)
{
    hd_line_renew(trial->line);
    const hd_status status = hd_line_fence(trial->line);

    *times = (struct times){
        .origin_ns = hd_now_ns(), .transfer_begin = NAN, .transfer_end = NAN, .resident = NAN};
    return status;
}

/* What the transport has told of this message; times that it does not know are 0. */
static double told(const struct times *times, uint64_t time_ns)
{
    return time_ns > 0 ? since(times->origin_ns, time_ns) : NAN;
}

static void keep_transfer(const struct hd_line *line, struct times *times, uint64_t sequence)
{
    const struct hd_transfer *transfer = &line->transfer;

    if (transfer->size != 0 && transfer->sequence == sequence) {
        times->transfer_begin = told(times, transfer->begin_ns);
        times->transfer_end = told(times, transfer->end_ns);
    }
}

static hd_status run_source(const struct trial *trial, struct times *times)
{
    struct hd_line *line = trial->line;
    const struct hd_message message = {.sequence = line->sent, .channel = line->out};
    const struct hd_channel_stats before = stats_of(line);
    struct watch watch = {line, before.finished_count + 1, 0};
    hd_status status = hd_line_reserve(line, line->sent + 1);

    if (status == HD_OK) {
        status = hd_line_fill(line, line->sent);
    }
    if (status == HD_OK) {
        status = begin(trial, times);
    }
    if (status == HD_OK) {
        status = hd_line_post(line);
    }
    if (status != HD_OK) {
        return status;
    }
    compute(trial, times, &watch);
    const uint64_t end_ns = hd_now_ns();
    status = hd_line_wait(line, &message);
    const uint64_t free_ns = hd_now_ns();
    times->source_wait = since(end_ns, free_ns);
    times->free = since(times->origin_ns, watch.seen_ns != 0 ? watch.seen_ns : free_ns);
    keep_transfer(line, times, message.sequence);
    times->resident = (double)(stats_of(line).resident_ns - before.resident_ns) / NS_A_MS;
    return status;
}

static hd_status run_target(const struct trial *trial, uint64_t late_ns, struct times *times)
{
    struct hd_line *line = trial->line;
    const uint64_t end = line->received + 1;
    hd_status status = trial->request->is_posted_early ? hd_line_expect(line, end) : HD_OK;

    if (status == HD_OK) {
        status = begin(trial, times);
    }
    if (status == HD_OK) {
        be_late(trial, times, late_ns);
    }
    times->arrival = since(times->origin_ns, hd_now_ns());
    if (status == HD_OK) {
        status = hd_line_expect(line, end);
    }
    if (status == HD_OK) {
        status = hd_line_receive(line);
        times->readable = since(times->origin_ns, hd_now_ns());
        keep_transfer(line, times, line->received - 1);
    }
    if (status == HD_OK) {
        status = hd_line_check(line, line->received - 1);
    }
    if (status == HD_OK) {
        status = hd_line_release(line);
    }
    return status;
}

/* The same with nothing under way. */
static hd_status run_alone(const struct trial *trial, uint64_t late_ns, struct times *times)
{
    const hd_status status = begin(trial, times);

    if (status != HD_OK) {
        return status;
    }
    if (trial->rank->rank == 0) {
        struct watch none = {trial->line, UINT64_MAX, 0}; /* looks as often */
        compute(trial, times, &none);
    } else {
        be_late(trial, times, late_ns);
    }
    return hd_line_fence(trial->line);
}

/* --- one lateness ---------------------------------------------------------------------------- */

/* One row a quantity, one column a repetition; as the doubles of a point. */
enum { QUANTITY_COUNT = sizeof(struct hd_skew_point) / sizeof(double) };
_Static_assert(sizeof(struct hd_skew_point) % sizeof(double) == 0, "a point is doubles alone");

/* The target's clock is the source's, or else both begin at the same fence. */
static void conclude(const struct trial *trial, const struct times *alone, const struct times *mine,
                     const struct times *theirs, struct hd_skew_point *point)
{
    const double shift = trial->has_one_clock ? since(mine->origin_ns, theirs->origin_ns) : 0;

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

static hd_status repeat(const struct trial *trial, double late_ms, struct hd_skew_point *point)
{
    const uint32_t is_source = trial->rank->rank == 0;
    const uint64_t late_ns = (uint64_t)(late_ms * NS_A_MS);
    struct times alone, mine, theirs;

    hd_status status = run_alone(trial, late_ns, &alone);
    if (status == HD_OK) {
        status = is_source ? run_source(trial, &mine) : run_target(trial, late_ns, &mine);
    }
    if (status == HD_OK) {
        status = hd_line_swap(trial->line, &mine, &theirs, sizeof mine);
    }
    *point = (struct hd_skew_point){.late_ms = late_ms};
    if (status == HD_OK && is_source) {
        conclude(trial, &alone, &mine, &theirs, point);
    }
    return status;
}

static void take_medians(const struct hd_skew_point *points, uint32_t count,
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

static hd_status measure_point(const struct trial *trial, double late_ms,
                               struct hd_skew_point *median)
{
    static struct hd_skew_point points[HD_SKEW_ITERATIONS_MAX];
    const struct hd_skew_request *request = trial->request;
    struct hd_skew_point unread;
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < request->warmup; i++) {
        status = repeat(trial, late_ms, &unread);
    }
    for (uint32_t i = 0; status == HD_OK && i < request->iterations; i++) {
        status = repeat(trial, late_ms, &points[i]);
    }
    if (status == HD_OK) {
        take_medians(points, request->iterations, median);
    }
    return status;
}

/* --- one transport --------------------------------------------------------------------------- */

/* Whatever arrived wrong makes the rest meaningless. */
static hd_status check_messages(struct hd_line *line, struct hd_problem *problem)
{
    if (line->wrong_count == 0) {
        return HD_OK;
    }
    return hd_problem_set(problem, HD_PROTOCOL, HD_EXIT_FAILED,
                          "%s: %llu of %llu messages arrived wrong", line->plugin.plugin->name,
                          (unsigned long long)line->wrong_count,
                          (unsigned long long)line->checked_count);
}

static hd_status measure_line(struct trial *trial, struct hd_skew_line *found,
                              struct hd_problem *problem)
{
    struct hd_line *line = trial->line;
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < HD_SKEW_POINT_MAX; i++) {
        const double late_ms = lateness[i] * (double)trial->request->stage_ns / NS_A_MS;
        status = measure_point(trial, late_ms, &found->points[i]);
    }
    if (status != HD_OK) {
        return hd_line_blame(line, status, problem);
    }
    status = check_messages(line, problem);
    if (status != HD_OK) {
        return status;
    }
    const struct hd_channel_stats stats = stats_of(line);
    memcpy(found->lane, stats.lane, sizeof found->lane);
    found->beat_us = (uint32_t)(line->period_ns / 1000);
    status = hd_line_close(line, problem);
    found->point_count = status == HD_OK ? HD_SKEW_POINT_MAX : 0;
    return status;
}

/* Rank 1 keeps what nobody reads. */
static hd_status body(struct hd_bench_rank *rank, struct hd_problem *problem)
{
    static struct work work;
    static struct hd_skew unread;
    static struct hd_line line;
    const struct hd_skew_request *request = rank->context;
    struct hd_skew *result = rank->rank == 0 ? rank->results : &unread;
    struct trial trial = {rank, request, &work, &line, hd_bench_share_host(request->link)};
    const unsigned char *bodies[2];
    hd_status status = hd_line_bodies(request->bytes, bodies);

    if (status != HD_OK) {
        return hd_problem_set(problem, status, HD_EXIT_FAILED, "no memory for messages");
    }
    calibrate(&work, request->stage_ns);
    result->line_count = request->line_count;
    for (uint32_t i = 0; status == HD_OK && i < request->line_count; i++) {
        struct hd_skew_line *found = &result->lines[i];
        memcpy(found->transport, request->lines[i].name, sizeof found->transport);
        found->has_thread = request->lines[i].has_thread;
        line = (struct hd_line){.plugin = request->lines[i].plugin,
                                .shape = {.bytes = request->bytes,
                                          .depth = DEPTH,
                                          .has_thread = request->lines[i].has_thread,
                                          .has_engine_pulse = 1,
                                          .bodies = {bodies[0], bodies[1]}}};
        status = hd_line_open(&line, rank, i, problem);
        if (status == HD_OK) {
            status = measure_line(&trial, found, problem);
        }
    }
    hd_memory_give((void *)bodies[0]);
    return status;
}

hd_status hd_bench_skew(const struct hd_skew_request *request, struct hd_skew *result,
                        struct hd_problem *problem)
{
    const struct hd_bench_ranks ranks = {
        .context = request,
        .result_bytes = sizeof *result,
        .gather_bytes = GATHER_BYTES,
        .timeout_ns = (uint64_t)(request->timeout_s * 1e9),
        .link = request->link,
        .body = body,
    };
    hd_status status = HD_OK;

    assert(request->iterations > 0 && request->iterations <= HD_SKEW_ITERATIONS_MAX);
    *result = (struct hd_skew){0};
    for (uint32_t i = 0; status == HD_OK && i < request->line_count; i++) {
        status = hd_line_check_hosts(&request->lines[i].plugin, request->link, problem);
    }
    if (status == HD_OK) {
        status = hd_bench_ranks_run(&ranks, result, problem);
    }
    result->stage_ms = (double)request->stage_ns / NS_A_MS;
    result->bytes = request->bytes;
    result->iterations = request->iterations;
    result->is_posted_early = request->is_posted_early;
    return status;
}
