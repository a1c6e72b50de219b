/*
 * books/books.h - the state machine that all transports share: call order, the five counts, and
 * the first error, which is permanent.
 *
 * heddle/transport.h defines which sequence each call may name, when a wait is over, and that the
 * first failure stays.  That does not depend on how bytes move, so it is implemented here once.
 * Each end of a channel has five counts, each the sequence of the next message; none decreases:
 *
 *   source, 3 slots     sequence  0 1 2 3 4 5 6
 *     done      3                 x x x            have left: 3 + 3 = 6, so 5 is the last
 *     posted    5                 x x x x x        3 and 4 are being sent
 *     reserved  6                 x x x x x x      5 is being written; 6 gets HD_BUSY
 *
 *   target, depth 4     sequence  0 1 2 3 4 5 6
 *     released  2                 x x              2 + 4 = 6, so 5 is the last that may be posted
 *     readable  4                 x x x x          2 and 3 are leased
 *     posted    6                 x x x x x x      4 is what a wait may ask for
 *
 *   call        allowed if                       answer
 *   reserve     sequence = reserved              HD_BUSY until done > sequence - slots
 *   post_send   sequence = posted < reserved
 *   post_recv   sequence = posted < released + depth
 *   test, wait  source: sequence <= reserved     HD_OK when done > sequence - slots or, once the
 *                                                message is posted, when done > sequence
 *               target: released <= sequence     HD_OK when done > sequence
 *               < posted, sequence <= readable
 *   release     sequence = released < readable
 *
 * The transport itself knows `done`.  At the target it counts the messages that have arrived.  At
 * the source it counts the messages that have left their send slots or, in place, that the target
 * has released.
 *
 * struct hd_transport begins with a struct book, and the transport's own struct for a channel
 * begins with a struct book_channel.  book_create (books_open.h) fills both.  A data call is then
 *
 *     struct book_channel *channel = NULL;
 *     BOOK_TRY(book_to_post(&instance->book, message, BOOK_SOURCE, &channel));
 *     ... what this transport does ...
 *     channel->posted_count++;
 *
 * A message takes about 200 ns in all, so every function that it passes through is inline.
 */
#ifndef BOOK_H
#define BOOK_H

#include "books_fault.h"

#include <stdatomic.h>
#include <stddef.h>

/* This rank's end of one channel; the first member of the transport's own struct. */
struct book_channel {
    const struct hd_channel *shape; /* borrowed from the setup */
    uint32_t number;                /* of the channel, in the whole job */
    uint32_t peer_rank;             /* the rank at the other end */
    uint32_t slot_count; /* of this end: depth, or send_depth at a source that is not in place */
    bool is_source;
    uint64_t reserved_count; /* source: the sequence of the next reserve */
    uint64_t posted_count;   /* the sequence of the next post */
    uint64_t readable_count; /* target: earlier messages are readable, or a stream waits for them */
    uint64_t released_count; /* target: the sequence of the next release */
    _Atomic uint64_t busy_count;
    char carrier[36]; /* what carries it, set by open: "shm", "tcp/eth0" */
};

/* The state of an instance; the first member of struct hd_transport. */
struct book {
    atomic_int failed;                      /* the first negative status; also the abort word */
    uint32_t channel_count;                 /* of the whole job */
    struct book_channel **channel_of;       /* [channel_count]; NULL: not a channel of this rank */
    const struct hd_channel *const *shapes; /* [channel_count], borrowed */
    const struct hd_host *host;             /* borrowed */
    const char *name;                       /* of the transport; static */
    uint32_t own_count;                     /* channels that begin or end at this rank */
    uint32_t alignment_bytes;               /* of slots */
    uint32_t generation;                    /* of its keys: 0 for the first instance */
    bool is_traced;                         /* the core keeps the transfers that it is told of */
    bool is_in_place;                       /* slots are at the target only */
    void *own_channels;                     /* [own_count], the transport's own structs, in order */
    void *peers;                            /* [rank_count], the transport's own structs */
    uint64_t peer_bytes;                    /* size of one peer; 0: the transport keeps none */
};

enum book_side { BOOK_SOURCE = 1, BOOK_TARGET = 2, BOOK_EITHER = 3 };

/* HD_OK, or the first failure. [any-thread] */
static inline hd_status book_failed(const struct book *book)
{
    return atomic_load(&book->failed);
}

static inline uint64_t book_now_ns(const struct book *book)
{
    return book->host->now_ns(book->host->context);
}

/* Fills at most out->size bytes; all counts are 0 if `channel` is NULL. [any-thread] */
void book_stats(const struct book_channel *channel, uint64_t finished_count,
                struct hd_channel_stats *out);
/* Reports a transfer, for which it sets the size, if the core keeps transfers. [data] */
void book_report(const struct book *book, struct hd_transfer transfer);

/* --- call order -------------------------------------------------------------------------- */

/* The channel of `message`, if nothing has failed and this rank is at that side of it. */
static inline hd_status book_enter(struct book *book, const struct hd_message *message,
                                   enum book_side side, struct book_channel **channel)
{
    const hd_status failed = book_failed(book);

    if (failed < 0) {
        return failed;
    }
    if (message->channel < book->channel_count) {
        *channel = book->channel_of[message->channel];
        if (*channel != NULL && (side & ((*channel)->is_source ? BOOK_SOURCE : BOOK_TARGET)) != 0) {
            return HD_OK;
        }
    }
    return book_refuse_side(book, message);
}

/* Source: checks the order of a reserve, which book_reserved then counts. */
static inline hd_status book_to_reserve(struct book *book, const struct hd_message *message,
                                        struct book_channel **channel)
{
    const hd_status status = book_enter(book, message, BOOK_SOURCE, channel);

    if (status == HD_OK && message->sequence != (*channel)->reserved_count) {
        return book_refuse_order(book, message, "reserve", (*channel)->reserved_count);
    }
    return status;
}

/* What reserve answers if `status` is HD_OK (the slot is free) or HD_IN_PROGRESS (not yet). */
static inline hd_status book_reserved(struct book_channel *channel, hd_status status)
{
    if (status == HD_IN_PROGRESS) {
        atomic_fetch_add_explicit(&channel->busy_count, 1, memory_order_relaxed);
        return HD_BUSY;
    }
    if (status == HD_OK) {
        channel->reserved_count++;
    }
    return status;
}

/* Checks the order of post_send (BOOK_SOURCE) or post_recv (BOOK_TARGET); the transport counts. */
static inline hd_status book_to_post(struct book *book, const struct hd_message *message,
                                     enum book_side side, struct book_channel **channel)
{
    const hd_status status = book_enter(book, message, side, channel);

    if (status == HD_OK) {
        const uint64_t next = (*channel)->posted_count;
        const uint64_t end = side == BOOK_SOURCE
                                 ? (*channel)->reserved_count
                                 : (*channel)->released_count + (*channel)->shape->depth;
        if (message->sequence != next || next >= end) {
            return book_refuse_order(book, message, side == BOOK_SOURCE ? "post_send" : "post_recv",
                                     next);
        }
    }
    return status;
}

/* Checks that test or wait may ask for `message`. */
static inline hd_status book_to_ask(struct book *book, const struct hd_message *message,
                                    enum book_side side, struct book_channel **channel)
{
    const hd_status status = book_enter(book, message, side, channel);
    const uint64_t sequence = message->sequence;

    if (status == HD_OK && (*channel)->is_source) {
        return sequence <= (*channel)->reserved_count
                   ? HD_OK
                   : book_refuse_order(book, message, "test or wait", (*channel)->reserved_count);
    }
    if (status == HD_OK &&
        (sequence < (*channel)->released_count || sequence >= (*channel)->posted_count ||
         sequence > (*channel)->readable_count)) {
        return book_refuse_order(book, message, "test or wait", (*channel)->readable_count);
    }
    return status;
}

/* Target: checks the order of a release; the transport counts it. */
static inline hd_status book_to_release(struct book *book, const struct hd_message *message,
                                        struct book_channel **channel)
{
    const hd_status status = book_enter(book, message, BOOK_TARGET, channel);

    if (status == HD_OK) {
        const uint64_t next = (*channel)->released_count;
        if (message->sequence != next || next >= (*channel)->readable_count) {
            return book_refuse_order(book, message, "release", next);
        }
    }
    return status;
}

/* The number of done messages at which test and wait answer HD_OK for `sequence`. */
static inline uint64_t book_goal(const struct book_channel *channel, uint64_t sequence)
{
    if (!channel->is_source || sequence < channel->posted_count) {
        return sequence + 1; /* the message has arrived, or has left its slot */
    }
    /* The message that had the slot before has left it. */
    return sequence < channel->slot_count ? 0 : sequence - channel->slot_count + 1;
}

/* Target: `sequence` is readable, or a stream waits for it; from now on it may be released. */
static inline void book_readable(struct book_channel *channel, uint64_t sequence)
{
    if (sequence == channel->readable_count) {
        channel->readable_count = sequence + 1;
    }
}

/* What test answers when `done_count` messages are done: HD_OK or HD_IN_PROGRESS. */
static inline hd_status book_answer(struct book_channel *channel, uint64_t sequence,
                                    uint64_t done_count)
{
    if (done_count < book_goal(channel, sequence)) {
        return HD_IN_PROGRESS;
    }
    if (!channel->is_source) {
        book_readable(channel, sequence);
    }
    return HD_OK;
}

/* The largest value that the peer's word, which counts its releases or its sends, can hold. */
static inline uint64_t book_most(const struct book_channel *channel)
{
    return channel->is_source ? channel->posted_count
                              : channel->released_count + channel->shape->depth;
}

/* HD_OK if the peer's word `news` is in `range`: from its last value to book_most. */
static inline hd_status book_check_news(struct book *book, const struct book_channel *channel,
                                        uint64_t news, struct book_range range)
{
    if (news >= range.least_count && news <= range.most_count) {
        return HD_OK;
    }
    return book_refuse_news(book, channel, news, range);
}

#endif /* BOOK_H */
