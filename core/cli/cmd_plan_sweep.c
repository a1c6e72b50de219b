/* cli/cmd_plan_sweep.c - heddle plan --sweep: one row a combination of values. */
#include "base/table.h"
#include "cli/plan.h"
#include "report/plan_json.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { SWEEP_KEY_MAX = 8, COMBINATION_MAX = 65536, VALUE_BYTES = 1024 };

/* One key and its values, as they stand in the option: "pipeline.microbatches=4:8:16". */
struct axis {
    const char *text; /* borrowed */
    uint32_t key_bytes, value_count;
};

struct sweep {
    struct axis axes[SWEEP_KEY_MAX];
    uint32_t axis_count, combination_count;
    char (*words)[VALUE_BYTES]; /* [axis_count]: the overrides of the combination */
    const char **overrides;     /* the command line's, then ours */
    uint32_t planned_count;
    struct hd_problem first_problem;
};

static hd_status read_axes(struct hd_cli *cli, struct sweep *sweep)
{
    uint64_t combinations = 1;

    for (const char *text; (text = hd_cli_option(cli, "--sweep", sweep->axis_count)) != NULL;) {
        const char *equals = strchr(text, '=');
        if (equals == NULL || equals == text || equals[1] == '\0' || strlen(text) >= VALUE_BYTES) {
            hd_cli_refuse(cli, "--sweep is KEY=V1:V2, not %.100s", text);
            return HD_INVALID;
        }
        if (sweep->axis_count == SWEEP_KEY_MAX) {
            hd_cli_refuse(cli, "more than %u keys are swept", SWEEP_KEY_MAX);
            return HD_INVALID;
        }
        struct axis *axis = &sweep->axes[sweep->axis_count++];
        *axis = (struct axis){text, (uint32_t)(equals - text), 1};
        for (const char *at = equals; (at = strchr(at + 1, ':')) != NULL;) {
            axis->value_count++;
        }
        combinations *= axis->value_count;
        if (combinations > COMBINATION_MAX) {
            hd_cli_refuse(cli, "more than %u combinations are swept", COMBINATION_MAX);
            return HD_INVALID;
        }
    }
    sweep->combination_count = (uint32_t)combinations;
    return HD_OK;
}

/* Writes "KEY=VALUE" for each key; the last key runs fastest. */
static void write_words(struct sweep *sweep, uint32_t combination)
{
    for (uint32_t i = sweep->axis_count; i-- > 0;) {
        const struct axis *axis = &sweep->axes[i];
        const char *value = axis->text + axis->key_bytes + 1;
        for (uint32_t skip = combination % axis->value_count; skip > 0; skip--) {
            value = strchr(value, ':') + 1;
        }
        combination /= axis->value_count;
        snprintf(sweep->words[i], VALUE_BYTES, "%.*s=%.*s", (int)axis->key_bytes, axis->text,
                 (int)strcspn(value, ":"), value);
    }
}

static void add_values(const struct sweep *sweep, struct hd_table *table)
{
    for (uint32_t i = 0; i < sweep->axis_count; i++) {
        hd_table_cell(table, "%s", sweep->words[i] + sweep->axes[i].key_bytes + 1);
    }
}

static void add_numbers(const struct hd_plan_facts *facts, struct hd_table *table)
{
    uint64_t bytes_most = 0;
    uint32_t copies_most = 0;
    int fits = 1;

    for (uint32_t rank = 0; rank < facts->pipeline->rank_count; rank++) {
        const uint32_t copies = facts->pipeline->peak_copies[rank];
        copies_most = copies > copies_most ? copies : copies_most;
        if (facts->footprints != NULL) {
            const uint64_t bytes = facts->footprints[rank].total_bytes;
            bytes_most = bytes > bytes_most ? bytes : bytes_most;
            fits = fits && facts->footprints[rank].fits;
        }
    }
    hd_table_cell(table, "%.10g", facts->timeline->length);
    hd_table_cell(table, "%.10g", facts->timeline->empty);
    hd_table_cell(table, "%.2f%%", 100 * facts->timeline->bubble);
    hd_table_cell(table, "%.2f%%", 100 * facts->timeline->bubble_over_ideal);
    hd_table_cell(table, "%u", copies_most);
    if (facts->footprints != NULL) {
        hd_table_cell(table, "%.3f", (double)bytes_most / 1e9);
    } else {
        hd_table_cell(table, "-");
    }
    if (facts->timeline->kind == HD_TIMELINE_COSTED) {
        hd_table_cell(table, "straggler rank %u, %.10g ticks exposed%s", facts->timeline->straggler,
                      facts->timeline->exposed_ticks, fits ? "" : ", over budget");
    } else {
        hd_table_cell(table, "%s", fits ? "" : "over budget");
    }
}

static void add_refusal(const struct hd_problem *problem, struct hd_table *table)
{
    for (uint32_t i = 0; i < 6; i++) {
        hd_table_cell(table, "-");
    }
    hd_table_cell(table, "refused: %s", problem->message);
}

static void add_json(const struct sweep *sweep, const struct hd_plan_facts *facts,
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

/* One combination: a row of the table, or an object of `plans`. */
static void run_combination(struct hd_cli *cli, struct sweep *sweep, struct hd_table *table,
                            struct cJSON *plans)
{
    struct hd_cli_plan plan;
    const hd_status status =
        hd_cli_plan(cli, cli->override_count + sweep->axis_count, sweep->overrides, &plan);
    const struct hd_problem problem = cli->problem;
    const struct hd_plan_facts *facts = status == HD_OK ? &plan.planning.facts : NULL;

    memset(&cli->problem, 0, sizeof cli->problem);
    if (plans != NULL) {
        add_json(sweep, facts, &problem, plans);
    } else {
        add_values(sweep, table);
        if (facts != NULL) {
            add_numbers(facts, table);
        } else {
            add_refusal(&problem, table);
        }
    }
    if (facts != NULL) {
        sweep->planned_count++;
        hd_cli_plan_finish(&plan);
    } else if (sweep->first_problem.exit_code == 0) {
        sweep->first_problem = problem;
    }
}

static struct hd_table *create_table(const struct sweep *sweep)
{
    static const char *const numbers[] = {"ticks",      "empty",  "bubble", "over ideal",
                                          "copies max", "GB max", "note"};
    char keys[SWEEP_KEY_MAX][VALUE_BYTES];
    const char *titles[SWEEP_KEY_MAX + sizeof numbers / sizeof *numbers];
    const uint32_t number_count = sizeof numbers / sizeof *numbers;

    for (uint32_t i = 0; i < sweep->axis_count; i++) {
        snprintf(keys[i], VALUE_BYTES, "%.*s", (int)sweep->axes[i].key_bytes, sweep->axes[i].text);
        titles[i] = keys[i];
    }
    for (uint32_t i = 0; i < number_count; i++) {
        titles[sweep->axis_count + i] = numbers[i];
    }
    return hd_table_create(sweep->axis_count + number_count, titles);
}

int hd_cli_plan_sweep(struct hd_cli *cli)
{
    struct sweep sweep = {.axis_count = 0};
    struct cJSON *plans = NULL;
    struct hd_table *table = NULL;

    if (read_axes(cli, &sweep) != HD_OK) {
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
    if (cli->is_json) {
        plans = hd_json_array(cli->json, "plans");
    } else {
        table = create_table(&sweep);
    }
    for (uint32_t i = 0; i < sweep.combination_count; i++) {
        write_words(&sweep, i);
        run_combination(cli, &sweep, table, plans);
    }
    if (sweep.planned_count == 0) {
        cli->problem = sweep.first_problem; /* nothing could be planned: its reason is the error */
    } else if (table != NULL) {
        hd_table_print(table, 0, stdout);
    }
    hd_table_destroy(table);
    free(sweep.words);
    free(sweep.overrides);
    return cli->problem.exit_code;
}
