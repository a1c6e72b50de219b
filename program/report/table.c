#include "report/table.h"

#include "base/number.h"
#include "base/text.h"

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { CELL_BYTES = 4096 };

struct hd_table {
    uint32_t column_count;
    bool has_titles;
    uint32_t cell_count;
    uint32_t capacity;
    char **cells; /* the titles first */
};

static void table_push(struct hd_table *table, const char *text)
{
    if (table->cell_count == table->capacity) {
        table->capacity = table->capacity > 0 ? 2 * table->capacity : 64;
        table->cells = realloc(table->cells, table->capacity * sizeof *table->cells);
        assert(table->cells != NULL);
    }
    char *copy = strdup(text);
    assert(copy != NULL);
    for (char *at = copy; *at != '\0'; at++) {
        *at = *at == '\n' || *at == '\r' || *at == '\t' ? ' ' : *at;
    }
    table->cells[table->cell_count++] = copy;
}

struct hd_table *hd_table_create(uint32_t column_count, const char *const *titles)
{
    struct hd_table *table = calloc(1, sizeof *table);

    assert(table != NULL && column_count > 0 && column_count <= HD_TABLE_COLUMN_MAX);
    table->column_count = column_count;
    table->has_titles = titles != NULL;
    for (uint32_t i = 0; titles != NULL && i < column_count; i++) {
        table_push(table, titles[i]);
    }
    return table;
}

void hd_table_destroy(struct hd_table *table)
{
    if (table == NULL) {
        return;
    }
    for (uint32_t i = 0; i < table->cell_count; i++) {
        free(table->cells[i]);
    }
    free(table->cells);
    free(table);
}

void hd_table_cell(struct hd_table *table, const char *format, ...)
{
    char text[CELL_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    table_push(table, text);
}

/* In characters; every UTF-8 sequence counts as one column. */
static uint32_t table_width_of(const char *text)
{
    uint32_t width = 0;
    for (; *text != '\0'; text++) {
        width += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return width;
}

/* Also for a number with a unit, such as "57%" or "1.5x". */
static bool table_is_number(const char *text)
{
    char digits[HD_NUMBER_TEXT_BYTES];
    double value;
    const size_t length = strlen(text);

    if (length == 0 || strcmp(text, "-") == 0) {
        return true;
    }
    if (length >= sizeof digits) {
        return false;
    }
    memcpy(digits, text, length + 1);
    if (strchr("%x", digits[length - 1]) != NULL) {
        digits[length - 1] = '\0';
    }
    return hd_text_to_number(digits, &value);
}

struct column {
    uint32_t width;
    bool is_number;
};

static void table_measure(const struct hd_table *table, struct column *columns)
{
    const uint32_t first = table->has_titles ? table->column_count : 0;

    for (uint32_t i = 0; i < table->column_count; i++) {
        columns[i] = (struct column){0, table->cell_count > first};
    }
    for (uint32_t i = 0; i < table->cell_count; i++) {
        struct column *column = &columns[i % table->column_count];
        const uint32_t width = table_width_of(table->cells[i]);
        column->width = hd_max_u32(column->width, width);
        if (i >= first) {
            column->is_number = column->is_number && table_is_number(table->cells[i]);
        }
    }
}

static void table_print_cell(const char *text, const struct column *column, bool is_last,
                             FILE *stream)
{
    const int padding = (int)(column->width - table_width_of(text));

    if (column->is_number) {
        fprintf(stream, "%*s%s", padding, "", text);
    } else {
        fprintf(stream, "%s%*s", text, is_last ? 0 : padding, "");
    }
    fputs(is_last ? "\n" : "  ", stream);
}

void hd_table_print(const struct hd_table *table, uint32_t indent, FILE *stream)
{
    struct column columns[HD_TABLE_COLUMN_MAX];

    assert(table->cell_count % table->column_count == 0);
    table_measure(table, columns);
    for (uint32_t i = 0; i < table->cell_count; i++) {
        const uint32_t place = i % table->column_count;
        if (place == 0) {
            fprintf(stream, "%*s", (int)indent, "");
        }
        table_print_cell(table->cells[i], &columns[place], place + 1 == table->column_count,
                         stream);
    }
}
