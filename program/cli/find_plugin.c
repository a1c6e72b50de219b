#include "base/option.h"
#include "cli/cli.h"

#include <string.h>

/* The kind of the plugin NAME; 0, with a problem, if no or several kinds have one. */
static uint32_t find_plugin_kind_of(struct hd_cli *cli, const char *name)
{
    uint32_t found = 0;

    for (uint32_t kind = HD_KIND_SCHEDULE; kind <= HD_KIND_KERNEL; kind++) {
        if (!hd_registry_knows(cli->registry, hd_kind_name(kind), name)) {
            continue;
        }
        if (found != 0) {
            hd_problem_remedy(&cli->problem, "write %s.%s or %s.%s", hd_kind_name(found), name,
                              hd_kind_name(kind), name);
            hd_cli_refuse(cli, "plugins of several kinds have the name %s", name);
            return 0;
        }
        found = kind;
    }
    if (found == 0) {
        hd_problem_place(&cli->problem, "command line");
        hd_problem_remedy(&cli->problem, "`heddle list --all` shows all plugins");
        hd_problem_set(&cli->problem, HD_UNSUPPORTED, HD_EXIT_PLUGIN, "cannot find a plugin %.200s",
                       name);
    }
    return found;
}

hd_status hd_cli_find_plugin(struct hd_cli *cli, const char *word,
                             const struct hd_candidate **found)
{
    char kind_name[64] = "";
    const char *dot = strchr(word, '.');
    const size_t length = strlen(word);

    if (strchr(word, '/') != NULL || (length > 3 && strcmp(word + length - 3, ".so") == 0)) {
        return hd_registry_find(cli->registry, 0, word, found, &cli->problem);
    }
    if (dot != NULL && (size_t)(dot - word) < sizeof kind_name) {
        memcpy(kind_name, word, (size_t)(dot - word));
    }
    uint32_t kind = hd_kind_of_name(kind_name);
    const char *name = kind != 0 ? dot + 1 : word;
    if (kind == 0) {
        kind = find_plugin_kind_of(cli, name);
    }
    return kind == 0 ? HD_INVALID
                     : hd_registry_find(cli->registry, kind, name, found, &cli->problem);
}
