/* heddle bench plan - the time to plan a job of many ranks. */
#include "bench/cmd/cmd_bench_commands.h"
#include "bench/cmd/cmd_bench_job.h"
#include "bench/cmd/cmd_bench_output.h"
#include "bench/plan.h"

#include <stdio.h>

enum { ITERATIONS_USUAL = 5 };

static const char *const bench_plan_usual_schedules[] = {"interleaved_1f1b", "1f1b_v"};

static void bench_plan_show(const struct hd_bench_row *out, const char *schedule,
                            const struct hd_bench_plan *row)
{
    hd_bench_put_text(out, "schedule", schedule);
    hd_bench_put_count(out, "ranks", row->rank_count);
    hd_bench_put_count(out, "stages", row->stage_count);
    hd_bench_put_count(out, "microbatches", row->microbatch_count);
    hd_bench_put_count(out, "actions", row->action_count);
    hd_bench_put_spread(out, "seconds", "%.4f", &row->seconds);
    hd_bench_put_median(out, "pipeline_seconds", "%.4f", 1, &row->pipeline_seconds);
    hd_bench_put_median(out, "hash_seconds", "%.4f", 1, &row->hash_seconds);
    hd_bench_put_median(out, "program_seconds", "%.4f", 1, &row->program_seconds);
    hd_bench_put_number(out, "nanoseconds_per_action", "%.1f", row->nanoseconds_per_action);
    hd_bench_put_median(out, "peak_bytes", "%.1f", 1e-6, &row->peak_bytes);
    hd_bench_put_median(out, "yardstick_seconds", "%.4f", 1, &row->pass_seconds);
    hd_bench_put_number(out, "ratio", "%.1f", row->ratio);
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
    if (status == HD_OK) {
        const struct hd_bench_row out = {table, table == NULL ? hd_json_object(list, NULL) : NULL};
        bench_plan_show(&out, config.pipeline.schedule, &row);
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
    const bool is_asked = hd_cli_bench_is_asked(&asked, "pipeline.schedule");
    if (hd_config_is_csv(&asked)) {
        words.usual[0] = NULL; /* the file has the whole plan */
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

    if (hd_cli_bench_refuse_option(cli, "--part", "step") != HD_OK ||
        hd_cli_bench_refuse_option(cli, "--svg", "skew") != HD_OK) {
        return cli->problem.exit_code;
    }
    struct hd_table *table =
        cli->is_json ? NULL : hd_table_create(sizeof titles / sizeof titles[0], titles);
    struct cJSON *list = cli->is_json ? hd_json_array(cli->json, "plans") : NULL;
    if (bench_plan_measure_all(cli, table, list) == HD_OK && table != NULL) {
        hd_table_print(table, 0, stdout);
        printf("seconds: all that one rank plans before its first step: plan (schedule, laws, "
               "timeline, slots), hash, program of rank 0\n"
               "pass: the yardstick, as many 16-byte actions written to fresh memory and read "
               "again; ratio: seconds over pass\n");
    }
    hd_table_destroy(table);
    return cli->problem.exit_code;
}
