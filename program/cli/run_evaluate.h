/* cli/run_evaluate.h - the half of `heddle run` that trains nothing: --evaluate. */
#ifndef HEDDLE_CLI_RUN_EVALUATE_H
#define HEDDLE_CLI_RUN_EVALUATE_H

#include "cli/cli.h"
#include "run/session.h"

/* Runs the session; its report becomes the command's. */
hd_status hd_cli_supervise(struct hd_cli *cli, struct hd_session *session);

/* Whether `job` cannot be evaluated: it has backwards, or its kernel computes no loss.  Then
   cli->problem is filled. */
bool hd_cli_evaluate_refuse(struct hd_cli *cli, const struct hd_job *job);

/* Runs `job`, which is planned forward only, and prints loss and bits per byte; fills cli->problem.
   Reads --steps into the request. */
void hd_cli_evaluate(struct hd_cli *cli, struct hd_job *job, struct hd_session_request *request);

#endif /* HEDDLE_CLI_RUN_EVALUATE_H */
