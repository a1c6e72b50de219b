/*
 * cuda_ipc/peer.c - who is at the other end, whether it lives, and how the host waits.
 *
 * A pidfd becomes readable when its process ends, and the driver has taken down its work by
 * then.  The host has nothing that would wake it: words are written by GPUs, so it naps.
 */
#include "ipc.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    NAP_FIRST_NS = 20000,
    NAP_LAST_NS = 500000,
    LOOK_NS = 5000000, /* a look at the peers costs a microsecond each */
};

hd_status ipc_peer_hold(struct hd_transport *instance, struct ipc_peer *peer,
                        const struct ipc_card *card)
{
    peer->pidfd = (int)syscall(SYS_pidfd_open, card->pid, 0);
    if (peer->pidfd >= 0) {
        return HD_OK;
    }
    const struct ipc_fault fault = {errno == ESRCH ? HD_PEER_LOST : HD_UNSUPPORTED, peer->rank,
                                    IPC_NONE, 0};
    return ipc_fail(instance, &fault,
                    "no pidfd of rank %u (process %d): %s; cuda_ipc needs all ranks in one pid "
                    "namespace, and Linux 5.3",
                    peer->rank, card->pid, strerror(errno));
}

int ipc_peer_is_dead(const struct ipc_peer *peer)
{
    struct pollfd entry = {.fd = peer->pidfd, .events = POLLIN};
    return peer->pidfd >= 0 && poll(&entry, 1, 0) == 1;
}

/* Does a stream of this rank, or the caller, wait for what has not come? */
static int is_waiting(const struct ipc_lane *lane, const struct ipc_lane *asked)
{
    if (lane->words == NULL) {
        return 0;
    }
    return lane->is_source ? ipc_news(lane) + lane->channel->depth < lane->posted_count
                           : ipc_news(lane) < lane->awaited_count + (lane == asked);
}

/* Ended, or stopped while this rank was still to hear of it. */
static int is_gone(const struct ipc_lane *lane)
{
    return atomic_load(lane->is_source ? &lane->words->target_stopped
                                       : &lane->words->source_stopped) != 0 ||
           ipc_peer_is_dead(lane->peer);
}

hd_status ipc_look_for_deaths(struct hd_transport *instance, const struct ipc_lane *asked)
{
    const uint64_t now_ns = ipc_now_ns(instance);

    if (now_ns - instance->looked_ns < LOOK_NS) {
        return HD_OK;
    }
    instance->looked_ns = now_ns;
    for (uint32_t i = 0; i < instance->channel_count; i++) {
        const struct ipc_lane *lane = &instance->lanes[i];
        /* Its last word may have come before its end: so first the end, then the word again. */
        if (is_waiting(lane, asked) && is_gone(lane) && is_waiting(lane, asked)) {
            const struct ipc_fault fault = {HD_PEER_LOST, lane->peer->rank, i,
                                            lane->is_source ? lane->reserved_count
                                                            : lane->awaited_count};
            return ipc_fail(instance, &fault,
                            "channel %u (%s over boundary %u): rank %u has ended, and this rank "
                            "still waits for its %s",
                            i, lane->channel->direction == HD_FORWARD ? "forward" : "backward",
                            lane->channel->boundary, fault.rank,
                            lane->is_source ? "releases" : "messages");
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
