/*
 * launch/identity.h - which rank this process is, if a launcher has started it.
 *
 *   forked     no launcher: this process forks all ranks itself (also under a launcher of one task)
 *   variables  torchrun's five, set by torchrun or by hand: RANK, WORLD_SIZE, LOCAL_RANK,
 *              MASTER_ADDR, MASTER_PORT; rank 0 listens on that port
 *   PMIx       mpirun, srun --mpi=pmix: the launcher tells each process its rank, and carries the
 *              address that rank 0 listens on
 *
 * The five variables win over PMIx: under srun, torchrun is the inner launcher.  If torchrun itself
 * listens on MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE=True), rank 0 uses the port after it.
 */
#ifndef HEDDLE_LAUNCH_IDENTITY_H
#define HEDDLE_LAUNCH_IDENTITY_H

#include "launch/socket.h"

#include <stdbool.h>

#define HD_LAUNCH_RANK_MAX 1024u

enum hd_launcher {
    HD_LAUNCHER_NONE = 0,      /* this process forks the ranks */
    HD_LAUNCHER_VARIABLES = 1, /* torchrun's five variables */
    HD_LAUNCHER_PMIX = 2,
};

struct hd_identity {
    uint32_t launcher; /* enum hd_launcher */
    uint32_t rank, rank_count, local_rank;
    struct hd_hub_address hub;
};

/* Finds this process's rank, and connects to PMIx if that is the launcher; hd_identity_finish
   disconnects.  HD_EXIT_USAGE for variables that are not set or not numbers, and as
   hd_launch_check_environment. */
hd_status hd_identity_find(struct hd_identity *identity, struct hd_problem *problem);
void hd_identity_finish(struct hd_identity *identity);

/* Whether this process is one rank of several, and not rank 0; reads only the environment. */
bool hd_identity_is_member(void);

/* The launcher must have started as many processes as the plan has ranks: HD_EXIT_USAGE, with both
   numbers. */
hd_status hd_identity_check_world(const struct hd_identity *identity, uint32_t rank_count,
                                  uint32_t replica_count, struct hd_problem *problem);

/* Sends rank 0's address to all ranks, and disconnects from PMIx; with variables, all ranks have
   it. */
hd_status hd_identity_exchange(struct hd_identity *identity, uint64_t deadline_ns,
                               struct hd_problem *problem);

/* Refuses to fork if a launcher has started this command several times (SLURM_STEP_NUM_TASKS,
   OMPI_COMM_WORLD_SIZE, PMI_SIZE > 1) and does not tell this process its rank: HD_EXIT_USAGE, with
   the variable, its value and the remedy. */
hd_status hd_launch_check_environment(struct hd_problem *problem);

#endif /* HEDDLE_LAUNCH_IDENTITY_H */
