/*
 * nccl_link/nccl_link.h - what nccl and nccl_rma share: communicators, turns, events, the end.
 *
 *   nccl.c, nccl_rma.c   how a message crosses: struct nccl_mode
 *   channel.c               the calls of the contract: whose turn it is, what is free, what arrived
 *   launch.c             calls of NCCL: one at a time, not blocking, in groups where law 7 says so
 *   check.c              what this machine and these ranks must have
 *   open.c               cards, communicators, warm-up
 *   close.c              abort, rest, the end
 *
 * Every channel has a communicator of two ranks (0 the source, 1 the target) and a stream of its
 * own, so two channels between the same ranks share nothing, and none waits for another on the
 * device.  All are made and used once in open, in channel order, which is one order for all ranks.
 *
 *   compute  | 4F2 |event            |              compute        wait(event)| 5F2 |
 *                    \                                                /
 *   channel            wait| send ... |event        channel  recv ... |event
 *   source                                          target
 *
 * NCCL is called under one lock, and an abort waits for nobody: it sets a word and wakes a thread
 * that tears the communicators down once the lock is free.
 */
#ifndef NCCL_LINK_H
#define NCCL_LINK_H

#include "cuda_library.h"
#include "nccl_library.h"

#include "books_open.h"

#include <pthread.h>
#include <semaphore.h>

#define NCCL_MAGIC 0x316c636e6c646468ull

enum { NCCL_SOURCE = 0, NCCL_TARGET = 1 }; /* ranks of every communicator */

/* This rank's end of one channel. */
struct nccl_channel {
    struct book_channel book;
    uint64_t stride_bytes;
    unsigned char *slots; /* on the device */
    ncclComm_t comm;
    ncclWindow_t window;    /* nccl_rma */
    cudaStream_t stream;    /* of the channel */
    cudaStream_t arrivals;  /* nccl_rma, target: waits that no caller's stream makes */
    cudaEvent_t ready;      /* the caller's stream, when it posted or released */
    cudaEvent_t *moved;     /* [slot_count]: the message in the slot has left, or has arrived */
    cudaEvent_t *freed;     /* [slot_count], target: the last reader of the slot has ended */
    uint8_t *is_freed;      /* [slot_count]: freed is recorded; else the host said so itself */
    uint64_t done_count;    /* events that the device has passed */
    uint64_t awaited_count; /* nccl_rma: waits for signals that are enqueued */
    _Atomic uint64_t finished_count;
};

/* How a message crosses.  [data], but prepare and finish, which are [setup]. */
struct nccl_mode {
    const char *name;
    int is_one_sided;
    /* What must hold on this machine for this mode; a sentence in `reason` if it does not. */
    hd_status (*check)(struct hd_transport *instance, char reason[NCCL_REASON_BYTES]);
    /* The channel's slots, and what the library must know of them; collective for its two ranks. */
    hd_status (*prepare)(struct hd_transport *instance, struct nccl_channel *channel);
    void (*finish)(struct hd_transport *instance, struct nccl_channel *channel);
    /* Enqueues message `sequence`, behind channel->ready if `is_behind`. */
    hd_status (*send)(struct hd_transport *instance, struct nccl_channel *channel,
                      uint64_t sequence);
    hd_status (*receive)(struct hd_transport *instance, struct nccl_channel *channel,
                         uint64_t sequence);
    /* Target: once `moved` of the message is recorded, on `stream` or on one of the channel's. */
    hd_status (*await)(struct hd_transport *instance, struct nccl_channel *channel,
                       uint64_t sequence, cudaStream_t stream);
    hd_status (*release)(struct hd_transport *instance, struct nccl_channel *channel,
                         uint64_t sequence);
    /* Source, in the warm-up: enqueues the wait for the credit of the first message. */
    hd_status (*await_credit)(struct hd_transport *instance, struct nccl_channel *channel);
};

enum { NCCL_GROUP_MAX = 64 };

struct hd_transport {
    struct book book;
    const struct nccl_mode *mode;
    struct nccl_channel *channels; /* [book.own_count] */
    uint32_t device;
    uint32_t max_ctas;
    struct cuda_library cuda;
    struct nccl_library nccl;
    unsigned char *staging; /* host, pinned: for the warm-up */
    cudaEvent_t base;       /* recorded at base_ns: event times count from it */
    uint64_t base_ns;

    /* Posts of a law-7 group, until the last of them. */
    struct nccl_channel *group[NCCL_GROUP_MAX];
    uint64_t group_sequence[NCCL_GROUP_MAX];
    uint32_t group_count;
    int is_group_open;

    pthread_mutex_t lock; /* whoever calls NCCL */
    pthread_t helper;
    int has_helper;
    sem_t wake;
    atomic_int is_ending, is_torn_down;
    int may_be_written; /* by a peer, so that memory must stay; quiesce decides */
};

/* --- launch.c: HD_OK, or a failure that is reported; `call` names it --------------------- */

/* Of CUDA, for this channel (NULL: none). */
hd_status nccl_cuda(struct hd_transport *instance, const struct nccl_channel *channel,
                    cudaError_t error, const char *call);
/* Makes the instance's device that of the calling thread: any thread may call. */
hd_status nccl_use_device(struct hd_transport *instance);
/* Of NCCL: waits, with the lock held, for work of the library's own on this host, never for a peer;
   until `deadline_ns`, or an abort. */
hd_status nccl_settle(struct hd_transport *instance, const struct nccl_channel *channel,
                      ncclResult_t result, const char *call, uint64_t deadline_ns);
/* Of a call of NCCL that may still be in progress: nccl_launch settles it. */
hd_status nccl_begun(struct hd_transport *instance, const struct nccl_channel *channel,
                     ncclResult_t result, const char *call);
/* Joins, opens or ends the group that `message` belongs to; records `moved` once it has begun. */
hd_status nccl_launch(struct hd_transport *instance, struct nccl_channel *channel,
                      const struct hd_message *message,
                      hd_status (*enqueue)(struct hd_transport *, struct nccl_channel *, uint64_t));
/* Has the device passed the event?  HD_OK, HD_IN_PROGRESS, or a failure. */
hd_status nccl_query(struct hd_transport *instance, const struct nccl_channel *channel,
                     cudaEvent_t event);
/* Makes channel->stream wait for what `stream` holds so far; NULL: nothing. */
hd_status nccl_follow(struct hd_transport *instance, struct nccl_channel *channel,
                      cudaEvent_t event, void *stream);
/* Until `event` is passed: naps between looks.  HD_TIMEOUT is not reported. */
hd_status nccl_await_event(struct hd_transport *instance, const struct nccl_channel *channel,
                           cudaEvent_t event, uint64_t deadline_ns);
void nccl_nap(void);

/* --- check.c ----------------------------------------------------------------------------- */

struct nccl_card {
    struct book_card head;
    struct book_place place;
    int32_t nccl_version, device;
    char pci[32];
};

/* Loads the libraries, chooses the device, and asks the mode; fills the card. */
hd_status nccl_check(struct hd_transport *instance, const struct hd_transport_setup *setup,
                     struct nccl_card *card);
/* Does the card of `rank` go with this rank's? */
hd_status nccl_meet(struct hd_transport *instance, const struct nccl_card *cards, uint32_t rank);

/* --- channel.c: the calls of the contract --------------------------------------------------- */

void *nccl_slot(struct hd_transport *instance, const struct hd_message *message);
hd_status nccl_reserve(struct hd_transport *instance, const struct hd_message *message);
hd_status nccl_post_send(struct hd_transport *instance, const struct hd_message *message,
                         void *stream);
hd_status nccl_post_recv(struct hd_transport *instance, const struct hd_message *message);
hd_status nccl_test(struct hd_transport *instance, const struct hd_message *message);
hd_status nccl_wait(struct hd_transport *instance, const struct hd_message *message, void *stream,
                    uint64_t deadline_ns);
hd_status nccl_release(struct hd_transport *instance, const struct hd_message *message,
                       void *stream);
hd_status nccl_progress(struct hd_transport *instance);
void nccl_stats(struct hd_transport *instance, uint32_t number, struct hd_channel_stats *out);
/* Counts what the device has passed.  HD_OK if anything, else HD_IN_PROGRESS. */
hd_status nccl_advance(struct hd_transport *instance, struct nccl_channel *channel);

/* --- open.c, close.c --------------------------------------------------------------------- */

hd_status nccl_open(const struct hd_transport_setup *setup, const struct nccl_mode *mode,
                    struct hd_transport **out);
hd_status nccl_start_helper(struct hd_transport *instance);
void nccl_abort(struct hd_transport *instance, const char *reason);
hd_status nccl_quiesce(struct hd_transport *instance, uint64_t deadline_ns);
/* In whatever state open has left it. */
void nccl_close(struct hd_transport *instance, uint64_t deadline_ns);

/* --- descriptors ------------------------------------------------------------------------- */

/* Options: these three, in this order, are those of both plugins. */
enum nccl_option { NCCL_OPTION_RUNTIME, NCCL_OPTION_LIBRARY, NCCL_OPTION_CTAS };

#define NCCL_OPTION_ROWS                                                              \
    CUDA_RUNTIME_OPTION,                                                              \
    {                                                                                 \
        .name = "library", .initial = "libnccl.so.2",                                 \
        .help = "The NCCL to load: a path, or a name that the dynamic linker knows.", \
        .type = HD_OPTION_TEXT                                                        \
    }

#define NCCL_OPS(open_function)                                                                   \
    {                                                                                             \
        .size = sizeof(struct hd_transport_ops), .open = open_function, .slot = nccl_slot,        \
        .reserve = nccl_reserve, .post_send = nccl_post_send, .post_recv = nccl_post_recv,        \
        .test = nccl_test, .wait = nccl_wait, .release = nccl_release, .progress = nccl_progress, \
        .abort = nccl_abort, .quiesce = nccl_quiesce, .close = nccl_close, .stats = nccl_stats    \
    }

#endif /* NCCL_LINK_H */
