/*
 * cuda_ipc/ipc.h - what the files of the cuda_ipc transport share; see cuda_ipc.c.
 *
 *   memory of a rank                          allocated by  also mapped by
 *   arena: slots of all incoming channels     cudaMalloc    their sources, by one IPC handle
 *   sends: slots of all outgoing channels     cudaMalloc    no other process
 *   words: one ipc_words a channel            memfd         their sources; both ends register
 *                                                           them with CUDA
 *
 * The place of a slot follows from the setup, which all ranks share.  A rank whose peer is a thread
 * of the same process uses the peer's addresses: CUDA does not open a handle of its own process.
 *
 * open.c contains the steps of open, arena.c the memory, stream.c the copies, signal.c their order,
 * warm_up.c the test of the path, peer.c the deaths of peers, close.c the end.
 */
#ifndef CUDA_IPC_H
#define CUDA_IPC_H

#include "cuda_library.h"
#include "books_open.h"

#define IPC_MAGIC      0x326970616475636full
#define IPC_LINE_BYTES 128
#define IPC_POISON     ((uint64_t)1 << 62) /* larger than every sequence */

/* The words of a channel, in its target's memory.  Streams write `arrived` and `credit`. */
struct ipc_words {
    /* Written by the source: messages 0 .. arrived-1 are whole; it copies no more; it has unmapped
       the target's arena. */
    _Alignas(IPC_LINE_BYTES) _Atomic uint64_t arrived;
    _Alignas(IPC_LINE_BYTES) _Atomic uint64_t source_stopped;
    _Atomic uint64_t source_closed;

    /* Written by the target: messages 0 .. credit-1 are released; it reads no more. */
    _Alignas(IPC_LINE_BYTES) _Atomic uint64_t credit;
    _Alignas(IPC_LINE_BYTES) _Atomic uint64_t target_stopped;
};

/* What every rank publishes. */
struct ipc_card {
    struct book_card head;
    uint64_t nonce; /* as at the begin of its words: proves that the peer maps the right file */
    uint64_t shift_bytes; /* from the begin of the allocation to slot 0 */
    uint64_t arena;       /* the address, for a rank of the same process */
    uint64_t words;       /* the address of its words, for the same purpose */
    int32_t descriptor;   /* of its words */
    char bus_id[20];      /* of its GPU: ordinals differ between processes */
    cudaIpcMemHandle_t handle;
};

struct ipc_peer {
    struct book_peer book;
    int device;               /* its GPU, by this process's ordinal */
    bool is_registered;       /* this instance has registered its words with CUDA */
    uint64_t arena_bytes;     /* of the channels that end at this peer */
    unsigned char *words;     /* of its channels: a page with the nonce, then ipc_words */
    unsigned char *words_gpu; /* the same memory, as streams address it */
    unsigned char *arena;     /* its slot 0; NULL if this rank uses none */
    void *import;             /* from cudaIpcOpenMemHandle; NULL within one process */
};

/* One send slot. */
struct ipc_send {
    cudaEvent_t written; /* the caller's stream has reached post_send */
    cudaEvent_t sent;    /* the copy has ended and its signal is written */
    bool is_ordered;     /* the message was posted with a stream, so `written` is recorded */
};

/* This rank's end of a channel.  A stream may still wait for the last of book.readable_count. */
struct ipc_channel {
    struct book_channel book;
    struct ipc_words *words; /* NULL until connect */
    CUdeviceptr words_gpu;
    struct ipc_peer *peer;
    unsigned char *own_slots;  /* source: send slots; target: receive slots */
    unsigned char *peer_slots; /* source: the receive slots */
    uint64_t stride_bytes;
    uint64_t offset_bytes;       /* of slot 0 in the target's arena */
    cudaStream_t stream;         /* source: for its copies; borrowed from the instance */
    struct ipc_send *sends;      /* source: [send_depth] */
    uint64_t started_count;      /* source: copies that are enqueued */
    uint64_t sent_count;         /* source: messages whose `sent` has passed */
    uint64_t known_count;        /* the peer's word when it was last read */
    cudaStream_t release_stream; /* target: the stream of the last release; NULL: the host */
};

struct hd_transport {
    struct book book;
    struct ipc_peer *peers;       /* [rank_count] */
    struct ipc_channel *channels; /* [book.own_count] */
    struct cuda_library cuda;
    uint64_t nonce;
    int device;
    uint32_t queue_count;  /* hardware queues: CUDA_DEVICE_MAX_CONNECTIONS */
    uint32_t stream_count; /* of copies */
    bool is_paced;         /* a copy is enqueued only when it need not wait in its stream */
    bool is_at_rest;       /* quiesce has succeeded: memory may be freed */
    uint64_t looked_ns;    /* when the peers were last checked */
    int descriptor;        /* of this rank's words; -1 */
    uint64_t words_bytes;  /* of every rank's */
    void *arena;           /* this rank's allocation of receive slots; NULL: none */
    void *sends;           /* and of send slots */
    uint64_t sends_bytes;
    uint64_t shift_bytes;  /* see ipc_card */
    cudaStream_t *streams; /* [stream_count + 1]; the last is for the warm-up */
};

/* Report a failed call of CUDA: HD_OK or HD_DEVICE.  `channel` may be NULL. */
hd_status ipc_runtime(struct hd_transport *instance, const struct ipc_channel *channel,
                      const char *call, cudaError_t error);
hd_status ipc_driver(struct hd_transport *instance, const struct ipc_channel *channel,
                     const char *call, CUresult error);

/* Makes one call of CUDA and reports its failure under its name. */
#define IPC_RUNTIME(instance, channel, call, ...) \
    ipc_runtime(instance, channel, #call, (instance)->cuda.call(__VA_ARGS__))
#define IPC_DRIVER(instance, channel, call, ...) \
    ipc_driver(instance, channel, #call, (instance)->cuda.call(__VA_ARGS__))

/* --- arena.c [setup] --- */

hd_status ipc_arena_measure(struct hd_transport *instance);
/* Words, arena and send slots of this rank.  HD_NO_MEMORY, HD_DEVICE. */
hd_status ipc_arena_make(struct hd_transport *instance);
/* Checks by the card that the peer's GPU is visible here and within reach.  HD_UNSUPPORTED. */
hd_status ipc_arena_reach(struct hd_transport *instance, struct ipc_peer *peer,
                          const struct ipc_card *card);
/* Maps the words and the arena of a peer, once for each peer.  HD_UNSUPPORTED. */
hd_status ipc_arena_open(struct hd_transport *instance, struct ipc_peer *peer,
                         const struct ipc_card *card);
/* Unmaps the arena of a peer; its words stay mapped until ipc_arena_free. */
void ipc_arena_close(struct hd_transport *instance, struct ipc_peer *peer);
/* Frees device memory and unmaps all words, at rest only: a stream may still use them. */
void ipc_arena_free(struct hd_transport *instance);

/* --- stream.c --- */

/* Streams and events of this rank's outgoing channels. [setup] */
hd_status ipc_streams_make(struct hd_transport *instance);
void ipc_streams_free(struct hd_transport *instance);
/* Starts the copies that have their credit; sets *moved if there were any. [data] */
hd_status ipc_start_copies(struct hd_transport *instance, struct ipc_channel *channel, bool *moved);
/* Whether the send slot of `sequence` has been read: HD_OK, HD_IN_PROGRESS. */
hd_status ipc_look_sent(struct hd_transport *instance, struct ipc_channel *channel,
                        uint64_t sequence);
/* Whether all streams of this rank are idle, or CUDA has failed. */
bool ipc_is_idle(struct hd_transport *instance);

/* --- signal.c --- */

/* Records in the caller's stream that the slot is written; a post enqueues nothing else there. */
hd_status ipc_mark_written(struct hd_transport *instance, struct ipc_channel *channel,
                           uint64_t sequence, void *stream);
/* Enqueues the copy of `sequence`, then its signal, then its `sent` event. */
hd_status ipc_copy(struct hd_transport *instance, struct ipc_channel *channel, uint64_t sequence,
                   uint64_t signal);
/* Makes the caller's stream wait until `sequence` has arrived. */
hd_status ipc_await_signal(struct hd_transport *instance, struct ipc_channel *channel,
                           uint64_t sequence, void *stream);
/* Gives the credits of all messages before released_count, once `stream` gets here. */
hd_status ipc_give_credit(struct hd_transport *instance, struct ipc_channel *channel, void *stream);

/* --- peer.c --- */

/* Fails the instance if a peer has ended for which a stream, a copy, or the caller (on channel
   `asked`, or NULL) waits.  Checks at most every few milliseconds. [data] */
hd_status ipc_look_for_deaths(struct hd_transport *instance, const struct ipc_channel *asked);
/* Sleeps once, longer each time. */
void ipc_nap(uint64_t *pause_ns);

/* --- cuda_ipc.c, warm_up.c, close.c, open.c --- */

/* Starts the copies that have their credit, on every channel. [data] */
hd_status ipc_move(struct hd_transport *instance, bool *moved);
hd_status ipc_warm_up(struct hd_transport *instance, uint64_t deadline_ns);
void ipc_poison(struct hd_transport *instance);
hd_status ipc_quiesce(struct hd_transport *instance, uint64_t deadline_ns);
void ipc_close_all(struct hd_transport *instance, uint64_t deadline_ns);
hd_status ipc_open_all(const struct hd_transport_setup *setup, struct hd_transport **out);

/* The word that this rank reads: what has arrived here, or what the target has released. */
static inline uint64_t ipc_news(const struct ipc_channel *channel)
{
    return atomic_load(channel->book.is_source ? &channel->words->credit
                                               : &channel->words->arrived);
}

static inline CUdeviceptr ipc_gpu_word(const struct ipc_channel *channel, size_t offset)
{
    return channel->words_gpu + offset;
}

#endif /* CUDA_IPC_H */
