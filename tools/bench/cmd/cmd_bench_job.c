#include "bench/cmd/cmd_bench.h"
#include "base/try.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

bool hd_cli_bench_is_asked(const struct hd_config *asked, const char *word)
{
    char section[64], key[64];
    const int count = sscanf(word, "%63[^.].%63[^=]", section, key);

    assert(count == 2);
    return strcmp(hd_config_place(asked, section, key), "default") != 0;
}

hd_status hd_cli_bench_config(struct hd_cli *cli, const struct hd_cli_bench_words *words,
                              struct hd_config *config)
{
    const char *overrides[2 * HD_CLI_BENCH_WORD_MAX + 256];
    const uint32_t room = (uint32_t)(sizeof overrides / sizeof overrides[0]);
    uint32_t count = 0;

    if (cli->override_count + 2 * HD_CLI_BENCH_WORD_MAX > room) {
        hd_cli_refuse(cli, "the command line has more than 256 values");
        return HD_INVALID;
    }
    /* The first read tells which usual values are replaced. */
    HD_TRY(hd_cli_config(cli, config));
    for (uint32_t i = 0; words->usual[i] != NULL; i++) {
        if (!hd_cli_bench_is_asked(config, words->usual[i])) {
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
    HD_TRY(hd_cli_bench_config(cli, words, &bench->config));
    hd_status status = hd_cli_take_plugins(cli, &bench->config, &bench->plugins);
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

hd_status hd_bench_part_measure(struct hd_bench_part *part, const struct hd_cli_bench_words *words,
                                hd_status (*measure)(struct hd_bench_part *part,
                                                     struct hd_cli_bench_job *bench))
{
    struct hd_cli_bench_job bench;

    HD_TRY(hd_cli_bench_open(part->cli, words, &bench));
    const hd_status status = measure(part, &bench);
    hd_cli_bench_close(&bench);
    return status;
}

hd_status hd_cli_bench_blame(struct hd_cli *cli, const struct hd_config *config,
                             const char *section, const char *key)
{
    hd_problem_place(&cli->problem, "%s", hd_config_place(config, section, key));
    hd_problem_key(&cli->problem, "%s.%s", section, key);
    return HD_INVALID;
}

hd_status hd_cli_bench_check_repeats(struct hd_cli *cli, const struct hd_config *config,
                                     uint32_t most)
{
    const uint32_t iterations = config->bench.iterations;

    if (iterations <= most && config->bench.warmup <= most) {
        return HD_OK;
    }
    hd_problem_set(&cli->problem, HD_INVALID, HD_EXIT_USAGE, "bench %s repeats at most %u times",
                   cli->words[0], most);
    return hd_cli_bench_blame(cli, config, "bench", iterations > most ? "iterations" : "warmup");
}
