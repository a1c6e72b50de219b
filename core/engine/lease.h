/*
 * engine/lease.h - the payload slots of one stage, and which microbatch may use which until when.
 *
 * A pool has exactly the slots that the plan counted (H_s, times the acquisitions of a forward).  A
 * forward acquires a slot, and the last backward pass of its microbatch releases it.  Each lease
 * has a generation that was never used before; the forward stamps it into the payload, and every
 * later pass checks it (docs/sources.md: the report, section 6.4).
 *
 * A pool can be told to break its own rule, in one of the ways that the report warns of.  Tests and
 * `debug.fault` show what happens then, and that the stamp catches it.
 */
#ifndef HEDDLE_ENGINE_LEASE_H
#define HEDDLE_ENGINE_LEASE_H

#include "base/problem.h"
#include "engine/region.h"

#include <stdbool.h>
#include <stdint.h>

#define HD_LEASE_NO_SLOT UINT32_MAX

/* In the order of the key debug.fault; the faults that come after these are not of leases. */
enum hd_lease_fault {
    HD_LEASE_HONEST = 0,        /* the rule is kept */
    HD_LEASE_OFF = 1,           /* slot = microbatch modulo the pool, leased or not */
    HD_LEASE_EARLY_RELEASE = 2, /* a lease ends with the forward */
    HD_LEASE_FORWARD_ORDER = 3  /* slots are taken in turn, in the order of the forwards */
};

struct hd_lease_slot {
    uint64_t generation; /* of the lease that holds it; 0: free */
    uint32_t microbatch; /* the owner */
    uint32_t last_owner; /* the owner before it, for messages */
};

struct hd_lease_pool {
    const struct hd_regions *regions; /* where its memory comes from; borrowed */
    uint32_t stage;
    uint32_t slot_count;
    uint32_t held_count, peak_count; /* slots leased now, and at most so far */
    uint64_t slot_bytes;
    unsigned char *memory;       /* [slot_count, slot_bytes] */
    struct hd_lease_slot *slots; /* [slot_count] */
    uint32_t *slot_of;           /* [microbatch_count] -> slot, or HD_LEASE_NO_SLOT */
    uint64_t *generation_of;     /* [microbatch_count]: of its lease, while it has a slot */
    uint32_t microbatch_count;
    uint64_t next_generation;
    bool poison;        /* fills released slots with 0xFF */
    uint32_t fault;     /* enum hd_lease_fault */
    uint32_t next_slot; /* of HD_LEASE_FORWARD_ORDER */
};

/* Rounds slot_bytes up to the alignment of the regions.  The caller sets regions, stage,
   microbatch_count, poison and fault; the rest is zero. */
hd_status hd_lease_pool_create(struct hd_lease_pool *pool, uint32_t slot_count, uint64_t slot_bytes,
                               struct hd_problem *problem);
void hd_lease_pool_finish(struct hd_lease_pool *pool);

/* Leases the lowest free slot.  If none is free, or the microbatch has a lease already, the plan
   counted wrong: an error that names stage, slots and owners (HD_EXIT_FAILED). */
hd_status hd_lease_acquire(struct hd_lease_pool *pool, uint32_t microbatch,
                           struct hd_problem *problem);

/* The payload of a microbatch that holds a lease, and its generation; an error if it holds none. */
hd_status hd_lease_find(const struct hd_lease_pool *pool, uint32_t microbatch, void **payload,
                        uint64_t *generation, struct hd_problem *problem);

/* A forward ends.  Keeps the lease, except with HD_LEASE_EARLY_RELEASE. */
hd_status hd_lease_end_forward(struct hd_lease_pool *pool, uint32_t microbatch);

/* Ends the lease, and poisons the slot if `poison` is set.  A second call is an error.  If the
   kernel cannot poison, it has reported the error, and the problem stays as it is. */
hd_status hd_lease_release(struct hd_lease_pool *pool, uint32_t microbatch,
                           struct hd_problem *problem);

#endif /* HEDDLE_ENGINE_LEASE_H */
