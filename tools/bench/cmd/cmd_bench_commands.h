/* bench/cmd/cmd_bench_commands.h - `heddle bench WORD`, after the word; each returns the exit code
   and is in cmd_bench_WORD.c. */
#ifndef HEDDLE_BENCH_CMD_CMD_BENCH_COMMANDS_H
#define HEDDLE_BENCH_CMD_CMD_BENCH_COMMANDS_H

#include "cli/cli.h"

int hd_cli_bench_plan(struct hd_cli *cli);
int hd_cli_bench_step(struct hd_cli *cli);
int hd_cli_bench_p2p(struct hd_cli *cli);
int hd_cli_bench_skew(struct hd_cli *cli);

#endif /* HEDDLE_BENCH_CMD_CMD_BENCH_COMMANDS_H */
