/*
 * heddle/transport.h - the contract between the core and a transport plugin.
 *
 * A transport answers one question: how does a tensor, written on one rank,
 * become readable on another?  It owns the memory that tensors cross in and the
 * signals that say so.  It knows no schedule: the plan fixes beforehand which
 * channels exist, how large and how deep they are, and in which order both ends
 * meet their messages.  Nothing is negotiated while a step runs.
 *
 *   channel   one boundary in one direction, from a source rank to another rank,
 *             its target; two channels between the same ranks share nothing
 *   message   one tensor on one channel; all messages of a channel are as large
 *   sequence  the number of a message on its channel: from 0, counted over the
 *             whole job, never reset, below 2^62
 *   slot      where a message lies: receive slot (sequence mod depth) at the target,
 *             send slot (sequence mod send_depth) at the source; never time
 *   lease     the target's claim on a slot, from its wait until its release
 *   credit    the news, at the source, that a slot has been released
 *
 *   source  reserve -> write the slot -> post_send
 *                                             \  payload, then signal
 *   target  post_recv . . . . . . . . . . . . -> wait -> read the slot -> release
 *                                                                        /
 *   source  reserve(sequence + depth)  <- . . . . . . . . . . . . credit
 *
 * All memory is the transport's, so no caller can free or overwrite what is still
 * being sent.  In place (shm), the source writes the target's slot itself, and the
 * target reads it there until its backward; elsewhere a send slot lies between.
 * So no call takes a level: LOCAL (send slot unread) or, in place, RELEASED is what
 * reserve asks, and ARRIVED is what the target's test and wait ask.
 *
 * Order.  Every data call follows the sequence of its channel, release included.
 * Backwards may end leases in another order: the core then keeps a release that
 * overtakes an older lease until that lease ends, and the plan reckons depth by it
 * (law 6).  Where backwards run in order this costs no slot, so sequence mod depth
 * is enough, and no slot number ever crosses the wire.
 *
 * Groups.  Transfers that law 7 found to depend on each other are posted one after
 * the other, sends and receives mixed, and begin to move at the last of them.
 *
 * Which step and microbatch a message belongs to is the core's affair.  It seals
 * host slots: magic, channel, sequence, step, microbatch, bytes, type and checksum
 * stand in the 64 bytes before a slot, written before post_send and checked after
 * wait.  A transport only carries them along.
 *
 * Every transport guarantees, and `heddle conform` judges:
 *
 *   G1 ordered  messages of a channel become readable in sequence; across channels
 *               there is no order
 *   G2 whole    each arrives exactly once, or the instance fails; never before its
 *               last byte: the signal follows the payload
 *   G3 leased   no slot is written between its wait and its release, and no send
 *               slot is read once it may be reserved again
 *   G4 prompt   only open, wait without a stream, quiesce and close block, each to
 *               a deadline; no wait for a credit enters a caller's stream
 *   G5 live     a plan that keeps laws 4 to 7 with the given depths ends
 *   G6 bounded  a dead peer ends every wait by its deadline, and the error names it
 *   G7 final    the first negative status stays: every later data call returns it,
 *               and nothing is retried
 *   G8 silent   after abort, device work may run on over wrong bytes and signal them
 *               onwards; so the core makes a step visible (optimizer, checkpoint,
 *               metric) only once every rank, its streams drained, has found its own
 *               abort word clear and told the others
 *
 * Threads.  [setup] one thread, nothing beside it.  [data] serialised by the core
 * per instance, from any thread, so nothing may be thread-local.  [any-thread]
 * beside any call, done within 1 ms, behind no lock that is held while waiting.
 *
 * A stream crosses as void *; NULL is the calling thread, "now".  CUDA's legacy
 * default stream is NULL as well, and is therefore never passed.
 *
 * Status.  HD_BUSY took nothing: call progress, then try again.  Any data call may
 * return HD_INVALID (out of turn), HD_ABORTED, HD_PEER_LOST, HD_TIMEOUT, HD_PROTOCOL
 * (the peer broke the sequence), HD_DEVICE or HD_SYSTEM.
 *
 * Measurement.  When a transport learns when a transfer began, ended, or waited on
 * the device for its peer, it calls host->trace_transfer once, in any data call.  Each
 * end says what it knows: of a transfer for which both must be ready, each says when it
 * was, and the later of both is taken for the begin.
 *
 * Growth.  Members are only appended, to structs that begin with their size and to
 * hd_channel, which is reached by pointer; a reader takes what both sides know and
 * zero for the rest.  hd_message is fixed.
 *
 * Sources: the report (docs/sources.md), sections 6.3 and 6.4.  The slot protocol is checked by
 * tests/model/slot_protocol.pml.
 */
#ifndef HEDDLE_TRANSPORT_H
#define HEDDLE_TRANSPORT_H

#include <heddle/plugin.h>
#include <heddle/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HD_SEAL_BYTES 64u /* before each slot, for HD_TRANSPORT_SEALED */

/*
 * Bits of hd_plugin.capabilities.  The first are promises: they hold on every
 * channel, or open refuses.  The last are needs, which the core then serves.
 */
enum hd_transport_capability {
    HD_TRANSPORT_HOST = 1 << 0,             /* slots in host memory */
    HD_TRANSPORT_CUDA = 1 << 1,             /* slots in device memory; takes streams */
    HD_TRANSPORT_SEALED = 1 << 2,           /* the seal before a host slot crosses with it */
    HD_TRANSPORT_IN_PLACE = 1 << 3,         /* the send slot is the receive slot */
    HD_TRANSPORT_NO_RESIDENT = 1 << 4,      /* no kernel holds the device to wait */
    HD_TRANSPORT_PEER_DEATH = 1 << 5,       /* sees a death before the deadline */
    HD_TRANSPORT_UNBLOCKS = 1 << 6,         /* abort ends waits on the device too */
    HD_TRANSPORT_SHARED_DEVICE = 1 << 7,    /* ranks may share one device */
    HD_TRANSPORT_MANY_HOSTS = 1 << 8,       /* ranks may live on several hosts */
    HD_TRANSPORT_SERIAL = 1 << 16,          /* law 7: posts in plan order, in groups */
    HD_TRANSPORT_PROGRESS = 1 << 17,        /* moves only while progress is called */
    HD_TRANSPORT_TARGET_PROGRESS = 1 << 18, /* and only while the peer calls it too */
    HD_TRANSPORT_HOOK = 1 << 19,            /* wraps setup->inner; its other bits are inner's */
};

struct hd_channel {
    uint32_t boundary;   /* between stages boundary and boundary + 1 */
    uint32_t direction;  /* HD_FORWARD: activations; HD_BACKWARD: their gradients */
    uint32_t source;     /* the rank that writes */
    uint32_t target;     /* the rank that reads; never the source */
    uint32_t depth;      /* receive slots, >= 1 */
    uint32_t send_depth; /* send slots, 1 .. depth; unused in place */
    uint64_t bytes;      /* of the payload of every message */
};

/* What open is given: equal on all ranks but for host and device; borrowed until close. */
struct hd_transport_setup {
    uint32_t size;
    uint32_t channel_count;
    const struct hd_channel *const *channels; /* of the whole job, [channel_count] */
    const struct hd_host *host;               /* rank, memory, clock, bootstrap, trace */
    const struct hd_plugin *inner;            /* what a hook wraps, no member NULL */
    const struct hd_host *inner_host;         /* with inner's options */
    uint64_t deadline_ns;                     /* of open; all deadlines are host->now_ns */
    uint32_t memory;                          /* enum hd_memory, of every slot */
    uint32_t device;                          /* its ordinal, if not the host's */
    uint32_t alignment_bytes;                 /* of every slot; a power of two >= 64 */
    uint32_t reserved;
};

struct hd_message {
    uint64_t sequence;
    uint32_t channel;    /* index into channels */
    uint32_t group_left; /* posts of its law-7 group that follow at once; else 0 */
};

struct hd_channel_stats {
    uint32_t size;           /* set by the caller */
    char lane[36];           /* what carries it in truth: "posix", "tcp/eth0" */
    uint64_t finished_count; /* messages readable here; at a source, those that have left their send
                                slots or, in place, that the peer has released */
    uint64_t busy_count;     /* HD_BUSY answers */
    uint64_t resident_ns;    /* kernels held the device before their peer was there */
};

/* The checkable pattern of warm-up and of the null transport, 8 bytes a time. */
static inline uint64_t hd_pattern_word(uint32_t channel, uint64_t sequence, uint64_t word)
{
    return (((uint64_t)channel << 48) ^ (sequence << 24) ^ word) * 0x9e3779b97f4a7c15ull;
}

struct hd_transport; /* one instance; the plugin defines it */

/* The core calls no member past `size`, and none that is NULL where NULL is allowed. */
struct hd_transport_ops {
    uint32_t size; /* sizeof(struct hd_transport_ops), as the plugin was compiled */

    /*
     * Allocates all arenas and makes every connection of this rank, in channel
     * order: one global order, so no two pairs wait for each other.  Cards cross
     * by the host's put, fence and get.  Last, one message of hd_pattern_word with
     * sequence UINT64_MAX goes down each channel's real path, is verified, and its
     * credit comes back; words count it as 1 and are reset after the last fence.  HD_UNSUPPORTED,
     * HD_NO_MEMORY. [setup]
     */
    hd_status (*open)(const struct hd_transport_setup *setup, struct hd_transport **instance);

    /* Where this rank writes or reads the message, until close; arithmetic only. [any-thread] */
    void *(*slot)(struct hd_transport *instance, const struct hd_message *message);

    /*
     * Source: claims the slot for writing.  HD_BUSY until the host itself sees it
     * free: in place its credit has come, elsewhere its last send has ended. [data]
     */
    hd_status (*reserve)(struct hd_transport *instance, const struct hd_message *message);

    /* Source: written once `stream` gets here; goes when it has a credit.  Never BUSY. [data] */
    hd_status (*post_send)(struct hd_transport *instance, const struct hd_message *message,
                           void *stream);

    /*
     * Target: the slot may receive; the message `depth` before it has been released.
     * Two-sided transports receive now, behind that release; others check. [data]
     */
    hd_status (*post_recv)(struct hd_transport *instance, const struct hd_message *message);

    /* Source: is the slot free, or, once posted, free again?  Target: is it readable?  Or
       HD_IN_PROGRESS. [data] */
    hd_status (*test)(struct hd_transport *instance, const struct hd_message *message);

    /*
     * Blocks until test would say HD_OK, moving the others meanwhile.  With a stream
     * (target only) makes the stream wait and returns, so it stands just before the
     * consumer.  NULL: the core loops over test and progress. [data]
     */
    hd_status (*wait)(struct hd_transport *instance, const struct hd_message *message, void *stream,
                      uint64_t deadline_ns);

    /* Target: all use is over, or will be when `stream` gets here; gives the credit. [data] */
    hd_status (*release)(struct hd_transport *instance, const struct hd_message *message,
                         void *stream);

    /*
     * Moves what needs a host, for at most 100 us; HD_OK if anything moved, else
     * HD_IN_PROGRESS.  The core calls it around actions and in its loops; for
     * TARGET_PROGRESS a helper does too, each ms of a long action.  Or NULL. [data]
     */
    hd_status (*progress)(struct hd_transport *instance);

    /*
     * Sets this rank's abort word, wakes its host waiters, and lets go its device's
     * by poison (2^62) in the words that they watch; never in a peer's.  The core
     * tells the other ranks, and repeats the call every 10 ms until this rank rests:
     * a signal under way may overwrite poison. [any-thread]
     */
    void (*abort)(struct hd_transport *instance, const char *reason);

    /*
     * This rank's work rests.  Tells the peers that it writes no more; HD_OK once no
     * peer can write here.  After HD_TIMEOUT, close must leak the arenas.  NULL: no
     * peer ever writes here. [data]
     */
    hd_status (*quiesce)(struct hd_transport *instance, uint64_t deadline_ns);

    /* Collective after a clean quiesce and the core's fence, else local.  Takes NULL. [setup] */
    void (*close)(struct hd_transport *instance, uint64_t deadline_ns);

    /* Fills at most out->size bytes.  Or NULL: all zero. [any-thread] */
    void (*stats)(struct hd_transport *instance, uint32_t channel, struct hd_channel_stats *out);
};

#ifdef __cplusplus
}
#endif

#endif /* HEDDLE_TRANSPORT_H */
