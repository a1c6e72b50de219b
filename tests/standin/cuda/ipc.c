/*
 * standin/cuda/ipc.c - memory and events of another process, through its memfd.
 *
 * As with CUDA: the exporter itself cannot open its handle, a second opening in one process
 * counts up and gives the same address, and the handle stands for the whole allocation.
 */
#include "standin/cuda/state.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HANDLE_MAGIC 0x646e617473616475ull

/* What stands in the 64 bytes of a handle. */
struct handle {
    uint64_t magic;
    int64_t pid;
    uint64_t serial;
    uint64_t bytes;
    uint64_t mapped_bytes;
    int32_t descriptor;
    int32_t device;
};

_Static_assert(sizeof(struct handle) <= CUDA_IPC_HANDLE_SIZE, "a handle has 64 bytes");

static int open_of(const struct handle *handle)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)handle->pid, handle->descriptor);
    return open(path, O_RDWR | O_CLOEXEC);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *memory)
{
    STANDIN_ENTER("cudaIpcGetMemHandle");
    standin_lock();
    const struct block *block = standin_block_of(memory, 0);
    const int is_own = block != NULL && block->kind == BLOCK_DEVICE;
    if (is_own) {
        const struct handle handle = {HANDLE_MAGIC, standin.pid,         block->serial,
                                      block->bytes, block->mapped_bytes, block->descriptor,
                                      block->device};
        memset(out, 0, sizeof *out);
        memcpy(out, &handle, sizeof handle);
    }
    standin_unlock();
    return standin_leave(is_own ? cudaSuccess : cudaErrorInvalidValue);
}

static struct block *imported_already(const struct handle *handle)
{
    for (struct block *block = standin.blocks; block != NULL; block = block->next) {
        if (block->kind == BLOCK_IMPORTED && block->pid == handle->pid && block->open_count > 0 &&
            block->serial == handle->serial) {
            return block;
        }
    }
    return NULL;
}

static cudaError_t import(const struct handle *handle, struct block **out)
{
    struct block *block = calloc(1, sizeof *block);

    if (block == NULL) {
        return cudaErrorMemoryAllocation;
    }
    block->kind = BLOCK_IMPORTED;
    block->bytes = handle->bytes;
    block->mapped_bytes = handle->mapped_bytes;
    block->device = handle->device;
    block->pid = handle->pid;
    block->descriptor = open_of(handle);
    if (block->descriptor < 0 || standin_map_device(block) != cudaSuccess) {
        standin_unmap(block);
        free(block);
        return cudaErrorMapBufferObjectFailed;
    }
    standin_add_block(block);
    block->serial = handle->serial;
    *out = block;
    return cudaSuccess;
}

/* What CUDA refuses before it looks for the memory. */
static cudaError_t check_handle(const struct handle *handle, unsigned flags)
{
    const int own = standin_current_device();

    if (handle->magic != HANDLE_MAGIC || flags != cudaIpcMemLazyEnablePeerAccess) {
        return cudaErrorInvalidValue;
    }
    if (handle->pid == standin.pid) {
        return cudaErrorDeviceUninitialized;
    }
    if (handle->device >= standin.settings.device_count) {
        return cudaErrorInvalidDevice;
    }
    return handle->device != own && !standin.settings.has_peers ? cudaErrorPeerAccessUnsupported
                                                                : cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t wire, unsigned flags)
{
    STANDIN_ENTER("cudaIpcOpenMemHandle");
    struct handle handle;
    struct block *block = NULL;

    memcpy(&handle, &wire, sizeof handle);
    standin_lock();
    cudaError_t error = check_handle(&handle, flags);
    if (error == cudaSuccess) {
        block = imported_already(&handle);
        error = block == NULL ? import(&handle, &block) : cudaSuccess;
    }
    if (error == cudaSuccess) {
        block->open_count++;
        *memory = block->address;
    }
    standin_unlock();
    return standin_leave(error);
}

cudaError_t cudaIpcCloseMemHandle(void *memory)
{
    STANDIN_ENTER("cudaIpcCloseMemHandle");
    cudaError_t error = cudaErrorInvalidValue;

    standin_lock();
    struct block *block = standin_block_of(memory, 0);
    if (block != NULL && block->kind == BLOCK_IMPORTED && block->address == memory) {
        error = standin_drain();
        if (error == cudaSuccess && --block->open_count == 0) {
            standin_remove_block(block);
            standin_unmap(block);
            free(block);
        }
    }
    standin_unlock();
    return standin_leave(error);
}

/* --- events ------------------------------------------------------------------------------ */

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *out, cudaEvent_t event_handle)
{
    STANDIN_ENTER("cudaIpcGetEventHandle");
    standin_lock();
    const struct event *event = standin_event_of(event_handle);
    const int is_shared = event != NULL && event->descriptor >= 0;
    if (is_shared) {
        const struct handle handle = {.magic = HANDLE_MAGIC,
                                      .pid = standin.pid,
                                      .descriptor = event->descriptor,
                                      .device = event->device};
        memset(out, 0, sizeof *out);
        memcpy(out, &handle, sizeof handle);
    }
    standin_unlock();
    return standin_leave(is_shared ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

static cudaError_t map_event(struct event *event, const struct handle *handle)
{
    const int descriptor = open_of(handle);
    void *words = MAP_FAILED;

    if (descriptor >= 0) {
        words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        close(descriptor);
    }
    event->words = words;
    return words == MAP_FAILED ? cudaErrorMapBufferObjectFailed : cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *out, cudaIpcEventHandle_t wire)
{
    STANDIN_ENTER("cudaIpcOpenEventHandle");
    struct handle handle;
    memcpy(&handle, &wire, sizeof handle);
    if (handle.magic != HANDLE_MAGIC) {
        return standin_leave(cudaErrorInvalidValue);
    }
    if (handle.pid == standin.pid) {
        return standin_leave(cudaErrorDeviceUninitialized);
    }
    struct event *event = calloc(1, sizeof *event);
    cudaError_t error = event != NULL ? map_event(event, &handle) : cudaErrorMemoryAllocation;
    if (error != cudaSuccess) {
        free(event);
        return standin_leave(error);
    }
    event->flags = cudaEventInterprocess | cudaEventDisableTiming;
    event->device = handle.device;
    event->descriptor = -1;
    event->is_imported = 1;
    standin_lock();
    standin_add_event(event);
    standin_unlock();
    *out = (cudaEvent_t)(void *)event;
    return standin_leave(cudaSuccess);
}
