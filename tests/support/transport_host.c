/* tests/support/transport_host.c - the struct hd_host of a rank, served from the region. */
#include "support/transport_region.h"

#include "base/clock.h"
#include "base/host.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* --- struct hd_host, of a rank ----------------------------------------------------------- */

static void host_log(void *context, uint32_t level, const char *text)
{
    const struct hd_testbed_rank *rank = context;
    if (level == 0) {
        fprintf(stderr, "rank %u: log: %s\n", rank->rank, text);
    }
}

static hd_status host_fail(void *context, const struct hd_error *error)
{
    struct hd_testbed_rank *rank = context;
    struct hd_testbed_report *report = &rank->report;

    report->count++;
    report->status = error->status;
    report->rank = error->rank;
    report->channel = error->channel;
    report->sequence = error->sequence;
    snprintf(report->text, sizeof report->text, "%s", error->text);
    return error->status;
}

static const struct entry *find(const struct table *table, const char *key)
{
    const uint32_t count = atomic_load(&table->count);

    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(table->entries[i].key, key) == 0) {
            return &table->entries[i];
        }
    }
    return NULL;
}

static hd_status host_put(void *context, const char *key, const void *value, uint64_t bytes)
{
    const struct hd_testbed_rank *rank = context;
    struct table *table = &rank->region->tables[rank->rank];
    const uint32_t count = atomic_load(&table->count);
    struct entry *entry = &table->entries[count];

    if (find(table, key) != NULL) {
        return HD_INVALID;
    }
    assert(strlen(key) < KEY_BYTES && bytes <= VALUE_BYTES && count < ENTRY_MAX);
    snprintf(entry->key, sizeof entry->key, "%s", key);
    entry->bytes = bytes;
    memcpy(entry->value, value, bytes);
    atomic_store(&table->count, count + 1);
    return HD_OK;
}

/* Whoever asks for what nobody has put before the fence waits in vain. */
static hd_status host_get(void *context, const char *key, void *value, uint64_t bytes,
                          uint64_t deadline_ns)
{
    const struct hd_testbed_rank *rank = context;

    (void)deadline_ns;
    for (uint32_t i = 0; i < rank->job->rank_count; i++) {
        const struct entry *entry = find(&rank->region->tables[i], key);
        if (entry != NULL) {
            const int fits = entry->bytes == bytes;
            memcpy(value, entry->value, fits ? bytes : 0);
            return fits ? HD_OK : HD_PROTOCOL;
        }
    }
    return HD_TIMEOUT;
}

/* A sleeper wakes by the last rank, by an abort, or at its deadline. */
static void wake(struct hd_testbed_region *region)
{
    atomic_fetch_add(&region->generation, 1);
    syscall(SYS_futex, (void *)&region->generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static hd_status host_fence(void *context, uint64_t deadline_ns)
{
    const struct hd_testbed_rank *rank = context;
    struct hd_testbed_region *region = rank->region;
    const uint32_t generation = atomic_load(&region->generation);

    if (atomic_fetch_add(&region->arrived_count, 1) + 1 == rank->job->rank_count) {
        atomic_store(&region->arrived_count, 0);
        wake(region);
        return HD_OK;
    }
    while (atomic_load(&region->generation) == generation) {
        if (atomic_load(&region->is_aborted)) {
            return HD_ABORTED;
        }
        const uint64_t now_ns = hd_now_ns();
        if (now_ns >= deadline_ns) {
            return HD_TIMEOUT;
        }
        const uint64_t left_ns = deadline_ns - now_ns;
        const struct timespec left = {.tv_sec = (time_t)(left_ns / HD_S_NS),
                                      .tv_nsec = (long)(left_ns % HD_S_NS)};
        syscall(SYS_futex, (void *)&region->generation, FUTEX_WAIT, generation, &left, NULL, 0);
    }
    return HD_OK;
}

static void host_trace_transfer(void *context, const struct hd_transfer *transfer)
{
    (void)context;
    (void)transfer;
}

void hd_testbed_abort(struct hd_testbed_rank *rank)
{
    atomic_store(&rank->region->is_aborted, 1);
    wake(rank->region);
}

void hd_testbed_host_init(struct hd_testbed_rank *rank, const struct hd_testbed_job *job)
{
    struct hd_host *host = &rank->host;

    *host = hd_host_basics();
    host->account = NULL; /* only what the plugin allocates by alloc is checked */
    host->rank = rank->rank;
    host->rank_count = job->rank_count;
    host->option_count = job->option_count;
    host->options = job->options;
    host->context = rank;
    host->log = host_log;
    host->fail = host_fail;
    host->put = host_put;
    host->get = host_get;
    host->fence = host_fence;
    host->trace_transfer = host_trace_transfer;
}
