/*
 * tests/standin/standin.h - what the CUDA stand-in offers beside CUDA's own calls.
 *
 * libheddle_standin_cuda.so stands in for libcudart and libcuda on a machine without a GPU: the
 * calls that our plugins make, over host memory and threads.  Kernels run on an emulated device
 * (device/emulator.h); all else computes nothing.  It keeps the
 * order and the rules that CUDA documents, and is stricter than a GPU where a rule can be broken
 * unseen:
 *
 *   - Device memory cannot be touched by the host: its pages have no permission.  What stands in
 *     for the device reaches them by a second mapping: standin_view.
 *   - Every copy is as late as CUDA allows: also those of pageable memory.
 *   - Streams share hardware queues as CUDA_DEVICE_MAX_CONNECTIONS says (8): whatever waits in a
 *     queue holds up what stands behind it, of every stream.
 *   - cudaFree waits for all streams, so it never returns where one is parked for ever.
 *   - After an asynchronous error every call returns it, to the end of the process.
 *   - After fork the child has no CUDA.
 *
 * Its environment: STANDIN_CUDA holds words KEY=VALUE, separated by spaces:
 *
 *   devices=2         simulated GPUs (1); 0: cudaErrorNoDevice
 *   peers=off         no access between them (on)
 *   driver=12080      what cudaDriverGetVersion says (13000); 0: there is none
 *   runtime=12080     what cudaRuntimeGetVersion says (13000)
 *   memory=65536      bytes of each GPU (8 GiB), of this process alone
 *   mem_ops=off       the device says that it has no 64-bit stream memory operations (on)
 *   compute=90        compute capability (90)
 *
 * and STANDIN_CUDA_FAULT what standin_fault is given.  All functions here may be called from any
 * thread.  A stand-in of another library (NCCL) links this one and puts its work on the streams.
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STANDIN_EXPORT __attribute__((visibility("default")))

/*
 * One piece of work in a stream.  `step` is called on the stream's thread, behind all that stands
 * before it, again and again until it returns 1; between two calls the thread sleeps, from 20 us
 * to 500 us, so a step must not block itself.  `finish` (or NULL) is called once: after the
 * last step, or without any where the stream's work was dropped after an error.  Neither may
 * call CUDA.
 */
struct standin_work {
    int (*step)(void *argument);
    void (*finish)(void *argument);
    void *argument;
};

/* Appends to a stream (cudaStream_t; NULL: the legacy one).  Returns a cudaError_t. */
STANDIN_EXPORT int standin_enqueue(void *stream, const struct standin_work *work);

/* Where [memory, memory + bytes) of a device, or of pinned host memory, can be read and written.
   NULL: it is not wholly inside one allocation of CUDA's. */
STANDIN_EXPORT void *standin_view(const void *memory, uint64_t bytes);

/* The device of such memory; -1: pinned host memory; -2: not CUDA's. */
STANDIN_EXPORT int standin_device_of(const void *memory);

/* Lets steps look again at once, instead of after their sleep: something has changed. */
STANDIN_EXPORT void standin_poke(void);

/*
 * Rows "CALL:NTH:FATE", separated by spaces, added to those that have not struck yet: the NTH
 * call of CALL from now (1: the next)
 *
 *   cudaMalloc:1:2                 returns error 2 and does nothing
 *   cudaMemcpyAsync:3:async:700    succeeds; its work then fails with 700, which sticks
 *   cudaMemcpyAsync:3:hang         succeeds; its work never ends
 *
 * Returns 0, or -1 for a row that cannot be read (none is then added from there on).
 */
STANDIN_EXPORT int standin_fault(const char *rows);

/* How often `call` has been made in this process. */
STANDIN_EXPORT uint64_t standin_call_count(const char *call);

#ifdef __cplusplus
}
#endif

#endif /* STANDIN_H */
