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

/* --- what has happened ------------------------------------------------------------------- */

/* When the device passed an event, on the host's clock. */
static void nccl_link_trace(struct hd_transport *instance, struct nccl_lane *lane,
                            uint64_t sequence)
{
    float milliseconds = 0;

    if (lane->book.is_source || !instance->book.is_traced ||
        instance->cuda.cudaEventElapsedTime(&milliseconds, instance->base,
                                            lane->moved[sequence % lane->book.slot_count]) !=
            cudaSuccess) {
        return;
    }
    book_report(
        &instance->book,
        (struct hd_transfer){.channel = lane->book.number,
                             .sequence = sequence,
                             .end_ns = instance->base_ns + (uint64_t)((double)milliseconds * 1e6)});
}

/* How many messages have an event behind them: all posted ones, or those that were waited for. */
static uint64_t nccl_link_recorded_count(const struct hd_transport *instance,
                                         const struct nccl_lane *lane)
{
    if (instance->mode->is_one_sided && !lane->book.is_source) {
        return lane->awaited_count;
    }
    return lane->book.posted_count;
}

hd_status nccl_advance(struct hd_transport *instance, struct nccl_lane *lane)
{
    const uint64_t before = lane->done_count;
    hd_status status = HD_OK;

    if (instance->group_count > 0) {
        return HD_IN_PROGRESS; /* its events are not recorded yet */
    }
    while (status == HD_OK && lane->done_count < nccl_link_recorded_count(instance, lane)) {
        status = nccl_query(instance, lane, lane->moved[lane->done_count % lane->book.slot_count]);
        if (status == HD_OK) {
            nccl_link_trace(instance, lane, lane->done_count);
            lane->done_count++;
        }
    }
    atomic_store_explicit(&lane->finished_count, lane->done_count, memory_order_relaxed);
    if (status < 0) {
        return status;
    }
    return lane->done_count > before ? HD_OK : HD_IN_PROGRESS;
}

static hd_status nccl_link_look(struct hd_transport *instance, struct nccl_lane *lane,
                                uint64_t sequence)
{
    if (lane->done_count < book_goal(&lane->book, sequence)) {
        const hd_status moved = nccl_advance(instance, lane);
        if (moved < 0) {
            return moved;
        }
    }
    const hd_status failed = book_failed(&instance->book);
    if (failed < 0) {
        return failed; /* an abort passes the device's events, too, and nothing has arrived */
    }
    return book_answer(&lane->book, sequence, lane->done_count);
}

/* --- the contract ------------------------------------------------------------------------ */

static struct nccl_lane *nccl_link_lane_of(const struct hd_transport *instance, uint32_t channel)
{
    return (struct nccl_lane *)instance->book.lane_of[channel];
}

void *nccl_slot(struct hd_transport *instance, const struct hd_message *message)
{
    const struct nccl_lane *lane = nccl_link_lane_of(instance, message->channel);
    return lane->slots + message->sequence % lane->book.slot_count * lane->stride_bytes;
}

hd_status nccl_reserve(struct hd_transport *instance, const struct hd_message *message)
{
    struct book_lane *lane = NULL;
    hd_status status = book_to_reserve(&instance->book, message, &lane);

    if (status == HD_OK) {
        status = nccl_use_device(instance);
    }
    if (status == HD_OK) {
        status = nccl_link_look(instance, (struct nccl_lane *)lane, message->sequence);
    }
    return book_reserved(lane, status);
}

hd_status nccl_post_send(struct hd_transport *instance, const struct hd_message *message,
                         void *stream)
{
    struct book_lane *book = NULL;
    hd_status status = book_to_post(&instance->book, message, TURN_SOURCE, &book);
    struct nccl_lane *lane = (struct nccl_lane *)book;

    if (status == HD_OK) {
        status = nccl_use_device(instance);
    }
    if (status == HD_OK) {
        status = nccl_follow(instance, lane, lane->ready, stream);
    }
    if (status == HD_OK) {
        status = nccl_launch(instance, lane, message, instance->mode->send);
    }
    if (status == HD_OK) {
        book->posted_count++;
    }
    return status;
}

hd_status nccl_post_recv(struct hd_transport *instance, const struct hd_message *message)
{
    struct book_lane *lane = NULL;
    hd_status status = book_to_post(&instance->book, message, TURN_TARGET, &lane);

    if (status == HD_OK) {
        status = nccl_use_device(instance);
    }
    if (status == HD_OK) {
        status = nccl_launch(instance, (struct nccl_lane *)lane, message, instance->mode->receive);
    }
    if (status == HD_OK) {
        lane->posted_count++;
    }
    return status;
}

/* At the target, the message's event stands on `stream`, or on one of the lane's, afterwards. */
static hd_status nccl_link_ask(struct hd_transport *instance, const struct hd_message *message,
                               void *stream, struct nccl_lane **lane)
{
    struct book_lane *book = NULL;
    const enum book_side side = stream != NULL ? TURN_TARGET : TURN_EITHER;
    hd_status status = book_to_ask(&instance->book, message, side, &book);

    *lane = (struct nccl_lane *)book;
    if (status == HD_OK) {
        status = nccl_use_device(instance);
    }
    if (status == HD_OK && !book->is_source) {
        status = instance->mode->await(instance, *lane, message->sequence, stream);
    }
    return status;
}

hd_status nccl_test(struct hd_transport *instance, const struct hd_message *message)
{
    struct nccl_lane *lane = NULL;
    const hd_status status = nccl_link_ask(instance, message, NULL, &lane);

    return status == HD_OK ? nccl_link_look(instance, lane, message->sequence) : status;
}

static hd_status nccl_link_wait_on_host(struct hd_transport *instance, struct nccl_lane *lane,
                                        uint64_t sequence, uint64_t deadline_ns)
{
    const struct book_fault late = book_peer_fault(&lane->book, HD_TIMEOUT, sequence);
    hd_status status = nccl_link_look(instance, lane, sequence);

    while (status == HD_IN_PROGRESS) {
        if (book_now_ns(&instance->book) > deadline_ns) {
            return book_report_wait(&instance->book, &lane->book, &late, lane->done_count);
        }
        nccl_nap();
        status = nccl_link_look(instance, lane, sequence);
    }
    return status;
}

hd_status nccl_wait(struct hd_transport *instance, const struct hd_message *message, void *stream,
                    uint64_t deadline_ns)
{
    struct nccl_lane *lane = NULL;
    const hd_status status = nccl_link_ask(instance, message, stream, &lane);

    if (status != HD_OK) {
        return status;
    }
    if (stream == NULL) {
        return nccl_link_wait_on_host(instance, lane, message->sequence, deadline_ns);
    }
    book_readable(&lane->book, message->sequence);
    return nccl_cuda(instance, lane,
                     instance->cuda.cudaStreamWaitEvent(
                         stream, lane->moved[message->sequence % lane->book.slot_count], 0),
                     "cudaStreamWaitEvent");
}

hd_status nccl_release(struct hd_transport *instance, const struct hd_message *message,
                       void *stream)
{
    struct book_lane *book = NULL;
    hd_status status = book_to_release(&instance->book, message, &book);
    struct nccl_lane *lane = (struct nccl_lane *)book;
    const uint64_t sequence = message->sequence;

    if (status == HD_OK) {
        status = nccl_use_device(instance);
    }
    if (status != HD_OK) {
        return status;
    }
    lane->is_freed[sequence % lane->book.slot_count] = stream != NULL;
    if (stream != NULL) {
        status = nccl_cuda(
            instance, lane,
            instance->cuda.cudaEventRecord(lane->freed[sequence % lane->book.slot_count], stream),
            "cudaEventRecord");
    }
    if (status == HD_OK) {
        status = instance->mode->release(instance, lane, sequence);
    }
    if (status != HD_OK) {
        return status;
    }
    lane->book.released_count++;
    status = nccl_advance(instance, lane); /* what has been read is counted */
    return status < 0 ? status : HD_OK;
}

/* Nothing here needs a host to move it; but what went wrong on the device is seen. */
hd_status nccl_progress(struct hd_transport *instance)
{
    hd_status moved = HD_IN_PROGRESS;
    hd_status status = nccl_use_device(instance);

    for (uint32_t i = 0; status == HD_OK && i < instance->book.lane_count; i++) {
        const hd_status advanced = nccl_advance(instance, &instance->lanes[i]);
        moved = advanced == HD_OK ? HD_OK : moved;
        status = advanced < 0 ? advanced : HD_OK;
    }
    for (uint32_t i = 0; status == HD_OK && i < instance->book.lane_count; i++) {
        const struct nccl_lane *lane = &instance->lanes[i];
        ncclResult_t result = ncclSuccess;
        pthread_mutex_lock(&instance->lock);
        const ncclResult_t asked = book_failed(&instance->book) < 0
                                       ? ncclSuccess
                                       : instance->nccl.ncclCommGetAsyncError(lane->comm, &result);
        status = nccl_begun(instance, lane, asked != ncclSuccess ? asked : result, "its channel");
        pthread_mutex_unlock(&instance->lock);
    }
    return status == HD_OK ? moved : status;
}

void nccl_stats(struct hd_transport *instance, uint32_t channel, struct hd_channel_stats *out)
{
    const struct nccl_lane *lane = nccl_link_lane_of(instance, channel);

    book_stats(lane != NULL ? &lane->book : NULL,
               lane != NULL ? atomic_load_explicit(&lane->finished_count, memory_order_relaxed) : 0,
               out);
}
