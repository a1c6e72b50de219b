/* heddle bench p2p - what a message costs, beside raw shared memory and ucx_perftest. */
#include "bench/cmd/cmd_bench_commands.h"
#include "bench/cmd/cmd_bench_output.h"
#include "bench/cmd/cmd_bench_transports.h"
#include "bench/p2p.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

_Static_assert(HD_P2P_CANDIDATE_MAX >= HD_BENCH_TRANSPORT_MAX, "every transport is a candidate");

struct bench {
    struct hd_bench_two two;
    struct hd_p2p_request request;
    struct hd_p2p_result result;
};

/* --- the request ----------------------------------------------------------------------------- */

static hd_status bench_p2p_read_sizes(struct bench *bench)
{
    struct hd_p2p_request *request = &bench->request;
    char reason[HD_BENCH_REASON_BYTES];

    request->size_count =
        hd_bench_sizes(bench->two.config.bench.sizes, HD_P2P_SIZE_MAX, request->sizes, reason);
    if (request->size_count == 0) {
        hd_problem_remedy(&bench->two.cli->problem, "set bench.sizes=8:64M:x4, or one size");
        hd_problem_set(&bench->two.cli->problem, HD_INVALID, HD_EXIT_USAGE, "%s", reason);
        return hd_cli_bench_blame(bench->two.cli, &bench->two.config, "sizes");
    }
    const uint64_t largest = request->sizes[request->size_count - 1];
    if (largest > HD_P2P_CHANNEL_BYTES_MAX / hd_p2p_window(request, largest)) {
        hd_problem_remedy(&bench->two.cli->problem,
                          "set a lower bench.window, or a smaller last size");
        hd_problem_set(&bench->two.cli->problem, HD_INVALID, HD_EXIT_USAGE,
                       "%u messages of %" PRIu64 " bytes exceed the %llu bytes of a channel",
                       hd_p2p_window(request, largest), largest, HD_P2P_CHANNEL_BYTES_MAX);
        return hd_cli_bench_blame(bench->two.cli, &bench->two.config, "sizes");
    }
    return HD_OK;
}

static hd_status bench_p2p_read_request(struct bench *bench)
{
    const struct hd_config *config = &bench->two.config;
    struct hd_p2p_request *request = &bench->request;

    *request = (struct hd_p2p_request){
        .candidate_count = bench->two.count,
        .iterations = config->bench.iterations,
        .warmup = config->bench.warmup,
        .window = config->bench.window,
        .is_both = config->bench.direction,
        .has_thread = config->transport.progress_thread,
        .lender = hd_bench_two_lender(&bench->two),
        .timeout_s = config->transport.timeout_s,
        .address = "127.0.0.1",
    };
    for (uint32_t i = 0; i < bench->two.count; i++) {
        request->candidates[i] = hd_bench_two_plugin(&bench->two, i);
    }
    const uint32_t most =
        request->iterations > request->warmup ? request->iterations : request->warmup;
    if (most > HD_P2P_ITERATIONS_MAX) {
        hd_problem_set(&bench->two.cli->problem, HD_INVALID, HD_EXIT_USAGE,
                       "bench p2p repeats at most %u times", HD_P2P_ITERATIONS_MAX);
        return hd_cli_bench_blame(bench->two.cli, config,
                                  request->iterations == most ? "iterations" : "warmup");
    }
    return bench_p2p_read_sizes(bench);
}

/* --- the results ----------------------------------------------------------------------------- */

/* An in-place transport moves no bytes if none are written. */
static double bench_p2p_bare_gbytes(const struct hd_p2p_side *side)
{
    return side->is_in_place ? NAN : side->bare_gbytes.median;
}

/* The slots are on a device, and its own copy is the yardstick. */
static bool bench_p2p_has_device(const struct bench *bench)
{
    return bench->request.lender.kernel != NULL;
}

static void bench_p2p_add_bare(struct cJSON *object, const struct hd_p2p_row *row,
                               const struct hd_p2p_side *side)
{
    hd_bench_put_tail(object, "bare_latency_us", &side->bare_us);
    hd_json_number(object, "bare_gbytes", bench_p2p_bare_gbytes(side));
    hd_json_number(object, "bare_messages_per_second",
                   side->bare_gbytes.median * 1e9 / (double)row->bytes);
}

static void bench_p2p_add_perftest(struct cJSON *object, const struct hd_p2p_side *side)
{
    struct cJSON *perftest = hd_json_object(object, "ucx_perftest");

    hd_json_text(perftest, "test", side->perftest.test);
    hd_json_number(perftest, "latency_us", side->perftest.latency_us);
    hd_json_number(perftest, "gbytes", side->perftest.gbytes);
    hd_json_number(perftest, "latency_ratio",
                   hd_bench_ratio(side->bare_us.p50, side->perftest.latency_us));
    hd_json_number(perftest, "gbytes_ratio",
                   hd_bench_ratio(bench_p2p_bare_gbytes(side), side->perftest.gbytes));
    hd_json_text(perftest, "missing",
                 side->perftest.missing[0] != '\0' ? side->perftest.missing : NULL);
}

static void bench_p2p_add_side(struct cJSON *list, const struct bench *bench,
                               const struct hd_p2p_row *row, uint32_t index)
{
    const struct hd_p2p_side *side = &row->sides[index];
    struct cJSON *object = hd_json_object(list, NULL);
    char name[HD_BENCH_TRANSPORT_NAME_BYTES];

    hd_bench_two_name(&bench->two, index, name);
    hd_json_text(object, "transport", name);
    hd_json_text(object, "lane", side->carrier);
    hd_bench_put_tail(object, "latency_us", &side->whole_us);
    hd_bench_put_spread(&(struct hd_bench_row){NULL, object}, "gbytes", NULL, &side->whole_gbytes);
    hd_json_number(object, "latency_ratio",
                   hd_bench_ratio(side->whole_us.p50, row->raw.whole_us.p50));
    hd_json_number(object, "gbytes_ratio",
                   hd_bench_ratio(side->whole_gbytes.median, row->raw.whole_gbytes.median));
    hd_json_u64(object, "copied_bytes", side->is_in_place ? 0 : row->bytes);
    hd_json_u64(object, "messages", side->message_count);
    hd_json_u64(object, "wrong", side->wrong_count);
    if (!bench_p2p_has_device(bench)) {
        bench_p2p_add_bare(object, row, side);
        bench_p2p_add_perftest(object, side);
    }
}

static void bench_p2p_add_yardstick(struct cJSON *object, const struct bench *bench,
                                    const struct hd_p2p_row *row)
{
    const char *key = bench_p2p_has_device(bench) ? "copy" : "raw";
    const struct hd_p2p_side *side = &row->raw;

    if (!bench->result.has_raw) {
        hd_json_null(object, key);
        return;
    }
    struct cJSON *yardstick = hd_json_object(object, key);
    hd_bench_put_tail(yardstick, "latency_us", &side->whole_us);
    hd_bench_put_spread(&(struct hd_bench_row){NULL, yardstick}, "gbytes", NULL,
                        &side->whole_gbytes);
    if (!bench_p2p_has_device(bench)) {
        hd_bench_put_tail(yardstick, "bare_latency_us", &side->bare_us);
        hd_json_number(yardstick, "bare_messages_per_second",
                       side->bare_gbytes.median * 1e9 / (double)row->bytes);
        hd_json_u64(yardstick, "wrong", side->wrong_count);
    }
}

static void bench_p2p_add_json(const struct bench *bench)
{
    struct cJSON *json = bench->two.cli->json;

    hd_json_text(json, "direction", bench->request.is_both ? "both" : "one");
    hd_json_flag(json, "progress_thread", (int)bench->request.has_thread);
    if (bench_p2p_has_device(bench)) {
        hd_json_text(json, "device", bench->result.device);
    }
    struct cJSON *rows = hd_json_array(json, "rows");
    for (uint32_t i = 0; i < bench->result.row_count; i++) {
        const struct hd_p2p_row *row = &bench->result.rows[i];
        if (!row->is_measured) {
            continue;
        }
        struct cJSON *object = hd_json_object(rows, NULL);
        hd_json_u64(object, "bytes", row->bytes);
        hd_json_u64(object, "window", row->window);
        hd_json_u64(object, "round_trips_a_round", row->latency_count);
        hd_json_u64(object, "messages_a_round", row->stream_count);
        struct cJSON *sides = hd_json_array(object, "transports");
        for (uint32_t side = 0; side < bench->two.count; side++) {
            bench_p2p_add_side(sides, bench, row, side);
        }
        bench_p2p_add_yardstick(object, bench, row);
    }
}

static void bench_p2p_add_latency(struct hd_table *table, const struct bench *bench,
                                  const struct hd_p2p_row *row, uint32_t index)
{
    const struct hd_p2p_side *side = &row->sides[index];
    const double raw = bench->result.has_raw ? row->raw.whole_us.p50 : NAN;
    const struct hd_bench_row cells = {table, NULL};
    char name[HD_BENCH_TRANSPORT_NAME_BYTES];

    hd_bench_two_name(&bench->two, index, name);
    hd_table_cell(table, "%" PRIu64, row->bytes);
    hd_table_cell(table, "%s", name);
    hd_bench_put_number(&cells, NULL, "%.3f", side->whole_us.p50);
    hd_bench_put_number(&cells, NULL, "%.3f", side->whole_us.p99);
    hd_bench_put_number(&cells, NULL, "%.1f", side->whole_us.max);
    hd_bench_put_number(&cells, NULL, "%.3f", raw);
    hd_bench_put_number(&cells, NULL, "%.2f", hd_bench_ratio(side->whole_us.p50, raw));
    if (bench_p2p_has_device(bench)) {
        return;
    }
    hd_bench_put_number(&cells, NULL, "%.3f", side->bare_us.p50);
    hd_bench_put_number(&cells, NULL, "%.3f", side->perftest.latency_us);
    hd_bench_put_number(&cells, NULL, "%.2f",
                        hd_bench_ratio(side->bare_us.p50, side->perftest.latency_us));
}

static void bench_p2p_add_stream(struct hd_table *table, const struct bench *bench,
                                 const struct hd_p2p_row *row, uint32_t index)
{
    const struct hd_p2p_side *side = &row->sides[index];
    const double raw = bench->result.has_raw ? row->raw.whole_gbytes.median : NAN;
    const struct hd_bench_row cells = {table, NULL};
    char name[HD_BENCH_TRANSPORT_NAME_BYTES];

    hd_bench_two_name(&bench->two, index, name);
    hd_table_cell(table, "%" PRIu64, row->bytes);
    hd_table_cell(table, "%s", name);
    hd_table_cell(table, "%u", row->window);
    hd_bench_put_number(&cells, NULL, "%.3f", side->whole_gbytes.median);
    hd_bench_put_number(&cells, NULL, "%.3f", raw);
    hd_bench_put_number(&cells, NULL, "%.2f", hd_bench_ratio(side->whole_gbytes.median, raw));
    if (!bench_p2p_has_device(bench)) {
        hd_bench_put_number(&cells, NULL, "%.3f", bench_p2p_bare_gbytes(side));
        hd_bench_put_number(&cells, NULL, "%.3f", side->perftest.gbytes);
        hd_bench_put_number(&cells, NULL, "%.2f",
                            hd_bench_ratio(bench_p2p_bare_gbytes(side), side->perftest.gbytes));
    }
    hd_table_cell(table, "%" PRIu64, side->is_in_place ? (uint64_t)0 : row->bytes);
    hd_table_cell(table, "%" PRIu64 " of %" PRIu64, side->wrong_count, side->message_count);
    hd_table_cell(table, "%s", side->carrier);
}

static void bench_p2p_print_rows(const struct bench *bench, const char *const *titles,
                                 uint32_t count,
                                 void (*add)(struct hd_table *, const struct bench *,
                                             const struct hd_p2p_row *, uint32_t))
{
    struct hd_table *table = hd_table_create(count, titles);

    for (uint32_t i = 0; i < bench->result.row_count; i++) {
        for (uint32_t side = 0; bench->result.rows[i].is_measured && side < bench->two.count;
             side++) {
            add(table, bench, &bench->result.rows[i], side);
        }
    }
    hd_table_print(table, 0, stdout);
    hd_table_destroy(table);
}

/* Why there is no number of ucx_perftest, or NULL. */
static const char *bench_p2p_missing_perftest(const struct bench *bench)
{
    for (uint32_t side = 0; side < bench->two.count; side++) {
        const char *missing = bench->result.rows[0].sides[side].perftest.missing;
        if (missing[0] != '\0') {
            return missing;
        }
    }
    return NULL;
}

static void bench_p2p_print_streams(const struct bench *bench, const char *const *titles,
                                    uint32_t count)
{
    printf("\nbandwidth, %s: 1e9 bytes a second, median of the rounds\n",
           bench->request.is_both ? "both ways at once" : "one way");
    bench_p2p_print_rows(bench, titles, count, bench_p2p_add_stream);
}

static void bench_p2p_print_tables(const struct bench *bench)
{
    static const char *const latency[] = {"bytes", "transport", "p50",  "p99",      "max",
                                          "raw",   "ratio",     "bare", "perftest", "ratio"};
    static const char *const stream[] = {"bytes", "transport", "window", "GB/s",
                                         "raw",   "ratio",     "bare",   "perftest",
                                         "ratio", "copied",    "wrong",  "carrier"};
    const char *missing = bench_p2p_missing_perftest(bench);

    printf("\nlatency: half a round trip, microseconds\n");
    bench_p2p_print_rows(bench, latency, 10, bench_p2p_add_latency);
    bench_p2p_print_streams(bench, stream, 12);
    printf("every byte is written and compared within the measured time; raw: the same between two "
           "processes that spin on a memfd;\nbare: only the calls of the transport, beside "
           "ucx_perftest in its own test; ratio: to the column before it;\ncopied: bytes of a "
           "message that are moved, at least, from where the source writes to where the target "
           "reads\n");
    if (!bench->result.has_raw) {
        printf("no raw exchange: the ranks are on two hosts\n");
    }
    if (missing != NULL) {
        printf("no ucx_perftest: %s\n", missing);
    }
}

static void bench_p2p_print_device_tables(const struct bench *bench)
{
    static const char *const latency[] = {"bytes", "transport", "p50",  "p99",
                                          "max",   "copy",      "ratio"};
    static const char *const stream[] = {"bytes", "transport", "window", "GB/s",   "copy",
                                         "ratio", "copied",    "wrong",  "carrier"};

    printf(
        "\ndevice: %s\nlatency: half a round trip between streams, microseconds, by marks of the "
        "device\n",
        bench->result.device);
    bench_p2p_print_rows(bench, latency, 7, bench_p2p_add_latency);
    bench_p2p_print_streams(bench, stream, 9);
    printf("copy: the yardstick, as many bytes copied within the device of rank 0 by its kernel; "
           "ratio: to the column before it;\nthe first 8 bytes of a stream's message are written "
           "and read within the measured time, all bytes of a latency's outside of it;\ncopied: "
           "bytes of a message that are moved from where the source writes them\n");
}

/* --- the command ----------------------------------------------------------------------------- */

static void bench_p2p_check_bytes(struct bench *bench)
{
    for (uint32_t i = 0; i < bench->result.row_count; i++) {
        for (uint32_t side = 0; side < bench->two.count; side++) {
            const struct hd_p2p_side *found = &bench->result.rows[i].sides[side];
            if (found->wrong_count > 0) {
                hd_problem_set(
                    &bench->two.cli->problem, HD_PROTOCOL, HD_EXIT_FAILED,
                    "%s: %" PRIu64 " of %" PRIu64 " messages of %" PRIu64 " bytes arrived wrong",
                    bench->two.transports[side].transport->plugin.name, found->wrong_count,
                    found->message_count, bench->result.rows[i].bytes);
                return;
            }
        }
    }
}

static void bench_p2p_measure(struct hd_bench_two *two)
{
    struct bench *bench = (struct bench *)(void *)two; /* its first member */
    struct hd_p2p_request *request = &bench->request;
    struct hd_problem *problem = &two->cli->problem;

    if (bench_p2p_read_request(bench) != HD_OK) {
        return;
    }
    uint64_t numbers[HD_P2P_SIZE_MAX + 4] = {request->iterations, request->warmup, request->window,
                                             request->is_both};
    memcpy(numbers + 4, request->sizes, request->size_count * sizeof numbers[0]);
    const struct hd_bench_agreement agreement = {numbers, 4 + request->size_count,
                                                 request->address};
    if (hd_bench_two_join(two, &agreement, &request->link) != HD_OK) {
        return;
    }
    if (hd_bench_p2p(request, &bench->result, problem) == HD_OK) {
        bench_p2p_check_bytes(bench);
    }
    if (hd_bench_two_speaks(request->link) && two->cli->is_json) {
        bench_p2p_add_json(bench);
    } else if (hd_bench_two_speaks(request->link) && bench->result.rows[0].is_measured) {
        if (bench_p2p_has_device(bench)) {
            bench_p2p_print_device_tables(bench);
        } else {
            bench_p2p_print_tables(bench);
        }
    }
    hd_bench_two_leave(two, request->link);
}

int hd_cli_bench_p2p(struct hd_cli *cli)
{
    static const struct hd_cli_bench_words words;
    static struct bench bench;

    return hd_bench_two_run(&bench.two, cli, &words, bench_p2p_measure);
}
