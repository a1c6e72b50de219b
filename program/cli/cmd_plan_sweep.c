/* cli/cmd_plan_sweep.c - heddle plan --sweep: one row a combination of values. */
#include "base/try.h"
#include "report/table.h"
#include "cli/output.h"
#include "cli/plan.h"
#include "report/plan_json.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
    SWEEP_KEY_MAX = 8,
    COMBINATION_MAX = 65536,
    PAGE_ITEM_MAX = 256, /* of one page */
    VALUE_BYTES = 1024,
    CELL_BYTES = 4096
};

/* One key and its values, as in the option: "pipeline.microbatches=4:8:16". */
struct axis {
    const char *text; /* borrowed */
    uint32_t key_bytes, value_count;
};

struct sweep {
    struct axis axes[SWEEP_KEY_MAX];
    uint32_t axis_count, combination_count;
    char (*words)[VALUE_BYTES]; /* [axis_count]: the overrides of the combination */
    const char **overrides;     /* the command line's, then those of the sweep */
    uint32_t planned_count, cell_count, column_count;
    struct hd_table *table;     /* NULL: JSON */
    struct hd_cli_output csv;   /* stream NULL: no --csv */
    struct hd_page_items items; /* of --html */
    struct hd_problem first_problem;
};

static hd_status cmd_plan_sweep_read_axes(struct hd_cli *cli, struct sweep *sweep)
{
    uint64_t combinations = 1;

    for (const char *text; (text = hd_cli_option(cli, "--sweep", sweep->axis_count)) != NULL;) {
        const char *equals = strchr(text, '=');
        if (equals == NULL || equals == text || equals[1] == '\0' || strlen(text) >= VALUE_BYTES) {
            hd_cli_refuse(cli, "--sweep must be KEY=V1:V2, not %.100s", text);
            return HD_INVALID;
        }
        if (sweep->axis_count == SWEEP_KEY_MAX) {
            hd_cli_refuse(cli, "--sweep can be given at most %u times", SWEEP_KEY_MAX);
            return HD_INVALID;
        }
        struct axis *axis = &sweep->axes[sweep->axis_count++];
        *axis = (struct axis){text, (uint32_t)(equals - text), 1};
        for (const char *at = equals; (at = strchr(at + 1, ':')) != NULL;) {
            axis->value_count++;
        }
        combinations *= axis->value_count;
        if (combinations > COMBINATION_MAX) {
            hd_cli_refuse(cli, "--sweep makes at most %u combinations", COMBINATION_MAX);
            return HD_INVALID;
        }
    }
    sweep->combination_count = (uint32_t)combinations;
    return HD_OK;
}

/* "KEY=VALUE" with the value number `place`. */
static void cmd_plan_sweep_write_word(const struct axis *axis, uint32_t place,
                                      char word[VALUE_BYTES])
{
    const char *value = axis->text + axis->key_bytes + 1;

    for (; place > 0; place--) {
        value = strchr(value, ':') + 1;
    }
    snprintf(word, VALUE_BYTES, "%.*s=%.*s", (int)axis->key_bytes, axis->text,
             (int)strcspn(value, ":"), value);
}

/* A value that its key cannot take is an error of the command line, not a refused plan. */
static hd_status cmd_plan_sweep_check_axes(struct hd_cli *cli, const struct sweep *sweep)
{
    char word[VALUE_BYTES];

    for (uint32_t i = 0; i < sweep->axis_count; i++) {
        for (uint32_t j = 0; j < sweep->axes[i].value_count; j++) {
            cmd_plan_sweep_write_word(&sweep->axes[i], j, word);
            HD_TRY(hd_config_check_word(word, &cli->problem));
        }
    }
    return HD_OK;
}

/* Writes "KEY=VALUE" for each key; the last key varies fastest. */
static void cmd_plan_sweep_write_words(struct sweep *sweep, uint32_t combination)
{
    for (uint32_t i = sweep->axis_count; i-- > 0;) {
        const struct axis *axis = &sweep->axes[i];
        cmd_plan_sweep_write_word(axis, combination % axis->value_count, sweep->words[i]);
        combination /= axis->value_count;
    }
}

static void cmd_plan_sweep_put_csv(const char *text, FILE *stream)
{
    if (strpbrk(text, ",\"\n") == NULL) {
        fputs(text, stream);
        return;
    }
    fputc('"', stream);
    for (; *text != '\0'; text++) {
        fputs(*text == '"' ? "\"\"" : (const char[]){*text, '\0'}, stream);
    }
    fputc('"', stream);
}

/* The next cell of the table and of the file. */
static void __attribute__((format(printf, 2, 3)))
cmd_plan_sweep_add_cell(struct sweep *sweep, const char *format, ...)
{
    char text[CELL_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    sweep->cell_count++;
    if (sweep->table != NULL) {
        hd_table_cell(sweep->table, "%s", text);
    }
    if (sweep->csv.stream != NULL) {
        cmd_plan_sweep_put_csv(text, sweep->csv.stream);
        fputc(sweep->cell_count % sweep->column_count == 0 ? '\n' : ',', sweep->csv.stream);
    }
}

static void cmd_plan_sweep_add_values(struct sweep *sweep)
{
    for (uint32_t i = 0; i < sweep->axis_count; i++) {
        cmd_plan_sweep_add_cell(sweep, "%s", sweep->words[i] + sweep->axes[i].key_bytes + 1);
    }
}

static void cmd_plan_sweep_add_numbers(struct sweep *sweep, const struct hd_plan_facts *facts)
{
    uint64_t bytes_most = 0;
    uint32_t copies_most = 0;
    bool fits = true;

    for (uint32_t rank = 0; rank < facts->pipeline->rank_count; rank++) {
        const uint32_t copies = facts->pipeline->peak_copies[rank];
        copies_most = copies > copies_most ? copies : copies_most;
        if (facts->footprints != NULL) {
            const uint64_t bytes = facts->footprints[rank].total_bytes;
            bytes_most = bytes > bytes_most ? bytes : bytes_most;
            fits = fits && facts->footprints[rank].fits;
        }
    }
    cmd_plan_sweep_add_cell(sweep, "%.10g", facts->timeline->length);
    cmd_plan_sweep_add_cell(sweep, "%.10g", facts->timeline->empty);
    cmd_plan_sweep_add_cell(sweep, "%.2f%%", 100 * facts->timeline->bubble);
    cmd_plan_sweep_add_cell(sweep, "%.2f%%", 100 * facts->timeline->bubble_over_ideal);
    cmd_plan_sweep_add_cell(sweep, "%u", copies_most);
    if (facts->footprints != NULL) {
        cmd_plan_sweep_add_cell(sweep, "%.3f", (double)bytes_most / 1e9);
    } else {
        cmd_plan_sweep_add_cell(sweep, "-");
    }
    if (facts->timeline->kind == HD_TIMELINE_COSTED) {
        char straggler[32] = "";
        if (facts->timeline->straggler != HD_NO_STRAGGLER) {
            snprintf(straggler, sizeof straggler, "straggler rank %u, ",
                     facts->timeline->straggler);
        }
        cmd_plan_sweep_add_cell(
            sweep, "%s%.10g tick%s exposed%s", straggler, facts->timeline->exposed_ticks,
            facts->timeline->exposed_ticks == 1 ? "" : "s", fits ? "" : ", over budget");
    } else {
        cmd_plan_sweep_add_cell(sweep, "%s", fits ? "" : "over budget");
    }
}

static void cmd_plan_sweep_add_refusal(struct sweep *sweep, const struct hd_problem *problem)
{
    for (uint32_t i = 0; i < 6; i++) {
        cmd_plan_sweep_add_cell(sweep, "-");
    }
    cmd_plan_sweep_add_cell(sweep, "refused: %s", problem->message);
}

static void cmd_plan_sweep_add_json(const struct sweep *sweep, const struct hd_plan_facts *facts,
                                    const struct hd_problem *problem, struct cJSON *plans)
{
    char key[VALUE_BYTES];
    struct cJSON *item = hd_json_object(plans, NULL);
    struct cJSON *values = hd_json_object(item, "values");

    for (uint32_t i = 0; i < sweep->axis_count; i++) {
        snprintf(key, sizeof key, "%.*s", (int)sweep->axes[i].key_bytes, sweep->words[i]);
        hd_json_text(values, key, sweep->words[i] + sweep->axes[i].key_bytes + 1);
    }
    if (facts != NULL) {
        hd_plan_json(facts, 0, item);
    } else {
        hd_json_problem(item, problem);
    }
}

/* Adds the plan to the page, named after its values; keys without their section. */
static hd_status cmd_plan_sweep_add_item(struct hd_cli *cli, struct sweep *sweep,
                                         const struct hd_cli_plan *plan)
{
    char name[SWEEP_KEY_MAX * VALUE_BYTES] = "";
    char *item = NULL;

    for (uint32_t i = 0; i < sweep->axis_count; i++) {
        const size_t length = strlen(name);
        const char *point = memchr(sweep->words[i], '.', sweep->axes[i].key_bytes);
        snprintf(name + length, sizeof name - length, "%s%s", i > 0 ? ", " : "",
                 point != NULL ? point + 1 : sweep->words[i]);
    }
    const hd_status status = hd_cli_plan_item(cli, plan, name, &item);
    if (status == HD_OK) {
        hd_page_items_add(&sweep->items, item);
    }
    return status;
}

/* One combination: a row of the table, or an object of `plans`. */
static void cmd_plan_sweep_run_combination(struct hd_cli *cli, struct sweep *sweep,
                                           struct cJSON *plans)
{
    struct hd_cli_plan plan;
    const hd_status status =
        hd_cli_plan(cli, cli->override_count + sweep->axis_count, sweep->overrides, &plan);
    const struct hd_problem problem = cli->problem;
    const struct hd_plan_facts *facts = status == HD_OK ? &plan.planning.facts : NULL;

    memset(&cli->problem, 0, sizeof cli->problem);
    if (plans != NULL) {
        cmd_plan_sweep_add_json(sweep, facts, &problem, plans);
    }
    cmd_plan_sweep_add_values(sweep);
    if (facts != NULL) {
        cmd_plan_sweep_add_numbers(sweep, facts);
    } else {
        cmd_plan_sweep_add_refusal(sweep, &problem);
    }
    if (facts != NULL) {
        sweep->planned_count++;
        if (hd_cli_option(cli, "--html", 0) != NULL) {
            cmd_plan_sweep_add_item(cli, sweep, &plan);
        }
        hd_cli_plan_finish(&plan);
    } else if (sweep->first_problem.exit_code == 0) {
        sweep->first_problem = problem;
    }
}

/* Makes the titles of the table and of the file. */
static void cmd_plan_sweep_begin_rows(struct hd_cli *cli, struct sweep *sweep)
{
    static const char *const numbers[] = {"ticks",      "empty",  "bubble", "over ideal",
                                          "copies max", "GB max", "note"};
    char keys[SWEEP_KEY_MAX][VALUE_BYTES];
    const char *titles[SWEEP_KEY_MAX + sizeof numbers / sizeof *numbers];
    const uint32_t number_count = sizeof numbers / sizeof *numbers;

    sweep->column_count = sweep->axis_count + number_count;
    for (uint32_t i = 0; i < sweep->axis_count; i++) {
        snprintf(keys[i], VALUE_BYTES, "%.*s", (int)sweep->axes[i].key_bytes, sweep->axes[i].text);
        titles[i] = keys[i];
    }
    for (uint32_t i = 0; i < number_count; i++) {
        titles[sweep->axis_count + i] = numbers[i];
    }
    for (uint32_t i = 0; i < sweep->column_count && sweep->csv.stream != NULL; i++) {
        cmd_plan_sweep_add_cell(sweep, "%s", titles[i]);
    }
    if (!cli->is_json) {
        sweep->table = hd_table_create(sweep->column_count, titles);
    }
}

static void cmd_plan_sweep_run_combinations(struct hd_cli *cli, struct sweep *sweep)
{
    struct cJSON *plans = cli->is_json ? hd_json_array(cli->json, "plans") : NULL;

    cmd_plan_sweep_begin_rows(cli, sweep);
    for (uint32_t i = 0; i < sweep->combination_count && cli->problem.exit_code == 0; i++) {
        cmd_plan_sweep_write_words(sweep, i);
        cmd_plan_sweep_run_combination(cli, sweep, plans);
    }
}

/* What can fail before the first combination is planned. */
static hd_status cmd_plan_sweep_open_outputs(struct hd_cli *cli, struct sweep *sweep)
{
    const char *csv = hd_cli_option(cli, "--csv", 0);

    if (hd_cli_option(cli, "--html", 0) != NULL && sweep->combination_count > PAGE_ITEM_MAX) {
        hd_cli_refuse(cli, "a page holds at most %u plans, not %u; --csv holds all", PAGE_ITEM_MAX,
                      sweep->combination_count);
        return HD_INVALID;
    }
    return csv == NULL ? HD_OK : hd_cli_output_open(cli, csv, &sweep->csv);
}

/* If no combination can be planned, the first reason is the error, and no file is written. */
static void cmd_plan_sweep_end_outputs(struct hd_cli *cli, struct sweep *sweep)
{
    const char *html = hd_cli_option(cli, "--html", 0);
    hd_status status = cli->problem.exit_code == 0 ? HD_OK : HD_INVALID;

    if (sweep->planned_count == 0 && status == HD_OK) {
        cli->problem = sweep->first_problem;
        status = HD_INVALID;
    }
    if (sweep->csv.stream != NULL) {
        status = hd_cli_output_close(cli, &sweep->csv, status);
    }
    if (status == HD_OK && html != NULL) {
        status = hd_cli_page_write(cli, &sweep->items, html);
    }
    if (status == HD_OK && sweep->table != NULL) {
        hd_table_print(sweep->table, 0, stdout);
    }
}

int hd_cli_plan_sweep(struct hd_cli *cli)
{
    struct sweep sweep = {.axis_count = 0};

    if (cmd_plan_sweep_read_axes(cli, &sweep) != HD_OK ||
        cmd_plan_sweep_check_axes(cli, &sweep) != HD_OK ||
        cmd_plan_sweep_open_outputs(cli, &sweep) != HD_OK) {
        return cli->problem.exit_code;
    }
    sweep.words = calloc(sweep.axis_count, sizeof *sweep.words);
    sweep.overrides = calloc(cli->override_count + sweep.axis_count, sizeof *sweep.overrides);
    assert(sweep.words != NULL && sweep.overrides != NULL);
    for (uint32_t i = 0; i < cli->override_count; i++) {
        sweep.overrides[i] = cli->overrides[i];
    }
    for (uint32_t i = 0; i < sweep.axis_count; i++) {
        sweep.overrides[cli->override_count + i] = sweep.words[i];
    }
    cmd_plan_sweep_run_combinations(cli, &sweep);
    cmd_plan_sweep_end_outputs(cli, &sweep);
    hd_table_destroy(sweep.table);
    hd_page_items_finish(&sweep.items);
    free(sweep.words);
    free(sweep.overrides);
    return cli->problem.exit_code;
}
