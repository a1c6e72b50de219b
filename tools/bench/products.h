/*
 * bench/products.h - the matrix products of a device's kernel, beside its library alone.
 *
 *   products  every product of a stage by the kernel `cuda`, beside the same by cuBLASLt: TFLOP/s
 *             of each, and their ratio
 *   squares   large square products by cuBLASLt: the fastest is the ceiling of the device
 *   passes    a whole step of a job on devices: operations of the model a second, of that ceiling
 *
 * The first two are measured by heddle-cuda-rate, a program beside this one, since nobody outside
 * the plugin can call its products.  A product counts 2 m n k operations; what a stage counts is
 * written down in docs/benchmarks.md.
 */
#ifndef HEDDLE_BENCH_PRODUCTS_H
#define HEDDLE_BENCH_PRODUCTS_H

#include "bench/session.h"

#include <heddle/kernel.h>

#define HD_PRODUCT_ROWS_MAX 32u

/* One product: C [rows, columns] over `depth`, of each of `experts`; 0: dense. */
struct hd_product_row {
    char name[24], form[8]; /* "q,o"; "fprop", "dgrad", "wgrad" */
    uint32_t experts, rows, columns, depth, sample_count;
    double tflops;         /* the kernel's, a median; NaN: it is not asked */
    double library_tflops; /* cuBLASLt's, by the fastest of its algorithms */
    double ratio;          /* NaN with tflops */
};

struct hd_product_rates {
    char device[256]; /* as the kernel reports it: a stand-in says so */
    uint32_t device_count, row_count;
    struct hd_product_row rows[HD_PRODUCT_ROWS_MAX];
};

struct hd_product_request {
    const char *what; /* "products" or "squares" */
    double seconds;   /* of each */
    const struct hd_plugin *kernel;
    const struct hd_option_value *options;
    const struct hd_stage_spec *spec;
};

/* A device that is not there, or a program that is not built: HD_EXIT_PLUGIN, with the reason. */
hd_status hd_product_rates(const struct hd_product_request *request, struct hd_product_rates *rates,
                           struct hd_problem *problem);

/* The row that its library makes fastest. */
const struct hd_product_row *hd_product_best(const struct hd_product_rates *rates);

struct hd_bench_passes {
    uint32_t rank_count, device_count; /* that the ranks share at most */
    double flops; /* of one step, forward and backward, as the kernel counts them */
    struct hd_bench_session session;
    struct hd_product_row ceiling;   /* of one device: the fastest square, before and after */
    char device[256];                /* as hd_product_rates has it */
    double pass_tflops, step_tflops; /* flops over the seconds in passes; over the median step */
    double pass_ratio;               /* of the ceiling */
    double step_ratio;               /* of the ceilings of all devices together */
};

/* Of a job whose kernel is `cuda`; `warmup` steps do not count. */
hd_status hd_bench_passes(struct hd_job *job, double seconds, uint32_t warmup,
                          struct hd_bench_passes *row, struct hd_problem *problem);

#endif /* HEDDLE_BENCH_PRODUCTS_H */
