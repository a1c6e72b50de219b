/* books/books_open.c - books, cards, and the steps of open in their order. */
#include "books_open.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { GENERATION_MAX = 1000 };

/* --- books ------------------------------------------------------------------------------- */

static int books_open_is_own(const struct hd_channel *shape, uint32_t rank)
{
    return shape->source == rank || shape->target == rank;
}

static uint32_t books_open_count_channels(const struct hd_transport_setup *setup)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < setup->channel_count; i++) {
        count += (uint32_t)books_open_is_own(setup->channels[i], setup->host->rank);
    }
    return count;
}

static void books_open_fill_channels(struct book *book, uint64_t channel_bytes)
{
    const uint32_t rank = book->host->rank;
    unsigned char *next = book->own_channels;

    for (uint32_t i = 0; i < book->channel_count; i++) {
        const struct hd_channel *shape = book->shapes[i];
        if (books_open_is_own(shape, rank)) {
            struct book_channel *channel = (struct book_channel *)(void *)next;
            channel->shape = shape;
            channel->number = i;
            channel->is_source = shape->source == rank;
            channel->peer_rank = channel->is_source ? shape->target : shape->source;
            channel->slot_count =
                channel->is_source && !book->is_in_place ? shape->send_depth : shape->depth;
            book->channel_of[i] = channel;
            next += channel_bytes;
        }
    }
}

static struct book_peer *books_open_peer_of(const struct book *book, uint32_t rank)
{
    return (void *)((unsigned char *)book->peers + rank * book->peer_bytes);
}

static void books_open_fill_peers(struct book *book)
{
    for (uint32_t rank = 0; book->peer_bytes > 0 && rank < book->host->rank_count; rank++) {
        *books_open_peer_of(book, rank) = (struct book_peer){.rank = rank, .pidfd = -1};
    }
}

/* The books of a rank; 1 if there was memory for all of them. */
static int books_open_take_books(struct book *book, const struct book_sizes *sizes)
{
    const struct hd_host *host = book->host;

    book->channel_of = host->alloc(
        host->context, (book->channel_count + (uint64_t)1) * sizeof(struct book_channel *), 64,
        book->name);
    book->own_channels = host->alloc(
        host->context, (book->own_count + (uint64_t)1) * sizes->channel_bytes, 64, book->name);
    book->peers =
        host->alloc(host->context, host->rank_count * sizes->peer_bytes + 1, 64, book->name);
    return book->channel_of != NULL && book->own_channels != NULL && book->peers != NULL;
}

struct hd_transport *book_create(const struct hd_transport_setup *setup, const char *name,
                                 const struct book_sizes *sizes)
{
    const struct hd_host *host = setup->host;
    struct book *book = host->alloc(host->context, sizes->instance_bytes, 64, name);

    assert(sizes->instance_bytes >= sizeof *book);
    assert(sizes->channel_bytes >= sizeof(struct book_channel));
    if (book != NULL) {
        book->host = host;
        book->name = name;
        book->shapes = setup->channels;
        book->channel_count = setup->channel_count;
        book->own_count = books_open_count_channels(setup);
        book->alignment_bytes = setup->alignment_bytes;
        book->is_traced = host->size < sizeof *host || !host->is_untraced;
        book->is_in_place = sizes->is_in_place;
        book->peer_bytes = sizes->peer_bytes;
        if (books_open_take_books(book, sizes)) {
            books_open_fill_channels(book, sizes->channel_bytes);
            books_open_fill_peers(book);
            return (struct hd_transport *)book;
        }
    }
    const struct hd_error error = {sizeof error,
                                   HD_NO_MEMORY,
                                   BOOK_NONE,
                                   BOOK_NONE,
                                   0,
                                   "no memory for the books of the channels"};
    (void)host->fail(host->context, &error);
    book_destroy((struct hd_transport *)book);
    return NULL;
}

void book_destroy(struct hd_transport *instance)
{
    struct book *book = (struct book *)instance;

    if (book == NULL) {
        return;
    }
    const struct hd_host *host = book->host;
    book_let_go(book);
    host->free(host->context, book->peers);
    host->free(host->context, book->own_channels);
    host->free(host->context, book->channel_of);
    host->free(host->context, book);
}

void book_let_go(struct book *book)
{
    const uint32_t count = book->peers != NULL && book->peer_bytes > 0 ? book->host->rank_count : 0;

    for (uint32_t rank = 0; rank < count; rank++) {
        struct book_peer *peer = books_open_peer_of(book, rank);
        if (peer->pidfd >= 0) {
            close(peer->pidfd);
            peer->pidfd = -1;
        }
    }
}

/* --- what must agree --------------------------------------------------------------------- */

static int books_open_is_sound(const struct book *book, const struct hd_channel *shape)
{
    const uint32_t rank_count = book->host->rank_count;
    const int has_sends =
        book->is_in_place || (shape->send_depth > 0 && shape->send_depth <= shape->depth);

    return shape->source != shape->target && shape->source < rank_count &&
           shape->target < rank_count && shape->depth > 0 && shape->bytes > 0 && has_sends;
}

hd_status book_check(struct book *book)
{
    const uint32_t align = book->alignment_bytes;

    if (align < HD_SEAL_BYTES || (align & (align - 1)) != 0 || align > sysconf(_SC_PAGESIZE)) {
        const struct book_fault fault = book_own_fault(HD_UNSUPPORTED);
        return book_fail(book, &fault,
                         "%s aligns slots to a power of two from 64 bytes to one page, not to %u",
                         book->name, align);
    }
    for (uint32_t i = 0; i < book->channel_count; i++) {
        if (!books_open_is_sound(book, book->shapes[i])) {
            const struct book_fault fault = {HD_INVALID, BOOK_NONE, i, 0};
            return book_fail(book, &fault,
                             "channel %u: a channel leads from one rank to another and has bytes, "
                             "depth, and send_depth up to that",
                             i);
        }
    }
    return HD_OK;
}

/* Of all that both ends of a channel must agree on. */
static uint64_t books_open_digest_of(const struct book *book)
{
    uint64_t digest = 0xcbf29ce484222325ull ^ book->alignment_bytes;

    for (uint32_t i = 0; i < book->channel_count; i++) {
        const struct hd_channel *shape = book->shapes[i];
        const uint64_t words[] = {shape->boundary, shape->direction,  shape->source, shape->target,
                                  shape->depth,    shape->send_depth, shape->bytes};
        for (size_t word = 0; word < sizeof words / sizeof words[0]; word++) {
            digest = (digest ^ words[word]) * 0x100000001b3ull;
            digest ^= digest >> 29;
        }
    }
    return digest;
}

/* --- cards ------------------------------------------------------------------------------- */

/* An open under way. */
struct opening {
    struct hd_transport *instance;
    const struct book_steps *steps;
    unsigned char *cards; /* [rank_count, card_bytes] */
    uint64_t deadline_ns;
    const char *phase; /* what this rank was doing, for what the bootstrap alone reports */
};

static struct book *books_open_book_of(const struct opening *opening)
{
    return (struct book *)opening->instance;
}

static struct book_card *books_open_card_of(const struct opening *opening, uint32_t rank)
{
    return (void *)(opening->cards + rank * opening->steps->card_bytes);
}

void book_key(const struct book *book, const char *what, uint32_t number, char key[BOOK_KEY_BYTES])
{
    snprintf(key, BOOK_KEY_BYTES, "%s.%s.%u.%u", book->name, what, number, book->generation);
}

/*
 * A bootstrap may refuse a key that is taken, by an older instance: then the next number is
 * this one's.  Open is collective, so all ranks come to the same number.
 */
static hd_status books_open_put_card(struct opening *opening)
{
    struct book *book = books_open_book_of(opening);
    const struct hd_host *host = book->host;
    hd_status status = HD_INVALID;
    char key[BOOK_KEY_BYTES];

    for (uint32_t i = 0; status == HD_INVALID && i < GENERATION_MAX; i++) {
        book->generation = i;
        book_key(book, "rank", host->rank, key);
        status = host->put(host->context, key, books_open_card_of(opening, host->rank),
                           opening->steps->card_bytes);
    }
    return status;
}

static hd_status books_open_check_card(struct book *book, uint32_t rank,
                                       const struct book_card *own, const struct book_card *card)
{
    const struct book_fault broken = {HD_PROTOCOL, rank, BOOK_NONE, 0};
    const struct book_fault refused = {card->status, rank, BOOK_NONE, 0};

    if (card->magic != own->magic) {
        return book_fail(book, &broken, "rank %u runs another version of %s", rank, book->name);
    }
    if (card->status != HD_OK) {
        return book_fail(book, &refused, "rank %u could not open %s (its own error says why)", rank,
                         book->name);
    }
    if (card->digest != own->digest) {
        return book_fail(book, &broken,
                         "rank %u has other channels than this rank: the ranks do not run one plan",
                         rank);
    }
    return HD_OK;
}

static hd_status books_open_read_cards(struct opening *opening)
{
    struct book *book = books_open_book_of(opening);
    const struct hd_host *host = book->host;
    const struct book_card own = *books_open_card_of(opening, host->rank);
    hd_status status = HD_OK;
    char key[BOOK_KEY_BYTES];

    for (uint32_t rank = 0; status == HD_OK && rank < host->rank_count; rank++) {
        struct book_card *card = books_open_card_of(opening, rank);
        book_key(book, "rank", rank, key);
        status =
            host->get(host->context, key, card, opening->steps->card_bytes, opening->deadline_ns);
        if (status == HD_OK) {
            status = books_open_check_card(book, rank, &own, card);
        }
    }
    return status;
}

/* --- the steps --------------------------------------------------------------------------- */

static hd_status books_open_fence(struct opening *opening)
{
    const struct hd_host *host = books_open_book_of(opening)->host;
    return host->fence(host->context, opening->deadline_ns);
}

/* Up to the cards of all ranks: whoever could not comes to the fence all the same. */
static hd_status books_open_introduce(struct opening *opening,
                                      const struct hd_transport_setup *setup)
{
    struct book *book = books_open_book_of(opening);
    struct book_card *card = books_open_card_of(opening, book->host->rank);

    opening->phase = "publishing its card";
    const hd_status made = opening->steps->make(opening->instance, setup, card);
    *card = (struct book_card){
        .magic = opening->steps->magic, .digest = books_open_digest_of(book), .status = made};
    hd_status status = books_open_put_card(opening);
    if (status == HD_OK && made == HD_OK && opening->steps->publish != NULL) {
        status = opening->steps->publish(opening->instance);
    }
    if (status == HD_OK) {
        opening->phase = "waiting for the cards of all ranks";
        status = books_open_fence(opening);
    }
    status = made != HD_OK ? made : status;
    if (status == HD_OK) {
        opening->phase = "reading the cards of all ranks";
        status = books_open_read_cards(opening);
    }
    return status;
}

static hd_status books_open_prove(struct opening *opening)
{
    const struct book_steps *steps = opening->steps;
    struct hd_transport *instance = opening->instance;

    opening->phase = "connecting to its peers";
    hd_status status = steps->connect(instance, opening->cards, opening->deadline_ns);
    if (status == HD_OK) {
        opening->phase = "waiting for the warm-up of all ranks";
        if (steps->warm_up != NULL) {
            status = steps->warm_up(instance, opening->deadline_ns);
        }
    }
    if (status == HD_OK) {
        status = books_open_fence(opening);
    }
    if (status == HD_OK) {
        steps->reset(instance);
        status = books_open_fence(opening);
    }
    return status;
}

/* Why the bootstrap did no more. */
static const char *books_open_ended_by(hd_status status)
{
    switch (status) {
    case HD_NO_MEMORY:
        return "the bootstrap had no room left";
    case HD_TIMEOUT:
        return "the deadline passed";
    case HD_ABORTED:
        return "the run was aborted";
    case HD_PROTOCOL:
        return "the bootstrap found a card of another size: the ranks run different versions";
    case HD_INVALID:
        return "the bootstrap refused the name of a card";
    default:
        return "the bootstrap failed";
    }
}

hd_status book_open(struct hd_transport *instance, const struct hd_transport_setup *setup,
                    const struct book_steps *steps, struct hd_transport **out)
{
    struct book *book = (struct book *)instance;
    const struct hd_host *host = book->host;
    struct opening opening = {.instance = instance,
                              .steps = steps,
                              .deadline_ns = setup->deadline_ns,
                              .phase = "preparing its cards"};
    hd_status status = HD_NO_MEMORY;

    assert(steps->card_bytes >= sizeof(struct book_card));
    opening.cards =
        host->alloc(host->context, host->rank_count * steps->card_bytes, 64, book->name);
    if (opening.cards != NULL) {
        status = books_open_introduce(&opening, setup);
    }
    if (status == HD_OK) {
        status = books_open_prove(&opening);
    }
    host->free(host->context, opening.cards);
    if (status == HD_OK) {
        *out = instance;
        return HD_OK;
    }
    /* What a step has decided is said already; what is left is the bootstrap's. */
    const struct book_fault fault = book_own_fault(status);
    (void)book_fail(book, &fault, "open: rank %u was %s when %s", host->rank, opening.phase,
                    books_open_ended_by(status));
    steps->close(instance, setup->deadline_ns);
    return status;
}

/* --- the warm-up ------------------------------------------------------------------------- */

/* The bytes of the pattern at `offset`, at most 8; they end with the message. */
static uint64_t books_open_pattern_at(const struct book_channel *channel, uint64_t offset,
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
        const uint64_t count = books_open_pattern_at(channel, offset, bytes);
        memcpy(message + offset, bytes, count);
    }
}

hd_status book_check_pattern(struct book *book, const struct book_channel *channel,
                             const unsigned char *message)
{
    const struct book_fault fault = book_peer_fault(channel, HD_PROTOCOL, BOOK_WARM_UP);
    unsigned char bytes[8];

    for (uint64_t offset = 0; offset < channel->shape->bytes; offset += 8) {
        const uint64_t count = books_open_pattern_at(channel, offset, bytes);
        if (memcmp(message + offset, bytes, count) != 0) {
            return book_fail(book, &fault,
                             "channel %u: the warm-up message of rank %u differs at byte %" PRIu64,
                             channel->number, channel->peer_rank, offset);
        }
    }
    return HD_OK;
}

hd_status book_report_warm_up(struct book *book, const struct book_channel *channel,
                              hd_status status)
{
    const struct book_fault fault = book_peer_fault(channel, status, BOOK_WARM_UP);

    if (status != HD_TIMEOUT && status != HD_PEER_LOST) {
        return status;
    }
    return book_fail(book, &fault, "channel %u: rank %u %s during warm-up", channel->number,
                     channel->peer_rank, status == HD_TIMEOUT ? "did not answer" : "ended");
}
