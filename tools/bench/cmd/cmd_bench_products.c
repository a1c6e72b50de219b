/* The parts of heddle bench step for the kernel `cuda`: its products, and a step beside them. */
#include "bench/cmd/cmd_bench.h"
#include "bench/products.h"

#include <stdio.h>
#include <string.h>

enum { WORD_BYTES = 64, ITERATIONS_MOST = 20 };

/* Of each product, a measured repetition. */
#define PRODUCT_SECONDS 0.05

static double bench_products_seconds_of(const struct hd_cli_bench_part *part)
{
    return PRODUCT_SECONDS *
           (part->iterations < ITERATIONS_MOST ? part->iterations : ITERATIONS_MOST);
}

static void bench_products_show_device(const struct hd_cli_bench_part *part, const char *device)
{
    if (part->list == NULL) {
        printf("device: %s\n", device);
    }
}

/* --- products -------------------------------------------------------------------------------- */

static void bench_products_add_product_json(const struct hd_cli_bench_part *part,
                                            const char *device, const struct hd_product_row *row)
{
    struct cJSON *object = hd_json_object(part->list, NULL);

    hd_json_text(object, "product", row->name);
    hd_json_text(object, "form", row->form);
    hd_json_text(object, "device", device);
    hd_json_u64(object, "experts", row->experts);
    hd_json_u64(object, "rows", row->rows);
    hd_json_u64(object, "columns", row->columns);
    hd_json_u64(object, "depth", row->depth);
    hd_json_u64(object, "samples", row->sample_count);
    hd_json_number(object, "tflops", row->tflops);
    hd_json_number(object, "cublaslt_tflops", row->library_tflops);
    hd_json_number(object, "ratio", row->ratio);
}

static void bench_products_add_product_cells(struct hd_table *table,
                                             const struct hd_product_row *row)
{
    hd_table_cell(table, "%s", row->name);
    hd_table_cell(table, "%s", row->form);
    if (row->experts > 0) {
        hd_table_cell(table, "%u", row->experts);
    } else {
        hd_table_cell(table, "-");
    }
    hd_table_cell(table, "%u", row->rows);
    hd_table_cell(table, "%u", row->columns);
    hd_table_cell(table, "%u", row->depth);
    hd_cli_bench_cell(table, "%.4g", row->tflops);
    hd_cli_bench_cell(table, "%.4g", row->library_tflops);
    hd_cli_bench_cell(table, "%.3f", row->ratio);
}

static void bench_products_show_products(const struct hd_cli_bench_part *part,
                                         const struct hd_product_rates *rates)
{
    for (uint32_t i = 0; i < rates->row_count; i++) {
        if (part->list != NULL) {
            bench_products_add_product_json(part, rates->device, &rates->rows[i]);
        } else {
            bench_products_add_product_cells(part->table, &rates->rows[i]);
        }
    }
}

hd_status hd_cli_bench_products(struct hd_cli_bench_part *part)
{
    static const char *const whats[] = {"products", "squares"};
    static const struct hd_cli_bench_words words = {
        .usual = {HD_CLI_BENCH_MODEL},
        .forced = {"pipeline.ranks=1", HD_CLI_BENCH_FEW_STEPS},
    };
    static struct hd_product_rates rates;
    struct hd_cli_bench_job bench;

    hd_status status = hd_cli_bench_open(part->cli, &words, &bench);
    if (status != HD_OK) {
        return status;
    }
    for (unsigned i = 0; status == HD_OK && i < 2; i++) {
        const struct hd_product_request request = {.what = whats[i],
                                                   .seconds = bench_products_seconds_of(part),
                                                   .kernel = &bench.plugins.kernel->plugin,
                                                   .options = bench.plugins.kernel_options,
                                                   .spec = &bench.job.model.specs[0]};
        status = hd_product_rates(&request, &rates, &part->cli->problem);
        if (status == HD_OK && i == 0) {
            bench_products_show_device(part, rates.device);
        }
        if (status == HD_OK) {
            bench_products_show_products(part, &rates);
        }
    }
    hd_cli_bench_close(&bench);
    return status;
}

/* --- a step ---------------------------------------------------------------------------------- */

static void bench_products_show_passes(const struct hd_cli_bench_part *part,
                                       const struct hd_bench_passes *row)
{
    const struct hd_bench_session *session = &row->session;
    struct hd_table *table = part->table;

    bench_products_show_device(part, row->device);
    if (part->list != NULL) {
        struct cJSON *object = hd_json_object(part->list, NULL);
        hd_json_u64(object, "ranks", row->rank_count);
        hd_json_u64(object, "devices", row->device_count);
        hd_json_text(object, "device", row->device);
        hd_json_number(object, "gflop_per_step", row->flops * 1e-9);
        hd_cli_bench_json(object, "step_seconds", &session->step_seconds);
        hd_json_number(object, "compute_seconds", session->compute_seconds);
        hd_json_number(object, "pass_tflops", row->pass_tflops);
        hd_json_number(object, "step_tflops", row->step_tflops);
        hd_json_u64(object, "ceiling_size", row->ceiling.rows);
        hd_json_number(object, "ceiling_tflops", row->ceiling.library_tflops);
        hd_json_number(object, "pass_mfu", row->pass_ratio);
        hd_json_number(object, "step_mfu", row->step_ratio);
        return;
    }
    hd_table_cell(table, "%u", row->rank_count);
    hd_table_cell(table, "%.4g", row->flops * 1e-12);
    hd_table_cell(table, "%.3f", session->step_seconds.median);
    hd_table_cell(table, "%.3f", session->step_seconds.min);
    hd_table_cell(table, "%.3f", session->step_seconds.p90);
    hd_table_cell(table, "%.3f", session->compute_seconds);
    hd_table_cell(table, "%u x %.4g (%u)", row->device_count, row->ceiling.library_tflops,
                  row->ceiling.rows);
    hd_table_cell(table, "%.4g", row->pass_tflops);
    hd_table_cell(table, "%.3f", row->pass_ratio);
    hd_table_cell(table, "%.4g", row->step_tflops);
    hd_table_cell(table, "%.3f", row->step_ratio);
}

/* One rank, or what is asked. */
hd_status hd_cli_bench_passes(struct hd_cli_bench_part *part)
{
    char steps[WORD_BYTES];
    const struct hd_cli_bench_words words = {
        .usual = {HD_CLI_BENCH_MODEL, "pipeline.ranks=1"},
        .forced = {steps, HD_CLI_BENCH_FEW_STEPS},
    };
    struct hd_cli_bench_job bench;
    struct hd_bench_passes row;

    snprintf(steps, sizeof steps, "train.steps=%u", part->warmup + part->iterations);
    hd_status status = hd_cli_bench_open(part->cli, &words, &bench);
    if (status != HD_OK) {
        return status;
    }
    status = hd_bench_passes(&bench.job, bench_products_seconds_of(part), part->warmup, &row,
                             &part->cli->problem);
    if (status == HD_OK) {
        bench_products_show_passes(part, &row);
    }
    hd_cli_bench_close(&bench);
    return status;
}
