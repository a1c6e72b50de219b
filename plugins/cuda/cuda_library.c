/*
 * plugins/cuda/cuda_library.c - loads a file into a table of calls, or gives a reason.
 *
 * Tried with the real runtime on a machine without a driver: it loads, cudaGetDeviceCount fails
 * with 35, and cudaDriverGetVersion returns version 0.
 */
#include "cuda_library.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    DRIVER_CALLS_VERSION = 12000, /* of the form of the driver calls in the table */
};

__attribute__((format(printf, 2, 3))) static hd_status cuda_library_refuse(
    struct cuda_library *library, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(library->reason, sizeof library->reason, format, arguments);
    va_end(arguments);
    return HD_UNSUPPORTED;
}

/* C cannot convert an object pointer to a function pointer; POSIX says that the bits are equal. */
static hd_status cuda_library_find(struct cuda_library *library, void *handle, const char *name,
                                   void *out)
{
    void *symbol = dlsym(handle, name);

    memcpy(out, &symbol, sizeof symbol);
    if (symbol != NULL) {
        return HD_OK;
    }
    return cuda_library_refuse(library, "%s has no %s: it is not the runtime of CUDA %d",
                               library->path, name, CUDART_VERSION / 1000);
}

static hd_status cuda_library_find_driver(struct cuda_library *library, const char *name, void *out)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSuccess;
    void *symbol = NULL;
    const cudaError_t error = library->cudaGetDriverEntryPointByVersion(
        name, &symbol, DRIVER_CALLS_VERSION, cudaEnableDefault, &found);

    memcpy(out, &symbol, sizeof symbol);
    if (error == cudaSuccess && found == cudaDriverEntryPointSuccess && symbol != NULL) {
        return HD_OK;
    }
    return cuda_library_refuse(
        library, "the driver (for CUDA %d.%d) has no %s: install a newer one",
        library->driver_version / 1000, library->driver_version % 1000 / 10, name);
}

static hd_status cuda_library_open_file(struct cuda_library *library, const char *path,
                                        void **handle)
{
    Dl_info where;
    void *symbol = NULL;

    *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (*handle == NULL) {
        return cuda_library_refuse(
            library,
            "cannot load the CUDA runtime (%s): install CUDA %d, or name its file with the option "
            "cuda_runtime",
            dlerror(), CUDART_VERSION / 1000);
    }
    snprintf(library->path, sizeof library->path, "%s", path);
    library->is_standin = dlsym(*handle, "standin_enqueue") != NULL;
    symbol = dlsym(*handle, "cudaRuntimeGetVersion");
    if (symbol != NULL && dladdr(symbol, &where) != 0 && where.dli_fname != NULL) {
        snprintf(library->path, sizeof library->path, "%s", where.dli_fname);
    }
    return HD_OK;
}

static hd_status cuda_library_check_versions(struct cuda_library *library)
{
    if (library->cudaRuntimeGetVersion(&library->runtime_version) != cudaSuccess ||
        library->runtime_version / 1000 != CUDART_VERSION / 1000) {
        return cuda_library_refuse(
            library,
            "%s is the runtime of CUDA %d.%d, but this plugin was built for CUDA %d: name another "
            "file with the option cuda_runtime",
            library->path, library->runtime_version / 1000, library->runtime_version % 1000 / 10,
            CUDART_VERSION / 1000);
    }
    if (library->cudaDriverGetVersion(&library->driver_version) != cudaSuccess) {
        library->driver_version = 0;
    }
    return HD_OK;
}

static hd_status cuda_library_refuse_devices(struct cuda_library *library, cudaError_t error)
{
    const int runtime = library->runtime_version;
    const int driver = library->driver_version;

    if (error == cudaErrorInsufficientDriver && driver == 0) {
        return cuda_library_refuse(
            library, "there is no NVIDIA driver on this machine (libcuda.so.1): use a "
                     "machine with a GPU and its driver");
    }
    if (error == cudaErrorInsufficientDriver) {
        return cuda_library_refuse(
            library,
            "the NVIDIA driver supports CUDA %d.%d, but %s is CUDA %d.%d: install a newer driver",
            driver / 1000, driver % 1000 / 10, library->path, runtime / 1000, runtime % 1000 / 10);
    }
    if (error == cudaErrorNoDevice || error == cudaSuccess) {
        return cuda_library_refuse(
            library, "the NVIDIA driver shows no GPU to this process: check nvidia-smi and "
                     "CUDA_VISIBLE_DEVICES");
    }
    return cuda_library_refuse(
        library, "cannot start CUDA on this machine: cudaGetDeviceCount fails with error %d",
        (int)error);
}

/* A failed call leaves the count alone. */
static hd_status cuda_library_count_devices(struct cuda_library *library)
{
    int count = 0;
    const cudaError_t error = library->cudaGetDeviceCount(&count);

    if (error != cudaSuccess || count <= 0) {
        return cuda_library_refuse_devices(library, error);
    }
    library->device_count = count;
    return HD_OK;
}

/* Leaves the function with the first status that is not OK. */
#define TRY(step)                       \
    do {                                \
        const hd_status tried = (step); \
        if (tried != HD_OK) {           \
            return tried;               \
        }                               \
    } while (0)
#define FIND(name)        TRY(cuda_library_find(library, handle, #name, &library->name));
#define FIND_DRIVER(name) TRY(cuda_library_find_driver(library, #name, &library->name));

hd_status cuda_load(struct cuda_library *library, const char *path)
{
    void *handle = NULL;

    memset(library, 0, sizeof *library);
    TRY(cuda_library_open_file(library, path, &handle));
    CUDA_FIRST_CALLS(FIND)
    TRY(cuda_library_check_versions(library));
    TRY(cuda_library_count_devices(library));
    CUDA_RUNTIME_CALLS(FIND)
    CUDA_DRIVER_CALLS(FIND_DRIVER)
    return HD_OK;
}

const char *cuda_explain(const struct cuda_library *library, const char *call, cudaError_t error,
                         char text[CUDA_REASON_BYTES])
{
    snprintf(text, CUDA_REASON_BYTES, "%s: %s (%s, %d)", call, library->cudaGetErrorString(error),
             library->cudaGetErrorName(error), (int)error);
    (void)library->cudaGetLastError();
    return text;
}

const char *cuda_explain_driver(const struct cuda_library *library, const char *call,
                                CUresult error, char text[CUDA_REASON_BYTES])
{
    const char *name = NULL;
    const char *meaning = NULL;

    (void)library->cuGetErrorName(error, &name);
    (void)library->cuGetErrorString(error, &meaning);
    snprintf(text, CUDA_REASON_BYTES, "%s: %s (%s, %d)", call,
             meaning != NULL ? meaning : "no text", name != NULL ? name : "no name", (int)error);
    return text;
}
