/* The parts of heddle bench step for the kernel `cuda`: its products, and a step beside them. */
#include "bench/cmd/cmd_bench_part.h"
#include "bench/products.h"

#include <stdio.h>

static void bench_products_show_device(const struct hd_bench_part *part, const char *device)
{
    if (part->list == NULL) {
        printf("device: %s\n", device);
    }
}

/* --- products -------------------------------------------------------------------------------- */

static void bench_products_show_product(const struct hd_bench_part *part, const char *device,
                                        const struct hd_product_row *row)
{
    const struct hd_bench_row out = hd_bench_part_row(part);

    hd_bench_put_text(&out, "product", row->name);
    hd_bench_put_text(&out, "form", row->form);
    if (out.table == NULL) {
        hd_json_text(out.object, "device", device);
    }
    if (out.table == NULL || row->experts > 0) {
        hd_bench_put_count(&out, "experts", row->experts);
    } else {
        hd_table_cell(out.table, "-");
    }
    hd_bench_put_count(&out, "rows", row->rows);
    hd_bench_put_count(&out, "columns", row->columns);
    hd_bench_put_count(&out, "depth", row->depth);
    if (out.table == NULL) {
        hd_json_u64(out.object, "samples", row->sample_count);
    }
    hd_bench_put_number(&out, "tflops", "%.4g", row->tflops);
    hd_bench_put_number(&out, "cublaslt_tflops", "%.4g", row->library_tflops);
    hd_bench_put_number(&out, "ratio", "%.3f", row->ratio);
}

hd_status hd_bench_part_products(struct hd_bench_part *part)
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
                                                   .seconds = part->seconds,
                                                   .kernel = &bench.plugins.kernel->plugin,
                                                   .options = bench.plugins.kernel_options,
                                                   .spec = &bench.job.model.specs[0]};
        status = hd_product_rates(&request, &rates, &part->cli->problem);
        if (status == HD_OK && i == 0) {
            bench_products_show_device(part, rates.device);
        }
        for (uint32_t row = 0; status == HD_OK && row < rates.row_count; row++) {
            bench_products_show_product(part, rates.device, &rates.rows[row]);
        }
    }
    hd_cli_bench_close(&bench);
    return status;
}

/* --- a step ---------------------------------------------------------------------------------- */

static void bench_products_show_passes(const struct hd_bench_part *part,
                                       const struct hd_bench_passes *row)
{
    const struct hd_bench_row out = hd_bench_part_row(part);

    bench_products_show_device(part, row->device);
    hd_bench_put_count(&out, "ranks", row->rank_count);
    if (out.table == NULL) {
        hd_json_u64(out.object, "devices", row->device_count);
        hd_json_text(out.object, "device", row->device);
        hd_json_u64(out.object, "ceiling_size", row->ceiling.rows);
        hd_json_number(out.object, "ceiling_tflops", row->ceiling.library_tflops);
    }
    hd_bench_put_number(&out, "gflop_per_step", NULL, row->flops * 1e-9);
    hd_bench_put_number(&out, NULL, "%.4g", row->flops * 1e-12);
    hd_bench_put_spread(&out, "step_seconds", "%.3f", &row->session.step_seconds);
    hd_bench_put_number(&out, "compute_seconds", "%.3f", row->session.compute_seconds);
    if (out.table != NULL) {
        hd_table_cell(out.table, "%u x %.4g (%u)", row->device_count, row->ceiling.library_tflops,
                      row->ceiling.rows);
    }
    hd_bench_put_number(&out, "pass_tflops", "%.4g", row->pass_tflops);
    hd_bench_put_number(&out, "pass_mfu", "%.3f", row->pass_ratio);
    hd_bench_put_number(&out, "step_tflops", "%.4g", row->step_tflops);
    hd_bench_put_number(&out, "step_mfu", "%.3f", row->step_ratio);
}

/* One rank, or pipeline.ranks. */
hd_status hd_bench_part_passes(struct hd_bench_part *part)
{
    const struct hd_cli_bench_words words = {
        .usual = {HD_CLI_BENCH_MODEL, "pipeline.ranks=1"},
        .forced = {part->steps, HD_CLI_BENCH_FEW_STEPS},
    };
    struct hd_cli_bench_job bench;
    struct hd_bench_passes row;

    hd_status status = hd_cli_bench_open(part->cli, &words, &bench);
    if (status != HD_OK) {
        return status;
    }
    status = hd_bench_passes(&bench.job, part->seconds, part->warmup, &row, &part->cli->problem);
    if (status == HD_OK) {
        bench_products_show_passes(part, &row);
    }
    hd_cli_bench_close(&bench);
    return status;
}
