/* tests/standin/device/emulated.h - the cuda plugin's op table without a driver: kernels emulated
 * at once. */
#ifndef HD_TESTS_STANDIN_EMULATED_H
#define HD_TESTS_STANDIN_EMULATED_H

#include "plugins/kernels/cuda/device.h"
#include "tests/standin/device/launch.h"

/* A device whose memory is the host's, over `scratch`; nothing to close. */
struct hd_ops_device hd_emulated_device(void *scratch, uint64_t bytes);

#endif /* HD_TESTS_STANDIN_EMULATED_H */
