/*
 * launch/launch.h - ranks as children of one process, and what they share before any transport.
 *
 *   parent   forks the ranks, sees deaths (waitid, pidfd) and stops (WSTOPPED), relays signals, and
 *            leaves nobody behind: a second after the run is aborted, whoever is left is killed
 *   rank     runs rank_main in its own process, dies with the parent (PR_SET_PDEATHSIG), ignores
 *            SIGINT, SIGTERM and SIGUSR1 (the parent relays them by on_event)
 *   region   `shared_bytes` of zeroed memory that parent and ranks see at the same address; what
 *            lies in it is the caller's (the engine's board)
 *
 * The bootstrap is put/get/fence with deadlines, as hd_host hands it to plugins, plus one
 * gather of equal blocks for the end of a step.  It lives in shared memory made before the fork and
 * has no name anywhere.  Waits sleep on futexes, and hd_bootstrap_abort ends them all.  A rank that
 * dies in any of these calls leaves nothing locked: the others wait until the abort or the
 * deadline.
 *
 * This file knows no schedule, plugin or tensor.
 */
#ifndef HEDDLE_LAUNCH_LAUNCH_H
#define HEDDLE_LAUNCH_LAUNCH_H

#include "base/problem.h"
#include "launch/link.h"

#include <stdint.h>
#include <sys/types.h>

#define HD_LAUNCH_RANK_MAX 1024u

struct hd_bootstrap; /* one rank's end of it */

uint32_t hd_bootstrap_rank(const struct hd_bootstrap *bootstrap);
uint32_t hd_bootstrap_rank_count(const struct hd_bootstrap *bootstrap);

/* As hd_host's.  A key (1 to 127 bytes) is put once, by one rank; what was put before a fence is
   visible to all after it.  A rank holds 64 KiB of keys and values: HD_NO_MEMORY beyond, HD_INVALID
   for a key that is too long or was put by this rank before.  get waits for the key until the
   deadline (HD_TIMEOUT); a value of another size is HD_PROTOCOL.  After abort every wait returns
   HD_ABORTED. [any-thread; fence: one at a time] */
hd_status hd_bootstrap_put(struct hd_bootstrap *bootstrap, const char *key, const void *value,
                           uint64_t bytes);
hd_status hd_bootstrap_get(struct hd_bootstrap *bootstrap, const char *key, void *value,
                           uint64_t bytes, uint64_t deadline_ns);
hd_status hd_bootstrap_fence(struct hd_bootstrap *bootstrap, uint64_t deadline_ns);

/* Every rank gives `bytes` (equal everywhere, else HD_PROTOCOL; above gather_bytes HD_INVALID) and
   gets all blocks in rank order in `all` [rank_count x bytes].  Collective; one thread. HD_TIMEOUT,
   HD_ABORTED.  A fence or gather that timed out has given its part: called again, it goes on
   waiting for the same round, and the block of the first call counts. */
hd_status hd_bootstrap_gather(struct hd_bootstrap *bootstrap, const void *mine, uint64_t bytes,
                              void *all, uint64_t deadline_ns);

/* Ends every wait of every rank, now and later; the parent sees it and gives whoever is left
   grace_ms. [any-thread] of any rank */
void hd_bootstrap_abort(struct hd_bootstrap *bootstrap);

enum hd_launch_event_kind {
    HD_LAUNCH_EXITED = 1,    /* a rank returned exit_code */
    HD_LAUNCH_KILLED = 2,    /* a rank died of `signal` */
    HD_LAUNCH_STOPPED = 3,   /* a rank was stopped by `signal` */
    HD_LAUNCH_CONTINUED = 4, /* and goes on */
    /* The parent got SIGINT, SIGTERM or SIGUSR1: the first one only.  At the second the ranks are
       killed, and the run ends with 128 + the first. */
    HD_LAUNCH_SIGNALLED = 5,
    HD_LAUNCH_TICK = 6,  /* every 20 ms or so */
    HD_LAUNCH_ENDED = 7, /* the last event: every rank is reaped, the region still there */
    /* Never from hd_launch_run: of a launched run, by whoever listens to the link. */
    HD_LAUNCH_LOST = 8,   /* the connection to a rank's process ended */
    HD_LAUNCH_SILENT = 9, /* nothing comes from it: it is stopped, or the network is cut */
};

struct hd_launch_event {
    uint32_t kind; /* enum hd_launch_event_kind */
    uint32_t rank; /* UINT32_MAX: none in particular */
    pid_t pid;
    int32_t exit_code, signal;
    uint64_t at_ns;
};

struct hd_launch {
    uint32_t rank_count;
    uint64_t shared_bytes;
    uint64_t gather_bytes; /* the largest block of a rank */
    void *context;         /* the caller's, first argument of all below */

    /* In the parent, before the first fork: what the region must hold then.  NULL: zeros. */
    void (*prepare)(void *context, void *shared);

    /* In the rank's own process; what it returns is the rank's exit code, after stdio is flushed.
       No function registered with atexit runs. */
    int32_t (*rank_main)(void *context, struct hd_bootstrap *bootstrap, void *shared);

    /* In the parent, one thread.  Returns 1 to abort the run: the bootstrap is aborted, and
       grace_ms later whoever is left, stopped or not, is killed. */
    uint32_t (*on_event)(void *context, void *shared, const struct hd_launch_event *event);
    uint32_t grace_ms;

    /* NULL: all ranks are forked here.  Else this process is one of a launched run (launch/link.h):
       it forks the link's rank alone, takes the link's turns, and stays until is_settled says that
       the others have come to their end as well. [in the parent] */
    struct hd_link *link;
    uint32_t (*is_settled)(void *context, void *shared);
};

struct hd_launch_outcome {
    int32_t exit_codes[HD_LAUNCH_RANK_MAX]; /* of each rank; 128 + n when it died of signal n */
    uint32_t killed_count;                  /* ranks that the parent had to kill */
    int32_t signal;                         /* the first that the parent got; 0: none */
};

/* Forks, supervises, reaps all.  HD_OK also when ranks failed: the outcome says how.  Fails only if
   ranks cannot be started (HD_EXIT_FAILED); those that were are then killed and reaped.  The caller
   has one thread, and gets back its signal mask and its SIGCHLD action.  A SIGINT that was ignored
   at the start (a job in the background of a script) counts all the same. */
hd_status hd_launch_run(const struct hd_launch *launch, struct hd_launch_outcome *outcome,
                        struct hd_problem *problem);

/* Refuses to fork where a launcher has started this command several times (SLURM_STEP_NUM_TASKS,
   OMPI_COMM_WORLD_SIZE, PMI_SIZE > 1) and it cannot be told which rank it is: HD_EXIT_USAGE, with
   the variable, its value and the remedy. */
hd_status hd_launch_check_environment(struct hd_problem *problem);

#endif /* HEDDLE_LAUNCH_LAUNCH_H */
