/* cli/cmd_list.c - heddle list: every plugin found. */
#include "base/option.h"
#include "report/table.h"
#include "cli/cli.h"

#include <string.h>

static const struct hd_cli_option cmd_list_options[] = {
    {"--all", NULL, "also shows rejected plugins, and why"},
    {NULL, NULL, NULL},
};

static bool cmd_list_is_wanted(const struct hd_candidate *candidate, uint32_t kind,
                               bool is_rejected)
{
    const bool was_rejected = candidate->reason[0] != '\0' || candidate->is_shadowed;
    return (kind == 0 || candidate->kind == kind) && was_rejected == is_rejected;
}

static const char *cmd_list_reason_of(const struct hd_candidate *candidate)
{
    return candidate->reason[0] != '\0' ? candidate->reason
                                        : "an earlier directory has a plugin of this name";
}

static void list_add_json(struct cJSON *list, const struct hd_candidate *candidate,
                          bool is_rejected)
{
    struct cJSON *item = hd_json_object(list, NULL);

    hd_json_text(item, "kind", hd_kind_name(candidate->kind));
    hd_json_text(item, "name", candidate->name);
    if (is_rejected) {
        hd_json_text(item, "reason", cmd_list_reason_of(candidate));
    } else {
        hd_json_text(item, "version", candidate->plugin.version);
        hd_json_text(item, "summary", candidate->plugin.summary);
    }
    hd_json_text(item, "path", candidate->path);
}

static void list_add_row(struct hd_table *table, const struct hd_candidate *candidate,
                         bool is_rejected)
{
    hd_table_cell(table, "%s", hd_kind_name(candidate->kind));
    hd_table_cell(table, "%s", candidate->name);
    if (is_rejected) {
        hd_table_cell(table, "%s", cmd_list_reason_of(candidate));
    } else {
        hd_table_cell(table, "%s", candidate->plugin.version);
        hd_table_cell(table, "%s", candidate->plugin.summary);
    }
    hd_table_cell(table, "%s", candidate->path);
}

/* Lists the found or the rejected plugins of `kind` (0: of all kinds); prints `nothing` if there is
   none. */
static void list_show(struct hd_cli *cli, uint32_t kind, bool is_rejected, const char *nothing)
{
    static const char *const found[] = {"KIND", "NAME", "VERSION", "SUMMARY", "PATH"};
    static const char *const rejected[] = {"KIND", "NAME", "REASON", "PATH"};
    struct hd_table *table = hd_table_create(is_rejected ? 4 : 5, is_rejected ? rejected : found);
    struct cJSON *list =
        cli->is_json ? hd_json_array(cli->json, is_rejected ? "rejected" : "plugins") : NULL;
    uint32_t count = 0;

    for (uint32_t i = 0; i < hd_registry_count(cli->registry); i++) {
        const struct hd_candidate *candidate = hd_registry_at(cli->registry, i);
        if (!cmd_list_is_wanted(candidate, kind, is_rejected)) {
            continue;
        }
        count++;
        if (list != NULL) {
            list_add_json(list, candidate, is_rejected);
        } else {
            list_add_row(table, candidate, is_rejected);
        }
    }
    if (list == NULL && count > 0) {
        hd_table_print(table, 0, stdout);
    } else if (list == NULL) {
        printf("%s\n", nothing);
    }
    hd_table_destroy(table);
}

static int cmd_list(struct hd_cli *cli)
{
    const bool is_all = hd_cli_option(cli, "--all", 0) != NULL;
    uint32_t kind = 0;

    if (hd_cli_words_max(cli, 1) != HD_OK) {
        return cli->problem.exit_code;
    }
    if (cli->word_count == 1) {
        kind = hd_kind_of_name(cli->words[0]);
        if (kind == 0) {
            hd_problem_remedy(&cli->problem, "use schedule, transport or kernel");
            return hd_cli_refuse(cli, "%.100s is not a kind of plugin", cli->words[0]);
        }
    }
    hd_registry_load_all(cli->registry);
    list_show(cli, kind, false, "no plugin found");
    if (is_all) {
        if (!cli->is_json) {
            printf("\nrejected:\n");
        }
        list_show(cli, kind, true, "none");
    }
    return 0;
}

const struct hd_command hd_command_list = {
    "list", "[schedule|transport|kernel]", "shows every plugin found", cmd_list_options, cmd_list,
};
