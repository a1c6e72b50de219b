/*
 * engine/lease.h - payload slots of one stage, and who may use which until when.
 *
 * A pool has exactly the slots that the plan counted (H_s, times the acquisitions of a forward).  A
 * forward acquires, the microbatch's last backward pass releases; nothing else decides.  Each
 * lease has a generation that was never used before, stamped into the payload by the forward and
 * checked by every later pass (report, section 6.4).
 *
 * A pool can be told to break its own rule, in one of the ways that the report warns of: tests and
 * `debug.fault` show with it what then happens, and that the stamp catches it.
 */
#ifndef HEDDLE_ENGINE_LEASE_H
#define HEDDLE_ENGINE_LEASE_H

#include "base/problem.h"
#include "engine/region.h"

#include <stdint.h>

#define HD_LEASE_NO_SLOT UINT32_MAX

/* In the order of the key debug.fault; what comes after these is no fault of leases. */
enum hd_lease_fault {
    HD_LEASE_HONEST = 0,
    HD_LEASE_OFF = 1,           /* slot = microbatch modulo the pool, whoever has it */
    HD_LEASE_EARLY_RELEASE = 2, /* a claim ends with the forward */
    HD_LEASE_FORWARD_ORDER = 3  /* slots go round in the order of the forwards */
};

struct hd_lease_slot {
    uint64_t generation; /* of the lease that holds it; 0: free */
    uint32_t microbatch; /* the owner */
    uint32_t last_owner; /* who had it before, for messages */
};

struct hd_lease_pool {
    const struct hd_regions *regions; /* where its memory comes from; borrowed */
    uint32_t stage;
    uint32_t slot_count;
    uint32_t held_count, peak_count; /* peak */
    uint64_t slot_bytes;
    unsigned char *memory;       /* [slot_count, slot_bytes] */
    struct hd_lease_slot *slots; /* [slot_count] */
    uint32_t *slot_of;           /* [microbatch_count] -> slot, or HD_LEASE_NO_SLOT */
    uint64_t *generation_of;     /* [microbatch_count]; of its lease, while it has a slot */
    uint32_t microbatch_count;
    uint64_t next_generation;
    uint32_t poison;    /* fill released slots with 0xFF */
    uint32_t fault;     /* enum hd_lease_fault */
    uint32_t next_slot; /* HD_LEASE_FORWARD_ORDER */
};

/* slot_bytes is rounded up to the regions' alignment.  regions, stage, microbatch_count, poison and
   fault are the caller's; the rest is zero. */
hd_status hd_lease_pool_create(struct hd_lease_pool *pool, uint32_t slot_count, uint64_t slot_bytes,
                               struct hd_problem *problem);
void hd_lease_pool_finish(struct hd_lease_pool *pool);

/* The lowest free slot.  None free, or a second lease of one microbatch, breaks what the plan
   counted: an error that names stage, slots and owners (HD_EXIT_FAILED). */
hd_status hd_lease_acquire(struct hd_lease_pool *pool, uint32_t microbatch,
                           struct hd_problem *problem);

/* The payload of a microbatch that holds a lease, and its generation; an error if it holds none. */
hd_status hd_lease_find(const struct hd_lease_pool *pool, uint32_t microbatch, void **payload,
                        uint64_t *generation, struct hd_problem *problem);

/* To be called when a forward ends.  Keeps the lease, but for HD_LEASE_EARLY_RELEASE. */
hd_status hd_lease_end_forward(struct hd_lease_pool *pool, uint32_t microbatch);

/* Ends the lease, poisons the slot if asked.  Twice is an error.  A kernel that cannot poison says
   so itself, and leaves the problem as it is. */
hd_status hd_lease_release(struct hd_lease_pool *pool, uint32_t microbatch,
                           struct hd_problem *problem);

#endif /* HEDDLE_ENGINE_LEASE_H */
