/*
 * plugins/kernels/synthetic/device.c - the same passes, in a stream, on device memory.
 *
 * The device runs no kernel.  The inputs of a pass are copied to pinned host memory, the pass
 * itself is a host function in the stream, and its outputs are copied back:
 *
 *   stream   copy input, payload, gradient | host function | copy output, payload | mark
 *   host     ............................. | checks, sleeps, writes | ...
 *
 * All passes of a stage share one buffer, because they run in the order of the stream.  A mark is a
 * host function too: it records the time, and whether an earlier pass has failed.
 */
#ifdef SYNTHETIC_HAS_CUDA

#include "device.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SLICE_NS = 500000 };

static char synthetic_effective[CUDA_PATH_BYTES + 96];

static uint64_t synthetic_now_of(const struct synthetic_device *device)
{
    return device->host->now_ns(device->host->context);
}

hd_status synthetic_settle(const struct synthetic_device *device, const char *call,
                           cudaError_t error)
{
    char text[CUDA_REASON_BYTES];

    if (error == cudaSuccess) {
        return HD_OK;
    }
    return synthetic_report(device->host,
                            error == cudaErrorMemoryAllocation ? HD_NO_MEMORY : HD_DEVICE, "%s",
                            cuda_explain(&device->cuda, call, error, text));
}

void synthetic_account(const struct synthetic_device *device, int64_t bytes, const char *tag)
{
    if (device->host->account != NULL) { /* a core before 1.1 has none */
        device->host->account(device->host->context, bytes, tag);
    }
}

static void synthetic_init_locks(struct synthetic_device *device)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&device->lock, NULL);
    pthread_cond_init(&device->passed, &attributes);
    pthread_condattr_destroy(&attributes);
}

hd_status synthetic_device_open(struct hd_kernel *kernel, uint32_t ordinal, struct hd_device *out)
{
    const struct hd_host *host = kernel->host;
    struct synthetic_device *device = host->alloc(host->context, sizeof *device, 64, "synthetic");

    if (device == NULL) {
        return synthetic_report(host, HD_NO_MEMORY, "cannot allocate the marks of the device");
    }
    device->host = host;
    if (cuda_load(&device->cuda, host->options[OPTION_CUDA_RUNTIME].text) != HD_OK) {
        const hd_status refused = synthetic_report(host, HD_UNSUPPORTED, "%s", device->cuda.reason);
        host->free(host->context, device);
        return refused;
    }
    synthetic_init_locks(device);
    device->index = (int)(ordinal % (uint32_t)device->cuda.device_count);
    hd_status status =
        synthetic_settle(device, "cudaSetDevice", device->cuda.cudaSetDevice(device->index));
    if (status == HD_OK) {
        status = synthetic_settle(
            device, "cudaStreamCreateWithPriority",
            device->cuda.cudaStreamCreateWithPriority(&device->stream, cudaStreamNonBlocking, 0));
    }
    if (status != HD_OK) {
        host->free(host->context, device);
        return status;
    }
    snprintf(synthetic_effective, sizeof synthetic_effective,
             "synthetic: sleeps and fills patterns, cuda:%d%s by %s", device->index,
             cuda_standin_text(&device->cuda), device->cuda.path);
    device->is_pinned = out->memory == HD_MEMORY_HOST_PINNED;
    out->capabilities = HD_KERNEL_STREAM;
    out->alignment = DEVICE_ALIGNMENT;
    out->stream = device->stream;
    out->effective = synthetic_effective;
    kernel->device = device;
    return HD_OK;
}

static void synthetic_free_region(struct hd_kernel *kernel, const struct synthetic_region *region)
{
    struct synthetic_device *device = kernel->device;

    if (device == NULL) {
        kernel->host->free(kernel->host->context, region->memory);
        return;
    }
    if (device->is_pinned) {
        device->cuda.cudaFreeHost(region->memory);
    } else {
        device->cuda.cudaFree(region->memory);
    }
    synthetic_account(device, -(int64_t)region->bytes, region->tag);
}

void synthetic_close(struct hd_kernel *kernel)
{
    const struct hd_host *host = kernel->host;
    struct synthetic_device *device = kernel->device;

    if (device != NULL && atomic_load(&device->is_aborted)) {
        return; /* the stream may still use the memory */
    }
    if (device != NULL) {
        device->cuda.cudaStreamSynchronize(device->stream);
    }
    while (kernel->regions != NULL) {
        struct synthetic_region *region = kernel->regions;
        kernel->regions = region->next;
        synthetic_free_region(kernel, region);
        host->free(host->context, region);
    }
    if (device != NULL) {
        device->cuda.cudaStreamDestroy(device->stream);
        pthread_cond_destroy(&device->passed);
        pthread_mutex_destroy(&device->lock);
        host->free(host->context, device);
        kernel->device = NULL;
    }
}

void synthetic_abort(struct hd_kernel *kernel)
{
    if (kernel->device != NULL) {
        atomic_store(&kernel->device->is_aborted, 1);
    }
}

/* --- memory ----------------------------------------------------------------------------------- */

static hd_status synthetic_take_memory(struct hd_kernel *kernel, struct synthetic_region *region)
{
    struct synthetic_device *device = kernel->device;
    const struct hd_host *host = kernel->host;

    if (device == NULL) {
        region->memory = host->alloc(host->context, region->bytes, DEVICE_ALIGNMENT, region->tag);
        return region->memory != NULL
                   ? HD_OK
                   : synthetic_report(host, HD_NO_MEMORY, "cannot allocate a region of %llu bytes",
                                      (unsigned long long)region->bytes);
    }
    SYNTHETIC_TRY(
        synthetic_settle(device, "cudaSetDevice", device->cuda.cudaSetDevice(device->index)));
    if (device->is_pinned) {
        SYNTHETIC_TRY(synthetic_settle(
            device, "cudaHostAlloc",
            device->cuda.cudaHostAlloc(&region->memory, region->bytes, cudaHostAllocDefault)));
    } else {
        SYNTHETIC_TRY(synthetic_settle(device, "cudaMalloc",
                                       device->cuda.cudaMalloc(&region->memory, region->bytes)));
    }
    synthetic_account(device, (int64_t)region->bytes, region->tag);
    return HD_OK;
}

hd_status synthetic_allocate(struct hd_kernel *kernel, uint64_t bytes, const char *tag, void **out)
{
    const struct hd_host *host = kernel->host;
    struct synthetic_region *region = host->alloc(host->context, sizeof *region, 64, "synthetic");

    if (region == NULL) {
        return synthetic_report(host, HD_NO_MEMORY, "cannot allocate the record of a region");
    }
    region->bytes = bytes;
    region->tag = tag;
    const hd_status status = synthetic_take_memory(kernel, region);
    if (status != HD_OK) {
        host->free(host->context, region);
        return status;
    }
    region->next = kernel->regions;
    kernel->regions = region;
    *out = region->memory;
    return HD_OK;
}

hd_status synthetic_copy(struct hd_kernel *kernel, void *target, const void *source, uint64_t bytes,
                         uint32_t fill)
{
    struct synthetic_device *device = kernel->device;

    if (device == NULL) {
        if (source != NULL) {
            memcpy(target, source, bytes);
        } else {
            memset(target, (int)fill, bytes);
        }
        return HD_OK;
    }
    if (source == NULL) {
        return synthetic_settle(
            device, "cudaMemsetAsync",
            device->cuda.cudaMemsetAsync(target, (int)fill, bytes, device->stream));
    }
    return synthetic_settle(
        device, "cudaMemcpyAsync",
        device->cuda.cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, device->stream));
}

/* --- marks ------------------------------------------------------------------------------------ */

static void CUDART_CB synthetic_pass_mark(void *argument)
{
    struct synthetic_device *device = argument;

    pthread_mutex_lock(&device->lock);
    device->passed_count++;
    device->marks[device->passed_count % HD_MARK_MAX] =
        (struct passed_mark){synthetic_now_of(device), atomic_load(&device->failed)};
    pthread_cond_broadcast(&device->passed);
    pthread_mutex_unlock(&device->lock);
}

hd_status synthetic_mark(struct hd_kernel *kernel, uint64_t *mark)
{
    struct synthetic_device *device = kernel->device;

    if (device == NULL) {
        *mark = ++kernel->mark_count;
        return HD_OK;
    }
    pthread_mutex_lock(&device->lock);
    const bool is_full = device->mark_count - device->passed_count >= HD_MARK_MAX;
    pthread_mutex_unlock(&device->lock);
    if (is_full) {
        return HD_BUSY;
    }
    SYNTHETIC_TRY(synthetic_settle(
        device, "cudaLaunchHostFunc",
        device->cuda.cudaLaunchHostFunc(device->stream, synthetic_pass_mark, device)));
    *mark = ++device->mark_count;
    return HD_OK;
}

hd_status synthetic_check_stream(const struct synthetic_device *device)
{
    const cudaError_t error = device->cuda.cudaStreamQuery(device->stream);
    return error == cudaErrorNotReady ? HD_OK
                                      : synthetic_settle(device, "the compute stream", error);
}

/* Waits until the mark has passed, until `until_ns`, or for one slice. */
static hd_status synthetic_look(struct synthetic_device *device, uint64_t mark, uint64_t until_ns,
                                uint64_t *passed_ns)
{
    const uint64_t now_ns = synthetic_now_of(device);
    const uint64_t end_ns = now_ns + SLICE_NS < until_ns ? now_ns + SLICE_NS : until_ns;
    const struct timespec end = {(time_t)(end_ns / 1000000000u), (long)(end_ns % 1000000000u)};
    hd_status status = HD_IN_PROGRESS;

    pthread_mutex_lock(&device->lock);
    if (device->passed_count < mark && end_ns > now_ns) {
        pthread_cond_timedwait(&device->passed, &device->lock, &end);
    }
    if (device->passed_count >= mark) {
        const struct passed_mark *row = &device->marks[mark % HD_MARK_MAX];
        *passed_ns = row->passed_ns;
        status = row->status;
    }
    pthread_mutex_unlock(&device->lock);
    return status;
}

hd_status synthetic_reached(struct hd_kernel *kernel, uint64_t mark, uint64_t timeout_ns,
                            uint64_t *passed_ns)
{
    struct synthetic_device *device = kernel->device;
    hd_status status = HD_IN_PROGRESS;

    if (mark == 0 || mark > (device != NULL ? device->mark_count : kernel->mark_count)) {
        return HD_INVALID;
    }
    if (device == NULL) {
        *passed_ns = kernel->host->now_ns(kernel->host->context);
        return HD_OK;
    }
    const uint64_t until_ns = synthetic_now_of(device) + timeout_ns;
    do {
        status = atomic_load(&device->is_aborted)
                     ? HD_ABORTED
                     : synthetic_look(device, mark, until_ns, passed_ns);
        if (status == HD_IN_PROGRESS && synthetic_check_stream(device) != HD_OK) {
            status = HD_DEVICE;
        }
    } while (status == HD_IN_PROGRESS && synthetic_now_of(device) < until_ns);
    return status;
}

#else

/* A C file needs at least one declaration. */
typedef int synthetic_without_cuda;

#endif
