/*
 * tests/test_cuda_standin.c - the CUDA stand-in keeps CUDA's order: streams, events, words, faults.
 */
#include "standin/process.h"

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

/* --- stream memory operations ------------------------------------------------------------ */

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
        {"streams write words and wait for them", stream_memory_operations},
        {"faults strike where they are told", faults_strike_where_they_are_told},
    };
    return hd_check_main("CUDA stand-in", checks, HD_CHECK_COUNT(checks));
}
