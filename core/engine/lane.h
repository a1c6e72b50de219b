/*
 * engine/lane.h - one channel as this rank sees it: through the transport, or within the rank.
 *
 * A remote lane calls the transport in the order of its contract; a local one is a ring of slots
 * of the engine's own, with the same rules (slot = sequence mod slots, taken when the source action
 * starts, given back when the last reader ends), so a local handoff never touches a transport.
 * Sequences count over the whole job.
 *
 * Backwards may end leases in another order than messages came: a release that overtakes an older
 * lease is kept here until that lease ends, since releases reach the transport in sequence.
 *
 * Before every host slot stand 64 bytes, the seal, written before the send and checked after the
 * wait.  Slots on a device have none: the host cannot touch them.
 *
 * On a device all calls are ordered by the compute stream.  So a local slot needs no mark before it
 * is used again: who writes it next stands behind who reads it last, in the same stream.
 */
#ifndef HEDDLE_ENGINE_LANE_H
#define HEDDLE_ENGINE_LANE_H

#include "base/problem.h"
#include "engine/region.h"
#include "plan/pipeline.h"

#include <heddle/transport.h>

#define HD_LANE_LOCAL UINT32_MAX

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
    const struct hd_pipeline_channel *channel;
    const struct hd_regions *regions; /* where a local arena comes from, and what poisons */
    uint32_t index;                   /* of the transport's channel; HD_LANE_LOCAL */
    uint32_t is_source, is_target;    /* both: local */
    uint32_t is_sealed, has_checksum, poison, dtype;
    uint64_t bytes, stride_bytes;
    uint64_t lead_bytes;    /* local: before each slot, for the seal */
    uint64_t base;          /* sequence of the current step's first message */
    uint64_t written_count; /* source: these may be sent */
    uint64_t sent_count, posted_count, released_count;
    uint32_t *action_of;  /* remote: [message_count] -> the instruction that sends it, or that first
                             reads it here */
    uint8_t *is_released; /* [slots]: asked for, and waiting for its turn; target only */
    unsigned char *arena; /* local: [slots, stride_bytes], each with its seal first */
    struct hd_transport *transport; /* remote */
    void *stream; /* what a device's slots are ordered against; NULL: the calling thread */
    const struct hd_transport_ops *ops;
};

/* bytes, dtype, channel, regions, index, flags and transport are set by the caller; takes the
   rest. */
hd_status hd_lane_create(struct hd_lane *lane, struct hd_problem *problem);
void hd_lane_finish(struct hd_lane *lane);

/* Step `step` (from 1) begins: its messages are base .. base + message_count - 1. */
void hd_lane_begin(struct hd_lane *lane, uint32_t step);

/* Target, remote: posts every receive of this step that has a slot. */
hd_status hd_lane_post_all(struct hd_lane *lane);
/* Target, remote: posts up to and including `sequence` (of the job). */
hd_status hd_lane_post_until(struct hd_lane *lane, uint64_t sequence);

/* Target, remote: posts the next receive, of whose group `group_left` posts follow at once (law
   7). */
hd_status hd_lane_post_next(struct hd_lane *lane, uint32_t group_left);

/* HD_OK: readable (target) or free (source); HD_IN_PROGRESS else.  Local lanes are always ready, by
   the plan; HD_PROTOCOL if not. */
hd_status hd_lane_test(struct hd_lane *lane, uint64_t sequence);
/* Blocks until test says OK, or the lane is aborted. */
hd_status hd_lane_wait(struct hd_lane *lane, uint64_t sequence);
/* Target, remote, with a stream: lets the stream wait, and returns. */
uint32_t hd_lane_waits_on_stream(const struct hd_lane *lane); /* 0: a host has to */
hd_status hd_lane_wait_on_stream(struct hd_lane *lane, uint64_t sequence);

/* Source: HD_OK or HD_BUSY. */
hd_status hd_lane_reserve(struct hd_lane *lane, uint64_t sequence);

void *hd_lane_slot(struct hd_lane *lane, uint64_t sequence);

/* Source: writes the seal before the slot, over the bytes that are in it now. */
void hd_lane_seal(struct hd_lane *lane, uint64_t sequence, uint32_t step, uint32_t microbatch);
/* Source: the slot is written; seals it, where the lane is sealed. */
void hd_lane_end_write(struct hd_lane *lane, uint64_t sequence, uint32_t step, uint32_t microbatch);
/* Source: sends the next message, which is written; group_left as above. */
hd_status hd_lane_send_next(struct hd_lane *lane, uint32_t group_left);
/* Both, for a transport that takes sends in any order. */
hd_status hd_lane_send(struct hd_lane *lane, uint64_t sequence, uint32_t step, uint32_t microbatch);

/* Target, after the wait: does the seal say what the plan says?  HD_PROTOCOL with both in the
 * problem. */
hd_status hd_lane_check(struct hd_lane *lane, uint64_t sequence, uint32_t step, uint32_t microbatch,
                        struct hd_problem *problem);

/* Target: all use of the slot is over. */
hd_status hd_lane_release(struct hd_lane *lane, uint64_t sequence);

#endif /* HEDDLE_ENGINE_LANE_H */
