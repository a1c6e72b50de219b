/*
 * cli/plan.h - what the files of `heddle plan` share.
 */
#ifndef HEDDLE_CLI_PLAN_H
#define HEDDLE_CLI_PLAN_H

#include "cli/cli.h"
#include "report/page.h"
#include "report/plan_text.h"
#include "output/planning.h"

/* One plan of this command line. */
struct hd_cli_plan {
    struct hd_config config;
    struct hd_plugins plugins;
    struct hd_job job;
    struct hd_planning planning;
    char missing[HD_PLANNING_TEXT_BYTES]; /* why a default plugin could not be loaded */
};

/* Plans the command line, with `overrides` instead of its own.  On failure everything is finished
   already, and cli->problem is filled. */
hd_status hd_cli_plan(struct hd_cli *cli, uint32_t override_count, const char *const *overrides,
                      struct hd_cli_plan *plan);
void hd_cli_plan_finish(struct hd_cli_plan *plan);

/* Prints the plan on stdout, or adds it to cli->json; with its ticks if --ticks is given. */
void hd_cli_plan_show(struct hd_cli *cli, const struct hd_plan_facts *facts);

/* cli/cmd_plan_files.c: writes the files of --csv, --svg and --html. */
hd_status hd_cli_plan_files(struct hd_cli *cli, const struct hd_cli_plan *plan);
/* The plan as an item of a page (report/page.h), owned by the caller; `name` NULL: named after its
   schedule and shape. */
hd_status hd_cli_plan_item(struct hd_cli *cli, const struct hd_cli_plan *plan, const char *name,
                           char **item);
hd_status hd_cli_page_write(struct hd_cli *cli, const struct hd_page_items *items,
                            const char *path);

/* Prints one row for each combination of the --sweep options; returns the exit code. */
int hd_cli_plan_sweep(struct hd_cli *cli);

#endif /* HEDDLE_CLI_PLAN_H */
