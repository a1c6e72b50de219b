/*
 * launch/region.h - the shared memory under the bootstrap; only this floor and its tests see it.
 *
 *   +--------+-------+--------+-------+---------------------+---------------------------+
 *   | news   | fence | gather | index | two sides of blocks | one log a rank            |
 *   +--------+-------+--------+-------+---------------------+---------------------------+
 *
 * A log has one writing rank, which writes an entry whole, hangs it into the index and then
 * publishes the log's end, so a death in the middle leaves nothing half-read.  The index hashes
 * keys to chains of entries of all logs; without it a thousand ranks that look for a thousand cards
 * would read a thousand logs for each.  No page of a log is taken before it is written.  Every word
 * that ranks sleep on carries the abort in bit 0 and counts in the bits above: whoever is about to
 * sleep on it sees one value for both, and no abort is ever missed.
 *
 * Of a launched run each process has a region with one rank at work in it.  That rank's writing
 * ends with a kick of the parent, whose link (launch/link.h) copies it to the regions of the others
 * and opens the barriers there, with the functions at the end of this file.
 *
 * A gather needs one round of the barrier, not two, because blocks have two sides that take turns.
 * A rank writes a side again only after the next round, and nobody enters the next round before he
 * has read this one.
 */
#ifndef HEDDLE_LAUNCH_REGION_H
#define HEDDLE_LAUNCH_REGION_H

#include "launch/launch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

/* All logs together; a log has its share, between the two. */
#define HD_BOOTSTRAP_LOGS_BYTES    (256ull << 20)
#define HD_BOOTSTRAP_LOG_BYTES_MAX (4u << 20)
#define HD_BOOTSTRAP_LOG_BYTES_MIN (64u << 10)
#define HD_BOOTSTRAP_CHAIN_COUNT   16384u /* a power of two */
#define HD_BLOCK_HEAD_BYTES        64u
#define HD_BOOTSTRAP_KEY_BYTES     128u /* with the final zero */

/* Bit 0: aborted; above: a count.  Alone on its cache line. */
struct hd_region_word {
    _Alignas(64) _Atomic uint32_t value;
};

struct hd_region_barrier {
    struct hd_region_word arrived; /* plain count of arrivals since the start, no abort bit */
    struct hd_region_word opened;  /* rounds that all have reached */
};

struct hd_region_log {
    _Alignas(64) _Atomic uint32_t used_bytes;
    _Alignas(64) unsigned char entries[]; /* [region->log_bytes] */
};

struct hd_region {
    uint32_t rank_count;
    uint64_t gather_bytes;
    uint64_t block_bytes; /* of one rank on one side, its size word included */
    uint64_t log_bytes;   /* room for entries in every log */
    uint64_t total_bytes;
    int kick; /* -1; or an eventfd: the ranks are in several regions, and a link relays */
    unsigned char *blocks; /* [2 sides][rank_count][block_bytes] */
    unsigned char *logs;   /* [rank_count], each a struct hd_region_log and its entries */
    struct hd_region_word news;
    struct hd_region_barrier fence, gather;
    /* The newest entry of each chain, counted in bytes from the region's begin; 0: none. */
    _Atomic uint64_t chains[HD_BOOTSTRAP_CHAIN_COUNT];
};

/* How far one rank has come at one barrier. */
struct hd_region_round {
    uint32_t passed_count;
    uint32_t waiting; /* 1: arrived at the next one, and timed out there */
};

struct hd_bootstrap {
    struct hd_region *region;
    uint32_t rank;
    pthread_mutex_t writing; /* threads of this rank that put */
    struct hd_region_round fence, gather;
};

/* NULL with errno when there is no memory.  Shared with children forked later. */
struct hd_region *hd_region_create(uint32_t rank_count, uint64_t gather_bytes);
void hd_region_destroy(struct hd_region *region); /* takes NULL */

void hd_region_abort(struct hd_region *region);
int hd_region_is_aborted(const struct hd_region *region);

struct hd_region_log *hd_region_log(const struct hd_region *region, uint32_t rank);
/* For the link.  Appends what another rank has put; HD_PROTOCOL when it does not fit, or is not
   whole entries. */
hd_status hd_region_add(struct hd_region *region, uint32_t rank, const void *bytes, uint64_t count);
/* Opens the round that is under way. */
void hd_region_open(struct hd_region_barrier *barrier);
/* The block of a rank on one side: a word with its size, then, HD_BLOCK_HEAD_BYTES on, its
   bytes. */
unsigned char *hd_region_block(const struct hd_region *region, uint32_t side, uint32_t rank);

/* The end of one rank, in its own process (or, in a test, its own thread). */
void hd_bootstrap_init(struct hd_bootstrap *bootstrap, struct hd_region *region, uint32_t rank);
void hd_bootstrap_finish(struct hd_bootstrap *bootstrap);

#endif /* HEDDLE_LAUNCH_REGION_H */
