/*
 * plugins/transports/cuda_ipc - one-sided, between GPUs of one node, or processes on one GPU.
 *
 * The target owns the receive slots and lends them to the source's process by an IPC handle; the
 * copy is the GPU's, and so are both signals: 64-bit words that count up for the whole job,
 * written and awaited in streams.  No kernel waits, and no copy is ever held up in a stream by a
 * credit: the host reads those, and only then starts the copy.
 *
 *   source's GPU and host                 words of the target              target's GPU
 *   reserve    send slot k mod Ds unread
 *   forward    writes it
 *   post_send  queued
 *   progress   credit > k - D         <-- credit  <------------------+
 *   copy       slot --------------------> receive slot k mod D       |
 *              arrived = k + 1        --> arrived --> wait (stream)  |    arrived > k
 *                                                     forward reads  |
 *                                                     release (stream)   credit = k + 1
 *
 * So a message whose credit is late leaves only while its source calls progress: TARGET_PROGRESS,
 * which the core serves from a thread of its own beside long actions and between steps.
 *
 * Abort stores poison, 2^62, into the arrived words of this rank: its streams then run on over
 * what is there (G8).  That needs no call of CUDA, so it cannot block.
 */
#include "ipc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* --- whose turn it is -------------------------------------------------------------------- */

enum side { SOURCE = 1, TARGET = 2, EITHER = 3 };

/* The lane of `message`, if this rank is at that end of it and nothing has failed. */
static hd_status enter(struct hd_transport *instance, const struct hd_message *message,
                       enum side side, struct ipc_lane **lane)
{
    const hd_status failed = atomic_load(&instance->failed);
    const struct ipc_fault fault = {HD_INVALID, IPC_NONE, message->channel, message->sequence};

    if (failed < 0) {
        return failed;
    }
    if (message->channel < instance->channel_count) {
        *lane = &instance->lanes[message->channel];
        if ((*lane)->words != NULL && (side & ((*lane)->is_source ? SOURCE : TARGET)) != 0) {
            /* The caller's thread may be a new one, and a device is current in a thread. */
            return ipc_runtime(instance, *lane, "cudaSetDevice",
                               instance->cuda.cudaSetDevice(instance->device));
        }
    }
    return ipc_fail(instance, &fault, "channel %u: this rank is not at that end of it",
                    message->channel);
}

/* One call in its turn: `next` is the only sequence it may have now, and only if `is_allowed`. */
static hd_status take_turn(struct hd_transport *instance, const struct hd_message *message,
                           const char *call, uint64_t next, int is_allowed)
{
    const struct ipc_fault fault = {HD_INVALID, IPC_NONE, message->channel, message->sequence};

    if (message->sequence == next && is_allowed) {
        return HD_OK;
    }
    return ipc_fail(instance, &fault,
                    "channel %u: %s of message %" PRIu64 " out of turn: %" PRIu64 " is next%s",
                    message->channel, call, message->sequence, next,
                    is_allowed ? "" : ", and not yet allowed");
}

/* --- what the peer has done -------------------------------------------------------------- */

/* The peer's word may say neither less than before nor more than this rank has let it. */
static hd_status read_news(struct hd_transport *instance, struct ipc_lane *lane)
{
    const uint64_t news = ipc_news(lane);
    const uint64_t most =
        lane->is_source ? lane->started_count : lane->released_count + lane->channel->depth;
    const hd_status failed = atomic_load(&instance->failed);

    if (failed < 0) {
        return failed; /* it may have been poison */
    }
    if (news >= lane->known_count && news <= most) {
        lane->known_count = news;
        return HD_OK;
    }
    const struct ipc_fault fault = {HD_PROTOCOL, lane->peer->rank, ipc_number(instance, lane),
                                    news};
    return ipc_fail(instance, &fault,
                    "channel %u: rank %u has %s %" PRIu64 " messages, which can only be %" PRIu64
                    " to %" PRIu64,
                    fault.channel, fault.rank, lane->is_source ? "released" : "sent", news,
                    lane->known_count, most);
}

hd_status ipc_move(struct hd_transport *instance, int *moved)
{
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < instance->channel_count; i++) {
        struct ipc_lane *lane = &instance->lanes[i];
        if (lane->is_source && lane->started_count < lane->posted_count) {
            status = read_news(instance, lane);
            if (status == HD_OK) {
                status = ipc_start_copies(instance, lane, moved);
            }
        }
    }
    return status;
}

/* Is there anything to wait for?  At the source: the next message to reserve, or an older. */
static int is_askable(const struct ipc_lane *lane, uint64_t sequence)
{
    if (lane->is_source) {
        return sequence <= lane->reserved_count;
    }
    return sequence >= lane->released_count && sequence < lane->posted_count &&
           sequence <= lane->awaited_count;
}

/* Source: is the send slot of `sequence` unread by any copy, of this message or an older? */
static hd_status look_free(struct hd_transport *instance, struct ipc_lane *lane, uint64_t sequence)
{
    const uint64_t depth = lane->channel->send_depth;

    if (sequence < lane->posted_count) {
        return ipc_look_sent(instance, lane, sequence);
    }
    return sequence < depth ? HD_OK : ipc_look_sent(instance, lane, sequence - depth);
}

static hd_status look(struct hd_transport *instance, struct ipc_lane *lane, uint64_t sequence)
{
    if (lane->is_source) {
        return look_free(instance, lane, sequence);
    }
    if (lane->known_count <= sequence) {
        const hd_status status = read_news(instance, lane);
        if (status != HD_OK) {
            return status;
        }
    }
    if (lane->known_count <= sequence) {
        return HD_IN_PROGRESS;
    }
    if (sequence == lane->awaited_count) {
        lane->awaited_count = sequence + 1;
    }
    return HD_OK;
}

static hd_status look_and_move(struct hd_transport *instance, struct ipc_lane *lane,
                               uint64_t sequence)
{
    int moved = 0;
    hd_status status = ipc_move(instance, &moved);

    if (status == HD_OK) {
        status = look(instance, lane, sequence);
    }
    if (status == HD_IN_PROGRESS) {
        status = ipc_look_for_deaths(instance, lane);
        status = status == HD_OK ? HD_IN_PROGRESS : status;
    }
    return status;
}

/* --- the contract: source ---------------------------------------------------------------- */

static void *slot(struct hd_transport *instance, const struct hd_message *message)
{
    const struct ipc_lane *lane = &instance->lanes[message->channel];
    const uint64_t depth = lane->is_source ? lane->channel->send_depth : lane->channel->depth;

    return lane->own_slots + message->sequence % depth * lane->stride_bytes;
}

static hd_status reserve(struct hd_transport *instance, const struct hd_message *message)
{
    struct ipc_lane *lane = NULL;
    hd_status status = enter(instance, message, SOURCE, &lane);

    if (status == HD_OK) {
        status = take_turn(instance, message, "reserve", lane->reserved_count, 1);
    }
    if (status == HD_OK) {
        status = look_and_move(instance, lane, message->sequence);
    }
    if (status == HD_IN_PROGRESS) {
        atomic_fetch_add_explicit(&lane->busy_count, 1, memory_order_relaxed);
        return HD_BUSY;
    }
    if (status == HD_OK) {
        lane->reserved_count++;
    }
    return status;
}

static hd_status post_send(struct hd_transport *instance, const struct hd_message *message,
                           void *stream)
{
    struct ipc_lane *lane = NULL;
    int moved = 0;
    hd_status status = enter(instance, message, SOURCE, &lane);

    if (status == HD_OK) {
        const int is_reserved = lane->posted_count < lane->reserved_count;
        status = take_turn(instance, message, "post_send", lane->posted_count, is_reserved);
    }
    if (status != HD_OK) {
        return status;
    }
    struct ipc_send *send = &lane->sends[message->sequence % lane->channel->send_depth];
    send->is_ordered = stream != NULL;
    if (stream != NULL) {
        status = ipc_runtime(instance, lane, "cudaEventRecord",
                             instance->cuda.cudaEventRecord(send->written, stream));
    }
    if (status == HD_OK) {
        lane->posted_count++;
        status = ipc_move(instance, &moved);
    }
    return status;
}

/* --- the contract: target ---------------------------------------------------------------- */

static hd_status post_recv(struct hd_transport *instance, const struct hd_message *message)
{
    struct ipc_lane *lane = NULL;
    hd_status status = enter(instance, message, TARGET, &lane);

    if (status == HD_OK) {
        const int is_free = lane->posted_count < lane->released_count + lane->channel->depth;
        status = take_turn(instance, message, "post_recv", lane->posted_count, is_free);
    }
    if (status == HD_OK) {
        lane->posted_count++;
    }
    return status;
}

static hd_status release(struct hd_transport *instance, const struct hd_message *message,
                         void *stream)
{
    struct ipc_lane *lane = NULL;
    hd_status status = enter(instance, message, TARGET, &lane);

    if (status == HD_OK) {
        const int is_leased = lane->released_count < lane->awaited_count;
        status = take_turn(instance, message, "release", lane->released_count, is_leased);
    }
    if (status == HD_OK) {
        lane->released_count++;
        status = ipc_give_credit(instance, lane, stream);
    }
    return status;
}

/* --- the contract: either end ------------------------------------------------------------ */

static hd_status test(struct hd_transport *instance, const struct hd_message *message)
{
    struct ipc_lane *lane = NULL;
    hd_status status = enter(instance, message, EITHER, &lane);

    if (status == HD_OK && !is_askable(lane, message->sequence)) {
        status = take_turn(instance, message, "test",
                           lane->is_source ? lane->reserved_count : lane->awaited_count, 0);
    }
    return status == HD_OK ? look_and_move(instance, lane, message->sequence) : status;
}

static hd_status report_timeout(struct hd_transport *instance, const struct ipc_lane *lane,
                                const struct hd_message *message)
{
    const struct ipc_fault fault = {HD_TIMEOUT, lane->peer->rank, message->channel,
                                    message->sequence};

    return ipc_fail(instance, &fault,
                    "channel %u (%s over boundary %u): rank %u has not answered by the deadline: "
                    "message %" PRIu64 " waits for its %s, %" PRIu64 " of which are known",
                    message->channel,
                    lane->channel->direction == HD_FORWARD ? "forward" : "backward",
                    lane->channel->boundary, fault.rank, message->sequence,
                    lane->is_source ? "releases" : "messages", ipc_news(lane));
}

static hd_status wait(struct hd_transport *instance, const struct hd_message *message, void *stream,
                      uint64_t deadline_ns)
{
    struct ipc_lane *lane = NULL;
    uint64_t pause_ns = 0;
    hd_status status = enter(instance, message, stream != NULL ? TARGET : EITHER, &lane);

    if (status == HD_OK && !is_askable(lane, message->sequence)) {
        status = take_turn(instance, message, "wait",
                           lane->is_source ? lane->reserved_count : lane->awaited_count, 0);
    }
    if (status == HD_OK && stream != NULL) { /* nothing is said of the host */
        status = ipc_await_signal(instance, lane, message->sequence, stream);
        if (status == HD_OK && message->sequence == lane->awaited_count) {
            lane->awaited_count = message->sequence + 1;
        }
        return status;
    }
    if (status == HD_OK) {
        status = look_and_move(instance, lane, message->sequence);
    }
    while (status == HD_IN_PROGRESS) { /* ends at the deadline */
        if (ipc_now_ns(instance) >= deadline_ns) {
            return report_timeout(instance, lane, message);
        }
        ipc_nap(&pause_ns);
        status = atomic_load(&instance->failed);
        status = status < 0 ? status : look_and_move(instance, lane, message->sequence);
    }
    return status;
}

static hd_status progress(struct hd_transport *instance)
{
    int moved = 0;
    hd_status status = atomic_load(&instance->failed);

    if (status == HD_OK) {
        status = ipc_runtime(instance, NULL, "cudaSetDevice",
                             instance->cuda.cudaSetDevice(instance->device));
    }
    if (status == HD_OK) {
        status = ipc_move(instance, &moved);
    }
    if (status == HD_OK && !moved) {
        status = ipc_look_for_deaths(instance, NULL);
    }
    return status == HD_OK && !moved ? HD_IN_PROGRESS : status;
}

static void abort_waits(struct hd_transport *instance, const char *reason)
{
    int first = HD_OK;

    (void)reason; /* the core has it already */
    atomic_compare_exchange_strong(&instance->failed, &first, HD_ABORTED);
    ipc_poison(instance);
}

/* "cuda_ipc/dev0", or "cuda_ipc/dev0-dev1" where two GPUs have part in it. */
static void name_lane(const struct hd_transport *instance, const struct ipc_lane *lane, char *text,
                      size_t bytes)
{
    const int source = lane->is_source ? instance->device : lane->peer->device;
    const int target = lane->is_source ? lane->peer->device : instance->device;

    if (source == target) {
        snprintf(text, bytes, "cuda_ipc/dev%d", source);
    } else {
        snprintf(text, bytes, "cuda_ipc/dev%d-dev%d", source, target);
    }
}

static void stats(struct hd_transport *instance, uint32_t channel, struct hd_channel_stats *out)
{
    const struct ipc_lane *lane = &instance->lanes[channel];
    struct hd_channel_stats all = {.size = out->size};

    if (lane->words != NULL) {
        name_lane(instance, lane, all.lane, sizeof all.lane);
        const uint64_t news = ipc_news(lane);
        all.finished_count = news < IPC_POISON ? news : 0;
        all.busy_count = atomic_load_explicit(&lane->busy_count, memory_order_relaxed);
    }
    memcpy(out, &all, out->size < sizeof all ? out->size : sizeof all);
}

static const struct hd_transport_ops ops = {
    .size = sizeof ops,
    .open = ipc_open_all,
    .slot = slot,
    .reserve = reserve,
    .post_send = post_send,
    .post_recv = post_recv,
    .test = test,
    .wait = wait,
    .release = release,
    .progress = progress,
    .abort = abort_waits,
    .quiesce = ipc_quiesce,
    .close = ipc_close_all,
    .stats = stats,
};

static const struct hd_option options[] = {CUDA_RUNTIME_OPTION};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_TRANSPORT),
    .option_count = sizeof options / sizeof options[0],
    .options = options,
    .capabilities = HD_TRANSPORT_CUDA | HD_TRANSPORT_NO_RESIDENT | HD_TRANSPORT_PEER_DEATH |
                    HD_TRANSPORT_UNBLOCKS | HD_TRANSPORT_SHARED_DEVICE | HD_TRANSPORT_PROGRESS |
                    HD_TRANSPORT_TARGET_PROGRESS,
    .name = "cuda_ipc",
    .summary = "one-sided copies between GPUs of one node, or processes on one GPU, without NCCL",
    .vendor = "heddle",
    .version = "0.1.0",
    .licence = "Apache-2.0",
    .source = "CUDA: IPC memory handles and stream memory operations",
    .ops = &ops,
};
