/* cli/cmd_plan_files.c - the files that heddle plan writes: a table, a figure, a page. */
#include "base/text.h"
#include "output/config_write.h"
#include "base/try.h"
#include "cli/output.h"
#include "cli/plan.h"
#include "plan/csv.h"
#include "report/csv_write.h"
#include "report/svg.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static hd_status cmd_plan_files_write_csv(struct hd_cli *cli, const struct hd_pipeline *pipeline,
                                          const char *path)
{
    struct hd_cli_output output;
    HD_TRY(hd_cli_output_open(cli, path, &output));
    const hd_status status = hd_csv_write(pipeline, output.stream, &cli->problem);
    return hd_cli_output_close(cli, &output, status);
}

static hd_status cmd_plan_files_choose_width(struct hd_cli *cli, double *width_mm)
{
    const char *text = hd_cli_option(cli, "--width", 0);

    *width_mm = HD_SVG_WIDTH_MM_USUAL;
    if (text != NULL && (!hd_text_to_number(text, width_mm) || *width_mm < HD_SVG_WIDTH_MM_LEAST ||
                         *width_mm > HD_SVG_WIDTH_MM_MOST)) {
        hd_cli_refuse(cli, "--width must be %.0f to %.0f millimetres, not %.100s",
                      HD_SVG_WIDTH_MM_LEAST, HD_SVG_WIDTH_MM_MOST, text);
        return HD_INVALID;
    }
    return HD_OK;
}

static hd_status cmd_plan_files_write_svg(struct hd_cli *cli, const struct hd_plan_facts *facts,
                                          const char *path)
{
    struct hd_cli_output output;
    double width_mm;

    HD_TRY(cmd_plan_files_choose_width(cli, &width_mm));
    HD_TRY(hd_cli_output_open(cli, path, &output));
    hd_svg_write(facts, width_mm, output.stream);
    return hd_cli_output_close(cli, &output, HD_OK);
}

/* The effective ini, with the sections of the loaded plugins; owned. */
static char *cmd_plan_files_config_text(const struct hd_cli_plan *plan)
{
    const struct hd_plugin *plugins[HD_PLUGINS_MAX];
    const uint32_t plugin_count = hd_plugins_list(&plan->plugins, plugins);
    char *text = NULL;
    size_t bytes = 0;

    FILE *stream = open_memstream(&text, &bytes);
    assert(stream != NULL);
    hd_config_write(&plan->config, stream, 0, plugin_count, plugins);
    fclose(stream);
    assert(text != NULL);
    return text;
}

hd_status hd_cli_plan_item(struct hd_cli *cli, const struct hd_cli_plan *plan, const char *name,
                           char **item)
{
    const struct hd_pipeline *pipeline = plan->job.pipeline;
    char *config = cmd_plan_files_config_text(plan);
    char usual[2 * HD_CONFIG_TEXT_MAX];
    const char *slash = strrchr(pipeline->schedule, '/');

    snprintf(usual, sizeof usual, "%s%s%s, %u rank%s, %u microbatch%s",
             cli->file != NULL ? plan->config.name : "", cli->file != NULL ? ": " : "",
             slash != NULL ? slash + 1 : pipeline->schedule, pipeline->rank_count,
             pipeline->rank_count == 1 ? "" : "s", pipeline->microbatch_count,
             pipeline->microbatch_count == 1 ? "" : "es");
    const struct hd_page_source source = {
        .name = name != NULL ? name : usual,
        .facts = &plan->planning.facts,
        .config = config,
    };
    const hd_status status = hd_page_item(&source, item, &cli->problem);
    free(config);
    return status;
}

hd_status hd_cli_page_write(struct hd_cli *cli, const struct hd_page_items *items, const char *path)
{
    struct hd_cli_output output;
    HD_TRY(hd_cli_output_open(cli, path, &output));
    hd_page_write(items->count, items->items, output.stream);
    return hd_cli_output_close(cli, &output, HD_OK);
}

static hd_status cmd_plan_files_write_html(struct hd_cli *cli, const struct hd_cli_plan *plan,
                                           const char *path)
{
    struct hd_page_items items = {0};
    char *item = NULL;
    hd_status status = hd_cli_plan_item(cli, plan, NULL, &item);

    if (status == HD_OK) {
        hd_page_items_add(&items, item);
        status = hd_cli_page_write(cli, &items, path);
    }
    hd_page_items_finish(&items);
    return status;
}

hd_status hd_cli_plan_files(struct hd_cli *cli, const struct hd_cli_plan *plan)
{
    const char *csv = hd_cli_option(cli, "--csv", 0);
    const char *svg = hd_cli_option(cli, "--svg", 0);
    const char *html = hd_cli_option(cli, "--html", 0);

    if (csv != NULL) {
        HD_TRY(cmd_plan_files_write_csv(cli, plan->job.pipeline, csv));
    }
    if (svg != NULL) {
        HD_TRY(cmd_plan_files_write_svg(cli, &plan->planning.facts, svg));
    }
    return html != NULL ? cmd_plan_files_write_html(cli, plan, html) : HD_OK;
}
