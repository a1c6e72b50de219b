/*
 * drive/slot.c - the bytes of a line's messages: in slots of the host, or of a device, where
 * all of it takes its turn in the stream.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "drive/line.h"

#include <assert.h>
#include <string.h>

enum { STAMP_WORD = 1 << 20 }; /* of no body, and never 0 */

/* A transport is moved at least so often while the host waits for the stream. */
#define SLICE_NS 50000u

unsigned char *hd_line_slot(const struct hd_line *line, uint32_t channel, uint64_t sequence)
{
    const struct hd_message message = {.sequence = sequence, .channel = channel};
    return line->ops->slot(line->transport, &message);
}

uint64_t hd_line_stamp_of(uint32_t channel, uint64_t sequence)
{
    return hd_pattern_word(channel, sequence, STAMP_WORD);
}

static const unsigned char *slot_body_of(const struct hd_line *line, uint64_t sequence)
{
    return line->shape.bodies[sequence / line->shape.depth % 2];
}

static uint64_t slot_stamp_bytes(const struct hd_line *line)
{
    return line->shape.bytes < HD_LINE_STAMP_BYTES ? line->shape.bytes : HD_LINE_STAMP_BYTES;
}

/* --- the stream ------------------------------------------------------------------------------ */

static const struct hd_lent *slot_lent_of(const struct hd_line *line)
{
    return line->shape.device != NULL ? &line->shape.device->lent : NULL;
}

void *hd_line_stream(const struct hd_line *line)
{
    return hd_lent_stream(slot_lent_of(line));
}

hd_status hd_line_reach(struct hd_line *line, uint64_t mark, uint64_t *passed_ns)
{
    const struct hd_lent *lent = slot_lent_of(line);
    hd_status status = lent->ops->reached(lent->kernel, mark, 0, passed_ns);

    while (status == HD_IN_PROGRESS) {
        if (line->ops->progress != NULL) {
            const hd_status moved = line->ops->progress(line->transport);
            if (moved < 0) {
                return moved;
            }
        }
        if (hd_now_ns() >= line->deadline_ns) {
            return HD_TIMEOUT;
        }
        status = lent->ops->reached(lent->kernel, mark, SLICE_NS, passed_ns);
    }
    return status;
}

hd_status hd_line_settle(struct hd_line *line)
{
    const struct hd_lent *lent = slot_lent_of(line);
    uint64_t mark, passed_ns;

    if (lent == NULL) {
        return HD_OK;
    }
    const hd_status status = lent->ops->mark(lent->kernel, &mark);
    return status == HD_OK ? hd_line_reach(line, mark, &passed_ns) : status;
}

/* The host's side stays as it is until the stream has been there. */
static hd_status slot_copy(const struct hd_line *line, void *target, const void *source,
                           uint64_t bytes)
{
    const struct hd_lent *lent = slot_lent_of(line);

    if (lent == NULL) {
        memcpy(target, source, bytes);
    }
    return lent == NULL || bytes == 0 ? HD_OK
                                      : lent->ops->copy(lent->kernel, target, source, bytes, 0);
}

hd_status hd_line_put(struct hd_line *line, void *slot, const void *bytes, uint64_t count)
{
    const hd_status status = slot_copy(line, slot, bytes, count);
    return status == HD_OK ? hd_line_settle(line) : status;
}

hd_status hd_line_get(struct hd_line *line, void *bytes, const void *slot, uint64_t count)
{
    const hd_status status = slot_copy(line, bytes, slot, count);
    return status == HD_OK ? hd_line_settle(line) : status;
}

/* --- stamps ---------------------------------------------------------------------------------- */

hd_status hd_line_take_stamps(struct hd_line *line)
{
    const uint64_t count = line->shape.depth + HD_LINE_UNREAD_MAX;

    if (line->shape.device == NULL) {
        return HD_OK;
    }
    line->stamps_out = hd_memory_take(count * sizeof(uint64_t), 4096, "bench");
    line->stamps_in = line->stamps_out != NULL ? line->stamps_out + line->shape.depth : NULL;
    return line->stamps_out != NULL ? HD_OK : HD_NO_MEMORY;
}

/* A slot that may be written again has left, and so has its stamp's turn in the stream passed. */
hd_status hd_line_stamp(struct hd_line *line, uint64_t sequence)
{
    uint64_t own = hd_line_stamp_of(line->out, sequence);
    uint64_t *stamp = &own;

    if (line->shape.device != NULL) {
        stamp = &line->stamps_out[sequence % line->shape.depth];
        *stamp = own;
    }
    return slot_copy(line, hd_line_slot(line, line->out, sequence), stamp, slot_stamp_bytes(line));
}

static void slot_count(struct hd_line *line, int is_wrong)
{
    line->checked_count++;
    line->wrong_count += is_wrong != 0;
}

hd_status hd_line_look(struct hd_line *line)
{
    const hd_status status = line->unread_count > 0 ? hd_line_settle(line) : HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < line->unread_count; i++) {
        const uint64_t stamp = hd_line_stamp_of(line->in, line->unread_first + i);
        slot_count(line, memcmp(&line->stamps_in[i], &stamp, slot_stamp_bytes(line)) != 0);
    }
    line->unread_count = 0;
    return status;
}

hd_status hd_line_glance(struct hd_line *line, uint64_t sequence)
{
    const uint64_t stamp = hd_line_stamp_of(line->in, sequence);
    const unsigned char *slot = hd_line_slot(line, line->in, sequence);

    if (line->shape.device == NULL) {
        slot_count(line, memcmp(slot, &stamp, slot_stamp_bytes(line)) != 0);
        return HD_OK;
    }
    const hd_status status = line->unread_count == HD_LINE_UNREAD_MAX ? hd_line_look(line) : HD_OK;
    if (status != HD_OK) {
        return status;
    }
    if (line->unread_count == 0) {
        line->unread_first = sequence;
    }
    assert(sequence == line->unread_first + line->unread_count);
    return slot_copy(line, &line->stamps_in[line->unread_count++], slot, slot_stamp_bytes(line));
}

/* --- whole messages -------------------------------------------------------------------------- */

hd_status hd_line_fill(struct hd_line *line, uint64_t sequence)
{
    const uint64_t head_bytes = slot_stamp_bytes(line);
    const hd_status status =
        slot_copy(line, hd_line_slot(line, line->out, sequence) + head_bytes,
                  slot_body_of(line, sequence) + head_bytes, line->shape.bytes - head_bytes);

    return status == HD_OK ? hd_line_stamp(line, sequence) : status;
}

hd_status hd_line_check(struct hd_line *line, uint64_t sequence)
{
    const uint64_t stamp = hd_line_stamp_of(line->in, sequence);
    const uint64_t head_bytes = slot_stamp_bytes(line);
    const unsigned char *slot = hd_line_slot(line, line->in, sequence);

    if (line->shape.device != NULL) {
        unsigned char *image = line->shape.device->lent.staging;
        assert(line->shape.bytes <= line->shape.device->lent.staging_bytes);
        const hd_status status = hd_line_get(line, image, slot, line->shape.bytes);
        if (status != HD_OK) {
            return status;
        }
        slot = image;
    }
    slot_count(line, memcmp(slot, &stamp, head_bytes) != 0 ||
                         memcmp(slot + head_bytes, slot_body_of(line, sequence) + head_bytes,
                                line->shape.bytes - head_bytes) != 0);
    return HD_OK;
}

/* --- in place? ------------------------------------------------------------------------------- */

/* 1 in *seen: the token stands in the slot. */
static hd_status slot_find_token(struct hd_line *line, uint64_t token, uint32_t *seen)
{
    uint64_t there = 0;
    const hd_status status =
        hd_line_get(line, &there, hd_line_slot(line, 0, 0), slot_stamp_bytes(line));

    *seen = memcmp(&there, &token, slot_stamp_bytes(line)) == 0;
    return status;
}

hd_status hd_line_is_in_place(struct hd_line *line, uint32_t *is_in_place)
{
    const uint64_t token = 0x5bd1e995c2b2ae35ull; /* no message begins so, nor fresh memory */
    uint32_t seen = 0, other = 0;
    hd_status status = HD_OK;

    assert(line->sent == 0 && line->received == 0);
    if (line->rank->rank == 0) {
        status = hd_line_reserve(line, 1);
        if (status == HD_OK) {
            status = hd_line_put(line, hd_line_slot(line, 0, 0), &token, slot_stamp_bytes(line));
        }
    }
    if (status == HD_OK) {
        status = hd_line_fence(line);
    }
    if (status == HD_OK && line->rank->rank == 1) {
        status = slot_find_token(line, token, &seen);
    }
    if (status == HD_OK) {
        status = hd_line_swap(line, &seen, &other, sizeof seen);
    }
    *is_in_place = seen | other;
    return status;
}
