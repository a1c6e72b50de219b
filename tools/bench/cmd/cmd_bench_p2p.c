/* heddle bench p2p - what a message costs, beside raw shared memory and ucx_perftest. */
#include "bench/cmd/cmd_bench.h"
#include "cli/join.h"
#include "bench/p2p.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const bench_p2p_usual_transports[] = {"shm", "ucx_tag", "ucx_put", NULL};

/* What this command holds while it measures. */
struct bench {
    struct hd_cli *cli;
    struct hd_config config;
    struct hd_cli_bench_line lines[HD_P2P_CANDIDATE_MAX];
    struct hd_cli_bench_lines list;
    struct hd_p2p_request request;
    struct hd_p2p_result result;
};

/* --- what is asked --------------------------------------------------------------------------- */

static hd_status bench_p2p_read_sizes(struct bench *bench)
{
    struct hd_p2p_request *request = &bench->request;
    char reason[HD_BENCH_REASON_BYTES];

    request->size_count =
        hd_bench_sizes(bench->config.bench.sizes, HD_P2P_SIZE_MAX, request->sizes, reason);
    if (request->size_count == 0) {
        hd_problem_remedy(&bench->cli->problem, "write 8:64M:x4, or one size");
        hd_problem_set(&bench->cli->problem, HD_INVALID, HD_EXIT_USAGE, "%s", reason);
        return hd_cli_bench_blame(bench->cli, &bench->config, "sizes");
    }
    const uint64_t largest = request->sizes[request->size_count - 1];
    if (largest > HD_P2P_CHANNEL_BYTES_MAX / hd_p2p_window(request, largest)) {
        hd_problem_remedy(&bench->cli->problem, "lower bench.window, or the last size");
        hd_problem_set(&bench->cli->problem, HD_INVALID, HD_EXIT_USAGE,
                       "%u messages of %" PRIu64 " bytes are more than %llu bytes a channel",
                       hd_p2p_window(request, largest), largest, HD_P2P_CHANNEL_BYTES_MAX);
        return hd_cli_bench_blame(bench->cli, &bench->config, "sizes");
    }
    return HD_OK;
}

static hd_status bench_p2p_read_request(struct bench *bench)
{
    const struct hd_config *config = &bench->config;
    struct hd_p2p_request *request = &bench->request;

    *request = (struct hd_p2p_request){
        .candidate_count = bench->list.count,
        .iterations = config->bench.iterations,
        .warmup = config->bench.warmup,
        .window = config->bench.window,
        .is_both = config->bench.direction,
        .has_thread = config->transport.progress_thread,
        .lender = hd_cli_bench_lender(&bench->list),
        .timeout_s = config->transport.timeout_s,
        .address = "127.0.0.1",
    };
    for (uint32_t i = 0; i < bench->list.count; i++) {
        request->candidates[i] = hd_cli_bench_plugin(&bench->lines[i]);
    }
    const uint32_t most =
        request->iterations > request->warmup ? request->iterations : request->warmup;
    if (most > HD_P2P_ITERATIONS_MAX) {
        hd_problem_set(&bench->cli->problem, HD_INVALID, HD_EXIT_USAGE,
                       "bench p2p repeats at most %u times", HD_P2P_ITERATIONS_MAX);
        return hd_cli_bench_blame(bench->cli, config,
                                  request->iterations == most ? "iterations" : "warmup");
    }
    return bench_p2p_read_sizes(bench);
}

/* --- what was found -------------------------------------------------------------------------- */

/* In place nothing moves when nothing is written. */
static double bench_p2p_bare_gbytes(const struct hd_p2p_side *side)
{
    return side->is_in_place ? NAN : side->bare_gbytes.median;
}

/* Slots lie on a device, and its own copy is the yardstick. */
static int bench_p2p_has_device(const struct bench *bench)
{
    return bench->request.lender.kernel != NULL;
}

static void bench_p2p_add_bare(struct cJSON *object, const struct hd_p2p_row *row,
                               const struct hd_p2p_side *side)
{
    hd_cli_bench_tail(object, "bare_latency_us", &side->bare_us);
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
    char name[HD_CLI_LINE_NAME_BYTES];

    hd_cli_bench_line_name(&bench->lines[index], name);
    hd_json_text(object, "transport", name);
    hd_json_text(object, "lane", side->lane);
    hd_cli_bench_tail(object, "latency_us", &side->whole_us);
    hd_cli_bench_json(object, "gbytes", &side->whole_gbytes);
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
    hd_cli_bench_tail(yardstick, "latency_us", &side->whole_us);
    hd_cli_bench_json(yardstick, "gbytes", &side->whole_gbytes);
    if (!bench_p2p_has_device(bench)) {
        hd_cli_bench_tail(yardstick, "bare_latency_us", &side->bare_us);
        hd_json_number(yardstick, "bare_messages_per_second",
                       side->bare_gbytes.median * 1e9 / (double)row->bytes);
        hd_json_u64(yardstick, "wrong", side->wrong_count);
    }
}

static void bench_p2p_add_json(const struct bench *bench)
{
    struct cJSON *json = bench->cli->json;

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
        for (uint32_t side = 0; side < bench->list.count; side++) {
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
    char name[HD_CLI_LINE_NAME_BYTES];

    hd_cli_bench_line_name(&bench->lines[index], name);
    hd_table_cell(table, "%" PRIu64, row->bytes);
    hd_table_cell(table, "%s", name);
    hd_cli_bench_cell(table, "%.3f", side->whole_us.p50);
    hd_cli_bench_cell(table, "%.3f", side->whole_us.p99);
    hd_cli_bench_cell(table, "%.1f", side->whole_us.max);
    hd_cli_bench_cell(table, "%.3f", raw);
    hd_cli_bench_cell(table, "%.2f", hd_bench_ratio(side->whole_us.p50, raw));
    if (bench_p2p_has_device(bench)) {
        return;
    }
    hd_cli_bench_cell(table, "%.3f", side->bare_us.p50);
    hd_cli_bench_cell(table, "%.3f", side->perftest.latency_us);
    hd_cli_bench_cell(table, "%.2f", hd_bench_ratio(side->bare_us.p50, side->perftest.latency_us));
}

static void bench_p2p_add_stream(struct hd_table *table, const struct bench *bench,
                                 const struct hd_p2p_row *row, uint32_t index)
{
    const struct hd_p2p_side *side = &row->sides[index];
    const double raw = bench->result.has_raw ? row->raw.whole_gbytes.median : NAN;
    char name[HD_CLI_LINE_NAME_BYTES];

    hd_cli_bench_line_name(&bench->lines[index], name);
    hd_table_cell(table, "%" PRIu64, row->bytes);
    hd_table_cell(table, "%s", name);
    hd_table_cell(table, "%u", row->window);
    hd_cli_bench_cell(table, "%.3f", side->whole_gbytes.median);
    hd_cli_bench_cell(table, "%.3f", raw);
    hd_cli_bench_cell(table, "%.2f", hd_bench_ratio(side->whole_gbytes.median, raw));
    if (!bench_p2p_has_device(bench)) {
        hd_cli_bench_cell(table, "%.3f", bench_p2p_bare_gbytes(side));
        hd_cli_bench_cell(table, "%.3f", side->perftest.gbytes);
        hd_cli_bench_cell(table, "%.2f",
                          hd_bench_ratio(bench_p2p_bare_gbytes(side), side->perftest.gbytes));
    }
    hd_table_cell(table, "%" PRIu64, side->is_in_place ? (uint64_t)0 : row->bytes);
    hd_table_cell(table, "%" PRIu64 " of %" PRIu64, side->wrong_count, side->message_count);
    hd_table_cell(table, "%s", side->lane);
}

static void bench_p2p_print_rows(const struct bench *bench, const char *const *titles,
                                 uint32_t count,
                                 void (*add)(struct hd_table *, const struct bench *,
                                             const struct hd_p2p_row *, uint32_t))
{
    struct hd_table *table = hd_table_create(count, titles);

    for (uint32_t i = 0; i < bench->result.row_count; i++) {
        for (uint32_t side = 0; bench->result.rows[i].is_measured && side < bench->list.count;
             side++) {
            add(table, bench, &bench->result.rows[i], side);
        }
    }
    hd_table_print(table, 0, stdout);
    hd_table_destroy(table);
}

static const char *bench_p2p_missing_perftest(const struct bench *bench)
{
    for (uint32_t side = 0; side < bench->list.count; side++) {
        if (bench->result.rows[0].sides[side].perftest.missing[0] != '\0') {
            return bench->result.rows[0].sides[side].perftest.missing;
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
    static const char *const stream[] = {"bytes", "transport", "window", "GB/s",   "raw",   "ratio",
                                         "bare",  "perftest",  "ratio",  "copied", "wrong", "lane"};
    const char *missing = bench_p2p_missing_perftest(bench);

    printf("\nlatency: half a round trip, microseconds\n");
    bench_p2p_print_rows(bench, latency, 10, bench_p2p_add_latency);
    bench_p2p_print_streams(bench, stream, 12);
    printf("every byte is written and compared within the time, which raw does as well: two "
           "processes that spin on a memfd;\nbare: only the transport's calls, beside ucx_perftest "
           "in its own test; ratio: to the column before it;\ncopied: bytes of a message that are "
           "moved, at least, from where the source writes them to where the target reads them\n");
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
    static const char *const stream[] = {"bytes", "transport", "window", "GB/s", "copy",
                                         "ratio", "copied",    "wrong",  "lane"};

    printf("\ndevice: %s\nlatency: half a round trip between streams, microseconds by the device's "
           "marks\n",
           bench->result.device);
    bench_p2p_print_rows(bench, latency, 7, bench_p2p_add_latency);
    bench_p2p_print_streams(bench, stream, 9);
    printf("copy: the yardstick, as many bytes from one place to another of rank 0's device, by "
           "its kernel's copy; ratio: to the\ncolumn before it; the first 8 bytes of a stream's "
           "message are written and looked at within the time, all bytes of a\nlatency's outside "
           "of it; copied: as far as they are moved from where the source writes them\n");
}

/* --- the command ----------------------------------------------------------------------------- */

static void bench_p2p_judge_nothing_but_bytes(struct bench *bench)
{
    struct hd_problem *problem = &bench->cli->problem;

    for (uint32_t i = 0; i < bench->result.row_count; i++) {
        for (uint32_t side = 0; side < bench->list.count; side++) {
            const struct hd_p2p_side *found = &bench->result.rows[i].sides[side];
            if (found->wrong_count > 0) {
                hd_problem_set(problem, HD_PROTOCOL, HD_EXIT_FAILED,
                               "%s: %" PRIu64 " of %" PRIu64 " messages of %" PRIu64
                               " bytes arrived wrong",
                               bench->lines[side].transport->plugin.name, found->wrong_count,
                               found->message_count, bench->result.rows[i].bytes);
                return;
            }
        }
    }
}

static void bench_p2p_measure(struct bench *bench)
{
    struct hd_p2p_request *request = &bench->request;
    struct hd_cli *cli = bench->cli;
    uint64_t numbers[HD_P2P_SIZE_MAX + 4] = {request->iterations, request->warmup, request->window,
                                             request->is_both};
    const struct hd_cli_bench_world world = {
        .lines = &bench->list,
        .numbers = numbers,
        .count = 4 + request->size_count,
        .patience_s = bench->config.transport.first_step_timeout_s,
        .address = request->address,
    };

    memcpy(numbers + 4, request->sizes, request->size_count * sizeof numbers[0]);
    if (hd_cli_bench_join(cli, &world, &request->link) != HD_OK) {
        return;
    }
    if (hd_bench_p2p(request, &bench->result, &cli->problem) == HD_OK) {
        bench_p2p_judge_nothing_but_bytes(bench);
    }
    if (hd_cli_bench_speaks(request->link) && cli->is_json) {
        bench_p2p_add_json(bench);
    } else if (hd_cli_bench_speaks(request->link) && bench->result.rows[0].is_measured) {
        if (bench_p2p_has_device(bench)) {
            bench_p2p_print_device_tables(bench);
        } else {
            bench_p2p_print_tables(bench);
        }
    }
    hd_cli_bench_leave(cli, request->link);
}

int hd_cli_bench_p2p(struct hd_cli *cli)
{
    struct bench *bench = calloc(1, sizeof *bench);

    if (bench == NULL) {
        hd_problem_set(&cli->problem, HD_NO_MEMORY, HD_EXIT_FAILED, "out of memory");
        return cli->problem.exit_code;
    }
    bench->cli = cli;
    bench->list = (struct hd_cli_bench_lines){.usual = bench_p2p_usual_transports,
                                              .count_max = HD_P2P_CANDIDATE_MAX,
                                              .lines = bench->lines};
    hd_cli_be_member(cli);
    if (hd_cli_option(cli, "--part", 0) != NULL) {
        hd_cli_refuse(cli, "--part is of bench step; bench p2p has no parts");
    } else if (hd_cli_bench_no_figure(cli) == HD_OK &&
               hd_cli_config(cli, &bench->config) == HD_OK) {
        if (hd_cli_bench_lines(cli, &bench->config, &bench->list) == HD_OK &&
            bench_p2p_read_request(bench) == HD_OK) {
            bench_p2p_measure(bench);
        }
        hd_cli_bench_lines_finish(&bench->list);
        hd_config_finish(&bench->config);
    }
    free(bench);
    return cli->problem.exit_code;
}
