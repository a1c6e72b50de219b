/* launch/link_internal.h - what link.c, rendezvous.c and relay.c share. */
#ifndef HEDDLE_LAUNCH_LINK_INTERNAL_H
#define HEDDLE_LAUNCH_LINK_INTERNAL_H

#include "launch/link.h"
#include "launch/region.h"
#include "launch/wire.h"

struct hd_link {
    uint32_t rank, rank_count;
    int poll, kick; /* epoll, and the eventfd that the rank writes to when it has news */
    struct hd_link_peer *peers;     /* [rank_count] */
    struct hd_wire *wires;          /* [rank_count]; a member uses wires[0], the hub all others */
    uint8_t *is_lost;               /* [rank_count] */
    struct hd_clock clock;          /* a member's, for the hub's */
    uint32_t is_one_clock;          /* both are on one machine: nothing is asked */
    uint64_t asked_ns, next_ask_ns; /* of the hub's clock; asked_ns 0: no question is under way */
    struct hd_link_listener listener;
    uint32_t is_paused, has_verdict;
    struct hd_problem verdict;

    struct hd_region *region;                                     /* NULL: not attached */
    uint32_t log_sent_bytes, fence_sent_count, gather_sent_count; /* of my rank */
    /* The hub's: arrivals in this round, and rounds that are over. */
    uint32_t fence_arrived, gather_arrived, fence_rounds, gather_rounds;
    unsigned char *blocks; /* scratch of the hub: everybody's blocks as one message */
};

/* rendezvous.c: fills wires and peers. */
hd_status hd_rendezvous(struct hd_link *link, const struct hd_link_request *request,
                        struct hd_problem *problem);

/* relay.c: what the own rank has written; what others have. */
void hd_relay_ship(struct hd_link *link);
void hd_relay_take(struct hd_link *link, const struct hd_frame *frame, const unsigned char *bytes);

/* To all members but `but`; UINT32_MAX: to all. */
void hd_link_broadcast(struct hd_link *link, const struct hd_frame *frame, const void *bytes,
                       uint32_t but);

#endif /* HEDDLE_LAUNCH_LINK_INTERNAL_H */
