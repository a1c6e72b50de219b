#include "launch/region.h"

#include "base/clock.h"
#include "base/number.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* In a log: this head, the key with its final zero, the value; padded to 8 bytes. */
struct entry {
    _Atomic uint64_t next; /* of its chain, as in region->chains; valid in this region alone */
    uint32_t key_bytes;
    uint32_t value_bytes;
};

struct hd_region *hd_region_create(uint32_t rank_count, uint64_t gather_bytes)
{
    assert(rank_count > 0 && gather_bytes < 1ull << 32);
    const uint64_t share_bytes = HD_BOOTSTRAP_LOGS_BYTES / rank_count / 64 * 64;
    const uint64_t log_bytes =
        hd_min_u64(HD_BOOTSTRAP_LOG_BYTES_MAX, hd_max_u64(HD_BOOTSTRAP_LOG_BYTES_MIN, share_bytes));
    const uint64_t block_bytes = hd_round_up(HD_BLOCK_HEAD_BYTES + gather_bytes, 64);
    const uint64_t logs_at_bytes =
        sizeof(struct hd_region) + HD_REGION_SIDE_COUNT * rank_count * block_bytes;
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

void hd_region_destroy(struct hd_region *region)
{
    if (region != NULL) {
        munmap(region, region->total_bytes);
    }
}

struct hd_region_log *hd_region_log(const struct hd_region *region, uint32_t rank)
{
    return (void *)(region->logs + rank * (sizeof(struct hd_region_log) + region->log_bytes));
}

unsigned char *hd_region_block(const struct hd_region *region, uint32_t side, uint32_t rank)
{
    return region->blocks + ((uint64_t)side * region->rank_count + rank) * region->block_bytes;
}

/* --- words to sleep on ---------------------------------------------------------------------- */

static void region_wake(struct hd_region_word *word)
{
    syscall(SYS_futex, &word->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

hd_status hd_region_wait(struct hd_region_word *word, uint32_t seen, uint64_t deadline_ns)
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

static void region_count_and_wake(struct hd_region_word *word)
{
    atomic_fetch_add_explicit(&word->value, HD_REGION_COUNT_ONE, memory_order_acq_rel);
    region_wake(word);
}

void hd_region_open(struct hd_region_barrier *barrier)
{
    region_count_and_wake(&barrier->opened);
}

void hd_region_kick(const struct hd_region *region)
{
    const uint64_t one = 1;

    if (region->kick >= 0) {
        const ssize_t ignored = write(region->kick, &one, sizeof one);
        (void)ignored; /* it fails only if the count is full, and then the link is awake */
    }
}

static void region_abort_word(struct hd_region_word *word)
{
    atomic_fetch_or_explicit(&word->value, HD_REGION_ABORTED, memory_order_release);
    region_wake(word);
}

void hd_region_abort(struct hd_region *region)
{
    region_abort_word(&region->news);
    region_abort_word(&region->fence.opened);
    region_abort_word(&region->gather.opened);
    hd_region_kick(region);
}

bool hd_region_is_aborted(const struct hd_region *region)
{
    return atomic_load_explicit(&region->news.value, memory_order_acquire) & HD_REGION_ABORTED;
}

/* --- entries and their index ---------------------------------------------------------------- */

static uint64_t region_entry_bytes(const struct entry *entry)
{
    return hd_round_up(sizeof *entry + entry->key_bytes + entry->value_bytes, 8);
}

static const char *region_key(const struct entry *entry)
{
    return (const char *)(entry + 1);
}

/* FNV-1a. */
static _Atomic uint64_t *region_chain_of(struct hd_region *region, const char *key)
{
    uint64_t hash = 0xcbf29ce484222325ull;

    for (const unsigned char *at = (const unsigned char *)key; *at != 0; at++) {
        hash = (hash ^ *at) * 0x100000001b3ull;
    }
    return &region->chains[hash % HD_BOOTSTRAP_CHAIN_COUNT];
}

static uint64_t region_offset_of(const struct hd_region *region, const void *entry)
{
    return (uint64_t)((const unsigned char *)entry - (const unsigned char *)region);
}

/* The lowest entry with this key between two offsets; NULL: there is none. */
static const struct entry *region_find_between(struct hd_region *region, const char *key,
                                               uint64_t begin_bytes, uint64_t end_bytes)
{
    uint64_t at_bytes = atomic_load_explicit(region_chain_of(region, key), memory_order_acquire);
    const struct entry *found = NULL;

    while (at_bytes != 0) {
        const struct entry *const entry = (const void *)((unsigned char *)region + at_bytes);
        if (at_bytes >= begin_bytes && at_bytes < end_bytes &&
            strcmp(region_key(entry), key) == 0) {
            found = entry;
            end_bytes = at_bytes;
        }
        at_bytes = atomic_load_explicit(&entry->next, memory_order_relaxed);
    }
    return found;
}

/* If several ranks have put this key, the entry of the lowest rank is found. */
bool hd_region_find(struct hd_region *region, const char *key, struct hd_region_pair *pair)
{
    const struct entry *const entry = region_find_between(region, key, 0, UINT64_MAX);

    if (entry != NULL) {
        *pair = (struct hd_region_pair){region_key(entry), region_key(entry) + entry->key_bytes,
                                        entry->key_bytes, entry->value_bytes};
    }
    return entry != NULL;
}

/* From here on other ranks find the entry, so it must be whole. */
static void region_index(struct hd_region *region, struct entry *entry)
{
    _Atomic uint64_t *const chain = region_chain_of(region, region_key(entry));
    uint64_t newest = atomic_load_explicit(chain, memory_order_relaxed);

    do { /* the exchange fails only when another rank's has succeeded */
        atomic_store_explicit(&entry->next, newest, memory_order_relaxed);
    } while (!atomic_compare_exchange_weak_explicit(chain, &newest, region_offset_of(region, entry),
                                                    memory_order_acq_rel, memory_order_relaxed));
}

hd_status hd_region_put(struct hd_region *region, uint32_t rank, const struct hd_region_pair *pair)
{
    struct hd_region_log *const log = hd_region_log(region, rank);
    const uint64_t begin_bytes = region_offset_of(region, log->entries);
    const uint32_t used_bytes = atomic_load_explicit(&log->used_bytes, memory_order_relaxed);
    const struct entry head = {.key_bytes = pair->key_bytes, .value_bytes = pair->value_bytes};
    struct entry *const entry = (void *)(log->entries + used_bytes);

    if (region_find_between(region, pair->key, begin_bytes, begin_bytes + region->log_bytes)) {
        return HD_INVALID;
    }
    if (region_entry_bytes(&head) > region->log_bytes - used_bytes) {
        return HD_NO_MEMORY;
    }
    entry->key_bytes = head.key_bytes;
    entry->value_bytes = head.value_bytes;
    unsigned char *const bytes = (unsigned char *)(entry + 1);
    memcpy(bytes, pair->key, head.key_bytes);
    if (head.value_bytes > 0) {
        memcpy(bytes + head.key_bytes, pair->value, head.value_bytes);
    }
    region_index(region, entry);
    atomic_store_explicit(&log->used_bytes, used_bytes + (uint32_t)region_entry_bytes(entry),
                          memory_order_release);
    region_count_and_wake(&region->news);
    hd_region_kick(region);
    return HD_OK;
}

/* Whether these bytes begin with a whole entry whose key ends in a zero. */
static bool region_is_entry(const struct entry *entry, uint64_t left_bytes)
{
    return left_bytes >= sizeof *entry && entry->key_bytes > 1 &&
           entry->key_bytes <= HD_BOOTSTRAP_KEY_BYTES && region_entry_bytes(entry) <= left_bytes &&
           strnlen(region_key(entry), entry->key_bytes) == entry->key_bytes - 1;
}

hd_status hd_region_add(struct hd_region *region, uint32_t rank, const void *bytes, uint64_t count)
{
    struct hd_region_log *const log = hd_region_log(region, rank);
    const uint32_t used_bytes = atomic_load_explicit(&log->used_bytes, memory_order_relaxed);
    unsigned char *const begin = log->entries + used_bytes;
    uint64_t at_bytes = 0;

    if (count > region->log_bytes - used_bytes) {
        return HD_PROTOCOL;
    }
    memcpy(begin, bytes, count);
    while (at_bytes < count && region_is_entry((void *)(begin + at_bytes), count - at_bytes)) {
        at_bytes += region_entry_bytes((void *)(begin + at_bytes));
    }
    if (at_bytes != count) {
        return HD_PROTOCOL;
    }
    for (at_bytes = 0; at_bytes < count;) {
        struct entry *const entry = (void *)(begin + at_bytes);
        at_bytes += region_entry_bytes(entry);
        region_index(region, entry);
    }
    atomic_store_explicit(&log->used_bytes, used_bytes + (uint32_t)count, memory_order_release);
    region_count_and_wake(&region->news);
    return HD_OK;
}
