/*
 * nccl_link/nccl_link.h - what nccl and nccl_rma share: communicators, call order, events, the end.
 *
 *   nccl.c, nccl_rma.c   how a message is sent: struct nccl_mode
 *   channel.c            the data calls: their order, which slot is free, what has arrived
 *   launch.c             calls of NCCL: one at a time, not blocking, in groups if law 7 requires
 *   check.c              what this machine and these ranks must have
 *   open.c               communicators and warm-up: the steps of open
 *   close.c              abort, quiesce, close
 *
 * Every channel has a communicator of two ranks (0 the source, 1 the target) and its own stream, so
 * two channels between the same ranks share nothing, and none waits for another on the device.  All
 * are created and used once in open, in channel order, which is the same on all ranks.
 *
 *   compute  | 4F2 |event            |              compute        wait(event)| 5F2 |
 *                    \                                                /
 *   channel            wait| send ... |event        channel  recv ... |event
 *   source                                          target
 *
 * NCCL is called under one lock.  An abort does not take the lock: it sets a word and wakes a
 * thread that aborts the communicators once the lock is free.
 */
#ifndef NCCL_LINK_H
#define NCCL_LINK_H

#include "cuda_library.h"
#include "nccl_library.h"

#include "books_open.h"

#include <pthread.h>
#include <semaphore.h>

#define NCCL_MAGIC 0x326c636e6c646468ull

enum { NCCL_SOURCE = 0, NCCL_TARGET = 1 }; /* the ranks within every communicator */

/* This rank's end of one channel. */
struct nccl_channel {
    struct book_channel book;
    uint64_t stride_bytes;
    unsigned char *slots; /* on the device */
    ncclComm_t comm;
    ncclWindow_t window;    /* nccl_rma */
    cudaStream_t stream;    /* the channel's */
    cudaStream_t arrivals;  /* nccl_rma, target: for waits that the caller's stream does not make */
    cudaEvent_t ready;      /* the caller's stream when it posted or released */
    cudaEvent_t *moved;     /* [slot_count]: the message in the slot has left, or has arrived */
    cudaEvent_t *freed;     /* [slot_count], target: the last reader of the slot has ended */
    bool *is_freed;         /* [slot_count]: `freed` is recorded; else the host released it */
    uint64_t done_count;    /* messages whose `moved` the device has passed */
    uint64_t awaited_count; /* nccl_rma: waits for signals that are enqueued */
    _Atomic uint64_t finished_count; /* done_count, for stats */
};

/* How a message is sent.  check, prepare and finish are [setup], all others [data].  check,
   receive, await, release and await_credit may be NULL: the mode has nothing to do. */
struct nccl_mode {
    const char *name;
    bool is_one_sided;
    /* Checks what this mode needs of the machine; writes `reason` if something is missing. */
    hd_status (*check)(struct hd_transport *instance, char reason[NCCL_REASON_BYTES]);
    /* Allocates the channel's slots and registers them; collective for its two ranks. */
    hd_status (*prepare)(struct hd_transport *instance, struct nccl_channel *channel);
    void (*finish)(struct hd_transport *instance, struct nccl_channel *channel);
    /* Enqueue message `sequence` on the channel's stream. */
    hd_status (*send)(struct hd_transport *instance, struct nccl_channel *channel,
                      uint64_t sequence);
    hd_status (*receive)(struct hd_transport *instance, struct nccl_channel *channel,
                         uint64_t sequence);
    /* Target: records `moved` of the message, on `stream` or on a stream of the channel. */
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
    unsigned char *staging; /* pinned host memory for the warm-up */
    cudaEvent_t base;       /* recorded at base_ns; event times are relative to it */
    uint64_t base_ns;

    /* The posts of a law-7 group so far. */
    struct nccl_channel *group[NCCL_GROUP_MAX];
    uint64_t group_sequence[NCCL_GROUP_MAX];
    uint32_t group_count;
    bool is_group_open;

    pthread_mutex_t lock; /* held during every call of NCCL */
    pthread_t helper;
    bool has_helper;
    sem_t wake;
    atomic_int is_ending, is_torn_down;
    bool may_be_written; /* by a peer, so memory must be leaked; quiesce decides */
};

/* --- launch.c: each reports a failure of `call` ------------------------------------------ */

/* Checks the result of a call of CUDA; `channel` may be NULL. */
hd_status nccl_cuda(struct hd_transport *instance, const struct nccl_channel *channel,
                    cudaError_t error, const char *call);
/* Makes one call of CUDA and reports its failure under its name. */
#define NCCL_CUDA(instance, channel, call, ...) \
    nccl_cuda(instance, channel, (instance)->cuda.call(__VA_ARGS__), #call)
/* Makes the instance's device current in the calling thread. */
hd_status nccl_use_device(struct hd_transport *instance);
/* Waits with the lock held until NCCL's own thread has done its work on this host, which never
   waits for a peer; until `deadline_ns` or an abort. */
hd_status nccl_settle(struct hd_transport *instance, const struct nccl_channel *channel,
                      ncclResult_t result, const char *call, uint64_t deadline_ns);
/* The current result of a channel's communicator. */
ncclResult_t nccl_async_result(struct hd_transport *instance, const struct nccl_channel *channel);
/* Checks the result of a call of NCCL that may still be in progress. */
hd_status nccl_begun(struct hd_transport *instance, const struct nccl_channel *channel,
                     ncclResult_t result, const char *call);
/* Makes one call of NCCL and reports its failure under its name. */
#define NCCL_BEGUN(instance, channel, call, ...) \
    nccl_begun(instance, channel, (instance)->nccl.call(__VA_ARGS__), #call)
/* Enqueues a message (`enqueue` may be NULL), and opens or ends its group.  Records `moved` when
   the group has begun. */
hd_status nccl_launch(struct hd_transport *instance, struct nccl_channel *channel,
                      const struct hd_message *message,
                      hd_status (*enqueue)(struct hd_transport *, struct nccl_channel *, uint64_t));
/* Whether the device has passed the event: HD_OK, HD_IN_PROGRESS, or a failure. */
hd_status nccl_query(struct hd_transport *instance, const struct nccl_channel *channel,
                     cudaEvent_t event);
/* Makes channel->stream wait for everything on `stream` so far; NULL: for nothing. */
hd_status nccl_follow(struct hd_transport *instance, struct nccl_channel *channel,
                      cudaEvent_t event, void *stream);
/* Waits until the device passes `event`, in naps.  Does not report HD_TIMEOUT. */
hd_status nccl_await_event(struct hd_transport *instance, const struct nccl_channel *channel,
                           cudaEvent_t event, uint64_t deadline_ns);
void nccl_nap(void);

/* --- check.c ----------------------------------------------------------------------------- */

struct nccl_card {
    struct book_card head;
    int32_t nccl_version, device;
    char pci[32];
};

/* Loads the libraries, chooses the device, checks the mode's needs, and fills the card. */
hd_status nccl_check(struct hd_transport *instance, const struct hd_transport_setup *setup,
                     struct nccl_card *card);
/* Checks that the card of `rank` fits this rank's. */
hd_status nccl_meet(struct hd_transport *instance, const struct nccl_card *cards, uint32_t rank);

/* --- channel.c: the data calls ----------------------------------------------------------- */

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
/* Counts what the device has passed.  HD_OK if it has passed anything, else HD_IN_PROGRESS. */
hd_status nccl_advance(struct hd_transport *instance, struct nccl_channel *channel);

/* --- open.c, close.c --------------------------------------------------------------------- */

hd_status nccl_open(const struct hd_transport_setup *setup, const struct nccl_mode *mode,
                    struct hd_transport **out);
hd_status nccl_start_helper(struct hd_transport *instance);
void nccl_abort(struct hd_transport *instance, const char *reason);
hd_status nccl_quiesce(struct hd_transport *instance, uint64_t deadline_ns);
/* Accepts an instance in any state of open. */
void nccl_close(struct hd_transport *instance, uint64_t deadline_ns);

/* --- descriptors ------------------------------------------------------------------------- */

/* The options in the order of their rows; only nccl has the third. */
enum nccl_option { NCCL_OPTION_RUNTIME, NCCL_OPTION_LIBRARY, NCCL_OPTION_CTAS };

#define NCCL_OPTION_ROWS                                                               \
    CUDA_RUNTIME_OPTION,                                                               \
    {                                                                                  \
        .name = "library", .initial = "libnccl.so.2",                                  \
        .help = "The NCCL library to load: a path, or a name for the dynamic linker.", \
        .type = HD_OPTION_TEXT                                                         \
    }

#define NCCL_OPS(open_function)                                                                   \
    {                                                                                             \
        .size = sizeof(struct hd_transport_ops), .open = open_function, .slot = nccl_slot,        \
        .reserve = nccl_reserve, .post_send = nccl_post_send, .post_recv = nccl_post_recv,        \
        .test = nccl_test, .wait = nccl_wait, .release = nccl_release, .progress = nccl_progress, \
        .abort = nccl_abort, .quiesce = nccl_quiesce, .close = nccl_close, .stats = nccl_stats    \
    }

#endif /* NCCL_LINK_H */
