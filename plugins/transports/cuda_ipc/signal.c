/*
 * cuda_ipc/signal.c - the four moves that the order of everything hangs on.
 *
 *   source's compute       writes ... | written, and nothing else, so that it never waits (G4)
 *   source's copy stream   wait written | copy | arrived = k + 1 | sent
 *   target's stream                              wait arrived > k | reads ... | credit = k + 1
 *
 * tests/fault has a wrong one of each, which the conformance suite must find.
 */
#include "ipc.h"

hd_status ipc_mark_written(struct hd_transport *instance, struct ipc_lane *lane, uint64_t sequence,
                           void *stream)
{
    const struct ipc_send *send = &lane->sends[sequence % lane->book.slot_count];

    return ipc_runtime(instance, lane, "cudaEventRecord",
                       instance->cuda.cudaEventRecord(send->written, stream));
}

hd_status ipc_copy(struct hd_transport *instance, struct ipc_lane *lane, uint64_t sequence,
                   uint64_t signal)
{
    const struct cuda_library *cuda = &instance->cuda;
    const struct hd_channel *channel = lane->book.channel;
    const uint64_t send_slot = sequence % channel->send_depth;
    struct ipc_send *send = &lane->sends[send_slot];
    hd_status status = HD_OK;

    if (send->is_ordered) {
        status = ipc_runtime(instance, lane, "cudaStreamWaitEvent",
                             cuda->cudaStreamWaitEvent(lane->stream, send->written, 0));
    }
    if (status == HD_OK) {
        status = ipc_runtime(
            instance, lane, "cudaMemcpyAsync",
            cuda->cudaMemcpyAsync(lane->peer_slots + sequence % channel->depth * lane->stride_bytes,
                                  lane->own_slots + send_slot * lane->stride_bytes, channel->bytes,
                                  cudaMemcpyDeviceToDevice, lane->stream));
    }
    if (status == HD_OK) { /* with the default flags all that the stream did is visible before */
        status =
            ipc_driver(instance, lane, "cuStreamWriteValue64",
                       cuda->cuStreamWriteValue64(
                           lane->stream, ipc_gpu_word(lane, offsetof(struct ipc_words, arrived)),
                           signal, CU_STREAM_WRITE_VALUE_DEFAULT));
    }
    if (status == HD_OK) {
        status = ipc_runtime(instance, lane, "cudaEventRecord",
                             cuda->cudaEventRecord(send->sent, lane->stream));
    }
    return status;
}

hd_status ipc_await_signal(struct hd_transport *instance, struct ipc_lane *lane, uint64_t sequence,
                           void *stream)
{
    return ipc_driver(instance, lane, "cuStreamWaitValue64",
                      instance->cuda.cuStreamWaitValue64(
                          stream, ipc_gpu_word(lane, offsetof(struct ipc_words, arrived)),
                          sequence + 1, CU_STREAM_WAIT_VALUE_GEQ));
}

/*
 * Credits follow each other: one that the host stores must not overtake one that a stream is
 * still to write, so it goes behind it.
 */
hd_status ipc_give_credit(struct hd_transport *instance, struct ipc_lane *lane, void *stream)
{
    const uint64_t credit = lane->book.released_count;
    const struct book_fault fault = {HD_INVALID, TURN_NONE, lane->book.number, credit - 1};
    const int is_behind = atomic_load(&lane->words->credit) + 1 < credit;

    if (stream != NULL && lane->release_stream != NULL && is_behind &&
        stream != lane->release_stream) {
        return book_fail(&instance->book, &fault,
                         "channel %u: messages are released in two streams", fault.channel);
    }
    cudaStream_t through = stream != NULL ? stream : is_behind ? lane->release_stream : NULL;
    lane->release_stream = through;
    if (through == NULL) {
        atomic_store(&lane->words->credit, credit);
        return HD_OK;
    }
    return ipc_driver(instance, lane, "cuStreamWriteValue64",
                      instance->cuda.cuStreamWriteValue64(
                          through, ipc_gpu_word(lane, offsetof(struct ipc_words, credit)), credit,
                          CU_STREAM_WRITE_VALUE_DEFAULT));
}
