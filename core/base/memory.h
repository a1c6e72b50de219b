/*
 * base/memory.h - zero-filled, aligned memory, accounted by tag.
 *
 * All large memory is allocated here before the first step, under a tag ("payload", "scratch"), so
 * that a report can tell what a rank uses.  Large blocks come from mmap: their zero pages take no
 * memory until they are written.  [any-thread]
 */
#ifndef HEDDLE_BASE_MEMORY_H
#define HEDDLE_BASE_MEMORY_H

#include <stdint.h>

#define HD_MEMORY_TAG_MAX 32u /* tags in one process */

/* Allocates a block, aligned to `alignment_bytes` (a power of two) and at least to 64; also for 0
   bytes.  NULL: it cannot be allocated.  `tag` is static text. */
void *hd_memory_take(uint64_t bytes, uint64_t alignment_bytes, const char *tag);
void hd_memory_give(void *memory); /* takes NULL */

/* Accounts memory that was allocated elsewhere, or freed (less than 0), under a tag. */
void hd_memory_account(int64_t bytes, const char *tag);

struct hd_memory_use {
    const char *tag; /* static */
    uint64_t bytes;  /* allocated now */
    uint64_t peak_bytes;
};

/* Fills at most `capacity` rows, in order of first use; returns the number of tags. */
uint32_t hd_memory_report(struct hd_memory_use *rows, uint32_t capacity);

#endif /* HEDDLE_BASE_MEMORY_H */
