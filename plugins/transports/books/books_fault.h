/*
 * books/books_fault.h - the first failure, which is permanent, and the errors that all transports
 * share.
 *
 * The function that detects an error reports it with book_fail.  Only the first book_fail of an
 * instance reaches host->fail; every later one returns the status of the first (guarantee G7).
 */
#ifndef BOOK_FAULT_H
#define BOOK_FAULT_H

#include <heddle/transport.h>

#include <stdbool.h>

#define BOOK_NONE UINT32_MAX /* no rank, or no channel */

/* Returns from the calling function unless `call` returns HD_OK. */
#define BOOK_TRY(call)                  \
    do {                                \
        const hd_status tried = (call); \
        if (tried != HD_OK) {           \
            return tried;               \
        }                               \
    } while (0)

struct book;
struct book_channel;

/* What an error is about. */
struct book_fault {
    hd_status status; /* negative */
    uint32_t rank;    /* the peer at fault, or BOOK_NONE */
    uint32_t channel; /* or BOOK_NONE */
    uint64_t sequence;
};

/* A fault of this rank; of `rank`; of this rank on a channel; of a channel's peer, at a message. */
struct book_fault book_own_fault(hd_status status);
struct book_fault book_rank_fault(hd_status status, uint32_t rank);
struct book_fault book_channel_fault(hd_status status, uint32_t number);
struct book_fault book_peer_fault(const struct book_channel *channel, hd_status status,
                                  uint64_t sequence);

/* Returns the status of the first failure. [any-thread] */
hd_status book_fail(struct book *book, struct book_fault fault, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Sets HD_ABORTED unless something has failed before; reports nothing. [any-thread] */
void book_abort(struct book *book);
/* Writes one line to the log at debug level; the core adds the plugin's name. [setup] */
void book_log(const struct book *book, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* --- errors that all transports share [data] --------------------------------------------- */

/* HD_INVALID: this rank is not at that end; `call` is out of order; host memory needs no stream. */
hd_status book_refuse_side(struct book *book, const struct hd_message *message);
hd_status book_refuse_order(struct book *book, const struct hd_message *message, const char *call,
                            uint64_t next);
hd_status book_refuse_stream(struct book *book, const struct hd_message *message);

/* HD_TIMEOUT or HD_PEER_LOST: a wait ended while `done_count` messages were known to be done. */
hd_status book_report_wait(struct book *book, const struct book_channel *channel,
                           struct book_fault fault, uint64_t done_count);
/* HD_PROTOCOL: the peer's count is `news`, which is outside the range. */
struct book_range {
    uint64_t least_count, most_count;
};
hd_status book_refuse_news(struct book *book, const struct book_channel *channel, uint64_t news,
                           struct book_range range);

#endif /* BOOK_FAULT_H */
