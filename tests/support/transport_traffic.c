#include "support/transport_traffic.h"

#include "drive/drive.h"

enum { LIMIT_MS = 20000 };

static struct hd_drive drive_of(const struct hd_testbed_rank *rank)
{
    return (struct hd_drive){.ops = rank->ops,
                             .transport = rank->transport,
                             .capabilities = rank->capabilities,
                             .channels = rank->channel_list,
                             .channel_count = rank->job->channel_count,
                             .rank = rank->rank,
                             .limit_ms = LIMIT_MS};
}

hd_status hd_traffic_send(struct hd_testbed_rank *rank, struct hd_message message)
{
    const struct hd_drive drive = drive_of(rank);
    return hd_drive_send(&drive, message);
}

hd_status hd_traffic_receive(struct hd_testbed_rank *rank, struct hd_message message)
{
    const struct hd_drive drive = drive_of(rank);
    return hd_drive_receive(&drive, message);
}

hd_status hd_traffic_release(struct hd_testbed_rank *rank, struct hd_message message)
{
    const struct hd_drive drive = drive_of(rank);
    return hd_drive_release(&drive, message);
}

hd_status hd_traffic_wait(struct hd_testbed_rank *rank, struct hd_message message,
                          uint64_t deadline_ns)
{
    const struct hd_drive drive = drive_of(rank);
    return hd_drive_wait_by(&drive, message, deadline_ns);
}

void hd_traffic_fill(struct hd_testbed_rank *rank, struct hd_message message)
{
    const struct hd_drive drive = drive_of(rank);
    hd_drive_fill(&drive, message);
}

int hd_traffic_is_whole(struct hd_testbed_rank *rank, struct hd_message message)
{
    const struct hd_drive drive = drive_of(rank);
    return hd_drive_is_whole(&drive, message);
}

/* What moves only by progress may still be queued here, and the caller may turn to other things. */
static int let_go(struct hd_testbed_rank *rank, uint64_t end)
{
    for (uint32_t i = 0; i < rank->job->channel_count; i++) {
        if (rank->job->channels[i].source == rank->rank) {
            const struct hd_message last = {.sequence = end - 1, .channel = i};
            HD_REQUIRE(rank,
                       hd_traffic_wait(rank, last, hd_testbed_deadline_ns(LIMIT_MS)) == HD_OK);
        }
    }
    return 0;
}

int hd_traffic_mix(struct hd_testbed_rank *rank, uint64_t first, uint64_t count)
{
    const struct hd_drive drive = drive_of(rank);
    struct hd_drive_mix mix = {.first = first, .count = count};
    HD_REQUIRE(rank, hd_drive_mix(&drive, &mix) == HD_OK);
    return let_go(rank, first + count);
}
