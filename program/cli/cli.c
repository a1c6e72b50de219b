#include "cli/cli.h"
#include "base/try.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *hd_cli_option(const struct hd_cli *cli, const char *name, uint32_t index)
{
    for (uint32_t i = 0; i < cli->choice_count; i++) {
        if (strcmp(cli->choices[i].name, name) == 0 && index-- == 0) {
            return cli->choices[i].value != NULL ? cli->choices[i].value : "";
        }
    }
    return NULL;
}

int hd_cli_refuse(struct hd_cli *cli, const char *format, ...)
{
    char text[1024];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    hd_problem_place(&cli->problem, "command line");
    hd_problem_set(&cli->problem, HD_INVALID, HD_EXIT_USAGE, "%s", text);
    return cli->problem.exit_code;
}

hd_status hd_cli_words_max(struct hd_cli *cli, uint32_t count_max)
{
    if (cli->word_count <= count_max) {
        return HD_OK;
    }
    hd_problem_remedy(&cli->problem,
                      "write a key as section.key=value; the name of a file ends in .ini");
    hd_cli_refuse(cli, "%s does not take the argument %.200s", cli->command->verb,
                  cli->words[count_max]);
    return HD_INVALID;
}

hd_status hd_cli_config(struct hd_cli *cli, struct hd_config *config)
{
    return hd_config_load(config, cli->file, cli->override_count, cli->overrides, &cli->problem);
}

static bool cli_is_known(void *context, const char *kind, const char *name)
{
    return hd_registry_knows(context, kind, name);
}

hd_status hd_cli_check_sections(struct hd_cli *cli, struct hd_config *config)
{
    return hd_config_check_sections(config, cli_is_known, cli->registry, &cli->problem);
}

hd_status hd_cli_read_options(struct hd_cli *cli, struct hd_config *config,
                              const struct hd_plugin *plugin, struct hd_option_value **options)
{
    *options = calloc(plugin->option_count + 1, sizeof **options);
    if (*options == NULL) {
        return hd_problem_no_memory(&cli->problem, 0, "the options of %s", plugin->name);
    }
    return hd_config_options(config, plugin, *options, &cli->problem);
}

hd_status hd_cli_take_plugin(struct hd_cli *cli, struct hd_config *config,
                             const struct hd_cli_wanted *wanted, const struct hd_candidate **found,
                             struct hd_option_value **options)
{
    hd_status status =
        hd_registry_find(cli->registry, wanted->kind, wanted->name, found, &cli->problem);

    if (status == HD_OK) {
        return hd_cli_read_options(cli, config, &(*found)->plugin, options);
    }
    if (wanted->section == NULL) {
        hd_problem_place(&cli->problem, "command line");
        hd_problem_key(&cli->problem, "%s", wanted->key);
        return status;
    }
    hd_problem_place(&cli->problem, "%s", hd_config_place(config, wanted->section, wanted->key));
    hd_problem_key(&cli->problem, "%s.%s", wanted->section, wanted->key);
    return status;
}

hd_status hd_cli_take_schedule(struct hd_cli *cli, struct hd_config *config,
                               struct hd_plugins *plugins)
{
    const struct hd_cli_wanted schedule = {HD_KIND_SCHEDULE, "pipeline", "schedule",
                                           config->pipeline.schedule};

    memset(plugins, 0, sizeof *plugins);
    return hd_config_is_csv(config) ? HD_OK
                                    : hd_cli_take_plugin(cli, config, &schedule, &plugins->schedule,
                                                         &plugins->schedule_options);
}

static hd_status cli_take_all(struct hd_cli *cli, struct hd_config *config,
                              struct hd_plugins *plugins)
{
    const struct hd_cli_wanted transport = {HD_KIND_TRANSPORT, "transport", "name",
                                            config->transport.name};
    const struct hd_cli_wanted inner = {HD_KIND_TRANSPORT, "transport", "inner",
                                        config->transport.inner};
    const struct hd_cli_wanted kernel = {HD_KIND_KERNEL, "kernels", "name", config->kernels.name};

    HD_TRY(hd_cli_take_schedule(cli, config, plugins));
    HD_TRY(hd_cli_take_plugin(cli, config, &transport, &plugins->transport,
                              &plugins->transport_options));
    if (strcmp(config->transport.inner, "none") != 0) {
        HD_TRY(hd_cli_take_plugin(cli, config, &inner, &plugins->inner, &plugins->inner_options));
    }
    HD_TRY(hd_cli_take_plugin(cli, config, &kernel, &plugins->kernel, &plugins->kernel_options));
    return hd_cli_check_sections(cli, config);
}

hd_status hd_cli_take_plugins(struct hd_cli *cli, struct hd_config *config,
                              struct hd_plugins *plugins)
{
    const hd_status status = cli_take_all(cli, config, plugins);

    if (status != HD_OK) {
        hd_plugins_finish(plugins);
    }
    return status;
}

const char *hd_cli_bold(const struct hd_cli *cli)
{
    return cli->has_color ? "\033[1m" : "";
}

const char *hd_cli_plain(const struct hd_cli *cli)
{
    return cli->has_color ? "\033[0m" : "";
}
