/*
 * books/books_fault.h - the first failure, which stays, and the sentences that all transports share.
 *
 * Whoever decides an error says it, once: the first book_fail of an instance goes to host->fail,
 * and every later one only answers what the first was (G7).  Each function returns what now holds.
 */
#ifndef BOOK_FAULT_H
#define BOOK_FAULT_H

#include <heddle/transport.h>

#define BOOK_NONE UINT32_MAX /* no rank, no channel */

struct book;
struct book_channel;

/* Who and what an error is about; BOOK_NONE where nobody and nothing. */
struct book_fault {
    hd_status status; /* negative */
    uint32_t rank;    /* the peer at fault */
    uint32_t channel;
    uint64_t sequence;
};

/* Of no peer and no channel; of the peer of a channel, by a message on it. */
struct book_fault book_own_fault(hd_status status);
struct book_fault book_peer_fault(const struct book_channel *channel, hd_status status,
                                  uint64_t sequence);

/* [any-thread] */
hd_status book_fail(struct book *book, const struct book_fault *fault, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* HD_ABORTED, unless something has failed before; says nothing, for the core has said why.
   [any-thread] */
void book_abort(struct book *book);

/* --- sentences [data] -------------------------------------------------------------------- */

/* HD_INVALID: not at that end; `call` out of turn, when `next` is; a stream, for host memory. */
hd_status book_refuse_side(struct book *book, const struct hd_message *message);
hd_status book_refuse_order(struct book *book, const struct hd_message *message, const char *call,
                            uint64_t next);
hd_status book_refuse_stream(struct book *book, const struct hd_message *message);

/* HD_TIMEOUT or HD_PEER_LOST: a wait, when `done_count` messages were known to be done. */
hd_status book_report_wait(struct book *book, const struct book_channel *channel,
                           const struct book_fault *fault, uint64_t done_count);
/* HD_PROTOCOL: the peer's count is `news`, which can only be least_count to most_count. */
struct book_range {
    uint64_t least_count, most_count;
};
hd_status book_refuse_news(struct book *book, const struct book_channel *channel, uint64_t news,
                           struct book_range range);

#endif /* BOOK_FAULT_H */
