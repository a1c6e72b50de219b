/*
 * ucx/channel.c - the data calls: their order, which slot is free, what has arrived.
 *
 *   source   reserve   done > k - send_depth      the send slot is free
 *   source   post      passed to the mode, which sends the message once it may
 *   target   wait      done > k                   the message is readable
 *   target   release   passed to the mode, which gives the credit
 */
#include "ucx.h"

#include <inttypes.h>

hd_status ucx_fail_channel(struct hd_transport *instance, struct ucx_channel *channel,
                           ucs_status_t status)
{
    const struct book_fault fault = book_peer_fault(&channel->book, HD_SYSTEM, ucx_done(channel));

    if (status == UCS_ERR_CONNECTION_RESET || status == UCS_ERR_ENDPOINT_TIMEOUT ||
        status == UCS_ERR_UNREACHABLE || status == UCS_ERR_CANCELED ||
        status == UCS_ERR_NOT_CONNECTED || status == UCS_ERR_REJECTED) {
        atomic_store(&channel->peer->is_lost, 1); /* the next wait for this peer reports it */
        return HD_IN_PROGRESS;
    }
    return book_fail(&instance->book, fault, "channel %u: message %" PRIu64 " %s rank %u: UCX: %s",
                     channel->book.number, ucx_done(channel),
                     channel->book.is_source ? "to" : "from", fault.rank,
                     ucs_status_string(status));
}

static hd_status ucx_report_wait(struct hd_transport *instance, const struct ucx_channel *channel,
                                 hd_status status, uint64_t sequence)
{
    return book_report_wait(&instance->book, &channel->book,
                            book_peer_fault(&channel->book, status, sequence), ucx_done(channel));
}

/* Progresses once if needed, and notices a peer that UCX has given up. */
static hd_status ucx_look_twice(struct hd_transport *instance, struct ucx_channel *channel,
                                uint64_t sequence)
{
    hd_status status = book_answer(&channel->book, sequence, ucx_done(channel));

    if (status == HD_IN_PROGRESS) {
        const hd_status moved = ucx_move(instance);
        if (moved < 0) {
            return moved;
        }
        status = book_answer(&channel->book, sequence, ucx_done(channel));
        if (status == HD_IN_PROGRESS && moved != HD_OK && atomic_load(&channel->peer->is_lost)) {
            return ucx_report_wait(instance, channel, HD_PEER_LOST, sequence);
        }
    }
    return status;
}

/* Nothing is ever resident: only a send slot waits for a peer, never a core or a device. */
void ucx_report(const struct hd_transport *instance, const struct ucx_channel *channel,
                uint64_t sequence, uint64_t begin_ns, uint64_t end_ns)
{
    if (instance->is_open) {
        book_report(&instance->book, (struct hd_transfer){.channel = channel->book.number,
                                                          .sequence = sequence,
                                                          .begin_ns = begin_ns,
                                                          .end_ns = end_ns});
    }
}

void *ucx_slot(struct hd_transport *instance, const struct hd_message *message)
{
    const struct ucx_channel *channel = ucx_channel_of(instance, message->channel);
    return channel->slots + message->sequence % channel->book.slot_count * channel->stride_bytes;
}

hd_status ucx_reserve(struct hd_transport *instance, const struct hd_message *message)
{
    struct book_channel *channel = NULL;
    hd_status status = book_to_reserve(&instance->book, message, &channel);

    if (status == HD_OK) {
        status = ucx_look_twice(instance, (struct ucx_channel *)channel, message->sequence);
    }
    return book_reserved(channel, status);
}

hd_status ucx_post_send(struct hd_transport *instance, const struct hd_message *message,
                        void *stream)
{
    struct book_channel *channel = NULL;

    BOOK_TRY(book_to_post(&instance->book, message, BOOK_SOURCE, &channel));
    if (stream != NULL) {
        return book_refuse_stream(&instance->book, message);
    }
    channel->posted_count++;
    return instance->mode->send(instance, (struct ucx_channel *)channel);
}

hd_status ucx_post_recv(struct hd_transport *instance, const struct hd_message *message)
{
    struct book_channel *channel = NULL;

    BOOK_TRY(book_to_post(&instance->book, message, BOOK_TARGET, &channel));
    channel->posted_count++;
    return instance->mode->receive != NULL
               ? instance->mode->receive(instance, (struct ucx_channel *)channel)
               : HD_OK;
}

hd_status ucx_test(struct hd_transport *instance, const struct hd_message *message)
{
    struct book_channel *channel = NULL;

    BOOK_TRY(book_to_ask(&instance->book, message, BOOK_EITHER, &channel));
    return ucx_look_twice(instance, (struct ucx_channel *)channel, message->sequence);
}

hd_status ucx_wait(struct hd_transport *instance, const struct hd_message *message, void *stream,
                   uint64_t deadline_ns)
{
    struct book_channel *book = NULL;

    BOOK_TRY(book_to_ask(&instance->book, message, BOOK_EITHER, &book));
    if (stream != NULL) {
        return book_refuse_stream(&instance->book, message);
    }
    struct ucx_channel *channel = (struct ucx_channel *)book;
    const struct ucx_wait wait = {.channel = channel,
                                  .peer = channel->peer,
                                  .goal = book_goal(book, message->sequence),
                                  .deadline_ns = deadline_ns};
    const hd_status status = ucx_wait_for(instance, &wait);
    if (status == HD_PEER_LOST || status == HD_TIMEOUT) {
        return ucx_report_wait(instance, channel, status, message->sequence);
    }
    return status == HD_OK ? book_answer(book, message->sequence, ucx_done(channel)) : status;
}

hd_status ucx_release(struct hd_transport *instance, const struct hd_message *message, void *stream)
{
    struct book_channel *channel = NULL;

    BOOK_TRY(book_to_release(&instance->book, message, &channel));
    if (stream != NULL) {
        return book_refuse_stream(&instance->book, message);
    }
    channel->released_count++;
    return instance->mode->release != NULL
               ? instance->mode->release(instance, (struct ucx_channel *)channel)
               : HD_OK;
}

/* A wait checks the abort word before every look. */
void ucx_abort(struct hd_transport *instance, const char *reason)
{
    (void)reason;
    book_abort(&instance->book);
}

void ucx_stats(struct hd_transport *instance, uint32_t number, struct hd_channel_stats *out)
{
    const struct ucx_channel *channel = ucx_channel_of(instance, number);

    book_stats(channel != NULL ? &channel->book : NULL, channel != NULL ? ucx_done(channel) : 0,
               out);
}
