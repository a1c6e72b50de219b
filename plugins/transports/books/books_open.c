/* books/books_open.c - channels and peers, cards, and the steps of open in their order. */
#include "books_open.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { GENERATION_MAX = 1000 };

/* --- channels and peers ------------------------------------------------------------------ */

static bool books_open_is_own(const struct hd_channel *shape, uint32_t rank)
{
    return shape->source == rank || shape->target == rank;
}

static uint32_t books_open_count_own(const struct hd_transport_setup *setup)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < setup->channel_count; i++) {
        count += books_open_is_own(setup->channels[i], setup->host->rank);
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

static bool books_open_allocate(struct book *book, const struct book_sizes *sizes)
{
    const struct hd_host *host = book->host;
    const uint64_t table_bytes =
        (book->channel_count + (uint64_t)1) * sizeof(struct book_channel *);
    const uint64_t own_bytes = (book->own_count + (uint64_t)1) * sizes->channel_bytes;
    const uint64_t peer_bytes = host->rank_count * sizes->peer_bytes + 1;

    book->channel_of = host->alloc(host->context, table_bytes, 64, book->name);
    book->own_channels = host->alloc(host->context, own_bytes, 64, book->name);
    book->peers = host->alloc(host->context, peer_bytes, 64, book->name);
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
        book->own_count = books_open_count_own(setup);
        book->alignment_bytes = setup->alignment_bytes;
        book->is_traced = host->size < sizeof *host || !host->is_untraced;
        book->is_in_place = sizes->is_in_place;
        book->peer_bytes = sizes->peer_bytes;
        if (books_open_allocate(book, sizes)) {
            books_open_fill_channels(book, sizes->channel_bytes);
            books_open_fill_peers(book);
            return (struct hd_transport *)book;
        }
    }
    const struct hd_error error = {.size = sizeof error,
                                   .status = HD_NO_MEMORY,
                                   .rank = BOOK_NONE,
                                   .channel = BOOK_NONE,
                                   .text = "cannot allocate the state of the channels"};
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

/* --- checks --------------------------------------------------------------------- */

static bool books_open_is_sound(const struct book *book, const struct hd_channel *shape)
{
    const uint32_t rank_count = book->host->rank_count;
    const bool has_sends =
        book->is_in_place || (shape->send_depth > 0 && shape->send_depth <= shape->depth);

    return shape->source != shape->target && shape->source < rank_count &&
           shape->target < rank_count && shape->depth > 0 && shape->bytes > 0 && has_sends;
}

hd_status book_check(struct book *book)
{
    const uint32_t align = book->alignment_bytes;

    if (align < HD_SEAL_BYTES || (align & (align - 1)) != 0 || align > sysconf(_SC_PAGESIZE)) {
        return book_fail(book, book_own_fault(HD_UNSUPPORTED),
                         "%s: the alignment of slots must be a power of two from 64 bytes to one "
                         "page, not %u",
                         book->name, align);
    }
    for (uint32_t i = 0; i < book->channel_count; i++) {
        if (!books_open_is_sound(book, book->shapes[i])) {
            return book_fail(book, book_channel_fault(HD_INVALID, i),
                             "channel %u: a channel must lead from one rank to another, with bytes "
                             "and depth of at least 1 and send_depth 1 to depth",
                             i);
        }
    }
    return HD_OK;
}

/* Covers every member that both ends of a channel must agree on. */
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

/* An open in progress. */
struct opening {
    struct hd_transport *instance;
    const struct book_steps *steps;
    unsigned char *cards; /* [rank_count, card_bytes] */
    uint64_t deadline_ns;
    const char *phase; /* what this rank is doing, for an error of the bootstrap */
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
 * A bootstrap may refuse a key that an older instance has put; then the next generation is tried.
 * Open is collective, so all ranks arrive at the same generation.
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
    const struct book_fault broken = book_rank_fault(HD_PROTOCOL, rank);

    if (card->magic != own->magic) {
        return book_fail(book, broken,
                         "rank %u runs another version of %s: install one version everywhere", rank,
                         book->name);
    }
    if (card->status != HD_OK) {
        return book_fail(book, book_rank_fault(card->status, rank),
                         "rank %u could not open %s (its own error says why)", rank, book->name);
    }
    if (card->digest != own->digest) {
        return book_fail(book, broken,
                         "rank %u has other channels than this rank: the ranks must run one plan",
                         rank);
    }
    return HD_OK;
}

static hd_status books_open_read_cards(struct opening *opening)
{
    struct book *book = books_open_book_of(opening);
    const struct hd_host *host = book->host;
    const struct book_card own = *books_open_card_of(opening, host->rank);
    char key[BOOK_KEY_BYTES];

    for (uint32_t rank = 0; rank < host->rank_count; rank++) {
        struct book_card *card = books_open_card_of(opening, rank);
        book_key(book, "rank", rank, key);
        BOOK_TRY(
            host->get(host->context, key, card, opening->steps->card_bytes, opening->deadline_ns));
        BOOK_TRY(books_open_check_card(book, rank, &own, card));
    }
    return HD_OK;
}

/* --- the steps --------------------------------------------------------------------------- */

static hd_status books_open_fence(struct opening *opening)
{
    const struct hd_host *host = books_open_book_of(opening)->host;
    return host->fence(host->context, opening->deadline_ns);
}

/* make, and the cards of all ranks.  A rank whose make has failed comes to the fence as well. */
static hd_status books_open_introduce(struct opening *opening,
                                      const struct hd_transport_setup *setup)
{
    struct book *book = books_open_book_of(opening);
    struct book_card *card = books_open_card_of(opening, book->host->rank);

    opening->phase = "publishing its card";
    const hd_status made = opening->steps->make(opening->instance, setup, card);
    *card = (struct book_card){.magic = opening->steps->magic,
                               .digest = books_open_digest_of(book),
                               .status = made,
                               .place = book_find_place(),
                               .cores = book_find_cores()};
    hd_status status = books_open_put_card(opening);
    if (status == HD_OK && made == HD_OK && opening->steps->publish != NULL) {
        status = opening->steps->publish(opening->instance);
    }
    if (status == HD_OK) {
        opening->phase = "waiting for the cards of all ranks";
        status = books_open_fence(opening);
    }
    BOOK_TRY(made);
    BOOK_TRY(status);
    opening->phase = "reading the cards of all ranks";
    return books_open_read_cards(opening);
}

static hd_status books_open_prove(struct opening *opening)
{
    const struct book_steps *steps = opening->steps;
    struct hd_transport *instance = opening->instance;

    opening->phase = "connecting to its peers";
    BOOK_TRY(steps->connect(instance, opening->cards, opening->deadline_ns));
    opening->phase = "waiting for the warm-up of all ranks";
    if (steps->warm_up != NULL) {
        BOOK_TRY(steps->warm_up(instance, opening->deadline_ns));
    }
    BOOK_TRY(books_open_fence(opening));
    steps->reset(instance);
    return books_open_fence(opening);
}

/* Why the bootstrap stopped. */
static const char *books_open_ended_by(hd_status status)
{
    switch (status) {
    case HD_NO_MEMORY:
        return "the bootstrap ran out of memory";
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

static void books_open_log(const struct book *book)
{
    for (uint32_t i = 0; i < book->channel_count; i++) {
        const struct book_channel *channel = book->channel_of[i];
        if (channel != NULL) {
            book_log(book,
                     "channel %u (%s over boundary %u) %s rank %u: %s, %u slots of %" PRIu64
                     " bytes here",
                     i, channel->shape->direction == HD_FORWARD ? "forward" : "backward",
                     channel->shape->boundary, channel->is_source ? "to" : "from",
                     channel->peer_rank, channel->carrier, channel->slot_count,
                     channel->shape->bytes);
        }
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
                              .phase = "preparing its card"};
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
        books_open_log(book);
        *out = instance;
        return HD_OK;
    }
    /* If a step has failed, it has reported that, and this report is not the first. */
    (void)book_fail(book, book_own_fault(status), "open: rank %u was %s when %s", host->rank,
                    opening.phase, books_open_ended_by(status));
    steps->close(instance, setup->deadline_ns);
    return status;
}
