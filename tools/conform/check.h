/*
 * conform/check.h - what a check is written with; only this floor includes it.
 *
 * A check returns when it is over.  It has passed unless it said otherwise; the first verdict
 * stays, whichever process of the check gave it, so that the cause is read and not its
 * consequences.
 *
 *   HD_HOLD(check, count == 3, "3 messages were sent and %u arrived", count);
 *
 * says the sentence and leaves the function when the condition does not hold.
 */
#ifndef HEDDLE_CONFORM_CHECK_H
#define HEDDLE_CONFORM_CHECK_H

#include "conform/conform.h"

#include <stdatomic.h>

/* Shared by all processes of one check. */
struct hd_conform_verdict_page {
    _Atomic uint32_t claimed, written; /* by the first that gave a verdict */
    _Atomic uint32_t is_over;          /* the check has returned */
    _Atomic uint32_t moved;            /* passes made so far: a slow kernel is not one that hangs */
    uint32_t verdict;
    char text[HD_CONFORM_TEXT_BYTES];
    char remark[HD_CONFORM_TEXT_BYTES]; /* of one that passed; one process writes it */
    char place[256]; /* what is being asked: said of a child that dies; one process writes it */
};

/* What host->fail was last told. */
struct hd_conform_report {
    uint32_t count, rank, channel;
    hd_status status;
    uint64_t sequence;
    char text[512];
};

struct hd_conform_case {
    const struct hd_conform_subject *subject;
    const struct hd_plugin *plugin; /* of the subject */
    struct hd_conform_verdict_page *page;
    struct hd_conform_report report;
    uint32_t allocation_count; /* of host->alloc */
    struct hd_host host;       /* of one rank, without a bootstrap; rank.c fills the rest */
    uint64_t random;           /* a state; drawn from by hd_conform_draw */
};

void hd_conform_fail(struct hd_conform_case *check, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void hd_conform_skip(struct hd_conform_case *check, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* What was found, of a check that passes: "1188 shapes, 312 refused". */
void hd_conform_remark(struct hd_conform_case *check, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* What is asked now: "P=5 V=1 m=7", "f32"; for the case that the answer is a crash. */
void hd_conform_at(struct hd_conform_case *check, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
int hd_conform_is_decided(const struct hd_conform_case *check);

uint64_t hd_conform_draw(struct hd_conform_case *check);
uint64_t hd_conform_mix(uint64_t value); /* a hash of one word */

/* host without put, get and fence; context is the check. */
void hd_conform_host_init(struct hd_conform_case *check);
/* What the plugin holds of host->alloc now. */
uint64_t hd_conform_held_bytes(void);
/* Lines of a folder such as /proc/self/fd. */
uint32_t hd_conform_entry_count(const char *folder);

#define HD_HOLD(check, condition, ...)           \
    do {                                         \
        if (!(condition)) {                      \
            hd_conform_fail(check, __VA_ARGS__); \
            return;                              \
        }                                        \
    } while (0)

/* Memory whose last byte lies before a page that cannot be touched, and whose bytes before the
   first are watched: as aligned as asked, filled with `fill`. */
void *hd_guard_take(uint64_t bytes, uint64_t alignment_bytes, int fill);
void hd_guard_give(void *memory); /* takes NULL */
/* 1: nobody wrote beside it.  A write past its end, from the next aligned byte on, is a SIGSEGV. */
int hd_guard_is_whole(const void *memory);
/* May its pages be written?  The bytes beside it in the same page follow. */
void hd_guard_lock(void *memory, int is_locked);

#endif /* HEDDLE_CONFORM_CHECK_H */
