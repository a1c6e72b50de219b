/*
 * launch/region.h - the shared memory under the bootstrap; only core/launch and its tests use it.
 *
 *   +--------+-------+--------+-------+---------------------+---------------------------+
 *   | news   | fence | gather | index | two sides of blocks | one log for each rank     |
 *   +--------+-------+--------+-------+---------------------+---------------------------+
 *
 * A log has one writing rank.  The rank writes an entry, adds it to the index, and then publishes
 * the new end of its log, so a death in the middle leaves no entry half-read.  The index hashes
 * keys to chains of entries of all logs; without it, a thousand ranks that look for a thousand keys
 * would read a thousand logs for each key.  A page of a log takes no memory until it is written.
 *
 * Every word that ranks sleep on holds the abort flag in bit 0 and a count in the bits above.  A
 * rank that is about to sleep compares both at once, so it cannot miss an abort.
 *
 * A gather needs one round of its barrier, not two, because there are two sides of blocks, used in
 * alternation.  A rank writes to a side again only after the next round, and no rank enters the
 * next round before it has read this one.
 *
 * In a launched run each process has a region of its own, with one working rank.  After each write
 * that rank wakes its parent by `kick`; the parent's link (launch/link.h) copies the write to the
 * regions of the other processes, and opens their barriers.
 */
#ifndef HEDDLE_LAUNCH_REGION_H
#define HEDDLE_LAUNCH_REGION_H

#include <heddle/plugin.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* All logs together have LOGS_BYTES; each log has its share, between MIN and MAX. */
#define HD_BOOTSTRAP_LOGS_BYTES    (256ull << 20)
#define HD_BOOTSTRAP_LOG_BYTES_MAX (4u << 20)
#define HD_BOOTSTRAP_LOG_BYTES_MIN (64u << 10)
#define HD_BOOTSTRAP_CHAIN_COUNT   16384u
#define HD_BLOCK_HEAD_BYTES        64u
#define HD_BOOTSTRAP_KEY_BYTES     128u /* with the final zero */

enum {
    HD_REGION_ABORTED = 1,   /* the abort flag of a word */
    HD_REGION_COUNT_ONE = 2, /* adds one to the count of a word */
    HD_REGION_SIDE_COUNT = 2,
};

/* Bit 0: aborted; above: a count.  Alone on its cache line. */
struct hd_region_word {
    _Alignas(64) _Atomic uint32_t value;
};

struct hd_region_barrier {
    struct hd_region_word arrived; /* arrivals since the start; a plain count, without the flag */
    struct hd_region_word opened;  /* rounds that every rank has reached */
};

struct hd_region_log {
    _Alignas(64) _Atomic uint32_t used_bytes;
    _Alignas(64) unsigned char entries[]; /* [region->log_bytes] */
};

struct hd_region {
    uint32_t rank_count;
    uint64_t gather_bytes;
    uint64_t block_bytes; /* of one rank on one side, with its head */
    uint64_t log_bytes;   /* room for entries in every log */
    uint64_t total_bytes;
    int kick; /* an eventfd that wakes the parent's link; -1: all ranks share this region */
    unsigned char *blocks;      /* [2 sides][rank_count][block_bytes] */
    unsigned char *logs;        /* [rank_count], each a struct hd_region_log and its entries */
    struct hd_region_word news; /* counts entries */
    struct hd_region_barrier fence, gather;
    /* The newest entry of each chain, in bytes from the begin of the region; 0: none. */
    _Atomic uint64_t chains[HD_BOOTSTRAP_CHAIN_COUNT];
};

/* What a rank puts. */
struct hd_region_pair {
    const char *key;
    const void *value;
    uint32_t key_bytes; /* with the final zero */
    uint32_t value_bytes;
};

/* NULL with errno: the memory cannot be allocated.  Children forked later share it. */
struct hd_region *hd_region_create(uint32_t rank_count, uint64_t gather_bytes);
void hd_region_destroy(struct hd_region *region); /* takes NULL */

void hd_region_abort(struct hd_region *region);
bool hd_region_is_aborted(const struct hd_region *region);

/* Appends to the log of `rank`, by one thread at a time.  HD_INVALID: the rank has put this key
   before.  HD_NO_MEMORY: the log is full. */
hd_status hd_region_put(struct hd_region *region, uint32_t rank, const struct hd_region_pair *pair);
/* Finds what any rank has put under `key`; false: no rank has put it yet. */
bool hd_region_find(struct hd_region *region, const char *key, struct hd_region_pair *pair);
/* For the link: appends entries that another process has sent.  HD_PROTOCOL: they do not fit, or
   are not whole entries. */
hd_status hd_region_add(struct hd_region *region, uint32_t rank, const void *bytes, uint64_t count);
struct hd_region_log *hd_region_log(const struct hd_region *region, uint32_t rank);

/* Sleeps while the word is `seen`, up to the deadline.  HD_OK: the caller must compare again. */
hd_status hd_region_wait(struct hd_region_word *word, uint32_t seen, uint64_t deadline_ns);
/* Opens the round that is under way, and wakes the ranks that sleep there. */
void hd_region_open(struct hd_region_barrier *barrier);
/* Wakes the link, if there is one. */
void hd_region_kick(const struct hd_region *region);

/* The block of a rank on one side: a word with its size, and at HD_BLOCK_HEAD_BYTES its bytes. */
unsigned char *hd_region_block(const struct hd_region *region, uint32_t side, uint32_t rank);

#endif /* HEDDLE_LAUNCH_REGION_H */
