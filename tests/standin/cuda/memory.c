/*
 * standin/cuda/memory.c - device memory that the host cannot touch, and pinned host memory.
 *
 * A device allocation is a memfd, mapped twice: without any permission where CUDA's callers
 * see it, and readable where the stand-in works.  Another process maps the same memfd.
 */
#include "standin/cuda/state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    UNSET_BYTE = 0xA5,         /* fresh memory holds no zeros that somebody could rely on */
    UNSET_BYTES_MAX = 1 << 20, /* of a larger allocation only the begin */
};

struct block *standin_block_of(const void *memory, uint64_t bytes)
{
    const unsigned char *address = memory;

    for (struct block *block = standin.blocks; block != NULL; block = block->next) {
        if (address >= block->address && address < block->address + block->bytes) {
            const uint64_t left_bytes = (uint64_t)(block->address + block->bytes - address);
            return bytes <= left_bytes ? block : NULL;
        }
    }
    return NULL;
}

void standin_add_block(struct block *block)
{
    block->serial = ++standin.serial;
    block->next = standin.blocks;
    standin.blocks = block;
}

void standin_remove_block(struct block *block)
{
    struct block **link = &standin.blocks;

    while (*link != block) {
        link = &(*link)->next;
    }
    *link = block->next;
}

void standin_unmap(struct block *block)
{
    if (block->address != NULL) {
        munmap(block->address, block->mapped_bytes);
    }
    if (block->view != NULL) {
        munmap(block->view, block->mapped_bytes);
    }
    if (block->descriptor >= 0) {
        close(block->descriptor);
    }
}

/* Both mappings of the memfd; what fails is undone by standin_unmap. */
cudaError_t standin_map_device(struct block *block)
{
    void *address = mmap(NULL, block->mapped_bytes, PROT_NONE, MAP_SHARED, block->descriptor, 0);
    void *view =
        mmap(NULL, block->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, block->descriptor, 0);

    block->address = address == MAP_FAILED ? NULL : address;
    block->view = view == MAP_FAILED ? NULL : view;
    return block->address != NULL && block->view != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

static struct block *new_block(enum block_kind kind, uint64_t bytes)
{
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    struct block *block = calloc(1, sizeof *block);

    if (block != NULL) {
        block->kind = kind;
        block->bytes = bytes;
        block->mapped_bytes = (bytes + page_bytes - 1) / page_bytes * page_bytes;
        block->descriptor = -1;
        block->device = kind == BLOCK_DEVICE ? standin_current_device() : -1;
    }
    return block;
}

static cudaError_t make_device_block(struct block *block)
{
    block->descriptor = memfd_create("heddle-cuda-standin", MFD_CLOEXEC);
    if (block->descriptor < 0 || ftruncate(block->descriptor, (off_t)block->mapped_bytes) != 0) {
        return cudaErrorMemoryAllocation;
    }
    const cudaError_t error = standin_map_device(block);
    if (error == cudaSuccess) {
        memset(block->view, UNSET_BYTE,
               block->bytes < UNSET_BYTES_MAX ? block->bytes : UNSET_BYTES_MAX);
    }
    return error;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    STANDIN_ENTER("cudaMalloc");
    struct device *device = &standin.devices[standin_current_device()];
    if (memory == NULL) {
        return standin_leave(cudaErrorInvalidValue);
    }
    *memory = NULL;
    if (bytes == 0) {
        return standin_leave(cudaSuccess);
    }
    standin_lock();
    const uint64_t left_bytes = standin.settings.memory_bytes - device->used_bytes;
    struct block *block = bytes <= left_bytes ? new_block(BLOCK_DEVICE, bytes) : NULL;
    cudaError_t error = block != NULL ? make_device_block(block) : cudaErrorMemoryAllocation;
    if (error == cudaSuccess) {
        standin_add_block(block);
        device->used_bytes += bytes;
        *memory = block->address;
    } else if (block != NULL) {
        standin_unmap(block);
        free(block);
    }
    standin_unlock();
    return standin_leave(error);
}

/* Frees what begins at `memory`, once nothing in this process is under way. */
static cudaError_t release_block(const void *memory, enum block_kind kind)
{
    cudaError_t error = cudaErrorInvalidValue;

    standin_lock();
    struct block *block = standin_block_of(memory, 0);
    if (block != NULL && block->kind == kind && block->address == memory) {
        error = standin_drain();
    }
    if (block != NULL && error == cudaSuccess) {
        standin_remove_block(block);
        if (kind == BLOCK_DEVICE) {
            standin.devices[block->device].used_bytes -= block->bytes;
            standin_unmap(block);
        } else if (kind == BLOCK_PINNED) {
            free(block->address);
        }
        free(block);
    }
    standin_unlock();
    return error;
}

cudaError_t cudaFree(void *memory)
{
    STANDIN_ENTER("cudaFree");
    return standin_leave(memory == NULL ? cudaSuccess : release_block(memory, BLOCK_DEVICE));
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    STANDIN_ENTER("cudaHostAlloc");
    (void)flags;
    if (memory == NULL || bytes == 0) {
        return standin_leave(cudaErrorInvalidValue);
    }
    *memory = NULL;
    struct block *block = new_block(BLOCK_PINNED, bytes);
    unsigned char *address = block != NULL ? aligned_alloc(4096, block->mapped_bytes) : NULL;
    if (address == NULL) {
        free(block);
        return standin_leave(cudaErrorMemoryAllocation);
    }
    memset(address, UNSET_BYTE, bytes);
    block->address = address;
    block->view = address;
    standin_lock();
    standin_add_block(block);
    standin_unlock();
    *memory = address;
    return standin_leave(cudaSuccess);
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    return cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *memory)
{
    STANDIN_ENTER("cudaFreeHost");
    return standin_leave(memory == NULL ? cudaSuccess : release_block(memory, BLOCK_PINNED));
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    STANDIN_ENTER("cudaHostRegister");
    (void)flags;
    if (memory == NULL || bytes == 0) {
        return standin_leave(cudaErrorInvalidValue);
    }
    struct block *block = new_block(BLOCK_REGISTERED, bytes);
    if (block == NULL) {
        return standin_leave(cudaErrorMemoryAllocation);
    }
    block->address = memory;
    block->view = memory;
    standin_lock();
    const int is_taken = standin_block_of(memory, 0) != NULL ||
                         standin_block_of((unsigned char *)memory + bytes - 1, 0) != NULL;
    if (!is_taken) {
        standin_add_block(block);
    }
    standin_unlock();
    if (is_taken) {
        free(block);
        return standin_leave(cudaErrorHostMemoryAlreadyRegistered);
    }
    return standin_leave(cudaSuccess);
}

cudaError_t cudaHostUnregister(void *memory)
{
    STANDIN_ENTER("cudaHostUnregister");
    const cudaError_t error = release_block(memory, BLOCK_REGISTERED);
    return standin_leave(error == cudaErrorInvalidValue ? cudaErrorHostMemoryNotRegistered : error);
}

cudaError_t cudaHostGetDevicePointer(void **device_memory, void *memory, unsigned flags)
{
    STANDIN_ENTER("cudaHostGetDevicePointer");
    standin_lock();
    const struct block *block = standin_block_of(memory, 0);
    const int is_host = block != NULL && block->view == block->address;
    standin_unlock();
    if (!is_host || flags != 0 || device_memory == NULL) {
        return standin_leave(cudaErrorInvalidValue);
    }
    *device_memory = memory; /* unified addresses: both sides use one */
    return standin_leave(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    STANDIN_ENTER("cudaMemGetInfo");
    standin_lock();
    *total_bytes = standin.settings.memory_bytes;
    *free_bytes = *total_bytes - standin.devices[standin_current_device()].used_bytes;
    standin_unlock();
    return standin_leave(cudaSuccess);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *memory)
{
    STANDIN_ENTER("cudaPointerGetAttributes");
    standin_lock();
    const struct block *block = standin_block_of(memory, 0);
    memset(attributes, 0, sizeof *attributes);
    attributes->device = block != NULL ? block->device : -2;
    attributes->type = cudaMemoryTypeUnregistered;
    if (block != NULL) {
        const int is_host = block->view == block->address;
        attributes->type = is_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
        attributes->devicePointer = (void *)(uintptr_t)memory;
        attributes->hostPointer = is_host ? (void *)(uintptr_t)memory : NULL;
    }
    standin_unlock();
    return standin_leave(cudaSuccess);
}

void *standin_view(const void *memory, uint64_t bytes)
{
    void *view = NULL;

    standin_lock();
    const struct block *block = standin_block_of(memory, bytes);
    if (block != NULL) {
        view = block->view + ((const unsigned char *)memory - block->address);
    }
    standin_unlock();
    return view;
}

int standin_device_of(const void *memory)
{
    standin_lock();
    const struct block *block = standin_block_of(memory, 0);
    const int device = block != NULL ? block->device : -2;
    standin_unlock();
    return device;
}
