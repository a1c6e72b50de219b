/*
 * bench/bench.h - what the measurements of `heddle bench` share: spreads, and the machine.
 *
 * bench/X.c measures; bench/cmd/cmd_bench_X.c reads the command line for it and prints its results.
 *
 * A speed is a median of many wall-clock times and a ratio to a yardstick of the same run.  Nothing
 * here passes or fails.  The load of the machine is part of every result, because on a busy machine
 * it changes the median.
 */
#ifndef HEDDLE_BENCH_BENCH_H
#define HEDDLE_BENCH_BENCH_H

#include "base/problem.h"

#include <stdint.h>

#define HD_BENCH_ITERATIONS_MAX 10000u
#define HD_BENCH_REASON_BYTES   160u

/* Repeated measurements of one quantity; percentiles by nearest rank.  count 0: all NaN. */
struct hd_bench_spread {
    double median, min, p90, p99, max;
    uint32_t count;
};

/* Sorts `values` [count]. */
void hd_bench_spread(double *values, uint32_t count, struct hd_bench_spread *spread);

/* Reads FIRST, FIRST:LAST (doubling) or FIRST:LAST:xFACTOR, in bytes, at most `count_max` sizes.
   The count, or 0 with a reason. */
uint32_t hd_bench_sizes(const char *text, uint32_t count_max, uint64_t *sizes,
                        char reason[HD_BENCH_REASON_BYTES]);

struct hd_bench_machine {
    char cpu[160];
    uint32_t core_count; /* that this process may use */
    double load;         /* runnable threads, mean of the last minute; NaN: unknown */
};
void hd_bench_machine(struct hd_bench_machine *machine);

/* left / right, or NaN if right is not above 0. */
double hd_bench_ratio(double left, double right);

#endif /* HEDDLE_BENCH_BENCH_H */
