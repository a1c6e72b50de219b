/* books/books.c - the first failure, the errors that all transports share, and reports to the core.
 */
#include "books.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = 768, LOG_DEBUG = 3 };

/* --- the first failure ------------------------------------------------------------------- */

struct book_fault book_own_fault(hd_status status)
{
    return (struct book_fault){status, BOOK_NONE, BOOK_NONE, 0};
}

struct book_fault book_rank_fault(hd_status status, uint32_t rank)
{
    return (struct book_fault){status, rank, BOOK_NONE, 0};
}

struct book_fault book_channel_fault(hd_status status, uint32_t number)
{
    return (struct book_fault){status, BOOK_NONE, number, 0};
}

struct book_fault book_peer_fault(const struct book_channel *channel, hd_status status,
                                  uint64_t sequence)
{
    return (struct book_fault){status, channel->peer_rank, channel->number, sequence};
}

hd_status book_fail(struct book *book, struct book_fault fault, const char *format, ...)
{
    const struct hd_host *host = book->host;
    int first = HD_OK;
    char text[TEXT_BYTES];
    va_list arguments;

    if (!atomic_compare_exchange_strong(&book->failed, &first, fault.status)) {
        return first;
    }
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const struct hd_error error = {.size = sizeof error,
                                   .status = fault.status,
                                   .rank = fault.rank,
                                   .channel = fault.channel,
                                   .sequence = fault.sequence,
                                   .text = text};
    host->fail(host->context, &error);
    return fault.status;
}

void book_abort(struct book *book)
{
    int none = HD_OK;

    atomic_compare_exchange_strong(&book->failed, &none, HD_ABORTED);
}

void book_log(const struct book *book, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    book->host->log(book->host->context, LOG_DEBUG, text);
}

/* --- shared errors ----------------------------------------------------------------------- */

static struct book_fault books_invalid(const struct hd_message *message)
{
    return (struct book_fault){HD_INVALID, BOOK_NONE, message->channel, message->sequence};
}

hd_status book_refuse_side(struct book *book, const struct hd_message *message)
{
    return book_fail(book, books_invalid(message), "channel %u: this rank is not at that end of it",
                     message->channel);
}

hd_status book_refuse_order(struct book *book, const struct hd_message *message, const char *call,
                            uint64_t next)
{
    return book_fail(book, books_invalid(message),
                     "channel %u: %s of message %" PRIu64 " out of order: %" PRIu64 " is next%s",
                     message->channel, call, message->sequence, next,
                     message->sequence == next ? ", and not yet allowed" : "");
}

hd_status book_refuse_stream(struct book *book, const struct hd_message *message)
{
    return book_fail(book, books_invalid(message),
                     "channel %u: %s moves host memory and takes no stream: pass NULL",
                     message->channel, book->name);
}

hd_status book_report_wait(struct book *book, const struct book_channel *channel,
                           struct book_fault fault, uint64_t done_count)
{
    const struct hd_channel *shape = channel->shape;
    const char *end = fault.status == HD_PEER_LOST ? "has ended" : "did not answer by the deadline";

    return book_fail(book, fault,
                     "channel %u (%s over boundary %u, by %s): rank %u %s: message %" PRIu64
                     " %s; %" PRIu64 " %s",
                     channel->number, shape->direction == HD_FORWARD ? "forward" : "backward",
                     shape->boundary, channel->carrier, channel->peer_rank, end, fault.sequence,
                     channel->is_source ? "is waiting for a free slot" : "has not arrived",
                     done_count,
                     channel->is_source ? "messages have left their slots" : "messages have");
}

hd_status book_refuse_news(struct book *book, const struct book_channel *channel, uint64_t news,
                           struct book_range range)
{
    return book_fail(book, book_peer_fault(channel, HD_PROTOCOL, news),
                     "channel %u: rank %u says that it has %s %" PRIu64
                     " messages; the number must be %" PRIu64 " to %" PRIu64,
                     channel->number, channel->peer_rank, channel->is_source ? "released" : "sent",
                     news, range.least_count, range.most_count);
}

/* --- reports to the core --------------------------------------------------------------- */

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
