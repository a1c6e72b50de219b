/*
 * nccl_link/close.c - abort, quiesce, close.
 *
 *   abort      sets a word and posts a semaphore; then the helper thread takes the lock and calls
 *              ncclCommRevoke and ncclCommAbort, one communicator after the other
 *   quiesce    everything posted has left or arrived, and no communicator has an error
 *   close      ncclCommFinalize and ncclCommDestroy in channel order, collective; then the rest
 *
 * ncclCommAbort may hang, so no thread that another thread waits for calls it.  After a failure a
 * kernel of a peer may still write here, so nothing is freed: the process is about to end.
 */
#include "nccl_link.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum { LOCK_S = 2 };

/* --- abort ------------------------------------------------------------------------------- */

/* A call of NCCL that hangs keeps the lock; then the process must end without the tear-down. */
static bool nccl_link_take_lock(struct hd_transport *instance)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LOCK_S;
    return pthread_mutex_timedlock(&instance->lock, &until) == 0;
}

static void nccl_link_tear_down(struct hd_transport *instance)
{
    if (!nccl_link_take_lock(instance)) {
        instance->book.host->log(
            instance->book.host->context, 1,
            "a call of NCCL does not return: its communicators are not aborted");
        return;
    }
    instance->cuda.cudaSetDevice((int)instance->device);
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct nccl_channel *channel = &instance->channels[i];
        if (channel->comm != NULL && instance->nccl.revoke != NULL) {
            (void)instance->nccl.revoke(channel->comm, 0);
        }
    }
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct nccl_channel *channel = &instance->channels[i];
        if (channel->comm != NULL) {
            (void)instance->nccl.ncclCommAbort(channel->comm);
            channel->comm = NULL;
        }
    }
    atomic_store(&instance->is_torn_down, 1);
    pthread_mutex_unlock(&instance->lock);
}

static void *nccl_link_help(void *argument)
{
    struct hd_transport *instance = argument;

    while (sem_wait(&instance->wake) != 0 && errno == EINTR) {
        continue;
    }
    if (!atomic_load(&instance->is_ending) || book_failed(&instance->book) < 0) {
        nccl_link_tear_down(instance);
    }
    return NULL;
}

hd_status nccl_start_helper(struct hd_transport *instance)
{
    const int error = pthread_create(&instance->helper, NULL, nccl_link_help, instance);

    if (error != 0) {
        return book_fail(&instance->book, book_own_fault(HD_SYSTEM),
                         "cannot create the thread that aborts NCCL: %s", strerror(error));
    }
    instance->has_helper = true;
    return HD_OK;
}

void nccl_abort(struct hd_transport *instance, const char *reason)
{
    (void)reason;
    book_abort(&instance->book);
    if (!atomic_load(&instance->is_torn_down)) {
        sem_post(&instance->wake);
    }
}

/* After an abort the helper may hang in NCCL; it then lives until the process ends. */
static void nccl_link_end_helper(struct hd_transport *instance)
{
    struct timespec until;

    if (!instance->has_helper) {
        return;
    }
    atomic_store(&instance->is_ending, 1);
    sem_post(&instance->wake);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LOCK_S;
    if (pthread_timedjoin_np(instance->helper, NULL, &until) != 0) {
        pthread_detach(instance->helper);
    }
    instance->has_helper = false;
}

/* --- quiesce ----------------------------------------------------------------------------- */

static hd_status nccl_link_report_restless(struct hd_transport *instance,
                                           const struct nccl_channel *channel)
{
    book_fail(&instance->book, book_peer_fault(&channel->book, HD_TIMEOUT, channel->done_count),
              "channel %u to rank %u did not finish by the deadline: this rank's memory is leaked",
              channel->book.number, channel->book.peer_rank);
    return HD_TIMEOUT;
}

/* Waits until everything on the channel's streams has ended. */
static hd_status nccl_link_rest_channel(struct hd_transport *instance, struct nccl_channel *channel,
                                        uint64_t deadline_ns)
{
    cudaStream_t streams[] = {channel->stream, channel->arrivals};

    for (unsigned i = 0; i < 2; i++) {
        if (streams[i] != NULL) {
            BOOK_TRY(NCCL_CUDA(instance, channel, cudaEventRecord, channel->ready, streams[i]));
            BOOK_TRY(nccl_await_event(instance, channel, channel->ready, deadline_ns));
        }
    }
    return HD_OK;
}

hd_status nccl_quiesce(struct hd_transport *instance, uint64_t deadline_ns)
{
    hd_status status = nccl_use_device(instance);

    for (uint32_t i = 0; status == HD_OK && i < instance->book.own_count; i++) {
        status = nccl_link_rest_channel(instance, &instance->channels[i], deadline_ns);
        if (status == HD_TIMEOUT) {
            return nccl_link_report_restless(instance, &instance->channels[i]);
        }
    }
    if (status == HD_OK) {
        status = nccl_progress(instance);
    }
    if (status < 0) {
        return HD_TIMEOUT; /* a kernel of a peer may still write here */
    }
    instance->may_be_written = false;
    return HD_OK;
}

/* --- close ------------------------------------------------------------------------------- */

static void nccl_link_end_communicators(struct hd_transport *instance, uint64_t deadline_ns)
{
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < instance->book.own_count; i++) {
        struct nccl_channel *channel = &instance->channels[i];
        if (channel->comm == NULL) {
            continue;
        }
        instance->mode->finish(instance, channel);
        status = nccl_settle(instance, channel, instance->nccl.ncclCommFinalize(channel->comm),
                             "ncclCommFinalize", deadline_ns);
        if (status == HD_OK) {
            (void)instance->nccl.ncclCommDestroy(channel->comm);
            channel->comm = NULL;
        }
    }
}

static void nccl_link_free_channel(struct hd_transport *instance, struct nccl_channel *channel)
{
    const struct hd_host *host = instance->book.host;
    const struct cuda_library *cuda = &instance->cuda;

    for (uint32_t i = 0; channel->moved != NULL && i < 2 * channel->book.slot_count; i++) {
        if (channel->moved[i] != NULL) {
            cuda->cudaEventDestroy(channel->moved[i]);
        }
    }
    if (channel->ready != NULL) {
        cuda->cudaEventDestroy(channel->ready);
    }
    if (channel->stream != NULL) {
        cuda->cudaStreamDestroy(channel->stream);
    }
    if (channel->arrivals != NULL) {
        cuda->cudaStreamDestroy(channel->arrivals);
    }
    host->free(host->context, channel->moved);
    host->free(host->context, channel->is_freed);
}

void nccl_close(struct hd_transport *instance, uint64_t deadline_ns)
{
    if (instance == NULL) {
        return;
    }
    if (instance->may_be_written) {
        nccl_link_end_helper(instance);
        return; /* memory and communicators are leaked: a late write must find them as they were */
    }
    if (instance->has_helper && book_failed(&instance->book) == HD_OK) {
        nccl_link_end_communicators(instance, deadline_ns);
    }
    nccl_link_end_helper(instance);
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        nccl_link_free_channel(instance, &instance->channels[i]);
    }
    if (instance->base != NULL) {
        instance->cuda.cudaEventDestroy(instance->base);
    }
    if (instance->staging != NULL) {
        instance->cuda.cudaFreeHost(instance->staging);
    }
    pthread_mutex_destroy(&instance->lock);
    sem_destroy(&instance->wake);
    book_destroy(instance);
}
