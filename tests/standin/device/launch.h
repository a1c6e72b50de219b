/*
 * tests/standin/device/launch.h - kernels of the cuda plugin by name, on the emulated device.
 *
 * The stand-in of the driver finds a module's functions here, and so do tests that drive an op
 * table without a driver.
 */
#ifndef HD_TESTS_STANDIN_LAUNCH_H
#define HD_TESTS_STANDIN_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

struct hd_standin_kernel {
    const char *name; /* of the symbol: "hd_rms_norm" */
    void (*run)(const void *args);
    uint32_t threads_max;
    size_t argument_bytes;
    const uint16_t *pointers; /* offsets of the addresses in it, ended by UINT16_MAX */
};

struct hd_standin_grid {
    uint32_t blocks[3], threads;
    size_t shared_bytes;
};

/* NULL if there is none. */
const struct hd_standin_kernel *hd_standin_find(const char *name);

/* Runs all blocks, in order, before it returns.  [any-thread] */
void hd_standin_launch(const struct hd_standin_kernel *kernel, const struct hd_standin_grid *grid,
                       const void *args);

/* The device of hd_cuda_ops without scratch, for ops that need none. */
struct hd_ops_device;
struct hd_ops_device *hd_emulated_bare(void);

/* 1: threads of a block run from the last to the first.  For the calling thread. */
extern _Thread_local int hd_standin_descending;

#endif /* HD_TESTS_STANDIN_LAUNCH_H */
