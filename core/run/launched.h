/*
 * run/launched.h - a run whose ranks a launcher has started one by one (launch/link.h).
 *
 * Each process is the parent of one rank and has shared memory of its own.  Rank 0's parent is the
 * hub, the others are members.  The parents keep their boards alike over the link, so that the same
 * code supervises a launched run and a forked one:
 *
 *        member                                    hub
 *   created   listens to the link             created   the transport must reach all hosts
 *      |                                         |      corpus and directory
 *   waiting   hd_launched_await                  |
 *      |  <---- BEGIN, the run's directory ---- begun   hd_launched_begin: has memory, forks
 *   begun     has memory, forks its rank         |
 *      |  ----- STATE of its rank, each 50 ms -->|      puts it on the board
 *      |  <---- STATES of all ranks ------------ |      less often, the more ranks there are
 *      |  ----- EVENT: death, stop, signal ----> |      judges it as an event of its own rank
 *      |  ----- ABORT, a cause on its board ---> |
 *   aborted <-- ABORT, the first cause --------- aborted
 *      |  ----- RESULT, CHANNEL, RECORDS ------> |      once the rank has ended: is_done
 *      |                                      settled   all are done, or 900 ms after the abort
 *      |                                         |      writes the files
 *   settled <-- the verdict (hd_link_close) ---- ended
 *
 * Times travel as ages, because each host has a clock of its own.  A process that sends nothing for
 * two seconds counts as stopped or cut off.  Without the hub there is no verdict: a member then
 * concludes from what it knows.
 */
#ifndef HEDDLE_RUN_LAUNCHED_H
#define HEDDLE_RUN_LAUNCHED_H

#include "launch/launch.h"
#include "run/shared.h"

#include <stdbool.h>

#define HD_LAUNCHED_PATH_BYTES 4096u

/* Receives the events of other processes' ranks. */
struct hd_launched_handler {
    void *context;
    void (*on_event)(void *context, const struct hd_launch_event *event);
};

struct hd_launched {
    struct hd_link *link; /* borrowed; NULL: a forked run, and every function does nothing */
    const struct hd_shared *shared; /* borrowed; NULL until begun */
    struct hd_launched_handler handler;
    char *directory;        /* of the run: where a waiting member stores it; borrowed */
    uint8_t *is_done;       /* [rank_count]; the hub: no more results come from the rank */
    uint64_t told_ns;       /* when the last states were sent */
    uint64_t tick_ns;       /* of the last tick */
    uint64_t heard_from_ns; /* the silence of others counts from here at the earliest */
    uint64_t aborted_ns;    /* 0: not aborted */
    bool has_told_abort, has_begun;
    struct hd_problem failure; /* of a member, before the run began */
};

static inline uint32_t hd_launched_rank(const struct hd_launched *launched)
{
    return hd_link_rank(launched->link);
}

/* Whether this process belongs to a launched run and is not its hub. */
static inline bool hd_launched_is_member(const struct hd_launched *launched)
{
    return launched->link != NULL && hd_launched_rank(launched) != 0;
}

/* Listens to `link` (NULL: a forked run).  On the hub, HD_EXIT_USAGE if the transport `carrier`
   does not reach all hosts.  `launched` must not move until finish. */
hd_status hd_launched_create(struct hd_launched *launched, struct hd_link *link,
                             const struct hd_plugin *carrier, struct hd_problem *problem);
void hd_launched_finish(struct hd_launched *launched);

/* A member waits for BEGIN and stores the run's directory in `directory`
   [HD_LAUNCHED_PATH_BYTES]; "": the run has none.  HD_ABORTED with the hub's verdict,
   HD_PEER_LOST, HD_TIMEOUT after `patience_s`. */
hd_status hd_launched_await(struct hd_launched *launched, double patience_s, char *directory,
                            struct hd_problem *problem);
/* Before the fork, with the memory mapped; the hub lets the members begin, with `directory` (NULL:
   none). */
void hd_launched_begin(struct hd_launched *launched, const struct hd_shared *shared,
                       const struct hd_launched_handler *handler, const char *directory);

/* Sends a member's event to the hub.  True: this process must not judge the event. */
bool hd_launched_forward(struct hd_launched *launched, const struct hd_launch_event *event);
/* Whether the board shows states that were sent after `death_ns`. */

bool hd_launched_is_current(const struct hd_launched *launched, uint64_t death_ns, uint64_t now_ns);
void hd_launched_tick(struct hd_launched *launched, uint64_t now_ns);
bool hd_launched_is_settled(const struct hd_launched *launched);

/* HD_EXIT_USAGE, with both hosts, for a transport that does not reach all ranks.  For the hub. */
hd_status hd_launched_check_hosts(const struct hd_link *link, const struct hd_plugin *transport,
                                  struct hd_problem *problem);

#endif /* HEDDLE_RUN_LAUNCHED_H */
