#include "conform/conform_output.h"

#include "base/option.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void hd_conform_print_head(const struct hd_cli *cli, const struct hd_conform_summary *summary)
{
    const struct hd_plugin *plugin = summary->plugin;

    printf("%s%s.%s%s%s%s, level %s, seed %llu\n%s\n", hd_cli_bold(cli), hd_kind_name(plugin->kind),
           plugin->name, hd_cli_plain(cli), plugin->version[0] != '\0' ? " " : "", plugin->version,
           hd_conform_level_name(summary->level), (unsigned long long)summary->seed, summary->path);
}

void hd_conform_print_row(const struct hd_cli *cli, const struct hd_conform_result *result)
{
    const bool is_bold = result->verdict == HD_CONFORM_FAILED;

    printf("  %s%s%s  %-9s  %-16s  %6.2f s  %s%s%s\n", is_bold ? hd_cli_bold(cli) : "",
           hd_conform_verdict_name(result->verdict), is_bold ? hd_cli_plain(cli) : "",
           hd_conform_level_name(result->check->level), result->check->name, result->seconds,
           result->check->text, result->text[0] != '\0' ? ": " : "", result->text);
    fflush(stdout);
}

void hd_conform_print_list(struct hd_cli *cli, uint32_t kind, const struct hd_conform_check *suite,
                           uint32_t count)
{
    struct cJSON *list = NULL;

    if (cli->is_json) {
        hd_json_text(cli->json, "kind", hd_kind_name(kind));
        list = hd_json_array(cli->json, "checks");
    }
    for (uint32_t i = 0; i < count; i++) {
        if (cli->is_json) {
            struct cJSON *item = hd_json_object(list, NULL);
            hd_json_text(item, "name", suite[i].name);
            hd_json_text(item, "level", hd_conform_level_name(suite[i].level));
            hd_json_text(item, "law", suite[i].law);
            hd_json_text(item, "holds", suite[i].text);
        } else {
            printf("  %-9s  %-16s  %s\n", hd_conform_level_name(suite[i].level), suite[i].name,
                   suite[i].text);
        }
    }
}

static void conform_output_print_json(struct hd_cli *cli, const struct hd_conform_summary *summary)
{
    struct cJSON *root = cli->json;

    hd_json_text(root, "kind", hd_kind_name(summary->plugin->kind));
    hd_json_text(root, "name", summary->plugin->name);
    hd_json_text(root, "version", summary->plugin->version);
    hd_json_text(root, "path", summary->path);
    hd_json_text(root, "level", hd_conform_level_name(summary->level));
    hd_json_u64(root, "seed", summary->seed);
    hd_json_u64(root, "passed", summary->verdicts[HD_CONFORM_PASSED]);
    hd_json_u64(root, "failed", summary->verdicts[HD_CONFORM_FAILED]);
    hd_json_u64(root, "skipped", summary->verdicts[HD_CONFORM_SKIPPED]);
    struct cJSON *list = hd_json_array(root, "checks");
    for (uint32_t i = 0; i < summary->count; i++) {
        const struct hd_conform_result *result = &summary->results[i];
        struct cJSON *item = hd_json_object(list, NULL);
        hd_json_text(item, "name", result->check->name);
        hd_json_text(item, "level", hd_conform_level_name(result->check->level));
        hd_json_text(item, "law", result->check->law);
        hd_json_text(item, "holds", result->check->text);
        hd_json_text(item, "verdict", hd_conform_verdict_name(result->verdict));
        hd_json_number(item, "seconds", result->seconds);
        hd_json_text(item, "text", result->text[0] != '\0' ? result->text : NULL);
    }
}

/* --- JUnit --------------------------------------------------------------------------------- */

/* Text of an XML attribute; a byte that XML 1.0 does not allow becomes a question mark. */
static void conform_output_put_escaped(FILE *stream, const char *text)
{
    for (; *text != '\0'; text++) {
        const unsigned char byte = (unsigned char)*text;
        const char *entity = byte == '&'   ? "&amp;"
                             : byte == '<' ? "&lt;"
                             : byte == '>' ? "&gt;"
                             : byte == '"' ? "&quot;"
                             : byte < ' '  ? "?"
                                           : NULL;
        if (entity != NULL) {
            fputs(entity, stream);
        } else {
            fputc(byte, stream);
        }
    }
}

static void conform_output_put_case(FILE *stream, const struct hd_conform_summary *summary,
                                    const struct hd_conform_result *result)
{
    fprintf(stream, "  <testcase classname=\"%s.%s.%s\" name=\"%s\" time=\"%.3f\"",
            hd_kind_name(summary->plugin->kind), summary->plugin->name,
            hd_conform_level_name(result->check->level), result->check->name, result->seconds);
    if (result->verdict == HD_CONFORM_PASSED) {
        fputs("/>\n", stream);
        return;
    }
    const char *element = result->verdict == HD_CONFORM_FAILED ? "failure" : "skipped";
    fprintf(stream, ">\n    <%s message=\"", element);
    conform_output_put_escaped(stream, result->text);
    fputs("\"/>\n  </testcase>\n", stream);
}

static int conform_output_write_junit(struct hd_cli *cli, const struct hd_conform_summary *summary,
                                      const char *path)
{
    FILE *stream = fopen(path, "we");
    double seconds = 0;

    for (uint32_t i = 0; i < summary->count; i++) {
        seconds += summary->results[i].seconds;
    }
    if (stream != NULL) {
        fprintf(stream,
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                "<testsuite name=\"heddle conform %s.%s\" tests=\"%u\" failures=\"%u\" "
                "errors=\"0\" skipped=\"%u\" time=\"%.3f\">\n",
                hd_kind_name(summary->plugin->kind), summary->plugin->name, summary->count,
                summary->verdicts[HD_CONFORM_FAILED], summary->verdicts[HD_CONFORM_SKIPPED],
                seconds);
        for (uint32_t i = 0; i < summary->count; i++) {
            conform_output_put_case(stream, summary, &summary->results[i]);
        }
        fputs("</testsuite>\n", stream);
    }
    const bool is_written = stream != NULL && !ferror(stream);
    if ((stream != NULL && fclose(stream) != 0) || !is_written) {
        hd_problem_place(&cli->problem, "%s", path);
        hd_problem_set(&cli->problem, HD_SYSTEM, HD_EXIT_OUTPUT, "cannot write the results: %s",
                       strerror(errno));
    }
    return cli->problem.exit_code;
}

int hd_conform_finish_output(struct hd_cli *cli, const struct hd_conform_summary *summary)
{
    const char *junit = hd_cli_option(cli, "--junit", 0);

    if (cli->is_json) {
        conform_output_print_json(cli, summary);
    } else {
        printf("%u passed, %u failed, %u skipped\n", summary->verdicts[HD_CONFORM_PASSED],
               summary->verdicts[HD_CONFORM_FAILED], summary->verdicts[HD_CONFORM_SKIPPED]);
    }
    return junit != NULL ? conform_output_write_junit(cli, summary, junit) : 0;
}
