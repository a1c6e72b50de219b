/*
 * drive/lent.h - the device that holds a transport's slots, lent by a kernel plugin.
 *
 * A transport between devices has no stream, and the host cannot touch its slots.  A program that
 * drives such a transport without an engine (conform, bench) opens a kernel plugin beside it, and
 * uses three things of it: its stream orders the calls of the transport, its copy writes and reads
 * slots, its marks tell when.  The memory of the slots is the transport's.
 *
 *   open the device -> open the transport -> ... -> close the transport -> close the device
 *
 * For slots in host memory there is no device: rest, copy, fill and stream take NULL for it.  The
 * thread that opened the device makes all calls. [setup] open and close, [data] the rest.
 */
#ifndef HEDDLE_DRIVE_LENT_H
#define HEDDLE_DRIVE_LENT_H

#include <heddle/kernel.h>

#include <stdbool.h>
#include <stddef.h>

/* What to open; borrowed until close. */
struct hd_lent_request {
    const struct hd_plugin *kernel;
    const struct hd_option_value *options; /* in the order of its table */
    const struct hd_host *host;            /* copied; rank and options are set here */
    uint32_t ordinal;                      /* of the device: the local rank */
    uint64_t staging_bytes;                /* of the largest slot; 0: no slot is read or written */
    uint64_t limit_ms;                     /* of each wait */
};

struct hd_lent {
    const struct hd_kernel_ops *ops;
    struct hd_kernel *kernel; /* NULL: not open */
    struct hd_device about;
    struct hd_host host;    /* with the kernel's options */
    unsigned char *staging; /* in host memory, whole pages: a copy of one slot */
    uint64_t staging_bytes;
    uint64_t limit_ms;
};

/* On failure nothing is open.  An error of the kernel is reported to host->fail; else *reason is a
   static sentence: the kernel has no stream (HD_UNSUPPORTED), or there is no memory
   (HD_NO_MEMORY). */
hd_status hd_lent_open(struct hd_lent *lent, const struct hd_lent_request *request,
                       const char **reason);
/* After the transport is closed.  Takes a device that is not open. */
void hd_lent_close(struct hd_lent *lent);

static inline void *hd_lent_stream(const struct hd_lent *lent)
{
    return lent != NULL ? lent->about.stream : NULL;
}

/* The alignment of every slot on it. */
static inline uint32_t hd_lent_alignment(const struct hd_lent *lent)
{
    return lent->about.alignment > 64 ? (uint32_t)lent->about.alignment : 64;
}

/* Copy and fill enqueue: they are done when the stream gets there, and their memory must stay as it
   is until then.  copy_now returns when the copy is done. */
hd_status hd_lent_copy(const struct hd_lent *lent, void *target, const void *source,
                       uint64_t count);
hd_status hd_lent_copy_now(const struct hd_lent *lent, void *target, const void *source,
                           uint64_t count);
hd_status hd_lent_fill(const struct hd_lent *lent, void *slot, uint8_t value, uint64_t count);
/* Waits until the stream has run all that was enqueued; HD_TIMEOUT after limit_ms. */
hd_status hd_lent_rest(const struct hd_lent *lent);
/* Waits for one mark of an open device. */
hd_status hd_lent_reach(const struct hd_lent *lent, uint64_t mark, uint64_t *passed_ns);

#endif /* HEDDLE_DRIVE_LENT_H */
