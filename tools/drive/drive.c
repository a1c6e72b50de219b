#include "drive/drive.h"
#include "base/clock.h"
#include "base/try.h"
#include "launch/launch.h"

/* A transport is moved at least this often while the host waits for a stream or for the ranks. */
#define SLICE_NS 50000u

enum { MOVE_COUNT = 64 };

struct hd_lane hd_drive_lane(const struct hd_drive *drive, struct hd_message next)
{
    struct hd_lane lane = hd_lane_of(drive->channels[next.channel], next.channel, drive->rank);

    lane.ops = drive->ops;
    lane.transport = drive->transport;
    lane.stream = hd_lent_stream(drive->device);
    lane.written_count = next.sequence;
    lane.sent_count = next.sequence;
    lane.posted_count = next.sequence;
    lane.released_count = next.sequence;
    return lane;
}

uint64_t hd_drive_deadline(const struct hd_drive *drive)
{
    return hd_now_ns() + drive->limit_ms * HD_MS_NS;
}

hd_status hd_drive_wait_by(const struct hd_drive *drive, struct hd_message message,
                           uint64_t deadline_ns)
{
    struct hd_lane lane = hd_drive_lane(drive, message);
    return hd_lane_wait(&lane, message.sequence, deadline_ns);
}

hd_status hd_drive_wait(const struct hd_drive *drive, struct hd_message message)
{
    return hd_drive_wait_by(drive, message, hd_drive_deadline(drive));
}

hd_status hd_drive_reserve(const struct hd_drive *drive, struct hd_message message)
{
    struct hd_lane lane = hd_drive_lane(drive, message);
    return hd_lane_reserve_by(&lane, message.sequence, hd_drive_deadline(drive));
}

hd_status hd_drive_post(const struct hd_drive *drive, struct hd_message message)
{
    struct hd_lane lane = hd_drive_lane(drive, message);

    lane.written_count++;
    return hd_lane_send_next(&lane, message.group_left);
}

hd_status hd_drive_give(const struct hd_drive *drive, struct hd_message message)
{
    struct hd_lane lane = hd_drive_lane(drive, message);
    return hd_lane_release_next(&lane);
}

hd_status hd_drive_reach(const struct hd_drive *drive, uint64_t mark, uint64_t deadline_ns,
                         uint64_t *passed_ns)
{
    const struct hd_lent *lent = drive->device;
    hd_status status = lent->ops->reached(lent->kernel, mark, 0, passed_ns);

    while (status == HD_IN_PROGRESS) {
        const hd_status moved =
            drive->ops->progress != NULL ? drive->ops->progress(drive->transport) : HD_OK;
        if (moved < 0) {
            return moved;
        }
        if (hd_now_ns() >= deadline_ns) {
            return HD_TIMEOUT;
        }
        status = lent->ops->reached(lent->kernel, mark, SLICE_NS, passed_ns);
    }
    return status;
}

hd_status hd_drive_settle(const struct hd_drive *drive, uint64_t deadline_ns)
{
    const struct hd_lent *lent = drive->device;
    uint64_t mark, passed_ns;

    if (lent == NULL) {
        return HD_OK;
    }
    HD_TRY(lent->ops->mark(lent->kernel, &mark));
    return hd_drive_reach(drive, mark, deadline_ns, &passed_ns);
}

/* Moves the transport for a while; false once it has failed. */
static bool drive_move(const struct hd_drive *drive)
{
    hd_status moved = HD_OK;

    for (uint32_t i = 0; moved >= 0 && i < MOVE_COUNT; i++) {
        moved = drive->ops->progress(drive->transport);
    }
    return moved >= 0;
}

hd_status hd_drive_fence(const struct hd_drive *drive, struct hd_bootstrap *bootstrap,
                         uint64_t deadline_ns)
{
    const bool moves = drive->transport != NULL && drive->ops->progress != NULL;
    hd_status status = HD_TIMEOUT;

    while (status == HD_TIMEOUT && hd_now_ns() < deadline_ns) {
        if (moves && !drive_move(drive)) {
            break;
        }
        status = hd_bootstrap_fence(bootstrap, moves ? hd_now_ns() + SLICE_NS : deadline_ns);
    }
    return status;
}
