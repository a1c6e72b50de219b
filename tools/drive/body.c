/*
 * drive/body.c - the bytes of a pair's messages: in slots of the host, or of a device, whose stream
 * orders every copy.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/try.h"
#include "drive/pair.h"

#include <assert.h>
#include <string.h>

enum { STAMP_WORD = 1 << 20 }; /* of no body, and never 0 */

uint64_t hd_pair_stamp_of(const struct hd_lane *lane, uint64_t sequence)
{
    return hd_pattern_word(lane->index, sequence, STAMP_WORD);
}

static const unsigned char *body_of(const struct hd_pair *pair, uint64_t sequence)
{
    return pair->shape.bodies[sequence / pair->shape.depth % 2];
}

static uint64_t body_stamp_bytes(const struct hd_pair *pair)
{
    return hd_min_u64(pair->shape.bytes, HD_PAIR_STAMP_BYTES);
}

hd_status hd_pair_copy(struct hd_pair *pair, void *target, const void *source, uint64_t count)
{
    HD_TRY(hd_lent_copy(pair->drive.device, target, source, count));
    return hd_pair_settle(pair);
}

/* --- stamps ---------------------------------------------------------------------------------- */

hd_status hd_pair_take_stamps(struct hd_pair *pair, struct hd_problem *problem)
{
    const uint64_t bytes = (pair->shape.depth + HD_PAIR_UNREAD_MAX) * sizeof(uint64_t);

    if (pair->shape.device == NULL) {
        return HD_OK;
    }
    pair->stamps_out = hd_memory_take(bytes, 4096, "bench");
    if (pair->stamps_out == NULL) {
        return hd_problem_no_memory(problem, bytes, "stamps");
    }
    pair->stamps_in = pair->stamps_out + pair->shape.depth;
    return HD_OK;
}

/* A slot may be written again once its message has left, so the copy of its stamp is over too. */
hd_status hd_pair_stamp(struct hd_pair *pair, uint64_t sequence)
{
    uint64_t own = hd_pair_stamp_of(&pair->out, sequence);
    uint64_t *stamp = &own;

    if (pair->shape.device != NULL) {
        stamp = &pair->stamps_out[sequence % pair->shape.depth];
        *stamp = own;
    }
    return hd_lent_copy(pair->drive.device, hd_lane_slot(&pair->out, sequence), stamp,
                        body_stamp_bytes(pair));
}

static void body_count(struct hd_pair *pair, bool is_wrong)
{
    pair->checked_count++;
    pair->wrong_count += is_wrong;
}

hd_status hd_pair_look(struct hd_pair *pair)
{
    const hd_status status = pair->unread_count > 0 ? hd_pair_settle(pair) : HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < pair->unread_count; i++) {
        const uint64_t stamp = hd_pair_stamp_of(&pair->in, pair->unread_first + i);
        body_count(pair, memcmp(&pair->stamps_in[i], &stamp, body_stamp_bytes(pair)) != 0);
    }
    pair->unread_count = 0;
    return status;
}

hd_status hd_pair_glance(struct hd_pair *pair, uint64_t sequence)
{
    const uint64_t stamp = hd_pair_stamp_of(&pair->in, sequence);
    const unsigned char *slot = hd_lane_slot(&pair->in, sequence);

    if (pair->shape.device == NULL) {
        body_count(pair, memcmp(slot, &stamp, body_stamp_bytes(pair)) != 0);
        return HD_OK;
    }
    if (pair->unread_count == HD_PAIR_UNREAD_MAX) {
        HD_TRY(hd_pair_look(pair));
    }
    if (pair->unread_count == 0) {
        pair->unread_first = sequence;
    }
    assert(sequence == pair->unread_first + pair->unread_count);
    return hd_lent_copy(pair->drive.device, &pair->stamps_in[pair->unread_count++], slot,
                        body_stamp_bytes(pair));
}

/* --- whole messages -------------------------------------------------------------------------- */

hd_status hd_pair_fill(struct hd_pair *pair, uint64_t sequence)
{
    const uint64_t head_bytes = body_stamp_bytes(pair);
    unsigned char *slot = hd_lane_slot(&pair->out, sequence);

    HD_TRY(hd_lent_copy(pair->drive.device, slot + head_bytes, body_of(pair, sequence) + head_bytes,
                        pair->shape.bytes - head_bytes));
    return hd_pair_stamp(pair, sequence);
}

hd_status hd_pair_check(struct hd_pair *pair, uint64_t sequence)
{
    const uint64_t stamp = hd_pair_stamp_of(&pair->in, sequence);
    const uint64_t head_bytes = body_stamp_bytes(pair);
    const struct hd_lent *lent = pair->drive.device;
    const unsigned char *slot = hd_lane_slot(&pair->in, sequence);

    if (lent != NULL) {
        assert(pair->shape.bytes <= lent->staging_bytes);
        HD_TRY(hd_pair_copy(pair, lent->staging, slot, pair->shape.bytes));
        slot = lent->staging;
    }
    body_count(pair, memcmp(slot, &stamp, head_bytes) != 0 ||
                         memcmp(slot + head_bytes, body_of(pair, sequence) + head_bytes,
                                pair->shape.bytes - head_bytes) != 0);
    return HD_OK;
}

/* --- in place? ------------------------------------------------------------------------------- */

hd_status hd_pair_is_in_place(struct hd_pair *pair, bool *is_in_place)
{
    const uint64_t token = 0x5bd1e995c2b2ae35ull; /* no message begins so, nor fresh memory */
    const uint64_t count = body_stamp_bytes(pair);
    uint64_t found = 0;
    bool mine = false, theirs = false;

    assert(pair->out.sent_count == 0 && pair->received == 0);
    if (pair->rank->rank == 0) {
        HD_TRY(hd_pair_reserve(pair, 1));
        HD_TRY(hd_pair_copy(pair, hd_lane_slot(&pair->out, 0), &token, count));
    }
    HD_TRY(hd_pair_fence(pair));
    if (pair->rank->rank == 1) {
        HD_TRY(hd_pair_copy(pair, &found, hd_lane_slot(&pair->in, 0), count));
        mine = memcmp(&found, &token, count) == 0;
    }
    HD_TRY(hd_pair_swap(pair, &mine, &theirs, sizeof mine));
    *is_in_place = mine || theirs;
    return HD_OK;
}
