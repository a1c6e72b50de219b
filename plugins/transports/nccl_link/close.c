/*
 * nccl_link/close.c - the abort, and the end.
 *
 *   abort      a word, and a semaphore; then the helper's own pace:
 *              the lock, ncclCommRevoke, ncclCommAbort, one communicator after the other
 *   quiesce    everything posted has left or has arrived, and no communicator has an error
 *   close      ncclCommFinalize and ncclCommDestroy in channel order, collective; then the rest
 *
 * ncclCommAbort may hang, so it never runs where somebody waits for it.  After a failure a peer's
 * kernel may still write here, so nothing is freed: the process is about to end.
 */
#include "nccl_link.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum { LOCK_S = 2 };

/* --- abort ------------------------------------------------------------------------------- */

/* A call of NCCL that hangs keeps the lock; then the process must end without this. */
static int nccl_link_take_lock(struct hd_transport *instance)
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
            "NCCL has not come back from a call: its communicators are not aborted");
        return;
    }
    instance->cuda.cudaSetDevice((int)instance->device);
    for (uint32_t i = 0; i < instance->book.lane_count; i++) {
        struct nccl_lane *lane = &instance->lanes[i];
        if (lane->comm != NULL && instance->nccl.revoke != NULL) {
            (void)instance->nccl.revoke(lane->comm, 0);
        }
    }
    for (uint32_t i = 0; i < instance->book.lane_count; i++) {
        struct nccl_lane *lane = &instance->lanes[i];
        if (lane->comm != NULL) {
            (void)instance->nccl.ncclCommAbort(lane->comm);
            lane->comm = NULL;
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
    const struct book_fault fault = book_own_fault(HD_SYSTEM);
    const int error = pthread_create(&instance->helper, NULL, nccl_link_help, instance);

    if (error != 0) {
        return book_fail(&instance->book, &fault, "no thread that would abort NCCL: %s",
                         strerror(error));
    }
    instance->has_helper = 1;
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

/* It may hang in NCCL after an abort, and is then left to the end of the process. */
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
    instance->has_helper = 0;
}

/* --- rest -------------------------------------------------------------------------------- */

static hd_status nccl_link_report_restless(struct hd_transport *instance,
                                           const struct nccl_lane *lane)
{
    const struct book_fault fault = book_peer_fault(&lane->book, HD_TIMEOUT, lane->done_count);

    book_fail(&instance->book, &fault,
              "channel %u to rank %u did not come to rest by the deadline: this rank's memory is "
              "leaked",
              lane->book.number, lane->book.peer_rank);
    return HD_TIMEOUT;
}

/* Until all that the lane's streams hold is over. */
static hd_status nccl_link_rest_lane(struct hd_transport *instance, struct nccl_lane *lane,
                                     uint64_t deadline_ns)
{
    cudaStream_t streams[] = {lane->stream, lane->arrivals};
    hd_status status = HD_OK;

    for (unsigned i = 0; status == HD_OK && i < 2; i++) {
        if (streams[i] == NULL) {
            continue;
        }
        status = nccl_cuda(instance, lane, instance->cuda.cudaEventRecord(lane->ready, streams[i]),
                           "cudaEventRecord");
        if (status == HD_OK) {
            status = nccl_await_event(instance, lane, lane->ready, deadline_ns);
        }
    }
    return status;
}

hd_status nccl_quiesce(struct hd_transport *instance, uint64_t deadline_ns)
{
    hd_status status = nccl_use_device(instance);

    for (uint32_t i = 0; status == HD_OK && i < instance->book.lane_count; i++) {
        status = nccl_link_rest_lane(instance, &instance->lanes[i], deadline_ns);
        if (status == HD_TIMEOUT) {
            return nccl_link_report_restless(instance, &instance->lanes[i]);
        }
    }
    if (status == HD_OK) {
        status = nccl_progress(instance);
    }
    if (status < 0) {
        return HD_TIMEOUT; /* a peer's kernel may still write here */
    }
    instance->may_be_written = 0;
    return HD_OK;
}

/* --- the end ----------------------------------------------------------------------------- */

static void nccl_link_end_communicators(struct hd_transport *instance, uint64_t deadline_ns)
{
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < instance->book.lane_count; i++) {
        struct nccl_lane *lane = &instance->lanes[i];
        if (lane->comm == NULL) {
            continue;
        }
        instance->mode->finish(instance, lane);
        status = nccl_settle(instance, lane, instance->nccl.ncclCommFinalize(lane->comm),
                             "ncclCommFinalize", deadline_ns);
        if (status == HD_OK) {
            (void)instance->nccl.ncclCommDestroy(lane->comm);
            lane->comm = NULL;
        }
    }
}

static void nccl_link_free_lane(struct hd_transport *instance, struct nccl_lane *lane)
{
    const struct hd_host *host = instance->book.host;
    const struct cuda_library *cuda = &instance->cuda;

    for (uint32_t i = 0; lane->moved != NULL && i < 2 * lane->book.slot_count; i++) {
        if (lane->moved[i] != NULL) {
            cuda->cudaEventDestroy(lane->moved[i]);
        }
    }
    if (lane->ready != NULL) {
        cuda->cudaEventDestroy(lane->ready);
    }
    if (lane->stream != NULL) {
        cuda->cudaStreamDestroy(lane->stream);
    }
    if (lane->arrivals != NULL) {
        cuda->cudaStreamDestroy(lane->arrivals);
    }
    host->free(host->context, lane->moved);
    host->free(host->context, lane->is_freed);
}

void nccl_close(struct hd_transport *instance, uint64_t deadline_ns)
{
    if (instance == NULL) {
        return;
    }
    if (instance->may_be_written) {
        nccl_link_end_helper(instance);
        return; /* memory, communicators and all: a late write must find what it was sent to */
    }
    if (instance->has_helper && book_failed(&instance->book) == HD_OK) {
        nccl_link_end_communicators(instance, deadline_ns);
    }
    nccl_link_end_helper(instance);
    for (uint32_t i = 0; i < instance->book.lane_count; i++) {
        nccl_link_free_lane(instance, &instance->lanes[i]);
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
