/*
 * ucx/ucx.h - what ucx_tag and ucx_put share: connections, call order, waits, the end.
 *
 *   ucx_tag.c, ucx_put.c   how a message is sent: struct ucx_mode
 *   channel.c              the data calls: their order, which slot is free, what has arrived
 *   wait.c                 the only file that blocks
 *   flight.h, flight.c     one operation of UCX, from its start to its end
 *   slots.c                how much memory the slots of a rank need
 *   worker.c               UCX itself: context, worker, endpoints, its log
 *   name.c                 which transport of UCX carries a channel
 *   open.c, close.c        the steps of open; quiesce and close
 *
 * There is one worker per instance and one endpoint per peer.  A message is a slot with the seal
 * before it.  Both modes count alike: the first `done` messages of a channel have left their send
 * slots (source), or are readable (target); every answer compares a sequence with that count.
 *
 * UCX moves data only inside ucx_move and ucx_wait_for, and reports neither a stopped peer nor a
 * cut link.  Waits therefore check the deadline, the abort word, and the pidfd of a peer on this
 * host.
 */
#ifndef UCX_H
#define UCX_H

#include "flight.h"
#include "books_open.h"

#define UCX_MAGIC         0x327863756c646468ull
#define UCX_ADDRESS_BYTES 2048u
#define UCX_RKEY_BYTES    512u
#define UCX_LOOKS_FEW     64u /* looks between two reads of the clock if the core is shared */

/* The upper 20 of a tag's 64 bits are the channel.  One number is reserved: it is not a message. */
#define UCX_SEQUENCE_BITS 44
#define UCX_CHANNEL_STOP  0xfffffu

struct ucx_peer {
    struct book_peer book; /* its pidfd is not held if it is on another host */
    bool is_mine;          /* a channel connects it with this rank */
    atomic_int is_lost;    /* UCX has reported that the connection is broken */
    ucp_ep_h ep;           /* NULL: none */
    ucp_rkey_h rkey;       /* of its region; ucx_put */
    uint64_t region;       /* the address of its region in its own process */
    bool is_mapped;        /* its region is mapped here too, and a put is a copy into it */
    bool is_messaged;      /* without puts: ucx_put sends messages to it */
    uint64_t stop_out, stop_in;
    struct ucx_flight stop_sent; /* first a flush, then "this rank sends no more" */
    struct ucx_flight stop_received;
    bool has_said_stop;
};

/* This rank's end of one channel. */
struct ucx_channel {
    struct book_channel book;
    struct ucx_peer *peer;
    uint64_t stride_bytes;
    unsigned char *slots;        /* slot 0; its seal is before it */
    struct ucx_flight *flights;  /* [slot_count], one for the message in each slot */
    _Atomic uint64_t done_count; /* see ucx_done */
    void *own;                   /* the mode's own struct */
};

/* The messages that have left their slots, or are readable.  stats reads it from any thread. */
static inline uint64_t ucx_done(const struct ucx_channel *channel)
{
    return atomic_load_explicit(&channel->done_count, memory_order_relaxed);
}

static inline void ucx_set_done(struct ucx_channel *channel, uint64_t count)
{
    atomic_store_explicit(&channel->done_count, count, memory_order_relaxed);
}

/* Advances *slot in a ring of `count`, and returns its old value.  It uses neither a division nor a
   branch: a branch that is taken once per round is mispredicted when messages are rare, and that
   costs as much as everything else between a message and its answer. */
static inline uint32_t ucx_next_slot(uint32_t *slot, uint32_t count)
{
    const uint32_t here = *slot;
    *slot = (here + 1) & (0u - (uint32_t)(here + 1 < count));
    return here;
}

/* The message in a slot of this end, with its seal. */
static inline unsigned char *ucx_message_in(const struct ucx_channel *channel, uint64_t slot)
{
    return channel->slots + slot * channel->stride_bytes - HD_SEAL_BYTES;
}

struct ucx_card;

/* How a message is sent.  prepare, connect and finish are [setup], all others [data]. */
struct ucx_mode {
    const char *name;
    uint64_t features;    /* of UCX, in addition to tags */
    bool writes_remotely; /* a peer that is not messaged may write here after quiesce */

    /* prepare allocates the memory of all channels and describes it in the card; finish frees it.
       connect may be NULL. */
    hd_status (*prepare)(struct hd_transport *instance, struct ucx_card *card);
    hd_status (*connect)(struct hd_transport *instance, struct ucx_peer *peer,
                         const struct ucx_card *card);
    void (*finish)(struct hd_transport *instance);

    /* Called after posted_count, or released_count, has been increased.  receive and release may
       be NULL. */
    hd_status (*send)(struct hd_transport *instance, struct ucx_channel *channel);
    hd_status (*receive)(struct hd_transport *instance, struct ucx_channel *channel);
    hd_status (*release)(struct hd_transport *instance, struct ucx_channel *channel);

    /* Counts what has landed and starts what may go.  HD_OK: something moved, and more may follow;
       else HD_IN_PROGRESS. */
    hd_status (*advance)(struct hd_transport *instance, struct ucx_channel *channel);
    /* Whether everything that this rank sends on the channel, credits included, has left it. */
    bool (*is_settled)(const struct ucx_channel *channel);
    /* After the warm-up: starts again at message 0. */
    void (*reset)(struct ucx_channel *channel);
};

/* What every rank publishes. */
struct ucx_card {
    struct book_card head;
    uint64_t region; /* ucx_put: the address of its region */
    uint32_t address_bytes, rkey_bytes;
    unsigned char address[UCX_ADDRESS_BYTES];
    unsigned char rkey[UCX_RKEY_BYTES];
};

struct hd_transport {
    struct book book;
    const struct ucx_mode *mode;
    uint64_t spin_ns;
    uint32_t look_count; /* looks of a spinning wait between two reads of the clock */
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_mem_h memory;             /* ucx_put: the handle of `region` */
    uint64_t mapped_bytes;        /* ucx_put: of `region` */
    unsigned char *region;        /* all slots; ucx_put: words, then slots */
    struct ucx_peer *peers;       /* [rank_count] */
    struct ucx_channel *channels; /* [book.own_count] */
    struct ucx_flight *flights;   /* of all channels */
    bool is_open;                 /* the warm-up is over: transfers are reported */
    bool may_be_written;          /* by a peer, so the memory must be leaked; quiesce decides */
};

/* A UCX call of this channel failed.  A broken connection only marks the peer as lost; any other
   error fails the instance. */
hd_status ucx_fail_channel(struct hd_transport *instance, struct ucx_channel *channel,
                           ucs_status_t status);

/* --- worker.c --- */

hd_status ucx_worker_open(struct hd_transport *instance);
hd_status ucx_worker_introduce(struct hd_transport *instance, struct ucx_card *card);
hd_status ucx_worker_connect(struct hd_transport *instance, struct ucx_peer *peer,
                             const struct ucx_card *card);
/* Destroys endpoints, worker and context, and with them every operation that has not ended. */
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

/* --- slots.c [setup] --- */

/* The distance of two slots of a channel, each with its seal before it. */
uint64_t ucx_stride_bytes(const struct hd_transport *instance, const struct hd_channel *shape);
/* The bytes of all slots of this rank, at both kinds of ends.  HD_NO_MEMORY. */
hd_status ucx_count_slots(struct hd_transport *instance, uint64_t *bytes);
/* HD_NO_MEMORY if this host has less. */
hd_status ucx_check_room(struct hd_transport *instance, uint64_t bytes);
hd_status ucx_refuse_slots(struct hd_transport *instance, uint64_t bytes, const char *reason);

/* --- wait.c --- */

/* Progresses UCX and all channels.  HD_OK if anything moved, else HD_IN_PROGRESS. [data] */
hd_status ucx_move(struct hd_transport *instance);

struct ucx_wait {
    /* Whether the wait is over; NULL: it is once `goal` messages of `channel` are done. */
    bool (*is_over)(struct hd_transport *instance, const struct ucx_wait *wait);
    struct ucx_channel *channel; /* looked at first; NULL: none in particular */
    struct ucx_peer *peer;       /* its end ends the wait; NULL: no peer's end does */
    uint64_t goal;
    uint64_t deadline_ns;
    bool at_rest; /* only UCX moves, no channel does, even if the instance has failed */
};

/* HD_OK, HD_PEER_LOST, HD_TIMEOUT, or the failure of the instance; reports nothing. [data] */
hd_status ucx_wait_for(struct hd_transport *instance, const struct ucx_wait *wait);

/* --- name.c --- */

/* Sets the carrier of all channels to and from `peer`. */
void ucx_name_channels(struct hd_transport *instance, const struct ucx_peer *peer);
/* Whether UCX has real puts to this endpoint; false if it emulates them or does not say. */
bool ucx_has_puts(ucp_ep_h ep);
/* Whether every put to this endpoint is a copy into shared memory. */
bool ucx_is_memory(ucp_ep_h ep);

/* --- channel.c: the data calls --- */

/* Reports to the trace when this end was ready (source), or ready and done (target); 0: unknown. */
void ucx_report(const struct hd_transport *instance, const struct ucx_channel *channel,
                uint64_t sequence, uint64_t begin_ns, uint64_t end_ns);
/* The time for such a report; 0 if the core keeps none. */
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
/* Accepts an instance in any state of open. */
void ucx_close(struct hd_transport *instance, uint64_t deadline_ns);

#endif /* UCX_H */
