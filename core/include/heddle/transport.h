/*
 * heddle/transport.h - the contract between the core and a transport plugin.
 *
 * A transport answers one question: how does a tensor that is written on one rank become readable
 * on another?  It owns the memory that tensors cross in, and the signals that report their arrival.
 * It knows no schedule: the plan fixes in advance which channels exist, how large and how deep they
 * are, and in which order both ends use their messages.  Nothing is negotiated during a step.
 *
 *   channel   one boundary in one direction, from a source rank to another rank, its target; two
 *             channels between the same ranks share nothing
 *   message   one tensor [batch, sequence, width] on one channel; all messages of a channel have
 *             the same size
 *   sequence  the number of a message on its channel: starts at 0, counts over the whole job, is
 *             never reset, and stays below 2^62
 *   slot      the memory of a message: receive slot (sequence mod depth) at the target, send slot
 *             (sequence mod send_depth) at the source; a slot is never a time
 *   lease     the target's claim on a slot, from its wait until its release
 *   credit    the information, at the source, that the target has released a slot
 *
 *   source  reserve -> write the slot -> post_send
 *                                             \  payload, then signal
 *   target  post_recv . . . . . . . . . . . . -> wait -> read the slot -> release
 *                                                                        /
 *   source  reserve(sequence + depth)  <- . . . . . . . . . . . . credit
 *
 * All memory belongs to the transport, so a caller cannot free or overwrite data that is still
 * being sent.  An in-place transport (shm) lets the source write the target's slot, where the
 * target reads it until its backward.  Any other transport has a send slot in between.  No call
 * takes a completion level: reserve asks whether the send slot has been read or, in place, whether
 * the message has been released; the target's test and wait ask whether the message has arrived.
 *
 * Order.  Every data call follows the sequence of its channel, release included.  If backwards end
 * leases in another order, the core holds back a release until all older leases have ended, and the
 * plan includes this in the depth (law 6).  If backwards run in order, this needs no extra slot.
 * So sequence mod depth identifies the slot, and no slot number ever crosses the wire.
 *
 * Groups.  Law 7 may find that transfers depend on each other.  Their posts follow each other
 * without a gap, sends and receives mixed, and begin to move with the last of them.
 *
 * The core alone knows to which step and microbatch a message belongs.  It seals host slots: magic,
 * channel, sequence, step, microbatch, bytes, type and checksum are in the 64 bytes before a slot,
 * written before post_send and checked after wait.  A transport only carries them.
 *
 * Every transport guarantees the following, and `heddle conform` tests it:
 *
 *   G1 ordered  messages of a channel become readable in sequence; channels have no order among
 *               each other
 *   G2 whole    each message arrives exactly once, or the instance fails; it is never readable
 *               before its last byte, because the signal follows the payload
 *   G3 leased   no slot is written between its wait and its release, and no send slot is read once
 *               it may be reserved again
 *   G4 prompt   only open, wait without a stream, quiesce and close block, each until a deadline;
 *               no wait for a credit enters a stream of the caller
 *   G5 live     a plan that keeps laws 4 to 7 with the given depths comes to its end
 *   G6 bounded  the death of a peer ends every wait by its deadline, and the error names the peer
 *   G7 final    the first negative status is permanent: every later data call returns it, and
 *               nothing is retried
 *   G8 silent   after abort, device work may continue with wrong data and signal it onwards;
 *               therefore the core makes a step visible (optimizer, checkpoint, metric) only when
 *               every rank has drained its streams, found its own abort word clear, and told the
 *               other ranks so
 *
 * Threads.  [setup]: one thread, while no other call runs.  [data]: the core serialises the calls
 * of an instance, but any thread may make them, so no state may be thread-local.  [any-thread]: at
 * the same time as any other call; returns within 1 ms and takes no lock that is held during a
 * wait.
 *
 * Streams.  A stream is passed as void *.  NULL means the calling thread, "now".  The legacy
 * default stream of CUDA is NULL as well, so it is never passed.
 *
 * Status.  HD_BUSY means that nothing was done: call progress, then try again.  Every data call may
 * return HD_INVALID (a call out of order), HD_ABORTED, HD_PEER_LOST, HD_TIMEOUT, HD_PROTOCOL (the
 * peer broke the sequence), HD_DEVICE or HD_SYSTEM.
 *
 * Measurement.  When a transport learns when a transfer began, when it ended, or how long it waited
 * on the device for its peer, it calls host->trace_transfer once, during any data call.  Each end
 * reports what it knows.  If both ends must be ready before a transfer moves, each reports when it
 * was ready, and the later time counts as the begin.
 *
 * Growth.  New members are only appended: to structs whose first member is their size, and to
 * hd_channel, which is passed by pointer.  A reader takes the members that both sides know and
 * treats the rest as zero.  struct hd_message never changes.
 *
 * Sources: the report, sections 6.3 and 6.4 (docs/sources.md says which report that is, and what
 * was taken from nng, UCX and libfabric); tests/model/slot_protocol.pml checks the slot protocol.
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
 * Bits of hd_plugin.capabilities.  Bits 0 to 15 are promises: they hold on every channel, or open
 * refuses.  Bits 16 and above are needs, which the core meets.
 */
enum hd_transport_capability {
    HD_TRANSPORT_HOST = 1 << 0,             /* slots can be in host memory */
    HD_TRANSPORT_CUDA = 1 << 1,             /* slots can be in device memory; takes streams */
    HD_TRANSPORT_SEALED = 1 << 2,           /* carries the seal before a host slot */
    HD_TRANSPORT_IN_PLACE = 1 << 3,         /* the send slot is the receive slot */
    HD_TRANSPORT_NO_RESIDENT = 1 << 4,      /* no kernel holds the device while it waits */
    HD_TRANSPORT_PEER_DEATH = 1 << 5,       /* notices a death before the deadline */
    HD_TRANSPORT_UNBLOCKS = 1 << 6,         /* abort also ends waits on the device */
    HD_TRANSPORT_SHARED_DEVICE = 1 << 7,    /* ranks may share one device */
    HD_TRANSPORT_MANY_HOSTS = 1 << 8,       /* ranks may be on several hosts */
    HD_TRANSPORT_SERIAL = 1 << 16,          /* needs posts in the order of law 7, in groups */
    HD_TRANSPORT_PROGRESS = 1 << 17,        /* moves only while progress is called */
    HD_TRANSPORT_TARGET_PROGRESS = 1 << 18, /* moves only while the peer calls progress too */
    HD_TRANSPORT_HOOK = 1 << 19,            /* wraps setup->inner, and has inner's other bits */
};

struct hd_channel {
    uint32_t boundary;   /* the boundary between stages `boundary` and `boundary` + 1 */
    uint32_t direction;  /* HD_FORWARD: activations; HD_BACKWARD: their gradients */
    uint32_t source;     /* the rank that writes */
    uint32_t target;     /* the rank that reads; never equal to source */
    uint32_t depth;      /* receive slots, at least 1 */
    uint32_t send_depth; /* send slots, 1 .. depth; unused in place */
    uint64_t bytes;      /* the size of every message, without its seal */
};

/* The arguments of open.  All ranks get equal values except for host and device.  Borrowed until
   close. */
struct hd_transport_setup {
    uint32_t size;                            /* sizeof(struct hd_transport_setup) in the core */
    uint32_t channel_count;                   /* of the whole job */
    const struct hd_channel *const *channels; /* [channel_count] */
    const struct hd_host *host;               /* rank, memory, clock, bootstrap, trace */
    const struct hd_plugin *inner;            /* for a hook: what it wraps, all members set */
    const struct hd_host *inner_host;         /* for a hook: a host with inner's options */
    uint64_t deadline_ns;                     /* of open; on the clock of host->now_ns */
    uint32_t memory;                          /* enum hd_memory, of every slot */
    uint32_t device;                          /* the ordinal of the device, unless host memory */
    uint32_t alignment_bytes;                 /* of every slot; a power of two, at least 64 */
    uint32_t reserved;                        /* 0 */
};

struct hd_message {
    uint64_t sequence;
    uint32_t channel;    /* index into channels */
    uint32_t group_left; /* how many posts of its law-7 group follow at once; 0 without a group */
};

struct hd_channel_stats {
    uint32_t size;           /* the caller sets it: sizeof(struct hd_channel_stats) */
    char lane[36];           /* what carries the channel: "posix", "tcp/eth0" */
    uint64_t finished_count; /* target: readable messages; source: messages that have left their
                                send slots or, in place, that the peer has released */
    uint64_t busy_count;     /* how often reserve has answered HD_BUSY */
    uint64_t resident_ns;    /* how long kernels held the device before their peer was ready */
};

/* Word `word` (of 8 bytes) of the pattern that warm-up messages and the null transport contain. */
static inline uint64_t hd_pattern_word(uint32_t channel, uint64_t sequence, uint64_t word)
{
    return (((uint64_t)channel << 48) ^ (sequence << 24) ^ word) * 0x9e3779b97f4a7c15ull;
}

struct hd_transport; /* one instance; the plugin defines it */

/*
 * What a transport plugin supplies as hd_plugin.ops.  The core calls no member beyond `size`, and
 * no member that is NULL where NULL is allowed.  `instance` is owned by the core from open until
 * close.  Every `message` is borrowed for the call.
 */
struct hd_transport_ops {
    uint32_t size; /* sizeof(struct hd_transport_ops), as the plugin was compiled */

    /*
     * Allocates all slots and makes every connection of this rank, in the order of the channels,
     * which is the same on all ranks, so no two pairs of ranks wait for each other.  Ranks exchange
     * their addresses by the host's put, fence and get.  At last one message of hd_pattern_word
     * with sequence UINT64_MAX goes through the real path of each channel, is verified, and its
     * credit comes back.  The counters count it as 1, and are reset after the last fence.
     * Sets *instance only on success.  HD_UNSUPPORTED, HD_NO_MEMORY. [setup]
     */
    hd_status (*open)(const struct hd_transport_setup *setup, struct hd_transport **instance);

    /*
     * Returns the address where this rank writes (source) or reads (target) the message, valid
     * until close.  Only computes; never fails. [any-thread]
     */
    void *(*slot)(struct hd_transport *instance, const struct hd_message *message);

    /*
     * Source: claims the slot for writing.  HD_BUSY until the host knows that the slot is free: in
     * place, when its credit has arrived; otherwise, when its last send has ended. [data]
     */
    hd_status (*reserve)(struct hd_transport *instance, const struct hd_message *message);

    /*
     * Source: the slot is written as soon as `stream` reaches this point.  The message leaves when
     * it has a credit.  Never returns HD_BUSY. [data]
     */
    hd_status (*post_send)(struct hd_transport *instance, const struct hd_message *message,
                           void *stream);

    /*
     * Target: the slot may now receive; the message `depth` before it has been released.  A
     * two-sided transport posts its receive here, behind that release; others only check. [data]
     */
    hd_status (*post_recv)(struct hd_transport *instance, const struct hd_message *message);

    /*
     * Source: asks whether the slot is free or, once the message is posted, free again.  Target:
     * asks whether the message is readable.  HD_OK, or HD_IN_PROGRESS. [data]
     */
    hd_status (*test)(struct hd_transport *instance, const struct hd_message *message);

    /*
     * Blocks until test would return HD_OK, and moves other messages meanwhile.  With a stream
     * (target only) it makes the stream wait and returns at once, so the core calls it just before
     * the consumer.  HD_TIMEOUT after deadline_ns.  NULL: the core loops over test and progress.
     * [data]
     */
    hd_status (*wait)(struct hd_transport *instance, const struct hd_message *message, void *stream,
                      uint64_t deadline_ns);

    /*
     * Target: every use of the slot has ended, or ends before `stream` reaches this point.  Gives
     * the credit. [data]
     */
    hd_status (*release)(struct hd_transport *instance, const struct hd_message *message,
                         void *stream);

    /*
     * Moves what needs a host, for at most 100 us.  HD_OK if anything moved, else HD_IN_PROGRESS.
     * The core calls it around actions and in its loops; for TARGET_PROGRESS a helper thread also
     * calls it each millisecond of a long action.  May be NULL. [data]
     */
    hd_status (*progress)(struct hd_transport *instance);

    /*
     * Sets this rank's abort word, wakes its host waiters, and releases its device waiters by
     * writing poison (2^62) to the words that they watch, but never to words of a peer.  The core
     * tells the other ranks.  It repeats the call every 10 ms until the work of this rank has
     * stopped, because a signal in transit may overwrite poison.  `reason` is borrowed for the
     * call. [any-thread]
     */
    void (*abort)(struct hd_transport *instance, const char *reason);

    /*
     * This rank has stopped its work.  Tells the peers that it writes no more, and returns HD_OK
     * once no peer can write here.  After HD_TIMEOUT close must leak the slots.  NULL: no peer ever
     * writes here. [data]
     */
    hd_status (*quiesce)(struct hd_transport *instance, uint64_t deadline_ns);

    /*
     * Frees the instance.  Collective after a clean quiesce and a fence of the core, otherwise
     * local.  Takes NULL. [setup]
     */
    void (*close)(struct hd_transport *instance, uint64_t deadline_ns);

    /* Fills at most out->size bytes.  May be NULL: all values are then 0. [any-thread] */
    void (*stats)(struct hd_transport *instance, uint32_t channel, struct hd_channel_stats *out);
};

#ifdef __cplusplus
}
#endif

#endif /* HEDDLE_TRANSPORT_H */
