/*
 * standin/cuda/module.c - modules and launches, over the emulated device (../device).
 *
 * A module's functions are the kernels that the emulator was compiled with, found by name; the
 * image is looked at for its first word only.  A launch copies the arguments at once, as CUDA does,
 * and runs in its stream.
 *
 * Each address in the arguments (device/pointers.h) becomes the one that can be touched where it is
 * inside an allocation of CUDA's, and else one that nobody can touch: a device could not reach it
 * either.
 */
#include "standin/cuda/state.h"
#include "tests/standin/device/launch.h"

#include <stdlib.h>
#include <string.h>

enum { FUNCTION_MAX = 128, SHARED_STATIC_MAX = 48 << 10, SHARED_MAX = 227 << 10 };

#define FATBIN_MAGIC 0xba55ed50u
#define UNTOUCHABLE  0xdead000000000000ull

/* One function, of any module: there is one set of kernels. */
struct CUfunc_st {
    const struct hd_standin_kernel *kernel;
    uint32_t shared_max;
};

static struct CUfunc_st functions[FUNCTION_MAX];

struct launch {
    const struct hd_standin_kernel *kernel;
    struct hd_standin_grid grid;
    uint64_t args[]; /* argument_bytes, rounded up */
};

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    STANDIN_ENTER_DRIVER("cuModuleLoadData");
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    if (magic != FATBIN_MAGIC) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    *module = (CUmodule)(void *)calloc(1, 1);
    return *module != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuModuleUnload(CUmodule module)
{
    STANDIN_ENTER_DRIVER("cuModuleUnload");
    free(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    STANDIN_ENTER_DRIVER("cuModuleGetFunction");
    const struct hd_standin_kernel *kernel = hd_standin_find(name);
    if (module == NULL || kernel == NULL) {
        return CUDA_ERROR_NOT_FOUND;
    }
    for (uint32_t i = 0; i < FUNCTION_MAX; i++) {
        if (functions[i].kernel == NULL || functions[i].kernel == kernel) {
            functions[i].kernel = kernel;
            *function = &functions[i];
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    STANDIN_ENTER_DRIVER("cuFuncSetAttribute");
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
        value > SHARED_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    function->shared_max = (uint32_t)value;
    return CUDA_SUCCESS;
}

/* --- launches --------------------------------------------------------------------------------- */

static int run_launch(void *argument)
{
    struct launch *launch = argument;
    char *args = (char *)launch->args;
    for (const uint16_t *at = launch->kernel->pointers; *at != UINT16_MAX; at++) {
        uint64_t address;
        memcpy(&address, args + *at, sizeof address);
        const void *view = standin_view((const void *)(uintptr_t)address, 1);
        address = view != NULL ? (uint64_t)(uintptr_t)view : address != 0 ? UNTOUCHABLE : 0;
        memcpy(args + *at, &address, sizeof address);
    }
    hd_standin_launch(launch->kernel, &launch->grid, launch->args);
    return 1;
}

static struct launch *make_launch(const struct hd_standin_kernel *kernel, const void *args)
{
    const size_t words = (kernel->argument_bytes + 7) / 8;
    struct launch *launch = calloc(1, sizeof *launch + words * sizeof(uint64_t));
    if (launch != NULL) {
        launch->kernel = kernel;
        memcpy(launch->args, args, kernel->argument_bytes);
    }
    return launch;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void **parameters, void **extra)
{
    STANDIN_ENTER_DRIVER("cuLaunchKernel");
    const uint32_t shared_max =
        function->shared_max > SHARED_STATIC_MAX ? function->shared_max : SHARED_STATIC_MAX;
    if (grid_x == 0 || grid_y == 0 || grid_z == 0 || grid_y > 65535 || grid_z > 65535 ||
        block_y != 1 || block_z != 1 || block_x == 0 || block_x > function->kernel->threads_max ||
        shared_bytes > shared_max || extra != NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct launch *launch = make_launch(function->kernel, parameters[0]);
    if (launch == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    launch->grid = (struct hd_standin_grid){{grid_x, grid_y, grid_z}, block_x, shared_bytes};
    const struct standin_work work = {run_launch, free, launch};
    const CUresult error = (CUresult)standin_enqueue(stream, &work);
    if (error != CUDA_SUCCESS) {
        free(launch);
    }
    return error;
}
