/* drive/device.c - a lent device, and copies within it. */
#include "drive/device.h"
#include "base/clock.h"
#include "base/number.h"
#include "base/try.h"

#include <assert.h>

/* Marks under way at once. */
enum { BATCH_COUNT = 256 };

static void device_on_fail(void *context, const struct hd_plugin *plugin,
                           const struct hd_error *error)
{
    struct hd_drive_device *device = context;
    hd_plugin_host_note(&device->failure, plugin, error);
}

hd_status hd_drive_device_blame(const struct hd_drive_device *device, hd_status status,
                                struct hd_problem *problem)
{
    assert(status < 0);
    if (device->failure.exit_code != 0 && problem->exit_code == 0) {
        *problem = device->failure;
    }
    return hd_problem_set(problem, status, hd_exit_of(status), "kernel %s returned %s",
                          device->kernel->name, hd_status_name(status));
}

static hd_status device_take_places(struct hd_drive_device *device, uint64_t bytes)
{
    const struct hd_lent *lent = &device->lent;

    device->place_bytes = bytes;
    for (uint32_t i = 0; i < 2; i++) {
        HD_TRY(lent->ops->allocate(lent->kernel, bytes, "bench", &device->places[i]));
        HD_TRY(hd_lent_fill(lent, device->places[i], 0, bytes));
    }
    return hd_lent_rest(lent);
}

hd_status hd_drive_device_open(struct hd_drive_device *device, const struct hd_drive_rank *rank,
                               const struct hd_drive_lender *lender, uint64_t slot_bytes,
                               struct hd_problem *problem)
{
    const struct hd_lent_request request = {.kernel = lender->kernel,
                                            .options = lender->options,
                                            .host = &device->host.host,
                                            .ordinal = rank->ordinal,
                                            .staging_bytes = slot_bytes,
                                            .limit_ms = rank->timeout_ns / HD_MS_NS};
    const char *reason;

    *device = (struct hd_drive_device){.kernel = lender->kernel,
                                       .host = {.plugin = lender->kernel,
                                                .rank_count = HD_DRIVE_RANK_COUNT,
                                                .context = device,
                                                .on_fail = device_on_fail}};
    hd_plugin_host_init(&device->host);
    hd_status status = hd_lent_open(&device->lent, &request, &reason);
    if (status == HD_OK) {
        status = device_take_places(device, slot_bytes);
    } else if (reason != NULL) {
        return hd_problem_set(problem, status, hd_exit_of(status), "%s: %s", lender->kernel->name,
                              reason);
    }
    return status == HD_OK ? HD_OK : hd_drive_device_blame(device, status, problem);
}

void hd_drive_device_close(struct hd_drive_device *device)
{
    if (device->kernel != NULL) {
        hd_lent_close(&device->lent);
        device->kernel = NULL;
    }
}

/* --- copies ---------------------------------------------------------------------------------- */

static hd_status device_copy_once(const struct hd_drive_device *device, uint64_t bytes,
                                  uint32_t index)
{
    const struct hd_lent *lent = &device->lent;
    return lent->ops->copy(lent->kernel, device->places[(index + 1) % 2], device->places[index % 2],
                           bytes, 0);
}

/* `count` copies, `each` of them between two marks; fills the times of all marks. */
static hd_status device_run_batch(const struct hd_drive_device *device, uint64_t bytes,
                                  uint32_t count, uint32_t each, uint64_t times_ns[BATCH_COUNT + 1])
{
    const struct hd_lent *lent = &device->lent;
    uint64_t marks[BATCH_COUNT + 1];
    uint32_t mark_count = 0;

    HD_TRY(lent->ops->mark(lent->kernel, &marks[mark_count++]));
    for (uint32_t i = 0; i < count; i++) {
        HD_TRY(device_copy_once(device, bytes, i));
        if ((i + 1) % each == 0) {
            assert(mark_count <= BATCH_COUNT);
            HD_TRY(lent->ops->mark(lent->kernel, &marks[mark_count++]));
        }
    }
    HD_TRY(hd_lent_reach(lent, marks[mark_count - 1], &times_ns[mark_count - 1]));
    for (uint32_t i = 0; i + 1 < mark_count; i++) {
        HD_TRY(hd_lent_reach(lent, marks[i], &times_ns[i]));
    }
    return HD_OK;
}

hd_status hd_drive_device_copy(struct hd_drive_device *device, const struct hd_drive_copies *copies,
                               double *gbytes)
{
    uint64_t times_ns[BATCH_COUNT + 1] = {0};
    const double bytes = (double)copies->bytes * copies->count;

    assert(copies->bytes <= device->place_bytes && copies->count > 0);
    for (uint32_t done = 0; done < copies->each_count;) {
        const uint32_t count = hd_min_u32(copies->each_count - done, BATCH_COUNT);
        HD_TRY(device_run_batch(device, copies->bytes, count, 1, times_ns));
        for (uint32_t i = 0; i < count; i++) {
            copies->each_us[done + i] = hd_drive_between_us(times_ns[i], times_ns[i + 1]);
        }
        done += count;
    }
    HD_TRY(device_run_batch(device, copies->bytes, copies->count, copies->count, times_ns));
    *gbytes = times_ns[1] > times_ns[0] ? bytes / (double)(times_ns[1] - times_ns[0]) : 0;
    return HD_OK;
}
