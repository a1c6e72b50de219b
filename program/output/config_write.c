#include "output/config_write.h"
#include "config/internal.h"
#include <heddle_build.h>

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* One key of the core or one option of a plugin. */
struct row {
    const char *name, *value, *range, *help, *origin;
};

struct writer {
    const struct hd_config *config;
    FILE *stream;
    bool only_changed;
    char section[64]; /* of the last row written */
};

static void config_write_row(struct writer *writer, const char *section, const struct row *row)
{
    FILE *out = writer->stream;
    const bool fits = strlen(row->name) + strlen(row->value) + strlen(row->origin) < 3900;

    if (strcmp(writer->section, section) != 0) {
        snprintf(writer->section, sizeof writer->section, "%s", section);
        fprintf(out, "\n[%s]\n", section);
    }
    if (row->range != NULL) {
        fprintf(out, "; %s [%s]\n", row->help, row->range);
    } else {
        fprintf(out, "; %s\n", row->help);
    }
    if (fits) {
        fprintf(out, "%s = %s ; %s\n", row->name, row->value, row->origin);
    } else { /* with the origin of a long list, the line would be too long to read back */
        fprintf(out, "; %s\n%s = %s\n", row->origin, row->name, row->value);
    }
}

static void config_write_keys(struct writer *writer, const struct hd_config *defaults)
{
    for (uint32_t i = 0; i < hd_key_count; i++) {
        const struct hd_key *key = &hd_keys[i];
        const struct hd_config_entry *entry =
            hd_entry_find(writer->config, key->section, key->name);
        const struct row row = {key->name, entry != NULL ? entry->value : key->initial, key->range,
                                key->help, entry != NULL ? entry->place : "default"};
        if (!writer->only_changed || !hd_key_equal(key, writer->config, defaults)) {
            config_write_row(writer, key->section, &row);
        }
    }
}

static bool config_write_is_changed(const struct hd_option *option,
                                    const struct hd_config_entry *entry)
{
    struct hd_option_value value;
    struct hd_option_value initial;
    char reason[HD_REASON_BYTES];

    if (entry == NULL || !hd_option_read(option, entry->value, &value, reason) ||
        !hd_option_read(option, option->initial, &initial, reason)) {
        return false;
    }
    if (option->type == HD_OPTION_TEXT) {
        return strcmp(value.text, initial.text) != 0;
    }
    return value.integer != initial.integer ||
           memcmp(&value.number, &initial.number, sizeof value.number) != 0;
}

static void config_write_options(struct writer *writer, const struct hd_plugin *plugin)
{
    char section[HD_SECTION_BYTES];

    snprintf(section, sizeof section, "%s.%s", hd_kind_name(plugin->kind), plugin->name);
    for (uint32_t i = 0; i < plugin->option_count; i++) {
        const struct hd_option *option = &plugin->options[i];
        const struct hd_config_entry *entry = hd_entry_find(writer->config, section, option->name);
        const struct row row = {option->name, entry != NULL ? entry->value : option->initial,
                                option->range, option->help,
                                entry != NULL ? entry->place : "default"};
        if (!writer->only_changed || config_write_is_changed(option, entry)) {
            config_write_row(writer, section, &row);
        }
    }
}

static bool config_write_is_stray(const struct hd_config_entry *entry)
{
    return strchr(entry->section, '.') != NULL && !entry->is_used && entry->key[0] != '\0';
}

/* Sections of plugins that are not in use, as they were given, the entries of each together. */
static void config_write_strays(struct writer *writer)
{
    const struct hd_config *const config = writer->config;

    for (uint32_t i = 0; i < config->entry_count; i++) {
        const struct hd_config_entry *const first = &config->entries[i];
        bool is_first = config_write_is_stray(first);
        for (uint32_t j = 0; j < i; j++) {
            const struct hd_config_entry *const before = &config->entries[j];
            is_first = is_first && (!config_write_is_stray(before) ||
                                    strcmp(before->section, first->section) != 0);
        }
        for (uint32_t j = i; is_first && j < config->entry_count; j++) {
            const struct hd_config_entry *const entry = &config->entries[j];
            const struct row row = {entry->key, entry->value, NULL,
                                    "not checked: its plugin is not in use", entry->place};
            if (config_write_is_stray(entry) && strcmp(entry->section, first->section) == 0) {
                config_write_row(writer, entry->section, &row);
            }
        }
    }
}

hd_status hd_config_write(const struct hd_config *config, FILE *stream, bool only_changed,
                          uint32_t plugin_count, const struct hd_plugin *const *plugins)
{
    struct writer writer = {.config = config, .stream = stream, .only_changed = only_changed};
    struct hd_config defaults;
    struct hd_problem none = {.exit_code = 0};

    const hd_status status = hd_config_load(&defaults, NULL, 0, NULL, &none);
    if (status != HD_OK) {
        return status;
    }
    fprintf(stream, "; heddle %s: %s\n", HD_VERSION,
            only_changed ? "keys that differ from their default" : "the effective configuration");
    config_write_keys(&writer, &defaults);
    for (uint32_t i = 0; i < plugin_count; i++) {
        config_write_options(&writer, plugins[i]);
    }
    config_write_strays(&writer);
    hd_config_finish(&defaults);
    return ferror(stream) ? HD_SYSTEM : HD_OK;
}

bool hd_config_is_changed(const struct hd_config *config, const char *section, const char *key)
{
    struct hd_config defaults;
    struct hd_problem none = {.exit_code = 0};
    const struct hd_key *row = hd_key_find(section, key);

    assert(row != NULL);
    if (hd_entry_find(config, section, key) == NULL ||
        hd_config_load(&defaults, NULL, 0, NULL, &none) != HD_OK) {
        return false;
    }
    const bool is_equal = hd_key_equal(row, config, &defaults);
    hd_config_finish(&defaults);
    return !is_equal;
}
