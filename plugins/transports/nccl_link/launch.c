/*
 * nccl_link/launch.c - calls of NCCL and CUDA, and their results.
 *
 * A communicator that does not block answers "in progress" while a thread of NCCL enqueues the
 * work.  That thread waits for no peer, because open has made every connection; so the caller waits
 * for it with the lock held, until it is done, or until an abort or the deadline.  Only then may an
 * event be recorded behind the work.
 */
#include "nccl_link.h"

#include <time.h>

enum { NAP_NS = 20000, SPIN_COUNT = 200 };

/* The core gives posts no deadline: the watchdog's abort ends them, or at last this limit. */
#define LAUNCH_NS UINT64_C(60000000000)

static struct book_fault nccl_link_fault_of(const struct nccl_channel *channel, hd_status status)
{
    return channel == NULL ? book_own_fault(status)
                           : book_peer_fault(&channel->book, status, channel->done_count);
}

void nccl_nap(void)
{
    const struct timespec nap = {0, NAP_NS};
    nanosleep(&nap, NULL);
}

hd_status nccl_cuda(struct hd_transport *instance, const struct nccl_channel *channel,
                    cudaError_t error, const char *call)
{
    char text[CUDA_REASON_BYTES];

    if (error == cudaSuccess) {
        return HD_OK;
    }
    return book_fail(&instance->book, nccl_link_fault_of(channel, HD_DEVICE), "%s: %s",
                     instance->book.name, cuda_explain(&instance->cuda, call, error, text));
}

hd_status nccl_use_device(struct hd_transport *instance)
{
    const hd_status failed = book_failed(&instance->book);

    if (failed < 0) {
        return failed;
    }
    return NCCL_CUDA(instance, NULL, cudaSetDevice, (int)instance->device);
}

static hd_status nccl_link_status_of(ncclResult_t result)
{
    switch (result) {
    case ncclRemoteError:
        return HD_PEER_LOST;
    case ncclSystemError:
        return HD_SYSTEM;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
        return HD_INVALID;
    default:
        return HD_DEVICE;
    }
}

static hd_status nccl_link_explain(struct hd_transport *instance,
                                   const struct nccl_channel *channel, ncclResult_t result,
                                   const char *call)
{
    const char *last = instance->nccl.ncclGetLastError(channel != NULL ? channel->comm : NULL);

    return book_fail(&instance->book, nccl_link_fault_of(channel, nccl_link_status_of(result)),
                     "%s: %s with rank %u: %s%s%s", instance->book.name, call,
                     channel != NULL ? channel->book.peer_rank : instance->book.host->rank,
                     instance->nccl.ncclGetErrorString(result),
                     last != NULL && last[0] != '\0' ? ": " : "", last != NULL ? last : "");
}

ncclResult_t nccl_async_result(struct hd_transport *instance, const struct nccl_channel *channel)
{
    ncclResult_t result = ncclSuccess;
    const ncclResult_t asked = instance->nccl.ncclCommGetAsyncError(channel->comm, &result);

    return asked != ncclSuccess ? asked : result;
}

hd_status nccl_settle(struct hd_transport *instance, const struct nccl_channel *channel,
                      ncclResult_t result, const char *call, uint64_t deadline_ns)
{
    for (uint32_t round = 0; result == ncclInProgress; round++) {
        const hd_status failed = book_failed(&instance->book);
        if (failed < 0) {
            return failed;
        }
        if (book_now_ns(&instance->book) > deadline_ns) {
            return book_fail(&instance->book, nccl_link_fault_of(channel, HD_TIMEOUT),
                             "%s: %s with rank %u did not end by the deadline", instance->book.name,
                             call, channel->book.peer_rank);
        }
        if (round >= SPIN_COUNT) {
            nccl_nap();
        }
        result = nccl_async_result(instance, channel);
    }
    return result == ncclSuccess ? HD_OK : nccl_link_explain(instance, channel, result, call);
}

hd_status nccl_begun(struct hd_transport *instance, const struct nccl_channel *channel,
                     ncclResult_t result, const char *call)
{
    if (result == ncclSuccess || result == ncclInProgress) {
        return HD_OK;
    }
    return nccl_link_explain(instance, channel, result, call);
}

hd_status nccl_query(struct hd_transport *instance, const struct nccl_channel *channel,
                     cudaEvent_t event)
{
    const cudaError_t error = instance->cuda.cudaEventQuery(event);

    if (error == cudaErrorNotReady) {
        (void)instance->cuda
            .cudaGetLastError(); /* the runtime keeps this answer as an error; clear it */
        return HD_IN_PROGRESS;
    }
    return nccl_cuda(instance, channel, error, "cudaEventQuery");
}

hd_status nccl_follow(struct hd_transport *instance, struct nccl_channel *channel,
                      cudaEvent_t event, void *stream)
{
    if (stream == NULL) {
        return HD_OK;
    }
    BOOK_TRY(NCCL_CUDA(instance, channel, cudaEventRecord, event, stream));
    return NCCL_CUDA(instance, channel, cudaStreamWaitEvent, channel->stream, event, 0);
}

hd_status nccl_await_event(struct hd_transport *instance, const struct nccl_channel *channel,
                           cudaEvent_t event, uint64_t deadline_ns)
{
    hd_status status = nccl_query(instance, channel, event);

    while (status == HD_IN_PROGRESS) {
        const hd_status failed = book_failed(&instance->book);
        if (failed < 0) {
            return failed;
        }
        if (book_now_ns(&instance->book) > deadline_ns) {
            return HD_TIMEOUT;
        }
        nccl_nap();
        status = nccl_query(instance, channel, event);
    }
    return status;
}

/* --- groups ------------------------------------------------------------------------------ */

static hd_status nccl_link_record_moved(struct hd_transport *instance, struct nccl_channel *channel,
                                        uint64_t sequence)
{
    return NCCL_CUDA(instance, channel, cudaEventRecord,
                     channel->moved[sequence % channel->book.slot_count], channel->stream);
}

/* After the last post of a group: starts all transfers and records an event behind each. */
static hd_status nccl_link_end_group(struct hd_transport *instance, uint64_t deadline_ns)
{
    hd_status status = HD_OK;

    if (instance->is_group_open) {
        instance->is_group_open = false;
        const ncclResult_t result = instance->nccl.ncclGroupEnd();
        if (result != ncclSuccess && result != ncclInProgress) {
            status = nccl_link_explain(instance, instance->group[0], result, "ncclGroupEnd");
        }
    }
    for (uint32_t i = 0; status == HD_OK && i < instance->group_count; i++) {
        struct nccl_channel *channel = instance->group[i];
        status = nccl_settle(instance, channel, nccl_async_result(instance, channel),
                             "a group of transfers", deadline_ns);
        if (status == HD_OK && !instance->mode->is_one_sided) {
            status = nccl_link_record_moved(instance, channel, instance->group_sequence[i]);
        }
    }
    instance->group_count = 0;
    return status;
}

static hd_status nccl_link_open_group(struct hd_transport *instance,
                                      const struct nccl_channel *channel,
                                      const struct hd_message *message)
{
    if (instance->group_count == NCCL_GROUP_MAX) {
        return book_fail(
            &instance->book,
            (struct book_fault){HD_UNSUPPORTED, BOOK_NONE, channel->book.number, message->sequence},
            "%s: a group must have at most %d posts", instance->book.name, NCCL_GROUP_MAX);
    }
    if (message->group_left == 0 || instance->is_group_open) {
        return HD_OK;
    }
    const ncclResult_t result = instance->nccl.ncclGroupStart();
    instance->is_group_open = result == ncclSuccess;
    return result == ncclSuccess ? HD_OK
                                 : nccl_link_explain(instance, channel, result, "ncclGroupStart");
}

hd_status nccl_launch(struct hd_transport *instance, struct nccl_channel *channel,
                      const struct hd_message *message,
                      hd_status (*enqueue)(struct hd_transport *, struct nccl_channel *, uint64_t))
{
    const uint64_t deadline_ns = book_now_ns(&instance->book) + LAUNCH_NS;

    pthread_mutex_lock(&instance->lock);
    hd_status status = nccl_link_open_group(instance, channel, message);
    if (status == HD_OK && enqueue != NULL) {
        status = enqueue(instance, channel, message->sequence);
    }
    if (status == HD_OK) {
        instance->group[instance->group_count] = channel;
        instance->group_sequence[instance->group_count] = message->sequence;
        instance->group_count++;
        if (message->group_left == 0) {
            status = nccl_link_end_group(instance, deadline_ns);
        }
    }
    pthread_mutex_unlock(&instance->lock);
    return status;
}
