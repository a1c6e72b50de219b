/*
 * tests/test_cuda_standin_memory.c - the CUDA stand-in keeps CUDA's rules of memory and devices.
 */
#include "standin/process.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>

/* --- memory ------------------------------------------------------------------------------ */

static void memory_rules(void)
{
    unsigned char *memory = new_memory(100);
    unsigned char *other = new_memory(100);
    unsigned char bytes[200] = {1, 2, 3};
    struct cudaPointerAttributes attributes;
    void *pinned = NULL;
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    int ends[2];

    GOOD((cudaError_t)pipe(ends));
    HOLD(write(ends[1], memory, 1) == -1 && errno == EFAULT); /* the host cannot read it */
    HOLD(cudaMemcpyAsync(memory, bytes, 101, cudaMemcpyHostToDevice, NULL) ==
         cudaErrorInvalidValue);
    HOLD(cudaMemcpyAsync(memory, bytes, 100, cudaMemcpyDeviceToDevice, NULL) ==
         cudaErrorInvalidMemcpyDirection);
    HOLD(cudaMemsetAsync(bytes, 0, 4, NULL) == cudaErrorInvalidValue);
    GOOD(cudaMemcpy(memory + 50, bytes, 3, cudaMemcpyHostToDevice));
    GOOD(cudaMemcpy(other, memory + 50, 3, cudaMemcpyDeviceToDevice));
    GOOD(cudaMemcpy(bytes + 100, other, 3, cudaMemcpyDeviceToHost));
    HOLD(memcmp(bytes, bytes + 100, 3) == 0);
    HOLD(standin_view(memory + 50, 51) == NULL && standin_view(bytes, 1) == NULL);
    HOLD(standin_device_of(memory) == 0 && standin_device_of(bytes) == -2);

    GOOD(cudaHostAlloc(&pinned, 64, cudaHostAllocDefault));
    GOOD(cudaPointerGetAttributes(&attributes, pinned));
    HOLD(attributes.type == cudaMemoryTypeHost);
    GOOD(cudaPointerGetAttributes(&attributes, memory + 1));
    HOLD(attributes.type == cudaMemoryTypeDevice && attributes.hostPointer == NULL);
    GOOD(cudaPointerGetAttributes(&attributes, bytes));
    HOLD(attributes.type == cudaMemoryTypeUnregistered);
    GOOD(cudaHostRegister(bytes, sizeof bytes, cudaHostRegisterMapped));
    HOLD(cudaHostRegister(bytes + 8, 8, 0) == cudaErrorHostMemoryAlreadyRegistered);
    GOOD(cudaHostUnregister(bytes));
    HOLD(cudaHostUnregister(bytes) == cudaErrorHostMemoryNotRegistered);
    GOOD(cudaFreeHost(pinned));
    GOOD(cudaMemGetInfo(&free_bytes, &total_bytes));
    HOLD(total_bytes == 65536 && free_bytes == 65536 - 200);
    HOLD(cudaMalloc(&pinned, 65536) == cudaErrorMemoryAllocation);
    HOLD(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
    GOOD(cudaFree(memory));
    GOOD(cudaFree(other));
    GOOD(cudaMemGetInfo(&free_bytes, &total_bytes));
    HOLD(free_bytes == 65536);
}

static atomic_int is_freed;

static void *free_memory(void *memory)
{
    GOOD(cudaFree(memory));
    atomic_store(&is_freed, 1);
    return NULL;
}

/* A gate that opens once cudaFree has been called, and sees that it has not returned. */
static int look_at_free(void *argument)
{
    if (standin_call_count("cudaFree") == 0) {
        return 0;
    }
    atomic_store((atomic_int *)argument, atomic_load(&is_freed) ? 2 : 1);
    return 1;
}

static void free_waits(void)
{
    atomic_int seen = 0;
    pthread_t thread;
    const struct standin_work work = {look_at_free, NULL, &seen};
    cudaStream_t stream = new_stream();

    GOOD((cudaError_t)standin_enqueue(stream, &work));
    HOLD(pthread_create(&thread, NULL, free_memory, new_memory(64)) == 0);
    pthread_join(thread, NULL);
    HOLD(atomic_load(&seen) == 1);
}

static void after_fork(void)
{
    new_memory(64);
    const pid_t child = fork();
    if (child == 0) {
        void *memory = NULL;
        _exit(cudaMalloc(&memory, 64) == cudaErrorInitializationError ? 0 : 1);
    }
    HOLD(end_of(child) == 0);
}

static void devices(void)
{
    int can = -1;
    int device = -1;

    GOOD(cudaDeviceCanAccessPeer(&can, 0, 1));
    HOLD(can == (getenv("STANDIN_CUDA")[10] == '\0'));
    GOOD(cudaSetDevice(1));
    HOLD(cudaSetDevice(2) == cudaErrorInvalidDevice);
    HOLD(standin_device_of(new_memory(64)) == 1);
    GOOD(cudaGetDevice(&device));
    HOLD(device == 1);
    const cudaError_t first = cudaDeviceEnablePeerAccess(0, 0);
    HOLD(first == (can ? cudaSuccess : cudaErrorPeerAccessUnsupported));
    HOLD(!can || cudaDeviceEnablePeerAccess(0, 0) == cudaErrorPeerAccessAlreadyEnabled);
}

static void memory_and_devices(void)
{
    in_child(memory_rules, "memory=65536");
    in_child(free_waits, NULL);
    in_child(after_fork, NULL);
    in_child(devices, "devices=2 ");
    in_child(devices, "devices=2 peers=off");
}

/* --- two processes ----------------------------------------------------------------------- */

/* What the exporter tells the importer. */
struct card {
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t event;
    atomic_int is_there, is_done;
};

static void fill_from_afar(struct card *card)
{
    void *memory = NULL;
    void *again = NULL;
    cudaEvent_t event = NULL;
    cudaStream_t stream = new_stream();

    while (atomic_load(&card->is_there) == 0) {
        sched_yield(); /* the test's own limit bounds it */
    }
    HOLD(cudaIpcOpenMemHandle(&memory, card->memory, 0) == cudaErrorInvalidValue);
    GOOD(cudaIpcOpenMemHandle(&memory, card->memory, cudaIpcMemLazyEnablePeerAccess));
    GOOD(cudaIpcOpenMemHandle(&again, card->memory, cudaIpcMemLazyEnablePeerAccess));
    HOLD(memory == again);
    GOOD(cudaIpcCloseMemHandle(again));
    HOLD(cudaFree(memory) == cudaErrorInvalidValue); /* it is not ours */
    GOOD(cudaIpcOpenEventHandle(&event, card->event));
    GOOD(cudaStreamWaitEvent(stream, event, 0)); /* the exporter's fill comes first */
    GOOD(cudaMemsetAsync(memory, 3, 2048, stream));
    GOOD((cudaError_t)cuStreamWriteValue64(stream, of((unsigned char *)memory + 4096), 1, 0));
    GOOD(cudaStreamSynchronize(stream));
    GOOD(cudaIpcCloseMemHandle(memory));
    HOLD(cudaIpcCloseMemHandle(memory) == cudaErrorInvalidValue);
    GOOD(cudaEventDestroy(event));
}

static void export_and_wait(struct card *card)
{
    atomic_int gate = 0;
    unsigned char *memory = new_memory(8192);
    unsigned char bytes[4096] = {0};
    void *own = NULL;
    cudaEvent_t event = NULL;
    cudaStream_t stream = new_stream();

    GOOD(cudaMemset(memory, 0, 8192));
    GOOD(cudaDeviceSynchronize());
    HOLD(cudaEventCreateWithFlags(&event, cudaEventInterprocess) == cudaErrorInvalidValue);
    GOOD(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming));
    GOOD(cudaIpcGetMemHandle(&card->memory, memory + 100)); /* stands for the whole */
    GOOD(cudaIpcGetEventHandle(&card->event, event));
    HOLD(cudaIpcOpenMemHandle(&own, card->memory, cudaIpcMemLazyEnablePeerAccess) ==
         cudaErrorDeviceUninitialized);
    put_gate(stream, &gate);
    GOOD(cudaMemsetAsync(memory, 5, 4096, stream));
    GOOD(cudaEventRecord(event, stream));
    GOOD((cudaError_t)cuStreamWaitValue64(stream, of(memory + 4096), 1, CU_STREAM_WAIT_VALUE_GEQ));
    GOOD(cudaMemcpyAsync(bytes, memory, 4096, cudaMemcpyDeviceToHost, stream));
    atomic_store(&card->is_there, 1);
    open_gate(&gate);
    GOOD(cudaStreamSynchronize(stream));
    HOLD(bytes[0] == 3 && bytes[2047] == 3 && bytes[2048] == 5 && bytes[4095] == 5);
}

static void memory_and_events_cross_processes(void)
{
    struct card *card =
        mmap(NULL, sizeof *card, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CU_ASSERT_FATAL(card != MAP_FAILED);
    fflush(NULL);
    const pid_t importer = fork();
    if (importer == 0) {
        fill_from_afar(card);
        exit(failed);
    }
    const pid_t exporter = fork();
    if (exporter == 0) {
        export_and_wait(card);
        exit(failed);
    }
    CU_ASSERT_EQUAL(end_of(exporter), 0);
    CU_ASSERT_EQUAL(end_of(importer), 0);
    munmap(card, sizeof *card);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"device memory is not the host's, and devices are checked", memory_and_devices},
        {"memory and events cross processes", memory_and_events_cross_processes},
    };
    return hd_check_main("CUDA stand-in, memory", checks, HD_CHECK_COUNT(checks));
}
