/* config/config_load.c - from the entries to the struct, and the options of plugins. */
#include "base/number.h"
#include "base/text.h"
#include "config/internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* NAME in runs/NAME-YYYYMMDD-HHMMSS is the file's stem. */
static void config_load_name(struct hd_config *config, const char *file)
{
    const char *slash = strrchr(file, '/');
    const char *stem = slash != NULL ? slash + 1 : file;
    const char *dot = strrchr(stem, '.');
    const size_t length = dot != NULL && dot != stem ? (size_t)(dot - stem) : strlen(stem);

    snprintf(config->name, sizeof config->name, "%.*s", (int)hd_min_u64(length, 127), stem);
    snprintf(config->file, sizeof config->file, "%s", file);
}

static hd_status config_load_entries(struct hd_config *config, const char *file,
                                     uint32_t override_count, const char *const *overrides,
                                     struct hd_problem *problem)
{
    hd_status status = HD_OK;

    snprintf(config->name, sizeof config->name, "heddle");
    if (file != NULL) {
        config_load_name(config, file);
        status = hd_entries_read(config, file, problem);
    }
    for (uint32_t i = 0; status == HD_OK && i < override_count; i++) {
        status = hd_entries_override(config, overrides[i], problem);
    }
    return status;
}

static hd_status config_load_values(struct hd_config *config, struct hd_problem *problem)
{
    for (uint32_t i = 0; i < hd_key_count; i++) {
        const struct hd_key *key = &hd_keys[i];
        const struct hd_config_entry *entry = hd_entry_find(config, key->section, key->name);
        const hd_status status =
            hd_key_read(key, entry != NULL ? entry->value : key->initial, config, problem);
        if (status != HD_OK) {
            hd_problem_place(problem, "%s", entry != NULL ? entry->place : "default");
            return status;
        }
    }
    return HD_OK;
}

hd_status hd_config_load(struct hd_config *config, const char *file, uint32_t override_count,
                         const char *const *overrides, struct hd_problem *problem)
{
    memset(config, 0, sizeof *config);
    hd_status status = config_load_entries(config, file, override_count, overrides, problem);
    if (status == HD_OK) {
        status = config_load_values(config, problem);
    }
    if (status == HD_OK) {
        status = hd_config_cross_check(config, problem);
    }
    if (status != HD_OK) {
        hd_config_finish(config);
    }
    return status;
}

hd_status hd_config_check_word(const char *word, struct hd_problem *problem)
{
    struct hd_config scratch;

    memset(&scratch, 0, sizeof scratch);
    hd_status status = hd_entries_override(&scratch, word, problem);
    if (status == HD_OK) {
        const struct hd_config_entry *entry = &scratch.entries[scratch.entry_count - 1];
        const struct hd_key *key = hd_key_find(entry->section, entry->key);
        if (key != NULL) { /* else it is an option of a plugin, whose table only the registry has */
            status = hd_key_read(key, entry->value, &scratch, problem);
        }
        if (status != HD_OK) {
            hd_problem_place(problem, "%s", entry->place);
        }
    }
    hd_config_finish(&scratch);
    return status;
}

void hd_config_finish(struct hd_config *config)
{
    for (uint32_t i = 0; i < hd_key_count; i++) {
        hd_key_free(&hd_keys[i], config);
    }
    for (uint32_t i = 0; i < config->entry_count; i++) {
        free(config->entries[i].value);
    }
    free(config->entries);
    config->entries = NULL;
    config->entry_count = 0;
}

/* Every key of the plugin's section must be one of its options. */
static hd_status config_load_check_options(struct hd_config *config, const char *section,
                                           const struct hd_plugin *plugin,
                                           struct hd_problem *problem)
{
    for (uint32_t i = 0; i < config->entry_count; i++) {
        struct hd_config_entry *entry = &config->entries[i];
        struct hd_nearest nearest = {.wanted = entry->key};
        bool is_option = entry->key[0] == '\0'; /* the section itself */

        if (strcmp(entry->section, section) != 0) {
            continue;
        }
        entry->is_used = true;
        for (uint32_t j = 0; j < plugin->option_count; j++) {
            hd_nearest_offer(&nearest, plugin->options[j].name);
            is_option |= strcmp(plugin->options[j].name, entry->key) == 0;
        }
        if (is_option) {
            continue;
        }
        hd_problem_place(problem, "%s", entry->place);
        hd_problem_key(problem, "%.63s.%.63s", section, entry->key);
        if (nearest.name == NULL) {
            hd_problem_remedy(problem, "remove it: %s has no options", plugin->name);
        } else {
            hd_problem_remedy(problem, "the nearest one is %s", nearest.name);
        }
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "no such option");
    }
    return HD_OK;
}

hd_status hd_config_options(struct hd_config *config, const struct hd_plugin *plugin,
                            struct hd_option_value *values, struct hd_problem *problem)
{
    char section[64];
    char reason[HD_REASON_BYTES];

    snprintf(section, sizeof section, "%s.%s", hd_kind_name(plugin->kind), plugin->name);
    const hd_status status = config_load_check_options(config, section, plugin, problem);
    if (status != HD_OK) {
        return status;
    }
    for (uint32_t i = 0; i < plugin->option_count; i++) {
        const struct hd_option *option = &plugin->options[i];
        const struct hd_config_entry *entry = hd_entry_find(config, section, option->name);
        const char *text = entry != NULL ? entry->value : option->initial;
        if (text != NULL && hd_option_read(option, text, &values[i], reason)) {
            continue;
        }
        hd_problem_key(problem, "%.63s.%.63s", section, option->name);
        if (entry == NULL) {
            hd_problem_place(problem, "%s", plugin->name);
            return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_PLUGIN,
                                  "the plugin's own default is invalid: %s",
                                  text != NULL ? reason : "there is no default");
        }
        hd_problem_place(problem, "%s", entry->place);
        hd_problem_remedy(problem, "%s takes %s", option->name,
                          option->range != NULL ? option->range
                                                : hd_option_type_name(option->type));
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%s", reason);
    }
    return HD_OK;
}

hd_status hd_config_check_sections(struct hd_config *config,
                                   bool (*is_known)(void *context, const char *kind,
                                                    const char *name),
                                   void *context, struct hd_problem *problem)
{
    for (uint32_t i = 0; i < config->entry_count; i++) {
        const struct hd_config_entry *entry = &config->entries[i];
        char kind[64];
        const char *dot = strchr(entry->section, '.');
        if (dot == NULL || entry->is_used) {
            continue;
        }
        snprintf(kind, sizeof kind, "%.*s", (int)(dot - entry->section), entry->section);
        if (!is_known(context, kind, dot + 1)) {
            hd_problem_place(problem, "%s", entry->place);
            hd_problem_key(problem, "[%s]", entry->section);
            hd_problem_remedy(problem, "`heddle list %s` shows the names", kind);
            return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "there is no %s %s", kind,
                                  dot + 1);
        }
    }
    return HD_OK;
}

static bool config_load_ends_in(const char *name, const char *end)
{
    const size_t length = strlen(name);

    return length > strlen(end) && strcasecmp(name + length - strlen(end), end) == 0;
}

bool hd_config_is_csv(const struct hd_config *config)
{
    return config_load_ends_in(config->pipeline.schedule, ".csv");
}

void hd_config_make_absolute(struct hd_config *config)
{
    static const struct {
        const char *section, *key;
        const char *word; /* that is not a path; NULL: a plain name is a plugin */
    } rows[] = {
        {"pipeline", "schedule", NULL}, {"transport", "name", NULL},   {"transport", "inner", NULL},
        {"kernels", "name", NULL},      {"data", "corpus", "builtin"}, {"cost", "from", "none"},
    };
    char here[HD_CONFIG_TEXT_MAX], path[2 * HD_CONFIG_TEXT_MAX];
    const bool is_known = getcwd(here, sizeof here) != NULL;

    for (unsigned i = 0; is_known && i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_config_entry *entry = hd_entry_find(config, rows[i].section, rows[i].key);
        if (entry == NULL || entry->value[0] == '/' ||
            (rows[i].word != NULL
                 ? strcmp(entry->value, rows[i].word) == 0
                 : strchr(entry->value, '/') == NULL && !config_load_ends_in(entry->value, ".so") &&
                       !config_load_ends_in(entry->value, ".csv"))) {
            continue;
        }
        snprintf(path, sizeof path, "%s/%.1023s", here, entry->value);
        char *copy = strlen(path) < HD_CONFIG_TEXT_MAX && hd_text_ini_fault(path) == NULL
                         ? strdup(path)
                         : NULL;
        if (copy != NULL) {
            free(entry->value);
            entry->value = copy;
        }
    }
}

void hd_config_each(const struct hd_config *config,
                    void (*visit)(void *context, const char *section, const char *key,
                                  const char *value, const char *origin),
                    void *context)
{
    for (uint32_t i = 0; i < hd_key_count; i++) {
        const struct hd_key *key = &hd_keys[i];
        const struct hd_config_entry *entry = hd_entry_find(config, key->section, key->name);
        visit(context, key->section, key->name, entry != NULL ? entry->value : key->initial,
              entry != NULL ? entry->place : "default");
    }
}

const char *hd_config_option_text(const struct hd_config *config, const struct hd_plugin *plugin,
                                  uint32_t index)
{
    char section[HD_SECTION_BYTES];

    assert(index < plugin->option_count);
    snprintf(section, sizeof section, "%s.%s", hd_kind_name(plugin->kind), plugin->name);
    const struct hd_config_entry *entry =
        hd_entry_find(config, section, plugin->options[index].name);
    return entry != NULL ? entry->value : plugin->options[index].initial;
}
