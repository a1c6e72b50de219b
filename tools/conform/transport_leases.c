#include "conform/rig.h"
#include "conform/transport_checks.h"

#include "base/clock.h"
#include "engine/lane.h"

#include <sched.h>
#include <string.h>

/* Words that the ranks share. */
enum { WORD_SENT_COUNT, WORD_POSTED_COUNT };
enum { SPARE_COUNT = 3 };
enum { LOOKS = 200, LOOK_MS = 50, PAUSE_US = 100, FILLS = 16 };
enum {
    LARGE_BYTES = (1 << 20) + 24,
    LARGE_COUNT = 16,
    HUGE_BYTES = (1 << 24) + 24,
    HUGE_COUNT = 4
};

/* --- arrival ------------------------------------------------------------------------------- */

/* Tests for a while, because a thread of the transport or of the device may deliver a wrong message
   late.  The status of the last test. */
static hd_status transport_leases_test_for_a_while(struct hd_rig *rig, struct hd_message message)
{
    const uint64_t end_ns = hd_now_ns() + LOOK_MS * HD_MS_NS;
    hd_status status = HD_IN_PROGRESS;

    while (status == HD_IN_PROGRESS && hd_now_ns() < end_ns) {
        sched_yield();
        status = rig->ops->test(rig->transport, &message);
    }
    return status;
}

/* The target tests before the source has begun, and again when the slot is written but not
   posted. */
static void transport_leases_test_early(struct hd_rig *rig)
{
    const struct hd_drive *drive = hd_rig_drive(rig);
    const struct hd_message message = {.sequence = 0};

    if (rig->rank == 1) {
        HD_RIG_EXPECT(rig, "post_recv", message, rig->ops->post_recv(rig->transport, &message),
                      HD_OK);
    }
    for (uint32_t phase = 0; phase < 2; phase++) {
        if (rig->rank == 1) {
            HD_RIG_EXPECT(rig, "test", message, transport_leases_test_for_a_while(rig, message),
                          HD_IN_PROGRESS);
        }
        HD_RIG_MEET(rig);
        if (rig->rank == 0 && phase == 0) {
            HD_RIG_EXPECT(rig, "reserve", message, rig->ops->reserve(rig->transport, &message),
                          HD_OK);
            HD_RIG_EXPECT(rig, "filling", message, hd_drive_fill(drive, message), HD_OK);
        }
        HD_RIG_MEET(rig);
    }
    if (rig->rank == 0) {
        HD_RIG_EXPECT(rig, "post_send", message, hd_drive_post(drive, message), HD_OK);
        return;
    }
    HD_RIG_EXPECT(rig, "wait", message, hd_drive_wait(drive, message), HD_OK);
    HD_RIG_HOLD(rig, hd_drive_is_whole(drive, message),
                "the message that arrived is not the one that was sent");
}

void hd_conform_transport_arrival(struct hd_conform_case *check)
{
    const struct hd_channel channel = {0, HD_FORWARD, 0, 1, 2, 1, 4000};

    hd_rig_run(check, &(struct hd_rig_job){.rank_count = 2,
                                           .channel_count = 1,
                                           .channels = &channel,
                                           .body = transport_leases_test_early,
                                           .needs_peer = true});
}

/* --- visibility ---------------------------------------------------------------------------- */

/* The last word of the message in its slot. */
static unsigned char *transport_leases_last_word(const struct hd_rig *rig,
                                                 struct hd_message message, uint64_t *wanted)
{
    const uint64_t offset = rig->list[message.channel]->bytes - sizeof *wanted;

    *wanted = hd_pattern_word(message.channel, message.sequence, offset / 8);
    return (unsigned char *)rig->ops->slot(rig->transport, &message) + offset;
}

/* Writes the last word long after the rest.  On a device the stream does that, so a signal that
   is not ordered after the stream's work is visible too early. */
static hd_status transport_leases_finish_slowly(const struct hd_drive *drive,
                                                struct hd_message message, unsigned char *end,
                                                uint64_t last)
{
    const struct hd_lent *device = drive->device;
    const uint64_t bytes = drive->channels[message.channel]->bytes;
    const uint64_t end_ns = hd_now_ns() + PAUSE_US * 1000;
    hd_status status = HD_OK;

    if (device == NULL) {
        while (hd_now_ns() < end_ns) {
            sched_yield();
        }
        memcpy(end, &last, sizeof last);
        return HD_OK;
    }
    unsigned char *slot = end + sizeof last - bytes;
    for (uint32_t i = 0; i < FILLS && status == HD_OK; i++) {
        status = hd_lent_fill(device, slot, 0xFF, bytes);
    }
    /* hd_drive_fill has left the message in the staging buffer. */
    return status == HD_OK ? hd_lent_copy(device, slot, device->staging, bytes) : status;
}

/* The source begins when the target waits. */
static void transport_leases_send_slowly(struct hd_rig *rig, struct hd_message message)
{
    const uint64_t deadline_ns = hd_rig_deadline_ns(hd_rig_limit_ms(rig));
    const struct hd_drive *drive = hd_rig_drive(rig);
    const _Atomic uint64_t *posted = &rig->shared->words[WORD_POSTED_COUNT + message.channel];
    uint64_t last = 0;
    unsigned char *end = transport_leases_last_word(rig, message, &last);

    while (atomic_load(posted) <= message.sequence) {
        if (rig->ops->progress != NULL) {
            rig->ops->progress(rig->transport);
        }
        HD_RIG_HOLD(rig, hd_now_ns() < deadline_ns, "rank 1 does not post its receive");
        sched_yield();
    }
    HD_RIG_EXPECT(rig, "reserve", message, hd_drive_reserve(drive, message), HD_OK);
    HD_RIG_EXPECT(rig, "filling", message, hd_drive_fill(drive, message), HD_OK);
    HD_RIG_EXPECT(rig, "poisoning", message, hd_lent_fill(drive->device, end, 0xFF, sizeof last),
                  HD_OK);
    HD_RIG_EXPECT(rig, "writing", message,
                  transport_leases_finish_slowly(drive, message, end, last), HD_OK);
    HD_RIG_EXPECT(rig, "post_send", message, hd_drive_post(drive, message), HD_OK);
}

/* Reads the last word first, as soon as the message is readable. */
static void transport_leases_receive_at_once(struct hd_rig *rig, struct hd_message message)
{
    const struct hd_drive *drive = hd_rig_drive(rig);
    const unsigned long long sequence = message.sequence;
    uint64_t wanted = 0;
    uint64_t last = 0;
    const unsigned char *end = transport_leases_last_word(rig, message, &wanted);

    HD_RIG_EXPECT(rig, "post_recv", message, rig->ops->post_recv(rig->transport, &message), HD_OK);
    atomic_store(&rig->shared->words[WORD_POSTED_COUNT + message.channel], message.sequence + 1);
    HD_RIG_EXPECT(rig, "wait", message, hd_drive_wait(drive, message), HD_OK);
    HD_RIG_EXPECT(rig, "reading", message, hd_lent_copy_now(drive->device, &last, end, sizeof last),
                  HD_OK);
    HD_RIG_HOLD(rig, last == wanted,
                "message %llu is readable, but its last word is %016llx, not %016llx", sequence,
                (unsigned long long)last, (unsigned long long)wanted);
    HD_RIG_HOLD(rig, hd_drive_is_whole(drive, message),
                "message %llu is readable, but is not whole", sequence);
    HD_RIG_EXPECT(rig, "release", message, hd_drive_release(drive, message), HD_OK);
}

static void transport_leases_check_last_words(struct hd_rig *rig)
{
    const uint64_t counts[] = {LARGE_COUNT, HUGE_COUNT};

    for (uint32_t channel = 0; channel < rig->job->channel_count; channel++) {
        for (uint64_t sequence = 0; sequence < counts[channel]; sequence++) {
            const struct hd_message message = {.sequence = sequence, .channel = channel};
            if (rig->rank == 0) {
                transport_leases_send_slowly(rig, message);
            } else {
                transport_leases_receive_at_once(rig, message);
            }
            if (hd_conform_is_decided(rig->check)) {
                return;
            }
        }
    }
}

/* The copy of a huge message takes longer than the first test for it. */
void hd_conform_transport_visible(struct hd_conform_case *check)
{
    const struct hd_channel channels[] = {{0, HD_FORWARD, 0, 1, 2, 1, LARGE_BYTES},
                                          {1, HD_FORWARD, 0, 1, 1, 1, HUGE_BYTES}};

    hd_rig_run(check, &(struct hd_rig_job){.rank_count = 2,
                                           .channel_count = 2,
                                           .channels = channels,
                                           .body = transport_leases_check_last_words});
    hd_conform_remark(check, "%d messages of %d bytes and %d of %d, with poisoned slots",
                      LARGE_COUNT, LARGE_BYTES, HUGE_COUNT, HUGE_BYTES);
}

/* --- leases -------------------------------------------------------------------------------- */

/* When all receive slots are leased, the source sends until reserve returns HD_BUSY.  In place that
   must be at once; otherwise messages may wait in send slots and in buffers of the transport. */
static void transport_leases_send_until_busy(struct hd_rig *rig)
{
    const struct hd_channel *channel = rig->list[0];
    const bool in_place = (rig->drive.capabilities & HD_TRANSPORT_IN_PLACE) != 0;
    const uint64_t most = channel->depth + (in_place ? 1 : channel->send_depth + SPARE_COUNT);
    struct hd_message message = {.sequence = channel->depth};
    hd_status status = HD_OK;

    for (; message.sequence < most; message.sequence++) {
        status = rig->ops->reserve(rig->transport, &message);
        /* A slot is busy until its send has ended. */
        for (uint32_t look = 0; status == HD_BUSY && look < LOOKS; look++) {
            if (rig->ops->progress != NULL) {
                rig->ops->progress(rig->transport);
            }
            status = rig->ops->reserve(rig->transport, &message);
        }
        if (status != HD_OK) {
            break;
        }
        HD_RIG_EXPECT(rig, "filling", message, hd_drive_fill(hd_rig_drive(rig), message), HD_OK);
        HD_RIG_EXPECT(rig, "post_send", message, hd_drive_post(hd_rig_drive(rig), message), HD_OK);
    }
    HD_RIG_HOLD(rig, status == HD_BUSY || (status == HD_OK && !in_place),
                "reserve of message %llu returns %s while %u receive slots are leased",
                (unsigned long long)message.sequence - (status == HD_OK), hd_status_name(status),
                channel->depth);
    atomic_store(&rig->shared->words[WORD_SENT_COUNT], message.sequence);
}

/* The leased slots of the target have not changed. */
static void transport_leases_check_leases(struct hd_rig *rig, uint64_t first, uint64_t end)
{
    for (uint64_t sequence = first; sequence < end; sequence++) {
        const struct hd_message message = {.sequence = sequence};
        HD_RIG_HOLD(rig, hd_drive_is_whole(hd_rig_drive(rig), message),
                    "the slot of message %llu was written while it was leased",
                    (unsigned long long)sequence);
    }
}

/* The target leases all slots, and one more for each that it releases. */
static void transport_leases_release_all(struct hd_rig *rig, uint64_t end)
{
    const struct hd_drive *drive = hd_rig_drive(rig);
    const uint64_t depth = rig->list[0]->depth;

    for (uint64_t sequence = 0; sequence < end; sequence++) {
        const struct hd_message message = {.sequence = sequence};
        const struct hd_message next = {.sequence = sequence + depth};
        HD_RIG_EXPECT(rig, "release", message, hd_drive_release(drive, message), HD_OK);
        if (next.sequence < end) {
            HD_RIG_EXPECT(rig, "receiving", next, hd_drive_receive(drive, next), HD_OK);
        }
        transport_leases_check_leases(rig, sequence + 1,
                                      next.sequence < end ? next.sequence + 1 : end);
        if (hd_conform_is_decided(rig->check)) {
            return;
        }
    }
}

static void transport_leases_hold_leases(struct hd_rig *rig)
{
    const struct hd_drive *drive = hd_rig_drive(rig);
    const uint64_t depth = rig->list[0]->depth;

    for (uint64_t sequence = 0; sequence < depth; sequence++) {
        const struct hd_message message = {.sequence = sequence};
        HD_RIG_EXPECT(rig, rig->rank == 0 ? "sending" : "receiving", message,
                      rig->rank == 0 ? hd_drive_send(drive, message)
                                     : hd_drive_receive(drive, message),
                      HD_OK);
    }
    HD_RIG_MEET(rig);
    if (rig->rank == 0) {
        transport_leases_send_until_busy(rig);
    }
    HD_RIG_HOLD(rig, hd_conform_is_decided(rig->check) || hd_rig_fence(rig) == HD_OK,
                "a rank does not reach the fence");
    const uint64_t sent_count = atomic_load(&rig->shared->words[WORD_SENT_COUNT]);
    if (rig->rank == 1) {
        transport_leases_check_leases(rig, 0, depth);
        transport_leases_release_all(rig, sent_count + 1);
        return;
    }
    /* The busy reserve had no effect: the message is sent when its slot is free. */
    const struct hd_message message = {.sequence = sent_count};
    HD_RIG_EXPECT(rig, "sending", message, hd_drive_send(drive, message), HD_OK);
}

static void transport_leases_judge_leases(struct hd_conform_case *check, uint32_t depth,
                                          uint32_t send_depth)
{
    const struct hd_channel channel = {0, HD_FORWARD, 0, 1, depth, send_depth, 3000};

    hd_rig_run(check, &(struct hd_rig_job){.rank_count = 2,
                                           .channel_count = 1,
                                           .channels = &channel,
                                           .body = transport_leases_hold_leases,
                                           .needs_peer = true});
}

void hd_conform_transport_lease(struct hd_conform_case *check)
{
    for (uint32_t depth = 2; depth <= 4 && !hd_conform_is_decided(check); depth++) {
        transport_leases_judge_leases(check, depth, depth - 1);
    }
    hd_conform_remark(check, "depth 2 to 4");
}

void hd_conform_transport_busy(struct hd_conform_case *check)
{
    transport_leases_judge_leases(check, 1, 1);
}

/* --- posts without a credit ---------------------------------------------------------------- */

/* While the only receive slot is leased, a post returns and its stream continues. */
static void transport_leases_post_without_credit(struct hd_rig *rig)
{
    const struct hd_drive *drive = hd_rig_drive(rig);
    const struct hd_message first = {.sequence = 0}, second = {.sequence = 1};

    HD_RIG_EXPECT(rig, rig->rank == 0 ? "sending" : "receiving", first,
                  rig->rank == 0 ? hd_drive_send(drive, first) : hd_drive_receive(drive, first),
                  HD_OK);
    HD_RIG_MEET(rig);
    if (rig->rank == 0) {
        HD_RIG_EXPECT(rig, "sending", second, hd_drive_send(drive, second), HD_OK);
        const hd_status status = hd_lent_rest(drive->device);
        HD_RIG_HOLD(rig, status == HD_OK,
                    "message 1 is posted, and its stream waits until message 0 is released: %s",
                    hd_status_name(status));
    }
    HD_RIG_MEET(rig);
    if (rig->rank == 1) {
        HD_RIG_EXPECT(rig, "release", first, hd_drive_release(drive, first), HD_OK);
        HD_RIG_EXPECT(rig, "receiving", second, hd_drive_receive(drive, second), HD_OK);
    }
}

void hd_conform_transport_prompt(struct hd_conform_case *check)
{
    const struct hd_channel channel = {0, HD_FORWARD, 0, 1, 1, 1, 3000};

    if ((hd_rig_capabilities(check) & (HD_TRANSPORT_IN_PLACE | HD_TRANSPORT_HOOK)) != 0) {
        hd_conform_skip(check, "in place (as a hook may be), reserve waits for the credit");
        return;
    }
    hd_rig_run(check, &(struct hd_rig_job){.rank_count = 2,
                                           .channel_count = 1,
                                           .channels = &channel,
                                           .body = transport_leases_post_without_credit,
                                           .needs_peer = true});
}

/* --- the seal ------------------------------------------------------------------------------ */

/* The damage to each message, which the core must detect. */
enum harm { HARM_NONE, HARM_MICROBATCH, HARM_STEP, HARM_STALE, HARM_SEAL, HARM_CONTENT };

static const struct {
    const char *name;
    enum harm harm;
} transport_leases_harms[] = {
    {"an intact message", HARM_NONE},
    {"another microbatch", HARM_MICROBATCH},
    {"the step before", HARM_STEP},
    {"the seal of the message before", HARM_STALE},
    {"a seal with one bit flipped", HARM_SEAL},
    {"a payload with one bit flipped", HARM_CONTENT},
    {"an intact message after all these", HARM_NONE},
};

enum {
    HARM_COUNT = sizeof transport_leases_harms / sizeof transport_leases_harms[0],
    STEP = 3,
    MICROBATCH = 5
};

/* The source writes the seal of the core, damages it, and sends the message. */
static void transport_leases_send_harmed(struct hd_rig *rig, struct hd_lane *lane,
                                         uint64_t sequence)
{
    const struct hd_message message = {.sequence = sequence};
    const enum harm harm = transport_leases_harms[sequence].harm;
    unsigned char *slot = rig->ops->slot(rig->transport, &message);

    HD_RIG_EXPECT(rig, "reserve", message, hd_drive_reserve(hd_rig_drive(rig), message), HD_OK);
    hd_drive_fill(hd_rig_drive(rig), message);
    hd_lane_seal(lane, sequence, STEP, MICROBATCH);
    struct hd_seal seal;
    memcpy(&seal, slot - sizeof seal, sizeof seal);
    seal.microbatch += harm == HARM_MICROBATCH;
    seal.step -= harm == HARM_STEP;
    seal.sequence -= harm == HARM_STALE;
    seal.magic ^= harm == HARM_SEAL;
    memcpy(slot - sizeof seal, &seal, sizeof seal);
    slot[lane->channel->bytes / 2] ^= harm == HARM_CONTENT;
    HD_RIG_EXPECT(rig, "post_send", message, rig->ops->post_send(rig->transport, &message, NULL),
                  HD_OK);
}

static void transport_leases_exchange_seals(struct hd_rig *rig)
{
    struct hd_lane lane = hd_lane_of(rig->list[0], 0, rig->rank);

    lane.is_sealed = true;
    lane.has_checksum = true;
    lane.transport = rig->transport;
    lane.ops = rig->ops;

    for (uint64_t sequence = 0; sequence < HARM_COUNT; sequence++) {
        const struct hd_message message = {.sequence = sequence};
        struct hd_problem problem = {0};
        if (rig->rank == 0) {
            transport_leases_send_harmed(rig, &lane, sequence);
            continue;
        }
        HD_RIG_EXPECT(rig, "post_recv", message, rig->ops->post_recv(rig->transport, &message),
                      HD_OK);
        HD_RIG_EXPECT(rig, "wait", message, hd_drive_wait(hd_rig_drive(rig), message), HD_OK);
        const hd_status status = hd_lane_check(&lane, sequence, STEP, MICROBATCH, &problem);
        const hd_status wanted =
            transport_leases_harms[sequence].harm == HARM_NONE ? HD_OK : HD_PROTOCOL;
        HD_RIG_HOLD(rig, status == wanted, "%s: the check of the core returns %s",
                    transport_leases_harms[sequence].name, hd_status_name(status));
        HD_RIG_EXPECT(rig, "release", message, rig->ops->release(rig->transport, &message, NULL),
                      HD_OK);
    }
}

void hd_conform_transport_seal(struct hd_conform_case *check)
{
    const struct hd_channel channel = {0, HD_FORWARD, 0, 1, 2, 1, 1000};

    if ((hd_rig_capabilities(check) & HD_TRANSPORT_SEALED) == 0) {
        hd_conform_skip(check, "has no seals");
        return;
    }
    hd_rig_run(check, &(struct hd_rig_job){.rank_count = 2,
                                           .channel_count = 1,
                                           .channels = &channel,
                                           .body = transport_leases_exchange_seals});
    hd_conform_remark(check, "%d kinds of damage detected", HARM_COUNT - 2);
}
