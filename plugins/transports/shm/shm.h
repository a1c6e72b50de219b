/*
 * shm/shm.h - what the files of the shm transport share; shm.c says how it works.
 *
 * One memfd per rank, with its incoming channels one after the other.  Of each, from a
 * page's begin, mapped by both its ends:
 *
 *   | words: one writer, one line each | seal | slot 0 | seal | slot 1 | ... |
 *     shm_words                          64 B   ^ aligned to alignment_bytes
 *
 * Where a channel lies follows from the setup, which all ranks share, so a rank's one
 * card is enough, and descriptors do not grow with the channels.
 *
 * arena.c makes, opens and frees it; peer.c knows who is at the other end and
 * whether it lives; wait.c is the only place that blocks; open.c and close.c join them.
 */
#ifndef SHM_H
#define SHM_H

#include "books_open.h"

#define SHM_MAGIC      0x316d6873656c6464ull
#define SHM_LINE_BYTES 128 /* two lines of x86: its prefetcher fetches them in pairs */

/*
 * The head of a channel's memory.  `asleep` is announcement and futex in one: 1 from a waiter
 * that is about to sleep on it, back to 0 by whoever saw it.
 */
struct shm_words {
    uint64_t magic;   /* written once, before the card is */
    uint64_t nonce;   /* as in the card: it is this rank's memory, not a namesake's */
    uint64_t channel; /* and this channel's */

    /* Where the target has it mapped, and how many ranks of that very process use that mapping. */
    struct shm_words *home;
    _Atomic uint32_t holder_count;

    /* The source writes these: messages 0 .. arrived-1 are whole; it writes no more. */
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t arrived;
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t source_stopped;
    _Alignas(SHM_LINE_BYTES) _Atomic uint32_t source_asleep;

    /* The target writes these: messages 0 .. credit-1 are released; it writes no more. */
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t credit;
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t target_stopped;
    _Alignas(SHM_LINE_BYTES) _Atomic uint32_t target_asleep;
};

/* What every rank publishes of itself. */
struct shm_card {
    struct book_card head;
    struct book_place place;
    uint64_t nonce;
    int32_t descriptor;
    uint32_t reserved;
    struct book_cores cores;
};

struct shm_peer {
    struct book_peer book;
    uint64_t arena_bytes; /* of the channels that end there */
};

/* This rank's end of one channel. */
struct shm_channel {
    struct book_channel book;
    struct shm_words *words; /* owned mapping; NULL before it is made or opened */
    unsigned char *slots;    /* slot 0 */
    struct shm_peer *peer;
    uint64_t offset_bytes; /* in the memfd of the target */
    uint64_t used_bytes;   /* head and slots: what is accounted */
    uint64_t mapped_bytes; /* whole pages */
    uint64_t stride_bytes;
    int is_home;          /* words is words->home: other ranks may use it too */
    uint64_t known_count; /* the peer's word when it was last read; the warm-up apart */
};

struct hd_transport {
    struct book book;
    struct shm_peer *peers;       /* [rank_count] */
    struct shm_channel *channels; /* [book.own_count] */
    uint64_t page_bytes;
    uint64_t nonce; /* of this rank's arena */
    uint64_t spin_ns;
    int descriptor; /* of this rank's arena, until every source has it mapped; else -1 */
};

/* --- arena.c [setup] --- */

/* Where the channels of all ranks lie.  HD_NO_MEMORY where that cannot be counted. */
hd_status shm_arena_measure(struct hd_transport *instance);
/* Takes the memory of all channels that end here, all of it, and maps it.  HD_NO_MEMORY. */
hd_status shm_arena_make(struct hd_transport *instance);
/* Source: maps the channel's part of the memory of `card`.  HD_UNSUPPORTED, HD_PROTOCOL. */
hd_status shm_arena_open(struct hd_transport *instance, struct shm_channel *channel,
                         const struct shm_card *card);
void shm_arena_close_descriptor(struct hd_transport *instance);
void shm_arena_unmap(struct hd_transport *instance, struct shm_channel *channel);

/* --- peer.c --- */

/* What this rank says of itself. [setup] */
void shm_peer_introduce(const struct hd_transport *instance, struct shm_card *card);
/* Takes hold of the process of `card`.  HD_PEER_LOST, HD_UNSUPPORTED. [setup] */
hd_status shm_peer_hold(struct hd_transport *instance, struct shm_peer *peer,
                        const struct shm_card *cards);
/* How many of this rank's processors `cards` leave to it: the default of spin_us. [setup] */
uint64_t shm_peer_spin_ns(const struct shm_card *cards, uint32_t rank, uint32_t rank_count);

/* --- wait.c --- */

struct shm_wait {
    const _Atomic uint64_t *word; /* over once it is not below goal */
    uint64_t goal;
    const _Atomic uint64_t *stopped; /* or once this is set: HD_PEER_LOST; may be NULL */
    _Atomic uint32_t *asleep;        /* of this rank, on this channel */
    const struct shm_peer *peer;
    int until_rest; /* a failure of this instance does not end it: for quiesce */
    uint64_t deadline_ns;
};

/* Publishes `value` after all that was written before it, and wakes a sleeper. */
void shm_publish(_Atomic uint64_t *word, uint64_t value, _Atomic uint32_t *asleep);
void shm_wake(_Atomic uint32_t *asleep);
/* HD_OK, HD_PEER_LOST, HD_TIMEOUT, or the failure of the instance; reports nothing. [data] */
hd_status shm_wait_for(struct hd_transport *instance, const struct shm_wait *wait);

/* --- open.c, close.c --- */

hd_status shm_open_all(const struct hd_transport_setup *setup, struct hd_transport **out);
hd_status shm_quiesce(struct hd_transport *instance, uint64_t deadline_ns);
void shm_close_all(struct hd_transport *instance, uint64_t deadline_ns);

static inline struct shm_channel *shm_channel_of(const struct hd_transport *instance,
                                                 uint32_t number)
{
    return (struct shm_channel *)instance->book.channel_of[number];
}

/* This rank's own sleeping word of a channel, and the peer's. */
static inline _Atomic uint32_t *shm_own_asleep(const struct shm_channel *channel)
{
    return channel->book.is_source ? &channel->words->source_asleep
                                   : &channel->words->target_asleep;
}

static inline _Atomic uint32_t *shm_peer_asleep(const struct shm_channel *channel)
{
    return channel->book.is_source ? &channel->words->target_asleep
                                   : &channel->words->source_asleep;
}

/* The word that this rank reads: what has arrived here, or what the target has released. */
static inline const _Atomic uint64_t *shm_news(const struct shm_channel *channel)
{
    return channel->book.is_source ? &channel->words->credit : &channel->words->arrived;
}

#endif /* SHM_H */
