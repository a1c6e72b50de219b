/*
 * launch/launch.h - ranks as children of one process.
 *
 *   parent   forks the ranks, sees deaths (waitid, pidfd) and stops (WSTOPPED), relays signals, and
 *            leaves no process behind: grace_ms after the run is aborted it kills what still runs
 *   rank     runs rank_main in its own process, dies with the parent (PR_SET_PDEATHSIG), and
 *            blocks SIGINT, SIGTERM and SIGUSR1 and ignores SIGHUP, which the parent relays by
 *            on_event
 *   region   `shared_bytes` of zeroed memory that the parent and the ranks see at the same address;
 *            its contents are the caller's (the engine's board)
 *
 * This file knows no schedule, plugin or tensor.
 */
#ifndef HEDDLE_LAUNCH_LAUNCH_H
#define HEDDLE_LAUNCH_LAUNCH_H

#include "base/problem.h"
#include "launch/bootstrap.h"
#include "launch/link.h"

#include <sys/types.h>

enum hd_launch_event_kind {
    HD_LAUNCH_EXITED = 1,    /* a rank returned exit_code */
    HD_LAUNCH_KILLED = 2,    /* a rank died of `signal` */
    HD_LAUNCH_STOPPED = 3,   /* a rank was stopped by `signal` */
    HD_LAUNCH_CONTINUED = 4, /* a stopped rank continues */
    /* The parent got SIGINT, SIGTERM, SIGUSR1 or SIGHUP for the first time.  At the second signal
       the parent kills the ranks, and the run ends with 128 + the first signal. */
    HD_LAUNCH_SIGNALLED = 5,
    HD_LAUNCH_TICK = 6,  /* about every 20 ms */
    HD_LAUNCH_ENDED = 7, /* the last event: every rank is reaped, the region still exists */
    /* Not from hd_launch_run: the listener of the link makes these two in a launched run. */
    HD_LAUNCH_LOST = 8,   /* the connection to a rank's process has ended */
    HD_LAUNCH_SILENT = 9, /* a rank's process sends nothing: it is stopped, or the network is cut */
};

struct hd_launch_event {
    uint32_t kind; /* enum hd_launch_event_kind */
    uint32_t rank; /* UINT32_MAX: no particular one */
    pid_t pid;
    int32_t exit_code, signal;
    uint64_t at_ns;
};

struct hd_launch {
    uint32_t rank_count;
    uint64_t shared_bytes;
    uint64_t gather_bytes; /* the largest block of a rank */
    void *context;         /* the first argument of all functions below */

    /* In the parent, before the first fork: fills the region.  NULL: it stays zero. */
    void (*prepare)(void *context, void *shared);

    /* In the rank's own process.  Returns the rank's exit code; then stdio is flushed, and no
       function registered with atexit runs. */
    int32_t (*rank_main)(void *context, struct hd_bootstrap *bootstrap, void *shared);

    /* In the parent, one thread.  Returns true to abort the run: the bootstrap is aborted, and the
       ranks that still run grace_ms later, stopped or not, are killed. */
    bool (*on_event)(void *context, void *shared, const struct hd_launch_event *event);
    uint32_t grace_ms;

    /* NULL: this process forks all ranks.  Else it is one process of a launched run
       (launch/link.h): it forks the link's rank only, polls the link, and stays until is_settled
       says that the other ranks have ended too. [in the parent] */
    struct hd_link *link;
    bool (*is_settled)(void *context, void *shared);
};

struct hd_launch_outcome {
    int32_t exit_codes[HD_LAUNCH_RANK_MAX]; /* of each rank; 128 + n when it died of signal n */
    uint32_t killed_count;                  /* ranks that the parent killed */
    int32_t signal;                         /* the first that the parent got; 0: none */
};

/* Forks, supervises and reaps all ranks.  HD_OK also when ranks failed: the outcome tells how.
   Fails only if ranks cannot be started (HD_EXIT_FAILED); those that were are killed and reaped.
   The caller has one thread, and gets its signal mask and its SIGCHLD action back.  A SIGINT that
   was ignored at the start (as in a background job of a script) counts as well. */
hd_status hd_launch_run(const struct hd_launch *launch, struct hd_launch_outcome *outcome,
                        struct hd_problem *problem);

#endif /* HEDDLE_LAUNCH_LAUNCH_H */
