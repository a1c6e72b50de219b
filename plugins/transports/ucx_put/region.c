/*
 * ucx_put/region.c - the one region of a rank that its peers write.
 *
 *   | word of channel 0 | word of channel 1 | ... | seal | slot 0 | seal | slot 1 | ... |
 *     one line each, of all channels of the job     receive and send slots, by channel
 *
 * Every rank knows all channels and computes the addresses in a peer's region.  The memory must be
 * allocated by UCX: memory that UCX has not allocated has no key for shared memory, and UCX would
 * emulate a put into it by messages.
 */
#include "put.h"

#include <inttypes.h>
#include <string.h>

static uint64_t ucx_put_head_bytes(const struct hd_transport *instance)
{
    const uint64_t words = (uint64_t)instance->book.channel_count * PUT_LINE_BYTES + HD_SEAL_BYTES;
    return book_round_up(words, instance->book.alignment_bytes);
}

/* The offset of slot 0 of `channel` in the region of `rank`. */
static uint64_t ucx_put_offset_of(const struct hd_transport *instance, uint32_t rank,
                                  uint32_t channel)
{
    uint64_t offset = ucx_put_head_bytes(instance);

    for (uint32_t i = 0; i < channel; i++) {
        const struct hd_channel *before = instance->book.shapes[i];
        if (before->target == rank) {
            offset += before->depth * ucx_stride_bytes(instance, before);
        } else if (before->source == rank) {
            offset += before->send_depth * ucx_stride_bytes(instance, before);
        }
    }
    return offset;
}

static hd_status ucx_put_allocate_region(struct hd_transport *instance, uint64_t bytes)
{
    const ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                                       UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                                         .length = bytes,
                                         .flags = UCP_MEM_MAP_ALLOCATE};
    ucp_mem_attr_t found = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};

    BOOK_TRY(ucx_check_room(instance, bytes));
    ucs_status_t status = ucp_mem_map(instance->context, &params, &instance->memory);
    if (status != UCS_OK) {
        instance->memory = NULL;
        return ucx_refuse_slots(instance, bytes, ucs_status_string(status));
    }
    instance->mapped_bytes = bytes;
    book_account(&instance->book, (int64_t)bytes, "transfer");
    status = ucp_mem_query(instance->memory, &found);
    if (status != UCS_OK || (uintptr_t)found.address % instance->book.alignment_bytes != 0) {
        return ucx_refuse_slots(instance, bytes, "UCX returned memory that is not aligned");
    }
    instance->region = found.address;
    memset(instance->region, 0, ucx_put_head_bytes(instance));
    return HD_OK;
}

static hd_status ucx_put_prepare_channel(struct hd_transport *instance, struct ucx_channel *channel)
{
    const struct hd_host *host = instance->book.host;
    const uint64_t bytes =
        sizeof(struct put_channel) +
        channel->book.slot_count *
            (sizeof(ucp_request_param_t) + sizeof(struct ucx_flight) + sizeof(struct put_header));
    struct put_channel *put = host->alloc(host->context, bytes, 64, "ucx_put");

    if (put == NULL) {
        return book_fail(&instance->book, book_channel_fault(HD_NO_MEMORY, channel->book.number),
                         "channel %u: cannot allocate its state", channel->book.number);
    }
    put->how = (ucp_request_param_t *)(put + 1);
    put->flushes = (struct ucx_flight *)(put->how + channel->book.slot_count);
    put->headers = (struct put_header *)(put->flushes + channel->book.slot_count);
    put->news = (_Atomic uint64_t *)(void *)(instance->region +
                                             (uint64_t)channel->book.number * PUT_LINE_BYTES);
    put->is_warming = true;
    for (uint32_t i = 0; i < channel->book.slot_count; i++) {
        put->how[i] = ucx_sending(&channel->flights[i]);
        channel->flights[i].state = UCX_IDLE;
    }
    channel->own = put;
    channel->stride_bytes = ucx_stride_bytes(instance, channel->book.shape);
    channel->slots =
        instance->region + ucx_put_offset_of(instance, host->rank, channel->book.number);
    return HD_OK;
}

static hd_status ucx_put_pack_key(struct hd_transport *instance, struct ucx_card *card)
{
    void *key = NULL;
    size_t bytes = 0;

    const ucs_status_t status = ucp_rkey_pack(instance->context, instance->memory, &key, &bytes);
    if (status != UCS_OK || bytes > sizeof card->rkey) {
        return book_fail(&instance->book, book_own_fault(HD_UNSUPPORTED),
                         "cannot pack a key to this rank's memory: UCX: %s, %zu bytes",
                         ucs_status_string(status), bytes);
    }
    memcpy(card->rkey, key, bytes);
    card->rkey_bytes = (uint32_t)bytes;
    card->region = (uint64_t)(uintptr_t)instance->region;
    ucp_rkey_buffer_release(key);
    return HD_OK;
}

hd_status put_prepare(struct hd_transport *instance, struct ucx_card *card)
{
    uint64_t slot_bytes = 0;

    BOOK_TRY(ucx_count_slots(instance, &slot_bytes));
    const uint64_t bytes = ucx_put_head_bytes(instance) + slot_bytes;
    BOOK_TRY(ucx_put_allocate_region(instance, bytes));
    book_log(&instance->book, "%" PRIu64 " bytes that peers may write, %" PRIu64 " for slots",
             bytes, slot_bytes);
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        BOOK_TRY(ucx_put_prepare_channel(instance, &instance->channels[i]));
    }
    BOOK_TRY(put_message_open(instance));
    return ucx_put_pack_key(instance, card);
}

/* Messages replace puts unless UCX has puts to the peer or the user asks for UCX's emulation. */
static bool ucx_put_is_messaged(const struct hd_transport *instance, const struct ucx_peer *peer)
{
    const char *puts = book_text_option(&instance->book, PUT_OPTION_PUTS, "auto");
    return !peer->is_mapped && strcmp(puts, "always") != 0 && !ucx_has_puts(peer->ep);
}

hd_status put_connect(struct hd_transport *instance, struct ucx_peer *peer,
                      const struct ucx_card *card)
{
    void *here = NULL;

    const ucs_status_t status = ucp_ep_rkey_unpack(peer->ep, card->rkey, &peer->rkey);
    if (status != UCS_OK) {
        peer->rkey = NULL;
        return book_fail(&instance->book, book_rank_fault(HD_UNSUPPORTED, peer->book.rank),
                         "cannot unpack the key to the memory of rank %u: UCX: %s", peer->book.rank,
                         ucs_status_string(status));
    }
    peer->region = card->region;
    peer->is_mapped =
        ucp_rkey_ptr(peer->rkey, peer->region, &here) == UCS_OK && ucx_is_memory(peer->ep);
    peer->is_messaged = ucx_put_is_messaged(instance, peer);
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ucx_channel *channel = &instance->channels[i];
        struct put_channel *put = channel->own;
        if (channel->peer == peer) {
            const uint64_t offset = (uint64_t)channel->book.number * PUT_LINE_BYTES;
            put->remote_word = peer->region + offset;
            put->there =
                peer->is_mapped ? (_Atomic uint64_t *)(void *)((char *)here + offset) : NULL;
            put->remote_slots =
                peer->region + ucx_put_offset_of(instance, peer->book.rank, channel->book.number);
        }
    }
    return HD_OK;
}

void put_finish(struct hd_transport *instance)
{
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        instance->book.host->free(instance->book.host->context, instance->channels[i].own);
    }
    if (instance->memory != NULL) {
        ucp_mem_unmap(instance->context, instance->memory);
        instance->memory = NULL;
        book_account(&instance->book, -(int64_t)instance->mapped_bytes, "transfer");
    }
}
