/* drive/mix.c - messages that can be told apart: one at a time, and on all channels at once. */
#include "base/clock.h"
#include "base/number.h"
#include "base/try.h"
#include "drive/drive.h"

#include <assert.h>
#include <sched.h>
#include <string.h>

enum { SEAL_WORD = 1 << 20 };

/* Only slots of the host have a seal before them. */
static bool mix_is_sealed(const struct hd_drive *drive)
{
    return (drive->capabilities & HD_TRANSPORT_SEALED) != 0 && drive->device == NULL;
}

/* --- bytes ----------------------------------------------------------------------------------- */

/* The pattern of the message, from word `first` on. */
static void mix_write(unsigned char *bytes, struct hd_message message, uint64_t first,
                      uint64_t count)
{
    for (uint64_t offset = 0; offset < count; offset += 8) {
        const uint64_t word =
            hd_pattern_word(message.channel, message.sequence, first + offset / 8);
        memcpy(bytes + offset, &word, hd_min_u64(count - offset, 8));
    }
}

static bool mix_matches(const unsigned char *bytes, struct hd_message message, uint64_t first,
                        uint64_t count)
{
    bool matches = true;

    for (uint64_t offset = 0; matches && offset < count; offset += 8) {
        const uint64_t word =
            hd_pattern_word(message.channel, message.sequence, first + offset / 8);
        matches = memcmp(bytes + offset, &word, hd_min_u64(count - offset, 8)) == 0;
    }
    return matches;
}

hd_status hd_drive_fill(const struct hd_drive *drive, struct hd_message message)
{
    const uint64_t count = drive->channels[message.channel]->bytes;
    unsigned char *slot = drive->ops->slot(drive->transport, &message);

    if (drive->device == NULL) {
        mix_write(slot, message, 0, count);
        if (mix_is_sealed(drive)) {
            mix_write(slot - HD_SEAL_BYTES, message, SEAL_WORD, HD_SEAL_BYTES);
        }
        return HD_OK;
    }
    assert(count <= drive->device->staging_bytes);
    mix_write(drive->device->staging, message, 0, count);
    return hd_lent_copy_now(drive->device, slot, drive->device->staging, count);
}

bool hd_drive_is_whole(const struct hd_drive *drive, struct hd_message message)
{
    const uint64_t count = drive->channels[message.channel]->bytes;
    const unsigned char *slot = drive->ops->slot(drive->transport, &message);

    if (mix_is_sealed(drive)) {
        return mix_matches(slot - HD_SEAL_BYTES, message, SEAL_WORD, HD_SEAL_BYTES) &&
               mix_matches(slot, message, 0, count);
    }
    if (drive->device != NULL) {
        unsigned char *image = drive->device->staging;
        assert(count <= drive->device->staging_bytes);
        if (hd_lent_copy_now(drive->device, image, slot, count) != HD_OK) {
            return false;
        }
        slot = image;
    }
    return mix_matches(slot, message, 0, count / 8 * 8);
}

/* --- one message ----------------------------------------------------------------------------- */

/* On a device every second message is awaited by the stream, and the host waits for the stream. */
static hd_status mix_wait_to_read(const struct hd_drive *drive, struct hd_message message)
{
    struct hd_lane lane = hd_drive_lane(drive, message);

    if (!hd_lane_waits_on_stream(&lane) || message.sequence % 2 == 0) {
        return hd_drive_wait(drive, message);
    }
    HD_TRY(hd_lane_wait_on_stream(&lane, message.sequence));
    return hd_lent_rest(drive->device);
}

hd_status hd_drive_send(const struct hd_drive *drive, struct hd_message message)
{
    HD_TRY(hd_drive_reserve(drive, message));
    HD_TRY(hd_drive_fill(drive, message));
    return hd_drive_post(drive, message);
}

hd_status hd_drive_receive(const struct hd_drive *drive, struct hd_message message)
{
    HD_TRY(drive->ops->post_recv(drive->transport, &message));
    HD_TRY(mix_wait_to_read(drive, message));
    return hd_drive_is_whole(drive, message) ? HD_OK : HD_PROTOCOL;
}

hd_status hd_drive_release(const struct hd_drive *drive, struct hd_message message)
{
    void *slot = drive->ops->slot(drive->transport, &message);

    HD_TRY(hd_lent_fill(drive->device, slot, 0xFF, drive->channels[message.channel]->bytes));
    return hd_drive_give(drive, message);
}

/* --- all channels at once -------------------------------------------------------------------- */

/* One channel; `read`: how many messages of it this rank has received. */
struct flow {
    struct hd_lane lane;
    uint64_t read;
};

static struct hd_message mix_message_of(const struct flow *flow, uint64_t sequence)
{
    return (struct hd_message){.sequence = sequence, .channel = flow->lane.index};
}

static uint64_t mix_draw(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

static hd_status mix_fill_and_send(const struct hd_drive *drive, struct flow *flow)
{
    HD_TRY(hd_drive_fill(drive, mix_message_of(flow, flow->lane.sent_count)));
    flow->lane.written_count++;
    return hd_lane_send_next(&flow->lane, 0);
}

/* The message is readable: its lease begins. */
static hd_status mix_begin_lease(const struct hd_drive *drive, struct flow *flow)
{
    const struct hd_message message = mix_message_of(flow, flow->read++);
    return hd_drive_is_whole(drive, message) ? HD_OK : HD_PROTOCOL;
}

/* Ends the oldest lease, after another check of the leased message. */
static hd_status mix_end_lease(const struct hd_drive *drive, struct flow *flow)
{
    const struct hd_message message = mix_message_of(flow, flow->lane.released_count++);
    const bool holds = hd_drive_is_whole(drive, message);
    const hd_status status = hd_drive_release(drive, message);

    return holds ? status : HD_PROTOCOL;
}

/* Receives the next message if it is there; HD_IN_PROGRESS or HD_BUSY if not. */
static hd_status mix_pull(const struct hd_drive *drive, struct flow *flow, uint64_t end)
{
    HD_TRY(hd_lane_post_free(&flow->lane, end));
    if (flow->read == flow->lane.posted_count) {
        return HD_BUSY;
    }
    HD_TRY(hd_lane_test(&flow->lane, flow->read));
    return mix_begin_lease(drive, flow);
}

/* Moves what can move on one channel. */
static hd_status mix_advance(const struct hd_drive *drive, struct flow *flow, uint64_t end,
                             uint64_t *random)
{
    struct hd_lane *lane = &flow->lane;

    if (lane->is_source && lane->sent_count < end) {
        HD_TRY(hd_lane_reserve(lane, lane->sent_count));
        return mix_fill_and_send(drive, flow);
    }
    if (!lane->is_target || lane->released_count == end) {
        return HD_BUSY;
    }
    const hd_status status = mix_pull(drive, flow, end);
    const uint64_t held = flow->read - lane->released_count;
    const bool is_full = held == lane->channel->depth || flow->read == end;
    if (status >= 0 && held > 0 && (is_full || mix_draw(random) % 4 == 0)) {
        return mix_end_lease(drive, flow);
    }
    return status;
}

static bool mix_is_done(const struct hd_drive *drive, const struct flow *flows, uint64_t end)
{
    bool is_done = true;

    for (uint32_t i = 0; i < drive->channel_count; i++) {
        const struct hd_lane *lane = &flows[i].lane;
        is_done &= !(lane->is_source && lane->sent_count < end) &&
                   !(lane->is_target && lane->released_count < end);
    }
    return is_done;
}

/* Looks once at as many channels as there are, in random order; *moved: something moved. */
static hd_status mix_look(const struct hd_drive *drive, struct flow *flows,
                          struct hd_drive_mix *mix, uint64_t *random, bool *moved)
{
    *moved = drive->ops->progress != NULL && drive->ops->progress(drive->transport) == HD_OK;
    for (uint32_t i = 0; i < drive->channel_count; i++) {
        const uint32_t channel = (uint32_t)(mix_draw(random) % drive->channel_count);
        struct flow *flow = &flows[channel];
        mix->wrong_channel = channel;
        mix->wrong_sequence = flow->lane.is_source ? flow->lane.sent_count : flow->read;
        const hd_status status = mix_advance(drive, flow, mix->first + mix->count, random);
        if (status < 0) {
            return status;
        }
        *moved |= status == HD_OK;
    }
    return HD_OK;
}

/* --- all channels in one order, for a serial transport --------------------------------------- */

static hd_status mix_take(const struct hd_drive *drive, struct flow *flow)
{
    HD_TRY(mix_wait_to_read(drive, mix_message_of(flow, flow->read)));
    return mix_begin_lease(drive, flow);
}

/* Ends leases, oldest first, until at most `most` messages are posted or leased. */
static hd_status mix_make_room(const struct hd_drive *drive, struct flow *flow, uint64_t most)
{
    struct hd_lane *lane = &flow->lane;

    while (lane->posted_count - lane->released_count > most) {
        if (lane->released_count == flow->read) {
            HD_TRY(mix_take(drive, flow));
        }
        HD_TRY(mix_end_lease(drive, flow));
    }
    return HD_OK;
}

/* The next message of one channel, if this rank is at an end of it. */
static hd_status mix_post_next(const struct hd_drive *drive, struct flow *flow, uint64_t *random)
{
    struct hd_lane *lane = &flow->lane;

    if (lane->is_source) {
        HD_TRY(hd_lane_reserve_by(lane, lane->sent_count, hd_drive_deadline(drive)));
        return mix_fill_and_send(drive, flow);
    }
    if (!lane->is_target) {
        return HD_OK;
    }
    HD_TRY(mix_make_room(drive, flow, lane->channel->depth - 1));
    if (flow->read < lane->posted_count && mix_draw(random) % 4 == 0) {
        HD_TRY(mix_take(drive, flow));
    }
    return hd_lane_post_next(lane, 0);
}

/* Both ends of every transfer meet it in one order, message by message and channel by channel, and
   a rank waits only for what comes before its next post. */
static hd_status mix_in_order(const struct hd_drive *drive, struct flow *flows,
                              struct hd_drive_mix *mix, uint64_t *random)
{
    for (uint64_t i = 0; i <= mix->count; i++) {
        for (uint32_t channel = 0; channel < drive->channel_count; channel++) {
            struct flow *flow = &flows[channel];
            mix->wrong_channel = channel;
            mix->wrong_sequence = mix->first + i;
            HD_TRY(i < mix->count ? mix_post_next(drive, flow, random)
                                  : mix_make_room(drive, flow, 0));
        }
    }
    return HD_OK;
}

hd_status hd_drive_mix(const struct hd_drive *drive, struct hd_drive_mix *mix)
{
    struct flow flows[HD_DRIVE_CHANNEL_MAX];
    const uint64_t deadline_ns = hd_drive_deadline(drive), end = mix->first + mix->count;
    uint64_t random = mix->seed + drive->rank + 1;

    assert(drive->channel_count <= HD_DRIVE_CHANNEL_MAX);
    for (uint32_t i = 0; i < drive->channel_count; i++) {
        const struct hd_message next = {.sequence = mix->first, .channel = i};
        flows[i] = (struct flow){hd_drive_lane(drive, next), mix->first};
    }
    if ((drive->capabilities & HD_TRANSPORT_SERIAL) != 0) {
        return mix_in_order(drive, flows, mix, &random);
    }
    while (!mix_is_done(drive, flows, end)) {
        bool moved = false;
        HD_TRY(mix_look(drive, flows, mix, &random, &moved));
        if (hd_now_ns() >= deadline_ns) {
            return HD_TIMEOUT;
        }
        if (!moved) {
            sched_yield();
        }
    }
    return HD_OK;
}
