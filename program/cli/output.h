/*
 * cli/output.h - files that a command writes to a path of the command line.
 */
#ifndef HEDDLE_CLI_OUTPUT_H
#define HEDDLE_CLI_OUTPUT_H

#include "cli/cli.h"

#define HD_CLI_PATH_BYTES 4096u

/* A file being written: under another name until it is complete, so that no reader sees half of it.
   A device is written directly. */
struct hd_cli_output {
    const char *path; /* borrowed */
    char beside[HD_CLI_PATH_BYTES];
    bool is_special;
    FILE *stream;
};

/* HD_EXIT_OUTPUT in cli->problem. */
hd_status hd_cli_output_open(struct hd_cli *cli, const char *path, struct hd_cli_output *output);
/* Renames the file, or removes it if `status` or the stream has an error.  Returns that error. */
hd_status hd_cli_output_close(struct hd_cli *cli, struct hd_cli_output *output, hd_status status);

#endif /* HEDDLE_CLI_OUTPUT_H */
