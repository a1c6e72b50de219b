/*
 * plugins/transports/ucx_tag - two-sided, by UCX's tagged messages, within and between hosts.
 *
 *   source                                tag = channel and sequence         target
 *   reserve   send of k - Ds has ended                                    post_recv
 *   write     send slot k mod Ds      | seal | slot |                         |  receive into
 *   post_send ucp_tag_send_nbx  ------------------------------------------->  v  slot k mod D
 *                                                                         wait: it has ended
 *
 * Tags match exactly, so channels between the same two ranks never take each other's messages.
 * A release sends nothing: the next post_recv is the credit.  A message larger than
 * rendezvous_bytes waits at the source for that receive.  A smaller one may be copied into a buffer
 * of UCX before; only the plan bounds how many are.
 *
 * In the trace, a transfer lasts from when both ends had posted it until it has landed.
 */
#include "table.h"

#include <inttypes.h>

/* A block of at least the first size is rounded up to whole pages of the second. */
enum { HUGE_FROM_BYTES = 1 << 17, HUGE_BYTES = 1 << 21 };

/* Computed in advance, so that little is left to do between a message's arrival and its answer. */
struct tag_channel {
    uint64_t bytes;            /* of a message with its seal */
    uint32_t posted_slot;      /* of message posted_count, once it is posted */
    uint32_t done_slot;        /* of message done_count */
    ucp_request_param_t how[]; /* [slot_count] */
};

static void *ucx_tag_allocate(struct hd_transport *instance, uint64_t bytes, const char *tag)
{
    const struct hd_host *host = instance->book.host;
    return host->alloc(host->context, bytes, instance->book.alignment_bytes, tag);
}

static hd_status ucx_tag_prepare_channel(struct hd_transport *instance, struct ucx_channel *channel)
{
    struct tag_channel *tag = ucx_tag_allocate(
        instance, sizeof *tag + channel->book.slot_count * sizeof tag->how[0], "ucx_tag");

    channel->own = tag;
    if (tag == NULL) {
        return book_fail(&instance->book, book_channel_fault(HD_NO_MEMORY, channel->book.number),
                         "channel %u: cannot allocate its state", channel->book.number);
    }
    tag->bytes = channel->book.shape->bytes + HD_SEAL_BYTES;
    tag->posted_slot = tag->done_slot = 0;
    for (uint32_t i = 0; i < channel->book.slot_count; i++) {
        struct ucx_flight *flight = &channel->flights[i];
        tag->how[i] =
            channel->book.is_source ? ucx_sending(flight) : ucx_receiving(flight, tag->bytes);
        flight->state = UCX_IDLE;
    }
    return HD_OK;
}

/* All slots are one block, so that the host can put a large block on huge pages: the kernel copies
   a peer's large message, and looks up every page each time. */
static hd_status ucx_tag_allocate_region(struct hd_transport *instance)
{
    uint64_t bytes = 0;

    BOOK_TRY(ucx_count_slots(instance, &bytes));
    bytes += instance->book.alignment_bytes; /* ends with the seal of the first slot */
    if (bytes >= HUGE_FROM_BYTES) {
        bytes = book_round_up(bytes, HUGE_BYTES);
    }
    BOOK_TRY(ucx_check_room(instance, bytes));
    instance->region = ucx_tag_allocate(instance, bytes, "transfer");
    book_log(&instance->book, "%" PRIu64 " bytes for the slots of this rank, %s huge pages", bytes,
             bytes >= HUGE_FROM_BYTES ? "in whole" : "without");
    return instance->region != NULL ? HD_OK
                                    : ucx_refuse_slots(instance, bytes, "cannot allocate them");
}

static hd_status ucx_tag_prepare(struct hd_transport *instance, struct ucx_card *card)
{
    uint64_t offset = instance->book.alignment_bytes;

    (void)card;
    BOOK_TRY(ucx_tag_allocate_region(instance));
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ucx_channel *channel = &instance->channels[i];
        channel->stride_bytes = ucx_stride_bytes(instance, channel->book.shape);
        channel->slots = instance->region + offset;
        offset += channel->book.slot_count * channel->stride_bytes;
        BOOK_TRY(ucx_tag_prepare_channel(instance, channel));
    }
    return HD_OK;
}

static void ucx_tag_finish(struct hd_transport *instance)
{
    const struct hd_host *host = instance->book.host;

    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        host->free(host->context, instance->channels[i].own);
    }
    host->free(host->context, instance->region);
}

static void ucx_tag_start(struct ucx_channel *channel)
{
    struct tag_channel *tag = channel->own;
    const uint64_t sequence = channel->book.posted_count - 1;
    const uint32_t slot = ucx_next_slot(&tag->posted_slot, channel->book.slot_count);
    struct ucx_flight *flight = &channel->flights[slot];

    flight->state = UCX_FLYING;
    ucx_launch(flight,
               ucp_tag_send_nbx(channel->peer->ep, ucx_message_in(channel, slot), tag->bytes,
                                ucx_tag(channel->book.number, sequence), &tag->how[slot]));
}

static hd_status ucx_tag_send_one(struct hd_transport *instance, struct ucx_channel *channel)
{
    const uint64_t begin_ns = ucx_now_ns(instance);

    ucx_tag_start(channel);
    if (instance->book.is_traced) { /* after the start, which the peer waits for */
        ucx_report(instance, channel, channel->book.posted_count - 1, begin_ns, 0);
    }
    return HD_OK;
}

static hd_status ucx_tag_receive_one(struct hd_transport *instance, struct ucx_channel *channel)
{
    struct tag_channel *tag = channel->own;
    const uint64_t sequence = channel->book.posted_count - 1;
    const uint32_t slot = ucx_next_slot(&tag->posted_slot, channel->book.slot_count);
    struct ucx_flight *flight = &channel->flights[slot];

    flight->posted_ns = ucx_now_ns(instance);
    flight->bytes = tag->bytes;
    flight->state = UCX_FLYING;
    ucx_launch(flight, ucp_tag_recv_nbx(instance->worker, ucx_message_in(channel, slot), tag->bytes,
                                        ucx_tag(channel->book.number, sequence), UINT64_MAX,
                                        &tag->how[slot]));
    return HD_OK;
}

static hd_status ucx_tag_refuse(struct hd_transport *instance, struct ucx_channel *channel,
                                const struct ucx_flight *flight)
{
    const struct book_fault fault = book_peer_fault(&channel->book, HD_PROTOCOL, ucx_done(channel));
    const struct tag_channel *tag = channel->own;

    if (flight->status != UCS_OK) {
        return ucx_fail_channel(instance, channel, flight->status);
    }
    return book_fail(&instance->book, fault,
                     "channel %u: message %" PRIu64 " of rank %u has %" PRIu64
                     " bytes and must have %" PRIu64 ": the ranks must run one plan",
                     channel->book.number, ucx_done(channel), fault.rank, flight->bytes,
                     tag->bytes);
}

/* Counts the next message if it has landed; a later message that has landed waits for it. */
static hd_status ucx_tag_advance(struct hd_transport *instance, struct ucx_channel *channel)
{
    struct tag_channel *tag = channel->own;
    const struct ucx_flight *flight = &channel->flights[tag->done_slot];

    if (ucx_done(channel) == channel->book.posted_count || !ucx_has_ended(flight)) {
        return HD_IN_PROGRESS;
    }
    if (flight->state == UCX_FAILED) {
        return ucx_tag_refuse(instance, channel, flight);
    }
    ucx_set_done(channel, ucx_done(channel) + 1);
    ucx_next_slot(&tag->done_slot, channel->book.slot_count);
    if (instance->book.is_traced && !channel->book.is_source) {
        ucx_report(instance, channel, ucx_done(channel) - 1, flight->posted_ns,
                   ucx_now_ns(instance));
    }
    return HD_OK;
}

static bool ucx_tag_is_settled(const struct ucx_channel *channel)
{
    return !channel->book.is_source || ucx_done(channel) == channel->book.posted_count;
}

static void ucx_tag_reset(struct ucx_channel *channel)
{
    struct tag_channel *tag = channel->own;
    tag->posted_slot = tag->done_slot = 0;
}

static const struct ucx_mode ucx_tag_mode = {.name = "ucx_tag",
                                             .prepare = ucx_tag_prepare,
                                             .finish = ucx_tag_finish,
                                             .send = ucx_tag_send_one,
                                             .receive = ucx_tag_receive_one,
                                             .advance = ucx_tag_advance,
                                             .is_settled = ucx_tag_is_settled,
                                             .reset = ucx_tag_reset};

static hd_status ucx_tag_open_tag(const struct hd_transport_setup *setup, struct hd_transport **out)
{
    return ucx_open(setup, &ucx_tag_mode, out);
}

static const struct hd_transport_ops ucx_tag_ops = UCX_OPS(ucx_tag_open_tag);

static const struct hd_option ucx_tag_options[] = {UCX_OPTION_ROWS};

HD_EXPORT const struct hd_plugin hd_plugin = {
    BOOK_PLUGIN_HEAD,
    .option_count = sizeof ucx_tag_options / sizeof ucx_tag_options[0],
    .options = ucx_tag_options,
    .capabilities = UCX_CAPABILITIES,
    .name = "ucx_tag",
    .summary = "two-sided tagged messages of UCX, between ranks of one host or of many",
    .source = "UCX 1.13 or newer, ucp_tag_send_nbx and ucp_tag_recv_nbx",
    .ops = &ucx_tag_ops,
};
