/*
 * nccl_link/lane.c - the calls of the contract: whose turn it is, what is free, what has arrived.
 *
 *   source   reserve   done > k - slots           the device has read the send slot
 *   source   post      behind the caller's stream, on the channel's own
 *   target   wait      makes the caller's stream wait; or done > k, if there is none
 *   target   release   behind the caller's stream
 *
 * done counts events that the device has passed; the host looks at them, and nobody else moves it.
 */
#include "nccl_link.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum side { SOURCE = 1, TARGET = 2, EITHER = 3 };

static hd_status enter(struct hd_transport *instance, const struct hd_message *message,
                       enum side side, struct nccl_lane **lane)
{
    const hd_status failed = nccl_use_device(instance);
    const struct nccl_fault fault = {HD_INVALID, NCCL_NONE, message->channel, message->sequence};

    if (failed < 0) {
        return failed;
    }
    if (message->channel < instance->channel_count &&
        instance->lane_of[message->channel] != NCCL_NONE) {
        *lane = &instance->lanes[instance->lane_of[message->channel]];
        if ((side & ((*lane)->is_source ? SOURCE : TARGET)) != 0) {
            return HD_OK;
        }
    }
    return nccl_fail(instance, &fault, "channel %u: this rank is not at that end of it",
                     message->channel);
}

/* One call in its turn: `next` is the only sequence it may have now, and only if `allowed`. */
static hd_status take_turn(struct hd_transport *instance, const struct hd_message *message,
                           const char *call, uint64_t next, int allowed)
{
    const struct nccl_fault fault = {HD_INVALID, NCCL_NONE, message->channel, message->sequence};

    if (message->sequence == next && allowed) {
        return HD_OK;
    }
    return nccl_fail(instance, &fault,
                     "channel %u: %s of message %" PRIu64 " out of turn: %" PRIu64 " is next%s",
                     message->channel, call, message->sequence, next,
                     allowed ? "" : ", and not yet allowed");
}

/* --- what has happened ------------------------------------------------------------------- */

/* When the device passed an event, on the host's clock. */
static void trace(struct hd_transport *instance, struct nccl_lane *lane, uint64_t sequence)
{
    const struct hd_host *host = instance->host;
    float milliseconds = 0;

    if (lane->is_source || host->trace_transfer == NULL ||
        instance->cuda.cudaEventElapsedTime(&milliseconds, instance->base,
                                            lane->moved[sequence % lane->slot_count]) !=
            cudaSuccess) {
        return;
    }
    const struct hd_transfer transfer = {
        .size = sizeof transfer,
        .channel = lane->number,
        .sequence = sequence,
        .end_ns = instance->base_ns + (uint64_t)((double)milliseconds * 1e6),
    };
    host->trace_transfer(host->context, &transfer);
}

/* How many messages have an event behind them: all posted ones, or those that were waited for. */
static uint64_t recorded_count(const struct hd_transport *instance, const struct nccl_lane *lane)
{
    if (instance->mode->is_one_sided && !lane->is_source) {
        return lane->awaited_count;
    }
    return lane->posted_count;
}

hd_status nccl_advance(struct hd_transport *instance, struct nccl_lane *lane)
{
    const uint64_t before = lane->done_count;
    hd_status status = HD_OK;

    if (instance->group_count > 0) {
        return HD_IN_PROGRESS; /* its events are not recorded yet */
    }
    while (status == HD_OK && lane->done_count < recorded_count(instance, lane)) {
        status = nccl_query(instance, lane, lane->moved[lane->done_count % lane->slot_count]);
        if (status == HD_OK) {
            trace(instance, lane, lane->done_count);
            lane->done_count++;
        }
    }
    atomic_store_explicit(&lane->finished_count, lane->done_count, memory_order_relaxed);
    if (status < 0) {
        return status;
    }
    return lane->done_count > before ? HD_OK : HD_IN_PROGRESS;
}

/* Is there anything to wait for?  At the source: the next message to reserve, or an older. */
static int is_askable(const struct nccl_lane *lane, uint64_t sequence)
{
    if (lane->is_source) {
        return sequence <= lane->reserved_count;
    }
    return sequence >= lane->released_count && sequence < lane->posted_count &&
           sequence <= lane->readable_count;
}

/* The count of done messages that answers for `sequence`. */
static uint64_t goal_of(const struct nccl_lane *lane, uint64_t sequence)
{
    if (!lane->is_source || sequence < lane->posted_count) {
        return sequence + 1;
    }
    return sequence < lane->slot_count ? 0 : sequence - lane->slot_count + 1;
}

static hd_status look(struct hd_transport *instance, struct nccl_lane *lane, uint64_t sequence)
{
    if (lane->done_count < goal_of(lane, sequence)) {
        const hd_status moved = nccl_advance(instance, lane);
        if (moved < 0) {
            return moved;
        }
    }
    const hd_status failed = atomic_load(&instance->failed);
    if (failed < 0) {
        return failed; /* an abort passes the device's events, too, and nothing has arrived */
    }
    if (lane->done_count < goal_of(lane, sequence)) {
        return HD_IN_PROGRESS;
    }
    if (!lane->is_source && sequence == lane->readable_count) {
        lane->readable_count = sequence + 1;
    }
    return HD_OK;
}

static hd_status ask(struct hd_transport *instance, const struct hd_message *message,
                     struct nccl_lane **lane)
{
    const hd_status status = enter(instance, message, EITHER, lane);

    if (status == HD_OK && !is_askable(*lane, message->sequence)) {
        const uint64_t next =
            (*lane)->is_source ? (*lane)->reserved_count : (*lane)->readable_count;
        return take_turn(instance, message, "test or wait", next, 0);
    }
    return status;
}

/* --- the contract ------------------------------------------------------------------------ */

void *nccl_slot(struct hd_transport *instance, const struct hd_message *message)
{
    const struct nccl_lane *lane = &instance->lanes[instance->lane_of[message->channel]];
    return lane->slots + message->sequence % lane->slot_count * lane->stride_bytes;
}

hd_status nccl_reserve(struct hd_transport *instance, const struct hd_message *message)
{
    struct nccl_lane *lane = NULL;
    hd_status status = enter(instance, message, SOURCE, &lane);

    if (status == HD_OK) {
        status = take_turn(instance, message, "reserve", lane->reserved_count, 1);
    }
    if (status == HD_OK) {
        status = look(instance, lane, message->sequence);
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

hd_status nccl_post_send(struct hd_transport *instance, const struct hd_message *message,
                         void *stream)
{
    struct nccl_lane *lane = NULL;
    hd_status status = enter(instance, message, SOURCE, &lane);

    if (status == HD_OK) {
        const int is_reserved = lane->posted_count < lane->reserved_count;
        status = take_turn(instance, message, "post_send", lane->posted_count, is_reserved);
    }
    if (status == HD_OK) {
        status = nccl_follow(instance, lane, lane->ready, stream);
    }
    if (status == HD_OK) {
        status = nccl_launch(instance, lane, message, instance->mode->send);
    }
    if (status == HD_OK) {
        lane->posted_count++;
    }
    return status;
}

hd_status nccl_post_recv(struct hd_transport *instance, const struct hd_message *message)
{
    struct nccl_lane *lane = NULL;
    hd_status status = enter(instance, message, TARGET, &lane);

    if (status == HD_OK) {
        const int is_free = lane->posted_count < lane->released_count + lane->channel->depth;
        status = take_turn(instance, message, "post_recv", lane->posted_count, is_free);
    }
    if (status == HD_OK) {
        status = nccl_launch(instance, lane, message, instance->mode->receive);
    }
    if (status == HD_OK) {
        lane->posted_count++;
    }
    return status;
}

hd_status nccl_test(struct hd_transport *instance, const struct hd_message *message)
{
    struct nccl_lane *lane = NULL;
    hd_status status = ask(instance, message, &lane);

    if (status == HD_OK && !lane->is_source) {
        status = instance->mode->await(instance, lane, message->sequence, NULL);
    }
    return status == HD_OK ? look(instance, lane, message->sequence) : status;
}

static hd_status report_late(struct hd_transport *instance, const struct nccl_lane *lane,
                             uint64_t sequence)
{
    const struct nccl_fault fault = {HD_TIMEOUT, lane->peer, lane->number, sequence};

    return nccl_fail(instance, &fault,
                     "channel %u (%s over boundary %u): rank %u has not answered by the deadline: "
                     "message %" PRIu64 " waits, %" PRIu64 " have moved",
                     lane->number, lane->channel->direction == HD_FORWARD ? "forward" : "backward",
                     lane->channel->boundary, lane->peer, sequence, lane->done_count);
}

static hd_status wait_on_host(struct hd_transport *instance, struct nccl_lane *lane,
                              uint64_t sequence, uint64_t deadline_ns)
{
    const struct hd_host *host = instance->host;
    hd_status status = look(instance, lane, sequence);

    while (status == HD_IN_PROGRESS) {
        const hd_status failed = atomic_load(&instance->failed);
        if (failed < 0) {
            return failed;
        }
        if (host->now_ns(host->context) > deadline_ns) {
            return report_late(instance, lane, sequence);
        }
        nccl_nap();
        status = look(instance, lane, sequence);
    }
    return status;
}

hd_status nccl_wait(struct hd_transport *instance, const struct hd_message *message, void *stream,
                    uint64_t deadline_ns)
{
    struct nccl_lane *lane = NULL;
    hd_status status = ask(instance, message, &lane);

    if (status == HD_OK && !lane->is_source) {
        status = instance->mode->await(instance, lane, message->sequence, stream);
    }
    if (status != HD_OK) {
        return status;
    }
    if (stream == NULL) {
        return wait_on_host(instance, lane, message->sequence, deadline_ns);
    }
    if (lane->is_source) {
        const struct nccl_fault fault = {HD_INVALID, NCCL_NONE, lane->number, message->sequence};
        return nccl_fail(instance, &fault, "channel %u: a stream waits only at the target",
                         lane->number);
    }
    if (message->sequence == lane->readable_count) {
        lane->readable_count = message->sequence + 1;
    }
    return nccl_cuda(instance, lane,
                     instance->cuda.cudaStreamWaitEvent(
                         stream, lane->moved[message->sequence % lane->slot_count], 0),
                     "cudaStreamWaitEvent");
}

hd_status nccl_release(struct hd_transport *instance, const struct hd_message *message,
                       void *stream)
{
    struct nccl_lane *lane = NULL;
    hd_status status = enter(instance, message, TARGET, &lane);
    const uint64_t sequence = message->sequence;

    if (status == HD_OK) {
        const int is_leased = lane->released_count < lane->readable_count;
        status = take_turn(instance, message, "release", lane->released_count, is_leased);
    }
    if (status != HD_OK) {
        return status;
    }
    lane->is_freed[sequence % lane->slot_count] = stream != NULL;
    if (stream != NULL) {
        status = nccl_cuda(
            instance, lane,
            instance->cuda.cudaEventRecord(lane->freed[sequence % lane->slot_count], stream),
            "cudaEventRecord");
    }
    if (status == HD_OK) {
        status = instance->mode->release(instance, lane, sequence);
    }
    if (status != HD_OK) {
        return status;
    }
    lane->released_count++;
    status = nccl_advance(instance, lane); /* what has been read is counted */
    return status < 0 ? status : HD_OK;
}

/* Nothing here needs a host to move it; but what went wrong on the device is seen. */
hd_status nccl_progress(struct hd_transport *instance)
{
    hd_status moved = HD_IN_PROGRESS;
    hd_status status = nccl_use_device(instance);

    for (uint32_t i = 0; status == HD_OK && i < instance->lane_count; i++) {
        const hd_status advanced = nccl_advance(instance, &instance->lanes[i]);
        moved = advanced == HD_OK ? HD_OK : moved;
        status = advanced < 0 ? advanced : HD_OK;
    }
    for (uint32_t i = 0; status == HD_OK && i < instance->lane_count; i++) {
        const struct nccl_lane *lane = &instance->lanes[i];
        ncclResult_t result = ncclSuccess;
        pthread_mutex_lock(&instance->lock);
        const ncclResult_t asked = atomic_load(&instance->failed) < 0
                                       ? ncclSuccess
                                       : instance->nccl.ncclCommGetAsyncError(lane->comm, &result);
        status = nccl_begun(instance, lane, asked != ncclSuccess ? asked : result, "its channel");
        pthread_mutex_unlock(&instance->lock);
    }
    return status == HD_OK ? moved : status;
}

void nccl_stats(struct hd_transport *instance, uint32_t channel, struct hd_channel_stats *out)
{
    struct hd_channel_stats all = {.lane = ""};
    char version[16];

    if (channel < instance->channel_count && instance->lane_of[channel] != NCCL_NONE) {
        const struct nccl_lane *lane = &instance->lanes[instance->lane_of[channel]];
        snprintf(all.lane, sizeof all.lane, "%s/gpu%u/nccl-%s", instance->mode->name,
                 instance->device, nccl_version_text(instance->nccl.version, version));
        all.finished_count = atomic_load_explicit(&lane->finished_count, memory_order_relaxed);
        all.busy_count = atomic_load_explicit(&lane->busy_count, memory_order_relaxed);
    }
    all.size = out->size;
    memcpy(out, &all, out->size < sizeof all ? out->size : sizeof all);
}
