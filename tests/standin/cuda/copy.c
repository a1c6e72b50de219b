/*
 * standin/cuda/copy.c - what a stream does: copies, fills, and functions of the host.
 *
 * Both ends of a copy are looked up when it is enqueued; memory that is not CUDA's counts as
 * pageable memory of the host.
 */
#include "standin/cuda/state.h"

#include <stdlib.h>
#include <string.h>

struct copy {
    unsigned char *target;
    const unsigned char *source; /* NULL: a fill */
    uint64_t bytes;
    int fill;
};

static int do_copy(void *argument)
{
    const struct copy *copy = argument;

    if (copy->source != NULL) {
        memmove(copy->target, copy->source, copy->bytes);
    } else {
        memset(copy->target, copy->fill, copy->bytes);
    }
    return 1;
}

/* Where the stand-in reaches one end; NULL where it lies partly outside an allocation. */
static void *reach(const void *memory, uint64_t bytes, int *is_device)
{
    const struct block *block = standin_block_of(memory, bytes);

    *is_device = block != NULL && block->view != block->address;
    if (block != NULL) {
        return block->view + ((const unsigned char *)memory - block->address);
    }
    return standin_block_of(memory, 0) == NULL ? (void *)(uintptr_t)memory : NULL;
}

/* Does the direction that the caller names fit the two ends? */
static int is_direction(enum cudaMemcpyKind kind, int is_target_device, int is_source_device)
{
    static const struct {
        int target, source;
    } rows[] = {
        [cudaMemcpyHostToHost] = {0, 0},
        [cudaMemcpyHostToDevice] = {1, 0},
        [cudaMemcpyDeviceToHost] = {0, 1},
        [cudaMemcpyDeviceToDevice] = {1, 1},
    };

    return kind == cudaMemcpyDefault ||
           ((unsigned)kind < cudaMemcpyDefault && rows[kind].target == is_target_device &&
            rows[kind].source == is_source_device);
}

static cudaError_t append_copy(cudaStream_t handle, const struct copy *wanted)
{
    struct stream *stream = standin_stream_of(handle);
    struct copy *copy = malloc(sizeof *copy);
    const struct standin_work call = {do_copy, free, copy};
    cudaError_t error = cudaErrorInvalidResourceHandle;

    if (copy != NULL && stream != NULL) {
        *copy = *wanted;
        error = standin_append(stream, &call);
    }
    if (error != cudaSuccess) {
        free(copy);
    }
    return error;
}

static cudaError_t copy_later(void *target, const void *source, size_t bytes,
                              enum cudaMemcpyKind kind, cudaStream_t handle)
{
    int is_target_device = 0;
    int is_source_device = 0;
    cudaError_t error = cudaErrorInvalidValue;

    standin_lock();
    const struct copy copy = {.target = reach(target, bytes, &is_target_device),
                              .source = reach(source, bytes, &is_source_device),
                              .bytes = bytes};
    if (copy.target != NULL && copy.source != NULL) {
        error = is_direction(kind, is_target_device, is_source_device)
                    ? append_copy(handle, &copy)
                    : cudaErrorInvalidMemcpyDirection;
    }
    standin_unlock();
    return error;
}

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t handle)
{
    STANDIN_ENTER("cudaMemcpyAsync");
    if (bytes == 0) {
        return standin_leave(cudaSuccess);
    }
    return standin_leave(copy_later(target, source, bytes, kind, handle));
}

cudaError_t cudaMemcpy(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind)
{
    STANDIN_ENTER("cudaMemcpy");
    cudaError_t error = bytes > 0 ? copy_later(target, source, bytes, kind, NULL) : cudaSuccess;

    if (error == cudaSuccess) {
        error = cudaStreamSynchronize(NULL);
    }
    return standin_leave(error);
}

static cudaError_t fill_later(void *target, int fill, size_t bytes, cudaStream_t handle)
{
    int is_device = 0;
    cudaError_t error = cudaErrorInvalidValue;

    standin_lock();
    const struct copy copy = {
        .target = reach(target, bytes, &is_device), .bytes = bytes, .fill = fill};
    if (copy.target != NULL && standin_block_of(target, bytes) != NULL) {
        error = append_copy(handle, &copy);
    }
    standin_unlock();
    return error;
}

cudaError_t cudaMemsetAsync(void *target, int fill, size_t bytes, cudaStream_t handle)
{
    STANDIN_ENTER("cudaMemsetAsync");
    return standin_leave(bytes > 0 ? fill_later(target, fill, bytes, handle) : cudaSuccess);
}

cudaError_t cudaMemset(void *target, int fill, size_t bytes)
{
    STANDIN_ENTER("cudaMemset");
    return standin_leave(bytes > 0 ? fill_later(target, fill, bytes, NULL) : cudaSuccess);
}

/* --- functions of the host --------------------------------------------------------------- */

struct callback {
    cudaHostFn_t function; /* or: */
    cudaStreamCallback_t stream_function;
    cudaStream_t stream;
    void *argument;
};

static int call_back(void *argument)
{
    const struct callback *callback = argument;

    if (callback->function != NULL) {
        callback->function(callback->argument);
    } else {
        callback->stream_function(callback->stream, cudaSuccess, callback->argument);
    }
    return 1;
}

static cudaError_t append_callback(cudaStream_t handle, const struct callback *wanted)
{
    struct callback *callback = malloc(sizeof *callback);
    const struct standin_work call = {call_back, free, callback};

    if (callback == NULL) {
        return cudaErrorMemoryAllocation;
    }
    *callback = *wanted;
    const cudaError_t error = (cudaError_t)standin_enqueue(handle, &call);
    if (error != cudaSuccess) {
        free(callback);
    }
    return error;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *argument)
{
    STANDIN_ENTER("cudaLaunchHostFunc");
    const struct callback callback = {.function = function, .argument = argument};
    return standin_leave(function != NULL ? append_callback(handle, &callback)
                                          : cudaErrorInvalidValue);
}

cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function,
                                  void *argument, unsigned flags)
{
    STANDIN_ENTER("cudaStreamAddCallback");
    const struct callback callback = {
        .stream_function = function, .stream = handle, .argument = argument};
    return standin_leave(function != NULL && flags == 0 ? append_callback(handle, &callback)
                                                        : cudaErrorInvalidValue);
}
