/*
 * bench/cmd/cmd_bench_output.h - one row of results, as cells of a table or as members of a JSON
 * object.
 */
#ifndef HEDDLE_BENCH_CMD_CMD_BENCH_OUTPUT_H
#define HEDDLE_BENCH_CMD_CMD_BENCH_OUTPUT_H

#include "report/table.h"
#include "bench/bench.h"
#include "cli/cli.h"

/* One of the two is NULL. */
struct hd_bench_row {
    struct hd_table *table;
    struct cJSON *object;
};

/* A cell, or the member `key`.  A key of NULL is for a cell only, a format of NULL for a member
   only.  The cell of a NaN is "-". */
void hd_bench_put_text(const struct hd_bench_row *row, const char *key, const char *text);
void hd_bench_put_count(const struct hd_bench_row *row, const char *key, uint64_t count);
void hd_bench_put_number(const struct hd_bench_row *row, const char *key, const char *format,
                         double value);

/* Three cells, or the member `key`: {"median", "min", "p90", "count"}. */
void hd_bench_put_spread(const struct hd_bench_row *row, const char *key, const char *format,
                         const struct hd_bench_spread *spread);

/* One cell, the median times `scale`, or the member `key` as above. */
void hd_bench_put_median(const struct hd_bench_row *row, const char *key, const char *format,
                         double scale, const struct hd_bench_spread *spread);

/* The member `key`: {"min", "p50", "p99", "max", "count"}. */
void hd_bench_put_tail(struct cJSON *parent, const char *key, const struct hd_bench_tail *tail);

#endif /* HEDDLE_BENCH_CMD_CMD_BENCH_OUTPUT_H */
