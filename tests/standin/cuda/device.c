/*
 * standin/cuda/device.c - simulated devices, versions, errors, and the begin of every call.
 */
#include "standin/cuda/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local int current_device;
static _Thread_local cudaError_t last_error;
static _Thread_local int is_forbidden_here;
static pthread_once_t settings_once = PTHREAD_ONCE_INIT;

/* --- settings ---------------------------------------------------------------------------- */

static int is_on(const char *value)
{
    return strcmp(value, "off") != 0 && strcmp(value, "0") != 0;
}

static void read_word(const char *word)
{
    struct settings *settings = &standin.settings;
    const char *value = strchr(word, '=');
    const size_t length = value != NULL ? (size_t)(value - word) : 0;
    const struct {
        const char *key;
        int *number;
        int *flag;
    } rows[] = {
        {"devices", &settings->device_count, NULL},
        {"peers", NULL, &settings->has_peers},
        {"driver", &settings->driver_version, NULL},
        {"runtime", &settings->runtime_version, NULL},
        {"mem_ops", NULL, &settings->has_mem_ops},
        {"compute", &settings->compute_capability, NULL},
    };
    int is_known = 0;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && length > 0; i++) {
        if (strlen(rows[i].key) == length && strncmp(rows[i].key, word, length) == 0) {
            is_known = 1;
            if (rows[i].number != NULL) {
                *rows[i].number = atoi(value + 1);
            } else {
                *rows[i].flag = is_on(value + 1);
            }
        }
    }
    if (length == 6 && strncmp(word, "memory", length) == 0) {
        is_known = 1;
        settings->memory_bytes = strtoull(value + 1, NULL, 10);
    }
    if (!is_known) {
        fprintf(stderr, "CUDA stand-in: STANDIN_CUDA: unknown word %s\n", word);
        abort();
    }
}

static uint32_t queue_count(void)
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const int count = text != NULL ? atoi(text) : 8;

    return count < 1 ? 1 : count > QUEUE_MAX ? QUEUE_MAX : (uint32_t)count;
}

static void read_settings(void)
{
    const char *text = getenv("STANDIN_CUDA");
    const char *faults = getenv("STANDIN_CUDA_FAULT");
    char *copy = text != NULL ? strdup(text) : NULL;
    char *rest = NULL;

    standin.settings = (struct settings){.device_count = 1,
                                         .has_peers = 1,
                                         .driver_version = 13000,
                                         .runtime_version = 13000,
                                         .has_mem_ops = 1,
                                         .compute_capability = 90,
                                         .memory_bytes = (uint64_t)8 << 30,
                                         .queue_count = queue_count()};
    for (char *word = copy != NULL ? strtok_r(copy, " ", &rest) : NULL; word != NULL;
         word = strtok_r(NULL, " ", &rest)) {
        read_word(word);
    }
    free(copy);
    if (standin.settings.device_count > DEVICE_MAX ||
        (faults != NULL && standin_fault(faults) != 0)) {
        fprintf(stderr, "CUDA stand-in: STANDIN_CUDA or STANDIN_CUDA_FAULT cannot be read\n");
        abort();
    }
}

/* --- the begin and end of every call ----------------------------------------------------- */

static cudaError_t state_of_driver(void)
{
    const struct settings *settings = &standin.settings;

    if (settings->driver_version / 1000 < settings->runtime_version / 1000) {
        return cudaErrorInsufficientDriver;
    }
    return settings->device_count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

static cudaError_t begin_cuda(void)
{
    pthread_condattr_t monotonic;
    cudaError_t error = cudaSuccess;

    standin_lock();
    if (standin.pid == 0) {
        pthread_condattr_init(&monotonic);
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        pthread_cond_init(&standin.changed, &monotonic);
        pthread_condattr_destroy(&monotonic);
        for (int i = 0; i < DEVICE_MAX; i++) {
            standin_init_queues(&standin.devices[i]);
        }
        standin.pid = getpid();
    } else if (standin.pid != getpid()) {
        error = cudaErrorInitializationError;
    }
    standin_unlock();
    return error;
}

cudaError_t standin_enter_bare(const char *call)
{
    pthread_once(&settings_once, read_settings);
    return standin_fault_of(call);
}

cudaError_t standin_enter(const char *call)
{
    cudaError_t error = standin_enter_bare(call);

    if (error == cudaSuccess) {
        error = state_of_driver();
    }
    if (error == cudaSuccess && is_forbidden_here) {
        error = cudaErrorNotPermitted;
    }
    if (error == cudaSuccess) {
        error = begin_cuda();
    }
    return error == cudaSuccess ? (cudaError_t)atomic_load(&standin.sticky) : error;
}

cudaError_t standin_leave(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady) {
        last_error = error;
    }
    return error;
}

void standin_forbid_calls(int is_forbidden)
{
    is_forbidden_here = is_forbidden;
}

int standin_current_device(void)
{
    return current_device;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;

    last_error = (cudaError_t)atomic_load(&standin.sticky);
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

/* --- versions and devices ---------------------------------------------------------------- */

cudaError_t cudaRuntimeGetVersion(int *version)
{
    const cudaError_t error = standin_enter_bare("cudaRuntimeGetVersion");

    *version = standin.settings.runtime_version;
    return standin_leave(error);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    const cudaError_t error = standin_enter_bare("cudaDriverGetVersion");

    *version = standin.settings.driver_version;
    return standin_leave(error);
}

/* The count is left alone by a call that fails, as the real one does. */
cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t error = standin_enter_bare("cudaGetDeviceCount");

    if (error == cudaSuccess) {
        error = state_of_driver();
    }
    if (error == cudaSuccess) {
        *count = standin.settings.device_count;
    }
    return standin_leave(error);
}

static int is_device(int ordinal)
{
    return ordinal >= 0 && ordinal < standin.settings.device_count;
}

cudaError_t cudaSetDevice(int ordinal)
{
    STANDIN_ENTER("cudaSetDevice");
    if (!is_device(ordinal)) {
        return standin_leave(cudaErrorInvalidDevice);
    }
    current_device = ordinal;
    return standin_leave(cudaSuccess);
}

cudaError_t cudaGetDevice(int *ordinal)
{
    STANDIN_ENTER("cudaGetDevice");
    *ordinal = current_device;
    return standin_leave(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int ordinal)
{
    STANDIN_ENTER("cudaDeviceGetAttribute");
    const struct settings *settings = &standin.settings;

    if (!is_device(ordinal)) {
        return standin_leave(cudaErrorInvalidDevice);
    }
    switch ((int)attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = settings->compute_capability / 10;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = settings->compute_capability % 10;
        break;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1:
        *value = settings->has_mem_ops;
        break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrIpcEventSupport:
        *value = 1;
        break;
    case cudaDevAttrMultiProcessorCount:
    case cudaDevAttrAsyncEngineCount:
        *value = 2;
        break;
    default:
        *value = 0;
        break;
    }
    return standin_leave(cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int ordinal)
{
    STANDIN_ENTER("cudaGetDeviceProperties");
    if (!is_device(ordinal)) {
        return standin_leave(cudaErrorInvalidDevice);
    }
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "heddle stand-in %d", ordinal);
    properties->totalGlobalMem = standin.settings.memory_bytes;
    properties->major = standin.settings.compute_capability / 10;
    properties->minor = standin.settings.compute_capability % 10;
    properties->multiProcessorCount = 2;
    return standin_leave(cudaSuccess);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int ordinal)
{
    STANDIN_ENTER("cudaDeviceGetPCIBusId");
    if (!is_device(ordinal)) {
        return standin_leave(cudaErrorInvalidDevice);
    }
    snprintf(text, (size_t)length, "0000:%02x:00.0", ordinal + 1);
    return standin_leave(cudaSuccess);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    STANDIN_ENTER("cudaDeviceGetStreamPriorityRange");
    *least = 0;
    *greatest = -5;
    return standin_leave(cudaSuccess);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int ordinal, int peer)
{
    STANDIN_ENTER("cudaDeviceCanAccessPeer");
    if (!is_device(ordinal) || !is_device(peer)) {
        return standin_leave(cudaErrorInvalidDevice);
    }
    *can = ordinal != peer && standin.settings.has_peers;
    return standin_leave(cudaSuccess);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    STANDIN_ENTER("cudaDeviceEnablePeerAccess");
    const uint32_t bit = 1u << (unsigned)peer;
    cudaError_t error = cudaErrorPeerAccessAlreadyEnabled;

    if (!is_device(peer) || peer == current_device || flags != 0) {
        return standin_leave(cudaErrorInvalidDevice);
    }
    if (!standin.settings.has_peers) {
        return standin_leave(cudaErrorPeerAccessUnsupported);
    }
    standin_lock();
    if ((standin.devices[current_device].peers & bit) == 0) {
        standin.devices[current_device].peers |= bit;
        error = cudaSuccess;
    }
    standin_unlock();
    return standin_leave(error);
}

/* --- words for errors -------------------------------------------------------------------- */

static const struct {
    cudaError_t error;
    const char *name, *text;
} error_rows[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "used after fork"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "direction does not fit"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "driver too old"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no device"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "no such device"},
    {cudaErrorDeviceUninitialized, "cudaErrorDeviceUninitialized", "own IPC handle"},
    {cudaErrorMapBufferObjectFailed, "cudaErrorMapBufferObjectFailed", "IPC mapping failed"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported", "no peer access"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "no such handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "illegal memory access"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "enabled already"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "CUDA called from a stream's function"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "not supported"},
};

const char *cudaGetErrorName(cudaError_t error)
{
    for (size_t i = 0; i < sizeof error_rows / sizeof error_rows[0]; i++) {
        if (error_rows[i].error == error) {
            return error_rows[i].name;
        }
    }
    return "an error of the CUDA stand-in";
}

const char *cudaGetErrorString(cudaError_t error)
{
    for (size_t i = 0; i < sizeof error_rows / sizeof error_rows[0]; i++) {
        if (error_rows[i].error == error) {
            return error_rows[i].text;
        }
    }
    return "CUDA stand-in: an injected error";
}
