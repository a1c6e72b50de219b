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
    const uint32_t rank = peer->turn.rank;
    const struct turn_place *own = &cards[instance->turn.host->rank].place;
    const int is_in_reach = turn_is_in_reach(own, &cards[rank].place);
    const int error = is_in_reach ? turn_hold(&peer->turn, cards[rank].place.pid) : ENOTSUP;
    const struct turn_fault fault = {error == ESRCH ? HD_PEER_LOST : HD_UNSUPPORTED, rank,
                                     TURN_NONE, 0};

    if (error == 0) {
        return HD_OK;
    }
    if (error == ESRCH) {
        return turn_fail(&instance->turn, &fault, "rank %u (process %d) has ended", rank,
                         cards[rank].place.pid);
    }
    return turn_fail(&instance->turn, &fault,
                     "no pidfd of rank %u (process %d): %s; cuda_ipc needs all ranks in one pid "
                     "namespace of one host, and Linux 5.3",
                     rank, cards[rank].place.pid,
                     is_in_reach ? strerror(error) : "it is not in this one");
}

/* Does a stream of this rank, or the caller, wait for what has not come? */
static int is_waiting(const struct ipc_lane *lane, const struct ipc_lane *asked)
{
    if (lane->words == NULL) {
        return 0;
    }
    return lane->turn.is_source
               ? ipc_news(lane) + lane->turn.channel->depth < lane->turn.posted_count
               : ipc_news(lane) < lane->turn.readable_count + (lane == asked);
}

/* Ended, or stopped while this rank was still to hear of it. */
static int is_gone(const struct ipc_lane *lane)
{
    return atomic_load(lane->turn.is_source ? &lane->words->target_stopped
                                            : &lane->words->source_stopped) != 0 ||
           turn_has_ended(&lane->peer->turn);
}

hd_status ipc_look_for_deaths(struct hd_transport *instance, const struct ipc_lane *asked)
{
    const uint64_t now_ns = turn_now_ns(&instance->turn);

    if (now_ns - instance->looked_ns < LOOK_NS) {
        return HD_OK;
    }
    instance->looked_ns = now_ns;
    for (uint32_t i = 0; i < instance->turn.lane_count; i++) {
        const struct ipc_lane *lane = &instance->lanes[i];
        /* Its last word may have come before its end: so first the end, then the word again. */
        if (is_waiting(lane, asked) && is_gone(lane) && is_waiting(lane, asked)) {
            const struct turn_fault fault = {HD_PEER_LOST, lane->turn.peer_rank, i,
                                             lane->turn.is_source ? lane->turn.reserved_count
                                                                  : lane->turn.readable_count};
            return turn_fail(&instance->turn, &fault,
                             "channel %u (%s over boundary %u): rank %u has ended, and this rank "
                             "still waits for its %s",
                             i,
                             lane->turn.channel->direction == HD_FORWARD ? "forward" : "backward",
                             lane->turn.channel->boundary, fault.rank,
                             lane->turn.is_source ? "releases" : "messages");
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
