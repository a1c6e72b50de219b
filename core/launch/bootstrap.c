#include "launch/bootstrap.h"

#include <assert.h>
#include <string.h>

void hd_bootstrap_init(struct hd_bootstrap *bootstrap, struct hd_region *region, uint32_t rank)
{
    assert(rank < region->rank_count);
    *bootstrap = (struct hd_bootstrap){.region = region, .rank = rank};
    pthread_mutex_init(&bootstrap->writing, NULL);
}

uint32_t hd_bootstrap_rank(const struct hd_bootstrap *bootstrap)
{
    return bootstrap->rank;
}

uint32_t hd_bootstrap_rank_count(const struct hd_bootstrap *bootstrap)
{
    return bootstrap->region->rank_count;
}

void hd_bootstrap_abort(struct hd_bootstrap *bootstrap)
{
    hd_region_abort(bootstrap->region);
}

hd_status hd_bootstrap_put(struct hd_bootstrap *bootstrap, const char *key, const void *value,
                           uint64_t bytes)
{
    struct hd_region *const region = bootstrap->region;
    const size_t key_bytes = strnlen(key, HD_BOOTSTRAP_KEY_BYTES) + 1;

    if (key_bytes == 1 || key_bytes > HD_BOOTSTRAP_KEY_BYTES) {
        return HD_INVALID;
    }
    if (bytes > region->log_bytes) {
        return HD_NO_MEMORY;
    }
    const struct hd_region_pair pair = {key, value, (uint32_t)key_bytes, (uint32_t)bytes};
    pthread_mutex_lock(&bootstrap->writing);
    const hd_status status = hd_region_put(region, bootstrap->rank, &pair);
    pthread_mutex_unlock(&bootstrap->writing);
    return status;
}

hd_status hd_bootstrap_get(struct hd_bootstrap *bootstrap, const char *key, void *value,
                           uint64_t bytes, uint64_t deadline_ns)
{
    struct hd_region *const region = bootstrap->region;
    struct hd_region_pair pair;
    hd_status status = HD_OK;

    while (status == HD_OK) {
        const uint32_t seen = atomic_load_explicit(&region->news.value, memory_order_acquire);
        if (seen & HD_REGION_ABORTED) {
            return HD_ABORTED;
        }
        if (hd_region_find(region, key, &pair)) {
            if (pair.value_bytes != bytes) {
                return HD_PROTOCOL;
            }
            if (bytes > 0) {
                memcpy(value, pair.value, bytes);
            }
            return HD_OK;
        }
        status = hd_region_wait(&region->news, seen, deadline_ns);
    }
    return status;
}

static hd_status bootstrap_pass(struct hd_region *region, struct hd_region_barrier *barrier,
                                struct hd_bootstrap_round *round, uint64_t deadline_ns)
{
    const uint32_t target = round->passed_count + 1;
    hd_status status = HD_OK;

    if (!round->is_waiting) {
        round->is_waiting = true;
        const uint32_t arrived =
            atomic_fetch_add_explicit(&barrier->arrived.value, 1, memory_order_acq_rel) + 1;
        /* Both sides of the comparison wrap around together, however many rounds there were. */
        if (region->kick < 0 && arrived == target * region->rank_count) {
            hd_region_open(barrier);
        }
        hd_region_kick(region);
    }
    while (status == HD_OK) {
        const uint32_t seen = atomic_load_explicit(&barrier->opened.value, memory_order_acquire);
        if (seen & HD_REGION_ABORTED) {
            return HD_ABORTED;
        }
        if (seen == target * HD_REGION_COUNT_ONE) {
            *round = (struct hd_bootstrap_round){.passed_count = target};
            return HD_OK;
        }
        status = hd_region_wait(&barrier->opened, seen, deadline_ns);
    }
    return status;
}

hd_status hd_bootstrap_fence(struct hd_bootstrap *bootstrap, uint64_t deadline_ns)
{
    struct hd_region *const region = bootstrap->region;

    return bootstrap_pass(region, &region->fence, &bootstrap->fence, deadline_ns);
}

hd_status hd_bootstrap_gather(struct hd_bootstrap *bootstrap, const void *mine, uint64_t bytes,
                              void *all, uint64_t deadline_ns)
{
    struct hd_region *const region = bootstrap->region;
    const uint32_t side = bootstrap->gather.passed_count % HD_REGION_SIDE_COUNT;

    if (bytes == 0 || bytes > region->gather_bytes) {
        return HD_INVALID;
    }
    if (!bootstrap->gather.is_waiting) {
        unsigned char *const block = hd_region_block(region, side, bootstrap->rank);
        memcpy(block, &bytes, sizeof bytes);
        memcpy(block + HD_BLOCK_HEAD_BYTES, mine, bytes);
    }
    const hd_status status =
        bootstrap_pass(region, &region->gather, &bootstrap->gather, deadline_ns);
    if (status != HD_OK) {
        return status;
    }
    for (uint32_t rank = 0; rank < region->rank_count; rank++) {
        const unsigned char *const block = hd_region_block(region, side, rank);
        if (memcmp(block, &bytes, sizeof bytes) != 0) {
            return HD_PROTOCOL;
        }
        memcpy((unsigned char *)all + rank * bytes, block + HD_BLOCK_HEAD_BYTES, bytes);
    }
    return HD_OK;
}
