/*
 * plugins/transports/ucx_tag - two-sided, by UCX's tagged messages, within a host and between.
 *
 *   source                              tag = channel, sequence                target
 *   reserve   send of k - Ds has ended                                    post_recv
 *   write     send slot k mod Ds      | seal | slot |                         |  receive into
 *   post_send ucp_tag_send_nbx  ------------------------------------------->  v  slot k mod D
 *                                                                         wait: it has ended
 *
 * Tags match exactly, so channels between the same two ranks can never take each other's messages.
 * Nothing crosses for a release: the next post_recv is the credit.  A message above
 * rendezvous_bytes waits at the source until then; a smaller one may already lie in a buffer of
 * UCX, copied once more, and nothing but the plan bounds how many do.
 *
 * The trace has a transfer from when both ends had posted it until it has landed.
 */
#include "table.h"

#include <inttypes.h>

static uint64_t head_bytes(const struct hd_transport *instance)
{
    return instance->turn.alignment_bytes; /* of the first slot; the seal stands at its end */
}

/* What the time between a message's arrival and the answer to it is spent on is known beforehand:
   no quotient, no parameter is reckoned there. */
struct tag_lane {
    void *memory;
    uint32_t posted_slot,
        done_slot;             /* of messages posted_count, once it is posted, and done_count */
    ucp_request_param_t how[]; /* [slot_count] */
};

static void *take(struct hd_transport *instance, uint64_t bytes)
{
    const struct hd_host *host = instance->turn.host;
    return host->alloc(host->context, bytes, instance->turn.alignment_bytes, "ucx_tag");
}

static hd_status take_slots(struct hd_transport *instance, struct ucx_lane *lane)
{
    const uint64_t align = instance->turn.alignment_bytes;
    const uint64_t bytes_max = (uint64_t)1 << 46; /* half of what a process can address */
    const uint64_t bytes = lane->turn.channel->bytes;
    const struct turn_fault fault = {HD_NO_MEMORY, TURN_NONE, lane->turn.number, 0};
    struct tag_lane *tag = NULL;

    if (bytes <= bytes_max && lane->turn.slot_count <= bytes_max / (bytes + 2 * align)) {
        lane->stride_bytes = (bytes + HD_SEAL_BYTES + align - 1) / align * align;
        tag = take(instance, sizeof *tag + lane->turn.slot_count * sizeof tag->how[0]);
    }
    lane->own = tag;
    if (tag != NULL) {
        tag->memory =
            take(instance, head_bytes(instance) + lane->turn.slot_count * lane->stride_bytes);
    }
    if (tag == NULL || tag->memory == NULL) {
        return turn_fail(
            &instance->turn, &fault,
            "channel %u needs %u slots of %" PRIu64
            " bytes, more memory than there is; plan fewer slots or smaller microbatches",
            lane->turn.number, lane->turn.slot_count, bytes);
    }
    lane->slots = (unsigned char *)tag->memory + head_bytes(instance);
    for (uint32_t i = 0; i < lane->turn.slot_count; i++) {
        struct ucx_flight *flight = &lane->flights[i];
        tag->how[i] = lane->turn.is_source ? ucx_sending(flight) : ucx_receiving(flight);
        flight->state = UCX_IDLE;
    }
    return HD_OK;
}

static hd_status prepare(struct hd_transport *instance, struct ucx_card *card)
{
    hd_status status = HD_OK;

    (void)card;
    for (uint32_t i = 0; status == HD_OK && i < instance->turn.lane_count; i++) {
        status = take_slots(instance, &instance->lanes[i]);
    }
    return status;
}

static hd_status connect_peer(struct hd_transport *instance, struct ucx_peer *peer,
                              const struct ucx_card *card)
{
    (void)instance;
    (void)peer;
    (void)card;
    return HD_OK;
}

static void finish(struct hd_transport *instance)
{
    const struct hd_host *host = instance->turn.host;

    for (uint32_t i = 0; i < instance->turn.lane_count; i++) {
        struct tag_lane *tag = instance->lanes[i].own;
        if (tag != NULL) {
            host->free(host->context, tag->memory);
        }
        host->free(host->context, tag);
    }
}

static unsigned char *message_in(const struct ucx_lane *lane, uint32_t slot)
{
    return lane->slots + slot * lane->stride_bytes - HD_SEAL_BYTES;
}

/* Moves *slot to the next, and returns where it was. */
static uint32_t step(const struct ucx_lane *lane, uint32_t *slot)
{
    const uint32_t here = *slot;
    *slot = here + 1 < lane->turn.slot_count ? here + 1 : 0;
    return here;
}

static hd_status send_one(struct hd_transport *instance, struct ucx_lane *lane)
{
    struct tag_lane *tag = lane->own;
    const uint64_t sequence = lane->turn.posted_count - 1;
    const uint32_t slot = step(lane, &tag->posted_slot);
    struct ucx_flight *flight = &lane->flights[slot];

    const uint64_t begin_ns = ucx_now_ns(instance);
    flight->state = UCX_FLYING;
    ucx_launch(flight, ucp_tag_send_nbx(lane->peer->ep, message_in(lane, slot),
                                        lane->turn.channel->bytes + HD_SEAL_BYTES,
                                        ucx_tag(lane->turn.number, sequence), &tag->how[slot]));
    ucx_report(instance, lane, sequence, begin_ns, 0); /* while it is under way */
    return HD_OK;
}

static hd_status receive_one(struct hd_transport *instance, struct ucx_lane *lane)
{
    struct tag_lane *tag = lane->own;
    const uint64_t sequence = lane->turn.posted_count - 1;
    const uint32_t slot = step(lane, &tag->posted_slot);
    struct ucx_flight *flight = &lane->flights[slot];

    flight->posted_ns = ucx_now_ns(instance);
    flight->state = UCX_FLYING;
    ucx_launch(flight,
               ucp_tag_recv_nbx(instance->worker, message_in(lane, slot),
                                lane->turn.channel->bytes + HD_SEAL_BYTES,
                                ucx_tag(lane->turn.number, sequence), UINT64_MAX, &tag->how[slot]));
    return HD_OK;
}

static hd_status release_one(struct hd_transport *instance, struct ucx_lane *lane)
{
    (void)instance;
    (void)lane;
    return HD_OK;
}

static hd_status check_length(struct hd_transport *instance, const struct ucx_lane *lane,
                              const struct ucx_flight *flight)
{
    const struct turn_fault fault = turn_peer_fault(&lane->turn, HD_PROTOCOL, ucx_done(lane));
    const uint64_t bytes = lane->turn.channel->bytes + HD_SEAL_BYTES;

    if (lane->turn.is_source || flight->got.length == bytes) {
        return HD_OK;
    }
    return turn_fail(&instance->turn, &fault,
                     "channel %u: message %" PRIu64 " of rank %u has %zu bytes instead of %" PRIu64,
                     lane->turn.number, ucx_done(lane), fault.rank, flight->got.length, bytes);
}

/* Counts what has landed, in sequence: a message that overtakes waits for the one before it. */
static hd_status advance(struct hd_transport *instance, struct ucx_lane *lane)
{
    struct tag_lane *tag = lane->own;
    hd_status moved = HD_IN_PROGRESS;

    while (ucx_done(lane) < lane->turn.posted_count) {
        const struct ucx_flight *flight = &lane->flights[tag->done_slot];
        if (flight->state != UCX_LANDED) {
            break;
        }
        if (flight->status != UCS_OK) {
            return ucx_fail_lane(instance, lane, flight->status);
        }
        const hd_status status = check_length(instance, lane, flight);
        if (status != HD_OK) {
            return status;
        }
        if (!lane->turn.is_source) {
            ucx_report(instance, lane, ucx_done(lane), flight->posted_ns, ucx_now_ns(instance));
        }
        ucx_set_done(lane, ucx_done(lane) + 1);
        step(lane, &tag->done_slot);
        moved = HD_OK;
    }
    return moved;
}

static int is_settled(const struct ucx_lane *lane)
{
    return !lane->turn.is_source || ucx_done(lane) == lane->turn.posted_count;
}

static void reset(struct ucx_lane *lane)
{
    struct tag_lane *tag = lane->own;
    tag->posted_slot = tag->done_slot = 0;
}

static const struct ucx_mode mode = {.name = "ucx_tag",
                                     .prepare = prepare,
                                     .connect = connect_peer,
                                     .finish = finish,
                                     .send = send_one,
                                     .receive = receive_one,
                                     .release = release_one,
                                     .advance = advance,
                                     .is_settled = is_settled,
                                     .reset = reset};

static hd_status open_tag(const struct hd_transport_setup *setup, struct hd_transport **out)
{
    return ucx_open(setup, &mode, out);
}

static const struct hd_transport_ops ops = UCX_OPS(open_tag);

static const struct hd_option options[] = {UCX_OPTION_ROWS};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_TRANSPORT),
    .option_count = sizeof options / sizeof options[0],
    .options = options,
    .capabilities = HD_TRANSPORT_HOST | HD_TRANSPORT_SEALED | HD_TRANSPORT_NO_RESIDENT |
                    HD_TRANSPORT_PEER_DEATH | HD_TRANSPORT_MANY_HOSTS | HD_TRANSPORT_PROGRESS |
                    HD_TRANSPORT_TARGET_PROGRESS,
    .name = "ucx_tag",
    .summary = "two-sided tagged messages of UCX, between ranks of one host or of many",
    .vendor = "heddle",
    .version = "0.1.0",
    .licence = "Apache-2.0",
    .source = "UCX 1.13 or newer, ucp_tag_send_nbx and ucp_tag_recv_nbx",
    .ops = &ops,
};
