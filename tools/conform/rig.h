/*
 * conform/rig.h - a check of a transport: ranks in processes of their own, each with the plugin
 * open.
 *
 *   check   hd_rig_run forks the ranks (launch/launch.h) and waits for all of them
 *   rank    opens the plugin with the job's channels and runs the body; then quiesces, meets the
 * others in a fence, closes, and must hold no memory of the host's
 *
 * Whatever rank finds something wrong says so with HD_RIG_HOLD and leaves the body; the others then
 * find their bootstrap aborted.  A rank that dies without being told to is a failure by itself.
 */
#ifndef HEDDLE_CONFORM_RIG_H
#define HEDDLE_CONFORM_RIG_H

#include "conform/check.h"
#include "drive/drive.h"
#include "conform/suites.h"

#define HD_RIG_RANK_MAX 8u

struct hd_bootstrap;
struct hd_rig;

struct hd_rig_job {
    uint32_t rank_count, channel_count;
    const struct hd_channel *channels; /* [channel_count] */
    void (*body)(struct hd_rig *rig);
    const void *argument; /* the body's own */
    uint32_t needs_peer;  /* 1: left out for a transport that brings nothing (null) */
    uint32_t is_unopened; /* 1: the body opens by itself, with hd_rig_open */
    uint32_t dying_rank;  /* this rank + 1 is to die of a signal; 0: none */
};

struct hd_rig_shared {
    _Atomic uint32_t over_count; /* ranks whose body has returned */
    _Atomic uint32_t is_hollow;  /* some rank has found that nothing is brought */
    _Atomic int32_t pids[HD_RIG_RANK_MAX];
    _Atomic uint64_t words[64]; /* the body's, zero at first */
};

/* One rank. */
struct hd_rig {
    struct hd_conform_case *check;
    const struct hd_rig_job *job;
    uint32_t rank;
    const struct hd_transport_ops *ops;
    struct hd_transport *transport; /* NULL when not open; a body that closes it sets NULL */
    struct hd_drive drive;          /* its transport follows this one's at hd_rig_drive */
    struct hd_transport_setup setup;
    struct hd_host host, inner_host;
    struct hd_lent device; /* of its slots; in use where port.device points to it */
    uint64_t lent_bytes;   /* of host->alloc, that the lender of the device holds */
    uint32_t may_leak;     /* what could not come to rest must not be freed */
    struct hd_bootstrap *bootstrap;
    struct hd_rig_shared *shared;
    const struct hd_channel *list[HD_DRIVE_CHANNEL_MAX]; /* what setup points to */
};

void hd_rig_run(struct hd_conform_case *check, const struct hd_rig_job *job);

/* The promises of the plugin: a hook's are those of what it wraps. */
uint64_t hd_rig_capabilities(const struct hd_conform_case *check);

hd_status hd_rig_open(struct hd_rig *rig, uint64_t limit_ms);
/* Quiesce, fence, close; the first status that is not HD_OK.  Without one, nothing to do. */
hd_status hd_rig_close(struct hd_rig *rig);
/* After a failure, where the peers are alive: all come to rest as well as they can, and close. */
void hd_rig_leave(struct hd_rig *rig);
/* After a failure, where they may not be. */
void hd_rig_leave_alone(struct hd_rig *rig);
hd_status hd_rig_fence(struct hd_rig *rig);
/* What the transport holds of host->alloc now. */
uint64_t hd_rig_held_bytes(const struct hd_rig *rig);
/* How long a wait may take that is to succeed: subject->limit_ms. */
uint64_t hd_rig_limit_ms(const struct hd_rig *rig);
uint64_t hd_rig_deadline_ns(uint64_t from_now_ms);
const struct hd_drive *hd_rig_drive(struct hd_rig *rig);

/* hd_conform_fail with the rank before, and what host->fail was last told behind. */
void hd_rig_fail(struct hd_rig *rig, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define HD_RIG_HOLD(rig, condition, ...)   \
    do {                                   \
        if (!(condition)) {                \
            hd_rig_fail(rig, __VA_ARGS__); \
            return;                        \
        }                                  \
    } while (0)

/* Says which call on which message returned what, unless it is `wanted`. */
void hd_rig_expect(struct hd_rig *rig, const char *call, struct hd_message message, hd_status got,
                   hd_status wanted);

#define HD_RIG_EXPECT(rig, call, message, got, wanted)        \
    do {                                                      \
        const hd_status status_ = (got);                      \
        hd_rig_expect(rig, call, message, status_, (wanted)); \
        if (status_ != (wanted)) {                            \
            return;                                           \
        }                                                     \
    } while (0)

#endif /* HEDDLE_CONFORM_RIG_H */
