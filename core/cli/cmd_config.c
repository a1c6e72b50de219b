/* cli/cmd_config.c - heddle config: the effective configuration. */
#include "base/option.h"
#include "base/text.h"
#include "cli/cli.h"

#include <string.h>

static const struct hd_cli_option options[] = {
    {"--changed", NULL, "only what is not the default", NULL},
    {NULL, NULL, NULL, NULL},
};

/* {"value": ..., "origin": "conf/x.ini:12"}; a number where the text is one. */
static void add_value(struct cJSON *section, const char *key, const char *value, const char *origin)
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

/* The walk over the core's keys: the section that is being filled. */
struct walk {
    const struct hd_cli *cli;
    const struct hd_config *config;
    int only_changed;
    struct cJSON *sections, *current;
    char name[64];
};

static void visit(void *context, const char *section, const char *key, const char *value,
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
    add_value(walk->current, key, value, origin);
}

static void add_options(struct walk *walk, const struct hd_plugin *plugin)
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
        add_value(walk->current, option->name, value,
                  hd_config_place(walk->config, section, option->name));
    }
}

static int cmd_config(struct hd_cli *cli)
{
    const int only_changed = hd_cli_option(cli, "--changed", 0) != NULL;
    const struct hd_plugin *list[4];
    struct hd_cli_plugins plugins;
    struct hd_config config;
    uint32_t count = 0;

    if (hd_cli_words_max(cli, 0) != HD_OK || hd_cli_config(cli, &config) != HD_OK) {
        return cli->problem.exit_code;
    }
    if (hd_cli_plugins(cli, &config, &plugins) != HD_OK) {
        hd_config_finish(&config);
        return cli->problem.exit_code;
    }
    if (plugins.schedule != NULL) {
        list[count++] = &plugins.schedule->plugin;
    }
    list[count++] = &plugins.transport->plugin;
    if (plugins.inner != NULL) {
        list[count++] = &plugins.inner->plugin;
    }
    list[count++] = &plugins.kernel->plugin;
    if (cli->is_json) {
        struct walk walk = {.cli = cli, .config = &config, .only_changed = only_changed};
        walk.sections = hd_json_object(cli->json, "config");
        hd_config_each(&config, visit, &walk);
        for (uint32_t i = 0; i < count; i++) {
            add_options(&walk, list[i]);
        }
    } else {
        hd_config_write(&config, stdout, (uint32_t)only_changed, count, list);
    }
    hd_cli_plugins_finish(&plugins);
    hd_config_finish(&config);
    return 0;
}

const struct hd_command hd_command_config = {
    "config", NULL, "prints the effective configuration as a valid ini file", options, cmd_config,
};
