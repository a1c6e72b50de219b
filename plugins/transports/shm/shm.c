/*
 * plugins/transports/shm - one-sided and in place, between processes of one node.
 *
 * The arena of a channel is memory of its target that the source has mapped too.  The
 * source writes a tensor where the target will read it, so nothing is ever copied: a
 * message is one store of a word, and so is its release.
 *
 *   source                       memfd of the target                     target
 *   reserve   credit > k - D  <-- credit  ---------------------+
 *   write     slot k mod D    --> | slot 0 | slot 1 | ... |    |
 *   post_send arrived = k+1   --> arrived -------------------> wait    arrived > k
 *                                                          |   read    slot k mod D
 *                                                          +-- release credit = k+1
 *
 * Both words count up for the whole job and have one writer each.  The protocol is the
 * one of tests/model/slot_protocol.pml, its host flavour; waits are in wait.c.
 *
 * abort sets a word of this process only: the core tells the other ranks.  A dead peer
 * is seen by its pidfd, a stopped one by nothing but the deadline.
 */
#include "shm.h"

#include <inttypes.h>
#include <string.h>

/* --- whose turn it is -------------------------------------------------------------------- */

enum side { SOURCE = 1, TARGET = 2, EITHER = 3 };

/* The lane of `message`, if this rank is at that end of it and nothing has failed. */
static hd_status enter(struct hd_transport *instance, const struct hd_message *message,
                       enum side side, struct shm_lane **lane)
{
    const hd_status failed = atomic_load(&instance->failed);
    const struct shm_fault fault = {HD_INVALID, SHM_NONE, message->channel, message->sequence};

    if (failed < 0) {
        return failed;
    }
    if (message->channel < instance->channel_count) {
        *lane = &instance->lanes[message->channel];
        if ((*lane)->words != NULL && (side & ((*lane)->is_source ? SOURCE : TARGET)) != 0) {
            return HD_OK;
        }
    }
    return shm_fail(instance, &fault, "channel %u: this rank is not at that end of it",
                    message->channel);
}

/* One call in its turn: `next` is the only sequence it may have now, and only if `allowed`. */
static hd_status take_turn(struct hd_transport *instance, const struct hd_message *message,
                           const char *call, uint64_t next, int allowed)
{
    const struct shm_fault fault = {HD_INVALID, SHM_NONE, message->channel, message->sequence};

    if (message->sequence == next && allowed) {
        return HD_OK;
    }
    return shm_fail(instance, &fault,
                    "channel %u: %s of message %" PRIu64 " out of turn: %" PRIu64 " is next%s",
                    message->channel, call, message->sequence, next,
                    allowed ? "" : ", and not yet allowed");
}

static hd_status check_stream(struct hd_transport *instance, const struct hd_message *message,
                              const void *stream)
{
    const struct shm_fault fault = {HD_INVALID, SHM_NONE, message->channel, message->sequence};

    if (stream == NULL) {
        return HD_OK;
    }
    return shm_fail(instance, &fault, "channel %u: a stream was given, but shm moves host memory",
                    message->channel);
}

/* --- what the peer has done -------------------------------------------------------------- */

/* Is there anything to wait for?  At the source: the next message to reserve, or an older. */
static int is_askable(const struct shm_lane *lane, uint64_t sequence)
{
    if (lane->is_source) {
        return sequence <= lane->reserved_count;
    }
    return sequence >= lane->released_count && sequence < lane->posted_count &&
           sequence <= lane->readable_count;
}

/* The count that ends a wait for `sequence`. */
static uint64_t goal_of(const struct shm_lane *lane, uint64_t sequence)
{
    const uint64_t depth = lane->channel->depth;

    if (!lane->is_source || sequence < lane->posted_count) {
        return sequence + 1; /* it has arrived; or the slot is free of this very message */
    }
    return sequence < depth ? 0 : sequence - depth + 1; /* free of the message before it */
}

/* The peer's word may say neither less than before nor more than this rank has let it. */
static hd_status check_news(struct hd_transport *instance, const struct hd_message *message,
                            uint64_t news)
{
    const struct shm_lane *lane = &instance->lanes[message->channel];
    const uint64_t least = lane->known_count;
    const uint64_t most =
        lane->is_source ? lane->posted_count : lane->released_count + lane->channel->depth;
    const struct shm_fault fault = {HD_PROTOCOL, lane->peer->rank, message->channel,
                                    message->sequence};

    if (news >= least && news <= most) {
        return HD_OK;
    }
    return shm_fail(instance, &fault,
                    "channel %u: rank %u has %s %" PRIu64 " messages, which can only be %" PRIu64
                    " to %" PRIu64,
                    message->channel, fault.rank, lane->is_source ? "released" : "sent", news,
                    least, most);
}

/*
 * HD_OK once the peer's word has come to the goal of `message`, else HD_IN_PROGRESS.  What was
 * known before is not asked again: the word's line stays with the peer, who is writing it.
 */
static hd_status look(struct hd_transport *instance, const struct hd_message *message)
{
    struct shm_lane *lane = &instance->lanes[message->channel];
    const uint64_t goal = goal_of(lane, message->sequence);

    if (lane->known_count < goal) {
        const uint64_t news = atomic_load_explicit(shm_news(lane), memory_order_acquire);
        const hd_status status = check_news(instance, message, news);
        if (status != HD_OK) {
            return status;
        }
        lane->known_count = news;
    }
    if (lane->known_count < goal) {
        return HD_IN_PROGRESS;
    }
    if (!lane->is_source && message->sequence == lane->readable_count) {
        lane->readable_count = message->sequence + 1;
    }
    return HD_OK;
}

static hd_status report_wait(struct hd_transport *instance, const struct hd_message *message,
                             hd_status status)
{
    const struct shm_lane *lane = &instance->lanes[message->channel];
    const struct shm_fault fault = {status, lane->peer->rank, message->channel, message->sequence};
    const char *boundary = lane->channel->direction == HD_FORWARD ? "forward" : "backward";

    return shm_fail(instance, &fault,
                    "channel %u (%s over boundary %u): rank %u %s: message %" PRIu64
                    " waits for its %s, %" PRIu64 " of which are known",
                    message->channel, boundary, lane->channel->boundary, fault.rank,
                    status == HD_PEER_LOST ? "has ended" : "has not answered by the deadline",
                    message->sequence, lane->is_source ? "releases" : "messages",
                    atomic_load(shm_news(lane)));
}

/* --- the contract ------------------------------------------------------------------------ */

static void *slot(struct hd_transport *instance, const struct hd_message *message)
{
    const struct shm_lane *lane = &instance->lanes[message->channel];
    return lane->slots + message->sequence % lane->channel->depth * lane->stride_bytes;
}

static hd_status reserve(struct hd_transport *instance, const struct hd_message *message)
{
    struct shm_lane *lane = NULL;
    hd_status status = enter(instance, message, SOURCE, &lane);

    if (status == HD_OK) {
        status = take_turn(instance, message, "reserve", lane->reserved_count, 1);
    }
    if (status == HD_OK) {
        status = look(instance, message);
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

/* In place, all bytes are there already when the signal goes, at `now_ns`: a transfer takes no
   time, and holds nobody. */
static void report(const struct hd_transport *instance, const struct hd_message *message,
                   uint64_t now_ns)
{
    const struct hd_host *host = instance->host;
    const struct hd_transfer transfer = {.size = sizeof transfer,
                                         .channel = message->channel,
                                         .sequence = message->sequence,
                                         .begin_ns = now_ns,
                                         .end_ns = now_ns};

    host->trace_transfer(host->context, &transfer);
}

static hd_status post_send(struct hd_transport *instance, const struct hd_message *message,
                           void *stream)
{
    struct shm_lane *lane = NULL;
    hd_status status = enter(instance, message, SOURCE, &lane);

    if (status == HD_OK) {
        status = check_stream(instance, message, stream);
    }
    if (status == HD_OK) {
        const int is_reserved = lane->posted_count < lane->reserved_count;
        status = take_turn(instance, message, "post_send", lane->posted_count, is_reserved);
    }
    if (status == HD_OK) {
        const struct hd_host *host = instance->host;
        const uint64_t now_ns = instance->is_traced ? host->now_ns(host->context) : 0;
        lane->posted_count++;
        shm_publish(&lane->words->arrived, lane->posted_count, shm_peer_asleep(lane));
        if (instance->is_traced) {
            report(instance, message, now_ns); /* the peer need not wait for it */
        }
    }
    return status;
}

static hd_status post_recv(struct hd_transport *instance, const struct hd_message *message)
{
    struct shm_lane *lane = NULL;
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

static hd_status test(struct hd_transport *instance, const struct hd_message *message)
{
    struct shm_lane *lane = NULL;
    hd_status status = enter(instance, message, EITHER, &lane);

    if (status == HD_OK && !is_askable(lane, message->sequence)) {
        const uint64_t next = lane->is_source ? lane->reserved_count : lane->readable_count;
        status = take_turn(instance, message, "test or wait", next, 0);
    }
    return status == HD_OK ? look(instance, message) : status;
}

static hd_status wait(struct hd_transport *instance, const struct hd_message *message, void *stream,
                      uint64_t deadline_ns)
{
    struct shm_lane *lane = NULL;
    hd_status status = enter(instance, message, EITHER, &lane);

    if (status == HD_OK) {
        status = check_stream(instance, message, stream);
    }
    if (status == HD_OK) {
        status = test(instance, message);
    }
    if (status != HD_IN_PROGRESS) {
        return status;
    }
    const struct shm_wait wanted = {.word = shm_news(lane),
                                    .goal = goal_of(lane, message->sequence),
                                    .asleep = shm_own_asleep(lane),
                                    .peer = lane->peer,
                                    .deadline_ns = deadline_ns};
    status = shm_wait_for(instance, &wanted);
    if (status == HD_PEER_LOST || status == HD_TIMEOUT) {
        return report_wait(instance, message, status);
    }
    return status == HD_OK ? look(instance, message) : status;
}

static hd_status release(struct hd_transport *instance, const struct hd_message *message,
                         void *stream)
{
    struct shm_lane *lane = NULL;
    hd_status status = enter(instance, message, TARGET, &lane);

    if (status == HD_OK) {
        status = check_stream(instance, message, stream);
    }
    if (status == HD_OK) {
        const int is_leased = lane->released_count < lane->readable_count;
        status = take_turn(instance, message, "release", lane->released_count, is_leased);
    }
    if (status == HD_OK) {
        lane->released_count++;
        shm_publish(&lane->words->credit, lane->released_count, shm_peer_asleep(lane));
    }
    return status;
}

/* The reason is the core's own, which it has told the user already. */
static void abort_waits(struct hd_transport *instance, const char *reason)
{
    int none = HD_OK;

    (void)reason;
    atomic_compare_exchange_strong(&instance->failed, &none, HD_ABORTED);
    for (uint32_t i = 0; i < instance->channel_count; i++) {
        if (instance->lanes[i].words != NULL) {
            shm_wake(shm_own_asleep(&instance->lanes[i]));
        }
    }
}

static void stats(struct hd_transport *instance, uint32_t channel, struct hd_channel_stats *out)
{
    const struct shm_lane *lane = &instance->lanes[channel];
    struct hd_channel_stats all = {.lane = "shm"};

    if (lane->words != NULL) {
        all.finished_count = atomic_load(shm_news(lane));
        all.busy_count = atomic_load_explicit(&lane->busy_count, memory_order_relaxed);
    }
    all.size = out->size;
    memcpy(out, &all, out->size < sizeof all ? out->size : sizeof all);
}

static const struct hd_transport_ops ops = {
    .size = sizeof ops,
    .open = shm_open_all,
    .slot = slot,
    .reserve = reserve,
    .post_send = post_send,
    .post_recv = post_recv,
    .test = test,
    .wait = wait,
    .release = release,
    .abort = abort_waits,
    .quiesce = shm_quiesce,
    .close = shm_close_all,
    .stats = stats,
};

static const struct hd_option options[] = {
    {"spin_us", "-1", "-1..1000",
     "Microseconds that a wait looks before it sleeps; -1: 100, or 0 where more ranks than cores "
     "share this rank's cores.",
     HD_OPTION_INTEGER, 0},
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_TRANSPORT),
    .option_count = sizeof options / sizeof options[0],
    .options = options,
    .capabilities = HD_TRANSPORT_HOST | HD_TRANSPORT_SEALED | HD_TRANSPORT_IN_PLACE |
                    HD_TRANSPORT_NO_RESIDENT | HD_TRANSPORT_PEER_DEATH,
    .name = "shm",
    .summary = "one-sided, in place, between processes of one node: nothing is copied",
    .vendor = "heddle",
    .version = "0.1.0",
    .licence = "Apache-2.0",
    .source = "heddle's own; memfd, futex and pidfd of Linux",
    .ops = &ops,
};
