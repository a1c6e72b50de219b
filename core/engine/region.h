/*
 * engine/region.h - memory where a stage computes: the host's, or what the kernel allocates.
 *
 * A kernel that has `allocate` is asked for every region, and its close frees all of them; one that
 * has none gets memory of the host's.  Nothing here waits: on a device a fill takes its turn in the
 * compute stream, behind every pass that was enqueued before it.  Elsewhere it is done at once, and
 * the caller sees to it that no pass is under way.
 */
#ifndef HEDDLE_ENGINE_REGION_H
#define HEDDLE_ENGINE_REGION_H

#include <heddle/kernel.h>

/* Where regions come from. */
struct hd_regions {
    const struct hd_kernel_ops *ops; /* allocate and copy are there; NULL: taken of the host */
    struct hd_kernel *kernel;
    uint64_t alignment; /* of every region */
    uint32_t is_device; /* no host can touch them */
};

/* Of 0 bytes a device has none: NULL.  HD_NO_MEMORY, or what the kernel says. [setup] */
hd_status hd_regions_take(const struct hd_regions *regions, uint64_t bytes, const char *tag,
                          void **out);
void hd_regions_give(const struct hd_regions *regions, void *memory); /* takes NULL */

hd_status hd_regions_fill(const struct hd_regions *regions, void *target, uint64_t bytes,
                          uint8_t value);

#endif /* HEDDLE_ENGINE_REGION_H */
