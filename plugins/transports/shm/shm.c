/*
 * plugins/transports/shm - one-sided and in place, between processes of one host.
 *
 * The slots of a channel are memory of its target, which the source maps too.  The source
 * writes a tensor where the target reads it, so nothing is copied: sending a message is one
 * store of a word, and so is its release.
 *
 *   source                       memfd of the target                     target
 *   reserve   credit > k - D  <-- credit  ---------------------+
 *   write     slot k mod D    --> | slot 0 | slot 1 | ... |    |
 *   post_send arrived = k+1   --> arrived -------------------> wait    arrived > k
 *                                                          |   read    slot k mod D
 *                                                          +-- release credit = k+1
 *
 * Both words count up for the whole job, and each has one writer.  The protocol is the host
 * variant of tests/model/slot_protocol.pml; waits are in wait.c.
 *
 * abort sets a word of this process only; the core tells the other ranks.  The pidfd of a
 * peer shows its death.  A stopped peer is noticed only by the deadline.
 */
#include "shm.h"

/*
 * HD_OK once the peer's word has reached the goal of `sequence`, else HD_IN_PROGRESS.  The word is
 * read only if its last value does not suffice: each read takes the cache line from the peer.
 */
static inline hd_status shm_look(struct hd_transport *instance, struct shm_channel *channel,
                                 uint64_t sequence)
{
    if (channel->known_count < book_goal(&channel->book, sequence)) {
        const uint64_t news = atomic_load_explicit(shm_news(channel), memory_order_acquire);
        const hd_status status =
            book_check_news(&instance->book, &channel->book, news,
                            (struct book_range){channel->known_count, book_most(&channel->book)});
        if (status != HD_OK) {
            return status;
        }
        channel->known_count = news;
    }
    return book_answer(&channel->book, sequence, channel->known_count);
}

/* --- the contract ------------------------------------------------------------------------ */

static void *shm_slot(struct hd_transport *instance, const struct hd_message *message)
{
    const struct shm_channel *channel = shm_channel_of(instance, message->channel);
    return channel->slots + message->sequence % channel->book.slot_count * channel->stride_bytes;
}

static hd_status shm_reserve(struct hd_transport *instance, const struct hd_message *message)
{
    struct book_channel *channel = NULL;
    hd_status status = book_to_reserve(&instance->book, message, &channel);

    if (status == HD_OK) {
        status = shm_look(instance, (struct shm_channel *)channel, message->sequence);
    }
    return book_reserved(channel, status);
}

static hd_status shm_post_send(struct hd_transport *instance, const struct hd_message *message,
                               void *stream)
{
    struct book_channel *book = NULL;

    BOOK_TRY(book_to_post(&instance->book, message, BOOK_SOURCE, &book));
    if (stream != NULL) {
        return book_refuse_stream(&instance->book, message);
    }
    struct shm_channel *channel = (struct shm_channel *)book;
    const uint64_t now_ns = instance->book.is_traced ? book_now_ns(&instance->book) : 0;
    book->posted_count++;
    shm_publish(&channel->words->arrived, book->posted_count, shm_peer_asleep(channel));
    if (instance->book.is_traced) {
        /* In place, all bytes are written before the signal, so the transfer takes no time.  The
           report follows the signal, so that the peer does not wait for it. */
        book_report(&instance->book, (struct hd_transfer){.channel = message->channel,
                                                          .sequence = message->sequence,
                                                          .begin_ns = now_ns,
                                                          .end_ns = now_ns});
    }
    return HD_OK;
}

static hd_status shm_post_recv(struct hd_transport *instance, const struct hd_message *message)
{
    struct book_channel *channel = NULL;

    BOOK_TRY(book_to_post(&instance->book, message, BOOK_TARGET, &channel));
    channel->posted_count++;
    return HD_OK;
}

static hd_status shm_test(struct hd_transport *instance, const struct hd_message *message)
{
    struct book_channel *channel = NULL;

    BOOK_TRY(book_to_ask(&instance->book, message, BOOK_EITHER, &channel));
    return shm_look(instance, (struct shm_channel *)channel, message->sequence);
}

/* Blocks until the peer's word has reached the goal of `sequence`. */
static hd_status shm_await(struct hd_transport *instance, struct shm_channel *channel,
                           uint64_t sequence, uint64_t deadline_ns)
{
    const struct shm_wait wanted = {.word = shm_news(channel),
                                    .goal = book_goal(&channel->book, sequence),
                                    .asleep = shm_own_asleep(channel),
                                    .peer = channel->peer,
                                    .deadline_ns = deadline_ns};
    const hd_status status = shm_wait_for(instance, &wanted);

    if (status == HD_PEER_LOST || status == HD_TIMEOUT) {
        return book_report_wait(&instance->book, &channel->book,
                                book_peer_fault(&channel->book, status, sequence),
                                atomic_load(shm_news(channel)));
    }
    return status == HD_OK ? shm_look(instance, channel, sequence) : status;
}

static hd_status shm_wait(struct hd_transport *instance, const struct hd_message *message,
                          void *stream, uint64_t deadline_ns)
{
    struct book_channel *book = NULL;

    BOOK_TRY(book_to_ask(&instance->book, message, BOOK_EITHER, &book));
    if (stream != NULL) {
        return book_refuse_stream(&instance->book, message);
    }
    struct shm_channel *channel = (struct shm_channel *)book;
    const hd_status status = shm_look(instance, channel, message->sequence);
    return status == HD_IN_PROGRESS ? shm_await(instance, channel, message->sequence, deadline_ns)
                                    : status;
}

static hd_status shm_release(struct hd_transport *instance, const struct hd_message *message,
                             void *stream)
{
    struct book_channel *book = NULL;

    BOOK_TRY(book_to_release(&instance->book, message, &book));
    if (stream != NULL) {
        return book_refuse_stream(&instance->book, message);
    }
    struct shm_channel *channel = (struct shm_channel *)book;
    book->released_count++;
    shm_publish(&channel->words->credit, book->released_count, shm_peer_asleep(channel));
    return HD_OK;
}

static void shm_abort_waits(struct hd_transport *instance, const char *reason)
{
    (void)reason;
    book_abort(&instance->book);
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        if (instance->channels[i].words != NULL) {
            shm_wake(shm_own_asleep(&instance->channels[i]));
        }
    }
}

static void shm_stats(struct hd_transport *instance, uint32_t number, struct hd_channel_stats *out)
{
    const struct shm_channel *channel = shm_channel_of(instance, number);

    book_stats(channel != NULL ? &channel->book : NULL,
               channel != NULL ? atomic_load(shm_news(channel)) : 0, out);
}

static const struct hd_transport_ops shm_ops = {
    .size = sizeof shm_ops,
    .open = shm_open_all,
    .slot = shm_slot,
    .reserve = shm_reserve,
    .post_send = shm_post_send,
    .post_recv = shm_post_recv,
    .test = shm_test,
    .wait = shm_wait,
    .release = shm_release,
    .abort = shm_abort_waits,
    .quiesce = shm_quiesce,
    .close = shm_close_all,
    .stats = shm_stats,
};

static const struct hd_option shm_options[] = {
    {"spin_us", "-1", "-1..1000",
     "Microseconds that a wait spins before it sleeps; -1: 100, or 0 if more ranks than cores "
     "share this rank's cores.",
     HD_OPTION_INTEGER, 0},
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    BOOK_PLUGIN_HEAD,
    .option_count = sizeof shm_options / sizeof shm_options[0],
    .options = shm_options,
    .capabilities = HD_TRANSPORT_HOST | HD_TRANSPORT_SEALED | HD_TRANSPORT_IN_PLACE |
                    HD_TRANSPORT_NO_RESIDENT | HD_TRANSPORT_PEER_DEATH,
    .name = "shm",
    .summary = "one-sided, in place, between processes of one host: nothing is copied",
    .source = "heddle's own; memfd, futex and pidfd of Linux",
    .ops = &shm_ops,
};
