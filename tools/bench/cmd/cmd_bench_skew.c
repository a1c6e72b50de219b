/* heddle bench skew - what a late peer costs the compute that should hide its transfer. */
#include "bench/cmd/cmd_bench_transports.h"
#include "base/try.h"
#include "bench/skew.h"
#include "cli/output.h"
#include "report/svg.h"
#include "run/model.h"

#include <stdio.h>

enum { ITERATIONS_USUAL = 5 };

_Static_assert(HD_SKEW_SERIES_MAX >= 2 * HD_BENCH_TRANSPORT_MAX, "each with and without a thread");

struct bench {
    struct hd_bench_two two;
    struct hd_skew_request request;
    struct hd_skew result;
};

/* --- the request ----------------------------------------------------------------------------- */

static void bench_skew_add_series(struct bench *bench, uint32_t index, bool has_thread)
{
    struct hd_skew_request *request = &bench->request;
    const uint32_t series = request->series_count++;

    request->series[series].plugin = bench->two.transports[index];
    request->series[series].has_thread = has_thread;
    hd_bench_two_name(&bench->two, index, request->series[series].name);
}

/* Each transport without and with a progress thread, unless the user asks for one of them. */
static void bench_skew_add_all(struct bench *bench)
{
    const struct hd_config *config = &bench->two.config;
    const bool is_asked = hd_cli_bench_is_asked(config, "transport.progress_thread");
    const bool asked = config->transport.progress_thread != 0;

    for (uint32_t i = 0; i < bench->two.count; i++) {
        const struct hd_transport_ops *ops = bench->two.transports[i].plugin->ops;
        const bool has_progress = ops->progress != NULL;
        if (!is_asked || !asked || !has_progress) {
            bench_skew_add_series(bench, i, false);
        }
        if (has_progress && (!is_asked || asked)) {
            bench_skew_add_series(bench, i, true);
        }
    }
}

static hd_status bench_skew_read_bytes(struct bench *bench)
{
    struct hd_problem *problem = &bench->two.cli->problem;
    char reason[HD_BENCH_REASON_BYTES];
    uint64_t sizes[2];

    const uint32_t count = hd_bench_sizes(bench->two.config.bench.sizes, 2, sizes, reason);
    if (count != 1 || sizes[0] > (1u << 30)) {
        hd_problem_remedy(problem, "set one size of at most 1G, such as 4M");
        hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "bench skew measures one message size");
        return hd_cli_bench_blame(bench->two.cli, &bench->two.config, "bench", "sizes");
    }
    bench->request.bytes = sizes[0];
    return HD_OK;
}

static hd_status bench_skew_read_request(struct bench *bench)
{
    const struct hd_config *config = &bench->two.config;
    const uint32_t asked = config->bench.iterations;
    struct hd_skew_request *request = &bench->request;

    *request = (struct hd_skew_request){
        .stage_ns = (uint64_t)(config->cost.tick_us * 1e3),
        .iterations = asked > 0 ? asked : (uint32_t)ITERATIONS_USUAL,
        .warmup = config->bench.warmup > 0 ? config->bench.warmup : 1,
        .is_posted_early = config->pipeline.overlap,
        .lender = bench->two.lender,
        .seed = config->train.seed,
        .timeout_s = config->transport.timeout_s,
    };
    hd_model_block(config, config->cost.tick_us, &request->block);
    HD_TRY(hd_cli_bench_check_repeats(bench->two.cli, config, HD_SKEW_ITERATIONS_MAX));
    bench_skew_add_all(bench);
    return bench_skew_read_bytes(bench);
}

/* --- the results ----------------------------------------------------------------------------- */

/* A lateness of one transport. */
struct shown {
    const char *transport, *carrier;
    char period[16];
    double stretch_percent;
    struct hd_skew_point point;
};

#define HD_BENCH_ROW struct shown
static const struct hd_bench_field bench_skew_fields[] = {
    HD_BENCH_FIELD(NULL, "transport", NULL, TEXT, transport),
    HD_BENCH_FIELD(NULL, "thread", NULL, CHARS, period),
    HD_BENCH_FIELD("late_ms", "late", "%.2f", NUMBER, point.late_ms),
    HD_BENCH_FIELD("arrival_ms", NULL, NULL, NUMBER, point.arrival_ms),
    HD_BENCH_FIELD("post_ms", "post", "%.3f", NUMBER, point.begin_ms),
    HD_BENCH_FIELD("alone_ms", "alone", "%.3f", NUMBER, point.solo_ms),
    HD_BENCH_FIELD("compute_ms", "compute", "%.3f", NUMBER, point.compute_ms),
    HD_BENCH_FIELD("stretch_percent", "stretch %", "%+.1f", NUMBER, stretch_percent),
    HD_BENCH_FIELD("stolen_ms", "stolen", "%.3f", NUMBER, point.stolen_ms),
    HD_BENCH_FIELD("threads_ms", "threads", "%.3f", NUMBER, point.thread_ms),
    HD_BENCH_FIELD("resident_ms", "resident", "%.3f", NUMBER, point.resident_ms),
    HD_BENCH_FIELD("source_wait_ms", "waits", "%.3f", NUMBER, point.source_wait_ms),
    HD_BENCH_FIELD("target_wait_ms", "peer waits", "%.3f", NUMBER, point.target_wait_ms),
    HD_BENCH_FIELD("readable_ms", "readable", "%.3f", NUMBER, point.readable_ms),
    HD_BENCH_FIELD("free_ms", "free", "%.3f", NUMBER, point.free_ms),
    HD_BENCH_FIELD("transfer_begin_ms", NULL, NULL, NUMBER, point.transfer_begin_ms),
    HD_BENCH_FIELD("transfer_end_ms", NULL, NULL, NUMBER, point.transfer_end_ms),
    HD_BENCH_FIELD(NULL, "carrier", NULL, TEXT, carrier),
    {0}};

static void bench_skew_show_points(const struct hd_bench_sheet *sheet,
                                   const struct hd_skew_series *series)
{
    struct shown shown = {
        .transport = series->transport, .carrier = series->carrier, .period = "-"};

    if (series->period_us > 0) {
        snprintf(shown.period, sizeof shown.period, "%u us", series->period_us);
    }
    for (uint32_t i = 0; i < series->point_count; i++) {
        shown.point = series->points[i];
        shown.stretch_percent = 100 * (shown.point.compute_ms / shown.point.solo_ms - 1);
        hd_bench_show(sheet, &shown);
    }
}

static void bench_skew_add_json(const struct bench *bench)
{
    const struct hd_skew *skew = &bench->result;
    struct cJSON *json = bench->two.cli->json;

    hd_json_number(json, "stage_ms", skew->stage_ms);
    hd_json_u64(json, "bytes", skew->bytes);
    hd_json_u64(json, "iterations", skew->iterations);
    hd_json_flag(json, "posted_early", skew->is_posted_early);
    if (hd_bench_two_has_device(&bench->two)) {
        hd_json_text(json, "device", skew->device);
        hd_json_u64(json, "passes", skew->pass_count);
    }
    struct cJSON *list = hd_json_array(json, "transports");
    for (uint32_t i = 0; i < skew->series_count; i++) {
        const struct hd_skew_series *series = &skew->series[i];
        if (series->point_count == 0) {
            continue;
        }
        struct cJSON *object = hd_json_object(list, NULL);
        hd_json_text(object, "transport", series->transport);
        hd_json_text(object, "lane", series->carrier);
        hd_json_flag(object, "progress_thread", series->has_thread);
        hd_json_u64(object, "beat_us", series->period_us);
        bench_skew_show_points(&(struct hd_bench_sheet){.fields = bench_skew_fields,
                                                        .list = hd_json_array(object, "points")},
                               series);
    }
}

static void bench_skew_print_table(struct hd_cli *cli, const struct hd_skew *skew)
{
    struct hd_bench_sheet sheet = {.fields = bench_skew_fields};

    hd_bench_sheet_begin(&sheet, cli, NULL);
    if (skew->device[0] != '\0') {
        printf("\ndevice: %s; compute: %u forward pass%s of one block, by marks of the device\n",
               skew->device, skew->pass_count, hd_cli_es(skew->pass_count));
    }
    printf("\n%llu bytes to a late peer, which posts its receive %s; milliseconds, medians of %u\n",
           (unsigned long long)skew->bytes,
           skew->is_posted_early ? "before it is late" : "when it arrives", skew->iterations);
    for (uint32_t i = 0; i < skew->series_count; i++) {
        bench_skew_show_points(&sheet, &skew->series[i]);
    }
    hd_bench_sheet_end(&sheet, HD_OK);
    printf(
        "post: duration of the post; alone: the compute of the source without a message, the "
        "yardstick; compute: the same while the\nmessage is under way; stolen: the part of it in "
        "which its thread did not run; threads: CPU time of the process's other threads;\n"
        "resident: time in which a kernel occupied the device while it waited for the peer; waits: "
        "from the end of the compute until\nthe slot is free; peer waits: from the peer's arrival "
        "until the message is readable; readable, free: after the post\n");
}

static void bench_skew_write_svg(struct bench *bench)
{
    const char *path = hd_cli_option(bench->two.cli, "--svg", 0);
    struct hd_cli_output output;

    if (path == NULL || hd_cli_output_open(bench->two.cli, path, &output) != HD_OK) {
        return;
    }
    hd_skew_svg_write(&bench->result, HD_SVG_WIDTH_MM_USUAL, output.stream);
    hd_cli_output_close(bench->two.cli, &output, HD_OK);
}

/* --- the command ----------------------------------------------------------------------------- */

static void bench_skew_measure(struct hd_bench_two *two)
{
    struct bench *bench = (struct bench *)(void *)two; /* its first member */
    struct hd_skew_request *request = &bench->request;
    struct hd_cli *cli = two->cli;

    if (bench_skew_read_request(bench) != HD_OK) {
        return;
    }
    const uint64_t numbers[] = {request->bytes,  request->stage_ns,     request->iterations,
                                request->warmup, request->series_count, request->is_posted_early};
    const struct hd_bench_agreement agreement = {numbers, sizeof numbers / sizeof numbers[0], NULL};
    if (hd_bench_two_join(two, &agreement, &request->link) != HD_OK) {
        return;
    }
    const hd_status status = hd_bench_skew(request, &bench->result, &cli->problem);
    if (hd_bench_two_speaks(request->link)) {
        if (cli->is_json) {
            bench_skew_add_json(bench);
        } else if (bench->result.series[0].point_count > 0) {
            bench_skew_print_table(cli, &bench->result);
        }
        if (status == HD_OK) {
            bench_skew_write_svg(bench);
        }
    }
    hd_bench_two_leave(two, request->link);
}

int hd_cli_bench_skew(struct hd_cli *cli)
{
    static const struct hd_cli_bench_words words = {
        .usual = {"pipeline.overlap=off", "cost.tick_us=20000", "bench.sizes=4M"},
    };
    static struct bench bench;

    return hd_bench_two_run(&bench.two, cli, &words, bench_skew_measure);
}
