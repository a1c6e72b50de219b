/* The parts `overlap` and `recording` of heddle bench step. */
#include "bench/cmd/cmd_bench.h"
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

struct overlap {
    struct hd_bench_schedule row;
    double moved, planned;
};

#define HD_BENCH_ROW struct overlap
const struct hd_bench_field hd_bench_overlap_fields[] = {
    HD_BENCH_FIELD("schedule", "schedule", NULL, TEXT, row.schedule),
    HD_BENCH_FIELD("ranks", "ranks", NULL, COUNT, row.rank_count),
    HD_BENCH_FIELD("stages", "stages", NULL, COUNT, row.stage_count),
    HD_BENCH_FIELD("microbatches", "microbatches", NULL, COUNT, row.microbatch_count),
    HD_BENCH_FIELD("span_seconds", "seconds", "%.4f", MEDIAN, row.session.span_seconds),
    HD_BENCH_FIELD(NULL, "min", "%.4f", NUMBER, row.session.span_seconds.min),
    HD_BENCH_FIELD("plan_seconds", "plan", "%.4f", NUMBER, row.plan_seconds),
    HD_BENCH_FIELD("ratio", "ratio", "%.4f", NUMBER, row.ratio),
    HD_BENCH_FIELD(NULL, "moved", "%.4f", NUMBER, moved),
    HD_BENCH_FIELD(NULL, "planned", "%.4f", NUMBER, planned),
    HD_BENCH_FIELD("efficiency_measured", "hidden", "%.3f", NUMBER,
                   row.session.overlap.efficiency_measured),
    HD_BENCH_FIELD("efficiency_costed", "of plan", "%.3f", NUMBER,
                   row.session.overlap.efficiency_costed),
    HD_BENCH_FIELD("hidden_as_costed", "kept", "%.3f", NUMBER, row.session.overlap.kept),
    HD_BENCH_FIELD("unknown", NULL, NULL, BIG, row.session.overlap.unknown_count),
    {0}};
#undef HD_BENCH_ROW

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

static hd_status bench_overlap_measure(struct hd_bench_part *part, struct hd_cli_bench_job *bench)
{
    struct overlap shown = {.moved = 0};
    const struct hd_run_overlap *overlap = &shown.row.session.overlap;

    HD_TRY(hd_bench_schedule(&bench->job, part->warmup, &shown.row, &part->cli->problem));
    for (unsigned i = 0; i < HD_HANDOFF_CLASS_COUNT; i++) {
        shown.moved += overlap->measured[i].transfer_seconds;
        shown.planned += overlap->costed[i].transfer_seconds;
    }
    hd_bench_show(&part->sheet, &shown);
    return HD_OK;
}

static hd_status bench_overlap_run(struct hd_bench_part *part, const char *schedule)
{
    struct overlap_words text;
    const struct hd_cli_bench_words words = {
        .usual = {"pipeline.ranks=4", "pipeline.microbatches=8", "cost.tick_us=" TICK_USUAL,
                  "cost.transfer=" TRANSFER_USUAL},
        .forced = {text.schedule, part->steps, text.kept, text.inner, text.bandwidth, text.bytes,
                   "transport.name=hook_fault", HD_CLI_BENCH_FEW_STEPS, "output.trace=on",
                   "kernels.name=synthetic"},
    };
    double us = 0;

    HD_TRY(bench_overlap_transfer_us(part, &us));
    const char *inner =
        hd_cli_bench_is_asked(&part->asked, "transport.name") ? part->asked.transport.name : "shm";
    snprintf(text.schedule, sizeof text.schedule, "pipeline.schedule=%.256s", schedule);
    snprintf(text.kept, sizeof text.kept, "output.trace_steps=%u", part->iterations);
    snprintf(text.inner, sizeof text.inner, "transport.inner=%.60s", inner);
    snprintf(text.bandwidth, sizeof text.bandwidth, "transport.hook_fault.bandwidth_mb=%u",
             (unsigned)BANDWIDTH_MB);
    snprintf(text.bytes, sizeof text.bytes, "kernel.synthetic.boundary_bytes=%.0f",
             us * BANDWIDTH_MB);
    return hd_bench_part_measure(part, &words, bench_overlap_measure);
}

hd_status hd_bench_part_overlap(struct hd_bench_part *part)
{
    static const char *const schedules[] = {"gpipe", "1f1b", "interleaved_1f1b", "interleaved_lean",
                                            "1f1b_v"};

    if (hd_cli_bench_is_asked(&part->asked, "pipeline.schedule")) {
        return bench_overlap_run(part, part->asked.pipeline.schedule);
    }
    for (unsigned i = 0; i < sizeof schedules / sizeof schedules[0]; i++) {
        HD_TRY(bench_overlap_run(part, schedules[i]));
    }
    return HD_OK;
}

/* --- recording ------------------------------------------------------------------------------- */

#define HD_BENCH_ROW struct hd_bench_recording
const struct hd_bench_field hd_bench_recording_fields[] = {
    HD_BENCH_FIELD("kernel", "kernel", NULL, TEXT, kernel),
    HD_BENCH_FIELD("ranks", "ranks", NULL, COUNT, rank_count),
    HD_BENCH_FIELD("actions", "actions", NULL, BIG, action_count),
    HD_BENCH_FIELD(NULL, "pairs", NULL, COUNT, on.count),
    HD_BENCH_FIELD_IF(0, 1e3, "with_seconds", "with", "%.4f", MEDIAN, on),
    HD_BENCH_FIELD_IF(0, 1e3, NULL, "min", "%.4f", NUMBER, on.min),
    HD_BENCH_FIELD_IF(0, 1e3, "without_seconds", "without", "%.4f", MEDIAN, off),
    HD_BENCH_FIELD_IF(0, 1e3, NULL, "min", "%.4f", NUMBER, off.min),
    HD_BENCH_FIELD("ratio", "ratio", "%.4f", NUMBER, ratio),
    {0}};

static hd_status bench_overlap_measure_recording(struct hd_bench_part *part,
                                                 struct hd_cli_bench_job *bench)
{
    const uint32_t warmup =
        bench->config.train.steps - 2 * (uint32_t)PAIRS_OF_ITERATION * part->iterations;
    struct hd_bench_recording row;

    HD_TRY(hd_bench_session_pairs(&bench->job, warmup, &row, &part->cli->problem));
    hd_bench_show(&part->sheet, &row);
    return HD_OK;
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
    HD_TRY(hd_bench_part_measure(part, &model, bench_overlap_measure_recording));
    return hd_bench_part_measure(part, &engine, bench_overlap_measure_recording);
}
