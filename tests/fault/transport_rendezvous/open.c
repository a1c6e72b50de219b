/* rendezvous/open.c - one memfd a rank, mapped by its peers; a message down every channel; the
   end. */
#include "rendezvous.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { KEY_BYTES = 48, GENERATION_MAX = 1000 };

void meet_close_all(struct hd_transport *instance, uint64_t deadline_ns)
{
    (void)deadline_ns;
    if (instance == NULL) {
        return;
    }
    const struct hd_host *host = instance->setup->host;
    meet_stop_mover(instance);
    for (uint32_t i = 0; i < instance->setup->channel_count; i++) {
        host->free(host->context, instance->lanes[i].memory);
    }
    for (uint32_t rank = 0; instance->words != NULL && rank < host->rank_count; rank++) {
        if (instance->words[rank] != NULL) { /* a late copy finds the file, not this memory */
            munmap(instance->words[rank], instance->bytes[rank]);
        }
    }
    if (instance->descriptor >= 0) {
        close(instance->descriptor);
    }
    host->free(host->context, instance->words);
    host->free(host->context, instance->bytes);
    host->free(host->context, instance->queue);
    pthread_cond_destroy(&instance->moved);
    pthread_mutex_destroy(&instance->lock);
    host->free(host->context, instance);
}

/* --- open -------------------------------------------------------------------------------- */

static uint64_t round_up(uint64_t bytes, uint64_t alignment_bytes)
{
    return (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

/* A memfd: words, arrivals of all channels, and the slots of those that end there, each behind its
   seal.  Fills what lies at `base`, or only measures (NULL). */
static uint64_t lay_out(struct hd_transport *instance, uint32_t target, unsigned char *base)
{
    const struct hd_transport_setup *setup = instance->setup;
    const uint64_t align = setup->alignment_bytes;
    uint64_t end = sizeof(struct words);

    if (base != NULL) {
        instance->words[target] = (struct words *)(void *)base;
    }
    for (uint32_t i = 0; i < setup->channel_count; i++, end += sizeof(struct arrivals)) {
        if (base != NULL && setup->channels[i]->target == target) {
            instance->lanes[i].arrivals = (struct arrivals *)(void *)(base + end);
        }
    }
    for (uint32_t i = 0; i < setup->channel_count; i++) {
        if (setup->channels[i]->target == target) {
            struct lane *lane = &instance->lanes[i];
            end = round_up(end + HD_SEAL_BYTES, align);
            lane->slots = base != NULL ? base + end : NULL;
            end += setup->channels[i]->depth * lane->stride_bytes;
        }
    }
    return end;
}

static hd_status take_lanes(struct hd_transport *instance)
{
    const struct hd_transport_setup *setup = instance->setup;
    const struct hd_host *host = setup->host;
    const uint64_t align = setup->alignment_bytes, most = (uint64_t)1 << 40;

    instance->queue_size = 1;
    for (uint32_t i = 0; i < setup->channel_count; i++) {
        struct lane *lane = &instance->lanes[i];
        const struct hd_channel *channel = setup->channels[i];
        lane->channel = channel;
        if (channel->bytes > most || channel->depth > most / (channel->bytes + 2 * align)) {
            return meet_fail(instance, HD_NO_MEMORY, MEET_NOBODY,
                             "channel %u: too large to be mapped", i);
        }
        lane->stride_bytes = round_up(channel->bytes + HD_SEAL_BYTES, align);
        instance->queue_size += channel->depth;
        if (channel->source == host->rank) {
            lane->memory = host->alloc(
                host->context, channel->send_depth * lane->stride_bytes + align, align, "send");
            lane->sends = (unsigned char *)lane->memory + align;
        }
        if (channel->source == host->rank && lane->memory == NULL) {
            return meet_fail(instance, HD_NO_MEMORY, MEET_NOBODY,
                             "channel %u: no memory to send from", i);
        }
    }
    instance->words =
        host->alloc(host->context, host->rank_count * sizeof *instance->words, 64, "words");
    instance->bytes =
        host->alloc(host->context, host->rank_count * sizeof *instance->bytes, 64, "words");
    instance->queue =
        host->alloc(host->context, instance->queue_size * sizeof *instance->queue, 64, "queue");
    return instance->words != NULL && instance->bytes != NULL && instance->queue != NULL
               ? HD_OK
               : meet_fail(instance, HD_NO_MEMORY, MEET_NOBODY,
                           "no memory for the books of the channels");
}

static hd_status map(struct hd_transport *instance, uint32_t rank, int descriptor)
{
    instance->bytes[rank] = lay_out(instance, rank, NULL);
    void *memory =
        mmap(NULL, instance->bytes[rank], PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) {
        return meet_fail(instance, HD_NO_MEMORY, rank, "the memory of rank %u cannot be mapped",
                         rank);
    }
    lay_out(instance, rank, memory);
    return HD_OK;
}

static hd_status offer_card(struct hd_transport *instance)
{
    const struct hd_host *host = instance->setup->host;
    const uint64_t bytes = lay_out(instance, host->rank, NULL);
    hd_status status = HD_INVALID; /* a bootstrap refuses a key that an older instance has put */
    char key[KEY_BYTES];

    instance->descriptor = memfd_create("rendezvous", MFD_CLOEXEC);
    if (instance->descriptor < 0 || ftruncate(instance->descriptor, (off_t)bytes) != 0) {
        return meet_fail(instance, HD_NO_MEMORY, MEET_NOBODY, "no memory to receive into");
    }
    const struct card card = {(int32_t)getpid(), instance->descriptor, bytes};
    for (uint32_t i = 0; status == HD_INVALID && i < GENERATION_MAX; i++) {
        instance->generation = i;
        snprintf(key, sizeof key, "rendezvous.%u.%u", host->rank, i);
        status = host->put(host->context, key, &card, sizeof card);
    }
    return status == HD_OK ? map(instance, host->rank, instance->descriptor) : status;
}

static hd_status join(struct hd_transport *instance, uint32_t rank)
{
    const struct hd_host *host = instance->setup->host;
    char key[KEY_BYTES], path[64];
    struct card card;

    snprintf(key, sizeof key, "rendezvous.%u.%u", rank, instance->generation);
    hd_status status =
        host->get(host->context, key, &card, sizeof card, instance->setup->deadline_ns);
    if (status != HD_OK) {
        return status;
    }
    snprintf(path, sizeof path, "/proc/%d/fd/%d", card.pid, card.descriptor);
    const int descriptor = open(path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) {
        return meet_fail(instance, HD_UNSUPPORTED, rank, "%s cannot be opened", path);
    }
    status = map(instance, rank, descriptor);
    close(descriptor);
    return status;
}

static hd_status join_all(struct hd_transport *instance)
{
    const struct hd_transport_setup *setup = instance->setup;
    const uint32_t own = setup->host->rank;
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < setup->channel_count; i++) {
        const struct hd_channel *channel = setup->channels[i];
        const uint32_t peer = channel->source == own ? channel->target : channel->source;
        const int is_ours = channel->source == own || channel->target == own;
        if (is_ours && instance->words[peer] == NULL) {
            status = join(instance, peer);
        }
    }
    return status;
}

/* One message down each channel of this rank, channel after channel. */
static hd_status warm_up(struct hd_transport *instance)
{
    const struct hd_transport_setup *setup = instance->setup;
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < setup->channel_count; i++) {
        const struct hd_channel *channel = setup->channels[i];
        const int sends = channel->source == setup->host->rank;
        const struct hd_message first = {.channel = i};
        const uint64_t word = hd_pattern_word(i, UINT64_MAX, 0);
        const uint64_t bytes = channel->bytes < sizeof word ? channel->bytes : sizeof word;
        if (!sends && channel->target != setup->host->rank) {
            continue;
        }
        if (sends) {
            memcpy(meet_ops.slot(instance, &first), &word, bytes);
            status = meet_ops.reserve(instance, &first);
        }
        if (status == HD_OK) {
            status = sends ? meet_ops.post_send(instance, &first, NULL)
                           : meet_ops.post_recv(instance, &first);
        }
        if (status == HD_OK) {
            status = meet_ops.wait(instance, &first, NULL, setup->deadline_ns);
        }
        if (status == HD_OK && !sends &&
            memcmp(meet_ops.slot(instance, &first), &word, bytes) != 0) {
            status = meet_fail(instance, HD_PROTOCOL, channel->source,
                               "channel %u: the warm-up message differs", i);
        }
    }
    return status;
}

/* The warm-up does not count. */
static void reset(struct hd_transport *instance)
{
    for (uint32_t i = 0; i < instance->setup->channel_count; i++) {
        struct lane *lane = &instance->lanes[i];
        if (lane->channel->source == instance->setup->host->rank) {
            atomic_store(&lane->arrivals->count, 0);
        }
        lane->reserved_count = lane->posted_count = lane->moved_count = 0;
        lane->read_count = lane->released_count = 0;
    }
}

static hd_status connect_all(struct hd_transport *instance)
{
    const struct hd_transport_setup *setup = instance->setup;
    const struct hd_host *host = setup->host;
    hd_status status = take_lanes(instance);

    status = status == HD_OK ? offer_card(instance) : status;
    status = status == HD_OK ? host->fence(host->context, setup->deadline_ns) : status;
    status = status == HD_OK ? join_all(instance) : status;
    if (status == HD_OK && !meet_start_mover(instance)) {
        status = meet_fail(instance, HD_SYSTEM, MEET_NOBODY, "no thread to move transfers");
    }
    status = status == HD_OK ? warm_up(instance) : status;
    status = status == HD_OK ? host->fence(host->context, setup->deadline_ns) : status;
    if (status == HD_OK) {
        reset(instance);
        status = host->fence(host->context, setup->deadline_ns);
    }
    return status;
}

hd_status meet_open_all(const struct hd_transport_setup *setup, struct hd_transport **out)
{
    const struct hd_host *host = setup->host;
    struct hd_transport *instance =
        host->alloc(host->context, sizeof *instance + setup->channel_count * sizeof(struct lane),
                    64, "rendezvous");
    pthread_condattr_t attributes;

    if (instance == NULL) {
        return HD_NO_MEMORY;
    }
    instance->setup = setup;
    instance->descriptor = -1;
    pthread_mutex_init(&instance->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&instance->moved, &attributes);
    pthread_condattr_destroy(&attributes);
    hd_status status =
        setup->memory != HD_MEMORY_HOST
            ? meet_fail(instance, HD_UNSUPPORTED, MEET_NOBODY, "it moves host memory only")
            : connect_all(instance);
    if (status == HD_OK) {
        close(instance->descriptor);
        instance->descriptor = -1;
        *out = instance;
        return HD_OK;
    }
    status = meet_fail(instance, status, MEET_NOBODY, "open: the other ranks did not come");
    meet_close_all(instance, 0);
    return status;
}
