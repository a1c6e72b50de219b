/*
 * rendezvous.h - what the files of the rendezvous transport share; rendezvous.c says how it works.
 *
 * mover.c moves what has been posted; rendezvous.c is the contract; open.c makes and ends it.
 */
#ifndef RENDEZVOUS_H
#define RENDEZVOUS_H

#include <heddle/transport.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum { MEET_OPTION_DOES, MEET_OPTION_LATE_US };
enum { MEET_OFFER_MAX = 8, MEET_NAP_NS = 20000000 };

#define MEET_NOBODY UINT32_MAX

/* Of each rank; peers read the offers, ring the bell, and count what they have copied here. */
struct words {
    _Alignas(64) _Atomic uint32_t bell;
    _Atomic uint32_t is_resting;
    _Alignas(64) _Atomic uint64_t offers[MEET_OFFER_MAX]; /* messages, by name_of; 0: none */
};

struct arrivals {
    _Alignas(64) _Atomic uint64_t count; /* of a channel: written by its source */
};

struct card {
    int32_t pid, descriptor;
    uint64_t bytes;
};

/* This rank's end of one channel, or all zero. */
struct lane {
    const struct hd_channel *channel;
    struct arrivals *arrivals;    /* at the target */
    void *memory;                 /* owned: of the send slots */
    unsigned char *slots, *sends; /* the target's; this source's */
    uint64_t stride_bytes;
    uint64_t reserved_count, posted_count, read_count, released_count; /* the next of each call */
    uint64_t moved_count;                                              /* of those posted */
};

struct post {
    uint32_t channel, is_send, is_moved;
    uint32_t group_left;
    uint64_t sequence;
};

struct hd_transport {
    const struct hd_transport_setup *setup;
    atomic_int failed;
    _Atomic uint32_t is_over; /* the mover leaves */
    int descriptor;
    uint32_t generation, has_mover;
    pthread_t mover;
    pthread_mutex_t lock; /* of all below; never held while bytes are copied */
    pthread_cond_t moved;
    struct words **words;                   /* [rank_count]; NULL where no channel leads */
    uint64_t *bytes;                        /* [rank_count]: of each rank's memfd */
    struct post *queue;                     /* [queue_size], a ring */
    uint64_t queue_size, head, tail, whole; /* posts before `whole` are of whole groups */
    struct lane lanes[];
};

/* The first failure is reported, and stays; returns what now holds. */
hd_status meet_fail(struct hd_transport *instance, hd_status status, uint32_t rank,
                    const char *format, ...) __attribute__((format(printf, 4, 5)));

/* mover.c */
int meet_start_mover(struct hd_transport *instance);
void meet_stop_mover(struct hd_transport *instance);
void meet_enqueue(struct hd_transport *instance, const struct hd_message *message); /* locked */

/* open.c; warm-up goes by the contract's own calls. */
hd_status meet_open_all(const struct hd_transport_setup *setup, struct hd_transport **out);
void meet_close_all(struct hd_transport *instance, uint64_t deadline_ns);
extern const struct hd_transport_ops meet_ops;

static inline struct words *meet_own_words(const struct hd_transport *instance)
{
    return instance->words[instance->setup->host->rank];
}

static inline unsigned char *meet_send_slot(const struct lane *lane, uint64_t sequence)
{
    return lane->sends + sequence % lane->channel->send_depth * lane->stride_bytes;
}

static inline unsigned char *meet_receive_slot(const struct lane *lane, uint64_t sequence)
{
    return lane->slots + sequence % lane->channel->depth * lane->stride_bytes;
}

static inline int meet_is_source(const struct hd_transport *instance,
                                 const struct hd_message *message)
{
    return instance->lanes[message->channel].channel->source == instance->setup->host->rank;
}

#endif /* RENDEZVOUS_H */
