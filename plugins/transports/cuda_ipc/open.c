/*
 * cuda_ipc/open.c - from channels to memory that is lent, mapped and tested; book_open calls these
 * steps.
 *
 *   make      find CUDA, choose the GPU, allocate words, arena and send slots, create streams
 *   connect   open pidfds of the peers, map their words and arenas
 *   warm up   send all, then receive, verify and release all, then wait for all credits
 *   reset     each writer sets its words back to 0
 */
#include "ipc.h"

#include <stdio.h>

/* Reports an error of CUDA where it was noticed; earlier enqueued work may have caused it. */
static hd_status cuda_ipc_fail_device(struct hd_transport *instance,
                                      const struct ipc_channel *channel, const char *text)
{
    const struct book_fault fault =
        book_channel_fault(HD_DEVICE, channel != NULL ? channel->book.number : BOOK_NONE);

    if (channel == NULL) {
        return book_fail(&instance->book, fault, "GPU %d: %s", instance->device, text);
    }
    return book_fail(&instance->book, fault, "channel %u on GPU %d: %s", fault.channel,
                     instance->device, text);
}

hd_status ipc_runtime(struct hd_transport *instance, const struct ipc_channel *channel,
                      const char *call, cudaError_t error)
{
    char text[CUDA_REASON_BYTES];

    if (error == cudaSuccess) {
        return HD_OK;
    }
    return cuda_ipc_fail_device(instance, channel,
                                cuda_explain(&instance->cuda, call, error, text));
}

hd_status ipc_driver(struct hd_transport *instance, const struct ipc_channel *channel,
                     const char *call, CUresult error)
{
    char text[CUDA_REASON_BYTES];

    if (error == CUDA_SUCCESS) {
        return HD_OK;
    }
    return cuda_ipc_fail_device(instance, channel,
                                cuda_explain_driver(&instance->cuda, call, error, text));
}

/* --- make -------------------------------------------------------------------------------- */

static hd_status cuda_ipc_refuse(struct hd_transport *instance, const char *reason)
{
    return book_fail(&instance->book, book_own_fault(HD_UNSUPPORTED), "%s", reason);
}

static hd_status cuda_ipc_find_cuda(struct hd_transport *instance)
{
    const char *path = book_text_option(&instance->book, 0, "libcudart.so.13");

    return cuda_load(&instance->cuda, path) == HD_OK
               ? HD_OK
               : cuda_ipc_refuse(instance, instance->cuda.reason);
}

/* If a host has more ranks than GPUs, the ranks take the GPUs in rotation. */
static hd_status cuda_ipc_take_device(struct hd_transport *instance, uint32_t ordinal)
{
    const struct cuda_library *cuda = &instance->cuda;
    const enum cudaDeviceAttr has_operations =
        (enum cudaDeviceAttr)CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
    int can = 0;

    instance->device = (int)(ordinal % (uint32_t)cuda->device_count);
    BOOK_TRY(IPC_RUNTIME(instance, NULL, cudaSetDevice, instance->device));
    BOOK_TRY(IPC_RUNTIME(instance, NULL, cudaDeviceGetAttribute, &can, has_operations,
                         instance->device));
    if (!can) {
        return book_fail(&instance->book, book_own_fault(HD_UNSUPPORTED),
                         "GPU %d has no 64-bit stream memory operations "
                         "(CAN_USE_64_BIT_STREAM_MEM_OPS), which cuda_ipc needs for its signals",
                         instance->device);
    }
    book_log(&instance->book, "GPU %d of %d; CUDA runtime %s", instance->device, cuda->device_count,
             cuda->path);
    return HD_OK;
}

static hd_status cuda_ipc_make_own(struct hd_transport *instance,
                                   const struct hd_transport_setup *setup)
{
    if (setup->memory != HD_MEMORY_CUDA) {
        return cuda_ipc_refuse(instance,
                               "cuda_ipc carries device memory only: choose another transport, "
                               "such as shm, for kernels in host memory");
    }
    BOOK_TRY(book_check(&instance->book));
    BOOK_TRY(cuda_ipc_find_cuda(instance));
    BOOK_TRY(cuda_ipc_take_device(instance, setup->device));
    BOOK_TRY(ipc_arena_measure(instance));
    BOOK_TRY(ipc_arena_make(instance));
    return ipc_streams_make(instance);
}

static hd_status cuda_ipc_fill_card(struct hd_transport *instance, struct ipc_card *card)
{
    const struct ipc_peer *self = &instance->peers[instance->book.host->rank];

    card->nonce = instance->nonce;
    card->shift_bytes = instance->shift_bytes;
    card->arena = (uintptr_t)self->arena;
    card->words = (uintptr_t)self->words;
    card->descriptor = instance->descriptor;
    BOOK_TRY(IPC_RUNTIME(instance, NULL, cudaDeviceGetPCIBusId, card->bus_id, sizeof card->bus_id,
                         instance->device));
    if (instance->arena == NULL) {
        return HD_OK;
    }
    return IPC_RUNTIME(instance, NULL, cudaIpcGetMemHandle, &card->handle, instance->arena);
}

static hd_status cuda_ipc_make(struct hd_transport *instance,
                               const struct hd_transport_setup *setup, void *card)
{
    hd_status status = cuda_ipc_make_own(instance, setup);

    if (status == HD_OK) {
        status = cuda_ipc_fill_card(instance, card);
    }
    instance->is_at_rest = status != HD_OK; /* after a failure no peer maps this rank's memory */
    return status;
}

/* --- connect ----------------------------------------------------------------------------- */

static void cuda_ipc_place_channel(struct hd_transport *instance, struct ipc_channel *channel)
{
    struct ipc_peer *self = &instance->peers[instance->book.host->rank];
    struct ipc_peer *target = &instance->peers[channel->book.shape->target];
    const uint64_t offset_bytes =
        4096 + channel->book.number * sizeof(struct ipc_words); /* after the page of the nonce */

    channel->words = (struct ipc_words *)(void *)(target->words + offset_bytes);
    channel->words_gpu = (CUdeviceptr)(uintptr_t)(target->words_gpu + offset_bytes);
    if (channel->book.is_source) {
        channel->peer_slots = target->arena + channel->offset_bytes;
    } else {
        channel->own_slots = self->arena + channel->offset_bytes;
    }
}

/* "cuda_ipc/dev0", or "cuda_ipc/dev0-dev1" between two GPUs. */
static void cuda_ipc_name_channel(const struct hd_transport *instance, struct ipc_channel *channel)
{
    const int source = channel->book.is_source ? instance->device : channel->peer->device;
    const int target = channel->book.is_source ? channel->peer->device : instance->device;
    const size_t bytes = sizeof channel->book.carrier;

    if (source == target) {
        snprintf(channel->book.carrier, bytes, "cuda_ipc/dev%d", source);
    } else {
        snprintf(channel->book.carrier, bytes, "cuda_ipc/dev%d-dev%d", source, target);
    }
}

static hd_status cuda_ipc_connect_channel(struct hd_transport *instance,
                                          struct ipc_channel *channel, const struct ipc_card *cards)
{
    struct ipc_peer *peer = &instance->peers[channel->book.peer_rank];
    const struct ipc_card *card = &cards[channel->book.peer_rank];

    channel->peer = peer;
    if (peer->book.pidfd < 0) {
        BOOK_TRY(ipc_arena_reach(instance, peer, card));
        BOOK_TRY(book_hold_peer(&instance->book, &peer->book,
                                &cards[instance->book.host->rank].head, &card->head));
    }
    if (channel->book.is_source && peer->words == NULL) {
        BOOK_TRY(ipc_arena_open(instance, peer, card));
    }
    cuda_ipc_place_channel(instance, channel);
    cuda_ipc_name_channel(instance, channel);
    return HD_OK;
}

static hd_status cuda_ipc_connect_all(struct hd_transport *instance, const void *cards,
                                      uint64_t deadline_ns)
{
    (void)deadline_ns;
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        BOOK_TRY(cuda_ipc_connect_channel(instance, &instance->channels[i], cards));
    }
    return HD_OK;
}

static void cuda_ipc_reset_words(struct hd_transport *instance)
{
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ipc_channel *channel = &instance->channels[i];
        atomic_store(channel->book.is_source ? &channel->words->arrived : &channel->words->credit,
                     0);
    }
}

/* --- open -------------------------------------------------------------------------------- */

/* A stream of the warm-up may be waiting: poison releases it. */
static void cuda_ipc_close_failed(struct hd_transport *instance, uint64_t deadline_ns)
{
    ipc_poison(instance);
    ipc_close_all(instance, deadline_ns);
}

hd_status ipc_open_all(const struct hd_transport_setup *setup, struct hd_transport **out)
{
    static const struct book_sizes sizes = {.instance_bytes = sizeof(struct hd_transport),
                                            .channel_bytes = sizeof(struct ipc_channel),
                                            .peer_bytes = sizeof(struct ipc_peer)};
    static const struct book_steps steps = {.magic = IPC_MAGIC,
                                            .card_bytes = sizeof(struct ipc_card),
                                            .make = cuda_ipc_make,
                                            .connect = cuda_ipc_connect_all,
                                            .warm_up = ipc_warm_up,
                                            .reset = cuda_ipc_reset_words,
                                            .close = cuda_ipc_close_failed};
    struct hd_transport *instance = book_create(setup, "cuda_ipc", &sizes);

    if (instance == NULL) {
        return HD_NO_MEMORY;
    }
    instance->channels = instance->book.own_channels;
    instance->peers = instance->book.peers;
    instance->descriptor = -1;
    return book_open(instance, setup, &steps, out);
}
