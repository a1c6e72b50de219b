/*
 * drive/ranks.h - two ranks that measure something between them: forked here, or started by a
 * launcher on one host or on two.
 *
 *   parent   starts its ranks; in a launched pair it tells the other parent how its rank ended
 *   rank     runs the body; rank 0 writes the results to memory that its parent reads
 *
 * The rank that fails first ends both, and its problem is the run's.  The death of a rank by a
 * signal comes before anything that its peer reports.
 */
#ifndef HEDDLE_DRIVE_RANKS_H
#define HEDDLE_DRIVE_RANKS_H

#include "launch/launch.h"

#include <stdbool.h>

#define HD_DRIVE_RANK_COUNT 2u

/* One rank, in its own process. */
struct hd_drive_rank {
    const void *context;            /* the caller's */
    struct hd_bootstrap *bootstrap; /* borrowed */
    uint32_t rank;
    uint32_t ordinal;    /* among the ranks of its host; the number of its device */
    uint64_t timeout_ns; /* of every wait for the peer */
    void *results;       /* zeroed, [result_bytes]; the parent reads rank 0's */
};

struct hd_drive_ranks {
    const void *context;
    uint64_t result_bytes;
    uint64_t gather_bytes; /* the most bytes of one hd_drive_swap */
    uint64_t timeout_ns;
    bool has_own_cores;   /* forked ranks share no core; a launcher binds its ranks itself */
    struct hd_link *link; /* NULL: both are forked here */
    hd_status (*body)(struct hd_drive_rank *rank, struct hd_problem *problem);
};

/* Runs both.  `results` [result_bytes] is filled with rank 0's, also after a failure; it stays
   as it is where another parent has rank 0.  In a launched pair the parent of rank 0 gives the
   verdict. */
hd_status hd_drive_ranks_run(const struct hd_drive_ranks *ranks, void *results,
                             struct hd_problem *problem);

/* Whether both are on one host.  `link` NULL: forked here. */
bool hd_drive_share_host(const struct hd_link *link);

/* Each rank gives `bytes` and gets those of the other.  Collective. */
hd_status hd_drive_swap(const struct hd_drive_rank *rank, const void *mine, void *theirs,
                        uint64_t bytes);

#endif /* HEDDLE_DRIVE_RANKS_H */
