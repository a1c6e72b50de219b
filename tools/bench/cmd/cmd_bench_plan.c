/* heddle bench plan - the time to plan a job of many ranks. */
#include "bench/cmd/cmd_bench.h"
#include "base/number.h"
#include "base/try.h"
#include "bench/plan.h"

#include <stdio.h>

enum { ITERATIONS_USUAL = 5 };

static const char *const bench_plan_usual_schedules[] = {"interleaved_1f1b", "1f1b_v"};

#define HD_BENCH_ROW struct hd_bench_plan
static const struct hd_bench_field bench_plan_fields[] = {
    HD_BENCH_FIELD("schedule", "schedule", NULL, TEXT, schedule),
    HD_BENCH_FIELD("ranks", "ranks", NULL, COUNT, rank_count),
    HD_BENCH_FIELD("stages", "stages", NULL, COUNT, stage_count),
    HD_BENCH_FIELD("microbatches", "microbatches", NULL, COUNT, microbatch_count),
    HD_BENCH_FIELD("actions", "actions", NULL, BIG, action_count),
    HD_BENCH_FIELD("seconds", "seconds", "%.4f", SPREAD, seconds),
    HD_BENCH_FIELD("pipeline_seconds", "plan", "%.4f", MEDIAN, pipeline_seconds),
    HD_BENCH_FIELD("hash_seconds", "hash", "%.4f", MEDIAN, hash_seconds),
    HD_BENCH_FIELD("program_seconds", "program", "%.4f", MEDIAN, program_seconds),
    HD_BENCH_FIELD("nanoseconds_per_action", "ns/action", "%.1f", NUMBER, nanoseconds_per_action),
    HD_BENCH_FIELD_IF(0, 1e-6, "peak_bytes", "peak MB", "%.1f", MEDIAN, peak_bytes),
    HD_BENCH_FIELD("yardstick_seconds", "pass", "%.4f", MEDIAN, pass_seconds),
    HD_BENCH_FIELD("ratio", "ratio", "%.1f", NUMBER, ratio),
    {0}};

/* One schedule. */
static hd_status bench_plan_measure(struct hd_cli *cli, const struct hd_cli_bench_words *words,
                                    const struct hd_bench_sheet *sheet)
{
    struct hd_config config;
    struct hd_plugins plugins;
    struct hd_bench_plan row;

    HD_TRY(hd_cli_bench_config(cli, words, &config));
    hd_status status = hd_cli_take_schedule(cli, &config, &plugins);
    if (status == HD_OK) {
        const uint32_t asked = config.bench.iterations;
        const uint32_t iterations =
            asked > 0 ? hd_min_u32(asked, HD_BENCH_ITERATIONS_MAX) : ITERATIONS_USUAL;
        status = hd_bench_plan(&config, &plugins, iterations, &row, &cli->problem);
    }
    if (status == HD_OK) {
        hd_bench_show(sheet, &row);
    }
    hd_plugins_finish(&plugins);
    hd_config_finish(&config);
    return status;
}

static hd_status bench_plan_measure_all(struct hd_cli *cli, const struct hd_bench_sheet *sheet)
{
    struct hd_cli_bench_words words = {
        .usual = {"pipeline.ranks=256", "pipeline.stages_per_rank=2", "pipeline.microbatches=2048"},
    };
    struct hd_config asked;
    char text[128];

    HD_TRY(hd_cli_config(cli, &asked));
    const bool is_asked = hd_cli_bench_is_asked(&asked, "pipeline.schedule");
    if (hd_config_is_csv(&asked)) {
        words.usual[0] = NULL; /* the file has the whole plan */
    }
    hd_config_finish(&asked);
    if (is_asked) {
        return bench_plan_measure(cli, &words, sheet);
    }
    words.usual[3] = text;
    for (unsigned i = 0; i < 2; i++) {
        snprintf(text, sizeof text, "pipeline.schedule=%s", bench_plan_usual_schedules[i]);
        HD_TRY(bench_plan_measure(cli, &words, sheet));
    }
    return HD_OK;
}

int hd_cli_bench_plan(struct hd_cli *cli)
{
    struct hd_bench_sheet sheet = {.fields = bench_plan_fields};

    hd_bench_sheet_begin(&sheet, cli, "plans");
    const hd_status status = bench_plan_measure_all(cli, &sheet);
    hd_bench_sheet_end(&sheet, status);
    if (status == HD_OK && !cli->is_json) {
        printf("seconds: all that one rank plans before its first step: plan (schedule, laws, "
               "timeline, slots), hash, program of rank 0\n"
               "pass: the yardstick, as many 16-byte actions written to fresh memory and read "
               "again; ratio: seconds over pass\n");
    }
    return cli->problem.exit_code;
}
