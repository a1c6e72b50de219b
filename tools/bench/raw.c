/* bench/raw.c - the least that two processes with shared memory need for a message. */
#include "bench/exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CACHE_LINE_BYTES = 128, SPIN_COUNT = 2000, CHANNEL_MAX = 4 };

/* The head of a channel: two words, each with one writer. */
struct words {
    _Alignas(CACHE_LINE_BYTES) _Atomic uint64_t arrived;
    _Alignas(CACHE_LINE_BYTES) _Atomic uint64_t credit;
};

/* What rank 0 tells of the memory of all channels, which it creates. */
struct share {
    int32_t pid, descriptor;
    int32_t error; /* errno; 0: the memory exists */
};

struct ring {
    struct words *words;
    unsigned char *slots;
    uint64_t depth, stride_bytes;
    uint64_t posted_count; /* source */
    bool is_source;
};

struct hd_transport {
    const struct hd_host *host;
    unsigned char *memory;
    uint64_t bytes;
    struct ring rings[CHANNEL_MAX];
};

static uint64_t raw_stride_of(const struct hd_channel *channel)
{
    return (channel->bytes + CACHE_LINE_BYTES - 1) / CACHE_LINE_BYTES * CACHE_LINE_BYTES;
}

static uint64_t raw_ring_bytes(const struct hd_channel *channel)
{
    return sizeof(struct words) + channel->depth * raw_stride_of(channel);
}

static hd_status raw_refuse(const struct hd_transport *raw, const char *what, int error)
{
    char text[256];
    const struct hd_error said = {sizeof said, HD_SYSTEM, UINT32_MAX, UINT32_MAX, 0, text};

    snprintf(text, sizeof text, "%s: %s", what, strerror(error));
    return raw->host->fail(raw->host->context, &said);
}

/* --- open ------------------------------------------------------------------------------------ */

/* The descriptor, or -1 with errno; all pages are allocated. */
static int raw_make(uint64_t bytes)
{
    const int descriptor = memfd_create("heddle-yardstick", MFD_CLOEXEC);
    const int error = descriptor < 0 ? errno : posix_fallocate(descriptor, 0, (off_t)bytes);

    if (error != 0 && descriptor >= 0) {
        close(descriptor);
    }
    errno = error;
    return error == 0 ? descriptor : -1;
}

static int raw_find(const struct share *share)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", share->pid, share->descriptor);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* Maps the memory of rank 0, which keeps its descriptor open until the other rank has mapped it. */
static hd_status raw_share(struct hd_transport *raw, uint64_t deadline_ns)
{
    const struct hd_host *host = raw->host;
    const bool is_maker = host->rank == 0;
    int descriptor = is_maker ? raw_make(raw->bytes) : -1;
    struct share share = {getpid(), descriptor, is_maker && descriptor < 0 ? errno : 0};

    hd_status status = is_maker ? host->put(host->context, "memory", &share, sizeof share) : HD_OK;
    if (status == HD_OK) {
        status = host->get(host->context, "memory", &share, sizeof share, deadline_ns);
    }
    if (status == HD_OK && share.error != 0) {
        status = raw_refuse(raw, "cannot create shared memory", share.error);
    }
    if (status == HD_OK && !is_maker) {
        descriptor = raw_find(&share);
    }
    if (status == HD_OK && descriptor < 0) {
        status = raw_refuse(raw, "cannot open the memory of rank 0", errno);
    }
    if (status == HD_OK) {
        void *memory = mmap(NULL, raw->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                            descriptor, 0);
        raw->memory = memory != MAP_FAILED ? memory : NULL;
        status = memory != MAP_FAILED ? HD_OK
                                      : raw_refuse(raw, "cannot map the memory of rank 0", errno);
    }
    if (status == HD_OK) {
        status = host->fence(host->context, deadline_ns);
    }
    if (descriptor >= 0) {
        close(descriptor);
    }
    return status;
}

static void raw_close(struct hd_transport *raw, uint64_t deadline_ns)
{
    (void)deadline_ns;
    if (raw != NULL) {
        if (raw->memory != NULL) {
            munmap(raw->memory, raw->bytes);
        }
        raw->host->free(raw->host->context, raw);
    }
}

static hd_status raw_open(const struct hd_transport_setup *setup, struct hd_transport **instance)
{
    const struct hd_host *host = setup->host;
    struct hd_transport *raw = host->alloc(host->context, sizeof *raw, 64, "bench");
    uint64_t offset_bytes = 0;

    if (raw == NULL || setup->channel_count > CHANNEL_MAX) {
        host->free(host->context, raw);
        return HD_NO_MEMORY;
    }
    raw->host = host;
    for (uint32_t i = 0; i < setup->channel_count; i++) {
        raw->bytes += raw_ring_bytes(setup->channels[i]);
    }
    const hd_status status = raw_share(raw, setup->deadline_ns);
    if (status != HD_OK) {
        raw_close(raw, setup->deadline_ns);
        return status;
    }
    for (uint32_t i = 0; i < setup->channel_count; i++) {
        const struct hd_channel *channel = setup->channels[i];
        unsigned char *head = raw->memory + offset_bytes;
        raw->rings[i] = (struct ring){.words = (struct words *)(void *)head,
                                      .slots = head + sizeof(struct words),
                                      .depth = channel->depth,
                                      .stride_bytes = raw_stride_of(channel),
                                      .is_source = channel->source == host->rank};
        offset_bytes += raw_ring_bytes(channel);
    }
    *instance = raw;
    return HD_OK;
}

/* --- messages -------------------------------------------------------------------------------- */

static void *raw_slot(struct hd_transport *raw, const struct hd_message *message)
{
    const struct ring *ring = &raw->rings[message->channel];
    return ring->slots + message->sequence % ring->depth * ring->stride_bytes;
}

/* The word says that the message is readable, or that its slot is free. */
static hd_status raw_test(struct hd_transport *raw, const struct hd_message *message)
{
    const struct ring *ring = &raw->rings[message->channel];
    const uint64_t behind =
        ring->is_source && message->sequence >= ring->posted_count ? ring->depth : 0;
    const _Atomic uint64_t *word = ring->is_source ? &ring->words->credit : &ring->words->arrived;

    return atomic_load_explicit(word, memory_order_acquire) + behind > message->sequence
               ? HD_OK
               : HD_IN_PROGRESS;
}

static hd_status raw_reserve(struct hd_transport *raw, const struct hd_message *message)
{
    return raw_test(raw, message) == HD_OK ? HD_OK : HD_BUSY;
}

static hd_status raw_post_send(struct hd_transport *raw, const struct hd_message *message,
                               void *stream)
{
    (void)stream;
    raw->rings[message->channel].posted_count = message->sequence + 1;
    atomic_store_explicit(&raw->rings[message->channel].words->arrived, message->sequence + 1,
                          memory_order_release);
    return HD_OK;
}

static hd_status raw_post_recv(struct hd_transport *raw, const struct hd_message *message)
{
    (void)raw;
    (void)message;
    return HD_OK;
}

static hd_status raw_release(struct hd_transport *raw, const struct hd_message *message,
                             void *stream)
{
    (void)stream;
    atomic_store_explicit(&raw->rings[message->channel].words->credit, message->sequence + 1,
                          memory_order_release);
    return HD_OK;
}

static void raw_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static hd_status raw_wait(struct hd_transport *raw, const struct hd_message *message, void *stream,
                          uint64_t deadline_ns)
{
    hd_status status = raw_test(raw, message);

    (void)stream;
    for (uint32_t spin = 0; status == HD_IN_PROGRESS && spin < SPIN_COUNT; spin++) {
        raw_pause();
        status = raw_test(raw, message);
    }
    while (status == HD_IN_PROGRESS && raw->host->now_ns(raw->host->context) < deadline_ns) {
        sched_yield();
        status = raw_test(raw, message);
    }
    return status == HD_IN_PROGRESS ? HD_TIMEOUT : status;
}

static const struct hd_transport_ops raw_ops = {
    .size = sizeof raw_ops,
    .open = raw_open,
    .slot = raw_slot,
    .reserve = raw_reserve,
    .post_send = raw_post_send,
    .post_recv = raw_post_recv,
    .test = raw_test,
    .wait = raw_wait,
    .release = raw_release,
    .close = raw_close,
};

const struct hd_plugin hd_bench_raw = {
    HD_PLUGIN_HEAD(HD_KIND_TRANSPORT),
    .capabilities = HD_TRANSPORT_HOST | HD_TRANSPORT_IN_PLACE,
    .name = "raw",
    .summary = "the yardstick",
    .ops = &raw_ops,
};
