/*
 * base/text.h - text to values and back, the same in every locale.
 *
 * The whole text must be the value: "8x" is not a number, nor are "0x8", "inf" and "nan".  A double
 * is written with the fewest digits that read back to the same bits.  A reader sets its output and
 * returns true, or returns false and leaves it unchanged. [any-thread]
 */
#ifndef HEDDLE_BASE_TEXT_H
#define HEDDLE_BASE_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#define HD_NUMBER_TEXT_BYTES 32u /* with the final zero */

bool hd_text_to_number(const char *text, double *value); /* decimal, finite */
bool hd_text_to_unsigned(const char *text, uint64_t *value);
bool hd_text_to_integer(const char *text, int64_t *value);
bool hd_text_to_flag(const char *text, uint32_t *value);  /* on off true false yes no 1 0 */
bool hd_text_to_bytes(const char *text, uint64_t *value); /* 64, 64K, 3M, 1G: powers of 1024 */

/* "60", "0.003", "1e-8", "-0"; "nan", "inf" and "-inf" are written, but not read. */
void hd_text_from_number(double value, char text[HD_NUMBER_TEXT_BYTES]);

/* The number of bytes before the first that is not UTF-8; `length_bytes` if all are. */
uint64_t hd_text_utf8_bytes(const char *text, uint64_t length_bytes);

/* The number of insertions, deletions, replacements and swaps of neighbours between two texts. */
uint32_t hd_text_distance(const char *left, const char *right);

/* The nearest of several names: offer each, then read `name`; of equal ones the first wins. */
struct hd_nearest {
    const char *wanted;
    const char *name;  /* borrowed from an offer; NULL: there was no offer */
    uint32_t distance; /* of `name` */
};
void hd_nearest_offer(struct hd_nearest *nearest, const char *name);

/* Appends printf's text to `text`, which ends in zero.  False: all of it does not fit in
   `capacity_bytes`, and nothing is appended. */
bool hd_text_append(char *text, uint32_t capacity_bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Removes white space at both ends, in place; the result points into `text`. */
char *hd_text_trim(char *text);

/* Whether the text is a name of a plugin or option: [a-z0-9_]+, at most 48 bytes. */
bool hd_text_is_name(const char *text);

/* NULL: `value` can be written to an ini file and reads back unchanged; else the reason. */
const char *hd_text_ini_fault(const char *value);

#endif /* HEDDLE_BASE_TEXT_H */
