/*
 * nccl_link/open.c - from channels to connected, proven channels.
 *
 *   every rank     libraries, device; one card, and the id of each channel that it is
 *                  the source of                                         fence
 *                  for each channel of its own, in order: communicator, slots, one
 *                  message of the pattern with its credit                fence
 *                  counts back to 0                                      fence
 *
 * The order of the channels is the same on all ranks, and each is finished before the next, so no
 * two pairs can wait for each other however lazily NCCL connects.  The warm-up is message 0 of each
 * channel, by the same calls of the mode; then every count goes back to 0.
 */
#include "nccl_link.h"

#include <stdio.h>
#include <string.h>

/* --- ids --------------------------------------------------------------------------------- */

static hd_status nccl_link_put_ids(struct hd_transport *instance)
{
    const struct hd_host *host = instance->book.host;
    hd_status status = HD_OK;
    ncclUniqueId id;
    char key[BOOK_KEY_BYTES];

    for (uint32_t i = 0; status == HD_OK && i < instance->book.own_count; i++) {
        const struct nccl_channel *channel = &instance->channels[i];
        if (channel->book.is_source) {
            status = nccl_begun(instance, channel, instance->nccl.ncclGetUniqueId(&id),
                                "ncclGetUniqueId");
            if (status == HD_OK) {
                book_key(&instance->book, "channel", channel->book.number, key);
                status = host->put(host->context, key, &id, sizeof id);
            }
        }
    }
    return status;
}

/* --- one channel ---------------------------------------------------------------------------- */

static hd_status nccl_link_make_stream(struct hd_transport *instance,
                                       const struct nccl_channel *channel, cudaStream_t *stream)
{
    return nccl_cuda(instance, channel,
                     instance->cuda.cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, 0),
                     "cudaStreamCreateWithPriority");
}

static hd_status nccl_link_make_events(struct hd_transport *instance, struct nccl_channel *channel)
{
    const struct hd_host *host = instance->book.host;
    const uint32_t count = channel->book.slot_count;
    hd_status status = HD_OK;

    channel->moved =
        host->alloc(host->context, 2 * count * sizeof(cudaEvent_t), 64, instance->book.name);
    channel->is_freed = host->alloc(host->context, count, 64, instance->book.name);
    if (channel->moved == NULL || channel->is_freed == NULL) {
        const struct book_fault fault = {HD_NO_MEMORY, BOOK_NONE, channel->book.number, 0};
        return book_fail(&instance->book, &fault, "no memory for the events of channel %u",
                         channel->book.number);
    }
    channel->freed = channel->moved + count;
    for (uint32_t i = 0; status == HD_OK && i < 2 * count; i++) {
        const unsigned flags = i < count ? cudaEventDefault : cudaEventDisableTiming;
        status = nccl_cuda(instance, channel,
                           instance->cuda.cudaEventCreateWithFlags(&channel->moved[i], flags),
                           "cudaEventCreateWithFlags");
    }
    if (status == HD_OK) {
        status = nccl_cuda(
            instance, channel,
            instance->cuda.cudaEventCreateWithFlags(&channel->ready, cudaEventDisableTiming),
            "cudaEventCreateWithFlags");
    }
    return status;
}

/* A kernel of one or two blocks cannot be a cluster of four, NCCL's own default on newer GPUs. */
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
    hd_status status = host->get(host->context, key, &id, sizeof id, deadline_ns);
    if (status != HD_OK) {
        return status;
    }
    instance->may_be_written = 1; /* until quiesce knows better */
    const ncclResult_t result = instance->nccl.ncclCommInitRankConfig(
        &channel->comm, 2, id, channel->book.is_source ? NCCL_SOURCE : NCCL_TARGET, &config);
    return nccl_settle(instance, channel, result, "connecting", deadline_ns);
}

/* --- warm-up ----------------------------------------------------------------------------- */

static hd_status nccl_link_copy_slot(struct hd_transport *instance, struct nccl_channel *channel,
                                     int is_down)
{
    void *target = is_down ? (void *)channel->slots : (void *)instance->staging;
    const void *source = is_down ? (const void *)instance->staging : (const void *)channel->slots;

    return nccl_cuda(instance, channel,
                     instance->cuda.cudaMemcpyAsync(target, source, channel->book.shape->bytes,
                                                    cudaMemcpyDefault, channel->stream),
                     "cudaMemcpyAsync");
}

/* Until everything on the channel's own stream is over. */
static hd_status nccl_link_drain(struct hd_transport *instance, struct nccl_channel *channel,
                                 uint64_t deadline_ns)
{
    hd_status status = nccl_cuda(instance, channel,
                                 instance->cuda.cudaEventRecord(channel->ready, channel->stream),
                                 "cudaEventRecord");

    if (status == HD_OK) {
        status = nccl_await_event(instance, channel, channel->ready, deadline_ns);
    }
    return book_report_warm_up(&instance->book, &channel->book, status);
}

static hd_status nccl_link_warm_source(struct hd_transport *instance, struct nccl_channel *channel,
                                       uint64_t deadline_ns)
{
    const struct hd_message first = {.sequence = 0, .channel = channel->book.number};

    book_fill_pattern(&channel->book, instance->staging);
    hd_status status = nccl_link_copy_slot(instance, channel, 1);
    if (status == HD_OK) {
        status = nccl_launch(instance, channel, &first, instance->mode->send);
        channel->book.posted_count = 1;
    }
    if (status == HD_OK) {
        status = instance->mode->await_credit(instance, channel);
    }
    return status == HD_OK ? nccl_link_drain(instance, channel, deadline_ns) : status;
}

static hd_status nccl_link_warm_target(struct hd_transport *instance, struct nccl_channel *channel,
                                       uint64_t deadline_ns)
{
    const struct hd_message first = {.sequence = 0, .channel = channel->book.number};
    hd_status status = nccl_launch(instance, channel, &first, instance->mode->receive);

    channel->book.posted_count = 1;
    if (status == HD_OK) {
        status = instance->mode->await(instance, channel, 0, NULL);
    }
    if (status == HD_OK) {
        status = nccl_await_event(instance, channel, channel->moved[0], deadline_ns);
        status = book_report_warm_up(&instance->book, &channel->book, status);
    }
    if (status == HD_OK) {
        status = nccl_link_copy_slot(instance, channel, 0);
    }
    if (status == HD_OK) {
        status = nccl_link_drain(instance, channel, deadline_ns);
    }
    if (status == HD_OK) {
        status = book_check_pattern(&instance->book, &channel->book, instance->staging);
    }
    channel->is_freed[0] = 0;
    if (status == HD_OK) {
        status = instance->mode->release(instance, channel, 0);
    }
    return status == HD_OK ? nccl_link_drain(instance, channel, deadline_ns) : status;
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

/* --- all of it --------------------------------------------------------------------------- */

static hd_status nccl_link_open_channel(struct hd_transport *instance, struct nccl_channel *channel,
                                        uint64_t deadline_ns)
{
    hd_status status = nccl_link_make_stream(instance, channel, &channel->stream);

    if (status == HD_OK && instance->mode->is_one_sided && !channel->book.is_source) {
        status = nccl_link_make_stream(instance, channel, &channel->arrivals);
    }
    if (status == HD_OK) {
        status = nccl_link_make_events(instance, channel);
    }
    if (status == HD_OK) {
        status = nccl_link_connect_channel(instance, channel, deadline_ns);
    }
    if (status == HD_OK) {
        status = instance->mode->prepare(instance, channel);
    }
    if (status == HD_OK) {
        status = channel->book.is_source ? nccl_link_warm_source(instance, channel, deadline_ns)
                                         : nccl_link_warm_target(instance, channel, deadline_ns);
    }
    return status;
}

static hd_status open_channels(struct hd_transport *instance, uint64_t deadline_ns)
{
    uint64_t bytes_max = 8;
    hd_status status = HD_OK;

    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        const uint64_t bytes = instance->channels[i].book.shape->bytes;
        bytes_max = bytes > bytes_max ? bytes : bytes_max;
    }
    status = nccl_cuda(
        instance, NULL,
        instance->cuda.cudaHostAlloc((void **)&instance->staging, bytes_max, cudaHostAllocDefault),
        "cudaHostAlloc");
    for (uint32_t i = 0; status == HD_OK && i < instance->book.own_count; i++) {
        status = nccl_link_open_channel(instance, &instance->channels[i], deadline_ns);
    }
    if (status != HD_OK || instance->book.own_count == 0) {
        return status;
    }
    status = nccl_cuda(instance, NULL,
                       instance->cuda.cudaEventCreateWithFlags(&instance->base, cudaEventDefault),
                       "cudaEventCreateWithFlags");
    if (status == HD_OK) {
        status =
            nccl_cuda(instance, NULL,
                      instance->cuda.cudaEventRecord(instance->base, instance->channels[0].stream),
                      "cudaEventRecord");
    }
    if (status == HD_OK) {
        status = nccl_await_event(instance, NULL, instance->base, deadline_ns);
        instance->base_ns = book_now_ns(&instance->book);
    }
    return status;
}

static void nccl_link_place_channel(const struct hd_transport *instance,
                                    struct nccl_channel *channel)
{
    const uint64_t align = instance->book.alignment_bytes;
    char version[16];

    channel->stride_bytes = (channel->book.shape->bytes + align - 1) / align * align;
    if (instance->mode->is_one_sided) {
        channel->book.slot_count = channel->book.shape->depth; /* of one symmetric window */
    }
    snprintf(channel->book.carrier, sizeof channel->book.carrier, "%s/gpu%u/nccl-%s",
             instance->book.name, instance->device,
             nccl_version_text(instance->nccl.version, version));
}

static hd_status nccl_link_make(struct hd_transport *instance,
                                const struct hd_transport_setup *setup, void *card)
{
    const hd_status status = nccl_check(instance, setup, card);

    for (uint32_t i = 0; status == HD_OK && i < instance->book.own_count; i++) {
        nccl_link_place_channel(instance, &instance->channels[i]);
    }
    return status == HD_OK ? nccl_start_helper(instance) : status;
}

static hd_status nccl_link_connect_all(struct hd_transport *instance, const void *cards,
                                       uint64_t deadline_ns)
{
    hd_status status = HD_OK;

    for (uint32_t rank = 0; status == HD_OK && rank < instance->book.host->rank_count; rank++) {
        status = nccl_meet(instance, cards, rank);
    }
    return status == HD_OK ? open_channels(instance, deadline_ns) : status;
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
    const struct hd_host *host = setup->host;
    struct hd_transport *instance = book_create(setup, mode->name, &sizes);

    if (instance == NULL) {
        return HD_NO_MEMORY;
    }
    instance->mode = mode;
    instance->channels = instance->book.own_channels;
    instance->max_ctas = host->option_count > NCCL_OPTION_CTAS
                             ? (uint32_t)host->options[NCCL_OPTION_CTAS].integer
                             : 1;
    pthread_mutex_init(&instance->lock, NULL);
    sem_init(&instance->wake, 0, 0);
    return book_open(instance, setup, &steps, out);
}
