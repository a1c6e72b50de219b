/*
 * base/option.h - the option table of a plugin: is it sound, and what does a text mean in it.
 *
 * The range of an option is text as people write it, alternatives with | between them:
 *
 *   1..64         both ends belong to it; bytes may be written 4K..1G
 *   0<..1  0..<1  an end with < beside it does not belong to it
 *   1..           no upper end
 *   1 | 2 | 4     these values; of a text option, these words
 *   auto | 1..64  a word beside numbers (for the core's own keys; no number means it)
 *
 * The registry refuses a plugin whose table is not sound; the config reads values with
 * it.  Reasons are one sentence without a full stop. [setup]
 */
#ifndef HEDDLE_BASE_OPTION_H
#define HEDDLE_BASE_OPTION_H

#include <heddle/plugin.h>

#include <stdint.h>

#define HD_OPTION_COUNT_MAX 64u
#define HD_REASON_BYTES     256u

/* "schedule", "transport" or "kernel" for an enum hd_plugin_kind, else "plugin"; static. */
const char *hd_kind_name(uint32_t kind);
uint32_t hd_kind_of_name(const char *name); /* 0: none of them */

/* What `text` is as a value of `type`, for comparison with a range. */
struct hd_quantity {
    const char *text;
    long double number; /* exact for every 64-bit integer and every double */
    uint32_t type;      /* enum hd_option_type */
};

/* 1: `range` (NULL: everything) holds the value.  A text matches words only. */
int hd_range_holds(const char *range, const struct hd_quantity *value);
/* 1: one alternative of `range` is this word. */
int hd_range_has_word(const char *range, const char *word);

/* Reads `text` as a value of this option, checked against type and range; 0 with a reason when it
   is none.  value->text is borrowed from `text`. */
int hd_option_read(const struct hd_option *option, const char *text, struct hd_option_value *value,
                   char reason[HD_REASON_BYTES]);

/* 1: names are names and differ, types are known, ranges are well-formed, and every default is in
   its own range; 0 with a reason. */
int hd_option_table_is_sound(const struct hd_option *options, uint32_t option_count,
                             char reason[HD_REASON_BYTES]);

/* "whole number", "number", "flag", "bytes", "text"; static. */
const char *hd_option_type_name(uint32_t type);

#endif /* HEDDLE_BASE_OPTION_H */
