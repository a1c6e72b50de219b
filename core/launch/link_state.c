#include "launch/link_state.h"

#include <sys/epoll.h>

void hd_link_watch(struct hd_link *link, uint32_t rank)
{
    const struct hd_wire *const wire = &link->wires[rank];
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = rank};

    if (hd_wire_is_open(wire)) {
        event.events |= hd_wire_has_queue(wire) ? EPOLLOUT : 0;
        epoll_ctl(link->poll, EPOLL_CTL_MOD, wire->descriptor, &event);
    }
}

void hd_link_send_to(struct hd_link *link, uint32_t rank, const struct hd_frame *frame,
                     const void *bytes)
{
    struct hd_wire *const wire = &link->wires[rank];
    const bool had_queue = hd_wire_has_queue(wire);

    /* A wire that fails is noticed when it is read. */
    if (hd_wire_send(wire, frame, bytes) == HD_OK && hd_wire_has_queue(wire) != had_queue) {
        hd_link_watch(link, rank);
    }
}

void hd_link_broadcast(struct hd_link *link, const struct hd_frame *frame, const void *bytes,
                       uint32_t but)
{
    for (uint32_t rank = 1; link->rank == 0 && rank < link->rank_count; rank++) {
        if (rank != but) {
            hd_link_send_to(link, rank, frame, bytes);
        }
    }
    if (link->rank != 0) {
        hd_link_send_to(link, 0, frame, bytes);
    }
}
