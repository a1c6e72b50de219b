#include "bench/cmd/cmd_bench.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

/* Where a value goes: one of the two is NULL. */
struct target {
    struct hd_table *table;
    struct cJSON *object;
};

static void bench_output_text(const struct target *target, const char *key, const char *text)
{
    if (target->table != NULL) {
        hd_table_cell(target->table, "%s", text);
    } else {
        hd_json_text(target->object, key, text);
    }
}

static void bench_output_count(const struct target *target, const char *key, uint64_t count)
{
    if (target->table != NULL) {
        hd_table_cell(target->table, "%llu", (unsigned long long)count);
    } else {
        hd_json_u64(target->object, key, count);
    }
}

static void bench_output_number(const struct target *target, const char *key,
                                const struct hd_bench_field *field, double value)
{
    char text[64] = "-";

    if (target->table == NULL) {
        hd_json_number(target->object, key, value);
        return;
    }
    if (!isnan(value)) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(text, sizeof text, field->format, value * field->scale);
#pragma GCC diagnostic pop
    }
    hd_table_cell(target->table, "%s", text);
}

/* Cells, or an object of its own. */
static void bench_output_spread(const struct target *target, const struct hd_bench_field *field,
                                const struct hd_bench_spread *spread)
{
    const bool is_table = target->table != NULL;
    const struct target inner = {target->table,
                                 is_table ? NULL : hd_json_object(target->object, field->key)};

    if (field->type == HD_BENCH_TAIL) {
        bench_output_number(&inner, "min", field, spread->min);
        bench_output_number(&inner, "p50", field, spread->median);
        bench_output_number(&inner, "p99", field, spread->p99);
        bench_output_number(&inner, "max", field, spread->max);
    } else {
        bench_output_number(&inner, "median", field, spread->median);
        if (!is_table || field->type == HD_BENCH_SPREAD) {
            bench_output_number(&inner, "min", field, spread->min);
            bench_output_number(&inner, "p90", field, spread->p90);
        }
    }
    if (!is_table) {
        hd_json_u64(inner.object, "count", spread->count);
    }
}

static void bench_output_put(const struct target *target, const struct hd_bench_field *field,
                             const void *value)
{
    switch (field->type) {
    case HD_BENCH_TEXT:
        bench_output_text(target, field->key, *(const char *const *)value);
        break;
    case HD_BENCH_CHARS:
        bench_output_text(target, field->key, value);
        break;
    case HD_BENCH_COUNT:
        bench_output_count(target, field->key, *(const uint32_t *)value);
        break;
    case HD_BENCH_BIG:
        bench_output_count(target, field->key, *(const uint64_t *)value);
        break;
    case HD_BENCH_NUMBER:
        bench_output_number(target, field->key, field, *(const double *)value);
        break;
    default:
        bench_output_spread(target, field, value);
        break;
    }
}

/* The fields of a row that this target has. */
static void bench_output_walk(const struct target *target, const struct hd_bench_sheet *sheet,
                              const void *row)
{
    const struct hd_bench_field *field = sheet->fields;

    for (; field->key != NULL || field->title != NULL; field++) {
        const bool is_here = target->table != NULL ? field->title != NULL : field->key != NULL;
        if (is_here && (field->only == 0 || field->only == sheet->kind)) {
            bench_output_put(target, field, (const char *)row + field->offset);
        }
    }
}

void hd_bench_add(struct cJSON *object, const struct hd_bench_sheet *sheet, const void *row)
{
    bench_output_walk(&(struct target){NULL, object}, sheet, row);
}

struct cJSON *hd_bench_show(const struct hd_bench_sheet *sheet, const void *row)
{
    const struct target target = {sheet->table,
                                  sheet->table == NULL ? hd_json_object(sheet->list, NULL) : NULL};

    bench_output_walk(&target, sheet, row);
    return target.object;
}

void hd_bench_sheet_begin(struct hd_bench_sheet *sheet, struct hd_cli *cli, const char *key)
{
    const struct hd_bench_field *field = sheet->fields;
    const char *titles[HD_TABLE_COLUMN_MAX];
    uint32_t count = 0;

    sheet->table = NULL;
    if (cli->is_json) {
        sheet->list = hd_json_array(cli->json, key);
        return;
    }
    for (; field->key != NULL || field->title != NULL; field++) {
        if (field->title == NULL || (field->only != 0 && field->only != sheet->kind)) {
            continue;
        }
        assert(count + 3 <= HD_TABLE_COLUMN_MAX);
        titles[count++] = field->title;
        if (field->type == HD_BENCH_SPREAD) {
            titles[count++] = "min";
            titles[count++] = "p90";
        }
    }
    sheet->table = hd_table_create(count, titles);
}

void hd_bench_sheet_end(struct hd_bench_sheet *sheet, hd_status status)
{
    if (sheet->table != NULL && status == HD_OK) {
        hd_table_print(sheet->table, 0, stdout);
    }
    hd_table_destroy(sheet->table);
}
