/*
 * cuda_ipc/warm_up.c - one message down every channel's real path, before any that counts.
 *
 * The pattern goes from the host into the send slot, by the channel's own stream into the peer's
 * slot, and is read back behind a stream's wait for the signal: IPC mapping, peer access, both
 * stream operations and their order are proven, or open fails.  Sends never wait for receives, so
 * all ranks may go in channel order.
 */
#include "ipc.h"

/* This rank's part in it. */
struct trial {
    struct hd_transport *instance;
    unsigned char *staging; /* pinned: of the largest message */
    uint64_t deadline_ns;
};

/* HD_IN_PROGRESS until the deadline, or the end of the peer. */
static hd_status cuda_ipc_look_at_peer(const struct trial *trial, const struct ipc_channel *channel)
{
    if (book_has_ended(&channel->peer->book)) {
        return HD_PEER_LOST;
    }
    return book_now_ns(&trial->instance->book) < trial->deadline_ns ? HD_IN_PROGRESS : HD_TIMEOUT;
}

/* The host waits for a stream of this instance. */
static hd_status cuda_ipc_drain(const struct trial *trial, const struct ipc_channel *channel,
                                cudaStream_t stream)
{
    uint64_t pause_ns = 0;
    cudaError_t error = trial->instance->cuda.cudaStreamQuery(stream);

    while (error == cudaErrorNotReady) {
        const hd_status status = cuda_ipc_look_at_peer(trial, channel);
        if (status != HD_IN_PROGRESS) {
            return book_report_warm_up(&trial->instance->book, &channel->book, status);
        }
        ipc_nap(&pause_ns);
        error = trial->instance->cuda.cudaStreamQuery(stream);
    }
    return ipc_runtime(trial->instance, channel, "a stream of the warm-up", error);
}

static hd_status cuda_ipc_send(const struct trial *trial, struct ipc_channel *channel)
{
    struct hd_transport *instance = trial->instance;
    const uint64_t send_slot = BOOK_WARM_UP % channel->book.shape->send_depth;

    book_fill_pattern(&channel->book, trial->staging);
    hd_status status =
        ipc_runtime(instance, channel, "cudaMemcpyAsync",
                    instance->cuda.cudaMemcpyAsync(
                        channel->own_slots + send_slot * channel->stride_bytes, trial->staging,
                        channel->book.shape->bytes, cudaMemcpyHostToDevice, channel->stream));
    if (status == HD_OK) {
        status = ipc_copy(instance, channel, BOOK_WARM_UP, 1);
    }
    /* The staging is the next channel's. */
    return status == HD_OK ? cuda_ipc_drain(trial, channel, channel->stream) : status;
}

/* As a consumer does it: a stream waits for the signal, reads, and gives the credit. */
static hd_status cuda_ipc_receive(const struct trial *trial, struct ipc_channel *channel)
{
    struct hd_transport *instance = trial->instance;
    const struct cuda_library *cuda = &instance->cuda;
    cudaStream_t stream = instance->streams[instance->stream_count];
    const uint64_t receive_slot = BOOK_WARM_UP % channel->book.shape->depth;

    hd_status status =
        ipc_driver(instance, channel, "cuStreamWaitValue64",
                   cuda->cuStreamWaitValue64(
                       stream, ipc_gpu_word(channel, offsetof(struct ipc_words, arrived)), 1,
                       CU_STREAM_WAIT_VALUE_GEQ));
    if (status == HD_OK) {
        status = ipc_runtime(
            instance, channel, "cudaMemcpyAsync",
            cuda->cudaMemcpyAsync(trial->staging,
                                  channel->own_slots + receive_slot * channel->stride_bytes,
                                  channel->book.shape->bytes, cudaMemcpyDeviceToHost, stream));
    }
    if (status == HD_OK) {
        status = ipc_driver(instance, channel, "cuStreamWriteValue64",
                            cuda->cuStreamWriteValue64(
                                stream, ipc_gpu_word(channel, offsetof(struct ipc_words, credit)),
                                1, CU_STREAM_WRITE_VALUE_DEFAULT));
    }
    if (status == HD_OK) {
        status = cuda_ipc_drain(trial, channel, stream);
    }
    return status == HD_OK ? book_check_pattern(&instance->book, &channel->book, trial->staging)
                           : status;
}

static hd_status cuda_ipc_await_credit(const struct trial *trial, struct ipc_channel *channel)
{
    hd_status status = HD_IN_PROGRESS;
    uint64_t pause_ns = 0;

    while (status == HD_IN_PROGRESS && ipc_news(channel) < 1) {
        ipc_nap(&pause_ns);
        status = cuda_ipc_look_at_peer(trial, channel);
    }
    if (ipc_news(channel) >= 1) { /* it may have come before its end */
        return HD_OK;
    }
    return book_report_warm_up(&trial->instance->book, &channel->book, status);
}

/* One part of it, on every channel that has this rank at that end. */
static hd_status cuda_ipc_on_all(const struct trial *trial, int is_source,
                                 hd_status (*part)(const struct trial *trial,
                                                   struct ipc_channel *channel))
{
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < trial->instance->book.own_count; i++) {
        struct ipc_channel *channel = &trial->instance->channels[i];
        if (channel->words != NULL && channel->book.is_source == is_source) {
            status = part(trial, channel);
        }
    }
    return status;
}

static uint64_t cuda_ipc_largest_message(const struct hd_transport *instance)
{
    uint64_t bytes = 8;

    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        const uint64_t own = instance->channels[i].book.shape->bytes;
        bytes = own > bytes ? own : bytes;
    }
    return bytes;
}

hd_status ipc_warm_up(struct hd_transport *instance, uint64_t deadline_ns)
{
    void *staging = NULL;
    hd_status status =
        ipc_runtime(instance, NULL, "cudaHostAlloc",
                    instance->cuda.cudaHostAlloc(&staging, cuda_ipc_largest_message(instance),
                                                 cudaHostAllocDefault));
    const struct trial trial = {instance, staging, deadline_ns};

    if (status == HD_OK) {
        status = cuda_ipc_on_all(&trial, 1, cuda_ipc_send);
    }
    if (status == HD_OK) {
        status = cuda_ipc_on_all(&trial, 0, cuda_ipc_receive);
    }
    if (status == HD_OK) {
        status = cuda_ipc_on_all(&trial, 1, cuda_ipc_await_credit);
    }
    if (status == HD_OK) { /* after a failure a stream may be at it still: it is left */
        status = ipc_runtime(instance, NULL, "cudaFreeHost", instance->cuda.cudaFreeHost(staging));
    }
    return status;
}
