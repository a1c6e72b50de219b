/* heddle bench plan - how long it takes to plan a job of many ranks. */
#include "bench/cmd/cmd_bench.h"
#include "bench/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITERATIONS_USUAL = 5 };

static const char *const bench_plan_usual_schedules[] = {"interleaved_1f1b", "1f1b_v"};

static void bench_plan_add_json(struct cJSON *list, const char *schedule,
                                const struct hd_bench_plan *row)
{
    struct cJSON *object = hd_json_object(list, NULL);

    hd_json_text(object, "schedule", schedule);
    hd_json_u64(object, "ranks", row->rank_count);
    hd_json_u64(object, "stages", row->stage_count);
    hd_json_u64(object, "microbatches", row->microbatch_count);
    hd_json_u64(object, "actions", row->action_count);
    hd_cli_bench_json(object, "seconds", &row->seconds);
    hd_cli_bench_json(object, "pipeline_seconds", &row->pipeline_seconds);
    hd_cli_bench_json(object, "hash_seconds", &row->hash_seconds);
    hd_cli_bench_json(object, "program_seconds", &row->program_seconds);
    hd_json_number(object, "nanoseconds_per_action", row->nanoseconds_per_action);
    hd_cli_bench_json(object, "peak_bytes", &row->peak_bytes);
    hd_cli_bench_json(object, "yardstick_seconds", &row->pass_seconds);
    hd_json_number(object, "ratio", row->ratio);
}

static void bench_plan_add_cells(struct hd_table *table, const char *schedule,
                                 const struct hd_bench_plan *row)
{
    hd_table_cell(table, "%s", schedule);
    hd_table_cell(table, "%u", row->rank_count);
    hd_table_cell(table, "%u", row->stage_count);
    hd_table_cell(table, "%u", row->microbatch_count);
    hd_table_cell(table, "%llu", (unsigned long long)row->action_count);
    hd_table_cell(table, "%.4f", row->seconds.median);
    hd_table_cell(table, "%.4f", row->seconds.min);
    hd_table_cell(table, "%.4f", row->seconds.p90);
    hd_table_cell(table, "%.4f", row->pipeline_seconds.median);
    hd_table_cell(table, "%.4f", row->hash_seconds.median);
    hd_table_cell(table, "%.4f", row->program_seconds.median);
    hd_table_cell(table, "%.1f", row->nanoseconds_per_action);
    hd_table_cell(table, "%.1f", row->peak_bytes.median * 1e-6);
    hd_table_cell(table, "%.4f", row->pass_seconds.median);
    hd_table_cell(table, "%.1f", row->ratio);
}

/* One schedule: a row of the table, or an object of the list. */
static hd_status bench_plan_measure(struct hd_cli *cli, const struct hd_cli_bench_words *words,
                                    struct hd_table *table, struct cJSON *list)
{
    struct hd_config config;
    struct hd_plugins plugins;
    struct hd_bench_plan row;

    hd_status status = hd_cli_bench_config(cli, words, &config);
    if (status != HD_OK) {
        return status;
    }
    status = hd_cli_take_schedule(cli, &config, &plugins);
    if (status == HD_OK) {
        const uint32_t asked =
            config.bench.iterations > 0 ? config.bench.iterations : (uint32_t)ITERATIONS_USUAL;
        const uint32_t iterations =
            asked < HD_BENCH_ITERATIONS_MAX ? asked : HD_BENCH_ITERATIONS_MAX;
        status = hd_bench_plan(&config, &plugins, iterations, &row, &cli->problem);
    }
    if (status == HD_OK && cli->is_json) {
        bench_plan_add_json(list, config.pipeline.schedule, &row);
    } else if (status == HD_OK) {
        bench_plan_add_cells(table, config.pipeline.schedule, &row);
    }
    hd_plugins_finish(&plugins);
    hd_config_finish(&config);
    return status;
}

static hd_status bench_plan_measure_all(struct hd_cli *cli, struct hd_table *table,
                                        struct cJSON *list)
{
    struct hd_cli_bench_words words = {
        .usual = {"pipeline.ranks=256", "pipeline.stages_per_rank=2", "pipeline.microbatches=2048"},
    };
    struct hd_config asked;
    char text[128];

    hd_status status = hd_cli_config(cli, &asked);
    if (status != HD_OK) {
        return status;
    }
    const int is_asked = hd_cli_bench_is_asked(&asked, "pipeline.schedule");
    if (hd_config_is_csv(&asked)) {
        words.usual[0] = NULL; /* the file says all of it */
    }
    hd_config_finish(&asked);
    if (is_asked) {
        return bench_plan_measure(cli, &words, table, list);
    }
    words.usual[3] = text;
    for (unsigned i = 0; status == HD_OK && i < 2; i++) {
        snprintf(text, sizeof text, "pipeline.schedule=%s", bench_plan_usual_schedules[i]);
        status = bench_plan_measure(cli, &words, table, list);
    }
    return status;
}

int hd_cli_bench_plan(struct hd_cli *cli)
{
    static const char *const titles[] = {
        "schedule", "ranks", "stages",  "microbatches", "actions", "seconds", "min",  "p90",
        "plan",     "hash",  "program", "ns/action",    "peak MB", "pass",    "ratio"};

    if (hd_cli_option(cli, "--part", 0) != NULL) {
        return hd_cli_refuse(cli, "--part is of bench step; bench plan has no parts");
    }
    if (hd_cli_bench_no_figure(cli) != HD_OK) {
        return cli->problem.exit_code;
    }
    struct hd_table *table = hd_table_create(sizeof titles / sizeof titles[0], titles);
    struct cJSON *list = cli->is_json ? hd_json_array(cli->json, "plans") : NULL;
    if (bench_plan_measure_all(cli, table, list) == HD_OK && !cli->is_json) {
        hd_table_print(table, 0, stdout);
        printf("seconds: median of all that one rank needs: plan (schedule, laws, timeline, "
               "slots), hash, program of rank 0\n"
               "pass: the yardstick, as many 16-byte actions written to fresh memory and read "
               "again; ratio: seconds over it\n");
    }
    hd_table_destroy(table);
    return cli->problem.exit_code;
}
