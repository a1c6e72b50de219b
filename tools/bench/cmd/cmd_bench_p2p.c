/* heddle bench p2p - what a message costs, beside raw shared memory and ucx_perftest. */
#include "bench/cmd/cmd_bench_transports.h"
#include "base/try.h"
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
        return hd_cli_bench_blame(bench->two.cli, &bench->two.config, "bench", "sizes");
    }
    const uint64_t largest = request->sizes[request->size_count - 1];
    if (largest > HD_P2P_CHANNEL_BYTES_MAX / hd_p2p_window(request, largest)) {
        hd_problem_remedy(&bench->two.cli->problem,
                          "set a lower bench.window, or a smaller last size");
        hd_problem_set(&bench->two.cli->problem, HD_INVALID, HD_EXIT_USAGE,
                       "%u messages of %" PRIu64 " bytes exceed the %llu bytes of a channel",
                       hd_p2p_window(request, largest), largest, HD_P2P_CHANNEL_BYTES_MAX);
        return hd_cli_bench_blame(bench->two.cli, &bench->two.config, "bench", "sizes");
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
        .lender = bench->two.lender,
        .timeout_s = config->transport.timeout_s,
        .address = "127.0.0.1",
    };
    for (uint32_t i = 0; i < bench->two.count; i++) {
        request->candidates[i] = bench->two.transports[i];
    }
    HD_TRY(hd_cli_bench_check_repeats(bench->two.cli, config, HD_P2P_ITERATIONS_MAX));
    return bench_p2p_read_sizes(bench);
}

/* --- the results ----------------------------------------------------------------------------- */

/* One transport, or the yardstick, at one size. */
struct shown {
    char name[HD_BENCH_TRANSPORT_NAME_BYTES], wrong[48];
    const char *missing; /* of ucx_perftest */
    uint64_t bytes, copied_bytes;
    uint32_t window;
    struct hd_p2p_side side;
    double bare_gbytes, bare_messages; /* a second */
    double raw_us, raw_gbytes;         /* of the yardstick */
    double us_ratio, gbytes_ratio, perftest_us_ratio, perftest_gbytes_ratio;
};

/* The slots are in host memory, or on a device, and its own copy is the yardstick. */
enum { HOST = 1, DEVICE };

#define HD_BENCH_ROW struct shown
static const struct hd_bench_field bench_p2p_side_fields[] = {
    HD_BENCH_FIELD("transport", NULL, NULL, CHARS, name),
    HD_BENCH_FIELD("lane", NULL, NULL, CHARS, side.carrier),
    HD_BENCH_FIELD("latency_us", NULL, NULL, TAIL, side.whole_us),
    HD_BENCH_FIELD("gbytes", NULL, NULL, SPREAD, side.whole_gbytes),
    HD_BENCH_FIELD("latency_ratio", NULL, NULL, NUMBER, us_ratio),
    HD_BENCH_FIELD("gbytes_ratio", NULL, NULL, NUMBER, gbytes_ratio),
    HD_BENCH_FIELD("copied_bytes", NULL, NULL, BIG, copied_bytes),
    HD_BENCH_FIELD("messages", NULL, NULL, BIG, side.message_count),
    HD_BENCH_FIELD("wrong", NULL, NULL, BIG, side.wrong_count),
    HD_BENCH_FIELD_IF(HOST, 1, "bare_latency_us", NULL, NULL, TAIL, side.bare_us),
    HD_BENCH_FIELD_IF(HOST, 1, "bare_gbytes", NULL, NULL, NUMBER, bare_gbytes),
    HD_BENCH_FIELD_IF(HOST, 1, "bare_messages_per_second", NULL, NULL, NUMBER, bare_messages),
    {0}};

static const struct hd_bench_field bench_p2p_perftest_fields[] = {
    HD_BENCH_FIELD("test", NULL, NULL, CHARS, side.perftest.test),
    HD_BENCH_FIELD("latency_us", NULL, NULL, NUMBER, side.perftest.latency_us),
    HD_BENCH_FIELD("gbytes", NULL, NULL, NUMBER, side.perftest.gbytes),
    HD_BENCH_FIELD("latency_ratio", NULL, NULL, NUMBER, perftest_us_ratio),
    HD_BENCH_FIELD("gbytes_ratio", NULL, NULL, NUMBER, perftest_gbytes_ratio),
    HD_BENCH_FIELD("missing", NULL, NULL, TEXT, missing),
    {0}};

static const struct hd_bench_field bench_p2p_yardstick_fields[] = {
    HD_BENCH_FIELD("latency_us", NULL, NULL, TAIL, side.whole_us),
    HD_BENCH_FIELD("gbytes", NULL, NULL, SPREAD, side.whole_gbytes),
    HD_BENCH_FIELD_IF(HOST, 1, "bare_latency_us", NULL, NULL, TAIL, side.bare_us),
    HD_BENCH_FIELD_IF(HOST, 1, "bare_messages_per_second", NULL, NULL, NUMBER, bare_messages),
    HD_BENCH_FIELD_IF(HOST, 1, "wrong", NULL, NULL, BIG, side.wrong_count),
    {0}};

static const struct hd_bench_field bench_p2p_latency_fields[] = {
    HD_BENCH_FIELD(NULL, "bytes", NULL, BIG, bytes),
    HD_BENCH_FIELD(NULL, "transport", NULL, CHARS, name),
    HD_BENCH_FIELD(NULL, "p50", "%.3f", NUMBER, side.whole_us.median),
    HD_BENCH_FIELD(NULL, "p99", "%.3f", NUMBER, side.whole_us.p99),
    HD_BENCH_FIELD(NULL, "max", "%.1f", NUMBER, side.whole_us.max),
    HD_BENCH_FIELD_IF(HOST, 1, NULL, "raw", "%.3f", NUMBER, raw_us),
    HD_BENCH_FIELD_IF(DEVICE, 1, NULL, "copy", "%.3f", NUMBER, raw_us),
    HD_BENCH_FIELD(NULL, "ratio", "%.2f", NUMBER, us_ratio),
    HD_BENCH_FIELD_IF(HOST, 1, NULL, "bare", "%.3f", NUMBER, side.bare_us.median),
    HD_BENCH_FIELD_IF(HOST, 1, NULL, "perftest", "%.3f", NUMBER, side.perftest.latency_us),
    HD_BENCH_FIELD_IF(HOST, 1, NULL, "ratio", "%.2f", NUMBER, perftest_us_ratio),
    {0}};

static const struct hd_bench_field bench_p2p_stream_fields[] = {
    HD_BENCH_FIELD(NULL, "bytes", NULL, BIG, bytes),
    HD_BENCH_FIELD(NULL, "transport", NULL, CHARS, name),
    HD_BENCH_FIELD(NULL, "window", NULL, COUNT, window),
    HD_BENCH_FIELD(NULL, "GB/s", "%.3f", NUMBER, side.whole_gbytes.median),
    HD_BENCH_FIELD_IF(HOST, 1, NULL, "raw", "%.3f", NUMBER, raw_gbytes),
    HD_BENCH_FIELD_IF(DEVICE, 1, NULL, "copy", "%.3f", NUMBER, raw_gbytes),
    HD_BENCH_FIELD(NULL, "ratio", "%.2f", NUMBER, gbytes_ratio),
    HD_BENCH_FIELD_IF(HOST, 1, NULL, "bare", "%.3f", NUMBER, bare_gbytes),
    HD_BENCH_FIELD_IF(HOST, 1, NULL, "perftest", "%.3f", NUMBER, side.perftest.gbytes),
    HD_BENCH_FIELD_IF(HOST, 1, NULL, "ratio", "%.2f", NUMBER, perftest_gbytes_ratio),
    HD_BENCH_FIELD(NULL, "copied", NULL, BIG, copied_bytes),
    HD_BENCH_FIELD(NULL, "wrong", NULL, CHARS, wrong),
    HD_BENCH_FIELD(NULL, "carrier", NULL, CHARS, side.carrier),
    {0}};

static struct hd_bench_sheet bench_p2p_sheet(const struct bench *bench,
                                             const struct hd_bench_field *fields)
{
    return (struct hd_bench_sheet){.fields = fields,
                                   .kind = hd_bench_two_has_device(&bench->two) ? DEVICE : HOST};
}

static void bench_p2p_fill(const struct bench *bench, const struct hd_p2p_row *row,
                           const struct hd_p2p_side *side, struct shown *shown)
{
    const struct hd_perftest *perftest = &side->perftest;

    *shown = (struct shown){
        .missing = perftest->missing[0] != '\0' ? perftest->missing : NULL,
        .bytes = row->bytes,
        .copied_bytes = side->is_in_place ? 0 : row->bytes,
        .window = row->window,
        .side = *side,
        /* An in-place transport moves no bytes if none are written. */
        .bare_gbytes = side->is_in_place ? NAN : side->bare_gbytes.median,
        .bare_messages = side->bare_gbytes.median * 1e9 / (double)row->bytes,
        .raw_us = bench->result.has_raw ? row->raw.whole_us.median : NAN,
        .raw_gbytes = bench->result.has_raw ? row->raw.whole_gbytes.median : NAN,
    };
    snprintf(shown->wrong, sizeof shown->wrong, "%" PRIu64 " of %" PRIu64, side->wrong_count,
             side->message_count);
    shown->us_ratio = hd_bench_ratio(side->whole_us.median, shown->raw_us);
    shown->gbytes_ratio = hd_bench_ratio(side->whole_gbytes.median, shown->raw_gbytes);
    shown->perftest_us_ratio = hd_bench_ratio(side->bare_us.median, perftest->latency_us);
    shown->perftest_gbytes_ratio = hd_bench_ratio(shown->bare_gbytes, perftest->gbytes);
}

static void bench_p2p_add_side(struct cJSON *object, const struct bench *bench,
                               const struct shown *shown)
{
    const struct hd_bench_sheet sides = bench_p2p_sheet(bench, bench_p2p_side_fields);
    const struct hd_bench_sheet perftest = bench_p2p_sheet(bench, bench_p2p_perftest_fields);

    hd_bench_add(object, &sides, shown);
    if (sides.kind == HOST) {
        hd_bench_add(hd_json_object(object, "ucx_perftest"), &perftest, shown);
    }
}

static void bench_p2p_add_row(struct cJSON *object, const struct bench *bench,
                              const struct hd_p2p_row *row)
{
    const struct hd_bench_sheet yardstick = bench_p2p_sheet(bench, bench_p2p_yardstick_fields);
    const char *key = yardstick.kind == DEVICE ? "copy" : "raw";
    struct shown shown;

    hd_json_u64(object, "bytes", row->bytes);
    hd_json_u64(object, "window", row->window);
    hd_json_u64(object, "round_trips_a_round", row->latency_count);
    hd_json_u64(object, "messages_a_round", row->stream_count);
    struct cJSON *sides = hd_json_array(object, "transports");
    for (uint32_t side = 0; side < bench->two.count; side++) {
        bench_p2p_fill(bench, row, &row->sides[side], &shown);
        hd_bench_two_name(&bench->two, side, shown.name);
        bench_p2p_add_side(hd_json_object(sides, NULL), bench, &shown);
    }
    if (bench->result.has_raw) {
        bench_p2p_fill(bench, row, &row->raw, &shown);
        hd_bench_add(hd_json_object(object, key), &yardstick, &shown);
    } else {
        hd_json_null(object, key);
    }
}

static void bench_p2p_add_json(const struct bench *bench)
{
    struct cJSON *json = bench->two.cli->json;

    hd_json_text(json, "direction", bench->request.is_both ? "both" : "one");
    hd_json_flag(json, "progress_thread", bench->request.has_thread);
    if (hd_bench_two_has_device(&bench->two)) {
        hd_json_text(json, "device", bench->result.device);
    }
    struct cJSON *rows = hd_json_array(json, "rows");
    for (uint32_t i = 0; i < bench->result.row_count; i++) {
        if (bench->result.rows[i].is_measured) {
            bench_p2p_add_row(hd_json_object(rows, NULL), bench, &bench->result.rows[i]);
        }
    }
}

static void bench_p2p_print_rows(const struct bench *bench, const struct hd_bench_field *fields)
{
    struct hd_bench_sheet sheet = bench_p2p_sheet(bench, fields);
    struct shown shown;

    hd_bench_sheet_begin(&sheet, bench->two.cli, NULL);
    for (uint32_t i = 0; i < bench->result.row_count; i++) {
        const struct hd_p2p_row *row = &bench->result.rows[i];
        for (uint32_t side = 0; row->is_measured && side < bench->two.count; side++) {
            bench_p2p_fill(bench, row, &row->sides[side], &shown);
            hd_bench_two_name(&bench->two, side, shown.name);
            hd_bench_show(&sheet, &shown);
        }
    }
    hd_bench_sheet_end(&sheet, HD_OK);
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

static void bench_p2p_print_host_notes(const struct bench *bench)
{
    const char *missing = bench_p2p_missing_perftest(bench);

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

static void bench_p2p_print_tables(const struct bench *bench)
{
    const bool has_device = hd_bench_two_has_device(&bench->two);

    if (has_device) {
        printf("\ndevice: %s\nlatency: half a round trip between streams, microseconds, by marks "
               "of the device\n",
               bench->result.device);
    } else {
        printf("\nlatency: half a round trip, microseconds\n");
    }
    bench_p2p_print_rows(bench, bench_p2p_latency_fields);
    printf("\nbandwidth, %s: 1e9 bytes a second, median of the rounds\n",
           bench->request.is_both ? "both ways at once" : "one way");
    bench_p2p_print_rows(bench, bench_p2p_stream_fields);
    if (!has_device) {
        bench_p2p_print_host_notes(bench);
        return;
    }
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
                hd_problem_set(&bench->two.cli->problem, HD_PROTOCOL, HD_EXIT_FAILED,
                               "%s: %" PRIu64 " of %" PRIu64 " messages of %" PRIu64
                               " bytes arrived wrong",
                               bench->two.transports[side].plugin->name, found->wrong_count,
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
        bench_p2p_print_tables(bench);
    }
    hd_bench_two_leave(two, request->link);
}

int hd_cli_bench_p2p(struct hd_cli *cli)
{
    static const struct hd_cli_bench_words words;
    static struct bench bench;

    return hd_bench_two_run(&bench.two, cli, &words, bench_p2p_measure);
}
