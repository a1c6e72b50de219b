/*
 * bench/products.h - the matrix products of the kernel cuda, beside cuBLASLt alone.
 *
 *   products  every product of a stage by the kernel `cuda`, beside the same by cuBLASLt: TFLOP/s
 *             of each, and their ratio
 *   squares   large square products by cuBLASLt: the fastest is the ceiling of the device
 *   passes    a whole step of a job on devices: its floating-point rate as a part of that ceiling
 *
 * The program heddle-cuda-rate measures the first two, because only the plugin itself can call its
 * products.  A product counts 2 m n k operations; docs/benchmarks.md says what a stage counts.
 */
#ifndef HEDDLE_BENCH_PRODUCTS_H
#define HEDDLE_BENCH_PRODUCTS_H

#include "bench/step.h"

#include <heddle/kernel.h>

#define HD_PRODUCT_ROWS_MAX 32u

/* One product: C [rows, columns] over `depth`, for each of `experts`; 0: dense. */
struct hd_product_row {
    char name[24], form[8]; /* "q,o"; "fprop", "dgrad", "wgrad" */
    uint32_t experts, rows, columns, depth, sample_count;
    double tflops;         /* of the kernel, a median; NaN: not measured */
    double library_tflops; /* of the fastest algorithm of cuBLASLt */
    double ratio;          /* tflops over library_tflops */
};

struct hd_product_rates {
    char device[256]; /* as the kernel reports it; it names a stand-in as such */
    uint32_t device_count, row_count;
    struct hd_product_row rows[HD_PRODUCT_ROWS_MAX];
};

struct hd_product_request {
    const char *what; /* "products" or "squares" */
    double seconds;   /* of each product */
    const struct hd_plugin *kernel;
    const struct hd_option_value *options;
    const struct hd_stage_spec *spec;
};

/* HD_EXIT_PLUGIN, with the reason, if there is no device or the program is not built. */
hd_status hd_product_rates(const struct hd_product_request *request, struct hd_product_rates *rates,
                           struct hd_problem *problem);

struct hd_bench_passes {
    uint32_t rank_count, device_count; /* at most one for each rank */
    double flops; /* of one step, forward and backward, as the kernel counts them */
    struct hd_bench_session session;
    struct hd_product_row ceiling;   /* of one device: the fastest square, before or after */
    char device[256];                /* as in hd_product_rates */
    double pass_tflops, step_tflops; /* flops over the seconds in passes; over the median step */
    double pass_ratio;               /* of the ceiling */
    double step_ratio;               /* of the ceilings of all devices together */
};

/* Of a job whose kernel is `cuda`; `warmup` steps do not count. */
hd_status hd_bench_passes(struct hd_job *job, double seconds, uint32_t warmup,
                          struct hd_bench_passes *row, struct hd_problem *problem);

#endif /* HEDDLE_BENCH_PRODUCTS_H */
