/*
 * cuda_ipc/ipc.h - what the files of the cuda_ipc transport share; cuda_ipc.c says how it works.
 *
 *   memory of a rank                  made by      also mapped by
 *   arena: slots of all its incoming  cudaMalloc   their sources, through one IPC handle
 *   sends: slots of all its outgoing  cudaMalloc   nobody
 *   words: one ipc_words a channel    memfd        their sources; registered with CUDA at both ends
 *
 * Where a slot lies follows from the setup, which all ranks share.  A rank whose peer is a thread
 * of the same process uses the peer's addresses as they are: CUDA opens no handle of its own.
 *
 * open.c joins the ranks, arena.c has the memory, stream.c the copies, signal.c their order,
 * warm_up.c proves the path, peer.c sees deaths, close.c comes to rest.
 */
#ifndef CUDA_IPC_H
#define CUDA_IPC_H

#include "cuda_library.h"
#include "books_open.h"

#define IPC_MAGIC      0x636970616475636full
#define IPC_LINE_BYTES 128
#define IPC_POISON     ((uint64_t)1 << 62) /* above every sequence */

/* The words of a channel lie in its target's memory.  A stream writes `arrived` and `credit`. */
struct ipc_words {
    _Alignas(IPC_LINE_BYTES) _Atomic uint64_t arrived; /* by the source: 0 .. arrived-1 are whole */
    _Alignas(IPC_LINE_BYTES) _Atomic uint64_t source_stopped; /* it copies no more */
    _Atomic uint64_t source_closed;                           /* it has unmapped the arena */
    _Alignas(
        IPC_LINE_BYTES) _Atomic uint64_t credit; /* by the target: 0 .. credit-1 are released */
    _Alignas(IPC_LINE_BYTES) _Atomic uint64_t target_stopped;
};

/* What every rank publishes of itself. */
struct ipc_card {
    struct book_card head;
    struct book_place place;
    uint64_t nonce;       /* as in its words' header: it is this rank's memory */
    uint64_t shift_bytes; /* of slot 0 from the begin of the allocation */
    uint64_t arena;       /* the address, for a rank of the same process */
    uint64_t words;       /* likewise */
    int32_t descriptor;   /* of its words */
    char bus_id[20];      /* of its GPU: ordinals differ between processes */
    cudaIpcMemHandle_t handle;
};

struct ipc_peer {
    struct book_peer book;
    int device;               /* its GPU, by the ordinal that it has here */
    int is_registered;        /* its words, by this instance */
    uint64_t arena_bytes;     /* of the channels that end there */
    unsigned char *words;     /* of its channels: a page with the nonce, then ipc_words */
    unsigned char *words_gpu; /* the same, for streams */
    unsigned char *arena;     /* slot 0 there, or of this rank; NULL where none is used */
    void *import;             /* what cudaIpcOpenMemHandle gave; NULL in one process */
};

/* One send slot. */
struct ipc_send {
    cudaEvent_t written; /* the caller's stream has come to post_send */
    cudaEvent_t sent;    /* the copy is over, and its signal is on its way */
    int is_ordered;      /* `written` holds: the message was posted with a stream */
};

/* This rank's end of a channel; book.readable_count: a stream may wait for the last of them. */
struct ipc_channel {
    struct book_channel book;
    struct ipc_words *words; /* NULL before the peer is known */
    CUdeviceptr words_gpu;
    struct ipc_peer *peer;
    unsigned char *own_slots;  /* source: send slots; target: receive slots */
    unsigned char *peer_slots; /* source: the receive slots */
    uint64_t stride_bytes;
    uint64_t offset_bytes;       /* of slot 0 in the target's arena */
    cudaStream_t stream;         /* source: of its copies; borrowed from the instance */
    struct ipc_send *sends;      /* source: [send_depth] */
    uint64_t started_count;      /* source: those before have their copy in the stream */
    uint64_t sent_count;         /* source: those before have been seen sent */
    uint64_t known_count;        /* the peer's word when it was last read */
    cudaStream_t release_stream; /* target: of the last release; NULL: the host */
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
    int is_paced;          /* a copy enters its stream only when it need not wait there */
    int is_at_rest;        /* quiesce ended well: memory may be freed */
    uint64_t looked_ns;    /* when deaths were last looked for */
    int descriptor;        /* of this rank's words; -1 */
    uint64_t words_bytes;  /* of every rank's */
    void *arena;           /* this rank's allocations; NULL */
    void *sends;           /* likewise */
    uint64_t sends_bytes;  /* of the second */
    uint64_t shift_bytes;
    cudaStream_t *streams; /* [stream_count], and one for the warm-up behind them */
};

/* HD_OK, or the failure of a call of CUDA: HD_DEVICE. */
hd_status ipc_runtime(struct hd_transport *instance, const struct ipc_channel *channel,
                      const char *call, cudaError_t error);
hd_status ipc_driver(struct hd_transport *instance, const struct ipc_channel *channel,
                     const char *call, CUresult error);

/* --- arena.c [setup] --- */

hd_status ipc_arena_measure(struct hd_transport *instance);
/* Words, arena and send slots of this rank.  HD_NO_MEMORY, HD_DEVICE. */
hd_status ipc_arena_make(struct hd_transport *instance);
/* The peer's GPU must be visible here and within reach; asks the card alone.  HD_UNSUPPORTED. */
hd_status ipc_arena_reach(struct hd_transport *instance, struct ipc_peer *peer,
                          const struct ipc_card *card);
/* The words and the arena of a peer, once a peer.  HD_UNSUPPORTED, HD_PROTOCOL. */
hd_status ipc_arena_open(struct hd_transport *instance, struct ipc_peer *peer,
                         const struct ipc_card *card);
/* Gives back the arena of a peer; its words stay until ipc_arena_free. */
void ipc_arena_close(struct hd_transport *instance, struct ipc_peer *peer);
/* Unmaps all words; frees device memory where it is at rest. */
void ipc_arena_free(struct hd_transport *instance, int frees_device);

/* --- stream.c --- */

/* Streams and events of this rank's outgoing channels. [setup] */
hd_status ipc_streams_make(struct hd_transport *instance);
void ipc_streams_free(struct hd_transport *instance);
/* Starts what has its credit; *moved is set if anything was. [data] */
hd_status ipc_start_copies(struct hd_transport *instance, struct ipc_channel *channel, int *moved);
/* Has the send slot of `sequence` been read?  HD_OK, HD_IN_PROGRESS. */
hd_status ipc_look_sent(struct hd_transport *instance, struct ipc_channel *channel,
                        uint64_t sequence);
/* 1 once all streams of this rank are idle, or CUDA has failed. */
int ipc_is_idle(struct hd_transport *instance);

/* --- signal.c --- */

/* All that a post puts into the caller's stream: a mark behind what has written the slot. */
hd_status ipc_mark_written(struct hd_transport *instance, struct ipc_channel *channel,
                           uint64_t sequence, void *stream);
/* Puts the copy of `sequence` into its stream, the signal and the mark of its end behind it. */
hd_status ipc_copy(struct hd_transport *instance, struct ipc_channel *channel, uint64_t sequence,
                   uint64_t signal);
/* The caller's stream waits until `sequence` has arrived. */
hd_status ipc_await_signal(struct hd_transport *instance, struct ipc_channel *channel,
                           uint64_t sequence, void *stream);
/* Gives the credit of all messages before released_count, once `stream` gets here. */
hd_status ipc_give_credit(struct hd_transport *instance, struct ipc_channel *channel, void *stream);

/* --- peer.c --- */

/* Takes hold of the process of the peer's card.  HD_PEER_LOST, HD_UNSUPPORTED. [setup] */
hd_status ipc_peer_hold(struct hd_transport *instance, struct ipc_peer *peer,
                        const struct ipc_card *cards);
/* Fails the instance if the peer of a channel has ended on which a stream or a copy waits, or the
   caller does (`asked`, or NULL).  Looks every few milliseconds. [data] */
hd_status ipc_look_for_deaths(struct hd_transport *instance, const struct ipc_channel *asked);
/* One sleep of a host that waits: longer each time. */
void ipc_nap(uint64_t *pause_ns);

/* --- cuda_ipc.c, warm_up.c, close.c, open.c --- */

/* Starts what has its credit, on every channel; *moved is set if anything was. [data] */
hd_status ipc_move(struct hd_transport *instance, int *moved);
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
