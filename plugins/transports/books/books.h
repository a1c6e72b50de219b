/*
 * books/books.h - the contract of heddle/transport.h as code: whose turn it is, and what is so for
 * good.
 *
 * A transport moves bytes and signals.  What it must answer to the core is the same for all, and is
 * kept here once: which sequence each call may have, what a call out of turn is told, when there is
 * something to wait for, the first failure.  Five counts a channel decide it all (a channel is this
 * rank's end of one channel); each is the sequence of the next message to come so far, and none
 * ever falls:
 *
 *   source, 3 slots     sequence  0 1 2 3 4 5 6
 *     done      3                 x x x            left their slots: 3 + 3 = 6, so 5 is the last
 *     posted    5                 x x x x x        3 and 4 are on their way
 *     reserved  6                 x x x x x x      5 is being written; 6 is told HD_BUSY
 *
 *   target, depth 4     sequence  0 1 2 3 4 5 6
 *     released  2                 x x              2 + 4 = 6, so 5 is the last that may be posted
 *     readable  4                 x x x x          2 and 3 are leased
 *     posted    6                 x x x x x x      4 is what a wait may ask for
 *
 *   reserve     sequence = reserved              HD_BUSY until done > sequence - slots
 *   post_send   sequence = posted < reserved
 *   post_recv   sequence = posted < released + depth
 *   test, wait  source: sequence <= reserved     over when done > sequence - slots, or, once the
 *                                                message is posted, when done > sequence
 *               target: released <= sequence     over when done > sequence
 *               < posted, sequence <= readable
 *   release     sequence = released < readable
 *
 * `done` is the transport's own: at the target, messages that have arrived; at the source, messages
 * that have left their send slots or, in place, that the target has released.
 *
 * struct hd_transport begins with a struct book and every channel with a struct book_channel, which
 * book_create (books_open.h) fills.  A call of the contract is then
 *
 *     struct book_channel *channel = NULL;
 *     hd_status status = book_to_post(&instance->turn, message, BOOK_SOURCE, &channel);
 *     ... if HD_OK, what this transport does ...
 *     channel->posted_count++;
 *
 * What every message passes through is inline: a transport that takes 200 ns for one cannot see it.
 */
#ifndef BOOK_H
#define BOOK_H

#include "books_fault.h"

#include <stdatomic.h>
#include <stddef.h>

/* This rank's end of one channel; the first member of the transport's own. */
struct book_channel {
    const struct hd_channel *shape; /* borrowed */
    uint32_t number;                /* of the channel */
    uint32_t peer_rank;             /* at the other end */
    uint32_t slot_count;            /* here: depth, or send_depth at a source not in place */
    int is_source;
    uint64_t reserved_count; /* source: the sequence of the next reserve */
    uint64_t posted_count;   /* the sequence of the next post */
    uint64_t readable_count; /* target: those before are readable, or a stream waits for them */
    uint64_t released_count; /* target: the sequence of the next release */
    _Atomic uint64_t busy_count;
    char carrier[36]; /* what carries it in truth, from open on: "shm", "tcp/eth0" */
};

/* The books of an instance; the first member of struct hd_transport. */
struct book {
    atomic_int failed;                      /* the first negative status: the abort word */
    uint32_t channel_count;                 /* of the whole job */
    struct book_channel **channel_of;       /* [channel_count]; NULL: not of this rank */
    const struct hd_channel *const *shapes; /* [channel_count]; borrowed */
    const struct hd_host *host;             /* borrowed */
    const char *name;                       /* of the transport, for sentences and keys; static */
    uint32_t own_count;                     /* channels of this rank */
    uint32_t alignment_bytes;               /* of slots */
    uint32_t generation;                    /* of its cards: 0 for the first instance here */
    int is_traced;                          /* somebody keeps what transfers took */
    int is_in_place;                        /* slots lie at the target only */
    void *own_channels;                     /* [own_count], the transport's own, in channel order */
    void *peers;                            /* [rank_count, peer_bytes], likewise */
    uint64_t peer_bytes;                    /* 0: it keeps none */
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

/* Of a channel, or of NULL: a channel of other ranks.  Fills at most out->size bytes. [any-thread] */
void book_stats(const struct book_channel *channel, uint64_t finished_count,
                struct hd_channel_stats *out);
/* Tells the core of a transfer, whose size is set here, if somebody keeps it. [data] */
void book_report(const struct book *book, struct hd_transfer transfer);

/* --- whose turn it is -------------------------------------------------------------------- */

/* The channel of `message`, if nothing has failed and this rank is at that end of it. */
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

/* Source: its turn is checked; book_reserved counts it once the slot is free. */
static inline hd_status book_to_reserve(struct book *book, const struct hd_message *message,
                                        struct book_channel **channel)
{
    const hd_status status = book_enter(book, message, BOOK_SOURCE, channel);

    if (status == HD_OK && message->sequence != (*channel)->reserved_count) {
        return book_refuse_order(book, message, "reserve", (*channel)->reserved_count);
    }
    return status;
}

/* What reserve answers, `status` being HD_OK if the slot is free, HD_IN_PROGRESS if not yet. */
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

/* post_send (BOOK_SOURCE) or post_recv (BOOK_TARGET); the transport counts it, when it is begun. */
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

/* test and wait: is there anything to ask for? */
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

/* Target; the transport counts it. */
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

/* --- what is over ------------------------------------------------------------------------ */

/* The count of done messages that answers for `sequence`. */
static inline uint64_t book_goal(const struct book_channel *channel, uint64_t sequence)
{
    if (!channel->is_source || sequence < channel->posted_count) {
        return sequence + 1; /* it has arrived; or the slot is free of this very message */
    }
    /* Free of the one before it. */
    return sequence < channel->slot_count ? 0 : sequence - channel->slot_count + 1;
}

/* Target: found readable, or a stream waits for it: it may be released. */
static inline void book_readable(struct book_channel *channel, uint64_t sequence)
{
    if (sequence == channel->readable_count) {
        channel->readable_count = sequence + 1;
    }
}

/* What test answers, `done_count` messages being done: HD_OK or HD_IN_PROGRESS. */
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

/* A word of the peer's, which counts what it has released or sent, cannot say more. */
static inline uint64_t book_most(const struct book_channel *channel)
{
    return channel->is_source ? channel->posted_count
                              : channel->released_count + channel->shape->depth;
}

/* HD_OK if it says `news` and that is in the range: from what it said before to book_most. */
static inline hd_status book_check_news(struct book *book, const struct book_channel *channel,
                                        uint64_t news, struct book_range range)
{
    if (news >= range.least_count && news <= range.most_count) {
        return HD_OK;
    }
    return book_refuse_news(book, channel, news, range);
}

#endif /* BOOK_H */
