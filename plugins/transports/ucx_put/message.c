/*
 * ucx_put/message.c - the same words and slots where UCX has no puts, as over tcp.
 *
 *   source                 active message                    target
 *   put_message_payload    channel, sequence, | seal | slot | --->  on_payload: into slot k mod D
 *                          the last byte has arrived:               arrived = k + 1
 *   on_credit: credit = k + 1   <--- channel, count                 put_message_credit
 *
 * UCX emulates puts by messages too, but in 1.13 the target must answer each of them, and UCX
 * aborts the process if the connection is broken when it answers: the survivor of a death dies of
 * it.  Our messages need no answer, and a large one goes by rendezvous straight into the slot.  The
 * source has the slot's credit before it sends, so a message never arrives unexpectedly.
 *
 * All handlers run inside ucp_worker_progress, so under the lock of the data calls.
 */
#include "put.h"

#include <inttypes.h>
#include <string.h>

enum { ID_PAYLOAD = 0, ID_CREDIT = 1 };

/* --- arrivals ---------------------------------------------------------------------------- */

/* The channel of a message, if this rank is at its `is_source` end; NULL after a failure. */
static struct ucx_channel *ucx_put_channel_of(struct hd_transport *instance, const void *bytes,
                                              size_t count, bool is_source,
                                              struct put_header *header)
{
    struct ucx_channel *channel = NULL;

    if (count == sizeof *header) {
        memcpy(header, bytes, sizeof *header);
        if (header->channel < instance->book.channel_count) {
            channel = ucx_channel_of(instance, (uint32_t)header->channel);
        }
    }
    if (channel == NULL || channel->book.is_source != is_source) {
        book_fail(
            &instance->book, book_own_fault(HD_PROTOCOL),
            "received a message for an unknown channel: the ranks must run one version of ucx_put");
        return NULL;
    }
    return channel;
}

static void ucx_put_on_received(void *request, ucs_status_t status, size_t length, void *user_data)
{
    (void)length; /* checked when the message was announced */
    ucx_end(user_data, status);
    ucp_request_free(request);
}

/* Accepts a large message, which UCX then moves from its send slot into this slot. */
static void ucx_put_fetch(struct hd_transport *instance, struct ucx_channel *channel,
                          uint64_t sequence, void *announcement)
{
    struct ucx_flight *flight = &channel->flights[sequence % channel->book.slot_count];
    const ucp_request_param_t receiving = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                           UCP_OP_ATTR_FIELD_USER_DATA,
                                           .cb.recv_am = ucx_put_on_received,
                                           .user_data = flight};

    flight->state = UCX_FLYING;
    ucx_launch(flight,
               ucp_am_recv_data_nbx(instance->worker, announcement,
                                    ucx_message_in(channel, sequence % channel->book.slot_count),
                                    channel->book.shape->bytes + HD_SEAL_BYTES, &receiving));
}

static ucs_status_t ucx_put_on_payload(void *argument, const void *header, size_t header_bytes,
                                       void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
    struct hd_transport *instance = argument;
    struct put_header said;
    struct ucx_channel *channel = ucx_put_channel_of(instance, header, header_bytes, false, &said);

    if (channel == NULL) {
        return UCS_OK;
    }
    struct put_channel *put = channel->own;
    const uint64_t wanted_bytes = channel->book.shape->bytes + HD_SEAL_BYTES;
    const struct book_fault fault = book_peer_fault(&channel->book, HD_PROTOCOL, said.number);
    if (said.number != put->started_count || bytes != wanted_bytes ||
        said.number >= channel->book.released_count + channel->book.shape->depth) {
        book_fail(&instance->book, fault,
                  "channel %u: rank %u sent message %" PRIu64
                  " of %zu bytes; the next must be %" PRIu64 " of %" PRIu64 " bytes",
                  channel->book.number, fault.rank, said.number, bytes, put->started_count,
                  wanted_bytes);
        return UCS_OK;
    }
    put->started_count++;
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
        ucx_put_fetch(instance, channel, said.number, data);
    } else {
        memcpy(ucx_message_in(channel, said.number % channel->book.slot_count), data, bytes);
        channel->flights[said.number % channel->book.slot_count] =
            (struct ucx_flight){.state = UCX_LANDED};
    }
    return UCS_OK;
}

static ucs_status_t ucx_put_on_credit(void *argument, const void *header, size_t header_bytes,
                                      void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
    struct put_header said;
    struct ucx_channel *channel = ucx_put_channel_of(argument, header, header_bytes, true, &said);

    (void)data;
    (void)bytes;
    (void)param;
    if (channel != NULL) {
        const struct put_channel *put = channel->own;
        atomic_store_explicit(put->news, said.number, memory_order_release);
    }
    return UCS_OK;
}

hd_status put_message_count(struct hd_transport *instance, struct ucx_channel *channel,
                            struct put_channel *put)
{
    uint64_t count = atomic_load_explicit(put->news, memory_order_relaxed);

    while (count < put->started_count) {
        struct ucx_flight *flight = &channel->flights[count % channel->book.slot_count];
        if (flight->state == UCX_FAILED) {
            return ucx_fail_channel(instance, channel, flight->status);
        }
        if (flight->state != UCX_LANDED) {
            break;
        }
        flight->state = UCX_IDLE;
        count++;
        atomic_store_explicit(put->news, count, memory_order_release);
    }
    return HD_OK;
}

hd_status put_message_open(struct hd_transport *instance)
{
    const ucp_am_recv_callback_t handlers[] = {
        [ID_PAYLOAD] = ucx_put_on_payload, [ID_CREDIT] = ucx_put_on_credit};

    for (unsigned id = 0; id < sizeof handlers / sizeof handlers[0]; id++) {
        const ucp_am_handler_param_t param = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                                                            UCP_AM_HANDLER_PARAM_FIELD_CB |
                                                            UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                              .id = id,
                                              .cb = handlers[id],
                                              .arg = instance};
        const ucs_status_t status = ucp_worker_set_am_recv_handler(instance->worker, &param);
        if (status != UCS_OK) {
            return book_fail(&instance->book, book_own_fault(HD_UNSUPPORTED),
                             "ucp_worker_set_am_recv_handler: UCX: %s", ucs_status_string(status));
        }
    }
    return HD_OK;
}

/* --- departures -------------------------------------------------------------------------- */

void put_message_payload(struct ucx_channel *channel, struct put_channel *put, uint64_t sequence)
{
    const uint64_t index = sequence % channel->book.slot_count;
    struct put_header *header = &put->headers[index];
    const ucp_request_param_t sending = ucx_sending(&channel->flights[index]);

    *header = (struct put_header){.number = sequence, .channel = channel->book.number};
    ucx_launch(&channel->flights[index],
               ucp_am_send_nbx(channel->peer->ep, ID_PAYLOAD, header, sizeof *header,
                               ucx_message_in(channel, sequence % channel->book.slot_count),
                               channel->book.shape->bytes + HD_SEAL_BYTES, &sending));
}

void put_message_credit(struct ucx_channel *channel, struct put_channel *put, uint64_t count)
{
    const ucp_request_param_t sending = ucx_sending(&put->word);

    put->word_header = (struct put_header){.number = count, .channel = channel->book.number};
    ucx_launch(&put->word, ucp_am_send_nbx(channel->peer->ep, ID_CREDIT, &put->word_header,
                                           sizeof put->word_header, NULL, 0, &sending));
}
