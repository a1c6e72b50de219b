/*
 * drive/drive.h - drives one rank's end of a transport outside a step, by lanes (engine/lane.h).
 *
 * A check of conformance calls the plugin's table itself wherever it breaks a rule on purpose.
 * Everything that keeps the rules goes through here: the waits, the posts, the releases.
 *
 * The messages of conform can be told apart.  Each is filled with hd_pattern_word of its channel
 * and sequence, to the last byte; a sealed transport also carries a pattern in the 64 bytes before
 * the slot.  The target checks all of it, and poisons the slot with 0xFF before the release, so
 * that a byte that is not written anew is seen.  Nothing is checked that a plugin does not promise:
 * a transport without a seal may fill whole words only.
 *
 * On a device all of it is ordered by the stream of that device.  Every second message is awaited
 * by the stream, and the others by the host.
 *
 * The caller fills the struct and keeps what it points to.
 */
#ifndef HEDDLE_DRIVE_DRIVE_H
#define HEDDLE_DRIVE_DRIVE_H

#include "drive/lent.h"
#include "engine/lane.h"

#include <heddle/transport.h>

#define HD_DRIVE_CHANNEL_MAX 128u

struct hd_bootstrap;

struct hd_drive {
    const struct hd_transport_ops *ops;
    struct hd_transport *transport;           /* NULL: not open */
    uint64_t capabilities;                    /* of the plugin; under a hook, of the inner one */
    const struct hd_channel *const *channels; /* [channel_count] */
    uint32_t channel_count, rank;
    uint64_t limit_ms;            /* of a wait that is given no deadline */
    const struct hd_lent *device; /* of the slots; NULL: host memory */
};

/* The lane of a channel, whose next call of each kind is for this message. */
struct hd_lane hd_drive_lane(const struct hd_drive *drive, struct hd_message next);

/* Now and limit_ms. */
uint64_t hd_drive_deadline(const struct hd_drive *drive);

/* Waits as the engine does: until the message is readable, or its slot is free.  Until the
   deadline, or for limit_ms. */
hd_status hd_drive_wait_by(const struct hd_drive *drive, struct hd_message message,
                           uint64_t deadline_ns);
hd_status hd_drive_wait(const struct hd_drive *drive, struct hd_message message);
/* Source: waits until the slot is reserved. */
hd_status hd_drive_reserve(const struct hd_drive *drive, struct hd_message message);
/* post_send and release, ordered by the stream. */
hd_status hd_drive_post(const struct hd_drive *drive, struct hd_message message);
hd_status hd_drive_give(const struct hd_drive *drive, struct hd_message message);

/* Waits for a mark of the device's stream, or for all that is in the stream, and moves the
   transport meanwhile.  Settle does nothing for host memory. */
hd_status hd_drive_reach(const struct hd_drive *drive, uint64_t mark, uint64_t deadline_ns,
                         uint64_t *passed_ns);
hd_status hd_drive_settle(const struct hd_drive *drive, uint64_t deadline_ns);
/* Waits for the other ranks, and moves what they wait for.  A transport that fails meanwhile ends
   the wait with HD_TIMEOUT. */
hd_status hd_drive_fence(const struct hd_drive *drive, struct hd_bootstrap *bootstrap,
                         uint64_t deadline_ns);

/* --- mix.c: messages with a pattern ---------------------------------------------------------- */

/* Reserves (waits for the credit), fills, posts. */
hd_status hd_drive_send(const struct hd_drive *drive, struct hd_message message);
/* Posts the receive, waits, checks.  HD_PROTOCOL: readable, but not the message. */
hd_status hd_drive_receive(const struct hd_drive *drive, struct hd_message message);
/* Poisons the slot, and releases it. */
hd_status hd_drive_release(const struct hd_drive *drive, struct hd_message message);

/* Writes the message into its slot; tells whether all of it is there. */
hd_status hd_drive_fill(const struct hd_drive *drive, struct hd_message message);
bool hd_drive_is_whole(const struct hd_drive *drive, struct hd_message message);

/*
 * Sends and receives messages first .. first + count - 1 on every channel of this rank, all
 * channels at once, whatever can move first.  A serial transport gets one order: message by
 * message and channel by channel.  A target holds up to depth leases, as many as the random
 * numbers of `seed` say.  HD_OK; HD_TIMEOUT after limit_ms; else what a call returned, or
 * HD_PROTOCOL for a message that was not whole.
 */
struct hd_drive_mix {
    uint64_t first, count, seed;
    uint32_t wrong_channel;  /* out, on failure */
    uint64_t wrong_sequence; /* out: the message that its channel was at */
};
hd_status hd_drive_mix(const struct hd_drive *drive, struct hd_drive_mix *mix);

#endif /* HEDDLE_DRIVE_DRIVE_H */
