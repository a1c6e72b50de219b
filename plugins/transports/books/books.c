/* books/books.c - the first failure, the sentences that all share, and what the core is told. */
#include "books.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = 768 };

/* --- the first failure ------------------------------------------------------------------- */

struct book_fault book_own_fault(hd_status status)
{
    return (struct book_fault){status, BOOK_NONE, BOOK_NONE, 0};
}

struct book_fault book_peer_fault(const struct book_channel *channel, hd_status status,
                                  uint64_t sequence)
{
    return (struct book_fault){status, channel->peer_rank, channel->number, sequence};
}

hd_status book_fail(struct book *book, const struct book_fault *fault, const char *format, ...)
{
    const struct hd_host *host = book->host;
    int first = HD_OK;
    char text[TEXT_BYTES];
    va_list arguments;

    if (!atomic_compare_exchange_strong(&book->failed, &first, fault->status)) {
        return first;
    }
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const struct hd_error error = {.size = sizeof error,
                                   .status = fault->status,
                                   .rank = fault->rank,
                                   .channel = fault->channel,
                                   .sequence = fault->sequence,
                                   .text = text};
    host->fail(host->context, &error);
    return fault->status;
}

void book_abort(struct book *book)
{
    int none = HD_OK;

    atomic_compare_exchange_strong(&book->failed, &none, HD_ABORTED);
}

/* --- sentences --------------------------------------------------------------------------- */

static struct book_fault books_invalid(const struct hd_message *message)
{
    return (struct book_fault){HD_INVALID, BOOK_NONE, message->channel, message->sequence};
}

hd_status book_refuse_side(struct book *book, const struct hd_message *message)
{
    const struct book_fault fault = books_invalid(message);

    return book_fail(book, &fault, "channel %u: this rank is not at that end of it",
                     message->channel);
}

hd_status book_refuse_order(struct book *book, const struct hd_message *message, const char *call,
                            uint64_t next)
{
    const struct book_fault fault = books_invalid(message);

    return book_fail(book, &fault,
                     "channel %u: %s of message %" PRIu64 " out of turn: %" PRIu64 " is next%s",
                     message->channel, call, message->sequence, next,
                     message->sequence == next ? ", and not yet allowed" : "");
}

hd_status book_refuse_stream(struct book *book, const struct hd_message *message)
{
    const struct book_fault fault = books_invalid(message);

    return book_fail(book, &fault, "channel %u: a stream was given, but %s moves host memory",
                     message->channel, book->name);
}

hd_status book_report_wait(struct book *book, const struct book_channel *channel,
                           const struct book_fault *fault, uint64_t done_count)
{
    const struct hd_channel *shape = channel->shape;
    const char *end =
        fault->status == HD_PEER_LOST ? "has ended" : "has not answered by the deadline";

    return book_fail(book, fault,
                     "channel %u (%s over boundary %u, by %s): rank %u %s: message %" PRIu64
                     " %s, and %" PRIu64 " have%s",
                     channel->number, shape->direction == HD_FORWARD ? "forward" : "backward",
                     shape->boundary, channel->carrier, channel->peer_rank, end, fault->sequence,
                     channel->is_source ? "waits for a free slot" : "has not arrived", done_count,
                     channel->is_source ? " left theirs" : "");
}

hd_status book_refuse_news(struct book *book, const struct book_channel *channel, uint64_t news,
                           struct book_range range)
{
    const struct book_fault fault = book_peer_fault(channel, HD_PROTOCOL, news);

    return book_fail(book, &fault,
                     "channel %u: rank %u has %s %" PRIu64 " messages, which can only be %" PRIu64
                     " to %" PRIu64,
                     channel->number, channel->peer_rank, channel->is_source ? "released" : "sent",
                     news, range.least_count, range.most_count);
}

/* --- what the core is told --------------------------------------------------------------- */

void book_stats(const struct book_channel *channel, uint64_t finished_count,
                struct hd_channel_stats *out)
{
    struct hd_channel_stats all = {.size = out->size};

    if (channel != NULL) {
        memcpy(all.lane, channel->carrier, sizeof all.lane);
        all.finished_count = finished_count;
        all.busy_count = atomic_load_explicit(&channel->busy_count, memory_order_relaxed);
    }
    memcpy(out, &all, out->size < sizeof all ? out->size : sizeof all);
}

void book_report(const struct book *book, struct hd_transfer transfer)
{
    const struct hd_host *host = book->host;

    if (book->is_traced) {
        transfer.size = sizeof transfer;
        host->trace_transfer(host->context, &transfer);
    }
}
