/* books/books_shared.c - what the steps of open have in common: options, peers, the warm-up. */
#include "books_open.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* --- options, peers, cores --------------------------------------------------------------- */

int64_t book_option(const struct book *book, uint32_t index, int64_t initial)
{
    return index < book->host->option_count ? book->host->options[index].integer : initial;
}

const char *book_text_option(const struct book *book, uint32_t index, const char *initial)
{
    const struct hd_host *host = book->host;
    return index < host->option_count && host->options[index].text != NULL
               ? host->options[index].text
               : initial;
}

hd_status book_hold_peer(struct book *book, struct book_peer *peer, const struct book_card *own,
                         const struct book_card *card)
{
    if (!book_is_in_reach(&own->place, &card->place)) {
        return book_fail(book, book_rank_fault(HD_UNSUPPORTED, peer->rank),
                         "rank %u runs on another host or in another PID namespace: %s needs all "
                         "ranks in one PID namespace of one host",
                         peer->rank, book->name);
    }
    const int error = book_hold(peer, card->place.pid);
    if (error == ESRCH) {
        return book_fail(book, book_rank_fault(HD_PEER_LOST, peer->rank),
                         "rank %u (process %d) has ended", peer->rank, card->place.pid);
    }
    if (error != 0) {
        return book_fail(book, book_rank_fault(HD_UNSUPPORTED, peer->rank),
                         "cannot open a pidfd of rank %u (process %d): %s; %s sees the death of a "
                         "peer only through a pidfd, which needs Linux 5.3 or newer",
                         peer->rank, card->place.pid, strerror(error), book->name);
    }
    return HD_OK;
}

bool book_is_crowded(const struct book *book, const void *cards, uint64_t card_bytes)
{
    const unsigned char *first = cards;
    const struct book_card *own = (const void *)(first + book->host->rank * card_bytes);
    const uint32_t core_count = book_core_count(&own->cores);
    uint32_t sharer_count = 0; /* this rank itself included */

    for (uint32_t rank = 0; rank < book->host->rank_count; rank++) {
        const struct book_card *card = (const void *)(first + rank * card_bytes);
        sharer_count += book_is_in_reach(&own->place, &card->place) &&
                        book_share_core(&own->cores, &card->cores);
    }
    book_log(book, "%u ranks share the %u cores of rank %u", sharer_count, core_count,
             book->host->rank);
    return sharer_count > core_count;
}

uint64_t book_largest_bytes(const struct book *book)
{
    uint64_t bytes = 8;

    for (uint32_t i = 0; i < book->channel_count; i++) {
        if (book->channel_of[i] != NULL && book->shapes[i]->bytes > bytes) {
            bytes = book->shapes[i]->bytes;
        }
    }
    return bytes;
}

/* --- the warm-up ------------------------------------------------------------------------- */

/* The bytes of the pattern at `offset`: 8, or fewer at the end of the message. */
static uint64_t books_shared_pattern_at(const struct book_channel *channel, uint64_t offset,
                                        unsigned char bytes[8])
{
    const uint64_t left_bytes = channel->shape->bytes - offset;
    const uint64_t word = hd_pattern_word(channel->number, BOOK_WARM_UP, offset / 8);

    memcpy(bytes, &word, 8);
    return left_bytes < 8 ? left_bytes : 8;
}

void book_fill_pattern(const struct book_channel *channel, unsigned char *message)
{
    unsigned char bytes[8];

    for (uint64_t offset = 0; offset < channel->shape->bytes; offset += 8) {
        const uint64_t count = books_shared_pattern_at(channel, offset, bytes);
        memcpy(message + offset, bytes, count);
    }
}

hd_status book_check_pattern(struct book *book, const struct book_channel *channel,
                             const unsigned char *message)
{
    unsigned char bytes[8];

    for (uint64_t offset = 0; offset < channel->shape->bytes; offset += 8) {
        const uint64_t count = books_shared_pattern_at(channel, offset, bytes);
        if (memcmp(message + offset, bytes, count) != 0) {
            return book_fail(book, book_peer_fault(channel, HD_PROTOCOL, BOOK_WARM_UP),
                             "channel %u: the warm-up message of rank %u differs at byte %" PRIu64,
                             channel->number, channel->peer_rank, offset);
        }
    }
    return HD_OK;
}

hd_status book_report_warm_up(struct book *book, const struct book_channel *channel,
                              hd_status status)
{
    if (status != HD_TIMEOUT && status != HD_PEER_LOST) {
        return status;
    }
    return book_fail(book, book_peer_fault(channel, status, BOOK_WARM_UP),
                     "channel %u: rank %u %s during the warm-up", channel->number,
                     channel->peer_rank, status == HD_TIMEOUT ? "did not answer" : "ended");
}
