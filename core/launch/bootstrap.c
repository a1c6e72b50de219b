#include "base/clock.h"
#include "launch/region.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ABORTED = 1, COUNT_ONE = 2, SIDE_COUNT = 2 };

/* In a log: this head, the key with its final zero, the value; the whole padded to 8. */
struct entry {
    uint32_t key_bytes;
    uint32_t value_bytes;
};

static uint64_t round_up(uint64_t bytes, uint64_t unit_bytes)
{
    return (bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
}

struct hd_region *hd_region_create(uint32_t rank_count, uint64_t gather_bytes)
{
    const uint64_t head_bytes =
        sizeof(struct hd_region) + rank_count * sizeof(struct hd_region_log);
    const uint64_t block_bytes = round_up(HD_BLOCK_HEAD_BYTES + gather_bytes, 64);
    const uint64_t total_bytes = head_bytes + SIDE_COUNT * rank_count * block_bytes;

    assert(rank_count > 0 && rank_count <= HD_LAUNCH_RANK_MAX && gather_bytes < 1ull << 32);
    void *const memory =
        mmap(NULL, total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return NULL;
    }
    struct hd_region *const region = memory;
    region->rank_count = rank_count;
    region->gather_bytes = gather_bytes;
    region->block_bytes = block_bytes;
    region->total_bytes = total_bytes;
    region->kick = -1;
    region->blocks = (unsigned char *)memory + head_bytes;
    return region;
}

void hd_region_destroy(struct hd_region *region)
{
    if (region != NULL) {
        munmap(region, region->total_bytes);
    }
}

/* --- words to sleep on ---------------------------------------------------------------------- */

static void word_wake(struct hd_region_word *word)
{
    syscall(SYS_futex, &word->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Sleeps unless the word is no longer `seen`; HD_OK means: look again. */
static hd_status word_wait(struct hd_region_word *word, uint32_t seen, uint64_t deadline_ns)
{
    const struct timespec deadline = {.tv_sec = (time_t)(deadline_ns / HD_S_NS),
                                      .tv_nsec = (long)(deadline_ns % HD_S_NS)};
    const long result = syscall(SYS_futex, &word->value, FUTEX_WAIT_BITSET, seen, &deadline, NULL,
                                FUTEX_BITSET_MATCH_ANY);

    if (result == 0 || errno == EAGAIN || errno == EINTR) {
        return HD_OK;
    }
    return errno == ETIMEDOUT ? HD_TIMEOUT : HD_SYSTEM;
}

static void kick_link(const struct hd_region *region)
{
    const uint64_t one = 1;

    if (region->kick >= 0) {
        const ssize_t ignored = write(region->kick, &one, sizeof one);
        (void)ignored; /* full: it is awake */
    }
}

static void word_abort(struct hd_region_word *word)
{
    atomic_fetch_or_explicit(&word->value, ABORTED, memory_order_release);
    word_wake(word);
}

void hd_region_abort(struct hd_region *region)
{
    word_abort(&region->news);
    word_abort(&region->fence.opened);
    word_abort(&region->gather.opened);
    kick_link(region);
}

int hd_region_is_aborted(const struct hd_region *region)
{
    return (atomic_load_explicit(&region->news.value, memory_order_acquire) & ABORTED) != 0;
}

/* --- one rank's end ------------------------------------------------------------------------- */

void hd_bootstrap_init(struct hd_bootstrap *bootstrap, struct hd_region *region, uint32_t rank)
{
    assert(rank < region->rank_count);
    *bootstrap = (struct hd_bootstrap){.region = region, .rank = rank};
    pthread_mutex_init(&bootstrap->writing, NULL);
}

void hd_bootstrap_finish(struct hd_bootstrap *bootstrap)
{
    pthread_mutex_destroy(&bootstrap->writing);
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

/* --- put and get ---------------------------------------------------------------------------- */

static uint64_t entry_bytes(const struct entry *entry)
{
    return round_up(sizeof *entry + entry->key_bytes + entry->value_bytes, 8);
}

static const char *entry_key(const struct entry *entry)
{
    return (const char *)(entry + 1);
}

/* NULL: not there yet. */
static const struct entry *log_find(const struct hd_region_log *log, const char *key)
{
    const uint32_t used_bytes = atomic_load_explicit(&log->used_bytes, memory_order_acquire);

    for (uint64_t at_bytes = 0; at_bytes < used_bytes;) {
        const struct entry *const entry = (const void *)(log->entries + at_bytes);
        if (strcmp(entry_key(entry), key) == 0) {
            return entry;
        }
        at_bytes += entry_bytes(entry);
    }
    return NULL;
}

static const struct entry *region_find(const struct hd_region *region, const char *key)
{
    const struct entry *found = NULL;

    for (uint32_t rank = 0; rank < region->rank_count && found == NULL; rank++) {
        found = log_find(&region->logs[rank], key);
    }
    return found;
}

static hd_status log_append(struct hd_region_log *log, const struct entry *head, const char *key,
                            const void *value)
{
    const uint32_t used_bytes = atomic_load_explicit(&log->used_bytes, memory_order_relaxed);

    if (log_find(log, key) != NULL) {
        return HD_INVALID;
    }
    if (entry_bytes(head) > sizeof log->entries - used_bytes) {
        return HD_NO_MEMORY;
    }
    unsigned char *at = log->entries + used_bytes;
    memcpy(at, head, sizeof *head);
    memcpy(at + sizeof *head, key, head->key_bytes);
    if (head->value_bytes > 0) {
        memcpy(at + sizeof *head + head->key_bytes, value, head->value_bytes);
    }
    atomic_store_explicit(&log->used_bytes, used_bytes + (uint32_t)entry_bytes(head),
                          memory_order_release);
    return HD_OK;
}

hd_status hd_region_add(struct hd_region *region, uint32_t rank, const void *bytes, uint64_t count)
{
    struct hd_region_log *const log = &region->logs[rank];
    const uint32_t used_bytes = atomic_load_explicit(&log->used_bytes, memory_order_relaxed);

    if (count > sizeof log->entries - used_bytes) {
        return HD_PROTOCOL;
    }
    memcpy(log->entries + used_bytes, bytes, count);
    atomic_store_explicit(&log->used_bytes, used_bytes + (uint32_t)count, memory_order_release);
    atomic_fetch_add_explicit(&region->news.value, COUNT_ONE, memory_order_release);
    word_wake(&region->news);
    return HD_OK;
}

hd_status hd_bootstrap_put(struct hd_bootstrap *bootstrap, const char *key, const void *value,
                           uint64_t bytes)
{
    struct hd_region *const region = bootstrap->region;
    const size_t key_bytes = strnlen(key, HD_BOOTSTRAP_KEY_BYTES) + 1;

    if (key_bytes == 1 || key_bytes > HD_BOOTSTRAP_KEY_BYTES) {
        return HD_INVALID;
    }
    if (bytes > HD_BOOTSTRAP_LOG_BYTES) {
        return HD_NO_MEMORY;
    }
    const struct entry head = {.key_bytes = (uint32_t)key_bytes, .value_bytes = (uint32_t)bytes};
    pthread_mutex_lock(&bootstrap->writing);
    const hd_status status = log_append(&region->logs[bootstrap->rank], &head, key, value);
    pthread_mutex_unlock(&bootstrap->writing);
    if (status != HD_OK) {
        return status;
    }
    atomic_fetch_add_explicit(&region->news.value, COUNT_ONE, memory_order_release);
    word_wake(&region->news);
    kick_link(region);
    return HD_OK;
}

hd_status hd_bootstrap_get(struct hd_bootstrap *bootstrap, const char *key, void *value,
                           uint64_t bytes, uint64_t deadline_ns)
{
    struct hd_region *const region = bootstrap->region;
    hd_status status = HD_OK;

    while (status == HD_OK) {
        const uint32_t seen = atomic_load_explicit(&region->news.value, memory_order_acquire);
        if (seen & ABORTED) {
            return HD_ABORTED;
        }
        const struct entry *const entry = region_find(region, key);
        if (entry != NULL) {
            if (entry->value_bytes != bytes) {
                return HD_PROTOCOL;
            }
            if (bytes > 0) {
                memcpy(value, entry_key(entry) + entry->key_bytes, bytes);
            }
            return HD_OK;
        }
        status = word_wait(&region->news, seen, deadline_ns);
    }
    return status;
}

/* --- fence and gather ----------------------------------------------------------------------- */

void hd_region_open(struct hd_region_barrier *barrier)
{
    atomic_fetch_add_explicit(&barrier->opened.value, COUNT_ONE, memory_order_acq_rel);
    word_wake(&barrier->opened);
}

static hd_status barrier_pass(struct hd_region *region, struct hd_region_barrier *barrier,
                              struct hd_region_round *round, uint64_t deadline_ns)
{
    const uint32_t target = round->passed_count + 1;
    hd_status status = HD_OK;

    if (!round->waiting) {
        round->waiting = 1;
        const uint32_t arrived =
            atomic_fetch_add_explicit(&barrier->arrived.value, 1, memory_order_acq_rel) + 1;
        /* Both sides of the comparison wrap together, however many rounds there were. */
        if (region->kick < 0 && arrived == target * region->rank_count) {
            hd_region_open(barrier);
        }
        kick_link(region);
    }
    while (status == HD_OK) {
        const uint32_t seen = atomic_load_explicit(&barrier->opened.value, memory_order_acquire);
        if (seen & ABORTED) {
            return HD_ABORTED;
        }
        if (seen == target * COUNT_ONE) {
            *round = (struct hd_region_round){.passed_count = target};
            return HD_OK;
        }
        status = word_wait(&barrier->opened, seen, deadline_ns);
    }
    return status;
}

hd_status hd_bootstrap_fence(struct hd_bootstrap *bootstrap, uint64_t deadline_ns)
{
    struct hd_region *const region = bootstrap->region;

    return barrier_pass(region, &region->fence, &bootstrap->fence, deadline_ns);
}

unsigned char *hd_region_block(const struct hd_region *region, uint32_t side, uint32_t rank)
{
    return region->blocks + ((uint64_t)side * region->rank_count + rank) * region->block_bytes;
}

hd_status hd_bootstrap_gather(struct hd_bootstrap *bootstrap, const void *mine, uint64_t bytes,
                              void *all, uint64_t deadline_ns)
{
    struct hd_region *const region = bootstrap->region;
    const uint32_t side = bootstrap->gather.passed_count % SIDE_COUNT;

    if (bytes == 0 || bytes > region->gather_bytes) {
        return HD_INVALID;
    }
    if (!bootstrap->gather.waiting) {
        unsigned char *const block = hd_region_block(region, side, bootstrap->rank);
        memcpy(block, &bytes, sizeof bytes);
        memcpy(block + HD_BLOCK_HEAD_BYTES, mine, bytes);
    }
    const hd_status status = barrier_pass(region, &region->gather, &bootstrap->gather, deadline_ns);
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
