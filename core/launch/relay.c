#include "launch/relay.h"

#include "base/log.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void relay_open_fence(struct hd_link *link)
{
    const struct hd_frame frame = {HD_LINK_FENCE, 0, 0};

    link->fence_arrived = 0;
    hd_link_broadcast(link, &frame, NULL, UINT32_MAX);
    hd_region_open(&link->region->fence);
}

static void relay_arrive_at_fence(struct hd_link *link)
{
    if (++link->fence_arrived == link->rank_count) {
        relay_open_fence(link);
    }
}

/* --- gather: every block is its size and then its bytes ------------------------------------- */

static uint64_t relay_block_size(const unsigned char *block)
{
    uint64_t bytes;

    memcpy(&bytes, block, sizeof bytes);
    return bytes;
}

/* The side of the round that is under way. */
static unsigned char *relay_block_of(const struct hd_link *link, uint32_t rank)
{
    return hd_region_block(link->region, link->gather_rounds % 2, rank);
}

static uint64_t relay_pack(unsigned char *to, const unsigned char *block)
{
    const uint64_t bytes = relay_block_size(block);

    memcpy(to, &bytes, sizeof bytes);
    memcpy(to + sizeof bytes, block + HD_BLOCK_HEAD_BYTES, bytes);
    return sizeof bytes + bytes;
}

/* Returns how much of `from` is a block; 0: it is not one. */
static uint64_t relay_unpack(const struct hd_link *link, uint32_t rank, const unsigned char *from,
                             uint64_t count)
{
    unsigned char *const block = relay_block_of(link, rank);
    const uint64_t bytes = count >= sizeof bytes ? relay_block_size(from) : UINT64_MAX;

    if (bytes > link->region->gather_bytes || bytes > count - sizeof bytes) {
        return 0;
    }
    if (rank != link->rank) {
        memcpy(block, &bytes, sizeof bytes);
        memcpy(block + HD_BLOCK_HEAD_BYTES, from + sizeof bytes, bytes);
    }
    return sizeof bytes + bytes;
}

static void relay_open_gather(struct hd_link *link)
{
    struct hd_frame frame = {HD_LINK_GATHERED, 0, 0};

    for (uint32_t rank = 0; rank < link->rank_count; rank++) {
        frame.bytes += relay_pack(link->blocks + frame.bytes, relay_block_of(link, rank));
    }
    hd_link_broadcast(link, &frame, link->blocks, UINT32_MAX);
    link->gather_arrived = 0;
    link->gather_rounds++;
    hd_region_open(&link->region->gather);
}

static void relay_arrive_at_gather(struct hd_link *link)
{
    if (++link->gather_arrived == link->rank_count) {
        relay_open_gather(link);
    }
}

/* A hub that sends nonsense counts as lost. */
static void relay_take_gathered(struct hd_link *link, const unsigned char *bytes, uint64_t count)
{
    uint64_t at_bytes = 0;

    for (uint32_t rank = 0; rank < link->rank_count; rank++) {
        const uint64_t used = relay_unpack(link, rank, bytes + at_bytes, count - at_bytes);
        if (used == 0) {
            hd_wire_close(&link->wires[0]);
            return;
        }
        at_bytes += used;
    }
    link->gather_rounds++;
    hd_region_open(&link->region->gather);
}

/* --- what others have written --------------------------------------------------------------- */

static void relay_take_from_member(struct hd_link *link, const struct hd_frame *frame,
                                   const unsigned char *bytes)
{
    bool is_sound = true;

    if (frame->kind == HD_LINK_PUT) {
        is_sound = hd_region_add(link->region, frame->rank, bytes, frame->bytes) == HD_OK;
        if (is_sound) {
            hd_link_broadcast(link, frame, bytes, frame->rank);
        }
    } else if (frame->kind == HD_LINK_FENCE) {
        relay_arrive_at_fence(link);
    } else if (frame->kind == HD_LINK_GATHER) {
        is_sound = relay_unpack(link, frame->rank, bytes, frame->bytes) == frame->bytes;
        if (is_sound) {
            relay_arrive_at_gather(link);
        }
    }
    if (!is_sound) {
        hd_wire_close(&link->wires[frame->rank]);
    }
}

static void relay_take_from_hub(struct hd_link *link, const struct hd_frame *frame,
                                const unsigned char *bytes)
{
    if (frame->kind == HD_LINK_PUT && frame->rank != link->rank) {
        if (hd_region_add(link->region, frame->rank, bytes, frame->bytes) != HD_OK) {
            hd_wire_close(&link->wires[0]);
        }
    } else if (frame->kind == HD_LINK_FENCE) {
        hd_region_open(&link->region->fence);
    } else if (frame->kind == HD_LINK_GATHERED) {
        relay_take_gathered(link, bytes, frame->bytes);
    }
}

void hd_relay_take(struct hd_link *link, const struct hd_frame *frame, const unsigned char *bytes)
{
    if (link->region == NULL) {
        return; /* a frame of the bootstrap before the run has begun */
    }
    if (link->rank == 0) {
        relay_take_from_member(link, frame, bytes);
    } else {
        relay_take_from_hub(link, frame, bytes);
    }
}

/* --- what this rank has written ---------------------------------------------------------- */

static void relay_ship_log(struct hd_link *link)
{
    const struct hd_region_log *const log = hd_region_log(link->region, link->rank);
    const uint32_t used_bytes = atomic_load_explicit(&log->used_bytes, memory_order_acquire);
    const struct hd_frame frame = {HD_LINK_PUT, link->rank, used_bytes - link->log_sent_bytes};

    if (frame.bytes > 0) {
        hd_link_broadcast(link, &frame, log->entries + link->log_sent_bytes, UINT32_MAX);
        link->log_sent_bytes = used_bytes;
    }
}

static void relay_ship_fence(struct hd_link *link)
{
    const struct hd_frame frame = {HD_LINK_FENCE, link->rank, 0};

    link->fence_sent_count++;
    if (link->rank == 0) {
        relay_arrive_at_fence(link);
    } else {
        hd_link_broadcast(link, &frame, NULL, UINT32_MAX);
    }
}

static void relay_ship_gather(struct hd_link *link)
{
    struct hd_frame frame = {HD_LINK_GATHER, link->rank, 0};

    link->gather_sent_count++;
    if (link->rank == 0) {
        relay_arrive_at_gather(link);
    } else {
        frame.bytes = relay_pack(link->blocks, relay_block_of(link, link->rank));
        hd_link_broadcast(link, &frame, link->blocks, UINT32_MAX);
    }
}

static uint32_t relay_arrived(const struct hd_region_barrier *barrier)
{
    return atomic_load_explicit(&barrier->arrived.value, memory_order_acquire);
}

/* A rank is at one barrier at a time, and cannot arrive again before it opens. */
void hd_relay_ship(struct hd_link *link)
{
    if (link->region == NULL) {
        return;
    }
    /* The arrivals are read first: what a rank has put before it arrived is then in its log. */
    const bool is_at_fence = relay_arrived(&link->region->fence) != link->fence_sent_count;
    const bool is_at_gather = relay_arrived(&link->region->gather) != link->gather_sent_count;

    relay_ship_log(link);
    if (is_at_fence) {
        relay_ship_fence(link);
    }
    if (is_at_gather) {
        relay_ship_gather(link);
    }
}

hd_status hd_relay_attach(struct hd_link *link, struct hd_region *region)
{
    const uint64_t block_bytes = sizeof(uint64_t) + region->gather_bytes;

    assert(region->rank_count == link->rank_count);
    assert(link->region == NULL);
    link->blocks = malloc(link->rank_count * block_bytes);
    if (link->blocks == NULL) {
        return HD_NO_MEMORY;
    }
    region->kick = link->kick;
    link->region = region;
    hd_log(HD_LOG_DEBUG, "link: carries the bootstrap of rank %u, in blocks of at most %llu bytes",
           link->rank, (unsigned long long)region->gather_bytes);
    return HD_OK;
}
