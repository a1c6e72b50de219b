/*
 * conform/rig.h - a check of a transport: ranks in processes of their own, each with the plugin
 * open.
 *
 *   check   hd_rig_run forks the ranks (launch/launch.h) and waits for all of them
 *   rank    opens the plugin with the channels of the job and runs the body; then quiesces, meets
 *           the others in a fence, closes, and must hold no memory of the host
 *
 * A rank that finds a fault reports it with HD_RIG_HOLD and returns from the body; the other ranks
 * then find their bootstrap aborted.  A rank that dies unexpectedly is a failure.
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
    const void *argument;     /* of the body */
    bool needs_peer;          /* skip a transport that moves no bytes (null) */
    bool is_unopened;         /* the body calls hd_rig_open itself */
    uint32_t alignment_bytes; /* of the slots; 0: 64.  A device may need more */
    uint32_t dying_rank;      /* rank + 1 of the rank that dies of a signal; 0: none */
};

struct hd_rig_shared {
    _Atomic uint32_t over_count; /* ranks whose body has returned */
    _Atomic uint32_t is_hollow;  /* a rank found that the transport moves no bytes */
    _Atomic int32_t pids[HD_RIG_RANK_MAX];
    _Atomic uint64_t words[64]; /* of the body, zero at first */
};

/* One rank. */
struct hd_rig {
    struct hd_conform_case *check;
    const struct hd_rig_job *job;
    uint32_t rank;
    const struct hd_transport_ops *ops;
    struct hd_transport *transport; /* NULL: not open; a body that closes it sets NULL */
    struct hd_drive drive;          /* hd_rig_drive sets its transport */
    struct hd_transport_setup setup;
    struct hd_host host, inner_host;
    struct hd_lent device; /* of its slots, if drive.device points to it */
    uint64_t lent_bytes;   /* of host->alloc, held by the kernel of the device */
    bool may_leak;         /* the transport did not quiesce, so its memory must not be freed */
    struct hd_bootstrap *bootstrap;
    struct hd_rig_shared *shared;
    const struct hd_channel *list[HD_DRIVE_CHANNEL_MAX]; /* what setup points to */
};

void hd_rig_run(struct hd_conform_case *check, const struct hd_rig_job *job);

/* The capabilities of the plugin; those of a hook include those of the transport it wraps. */
uint64_t hd_rig_capabilities(const struct hd_conform_case *check);

hd_status hd_rig_open(struct hd_rig *rig, uint64_t limit_ms);
/* Quiesce, fence, close; the first status that is not HD_OK.  Does nothing if not open. */
hd_status hd_rig_close(struct hd_rig *rig);
/* After a failure, with live peers: all quiesce as far as possible, and close. */
void hd_rig_leave(struct hd_rig *rig);
/* After a failure, with peers that may be dead. */
void hd_rig_leave_alone(struct hd_rig *rig);
hd_status hd_rig_fence(struct hd_rig *rig);
/* Bytes of host->alloc that the transport has not freed. */
uint64_t hd_rig_held_bytes(const struct hd_rig *rig);
/* The limit of a wait that should succeed: subject->limit_ms. */
uint64_t hd_rig_limit_ms(const struct hd_rig *rig);
uint64_t hd_rig_deadline_ns(uint64_t from_now_ms);
const struct hd_drive *hd_rig_drive(struct hd_rig *rig);

/* hd_conform_fail with the rank before the text, and the last report to host->fail after it. */
void hd_rig_fail(struct hd_rig *rig, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define HD_RIG_HOLD(rig, condition, ...)   \
    do {                                   \
        if (!(condition)) {                \
            hd_rig_fail(rig, __VA_ARGS__); \
            return;                        \
        }                                  \
    } while (0)

/* Fails with the call, the message and the status, unless the status is `wanted`. */
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

/* Waits for the other ranks. */
#define HD_RIG_MEET(rig) \
    HD_RIG_HOLD(rig, hd_rig_fence(rig) == HD_OK, "a rank does not reach the fence")

#endif /* HEDDLE_CONFORM_RIG_H */
