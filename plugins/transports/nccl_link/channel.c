/*
 * nccl_link/channel.c - the data calls: their order, which slot is free, what has arrived.
 *
 *   source   reserve   done > k - slots           the device has read the send slot
 *   source   post      behind the caller's stream, on the channel's own stream
 *   target   wait      makes the caller's stream wait; without one, until done > k
 *   target   release   behind the caller's stream
 *
 * `done` counts events that the device has passed.  The host reads them; nothing else changes it.
 */
#include "nccl_link.h"

/* Reports to the trace when the device passed the message's event, on the host's clock. */
static void nccl_link_trace(struct hd_transport *instance, struct nccl_channel *channel,
                            uint64_t sequence)
{
    float milliseconds = 0;

    if (channel->book.is_source || !instance->book.is_traced ||
        instance->cuda.cudaEventElapsedTime(&milliseconds, instance->base,
                                            channel->moved[sequence % channel->book.slot_count]) !=
            cudaSuccess) {
        return;
    }
    book_report(
        &instance->book,
        (struct hd_transfer){.channel = channel->book.number,
                             .sequence = sequence,
                             .end_ns = instance->base_ns + (uint64_t)((double)milliseconds * 1e6)});
}

/* The number of messages with a recorded event: all posted ones, or those that were awaited. */
static uint64_t nccl_link_recorded_count(const struct hd_transport *instance,
                                         const struct nccl_channel *channel)
{
    if (instance->mode->is_one_sided && !channel->book.is_source) {
        return channel->awaited_count;
    }
    return channel->book.posted_count;
}

hd_status nccl_advance(struct hd_transport *instance, struct nccl_channel *channel)
{
    const uint64_t before = channel->done_count;
    hd_status status = HD_OK;

    if (instance->group_count > 0) {
        return HD_IN_PROGRESS; /* the events of the group are not recorded yet */
    }
    while (status == HD_OK && channel->done_count < nccl_link_recorded_count(instance, channel)) {
        status = nccl_query(instance, channel,
                            channel->moved[channel->done_count % channel->book.slot_count]);
        if (status == HD_OK) {
            nccl_link_trace(instance, channel, channel->done_count);
            channel->done_count++;
        }
    }
    atomic_store_explicit(&channel->finished_count, channel->done_count, memory_order_relaxed);
    if (status < 0) {
        return status;
    }
    return channel->done_count > before ? HD_OK : HD_IN_PROGRESS;
}

static hd_status nccl_link_look(struct hd_transport *instance, struct nccl_channel *channel,
                                uint64_t sequence)
{
    if (channel->done_count < book_goal(&channel->book, sequence)) {
        const hd_status moved = nccl_advance(instance, channel);
        if (moved < 0) {
            return moved;
        }
    }
    const hd_status failed = book_failed(&instance->book);
    if (failed < 0) {
        return failed; /* after an abort the device passes events although nothing has arrived */
    }
    return book_answer(&channel->book, sequence, channel->done_count);
}

/* --- the contract ------------------------------------------------------------------------ */

static struct nccl_channel *nccl_link_channel_of(const struct hd_transport *instance,
                                                 uint32_t number)
{
    return (struct nccl_channel *)instance->book.channel_of[number];
}

void *nccl_slot(struct hd_transport *instance, const struct hd_message *message)
{
    const struct nccl_channel *channel = nccl_link_channel_of(instance, message->channel);
    return channel->slots + message->sequence % channel->book.slot_count * channel->stride_bytes;
}

hd_status nccl_reserve(struct hd_transport *instance, const struct hd_message *message)
{
    struct book_channel *channel = NULL;

    BOOK_TRY(book_to_reserve(&instance->book, message, &channel));
    BOOK_TRY(nccl_use_device(instance));
    return book_reserved(
        channel, nccl_link_look(instance, (struct nccl_channel *)channel, message->sequence));
}

hd_status nccl_post_send(struct hd_transport *instance, const struct hd_message *message,
                         void *stream)
{
    struct book_channel *book = NULL;

    BOOK_TRY(book_to_post(&instance->book, message, BOOK_SOURCE, &book));
    struct nccl_channel *channel = (struct nccl_channel *)book;
    BOOK_TRY(nccl_use_device(instance));
    BOOK_TRY(nccl_follow(instance, channel, channel->ready, stream));
    BOOK_TRY(nccl_launch(instance, channel, message, instance->mode->send));
    book->posted_count++;
    return HD_OK;
}

hd_status nccl_post_recv(struct hd_transport *instance, const struct hd_message *message)
{
    struct book_channel *channel = NULL;

    BOOK_TRY(book_to_post(&instance->book, message, BOOK_TARGET, &channel));
    BOOK_TRY(nccl_use_device(instance));
    BOOK_TRY(
        nccl_launch(instance, (struct nccl_channel *)channel, message, instance->mode->receive));
    channel->posted_count++;
    return HD_OK;
}

/* At the target, the message's event is recorded afterwards, on `stream` or on the channel's. */
static hd_status nccl_link_ask(struct hd_transport *instance, const struct hd_message *message,
                               void *stream, struct nccl_channel **channel)
{
    struct book_channel *book = NULL;
    const enum book_side side = stream != NULL ? BOOK_TARGET : BOOK_EITHER;

    BOOK_TRY(book_to_ask(&instance->book, message, side, &book));
    *channel = (struct nccl_channel *)book;
    BOOK_TRY(nccl_use_device(instance));
    return !book->is_source && instance->mode->await != NULL
               ? instance->mode->await(instance, *channel, message->sequence, stream)
               : HD_OK;
}

hd_status nccl_test(struct hd_transport *instance, const struct hd_message *message)
{
    struct nccl_channel *channel = NULL;

    BOOK_TRY(nccl_link_ask(instance, message, NULL, &channel));
    return nccl_link_look(instance, channel, message->sequence);
}

static hd_status nccl_link_wait_on_host(struct hd_transport *instance, struct nccl_channel *channel,
                                        uint64_t sequence, uint64_t deadline_ns)
{
    hd_status status = nccl_link_look(instance, channel, sequence);

    while (status == HD_IN_PROGRESS) {
        if (book_now_ns(&instance->book) > deadline_ns) {
            return book_report_wait(&instance->book, &channel->book,
                                    book_peer_fault(&channel->book, HD_TIMEOUT, sequence),
                                    channel->done_count);
        }
        nccl_nap();
        status = nccl_link_look(instance, channel, sequence);
    }
    return status;
}

hd_status nccl_wait(struct hd_transport *instance, const struct hd_message *message, void *stream,
                    uint64_t deadline_ns)
{
    struct nccl_channel *channel = NULL;

    BOOK_TRY(nccl_link_ask(instance, message, stream, &channel));
    if (stream == NULL) {
        return nccl_link_wait_on_host(instance, channel, message->sequence, deadline_ns);
    }
    book_readable(&channel->book, message->sequence);
    return NCCL_CUDA(instance, channel, cudaStreamWaitEvent, stream,
                     channel->moved[message->sequence % channel->book.slot_count], 0);
}

hd_status nccl_release(struct hd_transport *instance, const struct hd_message *message,
                       void *stream)
{
    struct book_channel *book = NULL;

    BOOK_TRY(book_to_release(&instance->book, message, &book));
    BOOK_TRY(nccl_use_device(instance));
    struct nccl_channel *channel = (struct nccl_channel *)book;
    const uint64_t slot = message->sequence % book->slot_count;
    channel->is_freed[slot] = stream != NULL;
    if (stream != NULL) {
        BOOK_TRY(NCCL_CUDA(instance, channel, cudaEventRecord, channel->freed[slot], stream));
    }
    if (instance->mode->release != NULL) {
        BOOK_TRY(instance->mode->release(instance, channel, message->sequence));
    }
    book->released_count++;
    const hd_status status = nccl_advance(instance, channel);
    return status < 0 ? status : HD_OK;
}

/* No transfer needs a host to move it; this notices errors of the device and of NCCL. */
hd_status nccl_progress(struct hd_transport *instance)
{
    hd_status moved = HD_IN_PROGRESS;
    hd_status status = nccl_use_device(instance);

    for (uint32_t i = 0; status == HD_OK && i < instance->book.own_count; i++) {
        const hd_status advanced = nccl_advance(instance, &instance->channels[i]);
        moved = advanced == HD_OK ? HD_OK : moved;
        status = advanced < 0 ? advanced : HD_OK;
    }
    for (uint32_t i = 0; status == HD_OK && i < instance->book.own_count; i++) {
        const struct nccl_channel *channel = &instance->channels[i];
        pthread_mutex_lock(&instance->lock);
        const ncclResult_t result =
            book_failed(&instance->book) < 0 ? ncclSuccess : nccl_async_result(instance, channel);
        status = nccl_begun(instance, channel, result, "its channel");
        pthread_mutex_unlock(&instance->lock);
    }
    return status == HD_OK ? moved : status;
}

void nccl_stats(struct hd_transport *instance, uint32_t number, struct hd_channel_stats *out)
{
    const struct nccl_channel *channel = nccl_link_channel_of(instance, number);

    book_stats(
        channel != NULL ? &channel->book : NULL,
        channel != NULL ? atomic_load_explicit(&channel->finished_count, memory_order_relaxed) : 0,
        out);
}
