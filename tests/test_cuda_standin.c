/*
 * tests/test_cuda_standin.c - the CUDA stand-in keeps CUDA's order and CUDA's rules.
 *
 * Every check runs in a process of its own, which has CUDA from there on; nothing here sleeps:
 * what must not have happened yet is held by a gate in a stream.
 */
#include "support/check.h"

#include "standin/standin.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int failed; /* in a child */

#define HOLD(what)                                                 \
    do {                                                           \
        if (!(what)) {                                             \
            fprintf(stderr, "line %d: not %s\n", __LINE__, #what); \
            failed = 1;                                            \
        }                                                          \
    } while (0)
#define GOOD(call) HOLD((call) == cudaSuccess)

static int end_of(pid_t child)
{
    int status = -1;
    return waitpid(child, &status, 0) == child ? status : -1;
}

/* `settings` are the stand-in's; NULL: none. */
static void in_child(void (*body)(void), const char *settings)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        if (settings != NULL) {
            setenv("STANDIN_CUDA", settings, 1);
        }
        body();
        exit(failed);
    }
    CU_ASSERT_EQUAL(end_of(child), 0);
}

/* --- gates ------------------------------------------------------------------------------- */

static int is_open(void *argument)
{
    return atomic_load((atomic_int *)argument);
}

static void put_gate(cudaStream_t stream, atomic_int *gate)
{
    const struct standin_work work = {is_open, NULL, gate};
    GOOD((cudaError_t)standin_enqueue(stream, &work));
}

static void open_gate(atomic_int *gate)
{
    atomic_store(gate, 1);
    standin_poke();
}

static cudaStream_t new_stream(void)
{
    cudaStream_t stream = NULL;
    GOOD(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1));
    return stream;
}

static cudaEvent_t new_event(void)
{
    cudaEvent_t event = NULL;
    GOOD(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

static unsigned char *new_memory(size_t bytes)
{
    void *memory = NULL;
    GOOD(cudaMalloc(&memory, bytes));
    return memory;
}

/* --- streams and events ------------------------------------------------------------------ */

static void stream_order(void)
{
    atomic_int gate = 0;
    unsigned char *memory = new_memory(4096);
    unsigned char bytes[4096] = {0};
    cudaStream_t stream = new_stream();

    put_gate(stream, &gate);
    GOOD(cudaMemsetAsync(memory, 1, 4096, stream));
    GOOD(cudaMemsetAsync(memory, 2, 2048, stream));
    GOOD(cudaMemcpyAsync(bytes, memory, 4096, cudaMemcpyDeviceToHost, stream));
    HOLD(cudaStreamQuery(stream) == cudaErrorNotReady);
    HOLD(bytes[0] == 0);
    open_gate(&gate);
    GOOD(cudaStreamSynchronize(stream));
    HOLD(bytes[0] == 2 && bytes[2047] == 2 && bytes[2048] == 1 && bytes[4095] == 1);
    GOOD(cudaStreamDestroy(stream));
    HOLD(cudaStreamQuery(stream) == cudaErrorInvalidResourceHandle);
    GOOD(cudaFree(memory));
    HOLD(cudaFree(memory) == cudaErrorInvalidValue);
}

static void event_order(void)
{
    atomic_int gates[2] = {0, 0};
    unsigned char *memory = new_memory(64);
    unsigned char bytes[64] = {0};
    cudaStream_t first = new_stream();
    cudaStream_t second = new_stream();
    cudaEvent_t event = new_event();

    GOOD(cudaEventQuery(event)); /* never recorded */
    put_gate(first, &gates[0]);
    GOOD(cudaMemsetAsync(memory, 7, 64, first));
    GOOD(cudaEventRecord(event, first));
    GOOD(cudaStreamWaitEvent(second, event, 0));
    GOOD(cudaMemcpyAsync(bytes, memory, 64, cudaMemcpyDefault, second));
    put_gate(first, &gates[1]);
    GOOD(cudaEventRecord(event, first)); /* does not move the wait before it */
    HOLD(cudaEventQuery(event) == cudaErrorNotReady);
    HOLD(cudaStreamQuery(second) == cudaErrorNotReady);
    open_gate(&gates[0]);
    GOOD(cudaStreamSynchronize(second));
    HOLD(bytes[0] == 7 && bytes[63] == 7);
    HOLD(cudaEventQuery(event) == cudaErrorNotReady);
    open_gate(&gates[1]);
    GOOD(cudaEventSynchronize(event));
    GOOD(cudaEventDestroy(event));
    HOLD(cudaEventQuery(event) == cudaErrorInvalidResourceHandle);
    GOOD(cudaFree(memory));
}

static void event_times(void)
{
    float milliseconds = -1;
    cudaEvent_t begin = NULL;
    cudaEvent_t end = NULL;
    cudaEvent_t untimed = new_event();
    cudaStream_t stream = new_stream();

    GOOD(cudaEventCreateWithFlags(&begin, cudaEventDefault));
    GOOD(cudaEventCreateWithFlags(&end, cudaEventDefault));
    HOLD(cudaEventElapsedTime(&milliseconds, begin, end) == cudaErrorInvalidResourceHandle);
    GOOD(cudaEventRecord(begin, stream));
    GOOD(cudaEventRecord(untimed, stream));
    GOOD(cudaEventRecord(end, stream));
    GOOD(cudaEventSynchronize(end));
    GOOD(cudaEventElapsedTime(&milliseconds, begin, end));
    HOLD(milliseconds >= 0);
    HOLD(cudaEventElapsedTime(&milliseconds, begin, untimed) == cudaErrorInvalidResourceHandle);
}

/* Two streams of one hardware queue: the second stands behind the first's gate. */
static void shared_queue(void)
{
    atomic_int gate = 0;
    cudaStream_t first = new_stream();
    cudaStream_t second = new_stream();
    unsigned char *memory = new_memory(64);

    put_gate(first, &gate);
    GOOD(cudaMemsetAsync(memory, 1, 64, second));
    if (getenv("CUDA_DEVICE_MAX_CONNECTIONS") != NULL) {
        HOLD(cudaStreamQuery(second) == cudaErrorNotReady);
        open_gate(&gate);
    }
    GOOD(cudaStreamSynchronize(second)); /* with queues of their own it needs no gate */
    open_gate(&gate);
    GOOD(cudaDeviceSynchronize());
}

static void one_queue(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    shared_queue();
}

static void legacy_stream(void)
{
    atomic_int gates[2] = {0, 0};
    cudaStream_t blocking = NULL;
    cudaStream_t free_stream = new_stream();
    unsigned char *memory = new_memory(64);

    GOOD(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault));
    put_gate(free_stream, &gates[0]);
    put_gate(blocking, &gates[1]);
    GOOD(cudaMemsetAsync(memory, 1, 64, NULL));
    GOOD(cudaMemsetAsync(memory, 2, 64, blocking)); /* behind the legacy one */
    HOLD(cudaStreamQuery(NULL) == cudaErrorNotReady);
    open_gate(&gates[1]);
    GOOD(cudaStreamSynchronize(NULL));
    GOOD(cudaStreamSynchronize(blocking));
    HOLD(cudaStreamQuery(free_stream) == cudaErrorNotReady);
    HOLD(*(unsigned char *)standin_view(memory, 64) == 2);
    open_gate(&gates[0]);
    GOOD(cudaFree(memory));
}

static void count_and_call(void *argument)
{
    int device = -1;

    if (cudaGetDevice(&device) == cudaErrorNotPermitted) {
        atomic_fetch_add((atomic_int *)argument, 1);
    }
}

static void count_callback(cudaStream_t stream, cudaError_t error, void *argument)
{
    (void)stream;
    atomic_fetch_add((atomic_int *)argument, error == cudaSuccess);
}

static void host_functions(void)
{
    atomic_int count = 0;
    cudaStream_t stream = new_stream();

    GOOD(cudaLaunchHostFunc(stream, count_and_call, &count));
    GOOD(cudaStreamAddCallback(stream, count_callback, &count, 0));
    GOOD(cudaStreamSynchronize(stream));
    HOLD(atomic_load(&count) == 2);
}

static void streams_and_events(void)
{
    in_child(stream_order, NULL);
    in_child(event_order, NULL);
    in_child(event_times, NULL);
    in_child(shared_queue, NULL);
    in_child(one_queue, NULL);
    in_child(legacy_stream, NULL);
    in_child(host_functions, NULL);
}

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

/* --- stream memory operations ------------------------------------------------------------ */

static CUdeviceptr of(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

struct wait_row {
    uint64_t found, value;
    unsigned flags;
    int is_over;
};

static const struct wait_row wait_rows[] = {
    {5, 5, CU_STREAM_WAIT_VALUE_GEQ, 1},
    {4, 5, CU_STREAM_WAIT_VALUE_GEQ, 0},
    {6, 5, CU_STREAM_WAIT_VALUE_GEQ | CU_STREAM_WAIT_VALUE_FLUSH, 1},
    {(uint64_t)1 << 62, 5, CU_STREAM_WAIT_VALUE_GEQ, 1}, /* poison */
    {((uint64_t)1 << 63) + 5, 5, CU_STREAM_WAIT_VALUE_GEQ, 0},
    {2, UINT64_MAX, CU_STREAM_WAIT_VALUE_GEQ, 1}, /* cyclic */
    {6, 5, CU_STREAM_WAIT_VALUE_EQ, 0},
    {5, 5, CU_STREAM_WAIT_VALUE_EQ, 1},
    {6, 8, CU_STREAM_WAIT_VALUE_AND, 0},
    {6, 4, CU_STREAM_WAIT_VALUE_AND, 1},
    {UINT64_MAX - 1, 1, CU_STREAM_WAIT_VALUE_NOR, 0},
    {UINT64_MAX - 3, 1, CU_STREAM_WAIT_VALUE_NOR, 1},
};

static void words(void)
{
    static _Atomic uint64_t word;
    unsigned char *memory = new_memory(64);
    cudaStream_t stream = new_stream();

    GOOD((cudaError_t)cuStreamWriteValue64(stream, of(memory + 8), 77, 0));
    HOLD(cuStreamWriteValue64(stream, of(memory + 4), 1, 0) == CUDA_ERROR_INVALID_VALUE);
    HOLD(cuStreamWriteValue64(stream, of(&word), 1, 0) == CUDA_ERROR_INVALID_VALUE);
    GOOD(cudaHostRegister(&word, sizeof word, cudaHostRegisterMapped));
    GOOD(cudaStreamSynchronize(stream));
    HOLD(*(uint64_t *)standin_view(memory + 8, 8) == 77);
    for (size_t i = 0; i < sizeof wait_rows / sizeof wait_rows[0]; i++) {
        const struct wait_row *row = &wait_rows[i];
        atomic_int passed = 0;
        atomic_store(&word, row->found);
        GOOD((cudaError_t)cuStreamWaitValue64(stream, of(&word), row->value, row->flags));
        GOOD(cudaLaunchHostFunc(stream, (cudaHostFn_t)open_gate, &passed));
        if (!row->is_over) { /* the host lets it go, as abort does */
            HOLD(cudaStreamQuery(stream) == cudaErrorNotReady);
            HOLD(atomic_load(&passed) == 0);
            atomic_store(&word, row->flags == CU_STREAM_WAIT_VALUE_NOR ? 0 : row->value);
        }
        GOOD(cudaStreamSynchronize(stream));
        HOLD(atomic_load(&passed) == 1);
    }
}

/* One stream's write ends another's wait, and what was before the write is there. */
static void message(void)
{
    unsigned char *memory = new_memory(4096);
    unsigned char *word = new_memory(64);
    unsigned char bytes[4096] = {0};
    cudaStream_t source = new_stream();
    cudaStream_t target = new_stream();

    GOOD(cudaMemset(word, 0, 64));
    GOOD(cudaDeviceSynchronize()); /* a fill is no more than enqueued */
    GOOD((cudaError_t)cuStreamWaitValue64(target, of(word), 1, CU_STREAM_WAIT_VALUE_GEQ));
    GOOD(cudaMemcpyAsync(bytes, memory, 4096, cudaMemcpyDeviceToHost, target));
    GOOD(cudaMemsetAsync(memory, 9, 4096, source));
    GOOD((cudaError_t)cuStreamWriteValue64(source, of(word), 1, 0));
    GOOD(cudaStreamSynchronize(target));
    HOLD(bytes[0] == 9 && bytes[4095] == 9);
}

static void no_memory_operations(void)
{
    int value = -1;
    unsigned char *memory = new_memory(64);

    GOOD(cudaDeviceGetAttribute(
        &value, (enum cudaDeviceAttr)CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0));
    HOLD(value == 0);
    HOLD(cuStreamWriteValue64(NULL, of(memory), 1, 0) == CUDA_ERROR_NOT_SUPPORTED);
}

static void stream_memory_operations(void)
{
    in_child(words, NULL);
    in_child(message, NULL);
    in_child(no_memory_operations, "mem_ops=off");
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

/* --- faults ------------------------------------------------------------------------------ */

static void refused_calls(void)
{
    void *memory = NULL;

    HOLD(standin_fault("cudaMalloc:2:2 cudaFree:1:700") == 0);
    HOLD(standin_fault("cudaMalloc:0:2") == -1 && standin_fault("cudaMalloc:1") == -1 &&
         standin_fault("cudaMalloc:1:never") == -1);
    GOOD(cudaMalloc(&memory, 64));
    HOLD(cudaFree(memory) == cudaErrorIllegalAddress);
    GOOD(cudaFree(memory));
    HOLD(cudaMalloc(&memory, 64) == cudaErrorMemoryAllocation);
    GOOD(cudaMalloc(&memory, 64));
    HOLD(standin_call_count("cudaMalloc") == 3);
}

static void sticking_error(void)
{
    unsigned char *memory = new_memory(64);
    cudaStream_t stream = new_stream();
    cudaStream_t other = new_stream();
    atomic_int never = 0;

    put_gate(other, &never); /* dropped with everything else */
    HOLD(standin_fault("cudaMemsetAsync:1:async:700") == 0);
    GOOD(cudaMemsetAsync(memory, 0, 64, stream));
    HOLD(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
    HOLD(cudaStreamSynchronize(other) == cudaErrorIllegalAddress);
    HOLD(cudaFree(memory) == cudaErrorIllegalAddress);
}

static void hanging_work(void)
{
    unsigned char *memory = new_memory(64);
    cudaStream_t stream = new_stream();
    cudaStream_t other = new_stream();

    GOOD(cudaMemsetAsync(memory, 0, 64, stream)); /* the first: STANDIN_CUDA_FAULT */
    GOOD(cudaMemsetAsync(memory, 1, 64, other));
    GOOD(cudaStreamSynchronize(other));
    HOLD(cudaStreamQuery(stream) == cudaErrorNotReady);
}

static void faults_strike_where_they_are_told(void)
{
    in_child(refused_calls, NULL);
    in_child(sticking_error, NULL);
    setenv("STANDIN_CUDA_FAULT", "cudaMemsetAsync:1:hang", 1);
    in_child(hanging_work, NULL);
    unsetenv("STANDIN_CUDA_FAULT");
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"streams and events keep their order", streams_and_events},
        {"device memory is not the host's, and devices are checked", memory_and_devices},
        {"streams write words and wait for them", stream_memory_operations},
        {"memory and events cross processes", memory_and_events_cross_processes},
        {"faults strike where they are told", faults_strike_where_they_are_told},
    };
    return hd_check_main("CUDA stand-in", checks, HD_CHECK_COUNT(checks));
}
