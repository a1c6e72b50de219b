/*
 * shm/shm.h - what the files of the shm transport share; shm.c explains how it works.
 *
 * Each rank owns one memfd, which holds its incoming channels one after the other.  Both ends of a
 * channel map that channel's part, which begins at a page:
 *
 *   | words: one writer, one line each | seal | slot 0 | seal | slot 1 | ... |
 *     shm_words                          64 B   ^ aligned to alignment_bytes
 *
 * The offset of a channel follows from the setup, which all ranks share, so one card and one
 * descriptor per rank suffice.
 *
 * arena.c allocates, maps and frees the memory; wait.c is the only file that blocks; open.c and
 * close.c contain the steps of open and of the end.
 */
#ifndef SHM_H
#define SHM_H

#include "books_open.h"

#define SHM_MAGIC      0x326d6873656c6464ull
#define SHM_LINE_BYTES 128 /* two cache lines of x86: its prefetcher fetches them in pairs */

/*
 * The head of a channel's memory.  `asleep` is flag and futex at once: a waiter sets it to 1 before
 * it sleeps on it, and the process that sees the 1 sets it back to 0 and wakes the waiter.
 */
struct shm_words {
    uint64_t magic;   /* the first three are written once, before the card is put */
    uint64_t nonce;   /* as in the card: proves that the source has mapped the right file */
    uint64_t channel; /* the number of this channel, for the same purpose */

    /* The target's mapping, and how many ranks of the target's process use that mapping. */
    struct shm_words *home;
    _Atomic uint32_t holder_count;

    /* Written by the source: messages 0 .. arrived-1 are whole; the source writes no more. */
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t arrived;
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t source_stopped;
    _Alignas(SHM_LINE_BYTES) _Atomic uint32_t source_asleep;

    /* Written by the target: messages 0 .. credit-1 are released; the target writes no more. */
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t credit;
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t target_stopped;
    _Alignas(SHM_LINE_BYTES) _Atomic uint32_t target_asleep;
};

/* What every rank publishes. */
struct shm_card {
    struct book_card head;
    uint64_t nonce;
    int32_t descriptor; /* of its memfd */
    uint32_t reserved;
};

struct shm_peer {
    struct book_peer book;
    uint64_t arena_bytes; /* of the channels that end at this peer */
};

/* This rank's end of one channel. */
struct shm_channel {
    struct book_channel book;
    struct shm_words *words; /* owned mapping; NULL until it is made or opened */
    unsigned char *slots;    /* slot 0 */
    struct shm_peer *peer;
    uint64_t offset_bytes; /* in the target's memfd */
    uint64_t used_bytes;   /* head and slots: the bytes that are accounted */
    uint64_t mapped_bytes; /* whole pages */
    uint64_t stride_bytes; /* from one slot to the next */
    bool is_home;          /* words is words->home, which other ranks may use too */
    uint64_t known_count;  /* the peer's word when it was last read; without the warm-up */
};

struct hd_transport {
    struct book book;
    struct shm_peer *peers;       /* [rank_count] */
    struct shm_channel *channels; /* [book.own_count] */
    uint64_t page_bytes;
    uint64_t nonce; /* of this rank's memfd */
    uint64_t spin_ns;
    int descriptor; /* of this rank's memfd until every source has mapped it; then -1 */
};

/* --- arena.c [setup] --- */

/* Computes the offsets of the channels of all ranks.  HD_NO_MEMORY if they exceed a process. */
hd_status shm_arena_measure(struct hd_transport *instance);
/* Allocates and maps the memory of all channels that end here.  HD_NO_MEMORY. */
hd_status shm_arena_make(struct hd_transport *instance);
/* Source: maps the channel's part of the memfd of `card`.  HD_UNSUPPORTED, HD_PEER_LOST. */
hd_status shm_arena_open(struct hd_transport *instance, struct shm_channel *channel,
                         const struct shm_card *card);
void shm_arena_close_descriptor(struct hd_transport *instance);
void shm_arena_unmap(struct hd_transport *instance, struct shm_channel *channel);

/* --- wait.c --- */

struct shm_wait {
    const _Atomic uint64_t *word; /* the wait is over once *word >= goal */
    uint64_t goal;
    const _Atomic uint64_t *stopped; /* or once *stopped is set: HD_PEER_LOST; may be NULL */
    _Atomic uint32_t *asleep;        /* this rank's, of this channel */
    const struct shm_peer *peer;
    bool until_rest; /* for quiesce: a failure of this instance does not end the wait */
    uint64_t deadline_ns;
};

/* Stores `value` after everything that was written before, and wakes a sleeper. */
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

/* This rank's own `asleep` of a channel, and the peer's. */
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
