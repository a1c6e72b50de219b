/* drive/device.c - a lent device, and copies within it. */
#include "drive/device.h"
#include "base/clock.h"

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
    hd_status status = HD_OK;

    device->place_bytes = bytes;
    for (uint32_t i = 0; status == HD_OK && i < 2; i++) {
        status = lent->ops->allocate(lent->kernel, bytes, "bench", &device->places[i]);
    }
    for (uint32_t i = 0; status == HD_OK && i < 2; i++) {
        status = hd_lent_fill(lent, device->places[i], 0, bytes);
    }
    return status == HD_OK ? hd_lent_rest(lent) : status;
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

static hd_status device_reach(const struct hd_drive_device *device, uint64_t mark,
                              uint64_t *passed_ns)
{
    const struct hd_lent *lent = &device->lent;
    const hd_status status =
        lent->ops->reached(lent->kernel, mark, lent->limit_ms * HD_MS_NS, passed_ns);
    return status == HD_IN_PROGRESS ? HD_TIMEOUT : status;
}

/* `count` copies, `each` of them between two marks; the time of every mark but the first. */
static hd_status device_run_batch(const struct hd_drive_device *device, uint64_t bytes,
                                  uint32_t count, uint32_t each, uint64_t times_ns[BATCH_COUNT + 1])
{
    const struct hd_lent *lent = &device->lent;
    uint64_t marks[BATCH_COUNT + 1];
    uint32_t mark_count = 0;
    hd_status status = lent->ops->mark(lent->kernel, &marks[mark_count++]);

    for (uint32_t i = 0; status == HD_OK && i < count; i++) {
        status = device_copy_once(device, bytes, i);
        if (status == HD_OK && (i + 1) % each == 0) {
            assert(mark_count <= BATCH_COUNT);
            status = lent->ops->mark(lent->kernel, &marks[mark_count++]);
        }
    }
    if (status == HD_OK) {
        status = device_reach(device, marks[mark_count - 1], &times_ns[mark_count - 1]);
    }
    for (uint32_t i = 0; status == HD_OK && i + 1 < mark_count; i++) {
        status = device_reach(device, marks[i], &times_ns[i]);
    }
    return status;
}

hd_status hd_drive_device_copy(struct hd_drive_device *device, const struct hd_drive_copies *copies,
                               double *gbytes)
{
    uint64_t times_ns[BATCH_COUNT + 1] = {0};
    hd_status status = HD_OK;

    assert(copies->bytes <= device->place_bytes && copies->count > 0);
    for (uint32_t done = 0; status == HD_OK && done < copies->each_count;) {
        const uint32_t left = copies->each_count - done;
        const uint32_t count = left < BATCH_COUNT ? left : BATCH_COUNT;
        status = device_run_batch(device, copies->bytes, count, 1, times_ns);
        for (uint32_t i = 0; status == HD_OK && i < count; i++) {
            copies->each_us[done + i] = hd_drive_between_us(times_ns[i], times_ns[i + 1]);
        }
        done += count;
    }
    if (status == HD_OK) {
        status = device_run_batch(device, copies->bytes, copies->count, copies->count, times_ns);
    }
    const double bytes = (double)copies->bytes * copies->count;
    *gbytes = times_ns[1] > times_ns[0] ? bytes / (double)(times_ns[1] - times_ns[0]) : 0;
    return status;
}
