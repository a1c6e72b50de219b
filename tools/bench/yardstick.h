/*
 * bench/yardstick.h - what a machine can do without heddle, measured in the same run.
 *
 *   multiply  oneDNN's rate of square products, by heddle-gemm-rate, a program beside this one; as
 *             many copies at once as ranks can run at once
 *   quantise  1e9 elements a second that the kernel cpu makes MXFP8 of, by heddle-quantiser-rate
 *   call      one pair of clock readings and one call through a table of functions: what no engine
 *             that records its actions can do without
 */
#ifndef HEDDLE_BENCH_YARDSTICK_H
#define HEDDLE_BENCH_YARDSTICK_H

#include "base/problem.h"

#include <stdint.h>

#define HD_GEMM_COPIES_MAX 64u
#define HD_GEMM_ROWS_MAX   16u

/* One product: medians of all copies, added. */
struct hd_gemm_row {
    char type[8], layout[8]; /* "bf16", "packed" */
    uint32_t size;           /* rows and columns of every matrix */
    uint32_t sample_count;   /* of the copy that has fewest */
    double gflops;
};

struct hd_gemm_rate {
    uint32_t copies, row_count; /* row_count 0: see `missing` */
    struct hd_gemm_row rows[HD_GEMM_ROWS_MAX];
    uint32_t big, best; /* rows: the fastest from 1024 on, and the fastest of all */
    char missing[256];  /* why there is no rate, one sentence */
};

/* `type` is bf16 or f32; bf16 falls back to f32 where oneDNN has none here, and the rows say so.
   Each product takes `seconds`.  A rate that cannot be had is no error: the reason is in
   `missing`. */
hd_status hd_gemm_rate(const char *type, uint32_t copies, double seconds, struct hd_gemm_rate *rate,
                       struct hd_problem *problem);

/* Keeps the faster of two measurements, product by product: neighbours only slow down. */
void hd_gemm_rate_join(struct hd_gemm_rate *rate, const struct hd_gemm_rate *other);

/* The same source copied, quantised along rows, down columns, and made BF16 again. */
struct hd_quantiser_row {
    char operation[8], lane[8]; /* "copy", "rows", "columns", "back"; "avx512" */
    uint32_t source_kib;        /* of BF16 */
    uint32_t sample_count;
    double gelements; /* 1e9 elements a second, the median */
    double gbytes;    /* read and written by the operation, 1e9 a second */
    double ratio;     /* gbytes over the copy's of as large a source */
};

struct hd_quantiser_rate {
    uint32_t row_count; /* 0: see `missing` */
    struct hd_quantiser_row rows[HD_GEMM_ROWS_MAX];
    char missing[256];
};

/* One thread, `seconds` for each row; without the program no error, as above. */
hd_status hd_quantiser_rate(double seconds, struct hd_quantiser_rate *rate,
                            struct hd_problem *problem);

struct hd_call_cost {
    double clock_pair_ns, call_ns; /* medians of many, each of many */
};
void hd_call_cost(struct hd_call_cost *cost);

#endif /* HEDDLE_BENCH_YARDSTICK_H */
