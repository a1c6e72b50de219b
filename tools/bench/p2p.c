/* bench/p2p.c - measures every size in rounds, in which the transports alternate. */
#include "bench/p2p.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/try.h"
#include "bench/exchange.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)
/* Of a stream: a device moves so much in some milliseconds, beside which a meeting is nothing. */
#define DEVICE_ROUND_BYTES (8192 * MIB)

enum {
    SERIES_MAX_COUNT = HD_P2P_CANDIDATE_MAX + 1,
    DEPTH_MAX = 16,
    BARE_DEPTH = 2,
    GATHER_BYTES = 1024
};

/* What is measured at one size, of one transport. */
struct series {
    struct hd_p2p_side *side;
    struct hd_pair pair;
    struct hd_pair bare_pair; /* for the latency alone; not open where `pair` has as few slots */
    struct hd_exchange_sample whole, bare;
    double whole_gbytes[HD_P2P_ROUND_COUNT], bare_gbytes[HD_P2P_ROUND_COUNT];
};

struct trial {
    struct hd_drive_rank *rank;
    const struct hd_p2p_request *request;
    struct hd_p2p_row *row;
    bool has_raw;
    uint32_t series_count, round_count, instance;
    struct series series[SERIES_MAX_COUNT];
    const unsigned char *bodies[2];
    struct hd_drive_device *device;   /* NULL: the host */
    struct hd_exchange_sample copies; /* the yardstick's, of a device; rank 0 */
    double copy_gbytes[HD_P2P_ROUND_COUNT];
};

/* --- how often ------------------------------------------------------------------------------- */

static uint64_t p2p_clamp(uint64_t value, uint64_t least, uint64_t most)
{
    return hd_max_u64(least, hd_min_u64(value, most));
}

static uint32_t p2p_round_count(const struct hd_p2p_request *request)
{
    return request->iterations > 0 && request->iterations < HD_P2P_ROUND_COUNT ? request->iterations
                                                                               : HD_P2P_ROUND_COUNT;
}

uint32_t hd_p2p_window(const struct hd_p2p_request *request, uint64_t bytes)
{
    return request->window > 0 ? request->window
                               : (uint32_t)p2p_clamp(32 * MIB / bytes, 2, DEPTH_MAX);
}

static void p2p_choose(const struct hd_p2p_request *request, struct hd_p2p_row *row)
{
    const uint32_t rounds = p2p_round_count(request);
    const uint32_t share = (request->iterations + rounds - 1) / rounds;
    const uint64_t round_bytes = request->lender.kernel != NULL ? DEVICE_ROUND_BYTES : 64 * MIB;

    row->window = hd_p2p_window(request, row->bytes);
    row->depth = row->window > 1 ? row->window : 2;
    row->latency_count = share > 0 ? share : (uint32_t)p2p_clamp(32 * MIB / row->bytes, 2, 512);
    row->stream_count = share > 0 ? share : (uint32_t)p2p_clamp(round_bytes / row->bytes, 4, 2048);
}

/* --- one size -------------------------------------------------------------------------------- */

static hd_status p2p_open_pair(struct trial *trial, const struct hd_pair_plugin *plugin,
                               struct hd_pair *pair, struct hd_problem *problem)
{
    const bool is_bare = pair == &trial->series[trial->series_count - 1].bare_pair;

    *pair = (struct hd_pair){
        .plugin = *plugin,
        .shape = {.bytes = trial->row->bytes,
                  .is_untraced = true,
                  .depth = is_bare ? BARE_DEPTH : trial->row->depth,
                  .has_thread = trial->request->has_thread && plugin->plugin != &hd_bench_raw,
                  .bodies = {trial->bodies[0], trial->bodies[1]},
                  .device = trial->device},
    };
    return hd_pair_open(pair, trial->rank, trial->instance++, problem);
}

static struct hd_pair *p2p_bare_pair(struct series *series)
{
    const struct hd_pair_shape *shape = &series->pair.shape;
    const bool has_own = shape->depth > BARE_DEPTH && shape->device == NULL;
    return has_own ? &series->bare_pair : &series->pair;
}

static hd_status p2p_open_series(struct trial *trial, const struct hd_pair_plugin *plugin,
                                 struct hd_p2p_side *side, struct hd_problem *problem)
{
    struct series *series = &trial->series[trial->series_count++];
    struct hd_pair *pair = &series->pair;
    struct hd_channel_stats stats = {.size = sizeof stats};
    const uint32_t capacity = trial->round_count * trial->row->latency_count;
    bool is_in_place = false;

    *series = (struct series){.side = side};
    HD_TRY(p2p_open_pair(trial, plugin, pair, problem));
    if (p2p_bare_pair(series) != pair) {
        HD_TRY(p2p_open_pair(trial, plugin, p2p_bare_pair(series), problem));
    }
    hd_status status = hd_pair_is_in_place(pair, &is_in_place);
    if (status == HD_OK) {
        status = hd_exchange_take(&series->whole, capacity);
    }
    if (status == HD_OK) {
        status = hd_exchange_take(&series->bare, capacity);
    }
    if (status != HD_OK) {
        return hd_pair_blame(pair, status, problem);
    }
    if (pair->drive.ops->stats != NULL) {
        pair->drive.ops->stats(pair->drive.transport, pair->out.index, &stats);
    }
    memcpy(side->carrier, stats.lane, sizeof side->carrier);
    side->is_in_place = is_in_place;
    return HD_OK;
}

static hd_status p2p_open_all(struct trial *trial, struct hd_problem *problem)
{
    const struct hd_p2p_request *request = trial->request;
    const struct hd_pair_plugin raw = {.plugin = &hd_bench_raw};

    if (hd_pair_bodies(trial->row->bytes, trial->bodies) != HD_OK) {
        return hd_problem_no_memory(problem, 2 * trial->row->bytes, "messages");
    }
    for (uint32_t i = 0; i < request->candidate_count; i++) {
        HD_TRY(p2p_open_series(trial, &request->candidates[i], &trial->row->sides[i], problem));
    }
    if (trial->device != NULL) {
        return hd_exchange_take(&trial->copies, trial->round_count * trial->row->latency_count);
    }
    return trial->has_raw ? p2p_open_series(trial, &raw, &trial->row->raw, problem) : HD_OK;
}

static hd_status p2p_close_all(struct trial *trial, struct hd_problem *problem)
{
    for (uint32_t i = 0; i < trial->series_count; i++) {
        struct series *series = &trial->series[i];
        hd_exchange_give(&series->whole);
        hd_exchange_give(&series->bare);
        HD_TRY(hd_pair_close(&series->bare_pair, problem)); /* if it is open */
        HD_TRY(hd_pair_close(&series->pair, problem));
    }
    hd_exchange_give(&trial->copies);
    hd_memory_give((void *)trial->bodies[0]);
    return HD_OK;
}

/* The yardstick of a device; rank 1 leaves the device alone meanwhile. */
static hd_status p2p_run_copy_round(struct trial *trial, uint32_t round, struct hd_problem *problem)
{
    struct hd_exchange_sample *sample = &trial->copies;
    const struct hd_drive_copies copies = {.bytes = trial->row->bytes,
                                           .count = trial->row->stream_count,
                                           .each_us = sample->half_us + sample->count,
                                           .each_count = trial->row->latency_count};
    struct hd_pair *pair = &trial->series[0].pair;
    hd_status status = HD_OK;

    if (trial->rank->rank == 0) {
        status = hd_drive_device_copy(trial->device, &copies, &trial->copy_gbytes[round]);
        sample->count += copies.each_count;
    }
    if (status != HD_OK) {
        return hd_drive_device_blame(trial->device, status, problem);
    }
    hd_pair_renew(pair);
    status = hd_pair_fence(pair);
    return status == HD_OK ? HD_OK : hd_pair_blame(pair, status, problem);
}

static hd_status p2p_run_latency(struct hd_pair *pair, uint32_t count, bool is_whole,
                                 struct hd_exchange_sample *sample)
{
    const struct hd_exchange latency = {.count = count, .is_whole = is_whole};
    return hd_exchange_latency(pair, &latency, sample);
}

static hd_status p2p_run_stream(const struct trial *trial, struct hd_pair *pair, uint32_t count,
                                bool is_whole, double *gbytes)
{
    const struct hd_exchange stream = {.count = count,
                                       .window = trial->row->window,
                                       .is_whole = is_whole,
                                       .is_both = trial->request->is_both};
    return hd_exchange_stream(pair, &stream, gbytes);
}

/* One round of one transport: latency and stream, whole and bare; one of each on a device. */
static hd_status p2p_run_round(struct trial *trial, struct series *series, uint32_t round)
{
    const struct hd_p2p_row *row = trial->row;
    const bool is_host = trial->device == NULL;
    struct hd_pair *pair = &series->pair;

    HD_TRY(p2p_run_latency(pair, row->latency_count, is_host, &series->whole));
    if (is_host) {
        HD_TRY(p2p_run_latency(p2p_bare_pair(series), row->latency_count, false, &series->bare));
    }
    HD_TRY(p2p_run_stream(trial, pair, row->stream_count, is_host, &series->whole_gbytes[round]));
    return is_host
               ? p2p_run_stream(trial, pair, row->stream_count, false, &series->bare_gbytes[round])
               : HD_OK;
}

static bool p2p_drives_ucx(const struct hd_pair_plugin *plugin)
{
    return strncmp(hd_pair_carrier(plugin)->name, "ucx_", 4) == 0;
}

/* Beside each candidate that drives UCX; where none does, beside the first. */
static bool p2p_wants_perftest(const struct hd_p2p_request *request, uint32_t candidate)
{
    bool is_any = false;

    for (uint32_t i = 0; i < request->candidate_count; i++) {
        is_any |= p2p_drives_ucx(&request->candidates[i]);
    }
    return p2p_drives_ucx(&request->candidates[candidate]) || (!is_any && candidate == 0);
}

/* The seal crosses with a message, so its yardstick carries as much; what counts are the message's
   own bytes. */
static hd_status p2p_run_perftest(struct trial *trial, uint32_t candidate)
{
    const struct hd_pair_plugin *plugin = &trial->request->candidates[candidate];
    const struct hd_plugin *carrier = hd_pair_carrier(plugin);
    const bool is_sealed = (carrier->capabilities & HD_TRANSPORT_SEALED) != 0;
    const struct hd_perftest_request request = {
        .plugin = carrier,
        .options = plugin->inner != NULL ? plugin->inner_options : plugin->options,
        .address = trial->request->address,
        .bytes = trial->row->bytes,
        .beside_bytes = is_sealed ? HD_SEAL_BYTES : 0,
        .latency_count = trial->row->latency_count,
        .stream_count = trial->row->stream_count,
        .window = trial->row->window,
    };
    return hd_perftest_run(trial->rank, &request, &trial->row->sides[candidate].perftest);
}

static hd_status p2p_run_perftests(struct trial *trial)
{
    for (uint32_t i = 0; i < trial->request->candidate_count; i++) {
        if (p2p_wants_perftest(trial->request, i)) {
            HD_TRY(p2p_run_perftest(trial, i));
        }
    }
    return HD_OK;
}

/* Of the warm-up only the wrong messages count. */
static hd_status p2p_warm_up(struct trial *trial, struct series *series)
{
    const uint32_t asked = trial->request->warmup;
    const uint32_t count = asked > 0 ? asked : trial->row->depth;
    struct hd_exchange_sample none = {0};
    double gbytes;

    HD_TRY(p2p_run_latency(&series->pair, count, true, &none));
    return p2p_run_stream(trial, &series->pair, count, true, &gbytes);
}

/* The problem of the pair that failed. */
static hd_status p2p_blame(struct series *series, hd_status status, struct hd_problem *problem)
{
    const bool is_bare = series->bare_pair.failure.exit_code != 0;
    return hd_pair_blame(is_bare ? &series->bare_pair : &series->pair, status, problem);
}

static hd_status p2p_measure(struct trial *trial, struct hd_problem *problem)
{
    hd_status status = HD_OK;

    /* Round 0 of this loop warms up. */
    for (uint32_t round = 0; round <= trial->round_count; round++) {
        for (uint32_t i = 0; i < trial->series_count; i++) {
            struct series *series = &trial->series[i];
            status =
                round == 0 ? p2p_warm_up(trial, series) : p2p_run_round(trial, series, round - 1);
            if (status != HD_OK) {
                return p2p_blame(series, status, problem);
            }
        }
        if (round > 0 && trial->device != NULL) {
            HD_TRY(p2p_run_copy_round(trial, round - 1, problem));
        } else if (round > 0) {
            status = p2p_run_perftests(trial);
        }
        if (status != HD_OK) {
            return p2p_blame(&trial->series[0], status, problem);
        }
    }
    return HD_OK;
}

/* Rank 1's counts, and the spreads of rank 0. */
static hd_status p2p_conclude(struct trial *trial, struct series *series)
{
    struct hd_pair *pair = &series->pair;
    const struct hd_pair *bare = &series->bare_pair;
    const uint64_t mine[] = {pair->checked_count + bare->checked_count,
                             pair->wrong_count + bare->wrong_count};
    uint64_t theirs[2];

    hd_pair_renew(pair);
    HD_TRY(hd_pair_swap(pair, mine, theirs, sizeof theirs));
    series->side->message_count = mine[0] + theirs[0];
    series->side->wrong_count = mine[1] + theirs[1];
    hd_bench_spread(series->whole.half_us, series->whole.count, &series->side->whole_us);
    hd_bench_spread(series->bare.half_us, series->bare.count, &series->side->bare_us);
    hd_bench_spread(series->whole_gbytes, trial->round_count, &series->side->whole_gbytes);
    hd_bench_spread(series->bare_gbytes, trial->device == NULL ? trial->round_count : 0,
                    &series->side->bare_gbytes);
    return HD_OK;
}

static hd_status p2p_measure_size(struct trial *trial, struct hd_problem *problem)
{
    HD_TRY(p2p_open_all(trial, problem)); /* after a failure the process ends, and frees all */
    HD_TRY(p2p_measure(trial, problem));
    for (uint32_t i = 0; i < trial->series_count; i++) {
        const hd_status status = p2p_conclude(trial, &trial->series[i]);
        if (status != HD_OK) {
            return p2p_blame(&trial->series[i], status, problem);
        }
    }
    if (trial->device != NULL && trial->rank->rank == 0) {
        struct hd_p2p_side *copy = &trial->row->raw;
        hd_bench_spread(trial->copies.half_us, trial->copies.count, &copy->whole_us);
        hd_bench_spread(trial->copy_gbytes, trial->round_count, &copy->whole_gbytes);
    }
    trial->row->is_measured = true;
    return p2p_close_all(trial, problem);
}

/* --- both ranks ------------------------------------------------------------------------------ */

static hd_status p2p_measure_sizes(struct hd_drive_rank *rank, struct hd_p2p_result *result,
                                   struct hd_drive_device *device, struct hd_problem *problem)
{
    static struct trial trial;
    const struct hd_p2p_request *request = rank->context;

    for (uint32_t i = 0; i < request->size_count; i++) {
        struct hd_p2p_row *row = &result->rows[i];
        row->bytes = request->sizes[i];
        for (uint32_t side = 0; side < HD_P2P_CANDIDATE_MAX; side++) {
            row->sides[side].perftest = (struct hd_perftest){.latency_us = NAN, .gbytes = NAN};
        }
        p2p_choose(request, row);
        hd_log(HD_LOG_DEBUG,
               "bench p2p: %llu bytes: window %u, %u round trips and %u messages a round",
               (unsigned long long)row->bytes, row->window, row->latency_count, row->stream_count);
        trial = (struct trial){.rank = rank,
                               .request = request,
                               .row = row,
                               .device = device,
                               .has_raw = result->has_raw,
                               .round_count = p2p_round_count(request),
                               .instance = trial.instance};
        HD_TRY(p2p_measure_size(&trial, problem));
    }
    return HD_OK;
}

/* Rank 1 measures too, but its results are not read. */
static hd_status p2p_body(struct hd_drive_rank *rank, struct hd_problem *problem)
{
    static struct hd_p2p_result unread;
    static struct hd_drive_device device;
    const struct hd_p2p_request *request = rank->context;
    const bool has_device = request->lender.kernel != NULL;
    struct hd_p2p_result *result = rank->rank == 0 ? rank->results : &unread;

    result->has_raw = has_device || hd_drive_share_host(request->link);
    result->row_count = request->size_count;
    if (has_device) {
        HD_TRY(hd_drive_device_open(&device, rank, &request->lender,
                                    request->sizes[request->size_count - 1], problem));
        snprintf(result->device, sizeof result->device, "%s", device.lent.about.effective);
    }
    HD_TRY(p2p_measure_sizes(rank, result, has_device ? &device : NULL, problem));
    hd_drive_device_close(&device);
    return HD_OK;
}

hd_status hd_bench_p2p(const struct hd_p2p_request *request, struct hd_p2p_result *result,
                       struct hd_problem *problem)
{
    const struct hd_drive_ranks ranks = {
        .context = request,
        .result_bytes = sizeof *result,
        .gather_bytes = GATHER_BYTES,
        .timeout_ns = (uint64_t)(request->timeout_s * 1e9),
        .has_own_cores = true,
        .link = request->link,
        .body = p2p_body,
    };

    assert(request->size_count > 0 && request->size_count <= HD_P2P_SIZE_MAX);
    assert(request->iterations <= HD_P2P_ITERATIONS_MAX);
    *result = (struct hd_p2p_result){0};
    for (uint32_t i = 0; i < request->candidate_count; i++) {
        HD_TRY(hd_pair_check_hosts(&request->candidates[i], request->link, problem));
    }
    return hd_drive_ranks_run(&ranks, result, problem);
}
