/*
 * launch/bootstrap.h - what the ranks of a run share before any transport: put, get and fence with
 * deadlines, as struct hd_host hands them to plugins, and one gather of equal blocks for the end of
 * a step.
 *
 * The bootstrap lives in shared memory that is made before the fork (launch/region.h).  Waits sleep
 * on futexes, and hd_bootstrap_abort ends all of them.  A rank that dies in any of these calls
 * leaves nothing locked: the other ranks wait until the abort or the deadline.
 */
#ifndef HEDDLE_LAUNCH_BOOTSTRAP_H
#define HEDDLE_LAUNCH_BOOTSTRAP_H

#include "launch/region.h"

#include <pthread.h>

/* How far one rank has come at one barrier. */
struct hd_bootstrap_round {
    uint32_t passed_count;
    bool is_waiting; /* the rank has arrived at the next round, and timed out there */
};

/* The end of one rank. */
struct hd_bootstrap {
    struct hd_region *region;
    uint32_t rank;
    pthread_mutex_t writing; /* held by the thread of this rank that puts */
    struct hd_bootstrap_round fence, gather;
};

/* In the rank's own process (or, in a test, in its own thread). */
void hd_bootstrap_init(struct hd_bootstrap *bootstrap, struct hd_region *region, uint32_t rank);

uint32_t hd_bootstrap_rank(const struct hd_bootstrap *bootstrap);
uint32_t hd_bootstrap_rank_count(const struct hd_bootstrap *bootstrap);

/* As in struct hd_host.  One rank puts a key (1 to 127 bytes) once; every rank sees it after the
   next fence.  A rank has at least 64 KiB for keys and values: HD_NO_MEMORY beyond, HD_INVALID for
   a key that is too long or that this rank has put before.  get waits for the key until the
   deadline (HD_TIMEOUT); a value of another size is HD_PROTOCOL.  After an abort every wait returns
   HD_ABORTED. [any-thread; fence: one thread at a time] */
hd_status hd_bootstrap_put(struct hd_bootstrap *bootstrap, const char *key, const void *value,
                           uint64_t bytes);
hd_status hd_bootstrap_get(struct hd_bootstrap *bootstrap, const char *key, void *value,
                           uint64_t bytes, uint64_t deadline_ns);
hd_status hd_bootstrap_fence(struct hd_bootstrap *bootstrap, uint64_t deadline_ns);

/* Every rank gives `bytes` (equal everywhere, else HD_PROTOCOL; above gather_bytes HD_INVALID) and
   gets the blocks of all ranks, in rank order, in `all` [rank_count x bytes].  Collective; one
   thread.  HD_TIMEOUT, HD_ABORTED.  A fence or gather that timed out has given its part: called
   again, it waits for the same round, and the block of the first call counts. */
hd_status hd_bootstrap_gather(struct hd_bootstrap *bootstrap, const void *mine, uint64_t bytes,
                              void *all, uint64_t deadline_ns);

/* Ends every wait of every rank, now and later.  The parent sees the abort, and after grace_ms
   kills the ranks that still run. [any-thread] of any rank */
void hd_bootstrap_abort(struct hd_bootstrap *bootstrap);

#endif /* HEDDLE_LAUNCH_BOOTSTRAP_H */
