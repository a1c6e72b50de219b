/* launch/pmix.h - PMIx: pmix.c, or pmix_absent.c in a build without libpmix, which fails. */
#ifndef HEDDLE_LAUNCH_PMIX_H
#define HEDDLE_LAUNCH_PMIX_H

#include "launch/socket.h"

/* Connects to the PMIx server of the launcher, which tells this process its rank. */
hd_status hd_pmix_begin(uint32_t *rank, uint32_t *rank_count, uint32_t *local_rank,
                        struct hd_problem *problem);
/* Sends rank 0's `hub` to all other ranks. */
hd_status hd_pmix_exchange(uint32_t rank, struct hd_hub_address *hub, uint64_t deadline_ns,
                           struct hd_problem *problem);
void hd_pmix_finish(void);

#endif /* HEDDLE_LAUNCH_PMIX_H */
