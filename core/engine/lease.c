#include "engine/lease.h"
#include "base/memory.h"
#include "base/number.h"

#include <assert.h>
#include <string.h>

hd_status hd_lease_pool_create(struct hd_lease_pool *pool, uint32_t slot_count, uint64_t slot_bytes,
                               struct hd_problem *problem)
{
    void *memory = NULL;

    assert(slot_count > 0 && slot_bytes > 0 && pool->microbatch_count > 0);
    pool->slot_count = slot_count;
    pool->slot_bytes = hd_round_up(slot_bytes, pool->regions->alignment);
    pool->next_generation = 1;
    pool->slots = hd_memory_take(slot_count * sizeof pool->slots[0], 64, "lease");
    pool->slot_of = hd_memory_take(pool->microbatch_count * sizeof(uint32_t), 64, "lease");
    pool->generation_of = hd_memory_take(pool->microbatch_count * sizeof(uint64_t), 64, "lease");
    const hd_status status =
        hd_regions_take(pool->regions, slot_count * pool->slot_bytes, "payload", &memory);
    pool->memory = memory;
    if (status != HD_OK || pool->slots == NULL || pool->slot_of == NULL ||
        pool->generation_of == NULL) {
        return hd_problem_no_memory(problem, slot_count * pool->slot_bytes,
                                    "%u payload slots of stage %u", slot_count, pool->stage);
    }
    memset(pool->slot_of, 0xFF, pool->microbatch_count * sizeof(uint32_t));
    return HD_OK;
}

void hd_lease_pool_finish(struct hd_lease_pool *pool)
{
    if (pool->memory != NULL) {
        hd_regions_give(pool->regions, pool->memory);
    }
    hd_memory_give(pool->slots);
    hd_memory_give(pool->slot_of);
    hd_memory_give(pool->generation_of);
    pool->memory = NULL;
    pool->slots = NULL;
    pool->slot_of = NULL;
    pool->generation_of = NULL;
}

/* The slot for the next forward; HD_LEASE_NO_SLOT if all are leased. */
static uint32_t lease_choose_slot(struct hd_lease_pool *pool, uint32_t microbatch)
{
    if (pool->fault == HD_LEASE_OFF) {
        return microbatch % pool->slot_count;
    }
    if (pool->fault == HD_LEASE_FORWARD_ORDER) {
        return pool->next_slot++ % pool->slot_count;
    }
    uint32_t slot = 0;
    while (slot < pool->slot_count && pool->slots[slot].generation != 0) {
        slot++;
    }
    return slot < pool->slot_count ? slot : HD_LEASE_NO_SLOT;
}

hd_status hd_lease_acquire(struct hd_lease_pool *pool, uint32_t microbatch,
                           struct hd_problem *problem)
{
    assert(microbatch < pool->microbatch_count);
    if (pool->slot_of[microbatch] != HD_LEASE_NO_SLOT) {
        return hd_problem_set(problem, HD_PROTOCOL, HD_EXIT_FAILED,
                              "stage %u: microbatch %u already holds payload slot %u", pool->stage,
                              microbatch, pool->slot_of[microbatch]);
    }
    const uint32_t slot = lease_choose_slot(pool, microbatch);
    if (slot == HD_LEASE_NO_SLOT) {
        return hd_problem_set(
            problem, HD_PROTOCOL, HD_EXIT_FAILED,
            "stage %u: no payload slot is free for microbatch %u: all %u are leased, slot 0 to "
            "microbatch %u",
            pool->stage, microbatch, pool->slot_count, pool->slots[0].microbatch);
    }
    struct hd_lease_slot *row = &pool->slots[slot];
    pool->held_count += row->generation == 0;
    row->generation = pool->next_generation++;
    row->last_owner = row->microbatch;
    row->microbatch = microbatch;
    pool->slot_of[microbatch] = slot;
    pool->generation_of[microbatch] = row->generation;
    pool->peak_count = hd_max_u32(pool->peak_count, pool->held_count);
    return HD_OK;
}

static hd_status lease_missing(const struct hd_lease_pool *pool, uint32_t microbatch,
                               struct hd_problem *problem)
{
    return hd_problem_set(problem, HD_PROTOCOL, HD_EXIT_FAILED,
                          "stage %u: microbatch %u has no payload slot: its lease has ended, or no "
                          "forward began one",
                          pool->stage, microbatch);
}

hd_status hd_lease_find(const struct hd_lease_pool *pool, uint32_t microbatch, void **payload,
                        uint64_t *generation, struct hd_problem *problem)
{
    assert(microbatch < pool->microbatch_count);
    const uint32_t slot = pool->slot_of[microbatch];
    if (slot == HD_LEASE_NO_SLOT) {
        return lease_missing(pool, microbatch, problem);
    }
    *payload = pool->memory + slot * pool->slot_bytes;
    *generation = pool->generation_of[microbatch];
    return HD_OK;
}

/* Frees the slot, unless another microbatch has leased it since. */
static hd_status lease_free_slot(struct hd_lease_pool *pool, uint32_t microbatch)
{
    const uint32_t slot = pool->slot_of[microbatch];
    if (pool->slots[slot].generation != pool->generation_of[microbatch]) {
        return HD_OK;
    }
    pool->slots[slot].generation = 0;
    assert(pool->held_count > 0);
    pool->held_count--;
    return !pool->poison ? HD_OK
                         : hd_regions_fill(pool->regions, pool->memory + slot * pool->slot_bytes,
                                           pool->slot_bytes, 0xFF);
}

hd_status hd_lease_end_forward(struct hd_lease_pool *pool, uint32_t microbatch)
{
    assert(microbatch < pool->microbatch_count && pool->slot_of[microbatch] != HD_LEASE_NO_SLOT);
    return pool->fault == HD_LEASE_EARLY_RELEASE ? lease_free_slot(pool, microbatch) : HD_OK;
}

hd_status hd_lease_release(struct hd_lease_pool *pool, uint32_t microbatch,
                           struct hd_problem *problem)
{
    assert(microbatch < pool->microbatch_count);
    if (pool->slot_of[microbatch] == HD_LEASE_NO_SLOT) {
        return lease_missing(pool, microbatch, problem);
    }
    assert(pool->fault != HD_LEASE_HONEST ||
           pool->slots[pool->slot_of[microbatch]].microbatch == microbatch);
    const hd_status status = lease_free_slot(pool, microbatch);
    pool->slot_of[microbatch] = HD_LEASE_NO_SLOT;
    return status;
}
