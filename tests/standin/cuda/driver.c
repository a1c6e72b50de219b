/*
 * standin/cuda/driver.c - the driver's calls: writes and waits of a word, in a stream.
 *
 * A wait looks at the word with sleeps of at most half a millisecond between, since whoever
 * writes it may be another process, or the host.
 */
#include "standin/cuda/state.h"

#include <stdlib.h>
#include <string.h>

struct word {
    _Atomic uint64_t *address;
    uint64_t value;
    unsigned flags;
};

static int write_word(void *argument)
{
    const struct word *word = argument;

    atomic_store(word->address, word->value);
    return 1;
}

static int look_at_word(void *argument)
{
    const struct word *word = argument;
    const uint64_t found = atomic_load(word->address);

    switch (word->flags & ~(unsigned)CU_STREAM_WAIT_VALUE_FLUSH) {
    case CU_STREAM_WAIT_VALUE_EQ:
        return found == word->value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (found & word->value) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
        return ~(found | word->value) != 0;
    default: /* GEQ, which is cyclic */
        return (int64_t)(found - word->value) >= 0;
    }
}

static CUresult append_word(CUstream stream, CUdeviceptr address, const struct word *wanted,
                            int (*step)(void *argument))
{
    struct word *word = malloc(sizeof *word);
    const struct standin_work call = {step, free, word};
    void *view = standin_view((void *)(uintptr_t)address, sizeof(uint64_t));
    cudaError_t error = cudaErrorInvalidValue;

    if (word == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (view != NULL && address % sizeof(uint64_t) == 0) {
        *word = *wanted;
        word->address = view;
        error = (cudaError_t)standin_enqueue(stream, &call);
    }
    if (error != cudaSuccess) {
        free(word);
    }
    return (CUresult)error;
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                              unsigned flags)
{
    STANDIN_ENTER_DRIVER("cuStreamWriteValue64");
    const struct word word = {.value = value, .flags = flags};

    if (!standin.settings.has_mem_ops) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return append_word(stream, address, &word, write_word);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
    STANDIN_ENTER_DRIVER("cuStreamWaitValue64");
    const struct word word = {.value = value, .flags = flags};

    if (!standin.settings.has_mem_ops) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if ((flags & ~(unsigned)CU_STREAM_WAIT_VALUE_FLUSH) > CU_STREAM_WAIT_VALUE_NOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return append_word(stream, address, &word, look_at_word);
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    *name = cudaGetErrorName((cudaError_t)error);
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = cudaGetErrorString((cudaError_t)error);
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    static const struct {
        const char *name;
        void (*function)(void);
    } rows[] = {
        {"cuFuncSetAttribute", (void (*)(void))cuFuncSetAttribute},
        {"cuGetErrorName", (void (*)(void))cuGetErrorName},
        {"cuGetErrorString", (void (*)(void))cuGetErrorString},
        {"cuLaunchKernel", (void (*)(void))cuLaunchKernel},
        {"cuModuleGetFunction", (void (*)(void))cuModuleGetFunction},
        {"cuModuleLoadData", (void (*)(void))cuModuleLoadData},
        {"cuModuleUnload", (void (*)(void))cuModuleUnload},
        {"cuStreamWaitValue64", (void (*)(void))cuStreamWaitValue64},
        {"cuStreamWriteValue64", (void (*)(void))cuStreamWriteValue64},
    };
    STANDIN_ENTER("cudaGetDriverEntryPointByVersion");
    (void)flags;

    if ((int)version > standin.settings.driver_version) {
        return standin_leave(cudaErrorInvalidValue);
    }
    *out = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, symbol) == 0) {
            memcpy(out, &rows[i].function, sizeof *out);
        }
    }
    if (found != NULL) {
        *found = *out != NULL ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    }
    return standin_leave(cudaSuccess);
}
