/*
 * cuda_ipc/warm_up.c - one message down every channel's real path, before any that counts.
 *
 * The pattern goes from the host into the send slot, by the channel's own stream into the peer's
 * slot, and is read back behind a stream's wait for the signal: IPC mapping, peer access, both
 * stream operations and their order are proven, or open fails.  Sends never wait for receives, so
 * all ranks may go in channel order.
 */
#include "ipc.h"

#include <inttypes.h>
#include <string.h>

/* This rank's part in it. */
struct trial {
    struct hd_transport *instance;
    unsigned char *staging; /* pinned: of the largest message, in whole words */
    uint64_t deadline_ns;
};

static hd_status time_out(const struct trial *trial, const struct ipc_lane *lane, const char *what)
{
    const struct ipc_fault fault = {HD_TIMEOUT, lane->peer->rank, ipc_number(trial->instance, lane),
                                    IPC_WARM_UP};

    return ipc_fail(trial->instance, &fault, "channel %u: %s rank %u during warm-up", fault.channel,
                    what, fault.rank);
}

static int is_over(const struct trial *trial)
{
    return ipc_now_ns(trial->instance) >= trial->deadline_ns;
}

/* The host waits for a stream of this instance. */
static hd_status drain(const struct trial *trial, const struct ipc_lane *lane, cudaStream_t stream,
                       const char *what)
{
    uint64_t pause_ns = 0;
    cudaError_t error = trial->instance->cuda.cudaStreamQuery(stream);

    while (error == cudaErrorNotReady) {
        if (is_over(trial)) {
            return time_out(trial, lane, what);
        }
        if (ipc_peer_is_dead(lane->peer)) {
            const struct ipc_fault fault = {HD_PEER_LOST, lane->peer->rank,
                                            ipc_number(trial->instance, lane), IPC_WARM_UP};
            return ipc_fail(trial->instance, &fault, "channel %u: rank %u ended during warm-up",
                            fault.channel, fault.rank);
        }
        ipc_nap(&pause_ns);
        error = trial->instance->cuda.cudaStreamQuery(stream);
    }
    return ipc_runtime(trial->instance, lane, "a stream of the warm-up", error);
}

static void write_pattern(const struct trial *trial, const struct ipc_lane *lane)
{
    const uint32_t channel = ipc_number(trial->instance, lane);

    for (uint64_t offset = 0; offset < lane->channel->bytes; offset += 8) {
        const uint64_t word = hd_pattern_word(channel, IPC_WARM_UP, offset / 8);
        memcpy(trial->staging + offset, &word, 8);
    }
}

static hd_status send(const struct trial *trial, struct ipc_lane *lane)
{
    struct hd_transport *instance = trial->instance;
    const uint64_t send_slot = IPC_WARM_UP % lane->channel->send_depth;

    write_pattern(trial, lane);
    hd_status status =
        ipc_runtime(instance, lane, "cudaMemcpyAsync",
                    instance->cuda.cudaMemcpyAsync(lane->own_slots + send_slot * lane->stride_bytes,
                                                   trial->staging, lane->channel->bytes,
                                                   cudaMemcpyHostToDevice, lane->stream));
    if (status == HD_OK) {
        status = ipc_copy(instance, lane, IPC_WARM_UP, 1);
    }
    /* The staging is the next channel's. */
    return status == HD_OK ? drain(trial, lane, lane->stream, "no copy reached") : status;
}

static hd_status compare(const struct trial *trial, const struct ipc_lane *lane)
{
    const uint64_t bytes = lane->channel->bytes;
    const struct ipc_fault fault = {HD_PROTOCOL, lane->peer->rank,
                                    ipc_number(trial->instance, lane), IPC_WARM_UP};

    for (uint64_t offset = 0; offset < bytes; offset += 8) {
        const uint64_t word = hd_pattern_word(fault.channel, IPC_WARM_UP, offset / 8);
        const uint64_t count = bytes - offset < 8 ? bytes - offset : 8;
        if (memcmp(trial->staging + offset, &word, count) != 0) {
            return ipc_fail(trial->instance, &fault,
                            "channel %u: the warm-up message of rank %u differs at byte %" PRIu64
                            ": copies between these GPUs do not arrive as they were sent",
                            fault.channel, fault.rank, offset);
        }
    }
    return HD_OK;
}

/* As a consumer does it: a stream waits for the signal, reads, and gives the credit. */
static hd_status receive(const struct trial *trial, struct ipc_lane *lane)
{
    struct hd_transport *instance = trial->instance;
    const struct cuda_library *cuda = &instance->cuda;
    cudaStream_t stream = instance->streams[instance->stream_count];
    const uint64_t receive_slot = IPC_WARM_UP % lane->channel->depth;

    hd_status status = ipc_driver(
        instance, lane, "cuStreamWaitValue64",
        cuda->cuStreamWaitValue64(stream, ipc_gpu_word(lane, offsetof(struct ipc_words, arrived)),
                                  1, CU_STREAM_WAIT_VALUE_GEQ));
    if (status == HD_OK) {
        status =
            ipc_runtime(instance, lane, "cudaMemcpyAsync",
                        cuda->cudaMemcpyAsync(
                            trial->staging, lane->own_slots + receive_slot * lane->stride_bytes,
                            lane->channel->bytes, cudaMemcpyDeviceToHost, stream));
    }
    if (status == HD_OK) {
        status = ipc_driver(instance, lane, "cuStreamWriteValue64",
                            cuda->cuStreamWriteValue64(
                                stream, ipc_gpu_word(lane, offsetof(struct ipc_words, credit)), 1,
                                CU_STREAM_WRITE_VALUE_DEFAULT));
    }
    if (status == HD_OK) {
        status = drain(trial, lane, stream, "nothing came of");
    }
    return status == HD_OK ? compare(trial, lane) : status;
}

static hd_status await_credit(const struct trial *trial, struct ipc_lane *lane)
{
    uint64_t pause_ns = 0;

    while (ipc_news(lane) < 1) {
        if (is_over(trial)) {
            return time_out(trial, lane, "no release came of");
        }
        if (ipc_peer_is_dead(lane->peer) && ipc_news(lane) < 1) {
            const struct ipc_fault fault = {HD_PEER_LOST, lane->peer->rank,
                                            ipc_number(trial->instance, lane), IPC_WARM_UP};
            return ipc_fail(trial->instance, &fault, "channel %u: rank %u ended during warm-up",
                            fault.channel, fault.rank);
        }
        ipc_nap(&pause_ns);
    }
    return HD_OK;
}

/* One part of it, on every channel that has this rank at that end. */
static hd_status on_all(const struct trial *trial, int is_source,
                        hd_status (*part)(const struct trial *trial, struct ipc_lane *lane))
{
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < trial->instance->channel_count; i++) {
        struct ipc_lane *lane = &trial->instance->lanes[i];
        if (lane->words != NULL && lane->is_source == is_source) {
            status = part(trial, lane);
        }
    }
    return status;
}

static uint64_t largest_message(const struct hd_transport *instance)
{
    uint64_t bytes = 8;

    for (uint32_t i = 0; i < instance->channel_count; i++) {
        const uint64_t own = (instance->lanes[i].channel->bytes + 7) / 8 * 8;
        bytes = instance->lanes[i].words != NULL && own > bytes ? own : bytes;
    }
    return bytes;
}

hd_status ipc_warm_up(struct hd_transport *instance, uint64_t deadline_ns)
{
    void *staging = NULL;
    hd_status status = ipc_runtime(
        instance, NULL, "cudaHostAlloc",
        instance->cuda.cudaHostAlloc(&staging, largest_message(instance), cudaHostAllocDefault));
    const struct trial trial = {instance, staging, deadline_ns};

    if (status == HD_OK) {
        status = on_all(&trial, 1, send);
    }
    if (status == HD_OK) {
        status = on_all(&trial, 0, receive);
    }
    if (status == HD_OK) {
        status = on_all(&trial, 1, await_credit);
    }
    if (status == HD_OK) { /* after a failure a stream may be at it still: it is left */
        status = ipc_runtime(instance, NULL, "cudaFreeHost", instance->cuda.cudaFreeHost(staging));
    }
    return status;
}
