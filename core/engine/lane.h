/*
 * engine/lane.h - one channel as this rank sees it: through the transport, or within the rank.
 *
 * A remote lane calls the transport in the order of its contract.  A local lane is a ring of slots
 * of the engine's own, with the same rules (slot = sequence mod depth, taken when the source action
 * starts, given back when the last reader ends), so a local handoff never touches a transport.
 * Sequences count over the whole job.
 *
 * Backwards may end leases in another order than the messages came.  A release that overtakes an
 * older lease is kept here until that lease ends, because the transport takes releases in sequence.
 *
 * The 64 bytes before every host slot are the seal, written before the send and checked after the
 * wait.  Slots on a device have no seal, because the host cannot touch them.
 *
 * On a device the compute stream orders all calls.  So a local slot needs no mark before it is used
 * again: the next writer and the last reader are in one stream.
 *
 * A lane needs only a channel, a transport and its table (hd_lane_of).  What hd_lane_create adds,
 * an arena and releases out of order, only the engine needs: tools/drive moves messages without it.
 */
#ifndef HEDDLE_ENGINE_LANE_H
#define HEDDLE_ENGINE_LANE_H

#include "base/problem.h"
#include "engine/region.h"

#include <heddle/transport.h>

#include <stdbool.h>

#define HD_LANE_LOCAL       UINT32_MAX       /* as HD_NO_CHANNEL of the plan */
#define HD_LANE_NO_DEADLINE (UINT64_MAX / 2) /* the watchdog ends the waits of an engine */

struct hd_seal {
    uint64_t magic;
    uint32_t channel, dtype;
    uint64_t sequence;
    uint32_t step, microbatch;
    uint64_t bytes;
    uint64_t checksum; /* 0 when checksums are off */
    uint64_t reserved[2];
};

struct hd_lane {
    const struct hd_channel *channel;
    uint32_t index;            /* of the channel in the transport, or HD_LANE_LOCAL */
    bool is_source, is_target; /* both: local */
    const struct hd_transport_ops *ops;
    struct hd_transport *transport; /* remote */
    void *stream; /* orders the calls for slots on a device; NULL: the calling thread */

    /* Counts over the whole job: the next sequence of each call. */
    uint64_t written_count; /* source: messages before it may be sent */
    uint64_t sent_count, posted_count, released_count;

    /* The rest is the engine's. */
    uint32_t message_count;           /* of a step */
    uint64_t base;                    /* sequence of the first message of the current step */
    const struct hd_regions *regions; /* allocates a local arena, and poisons slots */
    bool is_sealed, has_checksum, poison;
    uint32_t dtype;
    uint64_t stride_bytes;
    uint64_t lead_bytes;  /* local: before each slot, for the seal */
    uint32_t *action_of;  /* remote: [message_count] -> the instruction that sends it, or that first
                             reads it here */
    bool *is_released;    /* [depth]: released by its reader, but not yet in sequence; target */
    unsigned char *arena; /* local: [depth, stride_bytes], each with its seal first */
};

/* A lane of `rank` on a channel; ops, transport and stream are still to be set. */
struct hd_lane hd_lane_of(const struct hd_channel *channel, uint32_t index, uint32_t rank);

static inline bool hd_lane_is_local(const struct hd_lane *lane)
{
    return lane->index == HD_LANE_LOCAL;
}

/* Allocates what the engine needs.  The caller has set message_count, regions, dtype and flags. */
hd_status hd_lane_create(struct hd_lane *lane, struct hd_problem *problem);
void hd_lane_finish(struct hd_lane *lane);

/* Step `step` (from 1) begins: its messages are base .. base + message_count - 1. */
void hd_lane_begin(struct hd_lane *lane, uint32_t step);

/* Target, remote: posts every receive before `end` that has a slot. */
hd_status hd_lane_post_free(struct hd_lane *lane, uint64_t end);
/* Target, remote: posts every receive of this step that has a slot. */
hd_status hd_lane_post_all(struct hd_lane *lane);
/* Target, remote: posts up to and including `sequence`. */
hd_status hd_lane_post_until(struct hd_lane *lane, uint64_t sequence);
/* Target, remote: posts the next receive; `group_left` posts of its group (law 7) follow at
   once. */
hd_status hd_lane_post_next(struct hd_lane *lane, uint32_t group_left);

/* HD_OK: readable (target) or free (source); HD_IN_PROGRESS: not yet.  By the plan a local lane is
   always ready; HD_PROTOCOL if it is not. */
hd_status hd_lane_test(struct hd_lane *lane, uint64_t sequence);
/* Blocks until test returns HD_OK, the lane is aborted, or the deadline passes (HD_TIMEOUT). */
hd_status hd_lane_wait(struct hd_lane *lane, uint64_t sequence, uint64_t deadline_ns);
/* Target, remote, with a stream: makes the stream wait, and returns. */
bool hd_lane_waits_on_stream(const struct hd_lane *lane); /* false: the host has to wait */
hd_status hd_lane_wait_on_stream(struct hd_lane *lane, uint64_t sequence);

/* Source: HD_OK or HD_BUSY. */
hd_status hd_lane_reserve(struct hd_lane *lane, uint64_t sequence);
/* Source: waits until the slot is reserved. */
hd_status hd_lane_reserve_by(struct hd_lane *lane, uint64_t sequence, uint64_t deadline_ns);

void *hd_lane_slot(const struct hd_lane *lane, uint64_t sequence);

/* Source: writes the seal before the slot, for the bytes that are in the slot now. */
void hd_lane_seal(struct hd_lane *lane, uint64_t sequence, uint32_t step, uint32_t microbatch);
/* Source: the slot is written; seals it, where the lane is sealed. */
void hd_lane_end_write(struct hd_lane *lane, uint64_t sequence, uint32_t step, uint32_t microbatch);
/* Source: sends the next message, which is written; group_left as above. */
hd_status hd_lane_send_next(struct hd_lane *lane, uint32_t group_left);
/* Both, for a transport that takes sends in any order. */
hd_status hd_lane_send(struct hd_lane *lane, uint64_t sequence, uint32_t step, uint32_t microbatch);

/* Target, after the wait: HD_PROTOCOL, with both seals in the problem, unless the seal is what the
   plan says. */
hd_status hd_lane_check(struct hd_lane *lane, uint64_t sequence, uint32_t step, uint32_t microbatch,
                        struct hd_problem *problem);

/* Target: releases the next message. */
hd_status hd_lane_release_next(struct hd_lane *lane);
/* Target, after hd_lane_create: all use of this message is over; in any order. */
hd_status hd_lane_release(struct hd_lane *lane, uint64_t sequence);

#endif /* HEDDLE_ENGINE_LANE_H */
