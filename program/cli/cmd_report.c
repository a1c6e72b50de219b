/* cli/cmd_report.c - heddle report: makes the page of a run again, or of several runs and plans. */
#include "base/log.h"
#include "base/try.h"
#include "cli/output.h"
#include "cli/plan.h"
#include "output/page.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ITEM_MAX = 256 };

static bool cmd_report_is_directory(const char *path)
{
    struct stat known;
    return stat(path, &known) == 0 && S_ISDIR(known.st_mode);
}

static hd_status cmd_report_path_in(struct hd_cli *cli, const char *directory, const char *name,
                                    char path[HD_CLI_PATH_BYTES])
{
    if ((size_t)snprintf(path, HD_CLI_PATH_BYTES, "%s/%s", directory, name) >= HD_CLI_PATH_BYTES) {
        hd_cli_refuse(cli, "a path is longer than %u bytes", HD_CLI_PATH_BYTES);
        return HD_INVALID;
    }
    return HD_OK;
}

/* Only the run's own page holds the records of the Measured view. */
static void cmd_report_warn_of_steps(const char *directory, const char *trace)
{
    if (access(trace, R_OK) == 0) {
        hd_log(HD_LOG_WARN,
               "%s has lost its report.html, and with it the recorded steps: the new page has no "
               "Measured view; open trace.json in Perfetto to see them",
               directory);
    }
}

/* A killed run has no page: this makes its plan again, from its own configuration. */
static hd_status cmd_report_plan_again(struct hd_cli *cli, const char *directory,
                                       struct hd_page_items *items)
{
    char file[HD_CLI_PATH_BYTES], trace[HD_CLI_PATH_BYTES];
    struct hd_cli_plan plan;
    char *item = NULL;

    HD_TRY(cmd_report_path_in(cli, directory, "config.ini", file));
    HD_TRY(cmd_report_path_in(cli, directory, "trace.json", trace));
    if (access(file, R_OK) != 0) {
        hd_problem_place(&cli->problem, "%s", directory);
        hd_problem_remedy(&cli->problem, "give the output.directory of a run");
        hd_cli_refuse(cli, "is not the directory of a run: it has neither report.html nor "
                           "config.ini");
        return HD_INVALID;
    }
    cli->file = file;
    const hd_status planned = hd_cli_plan(cli, 0, NULL, &plan);
    cli->file = NULL;
    HD_TRY(planned);
    const hd_status status = hd_page_of_directory(directory, &plan.planning, &item, &cli->problem);
    hd_cli_plan_finish(&plan);
    HD_TRY(status);
    hd_page_items_add(items, item);
    cmd_report_warn_of_steps(directory, trace);
    return HD_OK;
}

static hd_status cmd_report_take_word(struct hd_cli *cli, const char *word,
                                      struct hd_page_items *items)
{
    char page[HD_CLI_PATH_BYTES];

    if (!cmd_report_is_directory(word)) {
        return hd_page_read(word, items, &cli->problem);
    }
    HD_TRY(cmd_report_path_in(cli, word, "report.html", page));
    return access(page, F_OK) == 0 ? hd_page_read(page, items, &cli->problem)
                                   : cmd_report_plan_again(cli, word, items);
}

/* -o, or report.html of the one directory, or report.html here. */
static hd_status cmd_report_choose_path(struct hd_cli *cli, char path[HD_CLI_PATH_BYTES])
{
    const char *asked = hd_cli_option(cli, "-o", 0);

    if (asked == NULL && cli->word_count == 1 && cmd_report_is_directory(cli->words[0])) {
        return cmd_report_path_in(cli, cli->words[0], "report.html", path);
    }
    if (asked == NULL && cli->word_count == 1) {
        asked = cli->words[0];
    }
    snprintf(path, HD_CLI_PATH_BYTES, "%s", asked != NULL ? asked : "report.html");
    return HD_OK;
}

static void cmd_report_tell(struct hd_cli *cli, const char *path, uint32_t item_count)
{
    if (cli->is_json) {
        hd_json_text(cli->json, "page", path);
        hd_json_u64(cli->json, "items", item_count);
    } else {
        printf("see %s: %u plan%s or run%s\n", path, item_count, item_count == 1 ? "" : "s",
               item_count == 1 ? "" : "s");
    }
}

static hd_status cmd_report_make(struct hd_cli *cli, struct hd_page_items *items)
{
    char path[HD_CLI_PATH_BYTES];

    for (uint32_t i = 0; i < cli->word_count; i++) {
        HD_TRY(cmd_report_take_word(cli, cli->words[i], items));
    }
    if (items->count > ITEM_MAX) {
        hd_cli_refuse(cli, "a page holds at most %u plans and runs, not %u", ITEM_MAX,
                      items->count);
        return HD_INVALID;
    }
    HD_TRY(cmd_report_choose_path(cli, path));
    HD_TRY(hd_cli_page_write(cli, items, path));
    cmd_report_tell(cli, path, items->count);
    return HD_OK;
}

static int cmd_report(struct hd_cli *cli)
{
    struct hd_page_items items = {0};

    if (cli->file != NULL || cli->override_count > 0) {
        return hd_cli_refuse(cli, "report takes directories of runs and pages, not a "
                                  "configuration");
    }
    if (cli->word_count == 0) {
        hd_problem_remedy(&cli->problem, "runs/latest is the newest run");
        return hd_cli_refuse(cli, "report needs the directory of a run, or several");
    }
    cmd_report_make(cli, &items);
    hd_page_items_finish(&items);
    return cli->problem.exit_code;
}

static const struct hd_cli_option cmd_report_options[] = {
    {"-o", "OUT",
     "where to write the page; default: report.html in the one directory given, or here"},
    {NULL, NULL, NULL},
};

const struct hd_command hd_command_report = {
    "report",
    "DIR|PAGE ...",
    "makes the page of a run again, or compares several runs and plans",
    cmd_report_options,
    cmd_report,
};
