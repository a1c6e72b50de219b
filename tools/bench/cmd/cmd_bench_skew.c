/* heddle bench skew - what a late peer costs the compute that should hide its transfer. */
#include "bench/cmd/cmd_bench.h"
#include "cli/join.h"
#include "cli/output.h"
#include "run/model.h"
#include "report/svg.h"
#include "bench/skew.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITERATIONS_USUAL = 5, LINE_MAX_COUNT = 4 };

#define BYTES_USUAL "4M"

static const char *const bench_skew_usual_transports[] = {"shm", "ucx_tag", "ucx_put", NULL};

struct bench {
    struct hd_cli *cli;
    struct hd_config config;
    struct hd_cli_bench_line lines[LINE_MAX_COUNT];
    struct hd_cli_bench_lines list;
    struct hd_skew_request request;
    struct hd_skew result;
};

/* --- what is asked --------------------------------------------------------------------------- */

static int bench_skew_has_progress(const struct hd_cli_bench_line *line)
{
    const struct hd_transport_ops *ops = line->transport->plugin.ops;
    return ops->progress != NULL;
}

static void bench_skew_add_line(struct bench *bench, const struct hd_cli_bench_line *line,
                                uint32_t has_thread)
{
    struct hd_skew_request *request = &bench->request;
    const uint32_t index = request->line_count++;

    request->lines[index].plugin = hd_cli_bench_plugin(line);
    request->lines[index].has_thread = has_thread;
    hd_cli_bench_line_name(line, request->lines[index].name);
}

/* Without and with the thread, unless one of them is asked for. */
static void bench_skew_add_lines(struct bench *bench)
{
    const int is_asked = hd_cli_bench_is_asked(&bench->config, "transport.progress_thread");
    const uint32_t asked = bench->config.transport.progress_thread;

    for (uint32_t i = 0; i < bench->list.count; i++) {
        const struct hd_cli_bench_line *line = &bench->lines[i];
        if (!is_asked || !asked || !bench_skew_has_progress(line)) {
            bench_skew_add_line(bench, line, 0);
        }
        if (bench_skew_has_progress(line) && (!is_asked || asked)) {
            bench_skew_add_line(bench, line, 1);
        }
    }
}

static hd_status bench_skew_read_bytes(struct bench *bench)
{
    struct hd_problem *problem = &bench->cli->problem;
    char reason[HD_BENCH_REASON_BYTES];
    uint64_t sizes[2];

    const uint32_t count = hd_bench_sizes(bench->config.bench.sizes, 2, sizes, reason);
    if (count != 1 || sizes[0] > (1u << 30)) {
        hd_problem_remedy(problem, "write one size of at most 1G, as 4M");
        hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "bench skew sends messages of one size");
        return hd_cli_bench_blame(bench->cli, &bench->config, "sizes");
    }
    bench->request.bytes = sizes[0];
    return HD_OK;
}

static int bench_skew_has_device(const struct bench *bench)
{
    return bench->request.lender.kernel != NULL;
}

static hd_status bench_skew_read_request(struct bench *bench)
{
    const struct hd_config *config = &bench->config;
    const uint32_t asked = config->bench.iterations;
    struct hd_skew_request *request = &bench->request;

    *request = (struct hd_skew_request){
        .stage_ns = (uint64_t)(config->cost.tick_us * 1e3),
        .iterations = asked > 0 ? asked : (uint32_t)ITERATIONS_USUAL,
        .warmup = config->bench.warmup > 0 ? config->bench.warmup : 1,
        .is_posted_early = config->pipeline.overlap,
        .lender = hd_cli_bench_lender(&bench->list),
        .seed = config->train.seed,
        .timeout_s = config->transport.timeout_s,
    };
    hd_model_block(config, config->cost.tick_us, &request->block);
    if (request->iterations > HD_SKEW_ITERATIONS_MAX || request->warmup > HD_SKEW_ITERATIONS_MAX) {
        hd_problem_set(&bench->cli->problem, HD_INVALID, HD_EXIT_USAGE,
                       "bench skew repeats at most %u times", HD_SKEW_ITERATIONS_MAX);
        return hd_cli_bench_blame(bench->cli, config,
                                  request->iterations > HD_SKEW_ITERATIONS_MAX ? "iterations"
                                                                               : "warmup");
    }
    bench_skew_add_lines(bench);
    return bench_skew_read_bytes(bench);
}

/* --- what was found -------------------------------------------------------------------------- */

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
    struct cJSON *json = bench->cli->json;

    hd_json_number(json, "stage_ms", skew->stage_ms);
    hd_json_u64(json, "bytes", skew->bytes);
    hd_json_u64(json, "iterations", skew->iterations);
    hd_json_flag(json, "posted_early", (int)skew->is_posted_early);
    if (bench_skew_has_device(bench)) {
        hd_json_text(json, "device", skew->device);
        hd_json_u64(json, "passes", skew->pass_count);
    }
    struct cJSON *lines = hd_json_array(json, "transports");
    for (uint32_t i = 0; i < skew->line_count; i++) {
        const struct hd_skew_line *line = &skew->lines[i];
        if (line->point_count == 0) {
            continue;
        }
        struct cJSON *object = hd_json_object(lines, NULL);
        hd_json_text(object, "transport", line->transport);
        hd_json_text(object, "lane", line->lane);
        hd_json_flag(object, "progress_thread", (int)line->has_thread);
        hd_json_u64(object, "beat_us", line->beat_us);
        struct cJSON *points = hd_json_array(object, "points");
        for (uint32_t k = 0; k < line->point_count; k++) {
            bench_skew_add_point(points, &line->points[k]);
        }
    }
}

static void bench_skew_add_cells(struct hd_table *table, const struct hd_skew_line *line,
                                 const struct hd_skew_point *point)
{
    hd_table_cell(table, "%s", line->transport);
    if (line->beat_us > 0) {
        hd_table_cell(table, "%u us", line->beat_us);
    } else {
        hd_table_cell(table, "-");
    }
    hd_table_cell(table, "%.2f", point->late_ms);
    hd_table_cell(table, "%.3f", point->begin_ms);
    hd_table_cell(table, "%.3f", point->solo_ms);
    hd_table_cell(table, "%.3f", point->compute_ms);
    hd_table_cell(table, "%+.1f", bench_skew_stretch_of(point));
    hd_cli_bench_cell(table, "%.3f", point->stolen_ms);
    hd_table_cell(table, "%.3f", point->thread_ms);
    hd_table_cell(table, "%.3f", point->resident_ms);
    hd_table_cell(table, "%.3f", point->source_wait_ms);
    hd_table_cell(table, "%.3f", point->target_wait_ms);
    hd_table_cell(table, "%.3f", point->readable_ms);
    hd_table_cell(table, "%.3f", point->free_ms);
    hd_table_cell(table, "%s", line->lane);
}

static void bench_skew_print_table(const struct hd_skew *skew)
{
    static const char *const titles[] = {"transport", "thread",   "late",      "post",
                                         "alone",     "compute",  "stretch %", "stolen",
                                         "threads",   "resident", "waits",     "peer waits",
                                         "readable",  "free",     "lane"};
    struct hd_table *table = hd_table_create(sizeof titles / sizeof titles[0], titles);

    if (skew->device[0] != '\0') {
        printf("\ndevice: %s; compute: %u forward pass%s of one block, by its marks\n",
               skew->device, skew->pass_count, hd_cli_es(skew->pass_count));
    }
    printf("\n%llu bytes to a peer that comes late and posts its receive %s; milliseconds, medians "
           "of %u\n",
           (unsigned long long)skew->bytes, skew->is_posted_early ? "early" : "then",
           skew->iterations);
    for (uint32_t i = 0; i < skew->line_count; i++) {
        for (uint32_t k = 0; k < skew->lines[i].point_count; k++) {
            bench_skew_add_cells(table, &skew->lines[i], &skew->lines[i].points[k]);
        }
    }
    hd_table_print(table, 0, stdout);
    hd_table_destroy(table);
    printf(
        "post: what the call that posts took; alone: the source's compute with nothing under way, "
        "the yardstick; compute: the same with the\nmessage under way; stolen: of it, its thread "
        "did not run; threads: CPU time of the process's other threads in it; resident: a\nkernel "
        "held the device for the peer; waits: after it, until the slot is free; peer waits: from "
        "its arrival until the message is\nreadable; readable, free: since the post\n");
}

static void bench_skew_write_svg(struct bench *bench)
{
    const char *path = hd_cli_option(bench->cli, "--svg", 0);
    struct hd_cli_output output;

    if (path == NULL || hd_cli_output_open(bench->cli, path, &output) != HD_OK) {
        return;
    }
    hd_skew_svg_write(&bench->result, HD_SVG_WIDTH_MM_USUAL, output.stream);
    hd_cli_output_close(bench->cli, &output, HD_OK);
}

/* --- the command ----------------------------------------------------------------------------- */

static void bench_skew_measure(struct bench *bench)
{
    struct hd_skew_request *request = &bench->request;
    struct hd_cli *cli = bench->cli;
    const uint64_t numbers[] = {request->bytes,  request->stage_ns,   request->iterations,
                                request->warmup, request->line_count, request->is_posted_early};
    const struct hd_cli_bench_world world = {
        .lines = &bench->list,
        .numbers = numbers,
        .count = sizeof numbers / sizeof numbers[0],
        .patience_s = bench->config.transport.first_step_timeout_s,
    };

    if (hd_cli_bench_join(cli, &world, &request->link) != HD_OK) {
        return;
    }
    const hd_status status = hd_bench_skew(request, &bench->result, &cli->problem);
    if (hd_cli_bench_speaks(request->link)) {
        if (cli->is_json) {
            bench_skew_add_json(bench);
        } else if (bench->result.lines[0].point_count > 0) {
            bench_skew_print_table(&bench->result);
        }
        if (status == HD_OK) {
            bench_skew_write_svg(bench);
        }
    }
    hd_cli_bench_leave(cli, request->link);
}

static void bench_skew_measure_all(struct bench *bench)
{
    static const struct hd_cli_bench_words words = {
        .usual = {"pipeline.overlap=off", "cost.tick_us=20000", "bench.sizes=" BYTES_USUAL},
    };

    if (hd_cli_bench_config(bench->cli, &words, &bench->config) != HD_OK) {
        return;
    }
    if (hd_cli_bench_lines(bench->cli, &bench->config, &bench->list) == HD_OK &&
        bench_skew_read_request(bench) == HD_OK) {
        bench_skew_measure(bench);
    }
    hd_cli_bench_lines_finish(&bench->list);
    hd_config_finish(&bench->config);
}

int hd_cli_bench_skew(struct hd_cli *cli)
{
    struct bench *bench = calloc(1, sizeof *bench);

    if (bench == NULL) {
        hd_problem_set(&cli->problem, HD_NO_MEMORY, HD_EXIT_FAILED, "out of memory");
        return cli->problem.exit_code;
    }
    bench->cli = cli;
    bench->list = (struct hd_cli_bench_lines){
        .usual = bench_skew_usual_transports, .count_max = LINE_MAX_COUNT, .lines = bench->lines};
    hd_cli_be_member(cli);
    if (hd_cli_option(cli, "--part", 0) != NULL) {
        hd_cli_refuse(cli, "--part is of bench step; bench skew has no parts");
    } else {
        bench_skew_measure_all(bench);
    }
    free(bench);
    return cli->problem.exit_code;
}
