#include "conform/device.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_BYTES = 4096 };

static hd_status say(struct hd_conform_case *check, hd_status status, const char *text)
{
    snprintf(check->report.text, sizeof check->report.text, "%s", text);
    return status;
}

hd_status hd_conform_device_open(struct hd_conform_case *check, uint32_t ordinal,
                                 uint64_t staging_bytes, struct hd_conform_device *device)
{
    const struct hd_plugin *lender = check->subject->lender;
    const uint64_t bytes = (staging_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    void *staging = NULL;

    *device = (struct hd_conform_device){.ops = lender->ops,
                                         .about = {.size = sizeof device->about},
                                         .host = check->host,
                                         .limit_ms = check->subject->limit_ms};
    device->host.rank = ordinal;
    device->host.option_count = lender->option_count;
    device->host.options = check->subject->lender_options;
    if (posix_memalign(&staging, PAGE_BYTES, bytes > 0 ? bytes : PAGE_BYTES) != 0) {
        return say(check, HD_NO_MEMORY, "no memory for a slot's image");
    }
    device->staging = staging;
    device->staging_bytes = bytes;
    hd_status status = device->ops->open(&device->host, ordinal, &device->about, &device->kernel);
    if (status == HD_OK && (device->about.stream == NULL || device->ops->copy == NULL ||
                            device->ops->mark == NULL || device->ops->reached == NULL)) {
        device->ops->close(device->kernel);
        status = say(check, HD_UNSUPPORTED, "the kernel that is to lend a device has no stream");
    }
    if (status != HD_OK) {
        free(staging);
        device->staging = NULL;
    }
    return status;
}

void hd_conform_device_close(struct hd_conform_device *device)
{
    device->ops->close(device->kernel);
    free(device->staging);
    device->staging = NULL;
}

hd_status hd_conform_device_rest(const struct hd_conform_device *device)
{
    uint64_t mark, passed_ns;

    if (device == NULL) {
        return HD_OK;
    }
    hd_status status = device->ops->mark(device->kernel, &mark);
    if (status == HD_OK) {
        status =
            device->ops->reached(device->kernel, mark, device->limit_ms * HD_MS_NS, &passed_ns);
    }
    return status == HD_IN_PROGRESS ? HD_TIMEOUT : status;
}

static hd_status copy(const struct hd_conform_device *device, void *target, const void *source,
                      uint64_t count)
{
    const hd_status status = device->ops->copy(device->kernel, target, source, count, 0);
    return status == HD_OK ? hd_conform_device_rest(device) : status;
}

hd_status hd_slot_write(const struct hd_conform_device *device, void *slot, const void *bytes,
                        uint64_t count)
{
    if (device == NULL) {
        memcpy(slot, bytes, count);
        return HD_OK;
    }
    return copy(device, slot, bytes, count);
}

hd_status hd_slot_read(const struct hd_conform_device *device, void *bytes, const void *slot,
                       uint64_t count)
{
    if (device == NULL) {
        memcpy(bytes, slot, count);
        return HD_OK;
    }
    return copy(device, bytes, slot, count);
}

hd_status hd_slot_fill(const struct hd_conform_device *device, void *slot, uint8_t value,
                       uint64_t count)
{
    if (device == NULL) {
        memset(slot, value, count);
        return HD_OK;
    }
    return device->ops->copy(device->kernel, slot, NULL, count, value);
}
