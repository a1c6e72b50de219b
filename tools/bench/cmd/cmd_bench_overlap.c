/* The parts `overlap` and `recording` of heddle bench step. */
#include "bench/cmd/cmd_bench_part.h"
#include "base/try.h"
#include "bench/step.h"

#include <stdio.h>
#include <stdlib.h>

enum { WORD_BYTES = 96, PAIRS_OF_ITERATION = 8 };

/* --- overlap --------------------------------------------------------------------------------- */

/* hook_fault carries 1e6 bytes per second, so a transfer has as many bytes as microseconds. */
enum { BANDWIDTH_MB = 1 };

#define TRANSFER_USUAL "0.5"
#define TICK_USUAL     "10000"

struct overlap_words {
    char kept[WORD_BYTES], schedule[WORD_BYTES + 256], inner[WORD_BYTES], bandwidth[WORD_BYTES],
        bytes[WORD_BYTES];
};

static void bench_overlap_show_overlap(const struct hd_bench_part *part, const char *schedule,
                                       const struct hd_bench_schedule *row)
{
    const struct hd_bench_row out = hd_bench_part_row(part);
    const struct hd_run_overlap *overlap = &row->session.overlap;
    double moved = 0, planned = 0;

    for (unsigned i = 0; i < HD_HANDOFF_CLASS_COUNT; i++) {
        moved += overlap->measured[i].transfer_seconds;
        planned += overlap->costed[i].transfer_seconds;
    }
    hd_bench_put_text(&out, "schedule", schedule);
    hd_bench_put_count(&out, "ranks", row->rank_count);
    hd_bench_put_count(&out, "stages", row->stage_count);
    hd_bench_put_count(&out, "microbatches", row->microbatch_count);
    hd_bench_put_median(&out, "span_seconds", "%.4f", 1, &row->session.span_seconds);
    hd_bench_put_number(&out, NULL, "%.4f", row->session.span_seconds.min);
    hd_bench_put_number(&out, "plan_seconds", "%.4f", row->plan_seconds);
    hd_bench_put_number(&out, "ratio", "%.4f", row->ratio);
    hd_bench_put_number(&out, NULL, "%.4f", moved);
    hd_bench_put_number(&out, NULL, "%.4f", planned);
    hd_bench_put_number(&out, "efficiency_measured", "%.3f", overlap->efficiency_measured);
    hd_bench_put_number(&out, "efficiency_costed", "%.3f", overlap->efficiency_costed);
    hd_bench_put_number(&out, "hidden_as_costed", "%.3f", overlap->kept);
    if (out.table == NULL) {
        hd_json_u64(out.object, "unknown", overlap->unknown_count);
    }
}

/* The duration of a transfer, which is the same on all boundaries. */
static hd_status bench_overlap_transfer_us(struct hd_bench_part *part, double *us)
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
    hd_cli_refuse(part->cli,
                  "part overlap needs one transfer time for all boundaries, from 8 us to "
                  "1000 s");
    return HD_INVALID;
}

static hd_status bench_overlap_measure_overlap(struct hd_bench_part *part, const char *schedule)
{
    struct overlap_words text;
    const struct hd_cli_bench_words words = {
        .usual = {"pipeline.ranks=4", "pipeline.microbatches=8", "cost.tick_us=" TICK_USUAL,
                  "cost.transfer=" TRANSFER_USUAL},
        .forced = {text.schedule, part->steps, text.kept, text.inner, text.bandwidth, text.bytes,
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
    snprintf(text.kept, sizeof text.kept, "output.trace_steps=%u", part->iterations);
    snprintf(text.inner, sizeof text.inner, "transport.inner=%.60s", inner);
    snprintf(text.bandwidth, sizeof text.bandwidth, "transport.hook_fault.bandwidth_mb=%u",
             (unsigned)BANDWIDTH_MB);
    snprintf(text.bytes, sizeof text.bytes, "kernel.synthetic.boundary_bytes=%.0f",
             us * BANDWIDTH_MB);
    HD_TRY(hd_cli_bench_open(part->cli, &words, &bench));
    status = hd_bench_schedule(&bench.job, part->warmup, &row, &part->cli->problem);
    if (status == HD_OK) {
        bench_overlap_show_overlap(part, schedule, &row);
    }
    hd_cli_bench_close(&bench);
    return status;
}

hd_status hd_bench_part_overlap(struct hd_bench_part *part)
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

static void bench_overlap_show_recording(const struct hd_bench_part *part, const struct hd_job *job,
                                         const struct hd_bench_recording *row)
{
    const struct hd_bench_row out = hd_bench_part_row(part);

    hd_bench_put_text(&out, "kernel", job->config->kernels.name);
    hd_bench_put_count(&out, "ranks", job->pipeline->rank_count);
    hd_bench_put_count(&out, "actions", job->pipeline->action_count);
    if (out.table != NULL) {
        hd_table_cell(out.table, "%u", row->on.count);
    }
    hd_bench_put_median(&out, "with_seconds", "%.4f", 1e3, &row->on);
    hd_bench_put_number(&out, NULL, "%.4f", row->on.min * 1e3);
    hd_bench_put_median(&out, "without_seconds", "%.4f", 1e3, &row->off);
    hd_bench_put_number(&out, NULL, "%.4f", row->off.min * 1e3);
    hd_bench_put_number(&out, "ratio", "%.4f", row->ratio);
}

static hd_status bench_overlap_measure_recording(struct hd_bench_part *part,
                                                 const struct hd_cli_bench_words *words)
{
    struct hd_cli_bench_job bench;
    struct hd_bench_recording row;

    hd_status status = hd_cli_bench_open(part->cli, words, &bench);
    if (status != HD_OK) {
        return status;
    }
    const uint32_t warmup =
        bench.config.train.steps - 2 * (uint32_t)PAIRS_OF_ITERATION * part->iterations;
    status = hd_bench_session_pairs(&bench.job, warmup, &row, &part->cli->problem);
    if (status == HD_OK) {
        bench_overlap_show_recording(part, &bench.job, &row);
    }
    hd_cli_bench_close(&bench);
    return status;
}

/* A model, and the worst case: stages that take no time, so that a step is the engine alone. */
hd_status hd_bench_part_recording(struct hd_bench_part *part)
{
    char steps[WORD_BYTES];
    const struct hd_cli_bench_words model = {
        .usual = {"pipeline.ranks=2"},
        .forced = {steps, HD_CLI_BENCH_FEW_STEPS, "output.trace=on", "output.trace_steps=3"}};
    const struct hd_cli_bench_words engine = {
        .usual = {"pipeline.ranks=2", "pipeline.microbatches=256"},
        .forced = {steps, HD_CLI_BENCH_FEW_STEPS, "output.trace=on", "output.trace_steps=3",
                   HD_CLI_BENCH_NO_COMPUTE}};

    /* An even number of steps to warm up: recording is on in every second step. */
    snprintf(steps, sizeof steps, "train.steps=%u",
             2 * ((part->warmup + 1) / 2 + PAIRS_OF_ITERATION * part->iterations));
    const hd_status status = bench_overlap_measure_recording(part, &model);
    return status == HD_OK ? bench_overlap_measure_recording(part, &engine) : status;
}
