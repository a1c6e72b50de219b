/*
 * drive/port.h - one rank's end of a transport, and messages that can be told apart.
 *
 * A message is filled with hd_pattern_word of its channel and sequence, to the last byte; a sealed
 * transport also carries a pattern in the 64 bytes before the slot.  The target checks all of
 * it, and poisons the slot with 0xFF before it gives it back, so that a byte that is not written
 * anew is seen.  What is no promise of a plugin is not checked: a transport without a seal may
 * fill whole words only.
 *
 * On a device all of it goes through the stream of that device: what a target reads stands behind
 * the transport's wait there, every second time, and else behind one of the host's.
 *
 * The caller fills the struct and keeps what it points to.  A wait ends after limit_ms.
 */
#ifndef HEDDLE_DRIVE_PORT_H
#define HEDDLE_DRIVE_PORT_H

#include "drive/lent.h"

#include <heddle/transport.h>

#define HD_PORT_CHANNEL_MAX 128u

struct hd_port {
    const struct hd_transport_ops *ops;
    struct hd_transport *transport;
    uint64_t capabilities;                    /* of the plugin */
    const struct hd_channel *const *channels; /* [channel_count] */
    uint32_t channel_count, rank;
    uint64_t limit_ms;
    const struct hd_lent *device; /* of the slots; NULL: the host's memory */
};

/* In turn: reserve (waiting for the credit), fill, post. */
hd_status hd_port_send(const struct hd_port *port, struct hd_message message);
/* In turn: post_recv, wait, check.  HD_PROTOCOL: readable, but not the message. */
hd_status hd_port_receive(const struct hd_port *port, struct hd_message message);
/* Poisons the slot, and releases it. */
hd_status hd_port_release(const struct hd_port *port, struct hd_message message);

/* Waits as the core does: by the plugin's wait, or by test and progress. */
hd_status hd_port_wait(const struct hd_port *port, struct hd_message message, uint64_t deadline_ns);

/* post_send and release, behind what the port has done to the slot. */
hd_status hd_port_post(const struct hd_port *port, struct hd_message message);
hd_status hd_port_give(const struct hd_port *port, struct hd_message message);

/* Writes the message into its slot; is it there, whole? */
hd_status hd_port_fill(const struct hd_port *port, struct hd_message message);
int hd_port_is_whole(const struct hd_port *port, struct hd_message message);

/*
 * Sends and receives messages first .. first + count - 1 on every channel of this rank, all
 * channels at once, whatever can move first (in one order, message by message and channel by
 * channel, for a transport that is serial); a target holds up to depth leases, as many as the
 * random numbers of `seed` say.  HD_OK; HD_TIMEOUT after limit_ms; else what a call returned, or
 * HD_PROTOCOL for a message that was not whole, in both cases with the channel in *wrong_channel.
 */
struct hd_port_mix {
    uint64_t first, count, seed;
    uint32_t wrong_channel;  /* out, on failure */
    uint64_t wrong_sequence; /* out: which message its channel was at */
};
hd_status hd_port_mix(const struct hd_port *port, struct hd_port_mix *mix);

#endif /* HEDDLE_DRIVE_PORT_H */
