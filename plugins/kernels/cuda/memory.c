/*
 * plugins/kernels/cuda/memory.c - regions, copies, and the stage program's work on a payload.
 *
 * CUDA blocks in a copy between pageable memory and the device.  So small copies (tokens, terms,
 * norms) go through a ring of pinned memory: sent bytes are copied into it at once, fetched bytes
 * are copied out of it when a later mark is reached.  Large copies (masters, checkpoints) happen
 * outside of steps and may block.
 */
#include "driver.h"

#include <string.h>

static hd_status cuda_allocate(struct hd_ops_device *device, uint64_t bytes, const char *tag,
                               void **out)
{
    struct hd_cuda *driver = device->driver;
    const struct hd_host *host = driver->host;
    HD_TRY(hd_cuda_enter(driver));
    struct hd_cuda_region *region = host->alloc(host->context, sizeof *region, 64, "kernel");
    if (region == NULL) {
        return hd_cuda_fail(driver, HD_NO_MEMORY, "cannot allocate the record of a device region");
    }
    const cudaError_t error = driver->cuda.cudaMalloc(&region->memory, bytes);
    if (error != cudaSuccess) {
        host->free(host->context, region);
        return hd_cuda_fail_call(driver, "cudaMalloc", error);
    }
    region->bytes = bytes;
    region->tag = tag;
    region->next = driver->regions;
    driver->regions = region;
    host->account(host->context, (int64_t)bytes, tag);
    *out = region->memory;
    return HD_OK;
}

/* --- copies ----------------------------------------------------------------------------------- */

static bool cuda_is_own(const struct hd_cuda *driver, const void *memory)
{
    const char *address = memory;
    const struct hd_cuda_region *region = driver->regions;
    while (region != NULL && (address < (const char *)region->memory ||
                              address >= (const char *)region->memory + region->bytes)) {
        region = region->next;
    }
    return region != NULL;
}

/* CUDA is asked about memory that is not a region of ours: a transport's slot, or the host's. */
static bool cuda_is_pageable(struct hd_cuda *driver, const void *memory)
{
    struct cudaPointerAttributes about;
    if (cuda_is_own(driver, memory)) {
        return false;
    }
    const cudaError_t error = driver->cuda.cudaPointerGetAttributes(&about, memory);
    return error == cudaSuccess && about.type == cudaMemoryTypeUnregistered;
}

/* NULL if the ring is full, or the copy too large for it. */
static struct hd_cuda_staged *cuda_stage_bytes(struct hd_cuda *driver, uint64_t bytes)
{
    struct hd_cuda_staging *staging = &driver->staging;
    const uint64_t rounded = (bytes + 63) / 64 * 64;
    const uint64_t at = staging->taken_bytes % HD_CUDA_STAGING_BYTES;
    const uint64_t skip = at + rounded > HD_CUDA_STAGING_BYTES ? HD_CUDA_STAGING_BYTES - at : 0;
    const uint64_t used = staging->taken_bytes - staging->done_bytes;
    if (staging->taken_count - staging->done_count == HD_CUDA_STAGED_MAX ||
        rounded > HD_CUDA_STAGING_BYTES / 4 || used + skip + rounded > HD_CUDA_STAGING_BYTES) {
        return NULL;
    }
    struct hd_cuda_staged *staged = &staging->entries[staging->taken_count++ % HD_CUDA_STAGED_MAX];
    *staged = (struct hd_cuda_staged){
        .offset = staging->taken_bytes + skip, .bytes = bytes, .mark = driver->marks.last + 1};
    staging->taken_bytes += skip + rounded;
    return staged;
}

static char *cuda_staged_at(const struct hd_cuda_staging *staging,
                            const struct hd_cuda_staged *staged)
{
    return staging->memory + staged->offset % HD_CUDA_STAGING_BYTES;
}

void hd_cuda_finish_staged(struct hd_cuda *driver, uint64_t passed)
{
    struct hd_cuda_staging *staging = &driver->staging;
    while (staging->done_count < staging->taken_count) {
        const struct hd_cuda_staged *staged =
            &staging->entries[staging->done_count % HD_CUDA_STAGED_MAX];
        if (staged->mark > passed) {
            return;
        }
        if (staged->target != NULL) {
            memcpy(staged->target, cuda_staged_at(staging, staged), staged->bytes);
        }
        staging->done_bytes = staged->offset + (staged->bytes + 63) / 64 * 64;
        staging->done_count++;
    }
}

static hd_status cuda_copy(struct hd_ops_device *device, void *target, const void *source,
                           uint64_t bytes, uint32_t fill)
{
    struct hd_cuda *driver = device->driver;
    cudaError_t error = cudaSuccess;
    HD_TRY(hd_cuda_enter(driver));
    if (bytes == 0) {
        return HD_OK;
    }
    if (source == NULL) {
        error = driver->cuda.cudaMemsetAsync(target, (int)(uint8_t)fill, bytes, driver->stream);
        return error == cudaSuccess ? HD_OK : hd_cuda_fail_call(driver, "cudaMemsetAsync", error);
    }
    const bool is_sent = cuda_is_pageable(driver, source);
    const bool is_fetched = cuda_is_pageable(driver, target);
    struct hd_cuda_staged *staged = is_sent != is_fetched ? cuda_stage_bytes(driver, bytes) : NULL;
    if (staged != NULL && is_sent) {
        source = memcpy(cuda_staged_at(&driver->staging, staged), source, bytes);
    } else if (staged != NULL) {
        staged->target = target;
        target = cuda_staged_at(&driver->staging, staged);
    }
    error = driver->cuda.cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, driver->stream);
    return error == cudaSuccess ? HD_OK : hd_cuda_fail_call(driver, "cudaMemcpyAsync", error);
}

hd_status hd_cuda_drain(struct hd_ops_device *device)
{
    uint64_t mark, unused;
    HD_TRY(hd_cuda_mark(device, &mark));
    return hd_cuda_reached(device, mark, UINT64_MAX, &unused);
}

static void cuda_abort_device(struct hd_ops_device *device)
{
    atomic_store(&device->driver->is_aborted, 1);
}

/* --- payload and terms ------------------------------------------------------------------------ */

static hd_status cuda_write_stamp(struct hd_ops_device *device, const struct hd_stamp_args *args)
{
    return hd_cuda_run(device, HD_CUDA_write_stamp, 1, args);
}

static hd_status cuda_check_payload(struct hd_ops_device *device, const struct hd_check_args *args)
{
    struct hd_check_args with_fault = *args;
    with_fault.fault = device->driver->device_fault;
    return hd_cuda_run(device, HD_CUDA_check_payload, 1, &with_fault);
}

static hd_status cuda_add_terms(struct hd_ops_device *device, const struct hd_terms_args *args)
{
    return hd_cuda_run(device, HD_CUDA_add_terms, 1, args);
}

const struct hd_remote hd_cuda_remote = {
    .allocate = cuda_allocate,
    .copy = cuda_copy,
    .mark = hd_cuda_mark,
    .reached = hd_cuda_reached,
    .abort = cuda_abort_device,
    .drain = hd_cuda_drain,
    .write_stamp = cuda_write_stamp,
    .check_payload = cuda_check_payload,
    .add_terms = cuda_add_terms,
};
