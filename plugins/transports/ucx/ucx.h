/*
 * ucx/ucx.h - what ucx_tag and ucx_put share: connections, turns, waits, the end.
 *
 *   ucx_tag.c, ucx_put.c   how a message crosses: struct ucx_mode
 *   channel.c                 the calls of the contract: whose turn it is, what is free, what arrived
 *   wait.c                 the only place that blocks
 *   flight.h, flight.c     one operation of UCX, from its start to its end
 *   slots.c                how much memory the slots of a rank need
 *   worker.c               UCX itself: context, worker, endpoints, its log
 *   name.c                 which of UCX's channels really carries a channel
 *   open.c, close.c        cards, warm-up; rest
 *
 * One worker per instance and one endpoint per peer.  A message is its slot with the seal before
 * it.  Both modes count alike: `done` messages of a channel have left their send slots (source), or
 * are readable (target); everything the core asks compares a sequence with that count.
 *
 * UCX moves only inside ucx_move and ucx_wait_for, and tells neither of a stopped peer nor of a cut
 * link: waits look at the deadline, at the abort word, and at the pidfd of a peer on the same host.
 */
#ifndef UCX_H
#define UCX_H

#include "flight.h"
#include "books_open.h"

#define UCX_MAGIC         0x317863756c646468ull
#define UCX_ADDRESS_BYTES 2048u
#define UCX_RKEY_BYTES    512u
#define UCX_LOOKS_FEW     64u /* of a wait, between two at the clock, where others want the core */

/* Of the tag's 64 bits the upper 20 are the channel: one number is kept for what is no message. */
#define UCX_SEQUENCE_BITS 44
#define UCX_CHANNEL_STOP  0xfffffu

struct ucx_peer {
    struct book_peer book; /* not held: on another host */
    int is_mine;           /* a channel leads to or from it */
    atomic_int is_lost;    /* UCX says that the connection is broken */
    ucp_ep_h ep;           /* NULL: none */
    ucp_rkey_h rkey;       /* of its region; ucx_put */
    uint64_t region;       /* its address there */
    int is_mapped;         /* its region is memory of this process too, and a put a copy there */
    int is_messaged;       /* nobody may write the other's memory: ucx_put sends messages */
    uint64_t stop_out, stop_in;
    struct ucx_flight stop_sent, stop_received; /* "this rank sends no more"; a flush before it */
    int has_said_stop;
};

/* This rank's end of one channel. */
struct ucx_channel {
    struct book_channel book;
    struct ucx_peer *peer;
    uint64_t stride_bytes;
    unsigned char *slots;        /* slot 0; its seal stands before it */
    struct ucx_flight *flights;  /* [slot_count], of the message in each slot */
    _Atomic uint64_t done_count; /* messages before it have left, or are readable; ucx_done */
    void *own;                   /* of the mode */
};

/* One thread writes it, and stats are asked from any. */
static inline uint64_t ucx_done(const struct ucx_channel *channel)
{
    return atomic_load_explicit(&channel->done_count, memory_order_relaxed);
}

static inline void ucx_set_done(struct ucx_channel *channel, uint64_t count)
{
    atomic_store_explicit(&channel->done_count, count, memory_order_relaxed);
}

/* Moves *slot on the ring of `count`, and returns where it was.  No quotient, and by arithmetic:
   where messages come seldom, a branch that is taken once around is guessed wrong, and that costs
   as much as all the rest that stands between a message and its answer. */
static inline uint32_t ucx_next_slot(uint32_t *slot, uint32_t count)
{
    const uint32_t here = *slot;
    *slot = (here + 1) & (0u - (uint32_t)(here + 1 < count));
    return here;
}

/* The message in a slot of this end, seal and all. */
static inline unsigned char *ucx_message_in(const struct ucx_channel *channel, uint64_t slot)
{
    return channel->slots + slot * channel->stride_bytes - HD_SEAL_BYTES;
}

struct ucx_card;

/* How a message crosses.  All [data] but prepare, connect, finish, which are [setup]. */
struct ucx_mode {
    const char *name;
    uint64_t features;   /* of UCX, beside tags */
    int writes_remotely; /* a peer can write here after this rank has gone to rest, unless it is
                            messaged */

    /* Takes the memory of all channels, and says in the card where it is; and gives it back. */
    hd_status (*prepare)(struct hd_transport *instance, struct ucx_card *card);
    hd_status (*connect)(struct hd_transport *instance, struct ucx_peer *peer,
                         const struct ucx_card *card);
    void (*finish)(struct hd_transport *instance);

    /* The message before posted_count has been posted, or that before released_count released. */
    hd_status (*send)(struct hd_transport *instance, struct ucx_channel *channel);
    hd_status (*receive)(struct hd_transport *instance, struct ucx_channel *channel);
    hd_status (*release)(struct hd_transport *instance, struct ucx_channel *channel);

    /* Looks at what landed, starts what may go; HD_OK if anything did, and there may be more, else
       HD_IN_PROGRESS. */
    hd_status (*advance)(struct hd_transport *instance, struct ucx_channel *channel);
    /* Has everything that this rank sends on the channel, credits too, left it? */
    int (*is_settled)(const struct ucx_channel *channel);
    /* Back to the first message, after the warm-up. */
    void (*reset)(struct ucx_channel *channel);
};

/* What every rank publishes of itself. */
struct ucx_card {
    struct book_card head;
    struct book_place place;
    struct book_cores cores;
    uint64_t region;
    uint32_t address_bytes, rkey_bytes;
    unsigned char address[UCX_ADDRESS_BYTES];
    unsigned char rkey[UCX_RKEY_BYTES];
};

struct hd_transport {
    struct book book;
    const struct ucx_mode *mode;
    uint64_t spin_ns;
    uint32_t look_count; /* of a wait that has not napped, between two at the clock */
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_mem_h memory;             /* ucx_put: words, arenas, send slots */
    unsigned char *region;        /* all slots; ucx_put: words and slots, the memory's first byte */
    struct ucx_peer *peers;       /* [rank_count] */
    struct ucx_channel *channels; /* [book.own_count] */
    struct ucx_flight *flights;   /* of all channels */
    int is_open;                  /* the warm-up is over: transfers are reported */
    int may_be_written;           /* by a peer, so that the memory must stay; quiesce decides */
};

/* A UCX call of this channel failed: a broken connection loses the peer, silently; the rest fails. */
hd_status ucx_fail_channel(struct hd_transport *instance, struct ucx_channel *channel,
                           ucs_status_t status);

/* --- worker.c --- */

hd_status ucx_worker_open(struct hd_transport *instance);
hd_status ucx_worker_introduce(struct hd_transport *instance, struct ucx_card *card);
hd_status ucx_worker_connect(struct hd_transport *instance, struct ucx_peer *peer,
                             const struct ucx_card *card);
/* Endpoints, worker, context; everything under way must have landed, or is thrown away. */
void ucx_worker_close(struct hd_transport *instance, uint64_t deadline_ns);

static inline uint64_t ucx_tag(uint32_t channel, uint64_t sequence)
{
    return ((uint64_t)channel << UCX_SEQUENCE_BITS) |
           (sequence & (((uint64_t)1 << UCX_SEQUENCE_BITS) - 1));
}

static inline struct ucx_channel *ucx_channel_of(const struct hd_transport *instance,
                                                 uint32_t number)
{
    return (struct ucx_channel *)instance->book.channel_of[number];
}

static inline int ucx_peer_is_dead(const struct ucx_peer *peer)
{
    return book_has_ended(&peer->book);
}

/* --- slots.c [setup] --- */

/* From one slot of a channel to the next, each with its seal before it. */
uint64_t ucx_stride_bytes(const struct hd_transport *instance, const struct hd_channel *shape);
/* Of all slots of this rank together, whichever end of their channels it is. */
hd_status ucx_count_slots(struct hd_transport *instance, uint64_t *bytes);
/* HD_NO_MEMORY where this host has less. */
hd_status ucx_check_room(struct hd_transport *instance, uint64_t bytes);
hd_status ucx_refuse_slots(struct hd_transport *instance, uint64_t bytes, const char *reason);

/* --- wait.c --- */

/* One turn of UCX and of all channels.  HD_OK if anything moved, else HD_IN_PROGRESS. [data] */
hd_status ucx_move(struct hd_transport *instance);

struct ucx_wait {
    /* Nonzero once it is over; NULL: once `goal` messages of `channel` are done. */
    int (*is_over)(struct hd_transport *instance, const struct ucx_wait *wait);
    struct ucx_channel *channel; /* looked at first; NULL: no particular one */
    struct ucx_peer *peer;       /* whose end ends the wait; NULL: nobody's */
    uint64_t goal;
    uint64_t deadline_ns;
    int at_rest; /* UCX moves, and no channel does, whether or not the instance has failed */
};

/* HD_OK, HD_PEER_LOST, HD_TIMEOUT, or the failure of the instance; reports nothing. [data] */
hd_status ucx_wait_for(struct hd_transport *instance, const struct ucx_wait *wait);

/* --- name.c --- */

/* Fills the names of all channels to `peer`. */
void ucx_name_channels(struct hd_transport *instance, const struct ucx_peer *peer);
/* Is a put to it a put, and not a message that UCX makes of it?  0 too where UCX does not say. */
int ucx_has_puts(ucp_ep_h ep);
/* And is it a copy into shared memory, whichever of its channels UCX takes? */
int ucx_is_memory(ucp_ep_h ep);

/* --- channel.c: the calls of the contract --- */

/* To the trace, if somebody keeps it: when this end was ready (source), or ready and done (target);
   0: not known. */
void ucx_report(const struct hd_transport *instance, const struct ucx_channel *channel,
                uint64_t sequence, uint64_t begin_ns, uint64_t end_ns);
/* For such a report; 0 where nobody keeps it. */
static inline uint64_t ucx_now_ns(const struct hd_transport *instance)
{
    return instance->book.is_traced ? book_now_ns(&instance->book) : 0;
}

void *ucx_slot(struct hd_transport *instance, const struct hd_message *message);
hd_status ucx_reserve(struct hd_transport *instance, const struct hd_message *message);
hd_status ucx_post_send(struct hd_transport *instance, const struct hd_message *message,
                        void *stream);
hd_status ucx_post_recv(struct hd_transport *instance, const struct hd_message *message);
hd_status ucx_test(struct hd_transport *instance, const struct hd_message *message);
hd_status ucx_wait(struct hd_transport *instance, const struct hd_message *message, void *stream,
                   uint64_t deadline_ns);
hd_status ucx_release(struct hd_transport *instance, const struct hd_message *message,
                      void *stream);
void ucx_abort(struct hd_transport *instance, const char *reason);
void ucx_stats(struct hd_transport *instance, uint32_t number, struct hd_channel_stats *out);

/* --- open.c, close.c --- */

hd_status ucx_open(const struct hd_transport_setup *setup, const struct ucx_mode *mode,
                   struct hd_transport **out);
hd_status ucx_quiesce(struct hd_transport *instance, uint64_t deadline_ns);
/* In whatever state open has left it. */
void ucx_close(struct hd_transport *instance, uint64_t deadline_ns);

#endif /* UCX_H */
