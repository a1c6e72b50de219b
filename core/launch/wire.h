/*
 * launch/wire.h - frames over one TCP connection that never blocks.
 *
 * A frame is a head and its bytes, in this machine's byte order: the hosts of one run are alike
 * (the plan's digest names the instruction set), and the magic word of the first frame tells a rank
 * from another client.  The wire queues what it cannot send at once, and keeps what has arrived in
 * part. [one thread]
 */
#ifndef HEDDLE_LAUNCH_WIRE_H
#define HEDDLE_LAUNCH_WIRE_H

#include <heddle/plugin.h>

#include <stdbool.h>
#include <stdint.h>

#define HD_FRAME_BYTES_MAX (1ull << 30) /* a longer frame closes the wire */

struct hd_frame {
    uint32_t kind; /* enum hd_link_kind */
    uint32_t rank; /* the rank that sent it first */
    uint64_t bytes;
};

struct hd_wire_buffer {
    unsigned char *bytes;
    uint64_t begin, end, capacity; /* begin to end are valid */
};

struct hd_wire {
    int descriptor; /* -1: closed */
    struct hd_wire_buffer in, out;
    uint64_t heard_ns; /* when the last bytes arrived */
};

/* Owns a connected socket from here on, and makes it non-blocking. */
void hd_wire_init(struct hd_wire *wire, int descriptor);
void hd_wire_close(struct hd_wire *wire); /* takes a closed wire */
bool hd_wire_is_open(const struct hd_wire *wire);

/* Queues a frame, and sends what the socket takes at once. */
hd_status hd_wire_send(struct hd_wire *wire, const struct hd_frame *frame, const void *bytes);
hd_status hd_wire_flush(struct hd_wire *wire);
bool hd_wire_has_queue(const struct hd_wire *wire);

/* Receives what has arrived.  HD_PEER_LOST: the connection has ended; frames that arrived whole
   before can still be read. */
hd_status hd_wire_receive(struct hd_wire *wire);

/* Reads the next whole frame, whose bytes are borrowed until the next call on this wire; false:
   there is none yet. */
bool hd_wire_next(struct hd_wire *wire, struct hd_frame *frame, const unsigned char **bytes);

#endif /* HEDDLE_LAUNCH_WIRE_H */
