/*
 * nccl_link/open.c - from channels to connected and tested communicators; book_open calls these
 * steps.
 *
 *   every rank     libraries, device; one card, and the id of each channel of which it is
 *                  the source                                            fence
 *                  for each of its channels, in order: communicator, slots, one message of
 *                  the pattern with its credit                           fence
 *                  counts back to 0                                      fence
 *
 * All ranks use one order of channels and finish each before the next, so no two pairs wait for
 * each other, even if NCCL connects lazily.  The warm-up is message 0 of each channel, sent by the
 * usual calls of the mode; then every count is reset to 0.
 */
#include "nccl_link.h"

#include <stdio.h>
#include <string.h>

/* --- ids --------------------------------------------------------------------------------- */

static hd_status nccl_link_put_ids(struct hd_transport *instance)
{
    const struct hd_host *host = instance->book.host;
    ncclUniqueId id;
    char key[BOOK_KEY_BYTES];

    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        const struct nccl_channel *channel = &instance->channels[i];
        if (channel->book.is_source) {
            BOOK_TRY(NCCL_BEGUN(instance, channel, ncclGetUniqueId, &id));
            book_key(&instance->book, "channel", channel->book.number, key);
            BOOK_TRY(host->put(host->context, key, &id, sizeof id));
        }
    }
    return HD_OK;
}

/* --- one channel ---------------------------------------------------------------------------- */

static hd_status nccl_link_make_stream(struct hd_transport *instance,
                                       const struct nccl_channel *channel, cudaStream_t *stream)
{
    return NCCL_CUDA(instance, channel, cudaStreamCreateWithPriority, stream, cudaStreamNonBlocking,
                     0);
}

static hd_status nccl_link_make_event(struct hd_transport *instance,
                                      const struct nccl_channel *channel, cudaEvent_t *event,
                                      unsigned flags)
{
    return NCCL_CUDA(instance, channel, cudaEventCreateWithFlags, event, flags);
}

static hd_status nccl_link_make_events(struct hd_transport *instance, struct nccl_channel *channel)
{
    const struct hd_host *host = instance->book.host;
    const uint32_t count = channel->book.slot_count;

    channel->moved =
        host->alloc(host->context, 2 * count * sizeof(cudaEvent_t), 64, instance->book.name);
    channel->is_freed = host->alloc(host->context, count * sizeof(bool), 64, instance->book.name);
    if (channel->moved == NULL || channel->is_freed == NULL) {
        return book_fail(&instance->book, book_channel_fault(HD_NO_MEMORY, channel->book.number),
                         "cannot allocate the events of channel %u", channel->book.number);
    }
    channel->freed = channel->moved + count;
    for (uint32_t i = 0; i < 2 * count; i++) {
        BOOK_TRY(nccl_link_make_event(instance, channel, &channel->moved[i],
                                      i < count ? cudaEventDefault : cudaEventDisableTiming));
    }
    return nccl_link_make_event(instance, channel, &channel->ready, cudaEventDisableTiming);
}

/* A kernel of one or two blocks cannot be a cluster of four, NCCL's default on newer GPUs. */
static ncclConfig_t nccl_link_configure(const struct hd_transport *instance)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 0;
    config.minCTAs = 1;
    config.maxCTAs = (int)instance->max_ctas;
    if (instance->max_ctas < 4) {
        config.cgaClusterSize = 1;
    }
    return config;
}

static hd_status nccl_link_connect_channel(struct hd_transport *instance,
                                           struct nccl_channel *channel, uint64_t deadline_ns)
{
    const struct hd_host *host = instance->book.host;
    ncclConfig_t config = nccl_link_configure(instance);
    ncclUniqueId id;
    char key[BOOK_KEY_BYTES];

    book_key(&instance->book, "channel", channel->book.number, key);
    BOOK_TRY(host->get(host->context, key, &id, sizeof id, deadline_ns));
    instance->may_be_written = true; /* until quiesce decides */
    const ncclResult_t result = instance->nccl.ncclCommInitRankConfig(
        &channel->comm, 2, id, channel->book.is_source ? NCCL_SOURCE : NCCL_TARGET, &config);
    return nccl_settle(instance, channel, result, "connecting", deadline_ns);
}

/* --- warm-up ----------------------------------------------------------------------------- */

static hd_status nccl_link_copy_slot(struct hd_transport *instance, struct nccl_channel *channel,
                                     bool is_down)
{
    void *target = is_down ? (void *)channel->slots : (void *)instance->staging;
    const void *source = is_down ? (const void *)instance->staging : (const void *)channel->slots;

    return NCCL_CUDA(instance, channel, cudaMemcpyAsync, target, source, channel->book.shape->bytes,
                     cudaMemcpyDefault, channel->stream);
}

/* Waits until everything on the channel's stream has ended. */
static hd_status nccl_link_drain(struct hd_transport *instance, struct nccl_channel *channel,
                                 uint64_t deadline_ns)
{
    BOOK_TRY(NCCL_CUDA(instance, channel, cudaEventRecord, channel->ready, channel->stream));
    return book_report_warm_up(&instance->book, &channel->book,
                               nccl_await_event(instance, channel, channel->ready, deadline_ns));
}

static hd_status nccl_link_warm_source(struct hd_transport *instance, struct nccl_channel *channel,
                                       uint64_t deadline_ns)
{
    const struct hd_message first = {.sequence = 0, .channel = channel->book.number};

    book_fill_pattern(&channel->book, instance->staging);
    BOOK_TRY(nccl_link_copy_slot(instance, channel, true));
    BOOK_TRY(nccl_launch(instance, channel, &first, instance->mode->send));
    channel->book.posted_count = 1;
    if (instance->mode->await_credit != NULL) {
        BOOK_TRY(instance->mode->await_credit(instance, channel));
    }
    return nccl_link_drain(instance, channel, deadline_ns);
}

static hd_status nccl_link_warm_target(struct hd_transport *instance, struct nccl_channel *channel,
                                       uint64_t deadline_ns)
{
    const struct nccl_mode *mode = instance->mode;
    const struct hd_message first = {.sequence = 0, .channel = channel->book.number};

    BOOK_TRY(nccl_launch(instance, channel, &first, mode->receive));
    channel->book.posted_count = 1;
    if (mode->await != NULL) {
        BOOK_TRY(mode->await(instance, channel, 0, NULL));
    }
    BOOK_TRY(
        book_report_warm_up(&instance->book, &channel->book,
                            nccl_await_event(instance, channel, channel->moved[0], deadline_ns)));
    BOOK_TRY(nccl_link_copy_slot(instance, channel, false));
    BOOK_TRY(nccl_link_drain(instance, channel, deadline_ns));
    BOOK_TRY(book_check_pattern(&instance->book, &channel->book, instance->staging));
    channel->is_freed[0] = false;
    if (mode->release != NULL) {
        BOOK_TRY(mode->release(instance, channel, 0));
    }
    return nccl_link_drain(instance, channel, deadline_ns);
}

static void nccl_link_reset(struct hd_transport *instance)
{
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct nccl_channel *channel = &instance->channels[i];
        channel->book.posted_count = 0;
        channel->done_count = 0;
        channel->awaited_count = 0;
        channel->book.released_count = 0;
    }
}

/* --- all channels ------------------------------------------------------------------------ */

static hd_status nccl_link_open_channel(struct hd_transport *instance, struct nccl_channel *channel,
                                        uint64_t deadline_ns)
{
    BOOK_TRY(nccl_link_make_stream(instance, channel, &channel->stream));
    if (instance->mode->is_one_sided && !channel->book.is_source) {
        BOOK_TRY(nccl_link_make_stream(instance, channel, &channel->arrivals));
    }
    BOOK_TRY(nccl_link_make_events(instance, channel));
    BOOK_TRY(nccl_link_connect_channel(instance, channel, deadline_ns));
    BOOK_TRY(instance->mode->prepare(instance, channel));
    return channel->book.is_source ? nccl_link_warm_source(instance, channel, deadline_ns)
                                   : nccl_link_warm_target(instance, channel, deadline_ns);
}

static hd_status nccl_link_open_channels(struct hd_transport *instance, uint64_t deadline_ns)
{
    BOOK_TRY(NCCL_CUDA(instance, NULL, cudaHostAlloc, (void **)&instance->staging,
                       book_largest_bytes(&instance->book), cudaHostAllocDefault));
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        BOOK_TRY(nccl_link_open_channel(instance, &instance->channels[i], deadline_ns));
    }
    if (instance->book.own_count == 0) {
        return HD_OK;
    }
    BOOK_TRY(nccl_link_make_event(instance, NULL, &instance->base, cudaEventDefault));
    BOOK_TRY(
        NCCL_CUDA(instance, NULL, cudaEventRecord, instance->base, instance->channels[0].stream));
    const hd_status status = nccl_await_event(instance, NULL, instance->base, deadline_ns);
    instance->base_ns = book_now_ns(&instance->book);
    return status;
}

static void nccl_link_place_channel(const struct hd_transport *instance,
                                    struct nccl_channel *channel)
{
    char version[16];

    channel->stride_bytes =
        book_round_up(channel->book.shape->bytes, instance->book.alignment_bytes);
    if (instance->mode->is_one_sided) {
        channel->book.slot_count =
            channel->book.shape->depth; /* both ends of a symmetric window have one size */
    }
    snprintf(channel->book.carrier, sizeof channel->book.carrier, "%s/gpu%u/nccl-%s",
             instance->book.name, instance->device,
             nccl_version_text(instance->nccl.version, version));
}

static hd_status nccl_link_make(struct hd_transport *instance,
                                const struct hd_transport_setup *setup, void *card)
{
    BOOK_TRY(nccl_check(instance, setup, card));
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        nccl_link_place_channel(instance, &instance->channels[i]);
    }
    return nccl_start_helper(instance);
}

static hd_status nccl_link_connect_all(struct hd_transport *instance, const void *cards,
                                       uint64_t deadline_ns)
{
    for (uint32_t rank = 0; rank < instance->book.host->rank_count; rank++) {
        BOOK_TRY(nccl_meet(instance, cards, rank));
    }
    return nccl_link_open_channels(instance, deadline_ns);
}

hd_status nccl_open(const struct hd_transport_setup *setup, const struct nccl_mode *mode,
                    struct hd_transport **out)
{
    static const struct book_sizes sizes = {.instance_bytes = sizeof(struct hd_transport),
                                            .channel_bytes = sizeof(struct nccl_channel)};
    static const struct book_steps steps = {.magic = NCCL_MAGIC,
                                            .card_bytes = sizeof(struct nccl_card),
                                            .make = nccl_link_make,
                                            .publish = nccl_link_put_ids,
                                            .connect = nccl_link_connect_all,
                                            .reset = nccl_link_reset,
                                            .close = nccl_close};
    struct hd_transport *instance = book_create(setup, mode->name, &sizes);

    if (instance == NULL) {
        return HD_NO_MEMORY;
    }
    instance->mode = mode;
    instance->channels = instance->book.own_channels;
    instance->max_ctas = (uint32_t)book_option(&instance->book, NCCL_OPTION_CTAS, 1);
    pthread_mutex_init(&instance->lock, NULL);
    sem_init(&instance->wake, 0, 0);
    return book_open(instance, setup, &steps, out);
}
