/*
 * bench/yardstick.h - what a machine can do without heddle, measured in the same run.
 *
 *   multiply  oneDNN's rate of square products, measured by the program heddle-gemm-rate; as many
 *             copies run at once as ranks can
 *   quantise  1e9 elements per second that the kernel cpu converts to MXFP8, by
 *             heddle-quantiser-rate
 *   call      a pair of clock readings and a call through a table of functions, which any engine
 *             that records its actions needs
 *
 * A program measures a library that heddle itself does not link.  The programs are in
 * libexec/heddle, in a build tree and in an installation.  Each runs as a child that dies with its
 * parent, and prints its results as lines of text.
 */
#ifndef HEDDLE_BENCH_YARDSTICK_H
#define HEDDLE_BENCH_YARDSTICK_H

#include "base/child.h"
#include "base/problem.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#define HD_GEMM_COPIES_MAX 64u
#define HD_GEMM_ROWS_MAX   16u

/* One product: the sum of the medians of all copies. */
struct hd_gemm_row {
    char type[8], layout[8]; /* "bf16", "packed" */
    uint32_t size;           /* rows and columns of every matrix */
    uint32_t sample_count;   /* of the copy with the fewest */
    double gflops;
};

struct hd_gemm_rate {
    uint32_t copies, row_count; /* row_count 0: see `missing` */
    struct hd_gemm_row rows[HD_GEMM_ROWS_MAX];
    uint32_t big, best; /* rows: the fastest of at least 1024, and the fastest of all */
    char missing[256];  /* why there is no rate */
};

/* `type` is bf16 or f32; if oneDNN does not support bf16 here, f32 is measured, and the rows say
   so.  Each product takes `seconds`.  If there is no rate, `missing` has the reason; that is not
   an error. */
hd_status hd_gemm_rate(const char *type, uint32_t copies, double seconds, struct hd_gemm_rate *rate,
                       struct hd_problem *problem);

/* Keeps the faster of two measurements of each product, because other load only slows them down. */
void hd_gemm_rate_join(struct hd_gemm_rate *rate, const struct hd_gemm_rate *other);

/* One source is copied, quantised along rows, quantised down columns, and converted back to
   BF16. */
struct hd_quantiser_row {
    char operation[8], isa[8]; /* "copy", "rows", "columns", "back"; "avx512" */
    uint32_t source_kib;       /* of BF16 */
    uint32_t sample_count;
    double gelements; /* 1e9 elements a second, the median */
    double gbytes;    /* read and written by the operation, 1e9 a second */
    double ratio;     /* gbytes over that of a copy of the same size */
};

struct hd_quantiser_rate {
    uint32_t row_count; /* 0: see `missing` */
    struct hd_quantiser_row rows[HD_GEMM_ROWS_MAX];
    char missing[256];
};

/* One thread, `seconds` for each row.  If there is no rate, `missing` has the reason. */
hd_status hd_quantiser_rate(double seconds, struct hd_quantiser_rate *rate,
                            struct hd_problem *problem);

struct hd_call_cost {
    double clock_pair_ns, call_ns; /* medians of many samples, each of many calls */
};
void hd_call_cost(struct hd_call_cost *cost);

#define HD_BENCH_LINE_BYTES 1024u
#define HD_BENCH_NOT_RUN    127 /* the exit code of a child that cannot execute its program */

/* false: the program is missing, or this user may not execute it. */
bool hd_bench_program_find(const char *name, char path[PATH_MAX]);

/* Runs the program with its stdout in child->output.  `words` ends with NULL and begins with the
   program's name.  HD_SYSTEM, with errno. */
hd_status hd_bench_program_start(struct hd_child *child, const char *path, char *const *words);
/* Calls `take` with every line, without its newline, until the program ends; the exit code. */
int hd_bench_program_read(struct hd_child *child, void (*take)(void *context, const char *line),
                          void *context);

#endif /* HEDDLE_BENCH_YARDSTICK_H */
