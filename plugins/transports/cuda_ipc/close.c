/*
 * cuda_ipc/close.c - the end: say that this rank copies no more, wait until no peer does.
 *
 * A source unmaps the arena before its owner frees it, since CUDA leaves the other order
 * undefined; so the owner waits for `source_closed`.  What a GPU may still read or write is
 * leaked, and so is everything of an instance whose streams do not come to rest: cudaFree would
 * wait for them.
 */
#include "ipc.h"

#include <inttypes.h>
#include <unistd.h>

/* Lets this rank's streams go; the arrived words of its incoming channels are its own memory. */
void ipc_poison(struct hd_transport *instance)
{
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ipc_channel *channel = &instance->channels[i];
        if (channel->words != NULL && !channel->book.is_source) {
            atomic_store(&channel->words->arrived, IPC_POISON);
        }
    }
}

/* This rank writes no more on the channels where it is at that end. */
static void cuda_ipc_tell_peers(struct hd_transport *instance, int is_source)
{
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ipc_channel *channel = &instance->channels[i];
        if (channel->words != NULL && channel->book.is_source == is_source) {
            atomic_store(
                is_source ? &channel->words->source_stopped : &channel->words->target_stopped, 1);
        }
    }
}

/* Can the source of this incoming channel copy no more? */
static int cuda_ipc_has_stopped(const struct ipc_channel *channel)
{
    return atomic_load(&channel->words->source_stopped) != 0 ||
           book_has_ended(&channel->peer->book);
}

static int cuda_ipc_has_closed(const struct ipc_channel *channel)
{
    return atomic_load(&channel->words->source_closed) != 0 || book_has_ended(&channel->peer->book);
}

/* Until `is_so` of all incoming channels; the first of which it is not, or NULL. */
static const struct ipc_channel *cuda_ipc_await_all(struct hd_transport *instance,
                                                    int (*is_so)(const struct ipc_channel *channel),
                                                    uint64_t deadline_ns)
{
    uint64_t pause_ns = 0;

    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        const struct ipc_channel *channel = &instance->channels[i];
        while (channel->words != NULL && !channel->book.is_source && !is_so(channel)) {
            if (book_now_ns(&instance->book) >= deadline_ns) {
                return channel;
            }
            ipc_nap(&pause_ns);
        }
    }
    return NULL;
}

/* Is a copy left that may still get its credit?  A failed instance starts no more. */
static int cuda_ipc_has_copies_left(struct hd_transport *instance)
{
    int has = 0;

    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ipc_channel *channel = &instance->channels[i];
        if (channel->book.is_source && channel->started_count < channel->book.posted_count) {
            /* What the target gave before it stopped still counts: so first that, then a move. */
            const int is_hopeless = atomic_load(&channel->words->target_stopped) != 0 ||
                                    book_has_ended(&channel->peer->book);
            int moved = 0;
            const hd_status status = ipc_move(instance, &moved);
            has = has || (status == HD_OK && (moved || !is_hopeless));
        }
    }
    return has;
}

/* All copies are over that can be. */
static int cuda_ipc_await_copies(struct hd_transport *instance, uint64_t deadline_ns)
{
    uint64_t pause_ns = 0;

    while (cuda_ipc_has_copies_left(instance) || !ipc_is_idle(instance)) {
        if (book_now_ns(&instance->book) >= deadline_ns) {
            return 0;
        }
        ipc_nap(&pause_ns);
    }
    return 1;
}

/* Says what it found, whatever failed before: only this decides what close may free. */
hd_status ipc_quiesce(struct hd_transport *instance, uint64_t deadline_ns)
{
    (void)instance->cuda.cudaSetDevice(instance->device);
    cuda_ipc_tell_peers(instance, 0);
    if (!cuda_ipc_await_copies(instance, deadline_ns)) {
        const struct book_fault fault = book_own_fault(HD_TIMEOUT);
        (void)book_fail(&instance->book, &fault,
                        "the copies of rank %u did not come to rest by the deadline: its memory is "
                        "leaked",
                        instance->book.host->rank);
        return HD_TIMEOUT;
    }
    cuda_ipc_tell_peers(instance, 1);
    const struct ipc_channel *channel =
        cuda_ipc_await_all(instance, cuda_ipc_has_stopped, deadline_ns);
    if (channel == NULL) {
        instance->is_at_rest = 1;
        return HD_OK;
    }
    const struct book_fault fault = book_peer_fault(&channel->book, HD_TIMEOUT, ipc_news(channel));
    (void)book_fail(&instance->book, &fault,
                    "channel %u: rank %u did not come to rest by the deadline: its receive slots "
                    "are leaked",
                    fault.channel, fault.rank);
    return HD_TIMEOUT;
}

/* This rank's sends are over, and their targets may free what they went to. */
static void cuda_ipc_leave_peers(struct hd_transport *instance)
{
    for (uint32_t rank = 0; rank < instance->book.host->rank_count; rank++) {
        ipc_arena_close(instance, &instance->peers[rank]);
    }
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ipc_channel *channel = &instance->channels[i];
        if (channel->words != NULL && channel->book.is_source) {
            atomic_store(&channel->words->source_closed, 1);
        }
    }
}

void ipc_close_all(struct hd_transport *instance, uint64_t deadline_ns)
{
    if (instance == NULL) {
        return;
    }
    const int has_cuda = instance->cuda.cudaSetDevice != NULL &&
                         instance->cuda.cudaSetDevice(instance->device) == cudaSuccess;
    /* Of a clean end, or of an open that got nowhere: else there may be work of somebody's. */
    const int may_free = has_cuda && instance->is_at_rest && ipc_is_idle(instance);

    if (may_free) {
        cuda_ipc_leave_peers(instance);
    }
    ipc_streams_free(instance);
    ipc_arena_free(instance, may_free && cuda_ipc_await_all(instance, cuda_ipc_has_closed,
                                                            deadline_ns) == NULL);
    book_destroy(instance);
}
