/*
 * engine/lease.h - payload slots of one stage, and who may use which until when.
 *
 * A pool has exactly the slots that the plan counted (H_s, times the acquisitions of a forward).  A
 * forward acquires, the microbatch's last backward pass releases; nothing else decides.  Each
 * lease has a generation that was never used before, stamped into the payload by the forward and
 * checked by every later pass (report, section 6.4).
 */
#ifndef HEDDLE_ENGINE_LEASE_H
#define HEDDLE_ENGINE_LEASE_H

#include "base/problem.h"

#include <stdint.h>

#define HD_LEASE_NO_SLOT UINT32_MAX

struct hd_lease_slot {
    uint64_t generation; /* of the lease that holds it; 0: free */
    uint32_t microbatch; /* the owner */
    uint32_t last_owner; /* who had it before, for messages */
};

struct hd_lease_pool {
    uint32_t stage;
    uint32_t slot_count;
    uint32_t held_count, peak_count; /* peak */
    uint64_t slot_bytes;
    unsigned char *memory;       /* [slot_count, slot_bytes] */
    struct hd_lease_slot *slots; /* [slot_count] */
    uint32_t *slot_of;           /* [microbatch_count] -> slot, or HD_LEASE_NO_SLOT */
    uint32_t microbatch_count;
    uint64_t next_generation;
    uint32_t poison; /* fill released slots with 0xFF */
};

/* slot_bytes is rounded up to `alignment`. */
hd_status hd_lease_pool_create(struct hd_lease_pool *pool, uint32_t slot_count, uint64_t slot_bytes,
                               uint64_t alignment, struct hd_problem *problem);
void hd_lease_pool_finish(struct hd_lease_pool *pool);

/* The lowest free slot.  None free, or a second lease of one microbatch, breaks what the plan
   counted: an error that names stage, slots and owners (HD_EXIT_FAILED). */
hd_status hd_lease_acquire(struct hd_lease_pool *pool, uint32_t microbatch,
                           struct hd_problem *problem);

/* The payload of a microbatch that holds a lease, and its generation; an error if it holds none. */
hd_status hd_lease_find(const struct hd_lease_pool *pool, uint32_t microbatch, void **payload,
                        uint64_t *generation, struct hd_problem *problem);

/* Ends the lease, poisons the slot if asked.  Twice is an error. */
hd_status hd_lease_release(struct hd_lease_pool *pool, uint32_t microbatch,
                           struct hd_problem *problem);

#endif /* HEDDLE_ENGINE_LEASE_H */
