/*
 * drive/lent.h - the device that a transport's slots lie on, lent by a kernel plugin.
 *
 * A transport between devices brings no stream, and what its slots hold no host can touch.  Who
 * drives one without an engine (conformance, a bench) opens a kernel plugin beside it, for no more
 * than this: its stream orders what the transport is told, its copy fills slots and brings back
 * what arrived, its marks say when.  The memory of the transport is its own.
 *
 *   open the device -> open the transport -> ... -> close the transport -> close the device
 *
 * Where slots are the host's there is no such device: rest, write, read, fill and stream take NULL
 * for it.  All of it is called by the thread that opened it. [setup] open and close, [data] the
 * rest.
 */
#ifndef HEDDLE_DRIVE_LENT_H
#define HEDDLE_DRIVE_LENT_H

#include <heddle/kernel.h>

#include <stddef.h>

/* What is asked of the kernel; borrowed until close. */
struct hd_lent_request {
    const struct hd_plugin *kernel;
    const struct hd_option_value *options; /* in the order of its table */
    const struct hd_host *host;            /* copied; rank and options are set here */
    uint32_t ordinal;                      /* of the device: the local rank */
    uint64_t staging_bytes;                /* room for one slot; 0: none is read or written */
    uint64_t limit_ms;                     /* of its waits */
};

struct hd_lent {
    const struct hd_kernel_ops *ops;
    struct hd_kernel *kernel; /* NULL: not open */
    struct hd_device about;
    struct hd_host host;    /* with the kernel's options */
    unsigned char *staging; /* of the host, whole pages: room for one slot */
    uint64_t staging_bytes;
    uint64_t limit_ms;
};

/* On failure nothing is open.  What the kernel decided it has told host->fail; else *reason is a
   sentence (static): the kernel has no stream, HD_UNSUPPORTED, or no memory, HD_NO_MEMORY. */
hd_status hd_lent_open(struct hd_lent *lent, const struct hd_lent_request *request,
                       const char **reason);
/* The transport is closed before.  Takes one that is not open. */
void hd_lent_close(struct hd_lent *lent);

static inline void *hd_lent_stream(const struct hd_lent *lent)
{
    return lent != NULL ? lent->about.stream : NULL;
}

/* Of every slot that a transport lays on it. */
static inline uint32_t hd_lent_alignment(const struct hd_lent *lent)
{
    return lent->about.alignment > 64 ? (uint32_t)lent->about.alignment : 64;
}

/* Between a slot and the host; over when they return.  fill and write_later are over when the
   stream gets there, and the bytes stay as they are until then. */
hd_status hd_lent_write(const struct hd_lent *lent, void *slot, const void *bytes, uint64_t count);
hd_status hd_lent_write_later(const struct hd_lent *lent, void *slot, const void *bytes,
                              uint64_t count);
hd_status hd_lent_read(const struct hd_lent *lent, void *bytes, const void *slot, uint64_t count);
hd_status hd_lent_fill(const struct hd_lent *lent, void *slot, uint8_t value, uint64_t count);
/* Until the stream has got so far; HD_TIMEOUT after limit_ms. */
hd_status hd_lent_rest(const struct hd_lent *lent);

#endif /* HEDDLE_DRIVE_LENT_H */
