/*
 * base/memory.h - zero-filled, aligned, accounted memory.
 *
 * Everything large is taken here before the first step, under a tag ("payload", "scratch"),
 * so that what a rank holds can be reported by name.  Blocks of a page and more come from
 * mmap: zero pages cost nothing until they are touched.  [any-thread]
 */
#ifndef HEDDLE_BASE_MEMORY_H
#define HEDDLE_BASE_MEMORY_H

#include <stdint.h>

#define HD_MEMORY_TAG_MAX 32u /* different tags of one process */

/* `alignment_bytes` a power of two, at least 64 is given; NULL when there is no more.  `tag` is
   static text.  bytes 0 gives a block of its own all the same. */
void *hd_memory_take(uint64_t bytes, uint64_t alignment_bytes, const char *tag);
void hd_memory_give(void *memory); /* takes NULL */

/* Counts what somebody else has taken, or given back (less than 0), under a tag. */
void hd_memory_account(int64_t bytes, const char *tag);

struct hd_memory_use {
    const char *tag; /* static */
    uint64_t bytes;  /* held now */
    uint64_t peak_bytes;
};

/* Fills at most `capacity` rows in order of first use; returns how many there are. */
uint32_t hd_memory_report(struct hd_memory_use *rows, uint32_t capacity);

#endif /* HEDDLE_BASE_MEMORY_H */
