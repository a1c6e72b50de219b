/* plugins/kernels/cuda/driver.c - opens a device: stream, kernels of the module, fault word. */
#include "driver.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The module that nvcc compiles from kernels/module.cu: code for each architecture, and PTX. */
__asm__(".section .rodata\n"
        ".balign 16\n"
        ".local hd_cuda_module\n"
        "hd_cuda_module:\n"
        ".incbin \"" HD_CUDA_MODULE_FILE "\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char hd_cuda_module[] __attribute__((visibility("hidden")));

hd_status hd_cuda_fail(struct hd_cuda *driver, hd_status status, const char *format, ...)
{
    char text[CUDA_REASON_BYTES];
    va_list arguments;
    if (driver->failed != HD_OK) {
        return driver->failed;
    }
    driver->failed = status;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return hd_refuse(driver->host, status, "%s", text);
}

hd_status hd_cuda_fail_call(struct hd_cuda *driver, const char *call, cudaError_t error)
{
    char text[CUDA_REASON_BYTES];
    return hd_cuda_fail(driver, error == cudaErrorMemoryAllocation ? HD_NO_MEMORY : HD_DEVICE,
                        "cuda:%d: %s", driver->ordinal,
                        cuda_explain(&driver->cuda, call, error, text));
}

static hd_status cuda_fail_driver_call(struct hd_cuda *driver, const char *call, CUresult error)
{
    char text[CUDA_REASON_BYTES];
    return hd_cuda_fail(driver, HD_DEVICE, "cuda:%d: %s", driver->ordinal,
                        cuda_explain_driver(&driver->cuda, call, error, text));
}

/* The current device of the runtime is a property of the thread. */
hd_status hd_cuda_enter(struct hd_cuda *driver)
{
    static _Thread_local const struct hd_cuda *current;
    if (driver->failed != HD_OK) {
        return driver->failed;
    }
    if (current != driver) {
        const cudaError_t error = driver->cuda.cudaSetDevice(driver->ordinal);
        if (error != cudaSuccess) {
            return hd_cuda_fail_call(driver, "cudaSetDevice", error);
        }
        current = driver;
    }
    return HD_OK;
}

/* --- open ------------------------------------------------------------------------------------- */

static hd_status cuda_check_device(struct hd_cuda *driver)
{
    int major = 0, minor = 0;
    const struct cuda_library *cuda = &driver->cuda;
    if (driver->ordinal >= cuda->device_count) {
        return hd_cuda_fail(driver, HD_UNSUPPORTED,
                            "kernel.cuda.device is %d, but %d devices are visible: set it to -1, "
                            "or to the number of a visible device",
                            driver->ordinal, cuda->device_count);
    }
    const int device = driver->ordinal;
    cudaError_t error =
        cuda->cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error == cudaSuccess) {
        error = cuda->cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    }
    if (error != cudaSuccess) {
        return hd_cuda_fail_call(driver, "cudaDeviceGetAttribute", error);
    }
    driver->capability = (uint32_t)(10 * major + minor);
    if (driver->capability < HD_CUDA_CAPABILITY_MIN) {
        return hd_cuda_fail(driver, HD_UNSUPPORTED,
                            "cuda:%d has compute capability %d.%d, but the kernels need at least "
                            "9.0: use another device",
                            device, major, minor);
    }
    return HD_OK;
}

static hd_status cuda_find_kernel(struct hd_cuda *driver, const struct hd_cuda_row *row,
                                  CUfunction *out)
{
    CUresult error = driver->cuda.cuModuleGetFunction(out, driver->module, row->symbol);
    if (error != CUDA_SUCCESS) {
        return cuda_fail_driver_call(driver, row->symbol, error);
    }
    error = driver->cuda.cuFuncSetAttribute(*out, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                            (int)row->shared_bytes);
    return error == CUDA_SUCCESS ? HD_OK : cuda_fail_driver_call(driver, row->symbol, error);
}

static hd_status cuda_load_module(struct hd_cuda *driver)
{
    const CUresult error = driver->cuda.cuModuleLoadData(&driver->module, hd_cuda_module);
    if (error != CUDA_SUCCESS) {
        return cuda_fail_driver_call(driver, "cuModuleLoadData", error);
    }
    for (uint32_t kernel = 0; kernel < HD_CUDA_KERNEL_COUNT; kernel++) {
        HD_TRY(cuda_find_kernel(driver, &hd_cuda_rows[kernel], &driver->functions[kernel]));
    }
    return HD_OK;
}

static hd_status cuda_pin(struct hd_cuda *driver, uint64_t bytes, void **out)
{
    const cudaError_t error = driver->cuda.cudaHostAlloc(out, bytes, cudaHostAllocMapped);
    if (error != cudaSuccess) {
        return hd_cuda_fail_call(driver, "cudaHostAlloc", error);
    }
    memset(*out, 0, bytes);
    driver->host->account(driver->host->context, (int64_t)bytes, "pinned");
    return HD_OK;
}

static hd_status cuda_open_fault(struct hd_cuda *driver)
{
    void *memory = NULL, *there = NULL;
    HD_TRY(cuda_pin(driver, sizeof *driver->fault, &memory));
    driver->fault = memory;
    const cudaError_t error = driver->cuda.cudaHostGetDevicePointer(&there, memory, 0);
    driver->device_fault = there;
    return error == cudaSuccess ? HD_OK
                                : hd_cuda_fail_call(driver, "cudaHostGetDevicePointer", error);
}

static hd_status cuda_open_staging(struct hd_cuda *driver)
{
    void *memory = NULL;
    const hd_status status = cuda_pin(driver, HD_CUDA_STAGING_BYTES, &memory);
    driver->staging.memory = memory;
    return status;
}

static hd_status cuda_open_stream(struct hd_cuda *driver)
{
    const cudaError_t error =
        driver->cuda.cudaStreamCreateWithPriority(&driver->stream, cudaStreamNonBlocking, 0);
    return error == cudaSuccess ? HD_OK
                                : hd_cuda_fail_call(driver, "cudaStreamCreateWithPriority", error);
}

hd_status hd_cuda_start(struct hd_cuda *driver)
{
    static hd_status (*const steps[])(struct hd_cuda *) = {
        cuda_check_device, hd_cuda_enter,     cuda_open_stream,  cuda_load_module,
        cuda_open_fault,   cuda_open_staging, hd_cuda_open_marks};
    for (size_t step = 0; step < sizeof steps / sizeof steps[0]; step++) {
        HD_TRY(steps[step](driver));
    }
    return HD_OK;
}

static void cuda_unpin(struct hd_cuda *driver, void *memory, uint64_t bytes)
{
    if (memory != NULL) {
        driver->cuda.cudaFreeHost(memory);
        driver->host->account(driver->host->context, -(int64_t)bytes, "pinned");
    }
}

static void cuda_free_regions(struct hd_cuda *driver)
{
    while (driver->regions != NULL) {
        struct hd_cuda_region *region = driver->regions;
        driver->regions = region->next;
        driver->cuda.cudaFree(region->memory);
        driver->host->account(driver->host->context, -(int64_t)region->bytes, region->tag);
        driver->host->free(driver->host->context, region);
    }
}

/* The primary context stays: other plugins of the process use it too. */
void hd_cuda_stop(struct hd_cuda *driver)
{
    if (driver->stream != NULL) {
        driver->cuda.cudaStreamSynchronize(driver->stream);
    }
    hd_cuda_close_plans(driver);
    hd_cuda_close_marks(driver);
    cuda_free_regions(driver);
    cuda_unpin(driver, driver->staging.memory, HD_CUDA_STAGING_BYTES);
    cuda_unpin(driver, driver->fault, sizeof *driver->fault);
    if (driver->module != NULL) {
        driver->cuda.cuModuleUnload(driver->module);
    }
    if (driver->stream != NULL) {
        driver->cuda.cudaStreamDestroy(driver->stream);
    }
}

/* --- a pass ----------------------------------------------------------------------------------- */

hd_status hd_cuda_launch(struct hd_ops_device *device, enum hd_cuda_kernel kernel,
                         struct hd_cuda_grid grid, const void *args)
{
    struct hd_cuda *driver = device->driver;
    const struct hd_cuda_row *row = &hd_cuda_rows[kernel];
    void *parameters[] = {(void *)(uintptr_t)args};
    HD_TRY(hd_cuda_enter(driver));
    assert(grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.y <= 65535 && grid.z <= 65535);
    const CUresult error =
        driver->cuda.cuLaunchKernel(driver->functions[kernel], grid.x, grid.y, grid.z, row->threads,
                                    1, 1, row->shared_bytes, driver->stream, parameters, NULL);
    return error == CUDA_SUCCESS ? HD_OK : cuda_fail_driver_call(driver, row->symbol, error);
}
