/*
 * tests/standin/process.h - checks of the CUDA stand-in, each in a process of its own.
 *
 * A process has CUDA from its first call on, and reads the stand-in's settings once; so the parent
 * makes no call.  Nothing sleeps: what must not have happened yet is held by a gate in a stream.
 */
#ifndef STANDIN_PROCESS_H
#define STANDIN_PROCESS_H

#include "standin/standin.h"
#include "support/check.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
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

static inline int end_of(pid_t child)
{
    int status = -1;
    return waitpid(child, &status, 0) == child ? status : -1;
}

/* `settings` are the stand-in's; NULL: none. */
static inline void in_child(void (*body)(void), const char *settings)
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

static inline int is_open(void *argument)
{
    return atomic_load((atomic_int *)argument);
}

static inline void put_gate(cudaStream_t stream, atomic_int *gate)
{
    const struct standin_work work = {is_open, NULL, gate};
    GOOD((cudaError_t)standin_enqueue(stream, &work));
}

static inline void open_gate(atomic_int *gate)
{
    atomic_store(gate, 1);
    standin_poke();
}

static inline cudaStream_t new_stream(void)
{
    cudaStream_t stream = NULL;
    GOOD(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1));
    return stream;
}

static inline cudaEvent_t new_event(void)
{
    cudaEvent_t event = NULL;
    GOOD(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

static inline unsigned char *new_memory(size_t bytes)
{
    void *memory = NULL;
    GOOD(cudaMalloc(&memory, bytes));
    return memory;
}

static inline CUdeviceptr of(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

#endif /* STANDIN_PROCESS_H */
