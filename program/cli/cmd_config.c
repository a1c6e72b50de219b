/* cli/cmd_config.c - heddle config: the effective configuration. */
#include "base/option.h"
#include "output/config_write.h"
#include "base/text.h"
#include "cli/cli.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

static const struct hd_cli_option cmd_config_options[] = {
    {"--changed", NULL, "shows only keys that do not have their default"},
    {NULL, NULL, NULL},
};

/* {"value": ..., "origin": "conf/x.ini:12"}; a number where the text is one. */
static void cmd_config_add_value(struct cJSON *section, const char *key, const char *value,
                                 const char *origin)
{
    struct cJSON *item = hd_json_object(section, key);
    double number;
    uint64_t natural;

    if (hd_text_to_unsigned(value, &natural)) {
        hd_json_u64(item, "value", natural);
    } else if (hd_text_to_number(value, &number)) {
        hd_json_number(item, "value", number);
    } else {
        hd_json_text(item, "value", value);
    }
    hd_json_text(item, "origin", origin);
}

/* The walk over the keys, with the section that is being filled. */
struct walk {
    const struct hd_cli *cli;
    const struct hd_config *config;
    bool only_changed;
    struct cJSON *sections, *current;
    char name[64];
};

static void cmd_config_visit(void *context, const char *section, const char *key, const char *value,
                             const char *origin)
{
    struct walk *walk = context;

    if (walk->only_changed && !hd_config_is_changed(walk->config, section, key)) {
        return;
    }
    if (strcmp(walk->name, section) != 0) {
        snprintf(walk->name, sizeof walk->name, "%s", section);
        walk->current = hd_json_object(walk->sections, section);
    }
    cmd_config_add_value(walk->current, key, value, origin);
}

static void cmd_config_add_options(struct walk *walk, const struct hd_plugin *plugin)
{
    char section[128];

    snprintf(section, sizeof section, "%s.%s", hd_kind_name(plugin->kind), plugin->name);
    for (uint32_t i = 0; i < plugin->option_count; i++) {
        const struct hd_option *option = &plugin->options[i];
        const char *value = hd_config_option_text(walk->config, plugin, i);
        if (walk->only_changed && strcmp(value, option->initial) == 0) {
            continue;
        }
        if (strcmp(walk->name, section) != 0) {
            snprintf(walk->name, sizeof walk->name, "%.63s", section);
            walk->current = hd_json_object(walk->sections, section);
        }
        cmd_config_add_value(walk->current, option->name, value,
                             hd_config_place(walk->config, section, option->name));
    }
}

/* The plugin of a section [kind.name] that this configuration does not use; NULL: it cannot be
   loaded, which is not an error then. */
static const struct hd_plugin *cmd_config_find_unused(struct hd_cli *cli, const char *section)
{
    const struct hd_candidate *found = NULL;
    struct hd_problem problem = {.exit_code = 0};
    char kind[64];
    const char *const dot = strchr(section, '.');

    snprintf(kind, sizeof kind, "%.*s", (int)(dot - section), section);
    hd_registry_find(cli->registry, hd_kind_of_name(kind), dot + 1, &found, &problem);
    return found != NULL ? &found->plugin : NULL;
}

/* Also checks the values of plugins that are not used. */
static hd_status cmd_config_check_unused(struct hd_cli *cli, struct hd_config *config,
                                         const struct hd_plugin **list, uint32_t *count)
{
    hd_status status = HD_OK;

    for (uint32_t i = 0; i < config->entry_count && status == HD_OK; i++) {
        const struct hd_config_entry *entry = &config->entries[i];
        const struct hd_plugin *plugin = strchr(entry->section, '.') == NULL || entry->is_used != 0
                                             ? NULL
                                             : cmd_config_find_unused(cli, entry->section);
        if (plugin == NULL) {
            continue;
        }
        struct hd_option_value values[HD_OPTION_COUNT_MAX];
        status = hd_config_options(config, plugin, values, &cli->problem); /* marks the section */
        list[(*count)++] = plugin;
    }
    return status;
}

/* The options of plugins that could not be loaded, as given. */
static void cmd_config_add_strays(struct walk *walk)
{
    for (uint32_t i = 0; i < walk->config->entry_count; i++) {
        const struct hd_config_entry *entry = &walk->config->entries[i];
        if (strchr(entry->section, '.') == NULL || entry->is_used || entry->key[0] == '\0') {
            continue;
        }
        struct cJSON *section = cJSON_GetObjectItemCaseSensitive(walk->sections, entry->section);
        cmd_config_add_value(section != NULL ? section
                                             : hd_json_object(walk->sections, entry->section),
                             entry->key, entry->value, entry->place);
    }
}

static void cmd_config_print_config(struct hd_cli *cli, const struct hd_config *config,
                                    uint32_t count, const struct hd_plugin *const *list)
{
    const bool only_changed = hd_cli_option(cli, "--changed", 0) != NULL;

    if (!cli->is_json) {
        hd_config_write(config, stdout, only_changed, count, list);
        return;
    }
    struct walk walk = {.cli = cli, .config = config, .only_changed = only_changed};
    walk.sections = hd_json_object(cli->json, "config");
    hd_config_each(config, cmd_config_visit, &walk);
    for (uint32_t i = 0; i < count; i++) {
        cmd_config_add_options(&walk, list[i]);
    }
    cmd_config_add_strays(&walk);
}

static int cmd_config(struct hd_cli *cli)
{
    struct hd_plugins plugins;
    struct hd_config config;

    if (hd_cli_words_max(cli, 0) != HD_OK || hd_cli_config(cli, &config) != HD_OK) {
        return cli->problem.exit_code;
    }
    if (hd_cli_take_plugins(cli, &config, &plugins) != HD_OK) {
        hd_config_finish(&config);
        return cli->problem.exit_code;
    }
    /* The plugins in use, and at most one for each entry. */
    const struct hd_plugin **list = calloc(HD_PLUGINS_MAX + config.entry_count, sizeof *list);
    if (list == NULL) {
        hd_problem_no_memory(&cli->problem, 0, "the list of plugins");
    } else {
        uint32_t count = hd_plugins_list(&plugins, list);
        if (cmd_config_check_unused(cli, &config, list, &count) == HD_OK) {
            cmd_config_print_config(cli, &config, count, list);
        }
    }
    free(list);
    hd_plugins_finish(&plugins);
    hd_config_finish(&config);
    return cli->problem.exit_code;
}

const struct hd_command hd_command_config = {
    "config",           NULL,       "prints the effective configuration as a valid ini file",
    cmd_config_options, cmd_config,
};
