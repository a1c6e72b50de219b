/*
 * cuda_ipc/stream.c - the copies: one stream a channel, as far as hardware queues go.
 *
 *   caller's stream   ... forward ... | written            (post_send returns at once)
 *   copy stream                wait written | copy | arrived = k + 1 | sent
 *
 * A copy is put into its stream once the host sees its credit, so no stream ever waits for one.
 * It may wait there for `written`; and where two channels shared a hardware queue, the later of
 * them could stand before the earlier and stop both for ever.  So where there are fewer queues
 * than channels the host waits for `written` too (is_paced).
 */
#include "ipc.h"

#include <stdlib.h>

/* Of the caller: its compute stream, and one more. */
enum { FOREIGN_STREAM_COUNT = 2, PRIORITY = -1 };

/* What CUDA has read at its start; 8 is its default. */
static uint32_t cuda_ipc_hardware_queues(void)
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const long count = text != NULL ? strtol(text, NULL, 10) : 8;

    return count < 1 || count > 32 ? 8 : (uint32_t)count;
}

static hd_status cuda_ipc_check_queues(struct hd_transport *instance)
{
    const struct book_fault fault = book_own_fault(HD_UNSUPPORTED);

    instance->queue_count = cuda_ipc_hardware_queues();
    if (instance->queue_count > FOREIGN_STREAM_COUNT) {
        return HD_OK;
    }
    return book_fail(&instance->book, &fault,
                     "CUDA_DEVICE_MAX_CONNECTIONS=%u puts copies behind the kernels that wait for "
                     "them: unset it, or set it to %u or more",
                     instance->queue_count, FOREIGN_STREAM_COUNT + 1);
}

static hd_status cuda_ipc_make_events(struct hd_transport *instance, struct ipc_channel *channel)
{
    const struct hd_host *host = instance->book.host;
    const uint32_t count = channel->book.shape->send_depth;
    const struct book_fault fault = {HD_NO_MEMORY, BOOK_NONE, channel->book.number, 0};
    hd_status status = HD_OK;

    channel->sends = host->alloc(host->context, count * sizeof *channel->sends, 64, "cuda_ipc");
    if (channel->sends == NULL) {
        return book_fail(&instance->book, &fault, "no memory for the books of %u send slots",
                         count);
    }
    for (uint32_t i = 0; status == HD_OK && i < 2 * count; i++) {
        struct ipc_send *send = &channel->sends[i / 2];
        status =
            ipc_runtime(instance, channel, "cudaEventCreateWithFlags",
                        instance->cuda.cudaEventCreateWithFlags(
                            i % 2 == 0 ? &send->written : &send->sent, cudaEventDisableTiming));
    }
    return status;
}

static hd_status cuda_ipc_make_streams(struct hd_transport *instance)
{
    const struct hd_host *host = instance->book.host;
    const struct book_fault fault = book_own_fault(HD_NO_MEMORY);
    hd_status status = HD_OK;

    instance->streams = host->alloc(
        host->context, (instance->stream_count + 1) * sizeof *instance->streams, 64, "cuda_ipc");
    if (instance->streams == NULL) {
        return book_fail(&instance->book, &fault, "no memory for the streams of the channels");
    }
    for (uint32_t i = 0; status == HD_OK && i <= instance->stream_count; i++) {
        status = ipc_runtime(instance, NULL, "cudaStreamCreateWithPriority",
                             instance->cuda.cudaStreamCreateWithPriority(
                                 &instance->streams[i], cudaStreamNonBlocking, PRIORITY));
    }
    return status;
}

hd_status ipc_streams_make(struct hd_transport *instance)
{
    uint32_t source_count = 0;
    uint32_t next = 0;
    hd_status status = cuda_ipc_check_queues(instance);

    if (status != HD_OK) {
        return status;
    }
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        source_count += instance->channels[i].book.is_source != 0;
    }
    const uint32_t room_count = instance->queue_count - FOREIGN_STREAM_COUNT;
    instance->is_paced = source_count > room_count;
    instance->stream_count = source_count > room_count ? room_count : source_count;
    status = cuda_ipc_make_streams(instance);
    for (uint32_t i = 0; status == HD_OK && i < instance->book.own_count; i++) {
        struct ipc_channel *channel = &instance->channels[i];
        if (channel->book.is_source) {
            channel->stream = instance->streams[next++ % instance->stream_count];
            status = cuda_ipc_make_events(instance, channel);
        }
    }
    return status;
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
            (void)cuda->cudaStreamDestroy(instance->streams[i]); /* its work goes on */
        }
    }
    host->free(host->context, instance->streams);
    instance->streams = NULL;
}

/* --- copies ------------------------------------------------------------------------------ */

/* Whether a copy may go into its stream without waiting there, if it must not. */
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

hd_status ipc_start_copies(struct hd_transport *instance, struct ipc_channel *channel, int *moved)
{
    while (channel->started_count < channel->book.posted_count) { /* at most send_depth */
        const uint64_t sequence = channel->started_count;
        if (sequence >= channel->book.shape->depth &&
            ipc_news(channel) <= sequence - channel->book.shape->depth) {
            return HD_OK; /* no credit yet */
        }
        hd_status status = cuda_ipc_look_written(instance, channel, sequence);
        if (status == HD_IN_PROGRESS) {
            return HD_OK;
        }
        if (status == HD_OK) {
            status = ipc_copy(instance, channel, sequence, sequence + 1);
        }
        if (status != HD_OK) {
            return status;
        }
        channel->started_count++;
        *moved = 1;
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
        const hd_status status = ipc_runtime(instance, channel, "cudaEventQuery", error);
        if (status != HD_OK) {
            return status;
        }
        channel->sent_count++;
    }
    return HD_OK;
}

int ipc_is_idle(struct hd_transport *instance)
{
    int is_idle = 1;

    for (uint32_t i = 0; instance->streams != NULL && i <= instance->stream_count; i++) {
        is_idle =
            is_idle && (instance->streams[i] == NULL ||
                        instance->cuda.cudaStreamQuery(instance->streams[i]) != cudaErrorNotReady);
    }
    return is_idle;
}
