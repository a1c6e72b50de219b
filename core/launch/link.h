/*
 * launch/link.h - what holds the ranks together that a launcher has started one by one.
 *
 *   rank 0's process   the hub: listens, knows when all have come, passes on what each one says
 *   the others         one TCP connection to the hub each
 *
 * Each launched process forks the one rank that it is and watches it, as the parent of a forked run
 * watches all of its ranks; so deaths, stops and signals are seen by the same code, and rank 0's
 * process outlives its rank and writes the files.  The link carries, between those parents:
 *
 *   the bootstrap   put, fence and gather: what a rank has written in its own region is copied to
 *                   the regions of the others (launch/region.h), which wake whoever sleeps there
 *   messages        of the floor above: states of ranks, events, results, the cause of an end
 *   the verdict     of the hub: how the run ended; the other processes leave with it
 *
 * PMIx or torchrun's variables say who is who and where the hub listens (launch/identity.h);
 * everything after that is the link's, so that deadlines, aborts and deaths are the same under each
 * launcher.  An ended connection is a death; silence is a stop, or a cut link.
 *
 * One thread: the parent's.
 */
#ifndef HEDDLE_LAUNCH_LINK_H
#define HEDDLE_LAUNCH_LINK_H

#include "launch/clock.h"
#include "launch/identity.h"

#include <stdint.h>

struct hd_link;
struct hd_region;

/* Kinds of frames.  From HD_LINK_MESSAGE on they are the floor's above. */
enum hd_link_kind {
    HD_LINK_HELLO = 1,    /* a member: who I am */
    HD_LINK_WELCOME = 2,  /* the hub: all have come; who they are */
    HD_LINK_CLOCK = 3,    /* both: a clock reading, for the distance of the clocks */
    HD_LINK_VERDICT = 4,  /* the hub: how it ended */
    HD_LINK_FAILED = 5,   /* a member: why it leaves */
    HD_LINK_PUT = 6,      /* new bytes of a rank's log */
    HD_LINK_FENCE = 7,    /* a member: my rank is there; the hub: all are */
    HD_LINK_GATHER = 8,   /* a member: my rank's block */
    HD_LINK_GATHERED = 9, /* the hub: everybody's */
    HD_LINK_MESSAGE = 16,
};

struct hd_link_message {
    uint32_t kind, rank; /* who said it first */
    const void *bytes;   /* borrowed until the call returns */
    uint64_t byte_count;
};

struct hd_link_request {
    struct hd_identity *identity; /* borrowed */
    const char *plan_hash;        /* must be everybody's */
    double patience_s;            /* until all have come */
};

/* Who a rank is, for all to see. */
struct hd_link_peer {
    uint32_t local_rank;
    int32_t pid;
    char host[64];
    char boot[80]; /* the kernel's random id and its space of pids: equal means one machine */
};

/* All ranks meet, or none: a rank that is missing after `patience_s` (HD_EXIT_PEER) or claimed
   twice, another world or another plan (HD_EXIT_USAGE) is named to all who have come. */
hd_status hd_link_open(const struct hd_link_request *request, struct hd_link **link,
                       struct hd_problem *problem);

/* The hub tells `problem` (exit_code 0: all is well) to all as the verdict; a member tells the hub
   why it leaves, if it does.  Takes NULL. */
void hd_link_close(struct hd_link *link, const struct hd_problem *problem);

uint32_t hd_link_rank(const struct hd_link *link);
uint32_t hd_link_rank_count(const struct hd_link *link);
const struct hd_link_peer *hd_link_peer(const struct hd_link *link, uint32_t rank);
/* How far this host's clock is from the hub's; all zero on one machine, and on the hub.  It is
   asked for again and again, in hd_link_turn; borrowed. */
const struct hd_clock *hd_link_clock(const struct hd_link *link);
/* Of a message that is a struct hd_problem; HD_PROTOCOL when it is none. */
hd_status hd_link_read_problem(const struct hd_link_message *message, struct hd_problem *problem);
/* The verdict, once it has come; else NULL.  [members] */
const struct hd_problem *hd_link_verdict(const struct hd_link *link);
/* When something of `rank` came last: on the hub of any member, on a member of the hub. */
uint64_t hd_link_heard_ns(const struct hd_link *link, uint32_t rank);
uint32_t hd_link_is_lost(const struct hd_link *link, uint32_t rank);

/* What the floor above is told of, from hd_link_turn; `on_lost`: the connection of `rank` ended. */
struct hd_link_listener {
    void *context;
    void (*on_message)(void *context, const struct hd_link_message *message);
    void (*on_lost)(void *context, uint32_t rank);
};
void hd_link_listen(struct hd_link *link, const struct hd_link_listener *listener);

/* A member's message goes to the hub; the hub's to `rank`, or to all (UINT32_MAX). */
void hd_link_send(struct hd_link *link, uint32_t rank, const struct hd_link_message *message);

/* Readable when a turn has something to do. */
int hd_link_descriptor(const struct hd_link *link);
/* Takes in what has come, sends what waits; never blocks. */
void hd_link_turn(struct hd_link *link);
/* From within on_message: the turn ends here, and later frames wait for the next one. */
void hd_link_pause(struct hd_link *link);

/* From here on the link carries this rank's bootstrap; HD_NO_MEMORY.  [before the fork, once] */
hd_status hd_link_attach(struct hd_link *link, struct hd_region *region);
/* In the forked rank: the connections are the parent's alone. */
void hd_link_forget(struct hd_link *link);

#endif /* HEDDLE_LAUNCH_LINK_H */
