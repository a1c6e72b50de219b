/*
 * cuda_ipc/stream.c - the copies: one stream a channel, as far as the hardware queues suffice.
 *
 *   caller's stream   ... forward ... | written            (post_send returns at once)
 *   copy stream                wait written | copy | arrived = k + 1 | sent
 *
 * A copy is enqueued once the host sees its credit, so a stream never waits for a credit.  It may
 * wait for `written`.  If two channels share a hardware queue, the later of two copies could be
 * enqueued before the earlier one and block both forever.  So if there are fewer queues than
 * channels, the host also waits for `written` before it enqueues a copy (is_paced).
 */
#include "ipc.h"

#include <stdlib.h>

/* FOREIGN_STREAM_COUNT: the caller's compute stream, and one more. */
enum { FOREIGN_STREAM_COUNT = 2, PRIORITY = -1 };

/* The value that CUDA read when it started; its default is 8. */
static uint32_t cuda_ipc_hardware_queues(void)
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const long count = text != NULL ? strtol(text, NULL, 10) : 8;

    return count < 1 || count > 32 ? 8 : (uint32_t)count;
}

static hd_status cuda_ipc_check_queues(struct hd_transport *instance)
{
    instance->queue_count = cuda_ipc_hardware_queues();
    if (instance->queue_count > FOREIGN_STREAM_COUNT) {
        return HD_OK;
    }
    return book_fail(
        &instance->book, book_own_fault(HD_UNSUPPORTED),
        "CUDA_DEVICE_MAX_CONNECTIONS=%u queues copies behind the kernels that wait for "
        "them: unset it, or set it to %u or more",
        instance->queue_count, FOREIGN_STREAM_COUNT + 1);
}

static hd_status cuda_ipc_make_events(struct hd_transport *instance, struct ipc_channel *channel)
{
    const struct hd_host *host = instance->book.host;
    const uint32_t count = channel->book.shape->send_depth;

    channel->sends = host->alloc(host->context, count * sizeof *channel->sends, 64, "cuda_ipc");
    if (channel->sends == NULL) {
        return book_fail(&instance->book, book_channel_fault(HD_NO_MEMORY, channel->book.number),
                         "cannot allocate the state of %u send slots", count);
    }
    for (uint32_t i = 0; i < 2 * count; i++) {
        struct ipc_send *send = &channel->sends[i / 2];
        BOOK_TRY(IPC_RUNTIME(instance, channel, cudaEventCreateWithFlags,
                             i % 2 == 0 ? &send->written : &send->sent, cudaEventDisableTiming));
    }
    return HD_OK;
}

static hd_status cuda_ipc_make_streams(struct hd_transport *instance)
{
    const struct hd_host *host = instance->book.host;

    instance->streams = host->alloc(
        host->context, (instance->stream_count + 1) * sizeof *instance->streams, 64, "cuda_ipc");
    if (instance->streams == NULL) {
        return book_fail(&instance->book, book_own_fault(HD_NO_MEMORY),
                         "cannot allocate the streams of the channels");
    }
    for (uint32_t i = 0; i <= instance->stream_count; i++) {
        BOOK_TRY(IPC_RUNTIME(instance, NULL, cudaStreamCreateWithPriority, &instance->streams[i],
                             cudaStreamNonBlocking, PRIORITY));
    }
    return HD_OK;
}

hd_status ipc_streams_make(struct hd_transport *instance)
{
    uint32_t source_count = 0;
    uint32_t next = 0;

    BOOK_TRY(cuda_ipc_check_queues(instance));
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        source_count += instance->channels[i].book.is_source;
    }
    const uint32_t room_count = instance->queue_count - FOREIGN_STREAM_COUNT;
    instance->is_paced = source_count > room_count;
    instance->stream_count = instance->is_paced ? room_count : source_count;
    book_log(&instance->book, "%u copy streams for %u channels, of %u hardware queues%s",
             instance->stream_count, source_count, instance->queue_count,
             instance->is_paced ? "; the host waits before it enqueues a copy" : "");
    BOOK_TRY(cuda_ipc_make_streams(instance));
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ipc_channel *channel = &instance->channels[i];
        if (channel->book.is_source) {
            channel->stream = instance->streams[next++ % instance->stream_count];
            BOOK_TRY(cuda_ipc_make_events(instance, channel));
        }
    }
    return HD_OK;
}

void ipc_streams_free(struct hd_transport *instance)
{
    const struct cuda_library *cuda = &instance->cuda;
    const struct hd_host *host = instance->book.host;

    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ipc_channel *channel = &instance->channels[i];
        for (uint32_t slot = 0; channel->sends != NULL && slot < channel->book.shape->send_depth;
             slot++) {
            if (channel->sends[slot].written != NULL) {
                (void)cuda->cudaEventDestroy(channel->sends[slot].written);
            }
            if (channel->sends[slot].sent != NULL) {
                (void)cuda->cudaEventDestroy(channel->sends[slot].sent);
            }
        }
        host->free(host->context, channel->sends);
        channel->sends = NULL;
    }
    for (uint32_t i = 0; instance->streams != NULL && i <= instance->stream_count; i++) {
        if (instance->streams[i] != NULL) {
            (void)cuda->cudaStreamDestroy(instance->streams[i]); /* its enqueued work continues */
        }
    }
    host->free(host->context, instance->streams);
    instance->streams = NULL;
}

/* --- copies ------------------------------------------------------------------------------ */

/* HD_OK if a copy may be enqueued: if is_paced, only once it need not wait in its stream. */
static hd_status cuda_ipc_look_written(struct hd_transport *instance,
                                       const struct ipc_channel *channel, uint64_t sequence)
{
    const struct ipc_send *send = &channel->sends[sequence % channel->book.shape->send_depth];

    if (!instance->is_paced || !send->is_ordered) {
        return HD_OK;
    }
    const cudaError_t error = instance->cuda.cudaEventQuery(send->written);
    return error == cudaErrorNotReady ? HD_IN_PROGRESS
                                      : ipc_runtime(instance, channel, "cudaEventQuery", error);
}

hd_status ipc_start_copies(struct hd_transport *instance, struct ipc_channel *channel, bool *moved)
{
    while (channel->started_count < channel->book.posted_count) { /* at most send_depth */
        const uint64_t sequence = channel->started_count;
        if (sequence >= channel->book.shape->depth &&
            ipc_news(channel) <= sequence - channel->book.shape->depth) {
            return HD_OK; /* no credit yet */
        }
        const hd_status status = cuda_ipc_look_written(instance, channel, sequence);
        if (status != HD_OK) {
            return status == HD_IN_PROGRESS ? HD_OK : status;
        }
        BOOK_TRY(ipc_copy(instance, channel, sequence, sequence + 1));
        channel->started_count++;
        *moved = true;
    }
    return HD_OK;
}

hd_status ipc_look_sent(struct hd_transport *instance, struct ipc_channel *channel,
                        uint64_t sequence)
{
    while (channel->sent_count <= sequence) {
        if (channel->sent_count >= channel->started_count) {
            return HD_IN_PROGRESS;
        }
        const cudaError_t error = instance->cuda.cudaEventQuery(
            channel->sends[channel->sent_count % channel->book.shape->send_depth].sent);
        if (error == cudaErrorNotReady) {
            return HD_IN_PROGRESS;
        }
        BOOK_TRY(ipc_runtime(instance, channel, "cudaEventQuery", error));
        channel->sent_count++;
    }
    return HD_OK;
}

bool ipc_is_idle(struct hd_transport *instance)
{
    bool is_idle = true;

    for (uint32_t i = 0; instance->streams != NULL && i <= instance->stream_count; i++) {
        is_idle =
            is_idle && (instance->streams[i] == NULL ||
                        instance->cuda.cudaStreamQuery(instance->streams[i]) != cudaErrorNotReady);
    }
    return is_idle;
}
