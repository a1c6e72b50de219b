/* launch/link_state.h - the inside of a link, for link.c, rendezvous.c and relay.c. */
#ifndef HEDDLE_LAUNCH_LINK_STATE_H
#define HEDDLE_LAUNCH_LINK_STATE_H

#include "launch/clock.h"
#include "launch/link_types.h"
#include "launch/region.h"
#include "launch/wire.h"

struct hd_link {
    uint32_t rank, rank_count;
    int poll;              /* of epoll */
    int kick;              /* an eventfd that the rank writes to after a write to its region */
    struct hd_peer *peers; /* [rank_count] */
    struct hd_wire *wires; /* [rank_count]; a member uses wires[0], the hub all others */
    bool *is_lost;         /* [rank_count] */
    struct hd_clock clock; /* a member's: its offset to the hub's clock */
    bool is_one_clock;     /* this process and the hub are on one machine */
    uint64_t asked_ns, next_ask_ns; /* of the hub's clock; asked_ns 0: no answer is expected */
    struct hd_link_listener listener;
    bool is_paused, has_verdict;
    struct hd_problem verdict;

    struct hd_region *region;                                     /* NULL: not attached */
    uint32_t log_sent_bytes, fence_sent_count, gather_sent_count; /* of this rank */
    uint32_t fence_arrived, gather_arrived; /* the hub's: arrivals in this round */
    uint32_t gather_rounds;                 /* rounds that are over */
    unsigned char *blocks;                  /* scratch: the blocks of all ranks as one message */
};

/* Makes epoll report that the socket takes more, as long as something is queued. */
void hd_link_watch(struct hd_link *link, uint32_t rank);
void hd_link_send_to(struct hd_link *link, uint32_t rank, const struct hd_frame *frame,
                     const void *bytes);
/* The hub sends to all members but `but` (UINT32_MAX: to all); a member sends to the hub. */
void hd_link_broadcast(struct hd_link *link, const struct hd_frame *frame, const void *bytes,
                       uint32_t but);

#endif /* HEDDLE_LAUNCH_LINK_STATE_H */
