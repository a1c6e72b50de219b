/* heddle bench - measurements with their spread, each beside its yardstick; it never judges. */
#include "bench/cmd/cmd_bench.h"
#include "launch/identity.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static int cmd_bench_is_usual_wanted(const struct hd_config *asked, const char *word)
{
    char key[128];
    const size_t length = strcspn(word, "=");

    assert(length < sizeof key);
    memcpy(key, word, length);
    key[length] = '\0';
    return !hd_cli_bench_is_asked(asked, key);
}

int hd_cli_bench_is_asked(const struct hd_config *asked, const char *key)
{
    char section[64];
    const char *dot = strchr(key, '.');

    assert(dot != NULL && (size_t)(dot - key) < sizeof section);
    memcpy(section, key, (size_t)(dot - key));
    section[dot - key] = '\0';
    return strcmp(hd_config_place(asked, section, dot + 1), "default") != 0;
}

hd_status hd_cli_bench_config(struct hd_cli *cli, const struct hd_cli_bench_words *words,
                              struct hd_config *config)
{
    const char *overrides[2 * HD_CLI_BENCH_WORD_MAX + 256];
    const uint32_t room = (uint32_t)(sizeof overrides / sizeof overrides[0]);
    uint32_t count = 0;

    if (cli->override_count + 2 * HD_CLI_BENCH_WORD_MAX > room) {
        hd_cli_refuse(cli, "more than 256 values on the command line");
        return HD_INVALID;
    }
    /* What is asked has to be read first, to know which usual values it replaces. */
    hd_status status = hd_cli_config(cli, config);
    if (status != HD_OK) {
        return status;
    }
    for (uint32_t i = 0; words->usual[i] != NULL; i++) {
        if (cmd_bench_is_usual_wanted(config, words->usual[i])) {
            overrides[count++] = words->usual[i];
        }
    }
    hd_config_finish(config);
    for (uint32_t i = 0; i < cli->override_count; i++) {
        overrides[count++] = cli->overrides[i];
    }
    for (uint32_t i = 0; words->forced[i] != NULL; i++) {
        overrides[count++] = words->forced[i];
    }
    return hd_config_load(config, cli->file, count, overrides, &cli->problem);
}

hd_status hd_cli_bench_open(struct hd_cli *cli, const struct hd_cli_bench_words *words,
                            struct hd_cli_bench_job *bench)
{
    hd_status status = hd_cli_bench_config(cli, words, &bench->config);

    if (status != HD_OK) {
        return status;
    }
    status = hd_cli_take_plugins(cli, &bench->config, &bench->plugins);
    if (status != HD_OK) {
        goto finish_config;
    }
    status = hd_job_create(&bench->job, &bench->config, &bench->plugins, &cli->problem);
    if (status == HD_OK) {
        return HD_OK;
    }
    hd_plugins_finish(&bench->plugins);
finish_config:
    hd_config_finish(&bench->config);
    return status;
}

void hd_cli_bench_close(struct hd_cli_bench_job *bench)
{
    hd_job_finish(&bench->job);
    hd_plugins_finish(&bench->plugins);
    hd_config_finish(&bench->config);
}

void hd_cli_bench_json(struct cJSON *parent, const char *key, const struct hd_bench_spread *spread)
{
    struct cJSON *object = hd_json_object(parent, key);

    hd_json_number(object, "median", spread->median);
    hd_json_number(object, "min", spread->min);
    hd_json_number(object, "p90", spread->p90);
    hd_json_u64(object, "count", spread->count);
}

void hd_cli_bench_cell(struct hd_table *table, const char *format, double value)
{
    char text[64];

    if (isnan(value)) {
        hd_table_cell(table, "-");
        return;
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text, sizeof text, format, value);
#pragma GCC diagnostic pop
    hd_table_cell(table, "%s", text);
}

hd_status hd_cli_bench_no_figure(struct hd_cli *cli)
{
    if (hd_cli_option(cli, "--svg", 0) == NULL) {
        return HD_OK;
    }
    hd_cli_refuse(cli, "--svg is of bench skew");
    return HD_INVALID;
}

static void cmd_bench_show_machine(struct hd_cli *cli, const char *word)
{
    struct hd_bench_machine machine;

    if (hd_identity_is_member()) {
        return; /* rank 0 speaks */
    }
    hd_bench_machine(&machine);
    if (!cli->is_json) {
        printf("heddle bench %s on %s, %u core%s, load %.1f before\n", word, machine.cpu,
               machine.core_count, machine.core_count == 1 ? "" : "s", machine.load);
        fflush(stdout);
        return;
    }
    hd_json_text(cli->json, "bench", word);
    struct cJSON *object = hd_json_object(cli->json, "machine");
    hd_json_text(object, "cpu", machine.cpu);
    hd_json_u64(object, "cores", machine.core_count);
    hd_json_number(object, "load_before", machine.load);
}

static int cmd_bench(struct hd_cli *cli)
{
    static const struct {
        const char *word;
        int (*run)(struct hd_cli *cli);
    } rows[] = {{"plan", hd_cli_bench_plan},
                {"step", hd_cli_bench_step},
                {"p2p", hd_cli_bench_p2p},
                {"skew", hd_cli_bench_skew}};

    if (hd_cli_words_max(cli, 1) != HD_OK) {
        return cli->problem.exit_code;
    }
    hd_problem_remedy(&cli->problem, "heddle bench plan, step, p2p and skew measure");
    if (cli->word_count == 0) {
        return hd_cli_refuse(cli, "bench does not say what to measure");
    }
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(cli->words[0], rows[i].word) == 0) {
            cli->problem.remedy[0] = '\0';
            cmd_bench_show_machine(cli, rows[i].word);
            return rows[i].run(cli);
        }
    }
    return hd_cli_refuse(cli, "bench does not measure %.100s", cli->words[0]);
}

static const struct hd_cli_option cmd_bench_options[] = {
    {"--part", "model|products|engine|schedule|quantiser|overlap|recording",
     "of bench step: only this part; may be repeated"},
    {"--svg", "OUT", "of bench skew: what it found, as a figure"},
    {NULL, NULL, NULL},
};

const struct hd_command hd_command_bench = {
    "bench",
    "plan|step|p2p|skew",
    "measures, each number beside its yardstick of the same run",
    cmd_bench_options,
    cmd_bench,
};
