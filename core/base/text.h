/*
 * base/text.h - text to values and back, the same under every locale.
 *
 * The whole text must be the value: "8x" is no number, nor are "0x8", "inf" and "nan".  A
 * double is written with the fewest digits that read back to the same bits.  Readers return 1 and
 * set their output, or return 0 and leave it. [any-thread]
 */
#ifndef HEDDLE_BASE_TEXT_H
#define HEDDLE_BASE_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#define HD_NUMBER_TEXT_BYTES 32u /* with the final zero */

int hd_text_to_number(const char *text, double *value); /* decimal, finite */
int hd_text_to_unsigned(const char *text, uint64_t *value);
int hd_text_to_integer(const char *text, int64_t *value);
int hd_text_to_flag(const char *text, uint32_t *value);  /* on off true false yes no 1 0 */
int hd_text_to_bytes(const char *text, uint64_t *value); /* 64, 64K, 3M, 1G: powers of 1024 */

/* "60", "0.003", "1e-8", "-0"; "nan", "inf" and "-inf" are written, though never read. */
void hd_text_from_number(double value, char text[HD_NUMBER_TEXT_BYTES]);

/* Bytes until the first that is not well-formed UTF-8; `length_bytes` if all are. */
uint64_t hd_text_utf8_bytes(const char *text, uint64_t length_bytes);

/* Insertions, deletions, replacements and swaps of neighbours between two short texts. */
uint32_t hd_text_distance(const char *left, const char *right);

/* The nearest of several names: offer each, then look; ties keep the first. */
struct hd_nearest {
    const char *wanted;
    const char *name;  /* borrowed from the offers; NULL: none was offered */
    uint32_t distance; /* of `name` */
};
void hd_nearest_offer(struct hd_nearest *nearest, const char *name);

/* Appends printf's text to `text`, which ends in zero.  False: all of it does not fit in
   `capacity_bytes`, and nothing is appended. */
bool hd_text_append(char *text, uint32_t capacity_bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Cuts white space at both ends, in place; the result lies within `text`. */
char *hd_text_trim(char *text);

/* "name" as plugins and their options are named: [a-z0-9_]+, at most 48 bytes. */
int hd_text_is_name(const char *text);

/* NULL: `value` can stand in an ini file and is read back as it is; else why not, one sentence. */
const char *hd_text_ini_fault(const char *value);

#endif /* HEDDLE_BASE_TEXT_H */
