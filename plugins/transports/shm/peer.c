/*
 * shm/peer.c - who is at the other end, whether it lives, and how crowded the cores are.
 *
 * A pidfd becomes readable when its process ends, whoever its parent is, and never means
 * another process that was given the same number later.
 */
#include "shm.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    SPIN_ALONE_NS = 100000, /* a futex sleep and its wake-up cost about 35 us */
    SPIN_CROWDED_NS = 0,    /* only the first looks: the peer may need this very core */
};

_Static_assert(sizeof(cpu_set_t) <= SHM_CPU_BYTES, "a card holds glibc's whole set");

void shm_peer_introduce(const struct hd_transport *instance, struct shm_rank_card *card,
                        hd_status status)
{
    cpu_set_t cpus;

    *card = (struct shm_rank_card){.magic = SHM_MAGIC,
                                   .nonce = instance->nonce,
                                   .arena_bytes = instance->peers[instance->host->rank].arena_bytes,
                                   .pid = (int32_t)getpid(),
                                   .descriptor = instance->descriptor,
                                   .status = status};
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) {
        memcpy(card->cpus, &cpus, sizeof cpus);
    }
}

hd_status shm_peer_hold(struct hd_transport *instance, uint32_t rank,
                        const struct shm_rank_card *card)
{
    struct shm_peer *peer = &instance->peers[rank];
    const struct shm_fault lost = {HD_PEER_LOST, rank, SHM_NONE, 0};
    const struct shm_fault unsupported = {HD_UNSUPPORTED, rank, SHM_NONE, 0};

    peer->pidfd = (int)syscall(SYS_pidfd_open, card->pid, 0);
    if (peer->pidfd >= 0) {
        return HD_OK;
    }
    if (errno == ESRCH) {
        return shm_fail(instance, &lost,
                        "rank %u (process %d) is not there: it has ended, or lives in another pid "
                        "namespace; shm needs all ranks in one",
                        rank, card->pid);
    }
    return shm_fail(instance, &unsupported,
                    "no pidfd of rank %u (process %d): %s; shm sees a peer's death only through "
                    "one, which needs Linux 5.3",
                    rank, card->pid, strerror(errno));
}

int shm_peer_is_dead(const struct shm_peer *peer)
{
    struct pollfd entry = {.fd = peer->pidfd, .events = POLLIN};
    return poll(&entry, 1, 0) == 1;
}

uint64_t shm_peer_spin_ns(const struct shm_rank_card *cards, uint32_t rank, uint32_t rank_count)
{
    uint32_t core_count = 0;
    uint32_t sharer_count = 0;

    for (uint32_t i = 0; i < SHM_CPU_BYTES; i++) {
        core_count += (uint32_t)__builtin_popcount(cards[rank].cpus[i]);
    }
    for (uint32_t other = 0; other < rank_count; other++) {
        uint32_t common = 0;
        for (uint32_t i = 0; i < SHM_CPU_BYTES; i++) {
            common |= (uint32_t)(cards[rank].cpus[i] & cards[other].cpus[i]);
        }
        sharer_count += common != 0; /* this rank itself included */
    }
    return core_count > 0 && sharer_count <= core_count ? SPIN_ALONE_NS : SPIN_CROWDED_NS;
}
