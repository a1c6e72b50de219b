#include "base/clock.h"
#include "base/number.h"
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
    _Atomic uint64_t next; /* of its chain, as in the region's; of this region alone */
    uint32_t key_bytes;
    uint32_t value_bytes;
};

/* What is put. */
struct card {
    const char *key;
    const void *value;
    uint32_t key_bytes; /* with the final zero */
    uint32_t value_bytes;
};

static uint64_t bootstrap_log_bytes_of(uint32_t rank_count)
{
    const uint64_t share_bytes = HD_BOOTSTRAP_LOGS_BYTES / rank_count / 64 * 64;

    return hd_min_u64(HD_BOOTSTRAP_LOG_BYTES_MAX,
                      hd_max_u64(HD_BOOTSTRAP_LOG_BYTES_MIN, share_bytes));
}

struct hd_region *hd_region_create(uint32_t rank_count, uint64_t gather_bytes)
{
    assert(rank_count > 0 && rank_count <= HD_LAUNCH_RANK_MAX && gather_bytes < 1ull << 32);
    const uint64_t block_bytes = hd_round_up(HD_BLOCK_HEAD_BYTES + gather_bytes, 64);
    const uint64_t log_bytes = bootstrap_log_bytes_of(rank_count);
    const uint64_t logs_at_bytes = sizeof(struct hd_region) + SIDE_COUNT * rank_count * block_bytes;
    const uint64_t total_bytes =
        logs_at_bytes + rank_count * (sizeof(struct hd_region_log) + log_bytes);
    void *const memory = mmap(NULL, total_bytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return NULL;
    }
    struct hd_region *const region = memory;
    region->rank_count = rank_count;
    region->gather_bytes = gather_bytes;
    region->block_bytes = block_bytes;
    region->total_bytes = total_bytes;
    region->kick = -1;
    region->log_bytes = log_bytes;
    region->blocks = (unsigned char *)memory + sizeof *region;
    region->logs = (unsigned char *)memory + logs_at_bytes;
    return region;
}

struct hd_region_log *hd_region_log(const struct hd_region *region, uint32_t rank)
{
    return (void *)(region->logs + rank * (sizeof(struct hd_region_log) + region->log_bytes));
}

void hd_region_destroy(struct hd_region *region)
{
    if (region != NULL) {
        munmap(region, region->total_bytes);
    }
}

/* --- words to sleep on ---------------------------------------------------------------------- */

static void bootstrap_word_wake(struct hd_region_word *word)
{
    syscall(SYS_futex, &word->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Sleeps unless the word is no longer `seen`; HD_OK means: look again. */
static hd_status bootstrap_word_wait(struct hd_region_word *word, uint32_t seen,
                                     uint64_t deadline_ns)
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

static void bootstrap_kick_link(const struct hd_region *region)
{
    const uint64_t one = 1;

    if (region->kick >= 0) {
        const ssize_t ignored = write(region->kick, &one, sizeof one);
        (void)ignored; /* full: it is awake */
    }
}

static void bootstrap_word_abort(struct hd_region_word *word)
{
    atomic_fetch_or_explicit(&word->value, ABORTED, memory_order_release);
    bootstrap_word_wake(word);
}

void hd_region_abort(struct hd_region *region)
{
    bootstrap_word_abort(&region->news);
    bootstrap_word_abort(&region->fence.opened);
    bootstrap_word_abort(&region->gather.opened);
    bootstrap_kick_link(region);
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

static uint64_t bootstrap_entry_bytes(const struct entry *entry)
{
    return hd_round_up(sizeof *entry + entry->key_bytes + entry->value_bytes, 8);
}

static const char *bootstrap_entry_key(const struct entry *entry)
{
    return (const char *)(entry + 1);
}

/* FNV-1a. */
static _Atomic uint64_t *bootstrap_chain_of(struct hd_region *region, const char *key)
{
    uint64_t hash = 0xcbf29ce484222325ull;

    for (const unsigned char *at = (const unsigned char *)key; *at != 0; at++) {
        hash = (hash ^ *at) * 0x100000001b3ull;
    }
    return &region->chains[hash % HD_BOOTSTRAP_CHAIN_COUNT];
}

static uint64_t bootstrap_offset_of(const struct hd_region *region, const void *entry)
{
    return (uint64_t)((const unsigned char *)entry - (const unsigned char *)region);
}

/* The first log's, should several ranks have put this key; NULL: not there yet. */
static const struct entry *bootstrap_region_find(struct hd_region *region, const char *key)
{
    uint64_t at_bytes = atomic_load_explicit(bootstrap_chain_of(region, key), memory_order_acquire);
    uint64_t found_bytes = UINT64_MAX;

    while (at_bytes != 0) {
        const struct entry *const entry = (const void *)((unsigned char *)region + at_bytes);
        if (at_bytes < found_bytes && strcmp(bootstrap_entry_key(entry), key) == 0) {
            found_bytes = at_bytes;
        }
        at_bytes = atomic_load_explicit(&entry->next, memory_order_relaxed);
    }
    return found_bytes == UINT64_MAX ? NULL : (const void *)((unsigned char *)region + found_bytes);
}

/* Has this rank put it? */
static int bootstrap_log_has(struct hd_region *region, const struct hd_region_log *log,
                             const char *key)
{
    const uint64_t begin_bytes = bootstrap_offset_of(region, log->entries);
    uint64_t at_bytes = atomic_load_explicit(bootstrap_chain_of(region, key), memory_order_acquire);
    int has = 0;

    while (at_bytes != 0 && !has) {
        const struct entry *const entry = (const void *)((unsigned char *)region + at_bytes);
        has = at_bytes >= begin_bytes && at_bytes < begin_bytes + region->log_bytes &&
              strcmp(bootstrap_entry_key(entry), key) == 0;
        at_bytes = atomic_load_explicit(&entry->next, memory_order_relaxed);
    }
    return has;
}

/* From here on it is found, so it is whole. */
static void bootstrap_region_link(struct hd_region *region, struct entry *entry)
{
    _Atomic uint64_t *const chain = bootstrap_chain_of(region, bootstrap_entry_key(entry));
    uint64_t newest = atomic_load_explicit(chain, memory_order_relaxed);

    do { /* each repetition is another rank's success */
        atomic_store_explicit(&entry->next, newest, memory_order_relaxed);
    } while (!atomic_compare_exchange_weak_explicit(chain, &newest,
                                                    bootstrap_offset_of(region, entry),
                                                    memory_order_acq_rel, memory_order_relaxed));
}

static hd_status bootstrap_log_append(struct hd_region *region, struct hd_region_log *log,
                                      const struct card *card)
{
    const uint32_t used_bytes = atomic_load_explicit(&log->used_bytes, memory_order_relaxed);
    struct entry *const entry = (void *)(log->entries + used_bytes);
    const struct entry head = {.key_bytes = card->key_bytes, .value_bytes = card->value_bytes};

    if (bootstrap_log_has(region, log, card->key)) {
        return HD_INVALID;
    }
    if (bootstrap_entry_bytes(&head) > region->log_bytes - used_bytes) {
        return HD_NO_MEMORY;
    }
    entry->key_bytes = head.key_bytes;
    entry->value_bytes = head.value_bytes;
    unsigned char *const bytes = (unsigned char *)(entry + 1);
    memcpy(bytes, card->key, head.key_bytes);
    if (head.value_bytes > 0) {
        memcpy(bytes + head.key_bytes, card->value, head.value_bytes);
    }
    bootstrap_region_link(region, entry);
    atomic_store_explicit(&log->used_bytes, used_bytes + (uint32_t)bootstrap_entry_bytes(entry),
                          memory_order_release);
    return HD_OK;
}

/* Is there a whole entry in these bytes, with a key that ends? */
static int bootstrap_is_entry(const struct entry *entry, uint64_t left_bytes)
{
    return left_bytes >= sizeof *entry && entry->key_bytes > 1 &&
           entry->key_bytes <= HD_BOOTSTRAP_KEY_BYTES &&
           bootstrap_entry_bytes(entry) <= left_bytes &&
           strnlen(bootstrap_entry_key(entry), entry->key_bytes) == entry->key_bytes - 1;
}

static int bootstrap_are_entries(const unsigned char *begin, uint64_t count)
{
    uint64_t at_bytes = 0;

    while (at_bytes < count &&
           bootstrap_is_entry((const void *)(begin + at_bytes), count - at_bytes)) {
        at_bytes += bootstrap_entry_bytes((const void *)(begin + at_bytes));
    }
    return at_bytes == count;
}

hd_status hd_region_add(struct hd_region *region, uint32_t rank, const void *bytes, uint64_t count)
{
    struct hd_region_log *const log = hd_region_log(region, rank);
    const uint32_t used_bytes = atomic_load_explicit(&log->used_bytes, memory_order_relaxed);
    unsigned char *const begin = log->entries + used_bytes;

    if (count > region->log_bytes - used_bytes) {
        return HD_PROTOCOL;
    }
    memcpy(begin, bytes, count);
    if (!bootstrap_are_entries(begin, count)) {
        return HD_PROTOCOL;
    }
    for (uint64_t at_bytes = 0; at_bytes < count;) {
        struct entry *const entry = (void *)(begin + at_bytes);
        at_bytes += bootstrap_entry_bytes(entry);
        bootstrap_region_link(region, entry);
    }
    atomic_store_explicit(&log->used_bytes, used_bytes + (uint32_t)count, memory_order_release);
    atomic_fetch_add_explicit(&region->news.value, COUNT_ONE, memory_order_release);
    bootstrap_word_wake(&region->news);
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
    if (bytes > region->log_bytes) {
        return HD_NO_MEMORY;
    }
    const struct card card = {key, value, (uint32_t)key_bytes, (uint32_t)bytes};
    pthread_mutex_lock(&bootstrap->writing);
    const hd_status status =
        bootstrap_log_append(region, hd_region_log(region, bootstrap->rank), &card);
    pthread_mutex_unlock(&bootstrap->writing);
    if (status != HD_OK) {
        return status;
    }
    atomic_fetch_add_explicit(&region->news.value, COUNT_ONE, memory_order_release);
    bootstrap_word_wake(&region->news);
    bootstrap_kick_link(region);
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
        const struct entry *const entry = bootstrap_region_find(region, key);
        if (entry != NULL) {
            if (entry->value_bytes != bytes) {
                return HD_PROTOCOL;
            }
            if (bytes > 0) {
                memcpy(value, bootstrap_entry_key(entry) + entry->key_bytes, bytes);
            }
            return HD_OK;
        }
        status = bootstrap_word_wait(&region->news, seen, deadline_ns);
    }
    return status;
}

/* --- fence and gather ----------------------------------------------------------------------- */

void hd_region_open(struct hd_region_barrier *barrier)
{
    atomic_fetch_add_explicit(&barrier->opened.value, COUNT_ONE, memory_order_acq_rel);
    bootstrap_word_wake(&barrier->opened);
}

static hd_status bootstrap_barrier_pass(struct hd_region *region, struct hd_region_barrier *barrier,
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
        bootstrap_kick_link(region);
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
        status = bootstrap_word_wait(&barrier->opened, seen, deadline_ns);
    }
    return status;
}

hd_status hd_bootstrap_fence(struct hd_bootstrap *bootstrap, uint64_t deadline_ns)
{
    struct hd_region *const region = bootstrap->region;

    return bootstrap_barrier_pass(region, &region->fence, &bootstrap->fence, deadline_ns);
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
    const hd_status status =
        bootstrap_barrier_pass(region, &region->gather, &bootstrap->gather, deadline_ns);
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
