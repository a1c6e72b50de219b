/*
 * conform/check.h - the functions that checks are written with.
 *
 * A check has passed if it returns without a verdict.  The first verdict of all its processes
 * counts, because later ones are often its consequences.
 *
 *   HD_HOLD(check, count == 3, "3 messages were sent and %u arrived", count);
 *
 * fails the check with the sentence and returns from the function if the condition is false.
 */
#ifndef HEDDLE_CONFORM_CHECK_H
#define HEDDLE_CONFORM_CHECK_H

#include "conform/conform.h"

#include <stdatomic.h>

/* Shared by all processes of one check. */
struct hd_conform_verdict_page {
    _Atomic uint32_t claimed, written; /* by the process that gave the first verdict */
    _Atomic uint32_t is_over;          /* the check has returned */
    _Atomic uint32_t moved;            /* passes so far, to tell a slow kernel from a hang */
    uint32_t verdict;
    char text[HD_CONFORM_TEXT_BYTES];
    char remark[HD_CONFORM_TEXT_BYTES]; /* of a check that passes; one process writes it */
    char place[256]; /* of hd_conform_at, for a child that dies; one process writes it */
};

/* The last report to host->fail. */
struct hd_conform_report {
    uint32_t count, rank, channel;
    hd_status status;
    uint64_t sequence;
    char text[512];
};

struct hd_conform_case {
    const struct hd_conform_subject *subject;
    const struct hd_plugin *plugin;     /* of the subject */
    const struct hd_conform_check *row; /* the check that runs */
    struct hd_conform_verdict_page *page;
    struct hd_conform_report report;
    uint32_t allocation_count; /* of host->alloc */
    struct hd_host host;       /* of one rank, without a bootstrap */
    uint64_t random;           /* the state of hd_conform_draw */
};

void hd_conform_fail(struct hd_conform_case *check, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void hd_conform_skip(struct hd_conform_case *check, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The result of a check that passes: "1188 shapes, 312 refused". */
void hd_conform_remark(struct hd_conform_case *check, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The present case: "P=5 V=1 m=7", "f32".  It is reported if the plugin crashes. */
void hd_conform_at(struct hd_conform_case *check, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool hd_conform_is_decided(const struct hd_conform_case *check);

uint64_t hd_conform_draw(struct hd_conform_case *check);
uint64_t hd_conform_mix(uint64_t value); /* a hash of one word */

/* A host without put, get and fence; its context is the check. */
void hd_conform_host_init(struct hd_conform_case *check);
/* Bytes of host->alloc that the plugin has not freed. */
uint64_t hd_conform_held_bytes(void);
/* The number of entries of a folder such as /proc/self/fd. */
uint32_t hd_conform_entry_count(const char *folder);

#define HD_HOLD(check, condition, ...)           \
    do {                                         \
        if (!(condition)) {                      \
            hd_conform_fail(check, __VA_ARGS__); \
            return;                              \
        }                                        \
    } while (0)

/* Memory that ends just before an inaccessible page and begins just after canary bytes; aligned as
   asked, filled with `fill`. */
void *hd_guard_take(uint64_t bytes, uint64_t alignment_bytes, int fill);
void hd_guard_give(void *memory); /* takes NULL */
/* No byte beside the block has been written.  A write past the end, from the next aligned byte on,
   raises SIGSEGV. */
bool hd_guard_is_whole(const void *memory);
/* Makes the pages of the block read-only, or writable again. */
void hd_guard_lock(void *memory, bool is_locked);

#endif /* HEDDLE_CONFORM_CHECK_H */
