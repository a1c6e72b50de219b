/*
 * plugins/cuda/cuda_library.h - how every plugin of a GPU reaches CUDA.
 *
 * No plugin links CUDA: where there is none, `heddle list` still shows the plugin, and a
 * run that asks for it is refused with a sentence.  So open loads the runtime by name, and
 * the driver's calls through it, into a table of typed pointers:
 *
 *   option cuda_runtime -> dlopen -> cudaGetDeviceCount -> every call below
 *                          no file?   no driver? no GPU?    one missing?
 *
 *   static struct cuda_library cuda;             one per plugin; or in its instance
 *   if (cuda_load(&cuda, path) != HD_OK) { ... host->fail(... cuda.reason) ... }
 *   cuda.cudaMalloc(&memory, bytes);
 *
 * The members have the names of CUDA's own functions, and their types come from CUDA's
 * headers.  A plugin that calls another one adds its row below.  The library is opened
 * NOW|LOCAL|NODELETE and stays; two plugins that name one file share it, so they share
 * devices, streams and memory.
 *
 * In tests the file is a stand-in (tests/standin/cuda), which has all of these calls too.
 */
#ifndef CUDA_LIBRARY_H
#define CUDA_LIBRARY_H

#include <heddle/plugin.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

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
    char reason[CUDA_REASON_BYTES]; /* why there is none: a sentence with its remedy */
    int runtime_version;            /* 13000 is 13.0 */
    int driver_version;             /* the newest runtime that the driver serves; 0: no driver */
    int device_count;
    int is_standin; /* 1: it is no CUDA, but simulates its calls (tests/standin), and says so */
#define CUDA_MEMBER(name) __typeof__(name) *name;
    CUDA_RUNTIME_CALLS(CUDA_MEMBER)
    CUDA_DRIVER_CALLS(CUDA_MEMBER)
#undef CUDA_MEMBER
};

/* What stands behind a device's name in all that a user reads: no figure of a stand-in may pass for
   a GPU's. */
static inline const char *cuda_standin_text(const struct cuda_library *library)
{
    return library->is_standin ? " (a stand-in, no GPU)" : "";
}

/* The row that every such plugin has among its options: what cuda_load is given. */
#define CUDA_RUNTIME_OPTION                                                                   \
    {                                                                                         \
        .name = "cuda_runtime", .initial = "libcudart.so.13",                                 \
        .help = "The CUDA runtime to load: a path, or a name that the dynamic linker knows.", \
        .type = HD_OPTION_TEXT                                                                \
    }

/*
 * Fills `library`.  HD_UNSUPPORTED, with `reason` set: no such file, an older or newer
 * runtime than these headers, no driver or one too old, no GPU, or a call that is missing.
 * Makes no context, so it costs milliseconds; but CUDA is then in this process, which must
 * not fork and go on in the child. [setup]
 */
hd_status cuda_load(struct cuda_library *library, const char *path);

/*
 * "cudaMalloc: out of memory (cudaErrorMemoryAllocation, 2)", in `text`, which it returns.
 * Clears the error if it does not stick.
 */
const char *cuda_explain(const struct cuda_library *library, const char *call, cudaError_t error,
                         char text[CUDA_REASON_BYTES]);
/* The same of a driver's call. */
const char *cuda_explain_driver(const struct cuda_library *library, const char *call,
                                CUresult error, char text[CUDA_REASON_BYTES]);

#endif /* CUDA_LIBRARY_H */
