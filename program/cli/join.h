/*
 * cli/join.h - a command that a launcher has started once for each rank.
 */
#ifndef HEDDLE_CLI_JOIN_H
#define HEDDLE_CLI_JOIN_H

#include "cli/cli.h"
#include "launch/link.h"

struct hd_cli_world {
    uint32_t rank_count, replica_count;
    bool is_fixed;    /* the command needs exactly rank_count processes, whatever [pipeline] says */
    const char *hash; /* what all ranks must agree on */
    double patience_s; /* how long to wait for all ranks */
    /* Makes the facts of struct hd_link_request; NULL: the hash alone.  Called only if a launcher
       has started this process.  Owned, free(); NULL: cannot be allocated. */
    char *(*facts)(const void *context);
    const void *context;
};

/* Connects the ranks; *link stays NULL if this command forks all ranks itself.  `address` (64
   bytes, or NULL) gets the address of rank 0. */
hd_status hd_cli_join(struct hd_cli *cli, const struct hd_cli_world *world, struct hd_link **link,
                      char *address);

/* Makes the command of every rank but 0 quiet: only rank 0 prints results; errors are printed by
   the process that has them. */
void hd_cli_be_member(struct hd_cli *cli);

#endif /* HEDDLE_CLI_JOIN_H */
