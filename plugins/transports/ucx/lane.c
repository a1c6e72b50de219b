/*
 * ucx/lane.c - the calls of the contract: whose turn it is, what is free, what has arrived.
 *
 *   source   reserve   done > k - send_depth      the send slot is free
 *   source   post      handed to the mode, which sends it once it may
 *   target   wait      done > k                   the message is readable
 *   target   release   handed to the mode, which gives the credit
 */
#include "ucx.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = 512 };

hd_status ucx_fail(struct hd_transport *instance, const struct ucx_fault *fault, const char *format,
                   ...)
{
    const struct hd_host *host = instance->host;
    int first = HD_OK;
    char text[TEXT_BYTES];
    va_list arguments;

    if (!atomic_compare_exchange_strong(&instance->failed, &first, fault->status)) {
        return first;
    }
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const struct hd_error error = {.size = sizeof error,
                                   .status = fault->status,
                                   .rank = fault->rank,
                                   .channel = fault->channel,
                                   .sequence = fault->sequence,
                                   .text = text};
    host->fail(host->context, &error);
    return fault->status;
}

hd_status ucx_fail_lane(struct hd_transport *instance, struct ucx_lane *lane, ucs_status_t status)
{
    const struct ucx_fault fault = {HD_SYSTEM, lane->peer->rank, lane->number, lane->done_count};

    if (status == UCS_ERR_CONNECTION_RESET || status == UCS_ERR_ENDPOINT_TIMEOUT ||
        status == UCS_ERR_UNREACHABLE || status == UCS_ERR_CANCELED ||
        status == UCS_ERR_NOT_CONNECTED || status == UCS_ERR_REJECTED) {
        atomic_store(&lane->peer->is_lost, 1); /* whoever waits for it says so */
        return HD_IN_PROGRESS;
    }
    return ucx_fail(instance, &fault, "channel %u: message %" PRIu64 " %s rank %u: UCX: %s",
                    lane->number, lane->done_count, lane->is_source ? "to" : "from", fault.rank,
                    ucs_status_string(status));
}

/* --- whose turn it is -------------------------------------------------------------------- */

enum side { SOURCE = 1, TARGET = 2, EITHER = 3 };

/* The lane of `message`, if this rank is at that end of it and nothing has failed. */
static hd_status enter(struct hd_transport *instance, const struct hd_message *message,
                       enum side side, struct ucx_lane **lane)
{
    const hd_status failed = atomic_load(&instance->failed);
    const struct ucx_fault fault = {HD_INVALID, UCX_NONE, message->channel, message->sequence};

    if (failed < 0) {
        return failed;
    }
    if (message->channel < instance->channel_count &&
        instance->lane_of[message->channel] != UCX_NONE) {
        *lane = &instance->lanes[instance->lane_of[message->channel]];
        if ((side & ((*lane)->is_source ? SOURCE : TARGET)) != 0) {
            return HD_OK;
        }
    }
    return ucx_fail(instance, &fault, "channel %u: this rank is not at that end of it",
                    message->channel);
}

/* One call in its turn: `next` is the only sequence it may have now, and only if `allowed`. */
static hd_status take_turn(struct hd_transport *instance, const struct hd_message *message,
                           const char *call, uint64_t next, int allowed)
{
    const struct ucx_fault fault = {HD_INVALID, UCX_NONE, message->channel, message->sequence};

    if (message->sequence == next && allowed) {
        return HD_OK;
    }
    return ucx_fail(instance, &fault,
                    "channel %u: %s of message %" PRIu64 " out of turn: %" PRIu64 " is next%s",
                    message->channel, call, message->sequence, next,
                    allowed ? "" : ", and not yet allowed");
}

static hd_status check_stream(struct hd_transport *instance, const struct hd_message *message,
                              const void *stream)
{
    const struct ucx_fault fault = {HD_INVALID, UCX_NONE, message->channel, message->sequence};

    if (stream == NULL) {
        return HD_OK;
    }
    return ucx_fail(instance, &fault, "channel %u: a stream was given, but %s moves host memory",
                    message->channel, instance->mode->name);
}

/* --- what has happened ------------------------------------------------------------------- */

/* Is there anything to wait for?  At the source: the next message to reserve, or an older. */
static int is_askable(const struct ucx_lane *lane, uint64_t sequence)
{
    if (lane->is_source) {
        return sequence <= lane->reserved_count;
    }
    return sequence >= lane->released_count && sequence < lane->posted_count &&
           sequence <= lane->readable_count;
}

/* The count of done messages that answers for `sequence`. */
static uint64_t goal_of(const struct ucx_lane *lane, uint64_t sequence)
{
    if (!lane->is_source || sequence < lane->posted_count) {
        return sequence + 1;
    }
    return sequence < lane->slot_count ? 0 : sequence - lane->slot_count + 1;
}

static hd_status report_wait(struct hd_transport *instance, const struct hd_message *message,
                             hd_status status)
{
    const struct ucx_lane *lane = &instance->lanes[instance->lane_of[message->channel]];
    const struct ucx_fault fault = {status, lane->peer->rank, message->channel, message->sequence};

    return ucx_fail(instance, &fault,
                    "channel %u (%s over boundary %u, by %s): rank %u %s: message %" PRIu64
                    " waits for its %s, %" PRIu64 " of which are known",
                    message->channel,
                    lane->channel->direction == HD_FORWARD ? "forward" : "backward",
                    lane->channel->boundary, lane->name, fault.rank,
                    status == HD_PEER_LOST ? "has ended" : "has not answered by the deadline",
                    message->sequence, lane->is_source ? "sends" : "messages", lane->done_count);
}

/* HD_OK or HD_IN_PROGRESS, by what is known now. */
static hd_status look(struct ucx_lane *lane, uint64_t sequence)
{
    if (lane->done_count < goal_of(lane, sequence)) {
        return HD_IN_PROGRESS;
    }
    if (!lane->is_source && sequence == lane->readable_count) {
        lane->readable_count = sequence + 1;
    }
    return HD_OK;
}

/* Moves once if it must, and sees a peer that UCX has given up. */
static hd_status look_twice(struct hd_transport *instance, const struct hd_message *message,
                            struct ucx_lane *lane)
{
    hd_status status = look(lane, message->sequence);

    if (status == HD_IN_PROGRESS) {
        const hd_status moved = ucx_move(instance);
        if (moved < 0) {
            return moved;
        }
        status = look(lane, message->sequence);
        if (status == HD_IN_PROGRESS && moved != HD_OK && atomic_load(&lane->peer->is_lost)) {
            return report_wait(instance, message, HD_PEER_LOST);
        }
    }
    return status;
}

uint64_t ucx_now_ns(const struct hd_transport *instance)
{
    return instance->is_traced ? instance->host->now_ns(instance->host->context) : 0;
}

/* Nothing here is ever resident: what waits for its peer is a send slot, and no core or device. */
void ucx_report(const struct hd_transport *instance, const struct ucx_lane *lane, uint64_t sequence,
                uint64_t begin_ns, uint64_t end_ns)
{
    const struct hd_host *host = instance->host;
    const struct hd_transfer transfer = {.size = sizeof transfer,
                                         .channel = lane->number,
                                         .sequence = sequence,
                                         .begin_ns = begin_ns,
                                         .end_ns = end_ns};

    if (instance->is_open && instance->is_traced) {
        host->trace_transfer(host->context, &transfer);
    }
}

/* --- the contract ------------------------------------------------------------------------ */

void *ucx_slot(struct hd_transport *instance, const struct hd_message *message)
{
    const struct ucx_lane *lane = &instance->lanes[instance->lane_of[message->channel]];
    return lane->slots + message->sequence % lane->slot_count * lane->stride_bytes;
}

hd_status ucx_reserve(struct hd_transport *instance, const struct hd_message *message)
{
    struct ucx_lane *lane = NULL;
    hd_status status = enter(instance, message, SOURCE, &lane);

    if (status == HD_OK) {
        status = take_turn(instance, message, "reserve", lane->reserved_count, 1);
    }
    if (status == HD_OK) {
        status = look_twice(instance, message, lane);
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

hd_status ucx_post_send(struct hd_transport *instance, const struct hd_message *message,
                        void *stream)
{
    struct ucx_lane *lane = NULL;
    hd_status status = enter(instance, message, SOURCE, &lane);

    if (status == HD_OK) {
        status = check_stream(instance, message, stream);
    }
    if (status == HD_OK) {
        const int is_reserved = lane->posted_count < lane->reserved_count;
        status = take_turn(instance, message, "post_send", lane->posted_count, is_reserved);
    }
    if (status != HD_OK) {
        return status;
    }
    lane->posted_count++;
    return instance->mode->send(instance, lane);
}

hd_status ucx_post_recv(struct hd_transport *instance, const struct hd_message *message)
{
    struct ucx_lane *lane = NULL;
    hd_status status = enter(instance, message, TARGET, &lane);

    if (status == HD_OK) {
        const int is_free = lane->posted_count < lane->released_count + lane->channel->depth;
        status = take_turn(instance, message, "post_recv", lane->posted_count, is_free);
    }
    if (status != HD_OK) {
        return status;
    }
    lane->posted_count++;
    return instance->mode->receive(instance, lane);
}

static hd_status ask(struct hd_transport *instance, const struct hd_message *message,
                     struct ucx_lane **lane)
{
    const hd_status status = enter(instance, message, EITHER, lane);

    if (status == HD_OK && !is_askable(*lane, message->sequence)) {
        const uint64_t next =
            (*lane)->is_source ? (*lane)->reserved_count : (*lane)->readable_count;
        return take_turn(instance, message, "test or wait", next, 0);
    }
    return status;
}

hd_status ucx_test(struct hd_transport *instance, const struct hd_message *message)
{
    struct ucx_lane *lane = NULL;
    const hd_status status = ask(instance, message, &lane);

    return status == HD_OK ? look_twice(instance, message, lane) : status;
}

static int is_done(struct hd_transport *instance, const struct ucx_wait *wait)
{
    (void)instance;
    return wait->lane->done_count >= wait->goal;
}

hd_status ucx_wait(struct hd_transport *instance, const struct hd_message *message, void *stream,
                   uint64_t deadline_ns)
{
    struct ucx_lane *lane = NULL;
    hd_status status = enter(instance, message, EITHER, &lane);

    if (status == HD_OK) {
        status = check_stream(instance, message, stream);
    }
    if (status == HD_OK) {
        status = ask(instance, message, &lane);
    }
    if (status != HD_OK) {
        return status;
    }
    const struct ucx_wait wait = {.is_over = is_done,
                                  .lane = lane,
                                  .peer = lane->peer,
                                  .goal = goal_of(lane, message->sequence),
                                  .deadline_ns = deadline_ns};
    status = ucx_wait_for(instance, &wait);
    if (status == HD_PEER_LOST || status == HD_TIMEOUT) {
        return report_wait(instance, message, status);
    }
    return status == HD_OK ? look(lane, message->sequence) : status;
}

hd_status ucx_release(struct hd_transport *instance, const struct hd_message *message, void *stream)
{
    struct ucx_lane *lane = NULL;
    hd_status status = enter(instance, message, TARGET, &lane);

    if (status == HD_OK) {
        status = check_stream(instance, message, stream);
    }
    if (status == HD_OK) {
        const int is_leased = lane->released_count < lane->readable_count;
        status = take_turn(instance, message, "release", lane->released_count, is_leased);
    }
    if (status != HD_OK) {
        return status;
    }
    lane->released_count++;
    return instance->mode->release(instance, lane);
}

/* The reason is the core's own, which it has told the user already.  A waiter looks in each turn.
 */
void ucx_abort(struct hd_transport *instance, const char *reason)
{
    int none = HD_OK;

    (void)reason;
    atomic_compare_exchange_strong(&instance->failed, &none, HD_ABORTED);
}

void ucx_stats(struct hd_transport *instance, uint32_t channel, struct hd_channel_stats *out)
{
    struct hd_channel_stats all = {.lane = ""};

    if (instance->lane_of[channel] != UCX_NONE) {
        const struct ucx_lane *lane = &instance->lanes[instance->lane_of[channel]];
        snprintf(all.lane, sizeof all.lane, "%s", lane->name);
        all.finished_count = atomic_load_explicit(&lane->finished_count, memory_order_relaxed);
        all.busy_count = atomic_load_explicit(&lane->busy_count, memory_order_relaxed);
    }
    all.size = out->size;
    memcpy(out, &all, out->size < sizeof all ? out->size : sizeof all);
}
