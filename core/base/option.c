#include "base/option.h"
#include "base/text.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { PART_BYTES = 128 };

const char *hd_kind_name(uint32_t kind)
{
    static const char *const names[] = {"plugin", "schedule", "transport", "kernel"};
    return kind <= HD_KIND_KERNEL ? names[kind] : names[0];
}

uint32_t hd_kind_of_name(const char *name)
{
    for (uint32_t kind = HD_KIND_SCHEDULE; kind <= HD_KIND_KERNEL; kind++) {
        if (strcmp(name, hd_kind_name(kind)) == 0) {
            return kind;
        }
    }
    return 0;
}

const char *hd_option_type_name(uint32_t type)
{
    static const char *const names[] = {"?", "whole number", "number", "flag", "bytes", "text"};
    return type <= HD_OPTION_TEXT ? names[type] : names[0];
}

/* Reads a number of the type, exactly; false: the text is not one. */
static bool option_read_number(const char *text, uint32_t type, long double *number)
{
    int64_t integer;
    uint64_t natural;
    double real;
    uint32_t flag;

    switch (type) {
    case HD_OPTION_INTEGER:
        if (hd_text_to_integer(text, &integer)) {
            *number = (long double)integer;
            return true;
        }
        if (hd_text_to_unsigned(text, &natural)) { /* above INT64_MAX: a seed */
            *number = (long double)natural;
            return true;
        }
        return false;
    case HD_OPTION_NUMBER:
        if (!hd_text_to_number(text, &real)) {
            return false;
        }
        *number = (long double)real;
        return true;
    case HD_OPTION_FLAG:
        if (!hd_text_to_flag(text, &flag)) {
            return false;
        }
        *number = flag;
        return true;
    case HD_OPTION_BYTES:
        if (!hd_text_to_bytes(text, &natural)) {
            return false;
        }
        *number = (long double)natural;
        return true;
    default:
        return false;
    }
}

/* One alternative of a range. */
struct part {
    char text[PART_BYTES];
    bool is_interval, has_upper, is_open_below, is_open_above;
    long double lower, upper;
};

/* Takes the next alternative off *range: 1; 0: there is none; -1: it is too long. */
static int option_next_part(const char **range, struct part *part)
{
    memset(part, 0, sizeof *part);
    if (*range == NULL || **range == '\0') {
        return 0;
    }
    const size_t length = strcspn(*range, "|");
    if (length >= PART_BYTES) {
        return -1;
    }
    memcpy(part->text, *range, length);
    *range += length + ((*range)[length] == '|');
    char *const trimmed = hd_text_trim(part->text);
    memmove(part->text, trimmed, strlen(trimmed) + 1);
    return 1;
}

/* Reads "0<..1"; false: it is not well-formed with numbers of `type`. */
static bool option_read_interval(struct part *part, uint32_t type)
{
    char below[PART_BYTES];
    char *const dots = strstr(part->text, "..");

    if (dots == NULL) {
        return true;
    }
    const char *above = dots + 2;
    size_t length = (size_t)(dots - part->text);
    memcpy(below, part->text, length);
    part->is_interval = true;
    part->is_open_below = length > 0 && below[length - 1] == '<';
    length -= (size_t)part->is_open_below;
    below[length] = '\0';
    part->is_open_above = above[0] == '<';
    above += part->is_open_above;
    part->has_upper = above[0] != '\0';
    return option_read_number(below, type, &part->lower) &&
           (!part->has_upper ||
            (option_read_number(above, type, &part->upper) && part->lower <= part->upper));
}

static bool option_part_holds(struct part *part, const struct hd_quantity *value)
{
    long double number;

    if (value->type == HD_OPTION_TEXT) {
        return strcmp(part->text, value->text) == 0;
    }
    if (!option_read_interval(part, value->type)) {
        return false;
    }
    if (!part->is_interval) {
        return option_read_number(part->text, value->type, &number) && number == value->number;
    }
    if (value->number < part->lower || (part->is_open_below && value->number == part->lower)) {
        return false;
    }
    return !part->has_upper || value->number < part->upper ||
           (value->number == part->upper && !part->is_open_above);
}

bool hd_range_holds(const char *range, const struct hd_quantity *value)
{
    struct part part;

    if (range == NULL || value->type == HD_OPTION_FLAG) {
        return true;
    }
    while (option_next_part(&range, &part) > 0) {
        if (option_part_holds(&part, value)) {
            return true;
        }
    }
    return false;
}

bool hd_range_has_word(const char *range, const char *word)
{
    struct part part;

    while (option_next_part(&range, &part) > 0) {
        if (strcmp(part.text, word) == 0) {
            return true;
        }
    }
    return false;
}

/* "one of a | b" for words, "in 1..64" for numbers. */
static bool option_say_range(const struct hd_option *option, const char *text, char *reason)
{
    const bool is_words = option->type == HD_OPTION_TEXT || strstr(option->range, "..") == NULL;
    snprintf(reason, HD_REASON_BYTES, "%.64s is not %s %.120s", text, is_words ? "one of" : "in",
             option->range);
    return false;
}

/* Whether an unreadable text consists of digits, and of a unit for bytes: then it is too large. */
static bool option_is_beyond(const char *text, uint32_t type)
{
    const char *const digits = text + (type == HD_OPTION_INTEGER && *text == '-');
    const size_t count = strspn(digits, "0123456789");
    const char *end = digits + count;

    end += type == HD_OPTION_BYTES && *end != '\0' && strchr("KMG", *end) != NULL;
    return (type == HD_OPTION_INTEGER || type == HD_OPTION_BYTES) && count > 0 && *end == '\0';
}

static void option_say_unreadable(const struct hd_option *option, const char *text, char *reason)
{
    const char *const type = hd_option_type_name(option->type);

    if (option_is_beyond(text, option->type)) {
        snprintf(reason, HD_REASON_BYTES, "%.64s is too %s for %s%s", text,
                 text[0] == '-' ? "small" : "large", option->type == HD_OPTION_BYTES ? "" : "a ",
                 type);
        return;
    }
    snprintf(reason, HD_REASON_BYTES, "%.64s is not %s%s", text,
             option->type == HD_OPTION_BYTES ? "" : "a ",
             option->type == HD_OPTION_BYTES  ? "a size in bytes (64, 64K, 3M, 1G)"
             : option->type == HD_OPTION_FLAG ? "flag (on or off)"
                                              : type);
}

bool hd_option_read(const struct hd_option *option, const char *text, struct hd_option_value *value,
                    char reason[HD_REASON_BYTES])
{
    struct hd_quantity quantity = {.text = text, .type = option->type};
    struct hd_option_value read = {.text = text};

    if (option->type != HD_OPTION_TEXT) {
        if (!option_read_number(text, option->type, &quantity.number)) {
            option_say_unreadable(option, text, reason);
            return false;
        }
        if (option->type != HD_OPTION_NUMBER && quantity.number > (long double)INT64_MAX) {
            snprintf(reason, HD_REASON_BYTES, "%.64s is larger than %lld", text,
                     (long long)INT64_MAX);
            return false;
        }
        read.number = (double)quantity.number;
        read.integer = option->type == HD_OPTION_NUMBER ? 0 : (int64_t)quantity.number;
    }
    if (!hd_range_holds(option->range, &quantity)) {
        return option_say_range(option, text, reason);
    }
    *value = read;
    return true;
}

static bool option_range_is_sound(const struct hd_option *option)
{
    const char *range = option->range;
    struct part part;
    long double number;
    int more;

    if (option->type == HD_OPTION_TEXT || option->type == HD_OPTION_FLAG) {
        return true;
    }
    while ((more = option_next_part(&range, &part)) > 0) {
        if (!option_read_interval(&part, option->type) ||
            (!part.is_interval && !option_read_number(part.text, option->type, &number))) {
            return false;
        }
    }
    return more == 0;
}

static bool option_has_control(const char *text)
{
    while ((unsigned char)*text >= ' ') {
        text++;
    }
    return *text != '\0';
}

static bool option_is_sound(const struct hd_option *option, char reason[HD_REASON_BYTES])
{
    struct hd_option_value value;
    char why[HD_REASON_BYTES];

    if (option->name == NULL || !hd_text_is_name(option->name)) {
        snprintf(reason, HD_REASON_BYTES, "the name of an option must have only a-z, 0-9 and _");
        return false;
    }
    if (option->type < HD_OPTION_INTEGER || option->type > HD_OPTION_TEXT) {
        snprintf(reason, HD_REASON_BYTES, "option %s has the unknown type %u", option->name,
                 option->type);
        return false;
    }
    if (option->initial == NULL || option->help == NULL) {
        snprintf(reason, HD_REASON_BYTES, "option %s has no %s", option->name,
                 option->initial == NULL ? "default" : "help");
        return false;
    }
    /* `heddle config` prints default, help and range, and must read back. */
    if (hd_text_ini_fault(option->initial) != NULL) {
        snprintf(reason, HD_REASON_BYTES,
                 "option %s: its own default cannot be written to a file: %s", option->name,
                 hd_text_ini_fault(option->initial));
        return false;
    }
    if (option_has_control(option->help) ||
        (option->range != NULL && option_has_control(option->range))) {
        snprintf(reason, HD_REASON_BYTES, "option %s: help and range must be one line each",
                 option->name);
        return false;
    }
    if (!option_range_is_sound(option)) {
        snprintf(reason, HD_REASON_BYTES, "option %s: its range %.64s is not well-formed",
                 option->name, option->range);
        return false;
    }
    if (!hd_option_read(option, option->initial, &value, why)) {
        snprintf(reason, HD_REASON_BYTES, "option %s: its own default %.160s", option->name, why);
        return false;
    }
    return true;
}

bool hd_option_table_is_sound(const struct hd_option *options, uint32_t option_count,
                              char reason[HD_REASON_BYTES])
{
    if (option_count > HD_OPTION_COUNT_MAX || (option_count > 0 && options == NULL)) {
        snprintf(reason, HD_REASON_BYTES, "it has %u options, %s", option_count,
                 options == NULL ? "but no table of them" : "more than 64");
        return false;
    }
    for (uint32_t i = 0; i < option_count; i++) {
        if (!option_is_sound(&options[i], reason)) {
            return false;
        }
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(options[i].name, options[j].name) == 0) {
                snprintf(reason, HD_REASON_BYTES, "option %s is twice in the table",
                         options[i].name);
                return false;
            }
        }
    }
    return true;
}
