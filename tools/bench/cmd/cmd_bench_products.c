/* The parts of heddle bench step for the kernel `cuda`: its products, and a step beside them. */
#include "bench/cmd/cmd_bench.h"
#include "base/try.h"
#include "bench/products.h"

#include <stdio.h>

static void bench_products_show_device(const struct hd_bench_part *part, const char *device)
{
    if (!part->cli->is_json) {
        printf("device: %s\n", device);
    }
}

/* --- products -------------------------------------------------------------------------------- */

struct product {
    const char *device;
    char experts[16];
    struct hd_product_row row;
};

#define HD_BENCH_ROW struct product
const struct hd_bench_field hd_bench_products_fields[] = {
    HD_BENCH_FIELD("product", "product", NULL, CHARS, row.name),
    HD_BENCH_FIELD("form", "form", NULL, CHARS, row.form),
    HD_BENCH_FIELD("device", NULL, NULL, TEXT, device),
    HD_BENCH_FIELD("experts", NULL, NULL, COUNT, row.experts),
    HD_BENCH_FIELD(NULL, "experts", NULL, CHARS, experts),
    HD_BENCH_FIELD("rows", "rows", NULL, COUNT, row.rows),
    HD_BENCH_FIELD("columns", "columns", NULL, COUNT, row.columns),
    HD_BENCH_FIELD("depth", "depth", NULL, COUNT, row.depth),
    HD_BENCH_FIELD("samples", NULL, NULL, COUNT, row.sample_count),
    HD_BENCH_FIELD("tflops", "TFLOP/s", "%.4g", NUMBER, row.tflops),
    HD_BENCH_FIELD("cublaslt_tflops", "cuBLASLt", "%.4g", NUMBER, row.library_tflops),
    HD_BENCH_FIELD("ratio", "ratio", "%.3f", NUMBER, row.ratio),
    {0}};
#undef HD_BENCH_ROW

static hd_status bench_products_measure(struct hd_bench_part *part, struct hd_cli_bench_job *bench)
{
    static const char *const whats[] = {"products", "squares"};
    static struct hd_product_rates rates;

    for (unsigned i = 0; i < 2; i++) {
        const struct hd_product_request request = {.what = whats[i],
                                                   .seconds = part->seconds,
                                                   .kernel = &bench->plugins.kernel->plugin,
                                                   .options = bench->plugins.kernel_options,
                                                   .spec = &bench->job.model.specs[0]};
        HD_TRY(hd_product_rates(&request, &rates, &part->cli->problem));
        if (i == 0) {
            bench_products_show_device(part, rates.device);
        }
        for (uint32_t k = 0; k < rates.row_count; k++) {
            struct product shown = {rates.device, "-", rates.rows[k]};
            if (shown.row.experts > 0) {
                snprintf(shown.experts, sizeof shown.experts, "%u", shown.row.experts);
            }
            hd_bench_show(&part->sheet, &shown);
        }
    }
    return HD_OK;
}

hd_status hd_bench_part_products(struct hd_bench_part *part)
{
    static const struct hd_cli_bench_words words = {
        .usual = {HD_CLI_BENCH_MODEL},
        .forced = {"pipeline.ranks=1", HD_CLI_BENCH_FEW_STEPS},
    };

    return hd_bench_part_measure(part, &words, bench_products_measure);
}

/* --- a step ---------------------------------------------------------------------------------- */

struct passes {
    struct hd_bench_passes row;
    double gflop;
    char ceiling[64];
};

#define HD_BENCH_ROW struct passes
const struct hd_bench_field hd_bench_passes_fields[] = {
    HD_BENCH_FIELD("ranks", "ranks", NULL, COUNT, row.rank_count),
    HD_BENCH_FIELD("devices", NULL, NULL, COUNT, row.device_count),
    HD_BENCH_FIELD("device", NULL, NULL, CHARS, row.device),
    HD_BENCH_FIELD("ceiling_size", NULL, NULL, COUNT, row.ceiling.rows),
    HD_BENCH_FIELD("ceiling_tflops", NULL, NULL, NUMBER, row.ceiling.library_tflops),
    HD_BENCH_FIELD_IF(0, 1e-3, "gflop_per_step", "TFLOP/step", "%.4g", NUMBER, gflop),
    HD_BENCH_FIELD("step_seconds", "seconds", "%.3f", SPREAD, row.session.step_seconds),
    HD_BENCH_FIELD("compute_seconds", "passes", "%.3f", NUMBER, row.session.compute_seconds),
    HD_BENCH_FIELD(NULL, "ceiling", NULL, CHARS, ceiling),
    HD_BENCH_FIELD("pass_tflops", "TFLOP/s", "%.4g", NUMBER, row.pass_tflops),
    HD_BENCH_FIELD("pass_mfu", "MFU", "%.3f", NUMBER, row.pass_ratio),
    HD_BENCH_FIELD("step_tflops", "step TFLOP/s", "%.4g", NUMBER, row.step_tflops),
    HD_BENCH_FIELD("step_mfu", "MFU", "%.3f", NUMBER, row.step_ratio),
    {0}};

static hd_status bench_products_measure_passes(struct hd_bench_part *part,
                                               struct hd_cli_bench_job *bench)
{
    struct passes shown;
    const struct hd_bench_passes *row = &shown.row;

    HD_TRY(
        hd_bench_passes(&bench->job, part->seconds, part->warmup, &shown.row, &part->cli->problem));
    bench_products_show_device(part, row->device);
    shown.gflop = row->flops * 1e-9;
    snprintf(shown.ceiling, sizeof shown.ceiling, "%u x %.4g (%u)", row->device_count,
             row->ceiling.library_tflops, row->ceiling.rows);
    hd_bench_show(&part->sheet, &shown);
    return HD_OK;
}

/* One rank, or pipeline.ranks. */
hd_status hd_bench_part_passes(struct hd_bench_part *part)
{
    const struct hd_cli_bench_words words = {
        .usual = {HD_CLI_BENCH_MODEL, "pipeline.ranks=1"},
        .forced = {part->steps, HD_CLI_BENCH_FEW_STEPS},
    };

    return hd_bench_part_measure(part, &words, bench_products_measure_passes);
}
