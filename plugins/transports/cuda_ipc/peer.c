/*
 * cuda_ipc/peer.c - who is at the other end, whether it lives, and how the host waits.
 *
 * When a pidfd says that a process has ended, the driver has taken down its work.  The host has
 * nothing that would wake it: words are written by GPUs, so it naps.
 */
#include "ipc.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum {
    NAP_FIRST_NS = 20000,
    NAP_LAST_NS = 500000,
    LOOK_NS = 5000000, /* a look at the peers costs a microsecond each */
};

hd_status ipc_peer_hold(struct hd_transport *instance, struct ipc_peer *peer,
                        const struct ipc_card *cards)
{
    const uint32_t rank = peer->book.rank;
    const struct book_place *own = &cards[instance->book.host->rank].place;
    const int is_in_reach = book_is_in_reach(own, &cards[rank].place);
    const int error = is_in_reach ? book_hold(&peer->book, cards[rank].place.pid) : ENOTSUP;
    const struct book_fault fault = {error == ESRCH ? HD_PEER_LOST : HD_UNSUPPORTED, rank,
                                     BOOK_NONE, 0};

    if (error == 0) {
        return HD_OK;
    }
    if (error == ESRCH) {
        return book_fail(&instance->book, &fault, "rank %u (process %d) has ended", rank,
                         cards[rank].place.pid);
    }
    return book_fail(&instance->book, &fault,
                     "no pidfd of rank %u (process %d): %s; cuda_ipc needs all ranks in one pid "
                     "namespace of one host, and Linux 5.3",
                     rank, cards[rank].place.pid,
                     is_in_reach ? strerror(error) : "it is not in this one");
}

/* Does a stream of this rank, or the caller, wait for what has not come? */
static int cuda_ipc_is_waiting(const struct ipc_channel *channel, const struct ipc_channel *asked)
{
    if (channel->words == NULL) {
        return 0;
    }
    return channel->book.is_source
               ? ipc_news(channel) + channel->book.shape->depth < channel->book.posted_count
               : ipc_news(channel) < channel->book.readable_count + (channel == asked);
}

/* Ended, or stopped while this rank was still to hear of it. */
static int cuda_ipc_is_gone(const struct ipc_channel *channel)
{
    return atomic_load(channel->book.is_source ? &channel->words->target_stopped
                                               : &channel->words->source_stopped) != 0 ||
           book_has_ended(&channel->peer->book);
}

hd_status ipc_look_for_deaths(struct hd_transport *instance, const struct ipc_channel *asked)
{
    const uint64_t now_ns = book_now_ns(&instance->book);

    if (now_ns - instance->looked_ns < LOOK_NS) {
        return HD_OK;
    }
    instance->looked_ns = now_ns;
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        const struct ipc_channel *channel = &instance->channels[i];
        /* Its last word may have come before its end: so first the end, then the word again. */
        if (cuda_ipc_is_waiting(channel, asked) && cuda_ipc_is_gone(channel) &&
            cuda_ipc_is_waiting(channel, asked)) {
            const struct book_fault fault = {HD_PEER_LOST, channel->book.peer_rank, i,
                                             channel->book.is_source
                                                 ? channel->book.reserved_count
                                                 : channel->book.readable_count};
            return book_fail(&instance->book, &fault,
                             "channel %u (%s over boundary %u): rank %u has ended, and this rank "
                             "still waits for its %s",
                             i,
                             channel->book.shape->direction == HD_FORWARD ? "forward" : "backward",
                             channel->book.shape->boundary, fault.rank,
                             channel->book.is_source ? "releases" : "messages");
        }
    }
    return HD_OK;
}

void ipc_nap(uint64_t *pause_ns)
{
    const uint64_t now_ns = *pause_ns == 0 ? NAP_FIRST_NS : *pause_ns;
    const struct timespec pause = {.tv_nsec = (long)now_ns};

    (void)nanosleep(&pause, NULL); /* a signal ends it early, which is as good */
    *pause_ns = now_ns < NAP_LAST_NS ? now_ns * 2 : NAP_LAST_NS;
}
