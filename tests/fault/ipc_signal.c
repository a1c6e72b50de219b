/*
 * tests/fault/ipc_signal.c - the signal.c of cuda_ipc, wrong in the one place that IPC_BROKEN
 * names.
 *
 *   signal_first  the signal is given when the copy is enqueued, and not behind it
 *   early_credit  a release gives the credit of the next lease too
 *   early_wait    a stream waits for the message before
 *   stream_credit a post makes the caller's stream wait for the message's credit
 *   (unset)       sound
 *
 * The warm-up is left right, or open would find it.
 */
#include "ipc.h"

#include <stdlib.h>
#include <string.h>

static int is_broken(const char *how)
{
    const char *wanted = getenv("IPC_BROKEN");
    return wanted != NULL && strcmp(wanted, how) == 0;
}

hd_status ipc_mark_written(struct hd_transport *instance, struct ipc_channel *channel,
                           uint64_t sequence, void *stream)
{
    const struct cuda_library *cuda = &instance->cuda;
    const uint64_t depth = channel->book.shape->depth;

    if (is_broken("stream_credit") && sequence >= depth) {
        (void)cuda->cuStreamWaitValue64(stream,
                                        ipc_gpu_word(channel, offsetof(struct ipc_words, credit)),
                                        sequence - depth + 1, CU_STREAM_WAIT_VALUE_GEQ);
    }
    return ipc_runtime(
        instance, channel, "cudaEventRecord",
        cuda->cudaEventRecord(channel->sends[sequence % channel->book.slot_count].written, stream));
}

hd_status ipc_copy(struct hd_transport *instance, struct ipc_channel *channel, uint64_t sequence,
                   uint64_t signal)
{
    const struct cuda_library *cuda = &instance->cuda;
    const struct hd_channel *shape = channel->book.shape;
    struct ipc_send *send = &channel->sends[sequence % shape->send_depth];
    const int is_early = is_broken("signal_first") && sequence != BOOK_WARM_UP;

    if (is_early) {
        atomic_store(&channel->words->arrived, signal);
    }
    if (send->is_ordered) {
        (void)cuda->cudaStreamWaitEvent(channel->stream, send->written, 0);
    }
    (void)cuda->cudaMemcpyAsync(
        channel->peer_slots + sequence % shape->depth * channel->stride_bytes,
        channel->own_slots + sequence % shape->send_depth * channel->stride_bytes, shape->bytes,
        cudaMemcpyDeviceToDevice, channel->stream);
    if (!is_early) {
        (void)cuda->cuStreamWriteValue64(channel->stream,
                                         ipc_gpu_word(channel, offsetof(struct ipc_words, arrived)),
                                         signal, CU_STREAM_WRITE_VALUE_DEFAULT);
    }
    return ipc_runtime(instance, channel, "cudaEventRecord",
                       cuda->cudaEventRecord(send->sent, channel->stream));
}

hd_status ipc_await_signal(struct hd_transport *instance, struct ipc_channel *channel,
                           uint64_t sequence, void *stream)
{
    return ipc_driver(instance, channel, "cuStreamWaitValue64",
                      instance->cuda.cuStreamWaitValue64(
                          stream, ipc_gpu_word(channel, offsetof(struct ipc_words, arrived)),
                          is_broken("early_wait") ? sequence : sequence + 1,
                          CU_STREAM_WAIT_VALUE_GEQ));
}

hd_status ipc_give_credit(struct hd_transport *instance, struct ipc_channel *channel, void *stream)
{
    const int has_next = channel->book.readable_count > channel->book.released_count;
    const uint64_t credit = channel->book.released_count + (is_broken("early_credit") && has_next);

    if (stream == NULL) {
        atomic_store(&channel->words->credit, credit);
        return HD_OK;
    }
    return ipc_driver(instance, channel, "cuStreamWriteValue64",
                      instance->cuda.cuStreamWriteValue64(
                          stream, ipc_gpu_word(channel, offsetof(struct ipc_words, credit)), credit,
                          CU_STREAM_WRITE_VALUE_DEFAULT));
}
