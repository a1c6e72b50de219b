#include "bench/cmd/cmd_bench_output.h"

#include <math.h>
#include <stdio.h>

void hd_bench_put_text(const struct hd_bench_row *row, const char *key, const char *text)
{
    if (row->table != NULL) {
        hd_table_cell(row->table, "%s", text);
    } else {
        hd_json_text(row->object, key, text);
    }
}

void hd_bench_put_count(const struct hd_bench_row *row, const char *key, uint64_t count)
{
    if (row->table != NULL) {
        hd_table_cell(row->table, "%llu", (unsigned long long)count);
    } else {
        hd_json_u64(row->object, key, count);
    }
}

void hd_bench_put_number(const struct hd_bench_row *row, const char *key, const char *format,
                         double value)
{
    char text[64] = "-";

    if (row->table == NULL && key != NULL) {
        hd_json_number(row->object, key, value);
    } else if (row->table != NULL && format != NULL) {
        if (!isnan(value)) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            snprintf(text, sizeof text, format, value);
#pragma GCC diagnostic pop
        }
        hd_table_cell(row->table, "%s", text);
    }
}

void hd_bench_put_spread(const struct hd_bench_row *row, const char *key, const char *format,
                         const struct hd_bench_spread *spread)
{
    const struct hd_bench_row inner = {
        row->table, row->table == NULL ? hd_json_object(row->object, key) : NULL};

    hd_bench_put_number(&inner, "median", format, spread->median);
    hd_bench_put_number(&inner, "min", format, spread->min);
    hd_bench_put_number(&inner, "p90", format, spread->p90);
    if (row->table == NULL) {
        hd_json_u64(inner.object, "count", spread->count);
    }
}

void hd_bench_put_median(const struct hd_bench_row *row, const char *key, const char *format,
                         double scale, const struct hd_bench_spread *spread)
{
    if (row->table == NULL) {
        hd_bench_put_spread(row, key, format, spread);
    } else {
        hd_bench_put_number(row, NULL, format, spread->median * scale);
    }
}

void hd_bench_put_tail(struct cJSON *parent, const char *key, const struct hd_bench_tail *tail)
{
    struct cJSON *object = hd_json_object(parent, key);

    hd_json_number(object, "min", tail->min);
    hd_json_number(object, "p50", tail->p50);
    hd_json_number(object, "p99", tail->p99);
    hd_json_number(object, "max", tail->max);
    hd_json_u64(object, "count", tail->count);
}
