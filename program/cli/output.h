/*
 * cli/output.h - files that a command writes where the user says.
 */
#ifndef HEDDLE_CLI_OUTPUT_H
#define HEDDLE_CLI_OUTPUT_H

#include "cli/cli.h"

#define HD_CLI_PATH_BYTES 4096u

/* A file on its way: beside its place until it is whole, so that nobody reads half of it; a device
   is written as it is. */
struct hd_cli_output {
    const char *path; /* borrowed */
    char beside[HD_CLI_PATH_BYTES];
    int is_special;
    FILE *stream;
};

/* HD_EXIT_OUTPUT in cli->problem. */
hd_status hd_cli_output_open(struct hd_cli *cli, const char *path, struct hd_cli_output *output);
/* Renames it, or removes it when `status` or the stream says that it is not whole; returns what
   holds then. */
hd_status hd_cli_output_close(struct hd_cli *cli, struct hd_cli_output *output, hd_status status);

#endif /* HEDDLE_CLI_OUTPUT_H */
