/*
 * cli/join.h - one rank of several, where a launcher has started the same command for each.
 */
#ifndef HEDDLE_CLI_JOIN_H
#define HEDDLE_CLI_JOIN_H

#include "cli/cli.h"
#include "launch/link.h"

struct hd_cli_world {
    uint32_t rank_count, replica_count;
    uint32_t is_fixed; /* the command always takes so many, whatever [pipeline] says */
    const char *hash;  /* what all must agree on */
    double patience_s; /* until all have come */
};

/* Meets the others; *link stays NULL where this command forks all ranks itself.  `address` (64
   bytes, or NULL) is then where rank 0 can be reached. */
hd_status hd_cli_join(struct hd_cli *cli, const struct hd_cli_world *world, struct hd_link **link,
                      char *address);

/* One object on stdout, rank 0's; an error is said by whoever has it. */
void hd_cli_be_member(struct hd_cli *cli);

#endif /* HEDDLE_CLI_JOIN_H */
