/*
 * drive/pair.h - a transport between two ranks, opened and driven as the engine does.
 *
 * It has four channels: 0 from rank 0 to rank 1, and 1 back; 2 and 3 likewise, for messages of 8
 * bytes that say that a rank is ready, or that it has read everything.  The plugin gets what the
 * engine gives it too: a wait where it has none of its own, a progress thread where it needs one or
 * the user asks for one, and a host.
 *
 * Where the slots are on a device, its stream orders the posts, waits, releases and copies.  The
 * host waits for the stream only in settle and reach.
 *
 * A message is a body with a stamp over its first 8 bytes.  The body is the same for every
 * `depth`th message of a slot, and differs from that of the message before it in the same slot.
 * The stamp is the pattern word of channel and sequence.  So a byte that is not written anew is
 * noticed, and so is a message in the place of another.
 */
#ifndef HEDDLE_DRIVE_PAIR_H
#define HEDDLE_DRIVE_PAIR_H

#include "drive/device.h"
#include "drive/drive.h"
#include "drive/ranks.h"
#include "engine/host.h"

#define HD_PAIR_CHANNEL_COUNT 4u
#define HD_PAIR_STAMP_BYTES   8u
#define HD_PAIR_UNREAD_MAX    128u /* stamps on their way from a device to the host */

/* What is opened. */
struct hd_pair_plugin {
    const struct hd_plugin *plugin, *inner;          /* inner: NULL, or under a hook */
    struct hd_option_value *options, *inner_options; /* in the order of their tables */
};

/* The transport that moves the messages, also under a hook. */
static inline const struct hd_plugin *hd_pair_carrier(const struct hd_pair_plugin *plugin)
{
    return plugin->inner != NULL ? plugin->inner : plugin->plugin;
}

struct hd_pair_shape {
    uint64_t bytes; /* of a message */
    uint32_t depth;
    bool has_thread;       /* transport.progress_thread = on */
    bool has_engine_pulse; /* has the thread that the engine would start; else only if asked */
    bool is_untraced;      /* the plugin need not report its transfers */
    const unsigned char *bodies[2]; /* hd_pair_bodies */
    struct hd_drive_device *device; /* of the slots; NULL: host memory */
};

struct hd_pair {
    const struct hd_drive_rank *rank;
    struct hd_pair_plugin plugin;
    struct hd_pair_shape shape;
    struct hd_channel channels[HD_PAIR_CHANNEL_COUNT];
    const struct hd_channel *list[HD_PAIR_CHANNEL_COUNT];
    struct hd_transport_setup setup; /* the plugin's until close */
    struct hd_plugin_host outer, inner;
    struct hd_drive drive;
    bool is_serial;              /* law 7: it posts in the order in which both ranks wait */
    uint64_t period_ns;          /* of its progress thread; 0: none */
    struct hd_problem failure;   /* what the plugin reported */
    struct hd_transfer transfer; /* the last that it reported of channels 0 and 1; size 0: none */
    uint64_t deadline_ns;        /* of every wait; hd_pair_renew */

    /* This rank's ends; a slot counts as written once it is reserved. */
    struct hd_lane out, in, ready_out, ready_in;
    uint64_t received; /* the next sequence to be received on `in` */
    uint64_t wrong_count, checked_count;

    uint64_t *stamps_out, *stamps_in; /* host sides of copies: [depth], [HD_PAIR_UNREAD_MAX] */
    uint64_t unread_first;            /* the sequence that stamps_in begins with */
    uint32_t unread_count;
};

/* The two bodies of messages of `bytes`, freed by hd_memory_give of the first. */
hd_status hd_pair_bodies(uint64_t bytes, const unsigned char *bodies[2]);

/* HD_EXIT_USAGE if the plugin cannot reach both hosts.  In the parent; `link` NULL: one host. */
hd_status hd_pair_check_hosts(const struct hd_pair_plugin *plugin, const struct hd_link *link,
                              struct hd_problem *problem);

/* Collective.  plugin and shape are set; `instance` differs between those that one rank opens. */
hd_status hd_pair_open(struct hd_pair *pair, const struct hd_drive_rank *rank, uint32_t instance,
                       struct hd_problem *problem);
/* Collective; takes a pair that is not open. */
hd_status hd_pair_close(struct hd_pair *pair, struct hd_problem *problem);

/* Sets the deadline of all that follows: now and the timeout. */
void hd_pair_renew(struct hd_pair *pair);

/* Makes the status of a call the problem, with what the plugin reported. */
hd_status hd_pair_blame(struct hd_pair *pair, hd_status status, struct hd_problem *problem);

/* Both ranks meet, while the transport is moved. */
hd_status hd_pair_fence(struct hd_pair *pair);
/* The same, and hd_drive_swap. */
hd_status hd_pair_swap(struct hd_pair *pair, const void *mine, void *theirs, uint64_t bytes);
/* A message of 8 bytes each way: rank 0 returns when rank 1 has called it too. */
hd_status hd_pair_meet(struct hd_pair *pair);

/* Source: waits for the slots of all messages before `end`; hd_lane_send_next sends. */
hd_status hd_pair_reserve(struct hd_pair *pair, uint64_t end);
/* Target: posts the receives before `end` that have a slot.  Does nothing for a serial transport,
   for which hd_pair_receive posts. */
hd_status hd_pair_expect(struct hd_pair *pair, uint64_t end);
/* Target: waits for the next message, or makes the stream wait; hd_lane_release_next releases. */
hd_status hd_pair_receive(struct hd_pair *pair);

/* The host waits for all of the stream, or for a mark in it. */
hd_status hd_pair_settle(struct hd_pair *pair);
hd_status hd_pair_reach(struct hd_pair *pair, uint64_t mark, uint64_t *passed_ns);

/* --- bytes; on a device the errors are the kernel's ------------------------------------------- */

/* Writes message `sequence` of `out` into its slot, or only its stamp. */
hd_status hd_pair_fill(struct hd_pair *pair, uint64_t sequence);
hd_status hd_pair_stamp(struct hd_pair *pair, uint64_t sequence);
/* Compares message `sequence` of `in`, or only its stamp, and counts the result.  On a device the
   stamps that glance reads are compared by the next look, or when there are too many of them. */
hd_status hd_pair_check(struct hd_pair *pair, uint64_t sequence);
hd_status hd_pair_glance(struct hd_pair *pair, uint64_t sequence);
hd_status hd_pair_look(struct hd_pair *pair);

/* Whether the target sees what the source writes before it is sent.  Collective; only before the
   first message. */
hd_status hd_pair_is_in_place(struct hd_pair *pair, bool *is_in_place);

#endif /* HEDDLE_DRIVE_PAIR_H */
