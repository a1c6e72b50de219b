/*
 * standin/cuda/event.c - events: two counters, how often recorded and up to which completed.
 *
 * A wait takes the count at its call, as CUDA does: later records do not move it.  The
 * counters of an interprocess event lie in a memfd of their own.
 */
#include "standin/cuda/state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WORDS_BYTES = 4096 };

/* A handle is an address, which may be anybody's: it is looked up before it is followed. */
static struct event **bucket_of(const void *handle)
{
    return &standin.events[(uintptr_t)handle / sizeof(struct event) % EVENT_BUCKET_COUNT];
}

struct event *standin_event_of(cudaEvent_t handle)
{
    for (struct event *event = *bucket_of((void *)handle); event != NULL; event = event->next) {
        if ((void *)event == (void *)handle && !event->is_closed) {
            return event;
        }
    }
    return NULL;
}

void standin_add_event(struct event *event)
{
    struct event **bucket = bucket_of(event);

    event->holder_count = 1;
    event->next = *bucket;
    *bucket = event;
}

static void let_go(struct event *event)
{
    struct event **link = bucket_of(event);

    if (--event->holder_count > 0) {
        return;
    }
    while (*link != event) {
        link = &(*link)->next;
    }
    *link = event->next;
    if (event->descriptor >= 0 || event->is_imported) {
        munmap(event->words, WORDS_BYTES);
    } else {
        free(event->words);
    }
    if (event->descriptor >= 0) {
        close(event->descriptor);
    }
    free(event);
}

static int make_words(struct event *event)
{
    if ((event->flags & cudaEventInterprocess) == 0) {
        event->words = calloc(1, sizeof *event->words);
        return event->words != NULL;
    }
    event->descriptor = memfd_create("heddle-cuda-standin-event", MFD_CLOEXEC);
    if (event->descriptor < 0 || ftruncate(event->descriptor, WORDS_BYTES) != 0) {
        return 0;
    }
    void *words = mmap(NULL, WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, event->descriptor, 0);
    event->words = words == MAP_FAILED ? NULL : words;
    return event->words != NULL;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    STANDIN_ENTER("cudaEventCreateWithFlags");
    const int is_timed = (flags & cudaEventDisableTiming) == 0;
    if (out == NULL || ((flags & cudaEventInterprocess) != 0 && is_timed)) {
        return standin_leave(cudaErrorInvalidValue);
    }
    struct event *event = calloc(1, sizeof *event);
    if (event == NULL) {
        return standin_leave(cudaErrorMemoryAllocation);
    }
    event->flags = flags;
    event->descriptor = -1;
    event->device = standin_current_device();
    if (!make_words(event)) {
        if (event->descriptor >= 0) {
            close(event->descriptor);
        }
        free(event);
        return standin_leave(cudaErrorMemoryAllocation);
    }
    standin_lock();
    standin_add_event(event);
    standin_unlock();
    *out = (cudaEvent_t)(void *)event;
    return standin_leave(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle)
{
    STANDIN_ENTER("cudaEventDestroy");
    standin_lock();
    struct event *event = standin_event_of(handle);
    if (event != NULL) {
        event->is_closed = 1;
        let_go(event);
    }
    standin_unlock();
    return standin_leave(event != NULL ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

/* --- work -------------------------------------------------------------------------------- */

struct ticket {
    struct event *event;
    uint64_t count;
};

static int complete(void *argument)
{
    const struct ticket *ticket = argument;
    uint64_t before = atomic_load(&ticket->event->words->completed);

    standin_lock();
    ticket->event->completed_ns = standin_now_ns();
    standin_unlock();
    while (before < ticket->count && !atomic_compare_exchange_weak(&ticket->event->words->completed,
                                                                   &before, ticket->count)) {
        /* another record has moved it: look again */
    }
    return 1;
}

static int look(void *argument)
{
    const struct ticket *ticket = argument;
    return atomic_load(&ticket->event->words->completed) >= ticket->count;
}

static void end_ticket(void *argument)
{
    struct ticket *ticket = argument;

    standin_lock();
    let_go(ticket->event);
    standin_unlock();
    free(ticket);
}

/* Appends `step` for the count `count` of `event`; the lock is held. */
static cudaError_t append_ticket(struct stream *stream, struct event *event, uint64_t count,
                                 int (*step)(void *argument))
{
    struct ticket *ticket = malloc(sizeof *ticket);
    const struct standin_work call = {step, end_ticket, ticket};

    if (ticket == NULL) {
        return cudaErrorMemoryAllocation;
    }
    *ticket = (struct ticket){event, count};
    event->holder_count++;
    const cudaError_t error = standin_append(stream, &call);
    if (error != cudaSuccess) {
        let_go(event);
        free(ticket);
    }
    return error;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle)
{
    STANDIN_ENTER("cudaEventRecord");
    cudaError_t error = cudaErrorInvalidResourceHandle;

    standin_lock();
    struct event *event = standin_event_of(handle);
    struct stream *stream = standin_stream_of(stream_handle);
    if (event != NULL && stream != NULL && (stream->device == event->device)) {
        const uint64_t count = atomic_fetch_add(&event->words->recorded, 1) + 1;
        error = append_ticket(stream, event, count, complete);
    }
    standin_unlock();
    return standin_leave(error);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t handle, unsigned flags)
{
    STANDIN_ENTER("cudaStreamWaitEvent");
    cudaError_t error = cudaErrorInvalidResourceHandle;

    standin_lock();
    struct event *event = standin_event_of(handle);
    struct stream *stream = standin_stream_of(stream_handle);
    if (flags != 0) {
        error = cudaErrorInvalidValue;
    } else if (event != NULL && stream != NULL) {
        error = append_ticket(stream, event, atomic_load(&event->words->recorded), look);
    }
    standin_unlock();
    return standin_leave(error);
}

static int is_complete(const struct event *event)
{
    return atomic_load(&event->words->completed) >= atomic_load(&event->words->recorded);
}

cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    STANDIN_ENTER("cudaEventQuery");
    cudaError_t error = cudaErrorInvalidResourceHandle;

    standin_lock();
    const struct event *event = standin_event_of(handle);
    if (event != NULL) {
        error = is_complete(event) ? cudaSuccess : cudaErrorNotReady;
    }
    standin_unlock();
    return standin_leave(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    STANDIN_ENTER("cudaEventSynchronize");
    enum { PATIENCE_NS = 1000000 }; /* an event of another process wakes nobody here */

    standin_lock();
    struct event *event = standin_event_of(handle);
    if (event == NULL) {
        standin_unlock();
        return standin_leave(cudaErrorInvalidResourceHandle);
    }
    const uint64_t count = atomic_load(&event->words->recorded);
    event->holder_count++;
    while (atomic_load(&event->words->completed) < count && atomic_load(&standin.sticky) == 0) {
        standin_sleep(PATIENCE_NS);
    }
    let_go(event);
    standin_unlock();
    return standin_leave((cudaError_t)atomic_load(&standin.sticky));
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin_handle,
                                 cudaEvent_t end_handle)
{
    STANDIN_ENTER("cudaEventElapsedTime");
    cudaError_t error = cudaErrorInvalidResourceHandle;

    standin_lock();
    const struct event *begin = standin_event_of(begin_handle);
    const struct event *end = standin_event_of(end_handle);
    if (begin != NULL && end != NULL &&
        ((begin->flags | end->flags) & cudaEventDisableTiming) == 0 &&
        atomic_load(&begin->words->recorded) > 0 && atomic_load(&end->words->recorded) > 0) {
        error = is_complete(begin) && is_complete(end) ? cudaSuccess : cudaErrorNotReady;
    }
    if (error == cudaSuccess) {
        /* Less than 0 where the end came first, as with CUDA. */
        *milliseconds = (float)((double)(int64_t)(end->completed_ns - begin->completed_ns) / 1e6);
    }
    standin_unlock();
    return standin_leave(error);
}
