/*
 * conform/device.h - the device that a transport's slots lie on, lent by a kernel plugin.
 *
 * A transport between devices brings no stream, and what its slots hold no host can touch.  So a
 * kernel plugin is opened beside it, and used for no more than this: its stream orders what the
 * transport is told, its copy fills slots and brings back what arrived, its marks say when.  The
 * memory of the transport is its own.
 *
 * Where slots are the host's there is no such device: every function takes NULL for it.
 */
#ifndef HEDDLE_CONFORM_DEVICE_H
#define HEDDLE_CONFORM_DEVICE_H

#include "conform/check.h"

#include <stddef.h>

struct hd_conform_device {
    const struct hd_kernel_ops *ops;
    struct hd_kernel *kernel;
    struct hd_device about;
    struct hd_host host;    /* with the kernel's options */
    unsigned char *staging; /* of the host, whole pages: room for one slot */
    uint64_t staging_bytes;
    uint64_t limit_ms; /* of its waits */
};

/* Opens device `ordinal` with the subject's lender.  What fails is a sentence in the check's
   report. */
hd_status hd_conform_device_open(struct hd_conform_case *check, uint32_t ordinal,
                                 uint64_t staging_bytes, struct hd_conform_device *device);
void hd_conform_device_close(struct hd_conform_device *device);

static inline void *hd_conform_stream(const struct hd_conform_device *device)
{
    return device != NULL ? device->about.stream : NULL;
}

/* Between a slot and the host; over when they return.  fill is over when the stream gets there. */
hd_status hd_slot_write(const struct hd_conform_device *device, void *slot, const void *bytes,
                        uint64_t count);
hd_status hd_slot_read(const struct hd_conform_device *device, void *bytes, const void *slot,
                       uint64_t count);
hd_status hd_slot_fill(const struct hd_conform_device *device, void *slot, uint8_t value,
                       uint64_t count);
/* Until the stream has got so far. */
hd_status hd_conform_device_rest(const struct hd_conform_device *device);

#endif /* HEDDLE_CONFORM_DEVICE_H */
