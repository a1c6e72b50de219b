/* cli/run_evaluate.h - the half of `heddle run` that trains nothing: --evaluate. */
#ifndef HEDDLE_CLI_RUN_EVALUATE_H
#define HEDDLE_CLI_RUN_EVALUATE_H

#include "cli/cli.h"
#include "run/session.h"

/* Runs `job`, which is planned forward only, and prints loss and bits per byte; fills cli->problem.
   `resume` NULL: the initial values; `link` NULL: no launcher. */
void hd_cli_evaluate(struct hd_cli *cli, struct hd_job *job, struct hd_resume *resume,
                     struct hd_link *link);

#endif /* HEDDLE_CLI_RUN_EVALUATE_H */
