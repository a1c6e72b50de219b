/*
 * cuda_ipc/close.c - the end: announce that this rank copies no more, wait until no peer does.
 *
 * A source unmaps an arena before its owner frees it, because CUDA leaves the other order
 * undefined; so the owner waits for `source_closed`.  Memory that a GPU may still read or write is
 * leaked.  If the streams of an instance do not finish, everything is leaked: cudaFree would wait
 * for them.
 */
#include "ipc.h"

#include <inttypes.h>
#include <unistd.h>

/* Releases this rank's waiting streams: they watch the `arrived` words of incoming channels. */
void ipc_poison(struct hd_transport *instance)
{
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ipc_channel *channel = &instance->channels[i];
        if (channel->words != NULL && !channel->book.is_source) {
            atomic_store(&channel->words->arrived, IPC_POISON);
        }
    }
}

/* Announces that this rank is done on the channels where it is at that end. */
static void cuda_ipc_tell_peers(struct hd_transport *instance, bool is_source)
{
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ipc_channel *channel = &instance->channels[i];
        if (channel->words != NULL && channel->book.is_source == is_source) {
            atomic_store(
                is_source ? &channel->words->source_stopped : &channel->words->target_stopped, 1);
        }
    }
}

/* Whether the source of this incoming channel copies no more. */
static bool cuda_ipc_has_stopped(const struct ipc_channel *channel)
{
    return atomic_load(&channel->words->source_stopped) != 0 ||
           book_has_ended(&channel->peer->book);
}

static bool cuda_ipc_has_closed(const struct ipc_channel *channel)
{
    return atomic_load(&channel->words->source_closed) != 0 || book_has_ended(&channel->peer->book);
}

/* Waits until is_so(channel) for all incoming channels; returns the first late one, or NULL. */
static const struct ipc_channel *cuda_ipc_await_all(
    struct hd_transport *instance, bool (*is_so)(const struct ipc_channel *channel),
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

/* Whether a copy is left that may still get its credit.  A failed instance starts no copies. */
static bool cuda_ipc_has_copies_left(struct hd_transport *instance)
{
    bool has = false;

    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ipc_channel *channel = &instance->channels[i];
        if (channel->book.is_source && channel->started_count < channel->book.posted_count) {
            /* Read `target_stopped` before the move: credits that were given before still count. */
            const bool is_hopeless = atomic_load(&channel->words->target_stopped) != 0 ||
                                     book_has_ended(&channel->peer->book);
            bool moved = false;
            const hd_status status = ipc_move(instance, &moved);
            has = has || (status == HD_OK && (moved || !is_hopeless));
        }
    }
    return has;
}

/* Waits until all copies that can start have ended. */
static bool cuda_ipc_await_copies(struct hd_transport *instance, uint64_t deadline_ns)
{
    uint64_t pause_ns = 0;

    while (cuda_ipc_has_copies_left(instance) || !ipc_is_idle(instance)) {
        if (book_now_ns(&instance->book) >= deadline_ns) {
            return false;
        }
        ipc_nap(&pause_ns);
    }
    return true;
}

/* Its result does not depend on earlier failures: close frees only what this found unused. */
hd_status ipc_quiesce(struct hd_transport *instance, uint64_t deadline_ns)
{
    (void)instance->cuda.cudaSetDevice(instance->device);
    cuda_ipc_tell_peers(instance, false);
    if (!cuda_ipc_await_copies(instance, deadline_ns)) {
        const struct book_fault fault = book_own_fault(HD_TIMEOUT);
        (void)book_fail(&instance->book, fault,
                        "the copies of rank %u did not end by the deadline: its memory is leaked",
                        instance->book.host->rank);
        return HD_TIMEOUT;
    }
    cuda_ipc_tell_peers(instance, true);
    const struct ipc_channel *channel =
        cuda_ipc_await_all(instance, cuda_ipc_has_stopped, deadline_ns);
    if (channel == NULL) {
        instance->is_at_rest = true;
        return HD_OK;
    }
    const struct book_fault fault = book_peer_fault(&channel->book, HD_TIMEOUT, ipc_news(channel));
    (void)book_fail(&instance->book, fault,
                    "channel %u: rank %u did not stop copying by the deadline: its receive slots "
                    "are leaked",
                    fault.channel, fault.rank);
    return HD_TIMEOUT;
}

/* This rank has ended its sends: unmaps the arenas of its targets, which may then free them. */
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
    const bool has_cuda = instance->cuda.cudaSetDevice != NULL &&
                          instance->cuda.cudaSetDevice(instance->device) == cudaSuccess;
    /* After a clean end, or an open that failed early; otherwise some stream may be at work. */
    const bool may_free = has_cuda && instance->is_at_rest && ipc_is_idle(instance);

    if (may_free) {
        cuda_ipc_leave_peers(instance);
    }
    ipc_streams_free(instance);
    if (may_free && cuda_ipc_await_all(instance, cuda_ipc_has_closed, deadline_ns) == NULL) {
        ipc_arena_free(instance);
    }
    book_destroy(instance);
}
