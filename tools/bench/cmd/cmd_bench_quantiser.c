/*
 * bench/cmd/cmd_bench_quantiser.c - the part `quantiser` of `heddle bench step`.
 *
 * It measures the quantiser beside a copy of the same bytes, and a step in MXFP8 beside one in
 * BF16.
 * The step in BF16 is measured before and after the one in MXFP8, and the faster one counts,
 * so that other load on the machine does not flatter MXFP8.
 */
#include "bench/cmd/cmd_bench.h"
#include "base/try.h"
#include "bench/step.h"

#include <stdio.h>
#include <string.h>

enum { WORD_BYTES = 64 };

struct steps {
    const char *missing; /* why there is no rate; NULL: there is one */
    uint32_t rank_count;
    struct hd_bench_session bf16, mxfp8;
    double ratio; /* of the medians */
};

static hd_status bench_quantiser_measure(const struct hd_bench_part *part, const char *precision,
                                         struct hd_bench_session *session)
{
    char word[WORD_BYTES];
    const struct hd_cli_bench_words words = {.usual = {HD_CLI_BENCH_MODEL, "pipeline.ranks=1"},
                                             .forced = {word, part->steps, HD_CLI_BENCH_FEW_STEPS}};
    struct hd_cli_bench_job bench;

    snprintf(word, sizeof word, "kernels.precision=%s", precision);
    HD_TRY(hd_cli_bench_open(part->cli, &words, &bench));
    const hd_status status =
        hd_bench_session_run(&bench.job, part->warmup, session, &part->cli->problem);
    hd_cli_bench_close(&bench);
    return status;
}

static hd_status bench_quantiser_measure_steps(const struct hd_bench_part *part,
                                               struct steps *steps)
{
    const bool is_asked = hd_cli_bench_is_asked(&part->asked, "pipeline.ranks");
    struct hd_bench_session after;

    steps->rank_count = is_asked ? part->asked.pipeline.ranks : 1;
    HD_TRY(bench_quantiser_measure(part, "bf16", &steps->bf16));
    HD_TRY(bench_quantiser_measure(part, "mxfp8", &steps->mxfp8));
    HD_TRY(bench_quantiser_measure(part, "bf16", &after));
    if (after.step_seconds.median < steps->bf16.step_seconds.median) {
        steps->bf16 = after;
    }
    steps->ratio =
        hd_bench_ratio(steps->mxfp8.step_seconds.median, steps->bf16.step_seconds.median);
    return HD_OK;
}

#define HD_BENCH_ROW struct steps
static const struct hd_bench_field bench_quantiser_step_fields[] = {
    HD_BENCH_FIELD("ranks", NULL, NULL, COUNT, rank_count),
    HD_BENCH_FIELD("device", NULL, NULL, CHARS, mxfp8.device),
    HD_BENCH_FIELD("bf16_step_seconds", NULL, NULL, SPREAD, bf16.step_seconds),
    HD_BENCH_FIELD("mxfp8_step_seconds", NULL, NULL, SPREAD, mxfp8.step_seconds),
    HD_BENCH_FIELD("step_ratio", NULL, NULL, NUMBER, ratio),
    HD_BENCH_FIELD("missing", NULL, NULL, TEXT, missing),
    {0}};
#undef HD_BENCH_ROW

struct shown {
    struct hd_quantiser_row row;
    double copy_gbytes;
};

#define HD_BENCH_ROW struct shown
const struct hd_bench_field hd_bench_quantiser_fields[] = {
    HD_BENCH_FIELD("operation", "quantise", NULL, CHARS, row.operation),
    HD_BENCH_FIELD("lane", "isa", NULL, CHARS, row.isa),
    HD_BENCH_FIELD("source_kib", "KiB", NULL, COUNT, row.source_kib),
    HD_BENCH_FIELD("samples", NULL, NULL, COUNT, row.sample_count),
    HD_BENCH_FIELD("gelements", "Gelem/s", "%.2f", NUMBER, row.gelements),
    HD_BENCH_FIELD("gbytes", "GB/s", "%.2f", NUMBER, row.gbytes),
    HD_BENCH_FIELD(NULL, "copy GB/s", "%.2f", NUMBER, copy_gbytes),
    HD_BENCH_FIELD("ratio", "ratio", "%.3f", NUMBER, row.ratio),
    {0}};

/* The copy is a row in JSON and a column of text. */
static void bench_quantiser_show_rates(const struct hd_bench_sheet *sheet,
                                       const struct hd_quantiser_rate *rate)
{
    struct shown shown = {.copy_gbytes = 0};

    for (uint32_t i = 0; i < rate->row_count; i++) {
        const bool is_copy = strcmp(rate->rows[i].operation, "copy") == 0;
        shown.row = rate->rows[i];
        shown.copy_gbytes = is_copy ? shown.row.gbytes : shown.copy_gbytes;
        if (!is_copy || sheet->list != NULL) {
            hd_bench_show(sheet, &shown);
        }
    }
}

static void bench_quantiser_print_steps(const struct steps *steps)
{
    const struct hd_bench_spread *const bf16 = &steps->bf16.step_seconds;
    const struct hd_bench_spread *const mxfp8 = &steps->mxfp8.step_seconds;

    printf("step, ranks %u, median and min: bf16 %.3f %.3f s, mxfp8 %.3f %.3f s (%s): ratio %.3f\n",
           steps->rank_count, bf16->median, bf16->min, mxfp8->median, mxfp8->min,
           steps->mxfp8.device, steps->ratio);
    if (steps->missing != NULL) {
        printf("no rate: %s\n", steps->missing);
    }
}

hd_status hd_bench_part_quantiser(struct hd_bench_part *part)
{
    struct hd_bench_sheet rates = part->sheet;
    struct hd_quantiser_rate rate;
    struct steps steps;

    HD_TRY(hd_quantiser_rate(part->seconds, &rate, &part->cli->problem));
    HD_TRY(bench_quantiser_measure_steps(part, &steps));
    steps.missing = rate.row_count > 0 ? NULL : rate.missing;
    if (part->sheet.list != NULL) {
        const struct hd_bench_sheet sheet = {.fields = bench_quantiser_step_fields,
                                             .list = part->sheet.list};
        rates.list = hd_json_array(hd_bench_show(&sheet, &steps), "rates");
    } else {
        bench_quantiser_print_steps(&steps);
    }
    bench_quantiser_show_rates(&rates, &rate);
    return HD_OK;
}
