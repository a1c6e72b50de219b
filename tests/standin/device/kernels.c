/* tests/standin/device/kernels.c - the cuda plugin's kernels, compiled for the emulated device. */
#include "tests/standin/device/emulator.h"

#include "plugins/kernels/cuda/kernels/module.cu"

#include "tests/standin/device/launch.h"
#include "tests/standin/device/pointers.h"

#define ROW(kernel, most_threads, args_type, shared_type) \
    {.name = "hd_" #kernel,                               \
     .run = hd_##kernel,                                  \
     .threads_max = most_threads,                         \
     .argument_bytes = sizeof(struct args_type),          \
     .pointers = args_type##_pointers},
static const struct hd_standin_kernel kernels[] = {HD_CUDA_KERNELS(ROW)};

const struct hd_standin_kernel *hd_standin_find(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        if (strcmp(kernels[i].name, name) == 0) {
            return &kernels[i];
        }
    }
    return NULL;
}
