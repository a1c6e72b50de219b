#include "conform/rig.h"
#include "conform/transport_checks.h"

#include <string.h>

enum { CYCLES = 4 };

void hd_conform_transport_promises(struct hd_conform_case *check)
{
    const struct hd_transport_ops *ops = check->plugin->ops;
    const uint64_t has = hd_rig_capabilities(check);
    const bool is_hook = (check->plugin->capabilities & HD_TRANSPORT_HOOK) != 0;

    HD_HOLD(check, (has & (HD_TRANSPORT_HOST | HD_TRANSPORT_CUDA)) != 0,
            "the capabilities have neither HOST nor CUDA memory");
    HD_HOLD(check, (has & HD_TRANSPORT_TARGET_PROGRESS) == 0 || (has & HD_TRANSPORT_PROGRESS) != 0,
            "the capabilities have TARGET_PROGRESS without PROGRESS");
    HD_HOLD(check, (has & HD_TRANSPORT_PROGRESS) == 0 || ops->progress != NULL,
            "the capabilities have PROGRESS, but progress is NULL");
    HD_HOLD(check, (has & HD_TRANSPORT_SEALED) == 0 || (has & HD_TRANSPORT_HOST) != 0,
            "the capabilities have SEALED without HOST, but seals are for host slots");
    HD_HOLD(check, is_hook == (check->subject->inner != NULL),
            "only a hook wraps another transport");
}

/* --- slots --------------------------------------------------------------------------------- */

static uint32_t transport_api_slot_count_of(const struct hd_rig *rig,
                                            const struct hd_channel *channel)
{
    const bool in_place = (rig->drive.capabilities & HD_TRANSPORT_IN_PLACE) != 0;
    return channel->source == rig->rank && !in_place ? channel->send_depth : channel->depth;
}

/* The slots of this rank, each with its seal if it has one, do not overlap. */
static void transport_api_check_overlap(struct hd_rig *rig)
{
    const uint64_t lead = (rig->drive.capabilities & HD_TRANSPORT_SEALED) != 0 ? HD_SEAL_BYTES : 0;
    struct {
        uintptr_t begin, end;
    } spans[64];
    uint32_t count = 0;

    for (uint32_t i = 0; i < rig->job->channel_count; i++) {
        const uint32_t slots = transport_api_slot_count_of(rig, rig->list[i]);
        for (uint64_t sequence = 0; sequence < slots; sequence++) {
            const struct hd_message message = {.sequence = sequence, .channel = i};
            const uintptr_t at = (uintptr_t)rig->ops->slot(rig->transport, &message);
            spans[count].begin = at - lead;
            spans[count].end = at + rig->list[i]->bytes;
            for (uint32_t k = 0; k < count; k++) {
                HD_RIG_HOLD(
                    rig, spans[count].end <= spans[k].begin || spans[k].end <= spans[count].begin,
                    "slot %llu of channel %u overlaps another", (unsigned long long)sequence, i);
            }
            count++;
        }
    }
}

/* After how many messages a slot repeats.  A source may have more send slots than it was given,
   up to one for each receive slot. */
static uint64_t transport_api_period_of(const struct hd_rig *rig, uint32_t channel)
{
    const uint32_t slots = transport_api_slot_count_of(rig, rig->list[channel]);
    const struct hd_message first = {.sequence = 0, .channel = channel};
    const struct hd_message second = {.sequence = slots, .channel = channel};
    const bool repeats =
        rig->ops->slot(rig->transport, &first) == rig->ops->slot(rig->transport, &second);
    return repeats ? slots : rig->list[channel]->depth;
}

static void transport_api_check_slots(struct hd_rig *rig)
{
    for (uint32_t i = 0; i < rig->job->channel_count; i++) {
        for (uint64_t sequence = 0; sequence < 3ull * rig->list[i]->depth; sequence++) {
            const struct hd_message message = {.sequence = sequence, .channel = i};
            const uint64_t period = transport_api_period_of(rig, i);
            const struct hd_message before = {.sequence = sequence - period, .channel = i};
            const void *slot = rig->ops->slot(rig->transport, &message);
            HD_RIG_HOLD(rig, slot != NULL, "message %llu of channel %u has no slot",
                        (unsigned long long)sequence, i);
            HD_RIG_HOLD(rig, (uintptr_t)slot % rig->setup.alignment_bytes == 0,
                        "slot %llu of channel %u is not aligned to %u bytes",
                        (unsigned long long)sequence, i, rig->setup.alignment_bytes);
            HD_RIG_HOLD(rig, sequence < period || slot == rig->ops->slot(rig->transport, &before),
                        "channel %u: message %llu has another slot than message %llu, %u earlier",
                        i, (unsigned long long)sequence, (unsigned long long)before.sequence,
                        (unsigned)period);
        }
    }
    transport_api_check_overlap(rig);
}

void hd_conform_transport_slots(struct hd_conform_case *check)
{
    static const struct hd_channel channels[] = {
        {0, HD_FORWARD, 0, 1, 3, 2, 100},  {1, HD_FORWARD, 1, 0, 1, 1, 1},
        {2, HD_FORWARD, 0, 1, 4, 1, 4096}, {0, HD_BACKWARD, 1, 0, 2, 2, 65},
        {1, HD_BACKWARD, 0, 1, 2, 1, 8},   {2, HD_BACKWARD, 1, 0, 5, 3, 1000}};

    static const uint32_t alignments[] = {64, 4096};

    for (uint32_t i = 0; i < 2 && !hd_conform_is_decided(check); i++) {
        hd_rig_run(check, &(struct hd_rig_job){.rank_count = 2,
                                               .channel_count = 6,
                                               .channels = channels,
                                               .alignment_bytes = alignments[i],
                                               .body = transport_api_check_slots});
    }
}

/* --- reopen -------------------------------------------------------------------------------- */

static const struct hd_channel transport_api_both_ways[] = {{0, HD_FORWARD, 0, 1, 2, 1, 4000},
                                                            {0, HD_BACKWARD, 1, 0, 2, 1, 4000}};

/* A library may keep some memory of the first cycles; later cycles must not leave more. */
static void transport_api_open_again(struct hd_rig *rig)
{
    uint32_t descriptor_count = 0;

    for (uint32_t cycle = 0; cycle < CYCLES; cycle++) {
        struct hd_drive_mix mix = {.count = 6, .seed = cycle};
        hd_status status = hd_rig_open(rig, hd_rig_limit_ms(rig));
        HD_RIG_HOLD(rig, status == HD_OK, "open %u returns %s", cycle + 1, hd_status_name(status));
        status = hd_drive_mix(hd_rig_drive(rig), &mix);
        HD_RIG_HOLD(rig, status == HD_OK, "after open %u channel %u returns %s", cycle + 1,
                    mix.wrong_channel, hd_status_name(status));
        status = hd_rig_close(rig);
        HD_RIG_HOLD(rig, status == HD_OK, "close %u returns %s", cycle + 1, hd_status_name(status));
        HD_RIG_HOLD(rig, hd_rig_held_bytes(rig) == 0,
                    "close %u does not free %llu bytes of the host", cycle + 1,
                    (unsigned long long)hd_rig_held_bytes(rig));
        const uint32_t count = hd_conform_entry_count("/proc/self/fd");
        HD_RIG_HOLD(rig, cycle < 2 || count <= descriptor_count,
                    "%u descriptors are open after close %u, but %u after the close before", count,
                    cycle + 1, descriptor_count);
        descriptor_count = count;
    }
    rig->ops->close(NULL, 0);
}

void hd_conform_transport_reopen(struct hd_conform_case *check)
{
    hd_rig_run(check, &(struct hd_rig_job){.rank_count = 2,
                                           .channel_count = 2,
                                           .channels = transport_api_both_ways,
                                           .is_unopened = true,
                                           .body = transport_api_open_again});
}

/* --- stats --------------------------------------------------------------------------------- */

/* One more message each way; the target reads it, but does not release it yet. */
static void transport_api_read_one(struct hd_rig *rig, struct hd_message in)
{
    const struct hd_drive *drive = hd_rig_drive(rig);
    const struct hd_message out = {.sequence = in.sequence, .channel = rig->rank};

    if (rig->rank == 0) {
        HD_RIG_EXPECT(rig, "sending", out, hd_drive_send(drive, out), HD_OK);
    }
    HD_RIG_EXPECT(rig, "receiving", in, hd_drive_receive(drive, in), HD_OK);
    if (rig->rank == 1) {
        HD_RIG_EXPECT(rig, "sending", out, hd_drive_send(drive, out), HD_OK);
    }
}

static void transport_api_count_messages(struct hd_rig *rig)
{
    struct hd_drive_mix mix = {.count = 20};
    const uint32_t incoming = 1 - rig->rank;
    struct hd_channel_stats stats = {.size = sizeof stats};
    const hd_status status = hd_drive_mix(hd_rig_drive(rig), &mix);
    _Alignas(8) unsigned char small[sizeof stats];

    HD_RIG_HOLD(rig, status == HD_OK, "channel %u returns %s", mix.wrong_channel,
                hd_status_name(status));
    const struct hd_message last = {.sequence = mix.count, .channel = incoming};
    transport_api_read_one(rig, last);
    if (hd_conform_is_decided(rig->check)) {
        return;
    }
    rig->ops->stats(rig->transport, incoming, &stats);
    HD_RIG_HOLD(rig, stats.finished_count == mix.count + 1,
                "%llu messages were read, but finished_count is %llu",
                (unsigned long long)mix.count + 1, (unsigned long long)stats.finished_count);
    HD_RIG_EXPECT(rig, "release", last, hd_drive_release(hd_rig_drive(rig), last), HD_OK);
    HD_RIG_HOLD(rig, memchr(stats.lane, '\0', sizeof stats.lane) != NULL && stats.lane[0] != '\0',
                "stats names no carrier");
    /* A caller built with an older header passes a smaller struct. */
    memset(small, 0x5a, sizeof small);
    const uint32_t room = 8;
    memcpy(small, &room, sizeof room);
    rig->ops->stats(rig->transport, incoming, (struct hd_channel_stats *)(void *)small);
    for (uint32_t i = room; i < sizeof small; i++) {
        HD_RIG_HOLD(rig, small[i] == 0x5a, "stats writes past the %u bytes of its struct", room);
    }
    if (rig->rank == 0) {
        hd_conform_remark(rig->check, "carrier %s", stats.lane);
    }
}

void hd_conform_transport_stats(struct hd_conform_case *check)
{
    const struct hd_transport_ops *ops = check->plugin->ops;

    if (ops->stats == NULL) {
        hd_conform_skip(check, "has no stats");
        return;
    }
    hd_rig_run(check, &(struct hd_rig_job){.rank_count = 2,
                                           .channel_count = 2,
                                           .channels = transport_api_both_ways,
                                           .body = transport_api_count_messages});
}
