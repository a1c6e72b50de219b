/*
 * tcp.c - a transport of plain TCP sockets: one connection for each channel.
 *
 *   source                                              target
 *   send slots                                          receive slots
 *   reserve, write, post_send                           post_recv
 *        |                                                   |
 *        +--- seal and payload of messages 0, 1, 2 .. ------>+  wait, read
 *        |                                                   |
 *        <------- one byte for each released message --------+  release
 *
 * Each end keeps counts that only grow; every rule of the contract compares two of them:
 *
 *   source   released <= sent <= posted <= reserved
 *            reserved < sent + send_depth    a send slot is free
 *            sent < released + depth         a message may leave
 *   target   released <= waited <= arrived <= posted
 *            posted < released + depth       a receive slot is free
 *
 * The sockets never block. A message moves only while this rank and its peer call progress, so the
 * plugin asks for HD_TRANSPORT_PROGRESS and HD_TRANSPORT_TARGET_PROGRESS and leaves `wait` to the
 * core. open.c connects. docs/tutorial_transport.md tells how the two files came about.
 */
#include "plain_tcp.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* --- errors: the first one stays, and is reported once ------------------------------------- */

static hd_status tcp_keep(struct hd_transport *instance, hd_status status)
{
    int none = HD_OK;

    atomic_compare_exchange_strong(&instance->failed, &none, status);
    return none == HD_OK ? status : none;
}

hd_status tcp_fail(struct hd_transport *instance, hd_status status,
                   const struct tcp_channel *channel, const char *text)
{
    const struct hd_host *host = instance->host;
    const struct hd_channel *facts = channel != NULL ? channel->facts : NULL;
    const struct hd_error error = {
        .size = sizeof error,
        .status = status,
        .rank = facts == NULL        ? UINT32_MAX
                : channel->is_source ? facts->target
                                     : facts->source,
        .channel = facts == NULL ? UINT32_MAX : (uint32_t)(channel - instance->channels),
        .sequence = channel != NULL ? channel->moved_count : 0,
        .text = text,
    };
    const hd_status first = tcp_keep(instance, status);

    return first == status ? host->fail(host->context, &error) : first;
}

/* --- slots ----------------------------------------------------------------------------------- */

unsigned char *tcp_payload(const struct tcp_channel *channel, uint64_t sequence)
{
    return channel->arena + sequence % channel->slot_count * channel->stride_bytes +
           channel->lead_bytes;
}

static void *tcp_slot(struct hd_transport *instance, const struct hd_message *message)
{
    return tcp_payload(&instance->channels[message->channel], message->sequence);
}

/* --- moving bytes ---------------------------------------------------------------------------- */

/* A connection ended or broke: that is the peer's death, or its abort. */
static hd_status tcp_lost(struct hd_transport *instance, const struct tcp_channel *channel,
                          ssize_t count)
{
    char text[160];

    snprintf(text, sizeof text, "the connection of channel %u is closed: %s",
             (unsigned)(channel - instance->channels),
             count == 0 ? "the peer ended" : strerror(errno));
    return tcp_fail(instance, HD_PEER_LOST, channel, text);
}

static bool tcp_must_wait(ssize_t count)
{
    return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

static void tcp_report(const struct hd_transport *instance, const struct tcp_channel *channel)
{
    const struct hd_host *host = instance->host;
    const struct hd_transfer transfer = {
        .size = sizeof transfer,
        .channel = (uint32_t)(channel - instance->channels),
        .sequence = channel->moved_count,
        .end_ns = channel->is_source ? 0 : host->now_ns(host->context),
    };

    if (instance->is_open && !host->is_untraced) {
        host->trace_transfer(host->context, &transfer);
    }
}

/* Moves the seal and the payload of the message that is next, as far as the socket lets it. */
static hd_status tcp_move_message(struct hd_transport *instance, struct tcp_channel *channel)
{
    const uint64_t message_bytes = HD_SEAL_BYTES + channel->facts->bytes;
    unsigned char *seal = tcp_payload(channel, channel->moved_count) - HD_SEAL_BYTES;
    unsigned char *at = seal + channel->moved_bytes;
    const size_t left = message_bytes - channel->moved_bytes;
    const ssize_t count = channel->is_source ? send(channel->socket, at, left, MSG_NOSIGNAL)
                                             : recv(channel->socket, at, left, 0);

    if (tcp_must_wait(count)) {
        return HD_IN_PROGRESS;
    }
    if (count <= 0) {
        return tcp_lost(instance, channel, count);
    }
    channel->moved_bytes += (uint64_t)count;
    if (channel->moved_bytes == message_bytes) {
        tcp_report(instance, channel);
        channel->moved_bytes = 0;
        channel->moved_count++;
    }
    return HD_OK;
}

/* Credits are bytes without a meaning: only their number counts. */
static hd_status tcp_move_credits(struct hd_transport *instance, struct tcp_channel *channel)
{
    unsigned char credits[64] = {0};
    const uint64_t owed = channel->released_count - channel->told_count;
    const size_t most = channel->is_source || owed > sizeof credits ? sizeof credits : owed;
    const ssize_t count = channel->is_source ? recv(channel->socket, credits, most, 0)
                                             : send(channel->socket, credits, most, MSG_NOSIGNAL);

    if (tcp_must_wait(count)) {
        return HD_IN_PROGRESS;
    }
    if (count <= 0) {
        return tcp_lost(instance, channel, count);
    }
    *(channel->is_source ? &channel->released_count : &channel->told_count) += (uint64_t)count;
    if (channel->is_source && channel->released_count > channel->moved_count) {
        return tcp_fail(instance, HD_PROTOCOL, channel,
                        "the target released a message that was not sent");
    }
    return HD_OK;
}

static bool tcp_has_message(const struct tcp_channel *channel)
{
    return channel->moved_count < channel->posted_count &&
           (!channel->is_source ||
            channel->moved_count < channel->released_count + channel->facts->depth);
}

static hd_status tcp_move(struct hd_transport *instance, struct tcp_channel *channel)
{
    hd_status moved = HD_IN_PROGRESS;

    if (channel->is_source || channel->told_count < channel->released_count) {
        moved = tcp_move_credits(instance, channel);
    }
    if (moved >= 0 && tcp_has_message(channel)) {
        const hd_status status = tcp_move_message(instance, channel);
        moved = status == HD_IN_PROGRESS ? moved : status;
    }
    return moved;
}

/* One look at every connection: HD_OK if anything moved. */
hd_status tcp_progress(struct hd_transport *instance)
{
    const hd_status failed = atomic_load(&instance->failed);
    hd_status moved = failed != HD_OK ? failed : HD_IN_PROGRESS;

    for (uint32_t i = 0; moved >= 0 && i < instance->channel_count; i++) {
        if (instance->channels[i].is_here) {
            const hd_status status = tcp_move(instance, &instance->channels[i]);
            moved = status == HD_IN_PROGRESS ? moved : status;
        }
    }
    return moved;
}

/* --- the data calls -------------------------------------------------------------------------- */

/* Whether a call keeps the sequence of its channel; if not, the instance has failed. */
static hd_status tcp_check(struct hd_transport *instance, bool is_in_order, const char *text,
                           const struct tcp_channel *channel)
{
    const hd_status failed = atomic_load(&instance->failed);

    if (failed != HD_OK) {
        return failed;
    }
    return is_in_order ? HD_OK : tcp_fail(instance, HD_INVALID, channel, text);
}

static hd_status tcp_reserve(struct hd_transport *instance, const struct hd_message *message)
{
    struct tcp_channel *channel = &instance->channels[message->channel];
    const hd_status status =
        tcp_check(instance, channel->is_source && message->sequence == channel->reserved_count,
                  "reserve must be called at the source, in sequence", channel);

    if (status == HD_OK && message->sequence >= channel->moved_count + channel->slot_count) {
        channel->busy_count++;
        return HD_BUSY;
    }
    channel->reserved_count += status == HD_OK;
    return status;
}

static hd_status tcp_post_send(struct hd_transport *instance, const struct hd_message *message,
                               void *stream)
{
    struct tcp_channel *channel = &instance->channels[message->channel];
    const bool is_next = message->sequence == channel->posted_count &&
                         channel->posted_count < channel->reserved_count;
    const hd_status status =
        tcp_check(instance, channel->is_source && stream == NULL && is_next,
                  "post_send must be called at the source, in sequence, after reserve", channel);

    channel->posted_count += status == HD_OK;
    return status;
}

static hd_status tcp_post_recv(struct hd_transport *instance, const struct hd_message *message)
{
    struct tcp_channel *channel = &instance->channels[message->channel];
    const bool is_next = message->sequence == channel->posted_count &&
                         message->sequence < channel->released_count + channel->facts->depth;
    const hd_status status =
        tcp_check(instance, !channel->is_source && is_next,
                  "post_recv must be called at the target, in sequence, for a free slot", channel);

    channel->posted_count += status == HD_OK;
    return status;
}

/* Before its post the question is whether the slot is free, after it whether it is free again. */
static bool tcp_is_free(const struct tcp_channel *channel, uint64_t sequence)
{
    return sequence < channel->posted_count ? sequence < channel->moved_count
                                            : sequence < channel->moved_count + channel->slot_count;
}

static hd_status tcp_test(struct hd_transport *instance, const struct hd_message *message)
{
    struct tcp_channel *channel = &instance->channels[message->channel];
    const uint64_t sequence = message->sequence;
    const bool is_known = channel->is_source ? sequence <= channel->reserved_count
                                             : sequence >= channel->released_count &&
                                                   sequence <= channel->waited_count &&
                                                   sequence < channel->posted_count;
    const hd_status status =
        tcp_check(instance, is_known,
                  "test must name a posted message, in sequence, before its release", channel);

    if (status != HD_OK) {
        return status;
    }
    if (channel->is_source) {
        return tcp_is_free(channel, sequence) ? HD_OK : HD_IN_PROGRESS;
    }
    if (sequence >= channel->moved_count) {
        return HD_IN_PROGRESS;
    }
    channel->waited_count += sequence == channel->waited_count;
    return HD_OK;
}

static hd_status tcp_release(struct hd_transport *instance, const struct hd_message *message,
                             void *stream)
{
    struct tcp_channel *channel = &instance->channels[message->channel];
    const bool is_next = message->sequence == channel->released_count &&
                         channel->released_count < channel->waited_count;
    const hd_status status =
        tcp_check(instance, !channel->is_source && stream == NULL && is_next,
                  "release must be called at the target, in sequence, after wait", channel);

    channel->released_count += status == HD_OK;
    return status;
}

/* Any thread may call it: it sets one word, and every data call looks at that word. */
static void tcp_abort(struct hd_transport *instance, const char *reason)
{
    (void)reason;
    tcp_keep(instance, HD_ABORTED);
}

/* Whether everything that was posted and released has left this rank. */
static bool tcp_is_idle(const struct hd_transport *instance)
{
    bool is_idle = true;

    for (uint32_t i = 0; i < instance->channel_count; i++) {
        const struct tcp_channel *channel = &instance->channels[i];
        is_idle = is_idle && (channel->is_source ? channel->moved_count == channel->posted_count
                                                 : channel->told_count == channel->released_count);
    }
    return is_idle;
}

/* The peers write only into sockets, never into the memory of this rank: what is left to do is to
   hand over what was posted and released.  Then the sockets are left alone, because a peer that has
   finished may close them. */
static hd_status tcp_quiesce(struct hd_transport *instance, uint64_t deadline_ns)
{
    const struct hd_host *host = instance->host;
    hd_status status = atomic_load(&instance->failed);

    while (status >= 0 && !tcp_is_idle(instance)) {
        if (host->now_ns(host->context) >= deadline_ns) {
            return tcp_fail(instance, HD_TIMEOUT, NULL, "a peer does not read what was sent to it");
        }
        status = tcp_progress(instance);
        if (status == HD_IN_PROGRESS) {
            poll(NULL, 0, 1);
        }
    }
    return status < 0 ? status : HD_OK;
}

static void tcp_stats(struct hd_transport *instance, uint32_t index, struct hd_channel_stats *out)
{
    const struct tcp_channel *channel = &instance->channels[index];
    struct hd_channel_stats stats = {
        .lane = "tcp",
        .finished_count = channel->moved_count,
        .busy_count = channel->busy_count,
    };

    stats.size = out->size < sizeof stats ? out->size : (uint32_t)sizeof stats;
    memcpy(out, &stats, stats.size);
}

static const struct hd_transport_ops tcp_ops = {
    .size = sizeof tcp_ops,
    .open = tcp_open,
    .slot = tcp_slot,
    .reserve = tcp_reserve,
    .post_send = tcp_post_send,
    .post_recv = tcp_post_recv,
    .test = tcp_test,
    .release = tcp_release,
    .progress = tcp_progress,
    .abort = tcp_abort,
    .quiesce = tcp_quiesce,
    .close = tcp_close,
    .stats = tcp_stats,
};

static const struct hd_option tcp_options[] = {
    {"address", "127.0.0.1", NULL, "IPv4 address at which the other ranks reach this rank",
     HD_OPTION_TEXT, 0},
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_TRANSPORT),
    .name = "plain_tcp",
    .summary = "one TCP connection for each channel, sockets that never block",
    .vendor = "heddle's examples",
    .version = "1",
    .licence = "Apache-2.0",
    .source = "heddle, docs/tutorial_transport.md",
    .option_count = 1,
    .options = tcp_options,
    .capabilities = HD_TRANSPORT_HOST | HD_TRANSPORT_SEALED | HD_TRANSPORT_NO_RESIDENT |
                    HD_TRANSPORT_PEER_DEATH | HD_TRANSPORT_MANY_HOSTS | HD_TRANSPORT_PROGRESS |
                    HD_TRANSPORT_TARGET_PROGRESS,
    .ops = &tcp_ops,
};
