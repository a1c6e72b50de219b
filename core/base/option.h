/*
 * base/option.h - the option table of a plugin: whether it is valid, and how to read a value.
 *
 * A range is text, with | between alternatives:
 *
 *   1..64         both ends included; bytes may be written 4K..1G
 *   0<..1  0..<1  an end with < beside it is excluded
 *   1..           no upper end
 *   1 | 2 | 4     these values; of a text option, these words
 *   auto | 1..64  a word beside numbers (only for the core's own keys)
 *
 * The registry rejects a plugin whose table is not valid, and the config reads values with it.
 * Reasons are one sentence without a full stop. [setup]
 */
#ifndef HEDDLE_BASE_OPTION_H
#define HEDDLE_BASE_OPTION_H

#include <heddle/plugin.h>

#include <stdbool.h>
#include <stdint.h>

#define HD_OPTION_COUNT_MAX 64u
#define HD_REASON_BYTES     256u

/* "schedule", "transport" or "kernel" for an enum hd_plugin_kind, else "plugin"; static. */
const char *hd_kind_name(uint32_t kind);
uint32_t hd_kind_of_name(const char *name); /* 0: not a kind */

/* A text and its value as `type`, to compare with a range. */
struct hd_quantity {
    const char *text;
    long double number; /* exact for every 64-bit integer and every double */
    uint32_t type;      /* enum hd_option_type */
};

/* Whether `range` (NULL: everything) includes the value.  A text matches words only. */
bool hd_range_holds(const char *range, const struct hd_quantity *value);
/* Whether one alternative of `range` is this word. */
bool hd_range_has_word(const char *range, const char *word);

/* Reads `text` as a value of this option and checks type and range; false with a reason.
   value->text is borrowed from `text`. */
bool hd_option_read(const struct hd_option *option, const char *text, struct hd_option_value *value,
                    char reason[HD_REASON_BYTES]);

/* Whether names are valid and differ, types are known, ranges are well-formed, and every default is
   in its own range; false with a reason. */
bool hd_option_table_is_sound(const struct hd_option *options, uint32_t option_count,
                              char reason[HD_REASON_BYTES]);

/* "whole number", "number", "flag", "bytes", "text"; static. */
const char *hd_option_type_name(uint32_t type);

#endif /* HEDDLE_BASE_OPTION_H */
