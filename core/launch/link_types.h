/* launch/link_types.h - what the users of a link and the files of core/launch under it share. */
#ifndef HEDDLE_LAUNCH_LINK_TYPES_H
#define HEDDLE_LAUNCH_LINK_TYPES_H

#include "launch/identity.h"

/* Kinds of frames.  Those from HD_LINK_MESSAGE on belong to the users of the link. */
enum hd_link_kind {
    HD_LINK_HELLO = 1,    /* from a member: its rank, world and facts */
    HD_LINK_WELCOME = 2,  /* from the hub: all ranks have connected; the peers */
    HD_LINK_CLOCK = 3,    /* from both: a clock reading, to measure the offset of the clocks */
    HD_LINK_VERDICT = 4,  /* from the hub: how the run ended */
    HD_LINK_FAILED = 5,   /* from a member: why it leaves */
    HD_LINK_PUT = 6,      /* new bytes of a rank's log */
    HD_LINK_FENCE = 7,    /* from a member: its rank has arrived; from the hub: all have */
    HD_LINK_GATHER = 8,   /* from a member: its rank's block */
    HD_LINK_GATHERED = 9, /* from the hub: the blocks of all ranks */
    HD_LINK_MESSAGE = 16,
};

struct hd_link_message {
    uint32_t kind, rank; /* the rank that sent it first */
    const void *bytes;   /* borrowed until the call returns */
    uint64_t byte_count;
};

/* Called by hd_link_poll. */
struct hd_link_listener {
    void *context;
    void (*on_message)(void *context, const struct hd_link_message *message);
    void (*on_lost)(void *context, uint32_t rank); /* the connection of `rank` has ended */
};

struct hd_link_request {
    struct hd_identity *identity; /* borrowed */
    const char *facts;            /* lines "key = value": must be the same on all ranks */
    double patience_s;            /* how long to wait for all ranks */
};

/* A rank, as all ranks see it. */
struct hd_peer {
    uint32_t local_rank;
    int32_t pid;
    char host[64];
    char boot[80]; /* the kernel's boot id and its pid namespace: equal on one machine */
};

#endif /* HEDDLE_LAUNCH_LINK_TYPES_H */
