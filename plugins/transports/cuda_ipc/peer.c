/*
 * cuda_ipc/peer.c - whether peers are alive, and how the host waits.
 *
 * When a pidfd shows that a process has ended, the driver has stopped its work.  GPUs write the
 * words, so nothing can wake the host: it sleeps in naps.
 */
#include "ipc.h"

#include <time.h>

enum {
    NAP_FIRST_NS = 20000,
    NAP_LAST_NS = 500000,
    LOOK_NS = 5000000, /* between two checks of the peers, which cost a microsecond each */
};

/* Whether a stream of this rank, or the caller, waits for something on this channel. */
static bool cuda_ipc_is_waiting(const struct ipc_channel *channel, const struct ipc_channel *asked)
{
    if (channel->words == NULL) {
        return false;
    }
    return channel->book.is_source
               ? ipc_news(channel) + channel->book.shape->depth < channel->book.posted_count
               : ipc_news(channel) < channel->book.readable_count + (channel == asked);
}

/* Whether the peer has ended or has announced that it is done. */
static bool cuda_ipc_is_gone(const struct ipc_channel *channel)
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
        /* Read the word again after the end: the peer may have written it before it ended. */
        if (cuda_ipc_is_waiting(channel, asked) && cuda_ipc_is_gone(channel) &&
            cuda_ipc_is_waiting(channel, asked)) {
            const struct book_fault fault =
                (struct book_fault){HD_PEER_LOST, channel->book.peer_rank, i,
                                    channel->book.is_source ? channel->book.reserved_count
                                                            : channel->book.readable_count};
            return book_fail(&instance->book, fault,
                             "channel %u (%s over boundary %u): rank %u has ended, and this rank "
                             "is still waiting for its %s",
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

    (void)nanosleep(&pause, NULL); /* a signal may end the nap early */
    *pause_ns = now_ns < NAP_LAST_NS ? now_ns * 2 : NAP_LAST_NS;
}
