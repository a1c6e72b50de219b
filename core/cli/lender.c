#include "cli/lender.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void choose_memory(const struct hd_config *config, struct hd_cli_lender *lender)
{
    const struct hd_plugin *kernel = &lender->kernel->plugin;
    char section[64];

    snprintf(section, sizeof section, "kernel.%.50s", kernel->name);
    for (uint32_t i = 0; i < kernel->option_count; i++) {
        if (strcmp(kernel->options[i].name, "memory") == 0 &&
            strcmp(hd_config_place(config, section, "memory"), "default") == 0) {
            lender->options[i].text = "cuda";
        }
    }
}

hd_status hd_cli_lender_find(struct hd_cli *cli, struct hd_config *config, const char *name,
                             struct hd_cli_lender *lender)
{
    *lender = (struct hd_cli_lender){0};
    hd_status status =
        hd_registry_find(cli->registry, HD_KIND_KERNEL, name, &lender->kernel, &cli->problem);
    if (status != HD_OK) {
        return status;
    }
    const struct hd_plugin *kernel = &lender->kernel->plugin;
    lender->options = calloc(kernel->option_count + 1, sizeof *lender->options);
    if (lender->options == NULL) {
        return hd_problem_set(&cli->problem, HD_NO_MEMORY, HD_EXIT_FAILED, "out of memory");
    }
    status = hd_config_options(config, kernel, lender->options, &cli->problem);
    if (status != HD_OK) {
        hd_cli_lender_finish(lender);
        return status;
    }
    choose_memory(config, lender);
    return HD_OK;
}

void hd_cli_lender_finish(struct hd_cli_lender *lender)
{
    free(lender->options);
    *lender = (struct hd_cli_lender){0};
}
