/* The parts `overlap` and `recording` of heddle bench step. */
#include "bench/cmd/cmd_bench.h"
#include "bench/step.h"

#include <stdio.h>
#include <stdlib.h>

enum { WORD_BYTES = 96, PAIRS_OF_ITERATION = 8 };

/* --- overlap --------------------------------------------------------------------------------- */

/* The line carries 1e6 bytes a second, so a transfer of so many microseconds has so many bytes. */
enum { LINE_MB = 1 };

#define TRANSFER_USUAL "0.5"
#define TICK_USUAL     "10000"

struct overlap_words {
    char steps[WORD_BYTES], kept[WORD_BYTES], schedule[WORD_BYTES + 256], inner[WORD_BYTES],
        line[WORD_BYTES], bytes[WORD_BYTES];
};

static void bench_overlap_show_overlap_json(const struct hd_cli_bench_part *part,
                                            const char *schedule,
                                            const struct hd_bench_schedule *row)
{
    const struct hd_run_overlap *overlap = &row->session.overlap;
    struct cJSON *object = hd_json_object(part->list, NULL);

    hd_json_text(object, "schedule", schedule);
    hd_json_u64(object, "ranks", row->rank_count);
    hd_json_u64(object, "stages", row->stage_count);
    hd_json_u64(object, "microbatches", row->microbatch_count);
    hd_cli_bench_json(object, "span_seconds", &row->session.span_seconds);
    hd_json_number(object, "plan_seconds", row->plan_seconds);
    hd_json_number(object, "ratio", row->ratio);
    hd_json_number(object, "efficiency_costed", overlap->efficiency_costed);
    hd_json_number(object, "efficiency_measured", overlap->efficiency_measured);
    hd_json_number(object, "hidden_as_costed", overlap->kept);
    hd_json_u64(object, "unknown", overlap->unknown_count);
}

static void bench_overlap_show_overlap(const struct hd_cli_bench_part *part, const char *schedule,
                                       const struct hd_bench_schedule *row)
{
    const struct hd_run_overlap *overlap = &row->session.overlap;
    struct hd_table *table = part->table;
    double moved = 0, planned = 0;

    if (part->list != NULL) {
        bench_overlap_show_overlap_json(part, schedule, row);
        return;
    }
    for (unsigned i = 0; i < HD_HANDOFF_CLASS_COUNT; i++) {
        moved += overlap->measured[i].transfer_seconds;
        planned += overlap->costed[i].transfer_seconds;
    }
    hd_table_cell(table, "%s", schedule);
    hd_table_cell(table, "%u", row->rank_count);
    hd_table_cell(table, "%u", row->stage_count);
    hd_table_cell(table, "%u", row->microbatch_count);
    hd_table_cell(table, "%.4f", row->session.span_seconds.median);
    hd_table_cell(table, "%.4f", row->session.span_seconds.min);
    hd_table_cell(table, "%.4f", row->plan_seconds);
    hd_table_cell(table, "%.4f", row->ratio);
    hd_table_cell(table, "%.4f", moved);
    hd_table_cell(table, "%.4f", planned);
    hd_table_cell(table, "%.3f", overlap->efficiency_measured);
    hd_table_cell(table, "%.3f", overlap->efficiency_costed);
    hd_table_cell(table, "%.3f", overlap->kept);
}

/* What does a transfer last?  One line, so one number. */
static hd_status bench_overlap_transfer_us(struct hd_cli_bench_part *part, double *us)
{
    const struct hd_config *asked = &part->asked;
    const double ticks = hd_cli_bench_is_asked(asked, "cost.transfer")
                             ? asked->cost.transfer.values[0]
                             : strtod(TRANSFER_USUAL, NULL);
    const double tick_us = hd_cli_bench_is_asked(asked, "cost.tick_us") ? asked->cost.tick_us
                                                                        : strtod(TICK_USUAL, NULL);

    *us = ticks * tick_us;
    if (asked->cost.transfer.count <= 1 && *us >= 8 && *us <= 1e9) {
        return HD_OK;
    }
    hd_problem_key(&part->cli->problem, "cost.transfer");
    hd_cli_refuse(part->cli, "part overlap needs one transfer time for all boundaries, of 8 us to "
                             "1000 s");
    return HD_INVALID;
}

static hd_status bench_overlap_measure_overlap(struct hd_cli_bench_part *part, const char *schedule)
{
    struct overlap_words text;
    const struct hd_cli_bench_words words = {
        .usual = {"pipeline.ranks=4", "pipeline.microbatches=8", "cost.tick_us=" TICK_USUAL,
                  "cost.transfer=" TRANSFER_USUAL},
        .forced = {text.schedule, text.steps, text.kept, text.inner, text.line, text.bytes,
                   "transport.name=hook_fault", HD_CLI_BENCH_FEW_STEPS, "output.trace=on",
                   "kernels.name=synthetic"},
    };
    struct hd_cli_bench_job bench;
    struct hd_bench_schedule row;
    double us = 0;

    hd_status status = bench_overlap_transfer_us(part, &us);
    if (status != HD_OK) {
        return status;
    }
    const char *inner =
        hd_cli_bench_is_asked(&part->asked, "transport.name") ? part->asked.transport.name : "shm";
    snprintf(text.schedule, sizeof text.schedule, "pipeline.schedule=%.256s", schedule);
    snprintf(text.steps, sizeof text.steps, "train.steps=%u", part->warmup + part->iterations);
    snprintf(text.kept, sizeof text.kept, "output.trace_steps=%u", part->iterations);
    snprintf(text.inner, sizeof text.inner, "transport.inner=%.60s", inner);
    snprintf(text.line, sizeof text.line, "transport.hook_fault.bandwidth_mb=%u",
             (unsigned)LINE_MB);
    snprintf(text.bytes, sizeof text.bytes, "kernel.synthetic.boundary_bytes=%.0f", us * LINE_MB);
    status = hd_cli_bench_open(part->cli, &words, &bench);
    if (status != HD_OK) {
        return status;
    }
    status = hd_bench_schedule(&bench.job, part->warmup, &row, &part->cli->problem);
    if (status == HD_OK) {
        bench_overlap_show_overlap(part, schedule, &row);
    }
    hd_cli_bench_close(&bench);
    return status;
}

hd_status hd_cli_bench_overlap(struct hd_cli_bench_part *part)
{
    static const char *const schedules[] = {"gpipe", "1f1b", "interleaved_1f1b", "interleaved_lean",
                                            "1f1b_v"};
    hd_status status = HD_OK;

    if (hd_cli_bench_is_asked(&part->asked, "pipeline.schedule")) {
        return bench_overlap_measure_overlap(part, part->asked.pipeline.schedule);
    }
    for (unsigned i = 0; status == HD_OK && i < sizeof schedules / sizeof schedules[0]; i++) {
        status = bench_overlap_measure_overlap(part, schedules[i]);
    }
    return status;
}

/* --- recording ------------------------------------------------------------------------------- */

static void bench_overlap_show_recording(const struct hd_cli_bench_part *part,
                                         const struct hd_job *job,
                                         const struct hd_bench_recording *row)
{
    struct hd_table *table = part->table;

    if (part->list != NULL) {
        struct cJSON *object = hd_json_object(part->list, NULL);
        hd_json_text(object, "kernel", job->config->kernels.name);
        hd_json_u64(object, "ranks", job->pipeline->rank_count);
        hd_json_u64(object, "actions", job->pipeline->action_count);
        hd_cli_bench_json(object, "with_seconds", &row->on);
        hd_cli_bench_json(object, "without_seconds", &row->off);
        hd_json_number(object, "ratio", row->ratio);
        return;
    }
    hd_table_cell(table, "%s", job->config->kernels.name);
    hd_table_cell(table, "%u", job->pipeline->rank_count);
    hd_table_cell(table, "%llu", (unsigned long long)job->pipeline->action_count);
    hd_table_cell(table, "%u", row->on.count);
    hd_table_cell(table, "%.4f", row->on.median * 1e3);
    hd_table_cell(table, "%.4f", row->on.min * 1e3);
    hd_table_cell(table, "%.4f", row->off.median * 1e3);
    hd_table_cell(table, "%.4f", row->off.min * 1e3);
    hd_table_cell(table, "%.4f", row->ratio);
}

static hd_status bench_overlap_measure_recording(struct hd_cli_bench_part *part,
                                                 const char *const usual[],
                                                 const char *const forced[])
{
    const uint32_t pairs = PAIRS_OF_ITERATION * part->iterations;
    char steps[WORD_BYTES];
    struct hd_cli_bench_words words = {
        .forced = {steps, HD_CLI_BENCH_FEW_STEPS, "output.trace=on", "output.trace_steps=3"}};
    struct hd_cli_bench_job bench;
    struct hd_bench_recording row;

    for (unsigned i = 0; usual[i] != NULL; i++) {
        words.usual[i] = usual[i];
    }
    for (unsigned i = 0; forced[i] != NULL; i++) {
        words.forced[4 + i] = forced[i];
    }
    const uint32_t warmup = 2 * ((part->warmup + 1) / 2);
    snprintf(steps, sizeof steps, "train.steps=%u", warmup + 2 * pairs);
    hd_status status = hd_cli_bench_open(part->cli, &words, &bench);
    if (status != HD_OK) {
        return status;
    }
    status = hd_bench_session_pairs(&bench.job, warmup, &row, &part->cli->problem);
    if (status == HD_OK) {
        bench_overlap_show_recording(part, &bench.job, &row);
    }
    hd_cli_bench_close(&bench);
    return status;
}

/* A model, and the worst there is: stages of no length, so that a step is the engine alone. */
hd_status hd_cli_bench_recording(struct hd_cli_bench_part *part)
{
    static const char *const model[] = {"pipeline.ranks=2", NULL};
    static const char *const none[] = {NULL};
    static const char *const engine_usual[] = {"pipeline.ranks=2", "pipeline.microbatches=256",
                                               NULL};
    static const char *const engine[] = {"kernels.name=synthetic",
                                         "kernel.synthetic.check=off",
                                         "kernel.synthetic.boundary_bytes=64",
                                         "model.sequence=1",
                                         "data.microbatch_size=1",
                                         "cost.forward=0",
                                         "cost.backward=0",
                                         "cost.input_gradient=0",
                                         "cost.weight_gradient=0",
                                         NULL};
    const hd_status status = bench_overlap_measure_recording(part, model, none);

    return status == HD_OK ? bench_overlap_measure_recording(part, engine_usual, engine) : status;
}
