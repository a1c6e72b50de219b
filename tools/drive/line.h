/*
 * drive/line.h - a transport between two ranks, used as the engine uses it.
 *
 * Four channels: 0 from rank 0 to rank 1, 1 back; 2 and 3 likewise, for messages of 8 bytes that
 * say that a rank is ready, or that all is read.  Every call goes straight to the plugin's table;
 * what is beside it is what the engine has as well: a wait where the plugin has none of its own, a
 * thread that moves it where it needs one or is asked to have one, and a host.
 *
 * Where the slots lie on a device, what is posted, awaited and released stands in its stream, and
 * so do the bytes that are written and looked at; the host waits for the stream only where it says
 * so.
 *
 * A message is a body that is the same for every `depth`th message of a slot and differs from that
 * of the message before it in the same slot, with the pattern word of channel and sequence over its
 * first 8 bytes: so neither a byte that is not written anew nor a message in another's place goes
 * unnoticed.
 */
#ifndef HEDDLE_DRIVE_LINE_H
#define HEDDLE_DRIVE_LINE_H

#include "drive/device.h"
#include "drive/ranks.h"

#include <heddle/transport.h>

#define HD_LINE_CHANNEL_COUNT 4u
#define HD_LINE_STAMP_BYTES   8u
#define HD_LINE_UNREAD_MAX    128u /* stamps of a device, on their way to the host */

/* What is opened. */
struct hd_line_plugin {
    const struct hd_plugin *plugin, *inner;                /* inner: NULL, or under a hook */
    const struct hd_option_value *options, *inner_options; /* as their tables say */
};

struct hd_line_shape {
    uint64_t bytes; /* of a message */
    uint32_t depth;
    uint32_t has_thread;       /* transport.progress_thread = on */
    uint32_t has_engine_pulse; /* 1: the thread that the engine would have; else only if asked */
    uint32_t is_untraced;      /* what the plugin would tell of its transfers is not asked for */
    const unsigned char *bodies[2]; /* hd_line_bodies */
    struct hd_bench_device *device; /* of the slots; NULL: they are the host's */
};

/* A host of this rank, for the hook or for what it wraps. */
struct hd_line_host {
    struct hd_line *line;
    const struct hd_plugin *plugin;
    struct hd_host host;
};

struct hd_line {
    const struct hd_bench_rank *rank;
    struct hd_line_plugin plugin;
    struct hd_line_shape shape;
    struct hd_channel channels[HD_LINE_CHANNEL_COUNT];
    const struct hd_channel *list[HD_LINE_CHANNEL_COUNT];
    struct hd_transport_setup setup; /* the plugin's until close */
    struct hd_line_host outer, inner;
    const struct hd_transport_ops *ops;
    struct hd_transport *transport; /* NULL: not open */
    uint32_t out, in;               /* channels of this rank */
    uint32_t is_serial;             /* law 7: it posts in the order in which both ranks wait */
    uint32_t instance;              /* keeps the keys of several apart */
    uint64_t period_ns;             /* of its thread; 0: none */
    struct hd_problem failure;      /* what the plugin said */
    struct hd_transfer transfer;    /* the last that it told of, but of meetings; size 0: none */
    uint64_t deadline_ns;           /* of every wait; hd_line_renew */

    uint64_t reserved, sent, posted, received, released; /* the next sequence of each */
    uint64_t meeting_count;
    uint64_t wrong_count, checked_count;

    uint64_t *stamps_out, *stamps_in; /* host sides of copies: [depth], [HD_LINE_UNREAD_MAX] */
    uint64_t unread_first;            /* the sequence that stamps_in begins with */
    uint32_t unread_count;
};

/* The two bodies of messages of `bytes`, freed by hd_memory_give of the first. */
hd_status hd_line_bodies(uint64_t bytes, const unsigned char *bodies[2]);

/* What carries has to reach both hosts: HD_EXIT_USAGE.  In the parent; `link` NULL: one host. */
hd_status hd_line_check_hosts(const struct hd_line_plugin *plugin, const struct hd_link *link,
                              struct hd_problem *problem);

/* Collective.  `line` is the caller's; `instance` differs between those that one rank opens. */
hd_status hd_line_open(struct hd_line *line, const struct hd_bench_rank *rank, uint32_t instance,
                       struct hd_problem *problem);
/* Collective; takes one that is not open. */
hd_status hd_line_close(struct hd_line *line, struct hd_problem *problem);

/* A message of 8 bytes forth and one back: rank 0 returns when rank 1 has come here. */
hd_status hd_line_meet(struct hd_line *line);

/* Everything from here ends by its deadline: now and the timeout. */
void hd_line_renew(struct hd_line *line);

/* What a call returned becomes the problem, with what the plugin said of it. */
hd_status hd_line_blame(struct hd_line *line, hd_status status, struct hd_problem *problem);

/* Both ranks meet; what is under way moves on. */
hd_status hd_line_fence(struct hd_line *line);
/* As hd_bench_swap, likewise. */
hd_status hd_line_swap(struct hd_line *line, const void *mine, void *theirs, uint64_t bytes);

/* Waits as the engine does. */
hd_status hd_line_wait(struct hd_line *line, const struct hd_message *message);

/* Source: waits for the slots of all messages before `end`; and sends message `sent`. */
hd_status hd_line_reserve(struct hd_line *line, uint64_t end);
hd_status hd_line_post(struct hd_line *line);
/* Target: posts the receives up to `end` that have a slot; of a serial transport hd_line_receive
   posts, and this does nothing. */
hd_status hd_line_expect(struct hd_line *line, uint64_t end);
/* Waits for message `received`, or lets the stream; and gives back `released`. */
hd_status hd_line_receive(struct hd_line *line);
hd_status hd_line_release(struct hd_line *line);

/* --- bench_slot.c: bytes; on a device an error of its kernel's -------------------------------- */

/* Writes message `sequence` of channel `out` into its slot, or only its first 8 bytes. */
hd_status hd_line_fill(struct hd_line *line, uint64_t sequence);
hd_status hd_line_stamp(struct hd_line *line, uint64_t sequence);
/* Reads message `sequence` of channel `in`, or only its first 8 bytes, and counts.  What glance
   reads on a device is counted at the next look, of which there is one before it would be too much.
 */
hd_status hd_line_check(struct hd_line *line, uint64_t sequence);
hd_status hd_line_glance(struct hd_line *line, uint64_t sequence);
hd_status hd_line_look(struct hd_line *line);

/* 1: what the source writes stands in the target's slot before anything is sent.  Collective; only
   before the first message. */
hd_status hd_line_is_in_place(struct hd_line *line, uint32_t *is_in_place);

/* NULL: slots of the host. */
void *hd_line_stream(const struct hd_line *line);
/* The host waits for all of the stream, or for a mark in it and has its time; the transport moves
   meanwhile.  On the host settle does nothing. */
hd_status hd_line_settle(struct hd_line *line);
hd_status hd_line_reach(struct hd_line *line, uint64_t mark, uint64_t *passed_ns);

/* What the files of a line share. */
hd_status hd_line_take_stamps(struct hd_line *line);
unsigned char *hd_line_slot(const struct hd_line *line, uint32_t channel, uint64_t sequence);
uint64_t hd_line_stamp_of(uint32_t channel, uint64_t sequence);
hd_status hd_line_put(struct hd_line *line, void *slot, const void *bytes, uint64_t count);
hd_status hd_line_get(struct hd_line *line, void *bytes, const void *slot, uint64_t count);

#endif /* HEDDLE_DRIVE_LINE_H */
