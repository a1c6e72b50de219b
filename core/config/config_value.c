/* config/config_value.c - from the text of one key to the member of struct hd_config. */
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

/* struct hd_config_counts and struct hd_config_numbers, which have this layout. */
struct list {
    uint32_t count;
    void *values;
};
_Static_assert(sizeof(struct list) == sizeof(struct hd_config_counts) &&
                   sizeof(struct list) == sizeof(struct hd_config_numbers),
               "both kinds of list are read as struct list");

static bool config_value_is_list(const struct hd_key *key)
{
    return key->type == HD_KEY_COUNTS || key->type == HD_KEY_NUMBERS;
}

static size_t config_value_element_bytes(const struct hd_key *key)
{
    return key->type == HD_KEY_COUNTS ? sizeof(uint32_t) : sizeof(double);
}

static struct list config_value_list_of(const struct hd_key *key, const struct hd_config *config)
{
    struct list list;

    memcpy(&list, config_value_member_of(key, config), sizeof list);
    return list;
}

/* The type that hd_option_read reads; the words beside numbers are looked up before. */
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

/* Reads one value and checks it against the range; a seed may be too large for an option. */
static hd_status config_value_read_one(const struct hd_key *key, const char *text,
                                       struct hd_option_value *value, struct hd_problem *problem)
{
    const uint32_t type = config_value_option_type_of(key);
    const bool is_free_text = type == HD_OPTION_TEXT && key->type != HD_KEY_CHOICE;
    const struct hd_option option = {
        .name = key->name, .range = is_free_text ? NULL : key->range, .type = type};
    char reason[HD_REASON_BYTES];
    uint64_t seed;

    if (key->type == HD_KEY_SEED && hd_text_to_unsigned(text, &seed)) {
        memcpy(&value->integer, &seed, sizeof seed);
        return HD_OK;
    }
    return hd_option_read(&option, text, value, reason) ? HD_OK
                                                        : config_value_refuse(key, problem, reason);
}

/* Whether `text` is a word of the range beside numbers, such as "auto". */
static bool config_value_is_word(const struct hd_key *key, const char *text)
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
        assert(config_value_is_list(key)); /* which is empty already */
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

static hd_status config_value_store_list(const struct hd_key *key, const char *text, void *member,
                                         struct hd_problem *problem)
{
    struct hd_key element = *key;
    struct list list = {.count = 1};
    hd_status status = HD_OK;

    element.type = key->type == HD_KEY_COUNTS ? HD_KEY_COUNT : HD_KEY_NUMBER;
    for (const char *at = text; *at != '\0'; at++) {
        list.count += *at == ',';
    }
    if (list.count > HD_CONFIG_LIST_MAX) {
        return config_value_refuse(key, problem, "the list has more than 32768 entries");
    }
    char *copy = strdup(text);
    list.values = calloc(list.count, config_value_element_bytes(key));
    if (copy == NULL || list.values == NULL) {
        status = hd_problem_no_memory(problem, 0, "a list of %u entries", list.count);
    }
    char *rest = copy;
    for (unsigned char *at = list.values; status == HD_OK && rest != NULL;
         at += config_value_element_bytes(key)) {
        const char *part = hd_text_trim(strsep(&rest, ","));
        status = *part == '\0' ? config_value_refuse(key, problem, "the list has an empty entry")
                               : config_value_store_one(&element, part, at, problem);
    }
    free(copy);
    if (status != HD_OK) {
        free(list.values);
        return status;
    }
    memcpy(member, &list, sizeof list);
    return HD_OK;
}

/* A value that this version does not implement is an error; it is never ignored. */
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
    hd_problem_remedy(problem, "this version supports %s", key->served);
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
    if (config_value_is_list(key)) {
        free(config_value_list_of(key, config).values);
        memset(config_value_member_of(key, config), 0, sizeof(struct list));
    }
}

bool hd_key_equal(const struct hd_key *key, const struct hd_config *left,
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
        break;
    }
    const struct list one = config_value_list_of(key, left);
    const struct list other = config_value_list_of(key, right);
    return one.count == other.count &&
           (one.count == 0 ||
            memcmp(one.values, other.values, one.count * config_value_element_bytes(key)) == 0);
}
