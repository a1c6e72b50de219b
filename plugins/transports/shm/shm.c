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

/* --- what the peer has done -------------------------------------------------------------- */

/*
 * HD_OK once the peer's word has come to the goal of `message`, else HD_IN_PROGRESS.  What was
 * known before is not asked again: the word's line stays with the peer, who is writing it.
 */
static inline hd_status look(struct hd_transport *instance, struct shm_lane *lane,
                             uint64_t sequence)
{
    if (lane->known_count < turn_goal(&lane->turn, sequence)) {
        const uint64_t news = atomic_load_explicit(shm_news(lane), memory_order_acquire);
        const hd_status status =
            turn_check_news(&instance->turn, &lane->turn, news,
                            (struct turn_range){lane->known_count, turn_most(&lane->turn)});
        if (status != HD_OK) {
            return status;
        }
        lane->known_count = news;
    }
    return turn_answer(&lane->turn, sequence, lane->known_count);
}

/* --- the contract ------------------------------------------------------------------------ */

static void *slot(struct hd_transport *instance, const struct hd_message *message)
{
    const struct shm_lane *lane = shm_lane_of(instance, message->channel);
    return lane->slots + message->sequence % lane->turn.slot_count * lane->stride_bytes;
}

static hd_status reserve(struct hd_transport *instance, const struct hd_message *message)
{
    struct turn_lane *lane = NULL;
    hd_status status = turn_to_reserve(&instance->turn, message, &lane);

    if (status == HD_OK) {
        status = look(instance, (struct shm_lane *)lane, message->sequence);
    }
    return turn_reserved(lane, status);
}

/* In place, all bytes are there already when the signal goes, at `now_ns`: a transfer takes no
   time, and holds nobody. */
static void report(const struct hd_transport *instance, const struct hd_message *message,
                   uint64_t now_ns)
{
    turn_report(&instance->turn, (struct hd_transfer){.channel = message->channel,
                                                      .sequence = message->sequence,
                                                      .begin_ns = now_ns,
                                                      .end_ns = now_ns});
}

static hd_status post_send(struct hd_transport *instance, const struct hd_message *message,
                           void *stream)
{
    struct turn_lane *turn = NULL;
    const hd_status status = turn_to_post(&instance->turn, message, TURN_SOURCE, &turn);

    if (status != HD_OK) {
        return status;
    }
    if (stream != NULL) {
        return turn_refuse_stream(&instance->turn, message);
    }
    struct shm_lane *lane = (struct shm_lane *)turn;
    const uint64_t now_ns = instance->turn.is_traced ? turn_now_ns(&instance->turn) : 0;
    turn->posted_count++;
    shm_publish(&lane->words->arrived, turn->posted_count, shm_peer_asleep(lane));
    if (instance->turn.is_traced) {
        report(instance, message, now_ns); /* the peer need not wait for it */
    }
    return HD_OK;
}

static hd_status post_recv(struct hd_transport *instance, const struct hd_message *message)
{
    struct turn_lane *lane = NULL;
    const hd_status status = turn_to_post(&instance->turn, message, TURN_TARGET, &lane);

    if (status == HD_OK) {
        lane->posted_count++;
    }
    return status;
}

static hd_status test(struct hd_transport *instance, const struct hd_message *message)
{
    struct turn_lane *lane = NULL;
    const hd_status status = turn_to_ask(&instance->turn, message, TURN_EITHER, &lane);

    return status == HD_OK ? look(instance, (struct shm_lane *)lane, message->sequence) : status;
}

/* Sleeps until the peer's word has come to the goal of `message`. */
static hd_status await(struct hd_transport *instance, struct shm_lane *lane, uint64_t sequence,
                       uint64_t deadline_ns)
{
    const struct shm_wait wanted = {.word = shm_news(lane),
                                    .goal = turn_goal(&lane->turn, sequence),
                                    .asleep = shm_own_asleep(lane),
                                    .peer = lane->peer,
                                    .deadline_ns = deadline_ns};
    const hd_status status = shm_wait_for(instance, &wanted);
    const struct turn_fault fault = turn_peer_fault(&lane->turn, status, sequence);

    if (status == HD_PEER_LOST || status == HD_TIMEOUT) {
        return turn_report_wait(&instance->turn, &lane->turn, &fault, atomic_load(shm_news(lane)));
    }
    return status == HD_OK ? look(instance, lane, sequence) : status;
}

static hd_status wait(struct hd_transport *instance, const struct hd_message *message, void *stream,
                      uint64_t deadline_ns)
{
    struct turn_lane *turn = NULL;
    hd_status status = turn_to_ask(&instance->turn, message, TURN_EITHER, &turn);

    if (status == HD_OK && stream != NULL) {
        return turn_refuse_stream(&instance->turn, message);
    }
    struct shm_lane *lane = (struct shm_lane *)turn;
    if (status == HD_OK) {
        status = look(instance, lane, message->sequence);
    }
    return status == HD_IN_PROGRESS ? await(instance, lane, message->sequence, deadline_ns)
                                    : status;
}

static hd_status release(struct hd_transport *instance, const struct hd_message *message,
                         void *stream)
{
    struct turn_lane *turn = NULL;
    const hd_status status = turn_to_release(&instance->turn, message, &turn);

    if (status != HD_OK) {
        return status;
    }
    if (stream != NULL) {
        return turn_refuse_stream(&instance->turn, message);
    }
    struct shm_lane *lane = (struct shm_lane *)turn;
    turn->released_count++;
    shm_publish(&lane->words->credit, turn->released_count, shm_peer_asleep(lane));
    return HD_OK;
}

static void abort_waits(struct hd_transport *instance, const char *reason)
{
    (void)reason;
    turn_abort(&instance->turn);
    for (uint32_t i = 0; i < instance->turn.lane_count; i++) {
        if (instance->lanes[i].words != NULL) {
            shm_wake(shm_own_asleep(&instance->lanes[i]));
        }
    }
}

static void stats(struct hd_transport *instance, uint32_t channel, struct hd_channel_stats *out)
{
    const struct shm_lane *lane = shm_lane_of(instance, channel);

    turn_stats(lane != NULL ? &lane->turn : NULL, lane != NULL ? atomic_load(shm_news(lane)) : 0,
               out);
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
