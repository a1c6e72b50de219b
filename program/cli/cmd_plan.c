/* cli/cmd_plan.c - heddle plan: verifies and prints the plan. */
#include "cli/plan.h"
#include "cli/run_evaluate.h"
#include "base/try.h"
#include "report/plan_json.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { COLUMNS_USUAL = 80, COLUMNS_LEAST = 20, COLUMNS_MOST = 1 << 20 };

static const struct hd_cli_option cmd_plan_options[] = {
    {"--ticks", NULL, "draws every tick, one row a rank"},
    {"--timeline", "asap|drawn|costed",
     "dependencies only, with the idle ticks of the paper's figure, or with the times of [cost]"},
    {"--evaluate", NULL, "forward only: the plan and the memory of heddle run --evaluate"},
    {"--sweep", "KEY=V1:V2",
     "prints one row for each value of a key; if repeated, for each combination"},
    {"--csv", "OUT",
     "also writes the plan as a table that pipeline.schedule=OUT.csv reads; for a sweep, its rows"},
    {"--svg", "OUT", "also draws the plan as a vector figure, for a paper"},
    {"--width", "MM", "width of that figure in millimetres; default 170"},
    {"--html", "OUT",
     "also writes a page that needs no network; for a sweep, it compares the plans"},
    {NULL, NULL, NULL},
};

static hd_status cmd_plan_choose_timeline(struct hd_cli *cli, uint32_t *kind)
{
    const char *name = hd_cli_option(cli, "--timeline", 0);

    *kind = HD_TIMELINE_ASAP;
    if (name == NULL) {
        return HD_OK;
    }
    for (*kind = HD_TIMELINE_ASAP; *kind <= HD_TIMELINE_COSTED; (*kind)++) {
        if (strcmp(name, hd_plan_timeline_name(*kind)) == 0) {
            return HD_OK;
        }
    }
    hd_cli_refuse(cli, "--timeline must be asap, drawn or costed, not %.100s", name);
    return HD_INVALID;
}

/* A plan needs no transport and no kernel: if only default ones cannot be loaded, the plan is
   shown without what they would tell. */
static hd_status cmd_plan_take_plugins(struct hd_cli *cli, struct hd_cli_plan *plan)
{
    hd_status status = hd_cli_take_plugins(cli, &plan->config, &plan->plugins);
    const bool is_kernel = strcmp(cli->problem.key, "kernels.name") == 0;
    const bool is_transport = strcmp(cli->problem.key, "transport.name") == 0;

    if (status == HD_OK || cli->problem.exit_code != HD_EXIT_PLUGIN ||
        !(is_kernel || is_transport) ||
        strcmp(hd_config_place(&plan->config, is_kernel ? "kernels" : "transport", "name"),
               "default") != 0) {
        return status;
    }
    snprintf(plan->missing, sizeof plan->missing, "%.*s", (int)sizeof plan->missing - 1,
             cli->problem.message);
    memset(&cli->problem, 0, sizeof cli->problem);
    return hd_cli_take_schedule(cli, &plan->config, &plan->plugins);
}

static hd_status cmd_plan_make(struct hd_cli *cli, struct hd_cli_plan *plan, uint32_t timeline)
{
    const struct hd_planning_request request = {plan->missing, timeline};

    HD_TRY(cmd_plan_take_plugins(cli, plan));
    plan->plugins.is_forward_only = hd_cli_option(cli, "--evaluate", 0) != NULL;
    HD_TRY(hd_job_create(&plan->job, &plan->config, &plan->plugins, &cli->problem));
    if (plan->plugins.is_forward_only && hd_cli_evaluate_refuse(cli, &plan->job)) {
        return HD_UNSUPPORTED;
    }
    return hd_planning_create(&plan->planning, &plan->job, &request, &cli->problem);
}

hd_status hd_cli_plan(struct hd_cli *cli, uint32_t override_count, const char *const *overrides,
                      struct hd_cli_plan *plan)
{
    uint32_t timeline = 0;

    *plan = (struct hd_cli_plan){.missing = ""};
    HD_TRY(cmd_plan_choose_timeline(cli, &timeline));
    HD_TRY(hd_config_load(&plan->config, cli->file, override_count, overrides, &cli->problem));
    const hd_status status = cmd_plan_make(cli, plan, timeline);
    if (status != HD_OK) {
        hd_cli_plan_finish(plan);
    }
    return status;
}

void hd_cli_plan_finish(struct hd_cli_plan *plan)
{
    hd_planning_finish(&plan->planning);
    hd_job_finish(&plan->job);
    hd_plugins_finish(&plan->plugins);
    hd_config_finish(&plan->config);
}

/* COLUMNS, or the width of the terminal, or 80. */
static uint32_t cmd_plan_choose_columns(void)
{
    const char *text = getenv("COLUMNS");
    struct winsize size;
    long columns = text != NULL ? strtol(text, NULL, 10) : 0;

    if (columns <= 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
        columns = size.ws_col;
    }
    if (columns <= 0) {
        columns = COLUMNS_USUAL;
    }
    return columns < COLUMNS_LEAST  ? COLUMNS_LEAST
           : columns > COLUMNS_MOST ? COLUMNS_MOST
                                    : (uint32_t)columns;
}

void hd_cli_plan_show(struct hd_cli *cli, const struct hd_plan_facts *facts)
{
    const struct hd_plan_style style = {cmd_plan_choose_columns(), hd_cli_bold(cli),
                                        hd_cli_plain(cli)};
    const bool has_ticks = hd_cli_option(cli, "--ticks", 0) != NULL;
    static const char *const files[] = {"--csv", "--svg", "--html"};

    if (cli->is_json) {
        hd_plan_json(facts, has_ticks, cli->json);
        for (unsigned i = 0; i < sizeof files / sizeof files[0]; i++) {
            if (hd_cli_option(cli, files[i], 0) != NULL) {
                hd_json_text(cli->json, files[i] + 2, hd_cli_option(cli, files[i], 0));
            }
        }
        return;
    }
    if (has_ticks) {
        hd_plan_ticks(facts, &style, stdout);
        printf("\n");
    }
    hd_plan_text(facts, &style, stdout);
}

static int cmd_plan(struct hd_cli *cli)
{
    struct hd_cli_plan plan;

    if (hd_cli_words_max(cli, 0) != HD_OK) {
        return cli->problem.exit_code;
    }
    if (hd_cli_option(cli, "--sweep", 0) != NULL) {
        if (hd_cli_option(cli, "--svg", 0) != NULL || hd_cli_option(cli, "--ticks", 0) != NULL) {
            return hd_cli_refuse(cli, "--sweep prints one row a plan and cannot be combined with "
                                      "--ticks or --svg");
        }
        return hd_cli_plan_sweep(cli);
    }
    if (hd_cli_plan(cli, cli->override_count, cli->overrides, &plan) != HD_OK) {
        return cli->problem.exit_code;
    }
    if (hd_cli_plan_files(cli, &plan) == HD_OK) {
        hd_cli_plan_show(cli, &plan.planning.facts);
    }
    hd_cli_plan_finish(&plan);
    return cli->problem.exit_code;
}

const struct hd_command hd_command_plan = {
    "plan", NULL, "verifies and prints the plan", cmd_plan_options, cmd_plan,
};
