/*
 * cuda_ipc/warm_up.c - sends one message through the real path of every channel.
 *
 * The pattern goes from the host into the send slot, through the channel's own stream into the
 * peer's slot, and is read back behind a stream's wait for the signal.  This tests the IPC mapping,
 * peer access, both stream operations and their order; if one fails, open fails.  Sends never wait
 * for receives, so all ranks can go in channel order.
 */
#include "ipc.h"

/* The warm-up of this rank. */
struct trial {
    struct hd_transport *instance;
    unsigned char *staging; /* pinned; as large as the largest message */
    uint64_t deadline_ns;
};

/* HD_IN_PROGRESS until the deadline passes or the peer ends. */
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
    BOOK_TRY(IPC_RUNTIME(instance, channel, cudaMemcpyAsync,
                         channel->own_slots + send_slot * channel->stride_bytes, trial->staging,
                         channel->book.shape->bytes, cudaMemcpyHostToDevice, channel->stream));
    BOOK_TRY(ipc_copy(instance, channel, BOOK_WARM_UP, 1));
    return cuda_ipc_drain(trial, channel, channel->stream); /* the next channel needs the staging */
}

/* Does what a consumer does: a stream waits for the signal, reads, and gives the credit. */
static hd_status cuda_ipc_receive(const struct trial *trial, struct ipc_channel *channel)
{
    struct hd_transport *instance = trial->instance;
    cudaStream_t stream = instance->streams[instance->stream_count];
    const uint64_t receive_slot = BOOK_WARM_UP % channel->book.shape->depth;

    BOOK_TRY(IPC_DRIVER(instance, channel, cuStreamWaitValue64, stream,
                        ipc_gpu_word(channel, offsetof(struct ipc_words, arrived)), 1,
                        CU_STREAM_WAIT_VALUE_GEQ));
    BOOK_TRY(IPC_RUNTIME(instance, channel, cudaMemcpyAsync, trial->staging,
                         channel->own_slots + receive_slot * channel->stride_bytes,
                         channel->book.shape->bytes, cudaMemcpyDeviceToHost, stream));
    BOOK_TRY(IPC_DRIVER(instance, channel, cuStreamWriteValue64, stream,
                        ipc_gpu_word(channel, offsetof(struct ipc_words, credit)), 1,
                        CU_STREAM_WRITE_VALUE_DEFAULT));
    BOOK_TRY(cuda_ipc_drain(trial, channel, stream));
    return book_check_pattern(&instance->book, &channel->book, trial->staging);
}

static hd_status cuda_ipc_await_credit(const struct trial *trial, struct ipc_channel *channel)
{
    hd_status status = HD_IN_PROGRESS;
    uint64_t pause_ns = 0;

    while (status == HD_IN_PROGRESS && ipc_news(channel) < 1) {
        ipc_nap(&pause_ns);
        status = cuda_ipc_look_at_peer(trial, channel);
    }
    if (ipc_news(channel) >= 1) { /* the peer may have given it before it ended */
        return HD_OK;
    }
    return book_report_warm_up(&trial->instance->book, &channel->book, status);
}

/* Calls `part` for every channel that has this rank at that end. */
static hd_status cuda_ipc_on_all(const struct trial *trial, bool is_source,
                                 hd_status (*part)(const struct trial *trial,
                                                   struct ipc_channel *channel))
{
    for (uint32_t i = 0; i < trial->instance->book.own_count; i++) {
        struct ipc_channel *channel = &trial->instance->channels[i];
        if (channel->words != NULL && channel->book.is_source == is_source) {
            BOOK_TRY(part(trial, channel));
        }
    }
    return HD_OK;
}

hd_status ipc_warm_up(struct hd_transport *instance, uint64_t deadline_ns)
{
    void *staging = NULL;

    BOOK_TRY(IPC_RUNTIME(instance, NULL, cudaHostAlloc, &staging,
                         book_largest_bytes(&instance->book), cudaHostAllocDefault));
    const struct trial trial = {instance, staging, deadline_ns};
    BOOK_TRY(cuda_ipc_on_all(&trial, true, cuda_ipc_send));
    BOOK_TRY(cuda_ipc_on_all(&trial, false, cuda_ipc_receive));
    BOOK_TRY(cuda_ipc_on_all(&trial, true, cuda_ipc_await_credit));
    /* After a failure the staging is leaked: a stream may still use it. */
    return IPC_RUNTIME(instance, NULL, cudaFreeHost, staging);
}
