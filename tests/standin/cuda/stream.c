/*
 * standin/cuda/stream.c - streams as ordered queues, each hardware queue with a thread.
 *
 * A stream belongs to one of the device's queues; work of one queue runs in the order in which
 * it was enqueued, whichever stream it is of, so a wait holds up all that stands behind it.
 * The legacy stream has a queue of its own, and waits for the blocking streams as CUDA says.
 */
#include "standin/cuda/state.h"

#include <stdlib.h>
#include <time.h>

enum {
    SLEEP_FIRST_NS = 20000,
    SLEEP_LAST_NS = 500000,
    PATIENCE_NS = 100000000, /* waits of the host look again so often, whatever wakes them */
};

struct standin standin = {.lock = PTHREAD_MUTEX_INITIALIZER};

void standin_lock(void)
{
    pthread_mutex_lock(&standin.lock);
}

void standin_unlock(void)
{
    pthread_mutex_unlock(&standin.lock);
}

int64_t standin_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void standin_sleep(int64_t duration_ns)
{
    const int64_t end_ns = standin_now_ns() + duration_ns;
    const struct timespec end = {.tv_sec = end_ns / 1000000000, .tv_nsec = end_ns % 1000000000};

    standin.waiter_count++;
    pthread_cond_timedwait(&standin.changed, &standin.lock, &end);
    standin.waiter_count--;
}

static void announce(void)
{
    if (standin.waiter_count > 0) {
        pthread_cond_broadcast(&standin.changed);
    }
}

void standin_poke(void)
{
    standin_lock();
    announce();
    standin_unlock();
}

/* --- running ----------------------------------------------------------------------------- */

/* Until it is done, or CUDA as a whole has failed. */
static void run(const struct work *work)
{
    int64_t pause_ns = SLEEP_FIRST_NS;
    int is_done = 0;

    while (!is_done && atomic_load(&standin.sticky) == 0) {
        is_done = !work->is_hung && work->call.step(work->call.argument);
        if (!is_done) {
            standin_lock();
            standin_sleep(pause_ns);
            standin_unlock();
            pause_ns = pause_ns < SLEEP_LAST_NS ? pause_ns * 2 : SLEEP_LAST_NS;
        }
    }
}

static void let_go(struct stream *stream)
{
    struct stream **link = &standin.streams;

    if (--stream->holder_count > 0) {
        return;
    }
    while (*link != stream) {
        link = &(*link)->next;
    }
    *link = stream->next;
    free(stream);
}

static void end(struct work *work)
{
    struct stream *stream = work->stream;

    if (work->call.finish != NULL) {
        work->call.finish(work->call.argument);
    }
    free(work);
    standin_lock();
    stream->done_count++;
    let_go(stream);
    announce();
    standin_unlock();
}

static struct work *next_work(struct queue *queue)
{
    standin_lock();
    while (queue->head == NULL) {
        pthread_cond_wait(&queue->filled, &standin.lock);
    }
    struct work *work = queue->head;
    queue->head = work->next;
    if (queue->head == NULL) {
        queue->tail = &queue->head;
    }
    standin_unlock();
    return work;
}

static void *serve(void *argument)
{
    struct queue *queue = argument;

    standin_forbid_calls(1);
    for (;;) { /* to the end of the process, asleep where there is nothing */
        struct work *work = next_work(queue);
        if (work->failure != cudaSuccess) {
            atomic_store(&standin.sticky, (int)work->failure);
        }
        run(work);
        end(work);
    }
    return NULL;
}

void standin_init_queues(struct device *device)
{
    for (uint32_t i = 0; i <= QUEUE_MAX; i++) {
        device->queues[i].tail = &device->queues[i].head;
        pthread_cond_init(&device->queues[i].filled, NULL);
    }
}

static cudaError_t start(struct queue *queue)
{
    pthread_attr_t attributes;
    pthread_t thread;

    if (queue->is_started) {
        return cudaSuccess;
    }
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    const int error = pthread_create(&thread, &attributes, serve, queue);
    pthread_attr_destroy(&attributes);
    queue->is_started = error == 0;
    return error == 0 ? cudaSuccess : cudaErrorMemoryAllocation;
}

/* --- enqueuing --------------------------------------------------------------------------- */

/* `has_fate`: it is what the caller enqueued, and not a wait of ours before it. */
static cudaError_t push(struct stream *stream, const struct standin_work *call, int has_fate)
{
    struct work *work = calloc(1, sizeof *work);
    const cudaError_t error = work != NULL ? start(stream->queue) : cudaErrorMemoryAllocation;

    if (error != cudaSuccess) {
        free(work);
        return error;
    }
    work->stream = stream;
    work->call = *call;
    if (has_fate) {
        standin_take_fate(work);
    }
    stream->enqueued_count++;
    stream->holder_count++;
    *stream->queue->tail = work;
    stream->queue->tail = &work->next;
    pthread_cond_signal(&stream->queue->filled);
    return cudaSuccess;
}

struct stream_wait {
    struct stream *stream;
    uint64_t count;
};

static int look_at_stream(void *argument)
{
    const struct stream_wait *wait = argument;

    standin_lock();
    const int is_done = wait->stream->done_count >= wait->count;
    standin_unlock();
    return is_done;
}

static void end_stream_wait(void *argument)
{
    struct stream_wait *wait = argument;

    standin_lock();
    let_go(wait->stream);
    standin_unlock();
    free(wait);
}

static cudaError_t push_wait(struct stream *stream, struct stream *other)
{
    if (other->done_count == other->enqueued_count) {
        return cudaSuccess;
    }
    struct stream_wait *wait = malloc(sizeof *wait);
    const struct standin_work call = {look_at_stream, end_stream_wait, wait};
    if (wait == NULL) {
        return cudaErrorMemoryAllocation;
    }
    *wait = (struct stream_wait){other, other->enqueued_count};
    other->holder_count++;
    const cudaError_t error = push(stream, &call, 0);
    if (error != cudaSuccess) {
        let_go(other);
        free(wait);
    }
    return error;
}

/* What the legacy stream and the blocking ones owe each other. */
static cudaError_t push_legacy_waits(struct stream *stream)
{
    struct stream *legacy = standin.devices[stream->device].legacy;
    cudaError_t error = cudaSuccess;

    if (stream != legacy) {
        const int is_blocking = (stream->flags & cudaStreamNonBlocking) == 0;
        return is_blocking && legacy != NULL ? push_wait(stream, legacy) : cudaSuccess;
    }
    for (struct stream *other = standin.streams; error == cudaSuccess && other != NULL;
         other = other->next) {
        if (other != legacy && other->device == stream->device &&
            (other->flags & cudaStreamNonBlocking) == 0) {
            error = push_wait(stream, other);
        }
    }
    return error;
}

cudaError_t standin_append(struct stream *stream, const struct standin_work *call)
{
    cudaError_t error = push_legacy_waits(stream);

    if (error == cudaSuccess) {
        error = push(stream, call, 1);
    }
    return error;
}

int standin_enqueue(void *stream, const struct standin_work *work)
{
    standin_lock();
    struct stream *found = standin_stream_of(stream);
    const cudaError_t error =
        found != NULL ? standin_append(found, work) : cudaErrorInvalidResourceHandle;
    standin_unlock();
    return (int)error;
}

/* --- streams ----------------------------------------------------------------------------- */

static struct stream *new_stream(unsigned flags, int priority, uint32_t queue)
{
    const int device = standin_current_device();
    struct stream *stream = calloc(1, sizeof *stream);

    if (stream != NULL) {
        stream->device = device;
        stream->flags = flags;
        stream->priority = priority;
        stream->queue = &standin.devices[device].queues[queue];
        stream->holder_count = 1;
        stream->next = standin.streams;
        standin.streams = stream;
    }
    return stream;
}

struct stream *standin_stream_of(cudaStream_t handle)
{
    struct device *device = &standin.devices[standin_current_device()];

    if (handle == NULL || handle == cudaStreamLegacy) {
        if (device->legacy == NULL) {
            device->legacy = new_stream(0, 0, QUEUE_MAX);
        }
        return device->legacy;
    }
    for (struct stream *stream = standin.streams; stream != NULL; stream = stream->next) {
        if ((void *)stream == (void *)handle && !stream->is_closed) {
            return stream;
        }
    }
    return NULL;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    STANDIN_ENTER("cudaStreamCreateWithPriority");
    struct device *device = &standin.devices[standin_current_device()];
    if (out == NULL || flags > cudaStreamNonBlocking) {
        return standin_leave(cudaErrorInvalidValue);
    }
    standin_lock();
    const uint32_t queue = device->stream_serial++ % standin.settings.queue_count;
    struct stream *stream = new_stream(flags, priority, queue);
    standin_unlock();
    *out = (cudaStream_t)(void *)stream;
    return standin_leave(stream != NULL ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithPriority(out, cudaStreamDefault, 0);
}

/* Work that is under way goes on. */
cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    STANDIN_ENTER("cudaStreamDestroy");
    standin_lock();
    struct stream *stream = handle != NULL ? standin_stream_of(handle) : NULL;
    if (stream != NULL) {
        stream->is_closed = 1;
        let_go(stream);
    }
    standin_unlock();
    return standin_leave(stream != NULL ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    STANDIN_ENTER("cudaStreamQuery");
    standin_lock();
    const struct stream *stream = standin_stream_of(handle);
    cudaError_t error = cudaErrorInvalidResourceHandle;
    if (stream != NULL) {
        error = stream->done_count == stream->enqueued_count ? cudaSuccess : cudaErrorNotReady;
    }
    standin_unlock();
    return standin_leave(error);
}

/* The lock is held.  A process that waits for parked work waits for ever, as with CUDA. */
static cudaError_t await_stream(struct stream *stream)
{
    const uint64_t count = stream->enqueued_count;

    stream->holder_count++;
    while (stream->done_count < count && atomic_load(&standin.sticky) == 0) {
        standin_sleep(PATIENCE_NS);
    }
    let_go(stream);
    return (cudaError_t)atomic_load(&standin.sticky);
}

cudaError_t standin_drain(void)
{
    struct stream *stream = standin.streams;

    while (stream != NULL) {
        if (stream->done_count == stream->enqueued_count) {
            stream = stream->next;
        } else if (await_stream(stream) == cudaSuccess) {
            stream = standin.streams; /* the list may have changed meanwhile */
        } else {
            break;
        }
    }
    return (cudaError_t)atomic_load(&standin.sticky);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    STANDIN_ENTER("cudaStreamSynchronize");
    standin_lock();
    struct stream *stream = standin_stream_of(handle);
    const cudaError_t error =
        stream != NULL ? await_stream(stream) : cudaErrorInvalidResourceHandle;
    standin_unlock();
    return standin_leave(error);
}

cudaError_t cudaDeviceSynchronize(void)
{
    STANDIN_ENTER("cudaDeviceSynchronize");
    standin_lock();
    const cudaError_t error = standin_drain();
    standin_unlock();
    return standin_leave(error);
}
