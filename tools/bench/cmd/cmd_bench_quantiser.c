/*
 * bench/cmd/cmd_bench_quantiser.c - the part `quantiser` of `heddle bench step`.
 *
 * It measures the quantiser beside a copy of the same bytes, and a step in MXFP8 beside one in
 * BF16.
 * The step in BF16 is measured before and after the one in MXFP8, and the faster one counts,
 * so that other load on the machine does not flatter MXFP8.
 */
#include "bench/cmd/cmd_bench_part.h"
#include "bench/step.h"

#include <stdio.h>
#include <string.h>

enum { WORD_BYTES = 64 };

struct steps {
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
    struct hd_cli *const cli = part->cli;
    struct hd_cli_bench_job bench;

    snprintf(word, sizeof word, "kernels.precision=%s", precision);
    hd_status status = hd_cli_bench_open(cli, &words, &bench);
    if (status == HD_OK) {
        status = hd_bench_session_run(&bench.job, part->warmup, session, &cli->problem);
        hd_cli_bench_close(&bench);
    }
    return status;
}

static hd_status bench_quantiser_measure_steps(const struct hd_bench_part *part,
                                               struct steps *steps)
{
    const bool is_asked = hd_cli_bench_is_asked(&part->asked, "pipeline.ranks");
    struct hd_bench_session after;

    steps->rank_count = is_asked ? part->asked.pipeline.ranks : 1;
    hd_status status = bench_quantiser_measure(part, "bf16", &steps->bf16);
    if (status == HD_OK) {
        status = bench_quantiser_measure(part, "mxfp8", &steps->mxfp8);
    }
    if (status == HD_OK) {
        status = bench_quantiser_measure(part, "bf16", &after);
    }
    if (status != HD_OK) {
        return status;
    }
    if (after.step_seconds.median < steps->bf16.step_seconds.median) {
        steps->bf16 = after;
    }
    steps->ratio =
        hd_bench_ratio(steps->mxfp8.step_seconds.median, steps->bf16.step_seconds.median);
    return HD_OK;
}

static void bench_quantiser_show_json(const struct hd_bench_part *part, const struct steps *steps,
                                      const struct hd_quantiser_rate *rate)
{
    struct cJSON *const object = hd_json_object(part->list, NULL);
    const struct hd_bench_row out = {NULL, object};

    hd_json_u64(object, "ranks", steps->rank_count);
    hd_json_text(object, "device", steps->mxfp8.device);
    hd_bench_put_spread(&out, "bf16_step_seconds", NULL, &steps->bf16.step_seconds);
    hd_bench_put_spread(&out, "mxfp8_step_seconds", NULL, &steps->mxfp8.step_seconds);
    hd_json_number(object, "step_ratio", steps->ratio);
    hd_json_text(object, "missing", rate->row_count > 0 ? NULL : rate->missing);
    struct cJSON *const list = hd_json_array(object, "rates");
    for (uint32_t i = 0; i < rate->row_count; i++) {
        const struct hd_quantiser_row *const row = &rate->rows[i];
        struct cJSON *const item = hd_json_object(list, NULL);
        hd_json_text(item, "operation", row->operation);
        hd_json_text(item, "lane", row->isa);
        hd_json_u64(item, "source_kib", row->source_kib);
        hd_json_u64(item, "samples", row->sample_count);
        hd_json_number(item, "gelements", row->gelements);
        hd_json_number(item, "gbytes", row->gbytes);
        hd_json_number(item, "ratio", row->ratio);
    }
}

static void bench_quantiser_show_text(const struct hd_bench_part *part, const struct steps *steps,
                                      const struct hd_quantiser_rate *rate)
{
    const struct hd_bench_spread *const bf16 = &steps->bf16.step_seconds;
    const struct hd_bench_spread *const mxfp8 = &steps->mxfp8.step_seconds;

    printf("step, ranks %u, median and min: bf16 %.3f %.3f s, mxfp8 %.3f %.3f s (%s): ratio %.3f\n",
           steps->rank_count, bf16->median, bf16->min, mxfp8->median, mxfp8->min,
           steps->mxfp8.device, steps->ratio);
    if (rate->row_count == 0) {
        printf("no rate: %s\n", rate->missing);
    }
    double copy_gbytes = 0;
    for (uint32_t i = 0; i < rate->row_count; i++) {
        const struct hd_quantiser_row *const row = &rate->rows[i];
        if (strcmp(row->operation, "copy") == 0) {
            copy_gbytes = row->gbytes;
            continue;
        }
        hd_table_cell(part->table, "%s", row->operation);
        hd_table_cell(part->table, "%s", row->isa);
        hd_table_cell(part->table, "%u", row->source_kib);
        hd_table_cell(part->table, "%.2f", row->gelements);
        hd_table_cell(part->table, "%.2f", row->gbytes);
        hd_table_cell(part->table, "%.2f", copy_gbytes);
        hd_table_cell(part->table, "%.3f", row->ratio);
    }
}

hd_status hd_bench_part_quantiser(struct hd_bench_part *part)
{
    struct hd_quantiser_rate rate;
    struct steps steps;
    hd_status status = hd_quantiser_rate(part->seconds, &rate, &part->cli->problem);

    if (status == HD_OK) {
        status = bench_quantiser_measure_steps(part, &steps);
    }
    if (status == HD_OK && part->list != NULL) {
        bench_quantiser_show_json(part, &steps, &rate);
    } else if (status == HD_OK) {
        bench_quantiser_show_text(part, &steps, &rate);
    }
    return status;
}
