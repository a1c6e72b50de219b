/*
 * bench/cmd/cmd_bench_job.h - a job made of the configuration and of what a measurement needs.
 *
 * A usual value holds if neither the file nor the command line sets the key.  A forced value always
 * holds, because without it the measurement would be of something else.
 */
#ifndef HEDDLE_BENCH_CMD_CMD_BENCH_JOB_H
#define HEDDLE_BENCH_CMD_CMD_BENCH_JOB_H

#include "cli/cli.h"
#include "run/job.h"

#define HD_CLI_BENCH_WORD_MAX 32u

/* Words section.key=value; each list ends with NULL. */
struct hd_cli_bench_words {
    const char *usual[HD_CLI_BENCH_WORD_MAX];
    const char *forced[HD_CLI_BENCH_WORD_MAX];
};

struct hd_cli_bench_job {
    struct hd_config config;
    struct hd_plugins plugins;
    struct hd_job job;
};

/* Reads the configuration.  On failure it is finished already. */
hd_status hd_cli_bench_config(struct hd_cli *cli, const struct hd_cli_bench_words *words,
                              struct hd_config *config);
/* Also takes the plugins and makes the job.  On failure all is finished already, and cli->problem
   is set. */
hd_status hd_cli_bench_open(struct hd_cli *cli, const struct hd_cli_bench_words *words,
                            struct hd_cli_bench_job *bench);
void hd_cli_bench_close(struct hd_cli_bench_job *bench);

/* The file or the command line sets "section.key". */
bool hd_cli_bench_is_asked(const struct hd_config *asked, const char *key);

/* Puts place and key of bench.KEY into cli->problem; HD_INVALID. */
hd_status hd_cli_bench_blame(struct hd_cli *cli, const struct hd_config *config, const char *key);

/* Refuses --part, or --svg, if the command line has it: it is for `bench OWNER` only. */
hd_status hd_cli_bench_refuse_option(struct hd_cli *cli, const char *option, const char *owner);

#endif /* HEDDLE_BENCH_CMD_CMD_BENCH_JOB_H */
