/* shm/peer.c - who is at the other end, and how crowded the cores are. */
#include "shm.h"

#include <errno.h>
#include <string.h>

enum {
    SPIN_ALONE_NS = 100000, /* a futex sleep and its wake-up cost about 35 us */
    SPIN_CROWDED_NS = 0,    /* only the first looks: the peer may need this very core */
};

void shm_peer_introduce(const struct hd_transport *instance, struct shm_card *card)
{
    card->place = book_find_place();
    card->nonce = instance->nonce;
    card->descriptor = instance->descriptor;
    card->cores = book_find_cores();
}

hd_status shm_peer_hold(struct hd_transport *instance, struct shm_peer *peer,
                        const struct shm_card *cards)
{
    const uint32_t rank = peer->book.rank;
    const struct shm_card *own = &cards[instance->book.host->rank];
    const struct book_fault lost = {HD_PEER_LOST, rank, BOOK_NONE, 0};
    const struct book_fault unsupported = {HD_UNSUPPORTED, rank, BOOK_NONE, 0};

    if (!book_is_in_reach(&own->place, &cards[rank].place)) {
        return book_fail(&instance->book, &unsupported,
                         "rank %u runs on another host, or in another pid namespace: shm needs all "
                         "ranks in one",
                         rank);
    }
    const int error = book_hold(&peer->book, cards[rank].place.pid);
    if (error == ESRCH) {
        return book_fail(&instance->book, &lost, "rank %u (process %d) has ended", rank,
                         cards[rank].place.pid);
    }
    if (error != 0) {
        return book_fail(&instance->book, &unsupported,
                         "no pidfd of rank %u (process %d): %s; shm sees a peer's death only "
                         "through one, which needs Linux 5.3",
                         rank, cards[rank].place.pid, strerror(error));
    }
    return HD_OK;
}

uint64_t shm_peer_spin_ns(const struct shm_card *cards, uint32_t rank, uint32_t rank_count)
{
    const uint32_t core_count = book_core_count(&cards[rank].cores);
    uint32_t sharer_count = 0; /* this rank itself included */

    for (uint32_t other = 0; other < rank_count; other++) {
        sharer_count += (uint32_t)book_share_core(&cards[rank].cores, &cards[other].cores);
    }
    return core_count > 0 && sharer_count <= core_count ? SPIN_ALONE_NS : SPIN_CROWDED_NS;
}
