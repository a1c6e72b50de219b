/*
 * drive/ranks.h - two ranks that measure something between them: forked here, or started by a
 * launcher on one host or on two.
 *
 *   parent   starts its ranks, and of a launched pair tells the other parent how its rank ended
 *   rank     runs the body; rank 0 leaves the results in memory that its parent reads
 *
 * Whatever rank fails first ends both: its problem is the run's.  A rank that dies of a signal is
 * the cause before all that its peer says of it.
 */
#ifndef HEDDLE_DRIVE_RANKS_H
#define HEDDLE_DRIVE_RANKS_H

#include "launch/launch.h"

#define HD_DRIVE_RANK_COUNT 2u

/* One of them, in its own process. */
struct hd_drive_rank {
    const void *context;            /* the caller's */
    struct hd_bootstrap *bootstrap; /* borrowed */
    uint32_t rank;
    uint32_t ordinal;    /* among the ranks of its host: whose device it takes */
    uint64_t timeout_ns; /* of whatever waits for the peer */
    void *results;       /* zeroed, [result_bytes]; rank 0's are what on_end gets */
};

struct hd_drive_ranks {
    const void *context;
    uint64_t result_bytes;
    uint64_t gather_bytes; /* the most that a rank gives in one hd_drive_swap */
    uint64_t timeout_ns;
    uint32_t has_own_cores; /* forked ranks share none; a launcher binds its ranks itself */
    struct hd_link *link;   /* NULL: both are forked here */
    hd_status (*body)(struct hd_drive_rank *rank, struct hd_problem *problem);
};

/* Runs both; `results` [result_bytes] is rank 0's, also after a failure, and stays as it is where
   rank 0 is another process.  The verdict of a launched pair is the hub's to give. */
hd_status hd_drive_ranks_run(const struct hd_drive_ranks *ranks, void *results,
                             struct hd_problem *problem);

/* 1: both are on one host; `link` NULL: forked here. */
uint32_t hd_drive_share_host(const struct hd_link *link);

/* Both give `bytes` and get the other's.  Collective; in a rank. */
hd_status hd_drive_swap(const struct hd_drive_rank *rank, const void *mine, void *theirs,
                        uint64_t bytes);

#endif /* HEDDLE_DRIVE_RANKS_H */
