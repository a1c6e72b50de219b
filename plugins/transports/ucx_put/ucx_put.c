/*
 * plugins/transports/ucx_put - one-sided, by UCX's puts, within a host and between hosts.
 *
 * Every rank owns one region that its peers may write: one word a channel, and the receive slots.
 *
 *   source                                              region of the target          target
 *   reserve   message k - Ds has left its send slot
 *   post_send queued until credit > k - D
 *             put | seal | slot |   ----------------->  | seal | slot k mod D |
 *             fence, or flush
 *             put arrived = k + 1   ----------------->  arrived                    wait
 *             credit                <----- put credit = k + 1 ------------------   release
 *
 * The signal must not overtake the payload.  If the region is mapped, a put is a copy and the word
 * a store, and a fence keeps their order.  Otherwise the end of a put says only that the source may
 * be written again, so the endpoint is flushed before the word is put (UCX issue 9653).
 *
 * Both words count up for the whole job, and each has one writer.  While a put of a word is in
 * progress no other is started; the next one carries the count that has been reached by then.
 *
 * Where UCX has no puts, above all over tcp, it emulates them, badly if a peer dies.  There the
 * payload and the credit are messages of ours into the same slots and words: message.c.
 */
#include "put.h"
#include "table.h"

/* --- the source -------------------------------------------------------------------------- */

static void put_payload(const struct hd_transport *instance, struct ucx_channel *channel,
                        struct put_channel *put)
{
    const uint64_t sequence = put->started_count++;
    const uint32_t slot = ucx_next_slot(&put->started_slot, channel->book.slot_count);
    const uint32_t target = ucx_next_slot(&put->remote_slot, channel->book.shape->depth);
    const uint64_t place = put->remote_slots + target * channel->stride_bytes - HD_SEAL_BYTES;
    struct ucx_flight *flight = &channel->flights[slot];

    if (instance->book.is_traced) {
        ucx_report(instance, channel, sequence, ucx_now_ns(instance), 0);
    }
    if (channel->peer->is_messaged) {
        put_message_payload(channel, put, sequence);
        return;
    }
    flight->state = UCX_FLYING;
    ucx_launch(flight, ucp_put_nbx(channel->peer->ep, ucx_message_in(channel, slot),
                                   channel->book.shape->bytes + HD_SEAL_BYTES, place,
                                   channel->peer->rkey, &put->how[slot]));
    if (!channel->peer->is_mapped) {
        const ucp_request_param_t flushing = ucx_sending(&put->flushes[slot]);
        ucx_launch(&put->flushes[slot], ucp_ep_flush_nbx(channel->peer->ep, &flushing));
    }
}

/* Orders a payload that has been copied into mapped memory before its word.  x86 keeps stores in
   order except for non-temporal ones, which UCX may use for a large copy; a store fence orders
   those at no cost.  UCX's own fence waits 20 to 60 ns until every store has left this core. */
static void ucx_put_order_payload(const struct hd_transport *instance)
{
#if defined(__x86_64__)
    (void)instance;
    __builtin_ia32_sfence();
#else
    ucp_worker_fence(instance->worker);
#endif
}

/* Writes `count` to the peer's word: by a store if it is mapped, else by a put, whose source
   word_value stays unchanged until the put has landed. */
static void ucx_put_put_word(struct ucx_channel *channel, struct put_channel *put, uint64_t count)
{
    if (put->there != NULL) {
        atomic_store_explicit(put->there, count, memory_order_release);
        return;
    }
    const ucp_request_param_t sending = ucx_sending(&put->word);
    put->word_value = count;
    ucx_launch(&put->word, ucp_put_nbx(channel->peer->ep, &put->word_value, sizeof put->word_value,
                                       put->remote_word, channel->peer->rkey, &sending));
}

/* HD_OK once message `ready_count` has arrived at the target, or has left if it is a message. */
static hd_status ucx_put_check_payload(struct hd_transport *instance, struct ucx_channel *channel,
                                       const struct put_channel *put)
{
    const struct ucx_flight *flights[] = {&channel->flights[put->ready_slot],
                                          &put->flushes[put->ready_slot]};
    const size_t flight_count = channel->peer->is_mapped || channel->peer->is_messaged ? 1 : 2;

    for (size_t i = 0; i < flight_count; i++) {
        if (flights[i]->state == UCX_FAILED) {
            return ucx_fail_channel(instance, channel, flights[i]->status);
        }
        if (flights[i]->state != UCX_LANDED) {
            return HD_IN_PROGRESS;
        }
    }
    return HD_OK;
}

static hd_status ucx_put_read_news(struct hd_transport *instance, const struct ucx_channel *channel,
                                   struct put_channel *put)
{
    const uint64_t news = atomic_load_explicit(put->news, memory_order_acquire);

    if (news == put->known_count) {
        return HD_IN_PROGRESS;
    }
    const hd_status status =
        book_check_news(&instance->book, &channel->book, news,
                        (struct book_range){put->known_count, book_most(&channel->book)});
    if (status == HD_OK) {
        put->known_count = news;
    }
    return status;
}

/* A put of a word that failed means that the peer is lost. */
static hd_status ucx_put_check_word(struct hd_transport *instance, struct ucx_channel *channel,
                                    const struct put_channel *put)
{
    return put->word.state == UCX_FAILED ? ucx_fail_channel(instance, channel, put->word.status)
                                         : HD_OK;
}

static hd_status ucx_put_advance_source(struct hd_transport *instance, struct ucx_channel *channel,
                                        struct put_channel *put)
{
    hd_status moved = ucx_put_read_news(instance, channel, put);

    while (moved >= 0 && put->started_count < channel->book.posted_count &&
           put->started_count < put->known_count + channel->book.shape->depth) {
        put_payload(instance, channel, put);
        moved = HD_OK;
    }
    while (moved >= 0 && put->ready_count < put->started_count) {
        const hd_status status = ucx_put_check_payload(instance, channel, put);
        if (status != HD_OK) {
            moved = status < 0 ? status : moved;
            break;
        }
        put->ready_count++;
        ucx_next_slot(&put->ready_slot, channel->book.slot_count);
        ucx_set_done(channel, put->ready_count);
        moved = HD_OK;
    }
    if (moved >= 0 && put->ready_count > put->said_count && put->word.state != UCX_FLYING) {
        put->said_count = put->ready_count;
        if (channel->peer->is_messaged) {
            return HD_OK; /* a message needs no word behind it */
        }
        if (channel->peer->is_mapped) {
            ucx_put_order_payload(instance);
        }
        ucx_put_put_word(channel, put, put->said_count);
        moved = HD_OK;
    }
    return moved;
}

/* --- the target -------------------------------------------------------------------------- */

/* What has arrived is counted even if the peer is lost; nothing more is sent to it. */
static hd_status ucx_put_advance_target(struct hd_transport *instance, struct ucx_channel *channel,
                                        struct put_channel *put)
{
    const hd_status counted =
        channel->peer->is_messaged ? put_message_count(instance, channel, put) : HD_OK;
    hd_status moved = counted < 0 ? counted : ucx_put_read_news(instance, channel, put);

    for (uint64_t k = ucx_done(channel); instance->book.is_traced && k < put->known_count; k++) {
        ucx_report(instance, channel, k, 0, ucx_now_ns(instance));
    }
    ucx_set_done(channel, put->known_count);
    if (moved >= 0 && !atomic_load(&channel->peer->is_lost) &&
        channel->book.released_count > put->said_count && put->word.state != UCX_FLYING) {
        put->said_count = channel->book.released_count;
        if (channel->peer->is_messaged) {
            put_message_credit(channel, put, put->said_count);
        } else {
            ucx_put_put_word(channel, put, put->said_count);
        }
        moved = HD_OK;
    }
    return moved;
}

static hd_status ucx_put_advance(struct hd_transport *instance, struct ucx_channel *channel)
{
    struct put_channel *put = channel->own;
    const hd_status status = ucx_put_check_word(instance, channel, put);

    if (status < 0) {
        return status;
    }
    if (!channel->book.is_source) {
        return ucx_put_advance_target(instance, channel, put);
    }
    return atomic_load(&channel->peer->is_lost) ? HD_IN_PROGRESS
                                                : ucx_put_advance_source(instance, channel, put);
}

static hd_status ucx_put_advance_now(struct hd_transport *instance, struct ucx_channel *channel)
{
    const hd_status status = ucx_put_advance(instance, channel);
    return status < 0 ? status : HD_OK;
}

static bool ucx_put_is_settled(const struct ucx_channel *channel)
{
    const struct put_channel *put = channel->own;
    const uint64_t wanted =
        channel->book.is_source ? channel->book.posted_count : channel->book.released_count;
    return put->said_count == wanted && put->word.state != UCX_FLYING &&
           (!channel->book.is_source || !put->is_warming || put->known_count == wanted);
}

static void ucx_put_reset(struct ucx_channel *channel)
{
    struct put_channel *put = channel->own;

    atomic_store(put->news, 0); /* both ends have read it, and write no more before the fence */
    put->is_warming = false;
    put->known_count = 0;
    put->started_count = 0;
    put->ready_count = 0;
    put->started_slot = put->remote_slot = put->ready_slot = 0;
    put->said_count = 0;
    put->word = (struct ucx_flight){0};
}

static const struct ucx_mode ucx_put_mode = {.name = "ucx_put",
                                             .features = UCP_FEATURE_RMA | UCP_FEATURE_AM,
                                             .writes_remotely = true,
                                             .prepare = put_prepare,
                                             .connect = put_connect,
                                             .finish = put_finish,
                                             .send = ucx_put_advance_now,
                                             .release = ucx_put_advance_now,
                                             .advance = ucx_put_advance,
                                             .is_settled = ucx_put_is_settled,
                                             .reset = ucx_put_reset};

static hd_status ucx_put_open_put(const struct hd_transport_setup *setup, struct hd_transport **out)
{
    return ucx_open(setup, &ucx_put_mode, out);
}

static const struct hd_transport_ops ucx_put_ops = UCX_OPS(ucx_put_open_put);

static const struct hd_option ucx_put_options[] = {
    UCX_OPTION_ROWS,
    {"puts", "auto", "auto | always",
     "Where UCX only emulates puts: auto sends messages; always uses the emulation, for "
     "comparison, which in UCX 1.13 aborts a process if its peer dies.",
     HD_OPTION_TEXT, 0},
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    BOOK_PLUGIN_HEAD,
    .option_count = sizeof ucx_put_options / sizeof ucx_put_options[0],
    .options = ucx_put_options,
    .capabilities = UCX_CAPABILITIES,
    .name = "ucx_put",
    .summary = "one-sided puts of UCX, between ranks of one host or of many",
    .source = "UCX 1.13 or newer, ucp_put_nbx; over tcp ucp_am_send_nbx",
    .ops = &ucx_put_ops,
};
