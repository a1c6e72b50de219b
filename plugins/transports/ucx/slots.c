/* ucx/slots.c - how much memory the slots of a rank need, and the errors if there is less. */
#include "ucx.h"

#include <inttypes.h>
#include <stdio.h>

uint64_t ucx_stride_bytes(const struct hd_transport *instance, const struct hd_channel *shape)
{
    return book_round_up(shape->bytes + HD_SEAL_BYTES, instance->book.alignment_bytes);
}

hd_status ucx_count_slots(struct hd_transport *instance, uint64_t *bytes)
{
    const uint64_t most_bytes = (uint64_t)1 << 46; /* half of what a process can address */

    *bytes = 0;
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        const struct book_channel *channel = &instance->channels[i].book;
        if (channel->shape->bytes > most_bytes ||
            channel->slot_count >
                (most_bytes - *bytes) / ucx_stride_bytes(instance, channel->shape)) {
            return book_fail(&instance->book, book_channel_fault(HD_NO_MEMORY, channel->number),
                             "channel %u: %u slots of %" PRIu64
                             " bytes are more than a process can map: plan fewer slots or "
                             "smaller microbatches",
                             channel->number, channel->slot_count, channel->shape->bytes);
        }
        *bytes += channel->slot_count * ucx_stride_bytes(instance, channel->shape);
    }
    return HD_OK;
}

hd_status ucx_check_room(struct hd_transport *instance, uint64_t bytes)
{
    const uint64_t left_bytes = book_available_bytes();
    char reason[64];

    if (bytes <= left_bytes) {
        return HD_OK;
    }
    snprintf(reason, sizeof reason, "only %" PRIu64 " are available", left_bytes);
    return ucx_refuse_slots(instance, bytes, reason);
}

hd_status ucx_refuse_slots(struct hd_transport *instance, uint64_t bytes, const char *reason)
{
    return book_fail(&instance->book, book_own_fault(HD_NO_MEMORY),
                     "this rank's slots need %" PRIu64
                     " bytes of memory: %s; plan fewer slots or smaller microbatches",
                     bytes, reason);
}
