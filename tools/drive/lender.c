#include "cli/cli.h"
#include "drive/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void lender_choose_memory(const struct hd_config *config, struct hd_drive_lender *lender)
{
    const struct hd_plugin *kernel = lender->kernel;
    char section[64];

    snprintf(section, sizeof section, "kernel.%.50s", kernel->name);
    for (uint32_t i = 0; i < kernel->option_count; i++) {
        if (strcmp(kernel->options[i].name, "memory") == 0 &&
            strcmp(hd_config_place(config, section, "memory"), "default") == 0) {
            lender->options[i].text = "cuda";
        }
    }
}

hd_status hd_lender_find(struct hd_cli *cli, struct hd_config *config,
                         const struct hd_cli_wanted *wanted, struct hd_drive_lender *lender)
{
    *lender = (struct hd_drive_lender){0};
    const struct hd_candidate *found;
    const hd_status status = hd_cli_take_plugin(cli, config, wanted, &found, &lender->options);
    if (status != HD_OK) {
        hd_lender_finish(lender);
        return status;
    }
    lender->kernel = &found->plugin;
    lender_choose_memory(config, lender);
    return HD_OK;
}

void hd_lender_finish(struct hd_drive_lender *lender)
{
    free(lender->options);
    *lender = (struct hd_drive_lender){0};
}
