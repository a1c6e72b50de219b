/* config/config_value.c - the text of one key, as the member of the struct that it sets. */
#include "base/text.h"
#include "config/internal.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *config_value_member_of(const struct hd_key *key, const struct hd_config *config)
{
    return (char *)config + key->offset;
}

static int config_value_is_list(const struct hd_key *key)
{
    return key->type == HD_KEY_COUNTS || key->type == HD_KEY_NUMBERS;
}

/* What the option reader is to see; a word beside numbers is looked up before it. */
static uint32_t config_value_option_type_of(const struct hd_key *key)
{
    switch (key->type) {
    case HD_KEY_COUNT:
    case HD_KEY_SEED:
    case HD_KEY_STEPS:
    case HD_KEY_COUNTS:
        return HD_OPTION_INTEGER;
    case HD_KEY_NUMBER:
    case HD_KEY_NUMBERS:
        return HD_OPTION_NUMBER;
    case HD_KEY_FLAG:
        return HD_OPTION_FLAG;
    default:
        return HD_OPTION_TEXT;
    }
}

static hd_status config_value_refuse(const struct hd_key *key, struct hd_problem *problem,
                                     const char *reason)
{
    hd_problem_key(problem, "%s.%s", key->section, key->name);
    hd_problem_remedy(problem, "%s takes %s", key->name, key->range);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%s", reason);
}

/* A number of the key, checked against its range; a seed does not fit an option's value. */
static hd_status config_value_read_one(const struct hd_key *key, const char *text,
                                       struct hd_option_value *value, struct hd_problem *problem)
{
    const struct hd_option option = {.name = key->name,
                                     .range = config_value_option_type_of(key) == HD_OPTION_TEXT &&
                                                      key->type != HD_KEY_CHOICE
                                                  ? NULL
                                                  : key->range,
                                     .type = config_value_option_type_of(key)};
    char reason[HD_REASON_BYTES];
    uint64_t seed;

    if (key->type == HD_KEY_SEED && hd_text_to_unsigned(text, &seed)) {
        memcpy(&value->integer, &seed, sizeof seed);
        return HD_OK;
    }
    return hd_option_read(&option, text, value, reason) ? HD_OK
                                                        : config_value_refuse(key, problem, reason);
}

/* "auto" and its like: a word of the range that is no number. */
static int config_value_is_word(const struct hd_key *key, const char *text)
{
    double number;
    return key->type != HD_KEY_FLAG && key->type != HD_KEY_CHOICE && key->type != HD_KEY_TEXT &&
           !hd_text_to_number(text, &number) && strstr(text, "..") == NULL &&
           hd_range_has_word(key->range, text);
}

static void config_value_store_word(const struct hd_key *key, void *member)
{
    switch (key->type) {
    case HD_KEY_COUNT:
        *(uint32_t *)member = 0;
        return;
    case HD_KEY_STEPS:
        *(int64_t *)member = -1;
        return;
    case HD_KEY_NUMBER:
        *(double *)member = NAN;
        return;
    case HD_KEY_PATH:
        *(char *)member = '\0';
        return;
    default:
        assert(config_value_is_list(key)); /* already empty */
    }
}

static uint32_t config_value_place_of_word(const char *range, const char *word)
{
    const size_t length = strlen(word);
    uint32_t place = 0;

    for (const char *at = range;
         strncmp(at, word, length) != 0 || (at[length] != '\0' && at[length] != ' ');
         at += strcspn(at, "|") + 2) {
        place++;
    }
    return place;
}

static hd_status config_value_store_text(const struct hd_key *key, const char *text, void *member,
                                         struct hd_problem *problem)
{
    if (strlen(text) >= HD_CONFIG_TEXT_MAX) {
        return config_value_refuse(key, problem, "the text is longer than 1023 bytes");
    }
    memcpy(member, text, strlen(text) + 1);
    return HD_OK;
}

static hd_status config_value_store_one(const struct hd_key *key, const char *text, void *member,
                                        struct hd_problem *problem)
{
    struct hd_option_value value;

    const hd_status status = config_value_read_one(key, text, &value, problem);
    if (status != HD_OK) {
        return status;
    }
    switch (key->type) {
    case HD_KEY_COUNT:
    case HD_KEY_FLAG:
        *(uint32_t *)member = (uint32_t)value.integer;
        return HD_OK;
    case HD_KEY_SEED:
    case HD_KEY_STEPS:
        memcpy(member, &value.integer, sizeof value.integer);
        return HD_OK;
    case HD_KEY_NUMBER:
        *(double *)member = value.number;
        return HD_OK;
    case HD_KEY_CHOICE:
        *(uint32_t *)member = config_value_place_of_word(key->range, text);
        return HD_OK;
    default:
        return config_value_store_text(key, text, member, problem);
    }
}

static uint32_t config_value_count_parts(const char *text)
{
    uint32_t count = 1;
    for (; *text != '\0'; text++) {
        count += *text == ',';
    }
    return count;
}

/* Both kinds of list; exactly one of `counts` and `numbers` is not NULL. */
static hd_status config_value_fill_list(const struct hd_key *key, char *text, uint32_t *counts,
                                        double *numbers, struct hd_problem *problem)
{
    char *rest = text;
    uint32_t filled = 0;

    for (char *part; (part = strsep(&rest, ",")) != NULL; filled++) {
        struct hd_option_value value;
        part = hd_text_trim(part);
        const hd_status status =
            *part == '\0' ? config_value_refuse(key, problem, "the list has an empty entry")
                          : config_value_read_one(key, part, &value, problem);
        if (status != HD_OK) {
            return status;
        }
        if (counts != NULL) {
            counts[filled] = (uint32_t)value.integer;
        } else {
            numbers[filled] = value.number;
        }
    }
    return HD_OK;
}

static hd_status config_value_store_list(const struct hd_key *key, const char *text, void *member,
                                         struct hd_problem *problem)
{
    const uint32_t count = config_value_count_parts(text);
    const int is_counts = key->type == HD_KEY_COUNTS;
    char *copy = strdup(text);
    void *values = calloc(count, is_counts ? sizeof(uint32_t) : sizeof(double));
    hd_status status = HD_OK;

    if (copy == NULL || values == NULL) {
        status = hd_problem_set(problem, HD_NO_MEMORY, HD_EXIT_FAILED, "out of memory");
    } else if (count > HD_CONFIG_LIST_MAX) {
        status = config_value_refuse(key, problem, "the list has more than 32768 entries");
    } else {
        status = config_value_fill_list(key, copy, is_counts ? values : NULL,
                                        is_counts ? NULL : values, problem);
    }
    free(copy);
    if (status != HD_OK) {
        free(values);
        return status;
    }
    if (is_counts) {
        *(struct hd_config_counts *)member = (struct hd_config_counts){count, values};
    } else {
        *(struct hd_config_numbers *)member = (struct hd_config_numbers){count, values};
    }
    return HD_OK;
}

/* A later issue builds the rest of the range; till then it is refused, never ignored. */
static hd_status config_value_check_served(const struct hd_key *key, const char *text,
                                           struct hd_problem *problem)
{
    uint32_t given;
    uint32_t served;

    if (key->served == NULL || hd_range_has_word(key->served, text)) {
        return HD_OK;
    }
    if (key->type == HD_KEY_FLAG && hd_text_to_flag(text, &given) &&
        hd_text_to_flag(key->served, &served) && given == served) {
        return HD_OK;
    }
    hd_problem_key(problem, "%s.%s", key->section, key->name);
    hd_problem_remedy(problem, "this version serves %s", key->served);
    return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_USAGE, "%.200s is not built yet", text);
}

hd_status hd_key_read(const struct hd_key *key, const char *text, struct hd_config *config,
                      struct hd_problem *problem)
{
    void *member = config_value_member_of(key, config);
    hd_status status = HD_OK;

    hd_key_free(key, config);
    if (config_value_is_word(key, text)) {
        config_value_store_word(key, member);
    } else if (config_value_is_list(key)) {
        status = config_value_store_list(key, text, member, problem);
    } else {
        status = config_value_store_one(key, text, member, problem);
    }
    return status == HD_OK ? config_value_check_served(key, text, problem) : status;
}

void hd_key_free(const struct hd_key *key, struct hd_config *config)
{
    if (key->type == HD_KEY_COUNTS) {
        struct hd_config_counts *list = config_value_member_of(key, config);
        free(list->values);
        *list = (struct hd_config_counts){0, NULL};
    } else if (key->type == HD_KEY_NUMBERS) {
        struct hd_config_numbers *list = config_value_member_of(key, config);
        free(list->values);
        *list = (struct hd_config_numbers){0, NULL};
    }
}

static int config_value_lists_equal(const struct hd_key *key, const void *left, const void *right)
{
    if (key->type == HD_KEY_COUNTS) {
        const struct hd_config_counts *a = left;
        const struct hd_config_counts *b = right;
        return a->count == b->count &&
               (a->count == 0 || memcmp(a->values, b->values, a->count * sizeof *a->values) == 0);
    }
    const struct hd_config_numbers *a = left;
    const struct hd_config_numbers *b = right;
    return a->count == b->count &&
           (a->count == 0 || memcmp(a->values, b->values, a->count * sizeof *a->values) == 0);
}

int hd_key_equal(const struct hd_key *key, const struct hd_config *left,
                 const struct hd_config *right)
{
    const void *a = config_value_member_of(key, left);
    const void *b = config_value_member_of(key, right);

    switch (key->type) {
    case HD_KEY_COUNT:
    case HD_KEY_FLAG:
    case HD_KEY_CHOICE:
        return memcmp(a, b, sizeof(uint32_t)) == 0;
    case HD_KEY_SEED:
    case HD_KEY_STEPS:
    case HD_KEY_NUMBER:
        return memcmp(a, b, sizeof(uint64_t)) == 0;
    case HD_KEY_TEXT:
    case HD_KEY_PATH:
        return strcmp(a, b) == 0;
    default:
        return config_value_lists_equal(key, a, b);
    }
}
