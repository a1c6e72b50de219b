/* heddle bench skew - what a late peer costs the compute that should hide its transfer. */
#include "bench/cmd/cmd_bench_commands.h"
#include "bench/cmd/cmd_bench_output.h"
#include "bench/cmd/cmd_bench_transports.h"
#include "bench/skew.h"
#include "cli/output.h"
#include "report/svg.h"
#include "run/model.h"

#include <math.h>
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

    request->series[series].plugin = hd_bench_two_plugin(&bench->two, index);
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
        const struct hd_transport_ops *ops = bench->two.transports[i].transport->plugin.ops;
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
        return hd_cli_bench_blame(bench->two.cli, &bench->two.config, "sizes");
    }
    bench->request.bytes = sizes[0];
    return HD_OK;
}

static bool bench_skew_has_device(const struct bench *bench)
{
    return bench->request.lender.kernel != NULL;
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
        .lender = hd_bench_two_lender(&bench->two),
        .seed = config->train.seed,
        .timeout_s = config->transport.timeout_s,
    };
    hd_model_block(config, config->cost.tick_us, &request->block);
    if (request->iterations > HD_SKEW_ITERATIONS_MAX || request->warmup > HD_SKEW_ITERATIONS_MAX) {
        hd_problem_set(&bench->two.cli->problem, HD_INVALID, HD_EXIT_USAGE,
                       "bench skew repeats at most %u times", HD_SKEW_ITERATIONS_MAX);
        return hd_cli_bench_blame(bench->two.cli, config,
                                  request->iterations > HD_SKEW_ITERATIONS_MAX ? "iterations"
                                                                               : "warmup");
    }
    bench_skew_add_all(bench);
    return bench_skew_read_bytes(bench);
}

/* --- the results ----------------------------------------------------------------------------- */

static double bench_skew_stretch_of(const struct hd_skew_point *point)
{
    return 100 * (point->compute_ms / point->solo_ms - 1);
}

static void bench_skew_add_point(struct cJSON *list, const struct hd_skew_point *point)
{
    struct cJSON *object = hd_json_object(list, NULL);
    const struct {
        const char *key;
        double value;
    } members[] = {
        {"late_ms", point->late_ms},
        {"arrival_ms", point->arrival_ms},
        {"post_ms", point->begin_ms},
        {"alone_ms", point->solo_ms},
        {"compute_ms", point->compute_ms},
        {"stretch_percent", bench_skew_stretch_of(point)},
        {"stolen_ms", point->stolen_ms},
        {"threads_ms", point->thread_ms},
        {"source_wait_ms", point->source_wait_ms},
        {"target_wait_ms", point->target_wait_ms},
        {"readable_ms", point->readable_ms},
        {"free_ms", point->free_ms},
        {"transfer_begin_ms", point->transfer_begin_ms},
        {"transfer_end_ms", point->transfer_end_ms},
        {"resident_ms", point->resident_ms},
    };

    for (unsigned i = 0; i < sizeof members / sizeof members[0]; i++) {
        hd_json_number(object, members[i].key, members[i].value);
    }
}

static void bench_skew_add_json(const struct bench *bench)
{
    const struct hd_skew *skew = &bench->result;
    struct cJSON *json = bench->two.cli->json;

    hd_json_number(json, "stage_ms", skew->stage_ms);
    hd_json_u64(json, "bytes", skew->bytes);
    hd_json_u64(json, "iterations", skew->iterations);
    hd_json_flag(json, "posted_early", (int)skew->is_posted_early);
    if (bench_skew_has_device(bench)) {
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
        hd_json_flag(object, "progress_thread", (int)series->has_thread);
        hd_json_u64(object, "beat_us", series->period_us);
        struct cJSON *points = hd_json_array(object, "points");
        for (uint32_t k = 0; k < series->point_count; k++) {
            bench_skew_add_point(points, &series->points[k]);
        }
    }
}

static void bench_skew_add_cells(struct hd_table *table, const struct hd_skew_series *series,
                                 const struct hd_skew_point *point)
{
    hd_table_cell(table, "%s", series->transport);
    if (series->period_us > 0) {
        hd_table_cell(table, "%u us", series->period_us);
    } else {
        hd_table_cell(table, "-");
    }
    hd_table_cell(table, "%.2f", point->late_ms);
    hd_table_cell(table, "%.3f", point->begin_ms);
    hd_table_cell(table, "%.3f", point->solo_ms);
    hd_table_cell(table, "%.3f", point->compute_ms);
    hd_table_cell(table, "%+.1f", bench_skew_stretch_of(point));
    hd_bench_put_number(&(struct hd_bench_row){table, NULL}, NULL, "%.3f", point->stolen_ms);
    hd_table_cell(table, "%.3f", point->thread_ms);
    hd_table_cell(table, "%.3f", point->resident_ms);
    hd_table_cell(table, "%.3f", point->source_wait_ms);
    hd_table_cell(table, "%.3f", point->target_wait_ms);
    hd_table_cell(table, "%.3f", point->readable_ms);
    hd_table_cell(table, "%.3f", point->free_ms);
    hd_table_cell(table, "%s", series->carrier);
}

static void bench_skew_print_table(const struct hd_skew *skew)
{
    static const char *const titles[] = {"transport", "thread",   "late",      "post",
                                         "alone",     "compute",  "stretch %", "stolen",
                                         "threads",   "resident", "waits",     "peer waits",
                                         "readable",  "free",     "carrier"};
    struct hd_table *table = hd_table_create(sizeof titles / sizeof titles[0], titles);

    if (skew->device[0] != '\0') {
        printf("\ndevice: %s; compute: %u forward pass%s of one block, by marks of the device\n",
               skew->device, skew->pass_count, hd_cli_es(skew->pass_count));
    }
    printf("\n%llu bytes to a late peer, which posts its receive %s; milliseconds, medians of %u\n",
           (unsigned long long)skew->bytes,
           skew->is_posted_early ? "before it is late" : "when it arrives", skew->iterations);
    for (uint32_t i = 0; i < skew->series_count; i++) {
        for (uint32_t k = 0; k < skew->series[i].point_count; k++) {
            bench_skew_add_cells(table, &skew->series[i], &skew->series[i].points[k]);
        }
    }
    hd_table_print(table, 0, stdout);
    hd_table_destroy(table);
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
            bench_skew_print_table(&bench->result);
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
