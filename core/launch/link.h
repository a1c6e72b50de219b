/*
 * launch/link.h - connects the processes of a run whose ranks a launcher has started one by one.
 *
 *   rank 0's process   the hub: listens, waits until all ranks have connected, passes messages on
 *   a member           each other process; it has one TCP connection, to the hub
 *
 * Each launched process forks its one rank and watches it, as the parent of a forked run watches
 * all of its ranks.  So the same code sees deaths, stops and signals, and rank 0's process outlives
 * its rank and writes the files.  Between those parents the link carries:
 *
 *   the bootstrap   put, fence and gather: what a rank writes to its own region is copied to the
 *                   regions of the others (launch/region.h), and wakes the ranks that sleep there
 *   messages        of the caller: states of ranks, events, results, the cause of a failure
 *   the verdict     of the hub: how the run ended; the other processes exit with it
 *
 * PMIx or torchrun's variables give each process its rank, and the address of the hub
 * (launch/identity.h).  Everything after that is the link's, so deadlines, aborts and deaths are
 * the same under each launcher.  A connection that ends is a death; silence is a stopped process or
 * a broken network.
 *
 * All calls are made by one thread of the parent.
 */
#ifndef HEDDLE_LAUNCH_LINK_H
#define HEDDLE_LAUNCH_LINK_H

#include "launch/clock.h"
#include "launch/link_types.h"

struct hd_link;

/* Connects all ranks, or fails on all: a rank that has not connected after `patience_s`
   (HD_EXIT_PEER) or that two processes claim, another world or other facts (HD_EXIT_USAGE) is
   named to every process that has connected. */
hd_status hd_link_open(const struct hd_link_request *request, struct hd_link **link,
                       struct hd_problem *problem);

/* The hub sends `problem` (exit_code 0: no failure) to all as the verdict; a member that leaves
   before the verdict sends it to the hub as its reason.  Takes NULL. */
void hd_link_close(struct hd_link *link, const struct hd_problem *problem);

uint32_t hd_link_rank(const struct hd_link *link);
uint32_t hd_link_rank_count(const struct hd_link *link);
const struct hd_peer *hd_link_peer(const struct hd_link *link, uint32_t rank);
/* The offset of this host's clock to the hub's, which hd_link_poll measures again and again; all
   zero on the hub and on its machine.  Borrowed. */
const struct hd_clock *hd_link_clock(const struct hd_link *link);
/* The verdict, or NULL if it has not arrived.  [members] */
const struct hd_problem *hd_link_verdict(const struct hd_link *link);
/* When the last bytes arrived: on the hub from `rank`, on a member from the hub (rank 0). */
uint64_t hd_link_heard_ns(const struct hd_link *link, uint32_t rank);
bool hd_link_is_lost(const struct hd_link *link, uint32_t rank);

void hd_link_listen(struct hd_link *link, const struct hd_link_listener *listener);

/* A member's message goes to the hub; the hub's to `rank`, or to all (UINT32_MAX). */
void hd_link_send(struct hd_link *link, uint32_t rank, const struct hd_link_message *message);

/* A descriptor that is readable when hd_link_poll has something to do. */
int hd_link_descriptor(const struct hd_link *link);
/* Receives what has arrived and sends what is queued; never blocks. */
void hd_link_poll(struct hd_link *link);
/* Within on_message: hd_link_poll returns, and its next call delivers the frames that remain. */
void hd_link_pause(struct hd_link *link);

/* In the forked rank: closes its copies of the parent's connections. */
void hd_link_forget(struct hd_link *link);

#endif /* HEDDLE_LAUNCH_LINK_H */
