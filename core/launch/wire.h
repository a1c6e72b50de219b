/*
 * launch/wire.h - frames over one TCP connection that never blocks.
 *
 * Every frame is a head and its bytes, in this machine's own order of bytes: hosts of one run are
 * alike (the plan's digest names the instruction set), and a stranger is told by the magic word of
 * the first frame.  What cannot be sent at once waits in the wire; what has come in part, too.
 * [one thread]
 */
#ifndef HEDDLE_LAUNCH_WIRE_H
#define HEDDLE_LAUNCH_WIRE_H

#include <heddle/plugin.h>

#include <stdint.h>

#define HD_FRAME_BYTES_MAX (1ull << 30) /* more than this is no frame of ours */

struct hd_frame {
    uint32_t kind; /* enum hd_link_kind */
    uint32_t rank; /* who said it first */
    uint64_t bytes;
};

struct hd_wire_buffer {
    unsigned char *bytes;
    uint64_t begin, end, capacity; /* valid are begin to end */
};

struct hd_wire {
    int descriptor; /* -1: closed */
    struct hd_wire_buffer in, out;
    uint64_t heard_ns; /* when something came last */
};

/* Takes over a connected socket, and makes it non-blocking. */
void hd_wire_init(struct hd_wire *wire, int descriptor);
void hd_wire_close(struct hd_wire *wire); /* also one that is closed */
uint32_t hd_wire_is_open(const struct hd_wire *wire);

/* Queues, and sends what goes at once.  HD_PEER_LOST closes the wire. */
hd_status hd_wire_send(struct hd_wire *wire, const struct hd_frame *frame, const void *bytes);
hd_status hd_wire_flush(struct hd_wire *wire);
uint32_t hd_wire_has_queue(const struct hd_wire *wire);

/* Takes in what has come.  HD_PEER_LOST: the other end is gone; frames that came whole before
   are still there. */
hd_status hd_wire_receive(struct hd_wire *wire);

/* 1: a whole frame, its bytes borrowed until the next call on this wire; 0: not yet.  A frame too
   large closes the wire. */
uint32_t hd_wire_next(struct hd_wire *wire, struct hd_frame *frame, const unsigned char **bytes);

#endif /* HEDDLE_LAUNCH_WIRE_H */
