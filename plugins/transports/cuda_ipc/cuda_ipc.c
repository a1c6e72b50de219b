/*
 * plugins/transports/cuda_ipc - one-sided, between GPUs of one host, or processes on one GPU.
 *
 * The target owns the receive slots and lends them to the source's process by an IPC handle.  The
 * GPU copies, and streams write and await both signals: 64-bit words that count up for the whole
 * job.  No kernel waits, and no copy waits in a stream for a credit: the host reads the credits and
 * starts a copy only when its credit has arrived.
 *
 *   source's GPU and host                 words of the target              target's GPU
 *   reserve    send slot k mod Ds unread
 *   forward    writes it
 *   post_send  queued
 *   progress   credit > k - D         <-- credit  <------------------+
 *   copy       slot --------------------> receive slot k mod D       |
 *              arrived = k + 1        --> arrived --> wait (stream)  |    arrived > k
 *                                                     forward reads  |
 *                                                     release (stream)   credit = k + 1
 *
 * So a message whose credit is late leaves only when its source calls progress: TARGET_PROGRESS.
 * The core has a thread that calls it during long actions and between steps.
 *
 * Abort stores poison, 2^62, into the arrived words of this rank; its streams then continue with
 * whatever the slots contain (G8).  That needs no call of CUDA, so it cannot block.
 */
#include "ipc.h"

/* --- progress ---------------------------------------------------------------------------- */

/* Any thread may call, and CUDA keeps the current device per thread. */
static hd_status cuda_ipc_use_device(struct hd_transport *instance)
{
    return IPC_RUNTIME(instance, NULL, cudaSetDevice, instance->device);
}

static hd_status cuda_ipc_read_news(struct hd_transport *instance, struct ipc_channel *channel)
{
    const uint64_t news = ipc_news(channel);
    const uint64_t most_count =
        channel->book.is_source ? channel->started_count : book_most(&channel->book);
    const hd_status failed = book_failed(&instance->book);

    if (failed < 0) {
        return failed; /* the word may be poison */
    }
    const hd_status status = book_check_news(&instance->book, &channel->book, news,
                                             (struct book_range){channel->known_count, most_count});
    if (status == HD_OK) {
        channel->known_count = news;
    }
    return status;
}

hd_status ipc_move(struct hd_transport *instance, bool *moved)
{
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ipc_channel *channel = &instance->channels[i];
        if (channel->book.is_source && channel->started_count < channel->book.posted_count) {
            BOOK_TRY(cuda_ipc_read_news(instance, channel));
            BOOK_TRY(ipc_start_copies(instance, channel, moved));
        }
    }
    return HD_OK;
}

/* Source: HD_OK if no copy reads the send slot any more.  Target: HD_OK if the message is here. */
static hd_status cuda_ipc_look(struct hd_transport *instance, struct ipc_channel *channel,
                               uint64_t sequence)
{
    const uint64_t goal = book_goal(&channel->book, sequence);

    if (channel->book.is_source) {
        return goal == 0 ? HD_OK : ipc_look_sent(instance, channel, goal - 1);
    }
    if (channel->known_count < goal) {
        BOOK_TRY(cuda_ipc_read_news(instance, channel));
    }
    return book_answer(&channel->book, sequence, channel->known_count);
}

static hd_status cuda_ipc_look_and_move(struct hd_transport *instance, struct ipc_channel *channel,
                                        uint64_t sequence)
{
    bool moved = false;

    BOOK_TRY(ipc_move(instance, &moved));
    const hd_status status = cuda_ipc_look(instance, channel, sequence);
    if (status == HD_IN_PROGRESS) {
        BOOK_TRY(ipc_look_for_deaths(instance, channel));
    }
    return status;
}

/* --- the contract: source ---------------------------------------------------------------- */

static struct ipc_channel *cuda_ipc_channel_of(const struct hd_transport *instance, uint32_t number)
{
    return (struct ipc_channel *)instance->book.channel_of[number];
}

static void *cuda_ipc_slot(struct hd_transport *instance, const struct hd_message *message)
{
    const struct ipc_channel *channel = cuda_ipc_channel_of(instance, message->channel);

    return channel->own_slots +
           message->sequence % channel->book.slot_count * channel->stride_bytes;
}

static hd_status cuda_ipc_reserve(struct hd_transport *instance, const struct hd_message *message)
{
    struct book_channel *channel = NULL;

    BOOK_TRY(book_to_reserve(&instance->book, message, &channel));
    BOOK_TRY(cuda_ipc_use_device(instance));
    return book_reserved(channel, cuda_ipc_look_and_move(instance, (struct ipc_channel *)channel,
                                                         message->sequence));
}

static hd_status cuda_ipc_post_send(struct hd_transport *instance, const struct hd_message *message,
                                    void *stream)
{
    struct book_channel *book = NULL;
    bool moved = false;

    BOOK_TRY(book_to_post(&instance->book, message, BOOK_SOURCE, &book));
    BOOK_TRY(cuda_ipc_use_device(instance));
    struct ipc_channel *channel = (struct ipc_channel *)book;
    channel->sends[message->sequence % book->slot_count].is_ordered = stream != NULL;
    if (stream != NULL) {
        BOOK_TRY(ipc_mark_written(instance, channel, message->sequence, stream));
    }
    book->posted_count++;
    return ipc_move(instance, &moved);
}

/* --- the contract: target ---------------------------------------------------------------- */

static hd_status cuda_ipc_post_recv(struct hd_transport *instance, const struct hd_message *message)
{
    struct book_channel *channel = NULL;

    BOOK_TRY(book_to_post(&instance->book, message, BOOK_TARGET, &channel));
    channel->posted_count++;
    return HD_OK;
}

static hd_status cuda_ipc_release(struct hd_transport *instance, const struct hd_message *message,
                                  void *stream)
{
    struct book_channel *channel = NULL;

    BOOK_TRY(book_to_release(&instance->book, message, &channel));
    BOOK_TRY(cuda_ipc_use_device(instance));
    channel->released_count++;
    return ipc_give_credit(instance, (struct ipc_channel *)channel, stream);
}

/* --- the contract: either end ------------------------------------------------------------ */

static hd_status cuda_ipc_ask(struct hd_transport *instance, const struct hd_message *message,
                              enum book_side side, struct ipc_channel **channel)
{
    struct book_channel *book = NULL;

    BOOK_TRY(book_to_ask(&instance->book, message, side, &book));
    *channel = (struct ipc_channel *)book;
    return cuda_ipc_use_device(instance);
}

static hd_status cuda_ipc_test(struct hd_transport *instance, const struct hd_message *message)
{
    struct ipc_channel *channel = NULL;

    BOOK_TRY(cuda_ipc_ask(instance, message, BOOK_EITHER, &channel));
    return cuda_ipc_look_and_move(instance, channel, message->sequence);
}

/* Makes the stream wait; the host does not. */
static hd_status cuda_ipc_wait_in_stream(struct hd_transport *instance,
                                         const struct hd_message *message, void *stream)
{
    struct ipc_channel *channel = NULL;

    BOOK_TRY(cuda_ipc_ask(instance, message, BOOK_TARGET, &channel));
    BOOK_TRY(ipc_await_signal(instance, channel, message->sequence, stream));
    book_readable(&channel->book, message->sequence);
    return HD_OK;
}

static hd_status cuda_ipc_wait(struct hd_transport *instance, const struct hd_message *message,
                               void *stream, uint64_t deadline_ns)
{
    struct ipc_channel *channel = NULL;
    uint64_t pause_ns = 0;

    if (stream != NULL) {
        return cuda_ipc_wait_in_stream(instance, message, stream);
    }
    BOOK_TRY(cuda_ipc_ask(instance, message, BOOK_EITHER, &channel));
    hd_status status = cuda_ipc_look_and_move(instance, channel, message->sequence);
    while (status == HD_IN_PROGRESS) { /* ends at the deadline */
        if (book_now_ns(&instance->book) >= deadline_ns) {
            return book_report_wait(&instance->book, &channel->book,
                                    book_peer_fault(&channel->book, HD_TIMEOUT, message->sequence),
                                    ipc_news(channel));
        }
        ipc_nap(&pause_ns);
        BOOK_TRY(book_failed(&instance->book));
        status = cuda_ipc_look_and_move(instance, channel, message->sequence);
    }
    return status;
}

static hd_status cuda_ipc_progress(struct hd_transport *instance)
{
    bool moved = false;

    BOOK_TRY(book_failed(&instance->book));
    BOOK_TRY(cuda_ipc_use_device(instance));
    BOOK_TRY(ipc_move(instance, &moved));
    if (moved) {
        return HD_OK;
    }
    BOOK_TRY(ipc_look_for_deaths(instance, NULL));
    return HD_IN_PROGRESS;
}

static void cuda_ipc_abort_waits(struct hd_transport *instance, const char *reason)
{
    (void)reason;
    book_abort(&instance->book);
    ipc_poison(instance);
}

static void cuda_ipc_stats(struct hd_transport *instance, uint32_t number,
                           struct hd_channel_stats *out)
{
    const struct ipc_channel *channel = cuda_ipc_channel_of(instance, number);
    const uint64_t news = channel != NULL ? ipc_news(channel) : 0;

    book_stats(channel != NULL ? &channel->book : NULL, news < IPC_POISON ? news : 0, out);
}

static const struct hd_transport_ops cuda_ipc_ops = {
    .size = sizeof cuda_ipc_ops,
    .open = ipc_open_all,
    .slot = cuda_ipc_slot,
    .reserve = cuda_ipc_reserve,
    .post_send = cuda_ipc_post_send,
    .post_recv = cuda_ipc_post_recv,
    .test = cuda_ipc_test,
    .wait = cuda_ipc_wait,
    .release = cuda_ipc_release,
    .progress = cuda_ipc_progress,
    .abort = cuda_ipc_abort_waits,
    .quiesce = ipc_quiesce,
    .close = ipc_close_all,
    .stats = cuda_ipc_stats,
};

static const struct hd_option cuda_ipc_options[] = {CUDA_RUNTIME_OPTION};

HD_EXPORT const struct hd_plugin hd_plugin = {
    BOOK_PLUGIN_HEAD,
    .option_count = sizeof cuda_ipc_options / sizeof cuda_ipc_options[0],
    .options = cuda_ipc_options,
    .capabilities = HD_TRANSPORT_CUDA | HD_TRANSPORT_NO_RESIDENT | HD_TRANSPORT_PEER_DEATH |
                    HD_TRANSPORT_UNBLOCKS | HD_TRANSPORT_SHARED_DEVICE | HD_TRANSPORT_PROGRESS |
                    HD_TRANSPORT_TARGET_PROGRESS,
    .name = "cuda_ipc",
    .summary = "one-sided copies between GPUs of one host, or processes on one GPU, without NCCL",
    .source = "CUDA: IPC memory handles and stream memory operations",
    .ops = &cuda_ipc_ops,
};
