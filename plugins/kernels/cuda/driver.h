/*
 * plugins/kernels/cuda/driver.h - the device behind the op table: module, stream, memory, marks,
 * cuBLASLt.
 *
 * Everything is taken when the device is opened, but for regions (allocate) and plans of products
 * (prepare); a pass only enqueues.
 */
#ifndef HD_CUDA_DRIVER_H
#define HD_CUDA_DRIVER_H

#include "device.h"

#include <cublaslt_library.h>
#include <cuda_library.h>

#include <stdatomic.h>

#define HD_CUDA_CAPABILITY_MIN  90u /* of the oldest code in the module, and of its PTX */
#define HD_CUDA_STAGING_BYTES   (1u << 20)
#define HD_CUDA_STAGED_MAX      256u
#define HD_CUDA_WORKSPACE_BYTES (32u << 20)

/* A region, freed by close. */
struct hd_cuda_region {
    struct hd_cuda_region *next;
    void *memory;
    uint64_t bytes;
    const char *tag;
};

/* A small copy between pageable memory and the device that goes through pinned memory, so that
   neither side waits for it.  `target` is NULL if the device is the target. */
struct hd_cuda_staged {
    void *target;
    uint64_t offset, bytes;
    uint64_t mark; /* the first one after it */
};

/* A ring of bytes and one of entries; first in, first out. */
struct hd_cuda_staging {
    char *memory; /* pinned */
    struct hd_cuda_staged entries[HD_CUDA_STAGED_MAX];
    uint64_t taken_count, done_count; /* of entries */
    uint64_t taken_bytes, done_bytes; /* ever, including what a wrap skipped */
};

/* Marks, as events; number i is events[i % HD_MARK_MAX]. */
struct hd_cuda_marks {
    cudaEvent_t events[HD_MARK_MAX];
    cudaEvent_t origin;         /* until a mark is the anchor */
    uint64_t last, passed;      /* enqueued; known to be passed */
    uint64_t anchor, anchor_ns; /* a mark (0: origin) and the host's clock at it */
};

struct hd_cuda {
    struct cuda_library cuda;
    struct cublaslt_library blas;
    const struct hd_host *host;
    int ordinal;
    uint32_t capability; /* 90 is 9.0 */
    CUmodule module;
    CUfunction functions[HD_CUDA_KERNEL_COUNT];
    cudaStream_t stream;
    struct hd_fault *fault;        /* pinned ... */
    struct hd_fault *device_fault; /* ... and as the device sees it */
    struct hd_cuda_marks marks;
    struct hd_cuda_staging staging;
    struct hd_cuda_region *regions;
    struct hd_cuda_plans *plans; /* lt.c; NULL: our own kernels compute every product */
    void *workspace;
    enum hd_cuda_wish mxfp8_wish;
    _Atomic int is_aborted;
    hd_status failed; /* the first error, which sticks */
    char effective[256];
};

/* Reports the first error, and keeps its status. */
hd_status hd_cuda_fail(struct hd_cuda *driver, hd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for a call of the runtime that failed. */
hd_status hd_cuda_fail_call(struct hd_cuda *driver, const char *call, cudaError_t error);
/* Makes the device current in this thread.  Returns an earlier error, which sticks. */
hd_status hd_cuda_enter(struct hd_cuda *driver);

/* Writes into `effective` how the last stage computes MXFP8: how many of the two weights of a
   feed-forward have native products, and what the others lack (NULL: nothing).  UNSUPPORTED if
   something is missing and the option says native. */
hd_status hd_cuda_tell_mxfp8(struct hd_cuda *driver, uint32_t native_count, const char *missing);

/* --- driver.c --------------------------------------------------------------------------------- */

/* Opens the device that cuda_load found; every error is reported. */
hd_status hd_cuda_start(struct hd_cuda *driver);
void hd_cuda_stop(struct hd_cuda *driver);
hd_status hd_cuda_launch(struct hd_ops_device *device, enum hd_cuda_kernel kernel,
                         struct hd_cuda_grid grid, const void *args);

/* --- memory.c: struct hd_remote --------------------------------------------------------------- */

extern const struct hd_remote hd_cuda_remote;
hd_status hd_cuda_drain(struct hd_ops_device *device);
/* Ends the copies that a mark has passed. */
void hd_cuda_finish_staged(struct hd_cuda *driver, uint64_t passed);

/* --- marks.c ---------------------------------------------------------------------------------- */

hd_status hd_cuda_open_marks(struct hd_cuda *driver);
void hd_cuda_close_marks(struct hd_cuda *driver);
hd_status hd_cuda_mark(struct hd_ops_device *device, uint64_t *mark);
hd_status hd_cuda_reached(struct hd_ops_device *device, uint64_t mark, uint64_t timeout_ns,
                          uint64_t *passed_ns);

/* --- lt.c: products by cuBLASLt --------------------------------------------------------------- */

/* UNSUPPORTED after host->fail if the library cannot be loaded. */
hd_status hd_cuda_open_plans(struct hd_cuda *driver, const char *path);
void hd_cuda_close_plans(struct hd_cuda *driver);
/* Finds an algorithm for every dense product of such a stage. [setup] */
hd_status hd_cuda_prepare(struct hd_ops_device *device, const struct hd_ops *ops,
                          const struct hd_stage_spec *spec);
/* hd_ops_device.multiply, .has_mxfp8 */
hd_status hd_cuda_multiply(struct hd_ops_device *device, const struct hd_gemm_args *args);
bool hd_cuda_has_mxfp8(const struct hd_ops_device *device, const struct hd_gemm_args *args);
/* The facts of a dense weight that are known before cuBLASLt is asked for an algorithm. */
struct hd_cuda_mxfp8_facts hd_cuda_mxfp8_facts_of(const struct hd_cuda *driver);

#endif /* HD_CUDA_DRIVER_H */
