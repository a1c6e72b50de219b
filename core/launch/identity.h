/*
 * launch/identity.h - which rank this process is, where a launcher has started it.
 *
 *   forked     nobody has: this command forks all ranks itself (also under a launcher of one task)
 *   variables  torchrun's five, by torchrun or by hand: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
 *              MASTER_PORT; rank 0 listens on that port
 *   PMIx       mpirun, srun --mpi=pmix: the launcher says who is who and carries rank 0's card, the
 *              address that it listens on
 *
 * The five variables win over PMIx: torchrun under srun is the launcher that is nearer.  Where
 * torchrun itself listens on MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE=True), rank 0 takes the port
 * after it.
 */
#ifndef HEDDLE_LAUNCH_IDENTITY_H
#define HEDDLE_LAUNCH_IDENTITY_H

#include "base/problem.h"

#include <stdint.h>

enum hd_launcher { HD_LAUNCHER_NONE = 0, HD_LAUNCHER_VARIABLES = 1, HD_LAUNCHER_PMIX = 2 };

#define HD_CARD_ADDRESS_MAX 8u
#define HD_TOKEN_BYTES      16u

/* Where rank 0 listens. */
struct hd_launch_card {
    uint32_t address_count;
    char addresses[HD_CARD_ADDRESS_MAX][64]; /* names or numbers; tried in turn */
    uint16_t port;                           /* 0: any that is free */
    uint8_t token[HD_TOKEN_BYTES]; /* PMIx: only who has it is let in; else zeros, as in torchrun */
};

struct hd_identity {
    uint32_t launcher; /* enum hd_launcher */
    uint32_t rank, rank_count, local_rank;
    struct hd_launch_card card;
};

/* Who am I?  Connects to PMIx where it is the launcher; finish ends that.  HD_EXIT_USAGE for
   variables that are missing or no numbers, and for launchers that speak another language. */
hd_status hd_identity_find(struct hd_identity *identity, struct hd_problem *problem);
void hd_identity_finish(struct hd_identity *identity);

/* 1 where this process is one rank of several, and not rank 0: by the environment alone. */
uint32_t hd_identity_is_member(void);

/* The world must be as large as the plan wants it: HD_EXIT_USAGE, both numbers named. */
hd_status hd_identity_check_world(const struct hd_identity *identity, uint32_t rank_count,
                                  uint32_t replica_count, struct hd_problem *problem);

/* Hands rank 0's card to all, and ends the connection to PMIx; with variables all have it. */
hd_status hd_identity_exchange(struct hd_identity *identity, uint64_t deadline_ns,
                               struct hd_problem *problem);

/* launch/pmix.c, or pmix_absent.c in a build without libpmix. */
hd_status hd_pmix_begin(struct hd_identity *identity, struct hd_problem *problem);
hd_status hd_pmix_exchange(struct hd_identity *identity, uint64_t deadline_ns,
                           struct hd_problem *problem);
void hd_pmix_finish(void);

#endif /* HEDDLE_LAUNCH_IDENTITY_H */
