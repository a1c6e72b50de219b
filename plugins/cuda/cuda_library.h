/*
 * plugins/cuda/cuda_library.h - how the GPU plugins reach CUDA.
 *
 * No plugin links CUDA, so that on a machine without CUDA `heddle list` still shows the plugin, and
 * a run that needs it ends with an error.  open loads the runtime by name, and the driver's calls
 * through it, into a table of typed pointers:
 *
 *   option cuda_runtime -> dlopen -> cudaGetDeviceCount -> every call below
 *                          no file?   no driver? no GPU?    one missing?
 *
 *   static struct cuda_library cuda;             one per plugin; or in its instance
 *   if (cuda_load(&cuda, path) != HD_OK) { ... host->fail(... cuda.reason) ... }
 *   cuda.cudaMalloc(&memory, bytes);
 *
 * The members have the names of CUDA's functions, and their types come from CUDA's headers.  A
 * plugin that needs another call adds it to a list below.  The library is opened
 * NOW|LOCAL|NODELETE and never closed.  Two plugins that name the same file share it, and so share
 * devices, streams and memory.
 *
 * In tests the file is a stand-in (tests/standin/cuda) with all of these calls.
 */
#ifndef CUDA_LIBRARY_H
#define CUDA_LIBRARY_H

#include <heddle/plugin.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

/* Called before the others are looked up, so that a wrong version is reported as such. */
#define CUDA_FIRST_CALLS(call)                                                      \
    call(cudaRuntimeGetVersion) call(cudaDriverGetVersion) call(cudaGetDeviceCount) \
        call(cudaGetDriverEntryPointByVersion)

#define CUDA_RUNTIME_CALLS(call)                                                                   \
    call(cudaDeviceCanAccessPeer) call(cudaDeviceEnablePeerAccess) call(cudaDeviceGetAttribute)    \
        call(cudaDeviceGetPCIBusId) call(cudaDeviceSynchronize) call(cudaEventCreateWithFlags)     \
            call(cudaEventDestroy) call(cudaEventElapsedTime) call(cudaEventQuery)                 \
                call(cudaEventRecord) call(cudaEventSynchronize) call(cudaFree) call(cudaFreeHost) \
                    call(cudaGetDevice) call(cudaGetErrorName) call(cudaGetErrorString)            \
                        call(cudaGetLastError) call(cudaHostAlloc) call(cudaHostGetDevicePointer)  \
                            call(cudaHostRegister) call(cudaHostUnregister)                        \
                                call(cudaIpcCloseMemHandle) call(cudaIpcGetMemHandle)              \
                                    call(cudaIpcOpenMemHandle) call(cudaLaunchHostFunc)            \
                                        call(cudaMalloc) call(cudaMemGetInfo)                      \
                                            call(cudaMemcpyAsync) call(cudaMemsetAsync)            \
                                                call(cudaPointerGetAttributes) call(cudaSetDevice) \
                                                    call(cudaStreamCreateWithPriority)             \
                                                        call(cudaStreamDestroy)                    \
                                                            call(cudaStreamQuery)                  \
                                                                call(cudaStreamSynchronize)        \
                                                                    call(cudaStreamWaitEvent)

#define CUDA_DRIVER_CALLS(call)                                                               \
    call(cuFuncSetAttribute) call(cuGetErrorName) call(cuGetErrorString) call(cuLaunchKernel) \
        call(cuModuleGetFunction) call(cuModuleLoadData) call(cuModuleUnload)                 \
            call(cuStreamWaitValue64) call(cuStreamWriteValue64)

enum { CUDA_PATH_BYTES = 256, CUDA_REASON_BYTES = 512 };

struct cuda_library {
    char path[CUDA_PATH_BYTES];     /* of the file that was loaded, as ld.so found it */
    char reason[CUDA_REASON_BYTES]; /* why it is not loaded, with the remedy */
    int runtime_version;            /* 13000 is 13.0 */
    int driver_version;             /* the newest runtime that the driver supports; 0: no driver */
    int device_count;
    int is_standin; /* 1: not CUDA, but the simulation in tests/standin */
#define CUDA_MEMBER(name) __typeof__(name) *name;
    CUDA_FIRST_CALLS(CUDA_MEMBER)
    CUDA_RUNTIME_CALLS(CUDA_MEMBER)
    CUDA_DRIVER_CALLS(CUDA_MEMBER)
#undef CUDA_MEMBER
};

/* Follows a device's name in all output, so that nobody takes a stand-in's figures for those of a
   GPU. */
static inline const char *cuda_standin_text(const struct cuda_library *library)
{
    return library->is_standin ? " (a stand-in, no GPU)" : "";
}

/* The option of every such plugin: the path for cuda_load. */
#define CUDA_RUNTIME_OPTION                                                                   \
    {                                                                                         \
        .name = "cuda_runtime", .initial = "libcudart.so.13",                                 \
        .help = "The CUDA runtime to load: a path, or a name that the dynamic linker knows.", \
        .type = HD_OPTION_TEXT                                                                \
    }

/*
 * Fills `library`.  HD_UNSUPPORTED with `reason` set: no such file, an older or newer runtime than
 * these headers, no driver or one that is too old, no GPU, or a missing call.  It creates no
 * context, so it takes milliseconds.  But the process has loaded CUDA, so a child after fork must
 * not use CUDA. [setup]
 */
hd_status cuda_load(struct cuda_library *library, const char *path);

/*
 * Returns `text`: "cudaMalloc: out of memory (cudaErrorMemoryAllocation, 2)".  Clears the error
 * unless it is sticky.
 */
const char *cuda_explain(const struct cuda_library *library, const char *call, cudaError_t error,
                         char text[CUDA_REASON_BYTES]);
/* The same for a call of the driver. */
const char *cuda_explain_driver(const struct cuda_library *library, const char *call,
                                CUresult error, char text[CUDA_REASON_BYTES]);

#endif /* CUDA_LIBRARY_H */
