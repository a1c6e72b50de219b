/*
 * report/table.h - aligned text tables for people.
 *
 * Cells are added one after the other, and fill the rows.  A column in which every cell under the
 * title is a number (or "-" or empty) is aligned to the right.  Two spaces separate columns; a line
 * has no spaces at its end.  Widths count characters, not bytes.  A failed allocation asserts.
 */
#ifndef HEDDLE_REPORT_TABLE_H
#define HEDDLE_REPORT_TABLE_H

#include <stdint.h>
#include <stdio.h>

#define HD_TABLE_COLUMN_MAX 32u

struct hd_table;

/* `titles` [column_count] are copied; NULL: a table without titles. */
struct hd_table *hd_table_create(uint32_t column_count, const char *const *titles);
void hd_table_destroy(struct hd_table *table); /* takes NULL */

/* Adds the next cell, printf's; a newline or tab in it becomes a space. */
void hd_table_cell(struct hd_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Every line begins with `indent` spaces. */
void hd_table_print(const struct hd_table *table, uint32_t indent, FILE *stream);

#endif /* HEDDLE_REPORT_TABLE_H */
