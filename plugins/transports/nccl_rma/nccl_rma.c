/*
 * plugins/transports/nccl_rma - one-sided, by ncclPutSignal between the GPUs of one host.
 *
 *   source                                                  target
 *   reserve   put of k - D has left the send slot
 *   write     send slot k mod D, in a symmetric window
 *   post_send own stream, behind the caller's:
 *             wait for the acknowledgement of k - D  <- - - release   own stream, behind the
 *             put into slot k mod D, then signal - - - - ->  wait     caller's stream: signal
 *                                                           the caller's stream, at the latest
 *
 * No kernel holds the GPU: a put is a copy, and the stream itself waits.  NCCL counts signals per
 * communicator and sender, without numbers, so every channel has its own communicator: a signal
 * from the source means data, a signal from the target means an acknowledgement, and neither can
 * belong to another channel.  NCCL gives no credits; the acknowledgement is our credit, and the
 * channel's stream waits for it, never the caller's.
 */
#include "nccl_link.h"

#include <stdio.h>

enum { VERSION_MIN = 23007, DRIVER_MIN = 12050 };

#define ENQUEUE_NS UINT64_C(60000000000)

static hd_status nccl_rma_check(struct hd_transport *instance, char reason[NCCL_REASON_BYTES])
{
    const struct nccl_library *nccl = &instance->nccl;
    char version[16];

    if (nccl->version < VERSION_MIN) {
        snprintf(
            reason, NCCL_REASON_BYTES,
            "version: %s is NCCL %s, and puts lose data before 2.30.7: install 2.30.7 or newer, "
            "or use transport nccl",
            nccl->path, nccl_version_text(nccl->version, version));
        return HD_UNSUPPORTED;
    }
    if (nccl->put_signal == NULL || nccl->signal == NULL || nccl->wait_signal == NULL) {
        snprintf(reason, NCCL_REASON_BYTES,
                 "version: %s is NCCL %s but lacks ncclPutSignal, ncclSignal or ncclWaitSignal: "
                 "install another build",
                 nccl->path, nccl_version_text(nccl->version, version));
        return HD_UNSUPPORTED;
    }
    if (instance->cuda.driver_version < DRIVER_MIN) {
        snprintf(
            reason, NCCL_REASON_BYTES,
            "driver: it supports CUDA %d.%d, and NCCL's puts need 12.5: install a newer driver",
            instance->cuda.driver_version / 1000, instance->cuda.driver_version % 1000 / 10);
        return HD_UNSUPPORTED;
    }
    return HD_OK;
}

/* --- windows ----------------------------------------------------------------------------- */

static uint64_t nccl_rma_window_bytes(const struct nccl_channel *channel)
{
    return book_round_up(channel->book.shape->depth * channel->stride_bytes,
                         NCCL_WIN_REQUIRED_ALIGNMENT);
}

/* Both ends register the same size, as a symmetric window requires. */
static hd_status nccl_rma_prepare(struct hd_transport *instance, struct nccl_channel *channel)
{
    const struct hd_host *host = instance->book.host;
    const uint64_t deadline_ns = book_now_ns(&instance->book) + ENQUEUE_NS;
    void *memory = NULL;
    hd_status status = nccl_settle(
        instance, channel, instance->nccl.ncclMemAlloc(&memory, nccl_rma_window_bytes(channel)),
        "ncclMemAlloc", deadline_ns);

    if (status != HD_OK) {
        return status;
    }
    channel->slots = memory;
    book_account(&instance->book, (int64_t)nccl_rma_window_bytes(channel), "transfer");
    status = nccl_settle(instance, channel,
                         instance->nccl.ncclCommWindowRegister(
                             channel->comm, channel->slots, nccl_rma_window_bytes(channel),
                             &channel->window, NCCL_WIN_COLL_SYMMETRIC),
                         "ncclCommWindowRegister", deadline_ns);
    if (status == HD_OK && channel->window == NULL) {
        return book_fail(&instance->book, book_peer_fault(&channel->book, HD_UNSUPPORTED, 0),
                         "symmetric window: NCCL cannot create one between ranks %u and %u, whose "
                         "GPUs must reach each other (P2P, cuMem): use transport nccl",
                         host->rank, channel->book.peer_rank);
    }
    return status;
}

static void nccl_rma_finish(struct hd_transport *instance, struct nccl_channel *channel)
{
    if (channel->window != NULL) {
        (void)instance->nccl.ncclCommWindowDeregister(channel->comm, channel->window);
        channel->window = NULL;
    }
    if (channel->slots != NULL) {
        (void)instance->nccl.ncclMemFree(channel->slots);
        book_account(&instance->book, -(int64_t)nccl_rma_window_bytes(channel), "transfer");
        channel->slots = NULL;
    }
}

/* --- messages ---------------------------------------------------------------------------- */

/* Waits on this host until NCCL's own thread has enqueued the work, so that an event may follow. */
static hd_status nccl_rma_enqueued(struct hd_transport *instance,
                                   const struct nccl_channel *channel)
{
    return nccl_settle(instance, channel, nccl_async_result(instance, channel), "a transfer",
                       book_now_ns(&instance->book) + ENQUEUE_NS);
}

/* Enqueues a wait for one signal of the peer. */
static hd_status nccl_rma_await_signal(struct hd_transport *instance, struct nccl_channel *channel,
                                       cudaStream_t stream)
{
    struct nccl_wait_signal signals = {.signal_count = 1,
                                       .peer = channel->book.is_source ? NCCL_TARGET : NCCL_SOURCE};

    BOOK_TRY(nccl_begun(instance, channel,
                        instance->nccl.wait_signal(1, &signals, channel->comm, stream),
                        "ncclWaitSignal"));
    return nccl_rma_enqueued(instance, channel);
}

static hd_status nccl_rma_record(struct hd_transport *instance, struct nccl_channel *channel,
                                 uint64_t sequence, cudaStream_t stream)
{
    return NCCL_CUDA(instance, channel, cudaEventRecord,
                     channel->moved[sequence % channel->book.slot_count], stream);
}

static hd_status nccl_rma_send_one(struct hd_transport *instance, struct nccl_channel *channel,
                                   uint64_t sequence)
{
    const uint64_t offset = sequence % channel->book.slot_count * channel->stride_bytes;

    if (sequence >= channel->book.slot_count) {
        BOOK_TRY(nccl_rma_await_signal(instance, channel, channel->stream));
    }
    BOOK_TRY(
        nccl_begun(instance, channel,
                   instance->nccl.put_signal(channel->slots + offset, channel->book.shape->bytes,
                                             ncclUint8, NCCL_TARGET, channel->window, offset, 0, 0,
                                             0, channel->comm, channel->stream),
                   "ncclPutSignal"));
    BOOK_TRY(nccl_rma_enqueued(instance, channel));
    return nccl_rma_record(instance, channel, sequence, channel->stream);
}

/* Enqueues one wait per message, in sequence: on the consumer's stream, or else on `arrivals`,
   where it blocks nothing. */
static hd_status nccl_rma_await(struct hd_transport *instance, struct nccl_channel *channel,
                                uint64_t sequence, cudaStream_t stream)
{
    const cudaStream_t where = stream != NULL ? stream : channel->arrivals;
    hd_status status = HD_OK;

    pthread_mutex_lock(&instance->lock);
    while (status == HD_OK && channel->awaited_count <= sequence) {
        status = nccl_rma_await_signal(instance, channel, where);
        if (status == HD_OK) {
            status = nccl_rma_record(instance, channel, channel->awaited_count, where);
        }
        channel->awaited_count += status == HD_OK;
    }
    pthread_mutex_unlock(&instance->lock);
    return status;
}

static hd_status nccl_rma_release_one(struct hd_transport *instance, struct nccl_channel *channel,
                                      uint64_t sequence)
{
    const uint64_t slot = sequence % channel->book.slot_count;

    if (channel->is_freed[slot]) {
        BOOK_TRY(NCCL_CUDA(instance, channel, cudaStreamWaitEvent, channel->stream,
                           channel->freed[slot], 0));
    }
    pthread_mutex_lock(&instance->lock);
    hd_status status = nccl_begun(
        instance, channel,
        instance->nccl.signal(NCCL_SOURCE, 0, 0, 0, channel->comm, channel->stream), "ncclSignal");
    if (status == HD_OK) {
        status = nccl_rma_enqueued(instance, channel);
    }
    pthread_mutex_unlock(&instance->lock);
    return status;
}

static hd_status nccl_rma_await_credit(struct hd_transport *instance, struct nccl_channel *channel)
{
    pthread_mutex_lock(&instance->lock);
    const hd_status status = nccl_rma_await_signal(instance, channel, channel->stream);
    pthread_mutex_unlock(&instance->lock);
    return status;
}

static const struct nccl_mode nccl_rma_mode = {.name = "nccl_rma",
                                               .is_one_sided = true,
                                               .check = nccl_rma_check,
                                               .prepare = nccl_rma_prepare,
                                               .finish = nccl_rma_finish,
                                               .send = nccl_rma_send_one,
                                               .await = nccl_rma_await,
                                               .release = nccl_rma_release_one,
                                               .await_credit = nccl_rma_await_credit};

static hd_status nccl_rma_open_one_sided(const struct hd_transport_setup *setup,
                                         struct hd_transport **out)
{
    return nccl_open(setup, &nccl_rma_mode, out);
}

static const struct hd_transport_ops nccl_rma_ops = NCCL_OPS(nccl_rma_open_one_sided);

static const struct hd_option nccl_rma_options[] = {NCCL_OPTION_ROWS};

HD_EXPORT const struct hd_plugin hd_plugin = {
    BOOK_PLUGIN_HEAD,
    .option_count = sizeof nccl_rma_options / sizeof nccl_rma_options[0],
    .options = nccl_rma_options,
    .capabilities = HD_TRANSPORT_CUDA | HD_TRANSPORT_NO_RESIDENT,
    .name = "nccl_rma",
    .summary = "one-sided puts with signal of NCCL between the GPUs of a host, no kernel resident",
    .source = "NCCL 2.30.7 or newer, ncclPutSignal, ncclSignal and ncclWaitSignal",
    .ops = &nccl_rma_ops,
};
