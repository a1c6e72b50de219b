#include "conform/rig.h"
#include "conform/transport_checks.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    GROUP_COUNT = 200,
    ORDER_COUNT = 3000,
    LATENCY_COUNT = 2000,
    BANDWIDTH_COUNT = 200,
    MIB = 1 << 20
};

/* --- in order ------------------------------------------------------------------------------ */

/* Rank 0 sends and rank 1 answers, on channels 0 and 1. */
static void transport_messages_ping_pong(struct hd_rig *rig, uint64_t count)
{
    const struct hd_drive *drive = hd_rig_drive(rig);

    for (uint64_t sequence = 0; sequence < count; sequence++) {
        const struct hd_message out = {.sequence = sequence, .channel = rig->rank};
        const struct hd_message in = {.sequence = sequence, .channel = 1 - rig->rank};
        if (rig->rank == 0) {
            HD_RIG_EXPECT(rig, "sending", out, hd_drive_send(drive, out), HD_OK);
        }
        HD_RIG_EXPECT(rig, "receiving", in, hd_drive_receive(drive, in), HD_OK);
        HD_RIG_EXPECT(rig, "release", in, hd_drive_release(drive, in), HD_OK);
        if (rig->rank == 1) {
            HD_RIG_EXPECT(rig, "sending", out, hd_drive_send(drive, out), HD_OK);
        }
    }
}

static void transport_messages_order(struct hd_rig *rig)
{
    transport_messages_ping_pong(rig, ORDER_COUNT);
}

static const struct hd_channel transport_messages_both_ways[] = {{0, HD_FORWARD, 0, 1, 3, 1, 40},
                                                                 {0, HD_BACKWARD, 1, 0, 3, 1, 40}};

static struct hd_rig_job transport_messages_job_of_two(void (*body)(struct hd_rig *rig))
{
    return (struct hd_rig_job){.rank_count = 2,
                               .channel_count = 2,
                               .channels = transport_messages_both_ways,
                               .body = body};
}

void hd_conform_transport_order(struct hd_conform_case *check)
{
    const struct hd_rig_job job = transport_messages_job_of_two(transport_messages_order);
    hd_rig_run(check, &job);
    hd_conform_remark(check, "%d messages each way", ORDER_COUNT);
}

/* --- all at once --------------------------------------------------------------------------- */

/* steps[0] steps of steps[1] messages on each channel. */
static void transport_messages_mix(struct hd_rig *rig)
{
    const uint64_t *steps = rig->job->argument;

    for (uint64_t step = 0; step < steps[0]; step++) {
        struct hd_drive_mix some = {
            .first = step * steps[1], .count = steps[1], .seed = rig->check->subject->seed + step};
        const hd_status status = hd_drive_mix(hd_rig_drive(rig), &some);
        HD_RIG_HOLD(rig, status == HD_OK, "message %llu of channel %u, %llu bytes: %s",
                    (unsigned long long)some.wrong_sequence, some.wrong_channel,
                    (unsigned long long)rig->list[some.wrong_channel]->bytes,
                    status == HD_PROTOCOL ? "another message arrived, or a part of it"
                                          : hd_status_name(status));
    }
}

static void transport_messages_run_mix(struct hd_conform_case *check, struct hd_rig_job job,
                                       const uint64_t *steps)
{
    job.body = transport_messages_mix;
    job.argument = steps;
    hd_rig_run(check, &job);
}

void hd_conform_transport_once(struct hd_conform_case *check)
{
    static const struct hd_channel channels[] = {{0, HD_FORWARD, 0, 1, 4, 2, 264},
                                                 {1, HD_FORWARD, 1, 0, 1, 1, 12000},
                                                 {0, HD_BACKWARD, 1, 0, 3, 1, 24},
                                                 {1, HD_BACKWARD, 0, 1, 2, 2, 4104}};
    static const uint64_t steps[] = {3, 200};

    transport_messages_run_mix(
        check, (struct hd_rig_job){.rank_count = 2, .channel_count = 4, .channels = channels},
        steps);
    hd_conform_remark(check, "4 channels, 600 messages each");
}

void hd_conform_transport_pair(struct hd_conform_case *check)
{
    static const struct hd_channel channels[] = {
        {0, HD_FORWARD, 0, 1, 3, 1, 520},  {1, HD_FORWARD, 1, 0, 2, 1, 520},
        {2, HD_FORWARD, 0, 1, 1, 1, 520},  {0, HD_BACKWARD, 1, 0, 1, 1, 520},
        {1, HD_BACKWARD, 0, 1, 2, 1, 520}, {2, HD_BACKWARD, 1, 0, 1, 1, 520}};
    static const uint64_t steps[] = {2, 100};

    transport_messages_run_mix(
        check, (struct hd_rig_job){.rank_count = 2, .channel_count = 6, .channels = channels},
        steps);
}

void hd_conform_transport_ring(struct hd_conform_case *check)
{
    static const uint64_t steps[] = {2, 30};
    struct hd_channel channels[8];

    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t from = i % 4, to = (i + 1) % 4;
        channels[i] = (struct hd_channel){.boundary = from,
                                          .direction = i < 4 ? HD_FORWARD : HD_BACKWARD,
                                          .source = i < 4 ? from : to,
                                          .target = i < 4 ? to : from,
                                          .depth = i % 3 + 1,
                                          .send_depth = 1,
                                          .bytes = 10000};
    }
    transport_messages_run_mix(
        check, (struct hd_rig_job){.rank_count = 4, .channel_count = 8, .channels = channels},
        steps);
}

/* --- sizes --------------------------------------------------------------------------------- */

/* At most half of the free memory is used. */
static uint64_t transport_messages_affordable_bytes(void)
{
    const long pages = sysconf(_SC_AVPHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes / 2 : 0;
}

/* A few channels at a time, because each may need its own hardware queue of a device. */
void hd_conform_transport_sizes(struct hd_conform_case *check)
{
    static const uint64_t sizes[] = {1,   2,   3,    7,    8,    9,    63,    64,     65,
                                     127, 129, 1000, 4095, 4096, 4097, 65537, 131072, 262145};
    enum { SIZE_COUNT = sizeof sizes / sizeof sizes[0], DEPTHS = 2, AT_A_TIME = 6 };
    static const uint64_t steps[] = {2, 4};
    struct hd_channel channels[AT_A_TIME];
    uint32_t count = 0, size_count = 0;

    for (uint32_t i = 0; i < SIZE_COUNT * DEPTHS; i++) {
        if (sizes[i % SIZE_COUNT] <= check->subject->bytes_max) {
            channels[count++] = (struct hd_channel){.boundary = i,
                                                    .source = i % 2,
                                                    .target = 1 - i % 2,
                                                    .depth = i / SIZE_COUNT + 1,
                                                    .send_depth = 1,
                                                    .bytes = sizes[i % SIZE_COUNT]};
            size_count++;
        }
        if (count == AT_A_TIME || (count > 0 && i + 1 == SIZE_COUNT * DEPTHS)) {
            transport_messages_run_mix(
                check,
                (struct hd_rig_job){.rank_count = 2, .channel_count = count, .channels = channels},
                steps);
            count = 0;
        }
    }
    hd_conform_remark(check, "%u sizes, depth 1 and 2", size_count / DEPTHS);
}

void hd_conform_transport_large(struct hd_conform_case *check)
{
    static const uint64_t steps[] = {1, 3};
    const uint64_t affordable = transport_messages_affordable_bytes() / 4;
    uint64_t largest = 0;

    for (uint64_t bytes = MIB - 3; bytes <= check->subject->bytes_max && bytes <= affordable;
         bytes = bytes > 16 * MIB && bytes < 64 * MIB ? 64 * MIB : bytes * 4) {
        const struct hd_channel channel = {
            .target = 1, .depth = 1, .send_depth = 1, .bytes = bytes};
        transport_messages_run_mix(
            check, (struct hd_rig_job){.rank_count = 2, .channel_count = 1, .channels = &channel},
            steps);
        largest = bytes;
    }
    if (largest == 0) {
        hd_conform_skip(check, "messages of %llu bytes are allowed, and there is memory for %llu",
                        (unsigned long long)check->subject->bytes_max,
                        (unsigned long long)affordable);
    }
    hd_conform_remark(check, "up to %llu bytes", (unsigned long long)largest);
}

/* --- groups -------------------------------------------------------------------------------- */

/* Without groups both ranks would block, because the send of each is before its receive. */
static void transport_messages_send_both_first(struct hd_rig *rig)
{
    const struct hd_drive *drive = hd_rig_drive(rig);

    for (uint64_t sequence = 0; sequence < GROUP_COUNT; sequence++) {
        const struct hd_message out = {.sequence = sequence, .channel = rig->rank, .group_left = 1};
        const struct hd_message in = {.sequence = sequence, .channel = 1 - rig->rank};
        HD_RIG_EXPECT(rig, "sending", out, hd_drive_send(drive, out), HD_OK);
        HD_RIG_EXPECT(rig, "receiving", in, hd_drive_receive(drive, in), HD_OK);
        HD_RIG_EXPECT(rig, "release", in, hd_drive_release(drive, in), HD_OK);
        /* This wait is for the end of the send. */
        HD_RIG_EXPECT(rig, "wait", out, hd_drive_wait(drive, out), HD_OK);
    }
}

void hd_conform_transport_group(struct hd_conform_case *check)
{
    const struct hd_rig_job job = transport_messages_job_of_two(transport_messages_send_both_first);

    if ((hd_rig_capabilities(check) & HD_TRANSPORT_SERIAL) == 0) {
        hd_conform_skip(check, "is not serial");
        return;
    }
    hd_rig_run(check, &job);
    hd_conform_remark(check, "%d groups of a send and a receive", GROUP_COUNT);
}

/* --- instances ----------------------------------------------------------------------------- */

static hd_status transport_messages_mix_some(struct hd_rig *rig, struct hd_transport *transport,
                                             uint64_t first)
{
    struct hd_drive_mix some = {.first = first, .count = 20, .seed = rig->check->subject->seed};

    rig->transport = transport;
    return hd_drive_mix(hd_rig_drive(rig), &some);
}

static void transport_messages_two_instances(struct hd_rig *rig)
{
    struct hd_transport *first = rig->transport;

    hd_status status = hd_rig_open(rig, hd_rig_limit_ms(rig));
    struct hd_transport *second = rig->transport;
    HD_RIG_HOLD(rig, status == HD_OK && second != first, "the second open returns %s",
                hd_status_name(status));
    for (uint64_t step = 0; step < 3; step++) {
        status = transport_messages_mix_some(rig, first, step * 20);
        HD_RIG_HOLD(rig, status == HD_OK && hd_rig_fence(rig) == HD_OK,
                    "the first instance, while the second is open, returns %s",
                    hd_status_name(status));
        status = transport_messages_mix_some(rig, second, step * 20);
        HD_RIG_HOLD(rig, status == HD_OK && hd_rig_fence(rig) == HD_OK,
                    "the second instance returns %s", hd_status_name(status));
    }
    status = hd_rig_close(rig);
    HD_RIG_HOLD(rig, status == HD_OK, "closing the second instance returns %s",
                hd_status_name(status));
    status = transport_messages_mix_some(rig, first, 60);
    HD_RIG_HOLD(rig, status == HD_OK, "the first instance, after the second is closed, returns %s",
                hd_status_name(status));
}

void hd_conform_transport_two(struct hd_conform_case *check)
{
    const struct hd_rig_job job = transport_messages_job_of_two(transport_messages_two_instances);
    hd_rig_run(check, &job);
}

/* --- speed --------------------------------------------------------------------------------- */

static void transport_messages_measure_latency(struct hd_rig *rig)
{
    const uint64_t begin_ns = hd_now_ns();

    transport_messages_ping_pong(rig, LATENCY_COUNT);
    if (rig->rank == 0) {
        hd_conform_remark(rig->check,
                          "%.2f us, mean of %d round trips, including pattern and check",
                          (double)(hd_now_ns() - begin_ns) / (2e3 * LATENCY_COUNT), LATENCY_COUNT);
    }
}

void hd_conform_transport_latency(struct hd_conform_case *check)
{
    const struct hd_channel channels[] = {{0, HD_FORWARD, 0, 1, 1, 1, 8},
                                          {0, HD_BACKWARD, 1, 0, 1, 1, 8}};
    hd_rig_run(check, &(struct hd_rig_job){.rank_count = 2,
                                           .channel_count = 2,
                                           .channels = channels,
                                           .body = transport_messages_measure_latency,
                                           .needs_peer = true});
}

/* No bytes are written or read, so this is the time of the transport itself. */
static void transport_messages_measure_bandwidth(struct hd_rig *rig)
{
    const struct hd_drive *drive = hd_rig_drive(rig);
    const uint64_t begin_ns = hd_now_ns();

    for (uint64_t sequence = 0; sequence < BANDWIDTH_COUNT; sequence++) {
        const struct hd_message message = {.sequence = sequence};
        hd_status status = HD_OK;
        if (rig->rank == 0) {
            HD_RIG_EXPECT(rig, "reserve", message, hd_drive_reserve(drive, message), HD_OK);
            status = hd_drive_post(drive, message);
        } else {
            HD_RIG_EXPECT(rig, "post_recv", message, rig->ops->post_recv(rig->transport, &message),
                          HD_OK);
            HD_RIG_EXPECT(rig, "wait", message, hd_drive_wait(drive, message), HD_OK);
            status = hd_drive_give(drive, message);
        }
        HD_RIG_EXPECT(rig, "moving", message, status, HD_OK);
    }
    if (rig->rank == 1) {
        const double seconds = (double)(hd_now_ns() - begin_ns) / 1e9;
        hd_conform_remark(rig->check, "%.2f GB/s (1e9)",
                          (double)BANDWIDTH_COUNT * MIB / seconds / 1e9);
    }
}

void hd_conform_transport_bandwidth(struct hd_conform_case *check)
{
    const struct hd_channel channel = {0, HD_FORWARD, 0, 1, 4, 2, MIB};

    if ((hd_rig_capabilities(check) & HD_TRANSPORT_IN_PLACE) != 0) {
        hd_conform_skip(check, "in place: nothing is copied");
        return;
    }
    hd_rig_run(check, &(struct hd_rig_job){.rank_count = 2,
                                           .channel_count = 1,
                                           .channels = &channel,
                                           .body = transport_messages_measure_bandwidth,
                                           .needs_peer = true});
}
