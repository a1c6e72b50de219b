/*
 * engine/region.h - memory where a stage computes: of the host, or of the kernel.
 *
 * A kernel that has `allocate` is asked for every region, and its close frees all of them; for any
 * other kernel the memory is the host's.  Nothing here blocks: on a device the compute stream runs
 * a fill after every pass that was enqueued before it.  In host memory a fill is done at once, and
 * the caller makes sure that no pass is under way.
 */
#ifndef HEDDLE_ENGINE_REGION_H
#define HEDDLE_ENGINE_REGION_H

#include <heddle/kernel.h>

#include <stdbool.h>

/* Where regions come from. */
struct hd_regions {
    const struct hd_kernel_ops *ops; /* with allocate and copy; NULL: memory of the host */
    struct hd_kernel *kernel;
    uint64_t alignment; /* of every region */
    bool is_device;     /* the host cannot touch them */
};

/* Of 0 bytes on a device: NULL.  HD_NO_MEMORY, or what the kernel returns. [setup] */
hd_status hd_regions_take(const struct hd_regions *regions, uint64_t bytes, const char *tag,
                          void **out);
void hd_regions_give(const struct hd_regions *regions, void *memory); /* takes NULL */

hd_status hd_regions_fill(const struct hd_regions *regions, void *target, uint64_t bytes,
                          uint8_t value);

#endif /* HEDDLE_ENGINE_REGION_H */
