/*
 * standin/nccl/signal.c - memory that can be a window, puts, and signals that are only counted.
 *
 * A signal says nothing but that one more came from that sender on that communicator: whoever
 * sends data and acknowledgements of two channels over one communicator will see them mixed up.
 */
#include "standin/nccl/state.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#define EXPORT STANDIN_EXPORT

enum { ALLOCATION_MAX = 256, PAGE_BYTES = 4096 };

/* As NCCL 2.30 declares it. */
struct wait_signal {
    int signal_count, peer, signal_index, context;
};

struct signalling {
    struct ncclComm *comm;
    int is_put, is_wait, is_hung;
    int failure;
    const unsigned char *source;
    uint64_t bytes, offset;
    uint64_t expected; /* wait: signals of the peer in all */
};

static struct {
    pthread_mutex_t lock;
    struct {
        unsigned char *memory;
        uint64_t bytes;
    } rows[ALLOCATION_MAX];
} allocations = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- memory ------------------------------------------------------------------------------ */

EXPORT ncclResult_t ncclMemAlloc(void **memory, size_t bytes)
{
    const size_t whole = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;

    if (cudaMalloc(memory, whole) != cudaSuccess) {
        return refuse(ncclUnhandledCudaError, "stand-in: no memory of the device");
    }
    pthread_mutex_lock(&allocations.lock);
    for (unsigned i = 0; i < ALLOCATION_MAX; i++) {
        if (allocations.rows[i].memory == NULL) {
            allocations.rows[i].memory = *memory;
            allocations.rows[i].bytes = whole;
            break;
        }
    }
    pthread_mutex_unlock(&allocations.lock);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclMemFree(void *memory)
{
    pthread_mutex_lock(&allocations.lock);
    for (unsigned i = 0; i < ALLOCATION_MAX; i++) {
        if (allocations.rows[i].memory == memory) {
            allocations.rows[i].memory = NULL;
        }
    }
    pthread_mutex_unlock(&allocations.lock);
    return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

static int is_of_nccl(const unsigned char *memory, uint64_t bytes)
{
    int found = 0;

    pthread_mutex_lock(&allocations.lock);
    for (unsigned i = 0; i < ALLOCATION_MAX; i++) {
        found =
            found || (allocations.rows[i].memory != NULL && memory >= allocations.rows[i].memory &&
                      memory + bytes <= allocations.rows[i].memory + allocations.rows[i].bytes);
    }
    pthread_mutex_unlock(&allocations.lock);
    return found;
}

/* --- windows ----------------------------------------------------------------------------- */

ncclResult_t look_at_window(struct ncclComm *comm)
{
    const int peer = 1 - comm->rank;
    char value[32];

    if (!comm->is_registering) {
        return ncclSuccess;
    }
    if (atomic_load(&comm->region->window[peer]) == 0) {
        return ncclInProgress;
    }
    comm->is_registering = 0;
    if (atomic_load(&comm->region->window_bytes[peer]) != comm->window_bytes) {
        return refuse(ncclInvalidUsage, "stand-in: a symmetric window has one size at both ends");
    }
    if (strcmp(environment("windows", "on", value), "on") == 0) {
        *comm->window_out = (ncclWindow_t)comm; /* one window a communicator */
    }
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes,
                                           ncclWindow_t *window, int flags)
{
    if (flags != NCCL_WIN_COLL_SYMMETRIC || !is_of_nccl(memory, bytes)) {
        return refuse(ncclInvalidUsage,
                      "stand-in: a symmetric window lies in ncclMemAlloc's memory");
    }
    *window = NULL;
    comm->window_out = window;
    comm->window_base = memory;
    comm->window_bytes = bytes;
    comm->is_registering = 1;
    atomic_store(&comm->region->window_bytes[comm->rank], bytes);
    atomic_store(&comm->region->window[comm->rank],
                 (uint64_t)(uintptr_t)standin_view(memory, bytes));
    return ncclInProgress;
}

EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    (void)window;
    comm->window_base = NULL;
    return ncclSuccess;
}

/* --- on the stream's thread -------------------------------------------------------------- */

static int put(const struct signalling *work)
{
    const struct region *region = work->comm->region;
    const int peer = 1 - work->comm->rank;
    const uint64_t address = atomic_load(&region->window[peer]) + work->offset;
    const uint64_t bytes = is_broken("torn") ? work->bytes - 1 : work->bytes;
    const struct iovec local = {(void *)(uintptr_t)work->source, bytes};
    const struct iovec remote = {(void *)(uintptr_t)address, bytes};

    return process_vm_writev(atomic_load(&region->pid[peer]), &local, 1, &remote, 1, 0) ==
           (ssize_t)bytes;
}

static int step(void *argument)
{
    struct signalling *work = argument;
    struct ncclComm *comm = work->comm;

    if (atomic_load(&comm->is_over)) {
        return 1;
    }
    if (work->failure != 0) {
        atomic_store(&comm->error, work->failure);
        return 0;
    }
    if (work->is_hung) {
        return 0;
    }
    if (work->is_wait) {
        return atomic_load(&comm->region->signals[1 - comm->rank]) >= work->expected;
    }
    if (work->is_put && !put(work)) {
        return 0; /* the peer has died */
    }
    const uint64_t before = atomic_fetch_add(&comm->region->signals[comm->rank], 1u);
    if (before == 0 && is_broken("stray")) {
        atomic_fetch_add(&comm->region->signals[comm->rank], 1u);
    }
    standin_poke();
    return 1;
}

static void finish(void *argument)
{
    struct signalling *work = argument;

    drop_comm(work->comm);
    free(work);
}

/* --- calls ------------------------------------------------------------------------------- */

static ncclResult_t post(const char *call, const struct signalling *wanted, cudaStream_t stream)
{
    int error = 0;
    const enum fate fate = fate_of(call, &error);
    struct signalling *work = malloc(sizeof *work);

    if (work == NULL || fate == FATE_RETURN) {
        free(work);
        return refuse((ncclResult_t)error, "stand-in: as STANDIN_NCCL_FAULT says");
    }
    *work = *wanted;
    work->is_hung = fate == FATE_HANG;
    work->failure = fate == FATE_ASYNC ? error : 0;
    keep_comm(work->comm);
    const struct standin_work row = {.step = step, .finish = finish, .argument = work};
    return submit(work->comm, stream, &row);
}

EXPORT ncclResult_t ncclPutSignal(const void *source, size_t count, ncclDataType_t type, int peer,
                                  ncclWindow_t window, size_t offset, int signal_index, int context,
                                  unsigned int flags, ncclComm_t comm, cudaStream_t stream)
{
    const struct signalling work = {.comm = comm,
                                    .is_put = 1,
                                    .source = standin_view(source, count),
                                    .bytes = count,
                                    .offset = offset};
    const unsigned char *bytes = source;

    if (signal_index != 0 || context != 0 || flags != 0 || type != ncclUint8 ||
        peer != 1 - comm->rank) {
        return refuse(ncclInvalidArgument, "stand-in: index, context and flags are 0");
    }
    if (window != (ncclWindow_t)comm || comm->window_base == NULL || bytes < comm->window_base ||
        bytes + count > comm->window_base + comm->window_bytes ||
        offset + count > comm->window_bytes) {
        return refuse(ncclInvalidArgument, "stand-in: source and target lie in the window");
    }
    return post("ncclPutSignal", &work, stream);
}

EXPORT ncclResult_t ncclSignal(int peer, int signal_index, int context, unsigned int flags,
                               ncclComm_t comm, cudaStream_t stream)
{
    const struct signalling work = {.comm = comm};

    if (signal_index != 0 || context != 0 || flags != 0 || peer != 1 - comm->rank) {
        return refuse(ncclInvalidArgument, "stand-in: index, context and flags are 0");
    }
    return post("ncclSignal", &work, stream);
}

EXPORT ncclResult_t ncclWaitSignal(int count, struct wait_signal *signals, ncclComm_t comm,
                                   cudaStream_t stream)
{
    if (count != 1 || signals->signal_index != 0 || signals->context != 0 ||
        signals->peer != 1 - comm->rank || signals->signal_count < 1) {
        return refuse(ncclInvalidArgument, "stand-in: one descriptor, of the other rank");
    }
    comm->expected_signals += (uint64_t)signals->signal_count;
    const struct signalling work = {.comm = comm, .is_wait = 1, .expected = comm->expected_signals};
    return post("ncclWaitSignal", &work, stream);
}
