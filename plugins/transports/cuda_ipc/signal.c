/*
 * cuda_ipc/signal.c - the four operations that every order depends on.
 *
 *   source's compute       writes ... | written, and nothing else, so that it never waits (G4)
 *   source's copy stream   wait written | copy | arrived = k + 1 | sent
 *   target's stream                              wait arrived > k | reads ... | credit = k + 1
 *
 * tests/fault breaks each of them in turn, and the conformance suite must notice.
 */
#include "ipc.h"

hd_status ipc_mark_written(struct hd_transport *instance, struct ipc_channel *channel,
                           uint64_t sequence, void *stream)
{
    const struct ipc_send *send = &channel->sends[sequence % channel->book.slot_count];

    return IPC_RUNTIME(instance, channel, cudaEventRecord, send->written, stream);
}

hd_status ipc_copy(struct hd_transport *instance, struct ipc_channel *channel, uint64_t sequence,
                   uint64_t signal)
{
    const struct hd_channel *shape = channel->book.shape;
    const uint64_t send_slot = sequence % shape->send_depth;
    struct ipc_send *send = &channel->sends[send_slot];

    if (send->is_ordered) {
        BOOK_TRY(
            IPC_RUNTIME(instance, channel, cudaStreamWaitEvent, channel->stream, send->written, 0));
    }
    BOOK_TRY(IPC_RUNTIME(instance, channel, cudaMemcpyAsync,
                         channel->peer_slots + sequence % shape->depth * channel->stride_bytes,
                         channel->own_slots + send_slot * channel->stride_bytes, shape->bytes,
                         cudaMemcpyDeviceToDevice, channel->stream));
    /* The default flags make everything that the stream did before visible first. */
    BOOK_TRY(IPC_DRIVER(instance, channel, cuStreamWriteValue64, channel->stream,
                        ipc_gpu_word(channel, offsetof(struct ipc_words, arrived)), signal,
                        CU_STREAM_WRITE_VALUE_DEFAULT));
    return IPC_RUNTIME(instance, channel, cudaEventRecord, send->sent, channel->stream);
}

hd_status ipc_await_signal(struct hd_transport *instance, struct ipc_channel *channel,
                           uint64_t sequence, void *stream)
{
    return IPC_DRIVER(instance, channel, cuStreamWaitValue64, stream,
                      ipc_gpu_word(channel, offsetof(struct ipc_words, arrived)), sequence + 1,
                      CU_STREAM_WAIT_VALUE_GEQ);
}

/*
 * Credits must stay in order: if a stream has yet to write an earlier credit, a credit of the host
 * goes through the same stream.
 */
hd_status ipc_give_credit(struct hd_transport *instance, struct ipc_channel *channel, void *stream)
{
    const uint64_t credit = channel->book.released_count;
    const struct book_fault fault =
        (struct book_fault){HD_INVALID, BOOK_NONE, channel->book.number, credit - 1};
    const bool is_behind = atomic_load(&channel->words->credit) + 1 < credit;

    if (stream != NULL && channel->release_stream != NULL && is_behind &&
        stream != channel->release_stream) {
        return book_fail(&instance->book, fault,
                         "channel %u: messages must be released in one stream, not in two",
                         fault.channel);
    }
    cudaStream_t through = stream != NULL ? stream : is_behind ? channel->release_stream : NULL;
    channel->release_stream = through;
    if (through == NULL) {
        atomic_store(&channel->words->credit, credit);
        return HD_OK;
    }
    return IPC_DRIVER(instance, channel, cuStreamWriteValue64, through,
                      ipc_gpu_word(channel, offsetof(struct ipc_words, credit)), credit,
                      CU_STREAM_WRITE_VALUE_DEFAULT);
}
