/*
 * plugins/cuda/cuda_library.c - from a file name to a table of calls, or to a reason.
 *
 * What CUDA answers without a driver was read off the real library: it loads, the device
 * count fails with 35, and cudaDriverGetVersion says 0 where there is none at all.
 */
#include "cuda_library.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    DRIVER_CALLS_VERSION = 12000, /* every driver call of the table has had its form since */
};

/* What is asked before the table is filled. */
struct questions {
    __typeof__(cudaRuntimeGetVersion) *runtime_version;
    __typeof__(cudaDriverGetVersion) *driver_version;
    __typeof__(cudaGetDeviceCount) *device_count;
    __typeof__(cudaGetDriverEntryPointByVersion) *driver_entry;
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

/* C has no cast from an object's address to a function's; POSIX says that the bits are the same. */
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

static hd_status cuda_library_find_driver(struct cuda_library *library, const struct questions *ask,
                                          const char *name, void *out)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSuccess;
    void *symbol = NULL;
    const cudaError_t error =
        ask->driver_entry(name, &symbol, DRIVER_CALLS_VERSION, cudaEnableDefault, &found);

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
            "the CUDA runtime is not here (%s): install CUDA %d, or name its file with "
            "the option cuda_runtime",
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

static hd_status cuda_library_check_versions(struct cuda_library *library,
                                             const struct questions *ask)
{
    if (ask->runtime_version(&library->runtime_version) != cudaSuccess ||
        library->runtime_version / 1000 != CUDART_VERSION / 1000) {
        return cuda_library_refuse(
            library,
            "%s is the runtime of CUDA %d.%d; this plugin was built for CUDA %d and needs "
            "that: name another with the option cuda_runtime",
            library->path, library->runtime_version / 1000, library->runtime_version % 1000 / 10,
            CUDART_VERSION / 1000);
    }
    if (ask->driver_version(&library->driver_version) != cudaSuccess) {
        library->driver_version = 0;
    }
    return HD_OK;
}

static hd_status cuda_library_refuse_devices(struct cuda_library *library, cudaError_t error)
{
    const int runtime = library->runtime_version;
    const int driver = library->driver_version;

    if (error == cudaErrorInsufficientDriver && driver == 0) {
        return cuda_library_refuse(library,
                                   "there is no NVIDIA driver on this machine (libcuda.so.1): CUDA "
                                   "needs one, and a GPU");
    }
    if (error == cudaErrorInsufficientDriver) {
        return cuda_library_refuse(
            library,
            "the NVIDIA driver serves CUDA %d.%d, and %s is CUDA %d.%d: install a newer "
            "driver",
            driver / 1000, driver % 1000 / 10, library->path, runtime / 1000, runtime % 1000 / 10);
    }
    if (error == cudaErrorNoDevice || error == cudaSuccess) {
        return cuda_library_refuse(
            library, "the NVIDIA driver shows no GPU to this process: look at nvidia-smi "
                     "and at CUDA_VISIBLE_DEVICES");
    }
    return cuda_library_refuse(
        library, "CUDA does not start on this machine: cudaGetDeviceCount says %d", (int)error);
}

/* The count is left alone by a call that fails. */
static hd_status cuda_library_count_devices(struct cuda_library *library,
                                            const struct questions *ask)
{
    int count = 0;
    const cudaError_t error = ask->device_count(&count);

    if (error != cudaSuccess || count <= 0) {
        return cuda_library_refuse_devices(library, error);
    }
    library->device_count = count;
    return HD_OK;
}

static hd_status cuda_library_find_questions(struct cuda_library *library, void *handle,
                                             struct questions *ask)
{
    const struct {
        const char *name;
        void *out;
    } rows[] = {
        {"cudaRuntimeGetVersion", &ask->runtime_version},
        {"cudaDriverGetVersion", &ask->driver_version},
        {"cudaGetDeviceCount", &ask->device_count},
        {"cudaGetDriverEntryPointByVersion", &ask->driver_entry},
    };
    hd_status status = HD_OK;

    for (size_t i = 0; status == HD_OK && i < sizeof rows / sizeof rows[0]; i++) {
        status = cuda_library_find(library, handle, rows[i].name, rows[i].out);
    }
    return status;
}

static hd_status cuda_library_fill_table(struct cuda_library *library, void *handle,
                                         const struct questions *ask)
{
    hd_status status = HD_OK;

#define FIND_RUNTIME(name)                                                  \
    if (status == HD_OK) {                                                  \
        status = cuda_library_find(library, handle, #name, &library->name); \
    }
#define FIND_DRIVER(name)                                                       \
    if (status == HD_OK) {                                                      \
        status = cuda_library_find_driver(library, ask, #name, &library->name); \
    }
    CUDA_RUNTIME_CALLS(FIND_RUNTIME)
    CUDA_DRIVER_CALLS(FIND_DRIVER)
    return status;
}

hd_status cuda_load(struct cuda_library *library, const char *path)
{
    struct questions ask;
    void *handle = NULL;

    memset(library, 0, sizeof *library);
    hd_status status = cuda_library_open_file(library, path, &handle);
    if (status == HD_OK) {
        status = cuda_library_find_questions(library, handle, &ask);
    }
    if (status == HD_OK) {
        status = cuda_library_check_versions(library, &ask);
    }
    if (status == HD_OK) {
        status = cuda_library_count_devices(library, &ask);
    }
    if (status == HD_OK) {
        status = cuda_library_fill_table(library, handle, &ask);
    }
    return status;
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
