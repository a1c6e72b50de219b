/* turn/books_open.c - books, cards, and the steps of open in their order. */
#include "books_open.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { GENERATION_MAX = 1000 };

/* --- books ------------------------------------------------------------------------------- */

static int books_open_is_own(const struct hd_channel *channel, uint32_t rank)
{
    return channel->source == rank || channel->target == rank;
}

static uint32_t books_open_count_lanes(const struct hd_transport_setup *setup)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < setup->channel_count; i++) {
        count += (uint32_t)books_open_is_own(setup->channels[i], setup->host->rank);
    }
    return count;
}

static void books_open_fill_lanes(struct book *book, uint64_t lane_bytes)
{
    const uint32_t rank = book->host->rank;
    unsigned char *next = book->lanes;

    for (uint32_t i = 0; i < book->channel_count; i++) {
        const struct hd_channel *channel = book->channels[i];
        if (books_open_is_own(channel, rank)) {
            struct book_lane *lane = (struct book_lane *)(void *)next;
            lane->channel = channel;
            lane->number = i;
            lane->is_source = channel->source == rank;
            lane->peer_rank = lane->is_source ? channel->target : channel->source;
            lane->slot_count =
                lane->is_source && !book->is_in_place ? channel->send_depth : channel->depth;
            book->lane_of[i] = lane;
            next += lane_bytes;
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

    book->lane_of =
        host->alloc(host->context, (book->channel_count + (uint64_t)1) * sizeof(struct book_lane *),
                    64, book->name);
    book->lanes = host->alloc(host->context, (book->lane_count + (uint64_t)1) * sizes->lane_bytes,
                              64, book->name);
    book->peers =
        host->alloc(host->context, host->rank_count * sizes->peer_bytes + 1, 64, book->name);
    return book->lane_of != NULL && book->lanes != NULL && book->peers != NULL;
}

struct hd_transport *book_create(const struct hd_transport_setup *setup, const char *name,
                                 const struct book_sizes *sizes)
{
    const struct hd_host *host = setup->host;
    struct book *book = host->alloc(host->context, sizes->instance_bytes, 64, name);

    assert(sizes->instance_bytes >= sizeof *book);
    assert(sizes->lane_bytes >= sizeof(struct book_lane));
    if (book != NULL) {
        book->host = host;
        book->name = name;
        book->channels = setup->channels;
        book->channel_count = setup->channel_count;
        book->lane_count = books_open_count_lanes(setup);
        book->alignment_bytes = setup->alignment_bytes;
        book->is_traced = host->size < sizeof *host || !host->is_untraced;
        book->is_in_place = sizes->is_in_place;
        book->peer_bytes = sizes->peer_bytes;
        if (books_open_take_books(book, sizes)) {
            books_open_fill_lanes(book, sizes->lane_bytes);
            books_open_fill_peers(book);
            return (struct hd_transport *)book;
        }
    }
    const struct hd_error error = {sizeof error,
                                   HD_NO_MEMORY,
                                   TURN_NONE,
                                   TURN_NONE,
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
    host->free(host->context, book->lanes);
    host->free(host->context, book->lane_of);
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

static int books_open_is_sound(const struct book *book, const struct hd_channel *channel)
{
    const uint32_t rank_count = book->host->rank_count;
    const int has_sends =
        book->is_in_place || (channel->send_depth > 0 && channel->send_depth <= channel->depth);

    return channel->source != channel->target && channel->source < rank_count &&
           channel->target < rank_count && channel->depth > 0 && channel->bytes > 0 && has_sends;
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
        if (!books_open_is_sound(book, book->channels[i])) {
            const struct book_fault fault = {HD_INVALID, TURN_NONE, i, 0};
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
        const struct hd_channel *channel = book->channels[i];
        const uint64_t words[] = {channel->boundary, channel->direction, channel->source,
                                  channel->target,   channel->depth,     channel->send_depth,
                                  channel->bytes};
        for (size_t word = 0; word < sizeof words / sizeof words[0]; word++) {
            digest = (digest ^ words[word]) * 0x100000001b3ull;
            digest ^= digest >> 29;
        }
    }
    return digest;
}

/* --- cards ------------------------------------------------------------------------------- */

/* An open under way. */
struct passage {
    struct hd_transport *instance;
    const struct book_steps *steps;
    unsigned char *cards; /* [rank_count, card_bytes] */
    uint64_t deadline_ns;
    const char *phase; /* what this rank was doing, for what the bootstrap alone reports */
};

static struct book *books_open_book_of(const struct passage *passage)
{
    return (struct book *)passage->instance;
}

static struct book_card *books_open_card_of(const struct passage *passage, uint32_t rank)
{
    return (void *)(passage->cards + rank * passage->steps->card_bytes);
}

void book_key(const struct book *book, const char *what, uint32_t number, char key[TURN_KEY_BYTES])
{
    snprintf(key, TURN_KEY_BYTES, "%s.%s.%u.%u", book->name, what, number, book->generation);
}

/*
 * A bootstrap may refuse a key that is taken, by an older instance: then the next number is
 * this one's.  Open is collective, so all ranks come to the same number.
 */
static hd_status books_open_put_card(struct passage *passage)
{
    struct book *book = books_open_book_of(passage);
    const struct hd_host *host = book->host;
    hd_status status = HD_INVALID;
    char key[TURN_KEY_BYTES];

    for (uint32_t i = 0; status == HD_INVALID && i < GENERATION_MAX; i++) {
        book->generation = i;
        book_key(book, "rank", host->rank, key);
        status = host->put(host->context, key, books_open_card_of(passage, host->rank),
                           passage->steps->card_bytes);
    }
    return status;
}

static hd_status books_open_check_card(struct book *book, uint32_t rank,
                                       const struct book_card *own, const struct book_card *card)
{
    const struct book_fault broken = {HD_PROTOCOL, rank, TURN_NONE, 0};
    const struct book_fault refused = {card->status, rank, TURN_NONE, 0};

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

static hd_status books_open_read_cards(struct passage *passage)
{
    struct book *book = books_open_book_of(passage);
    const struct hd_host *host = book->host;
    const struct book_card own = *books_open_card_of(passage, host->rank);
    hd_status status = HD_OK;
    char key[TURN_KEY_BYTES];

    for (uint32_t rank = 0; status == HD_OK && rank < host->rank_count; rank++) {
        struct book_card *card = books_open_card_of(passage, rank);
        book_key(book, "rank", rank, key);
        status =
            host->get(host->context, key, card, passage->steps->card_bytes, passage->deadline_ns);
        if (status == HD_OK) {
            status = books_open_check_card(book, rank, &own, card);
        }
    }
    return status;
}

/* --- the steps --------------------------------------------------------------------------- */

static hd_status books_open_fence(struct passage *passage)
{
    const struct hd_host *host = books_open_book_of(passage)->host;
    return host->fence(host->context, passage->deadline_ns);
}

/* Up to the cards of all ranks: whoever could not comes to the fence all the same. */
static hd_status books_open_introduce(struct passage *passage,
                                      const struct hd_transport_setup *setup)
{
    struct book *book = books_open_book_of(passage);
    struct book_card *card = books_open_card_of(passage, book->host->rank);

    passage->phase = "publishing its card";
    const hd_status made = passage->steps->make(passage->instance, setup, card);
    *card = (struct book_card){
        .magic = passage->steps->magic, .digest = books_open_digest_of(book), .status = made};
    hd_status status = books_open_put_card(passage);
    if (status == HD_OK && made == HD_OK && passage->steps->publish != NULL) {
        status = passage->steps->publish(passage->instance);
    }
    if (status == HD_OK) {
        passage->phase = "waiting for the cards of all ranks";
        status = books_open_fence(passage);
    }
    status = made != HD_OK ? made : status;
    if (status == HD_OK) {
        passage->phase = "reading the cards of all ranks";
        status = books_open_read_cards(passage);
    }
    return status;
}

static hd_status books_open_prove(struct passage *passage)
{
    const struct book_steps *steps = passage->steps;
    struct hd_transport *instance = passage->instance;

    passage->phase = "connecting to its peers";
    hd_status status = steps->connect(instance, passage->cards, passage->deadline_ns);
    if (status == HD_OK) {
        passage->phase = "waiting for the warm-up of all ranks";
        if (steps->warm_up != NULL) {
            status = steps->warm_up(instance, passage->deadline_ns);
        }
    }
    if (status == HD_OK) {
        status = books_open_fence(passage);
    }
    if (status == HD_OK) {
        steps->reset(instance);
        status = books_open_fence(passage);
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
    struct passage passage = {.instance = instance,
                              .steps = steps,
                              .deadline_ns = setup->deadline_ns,
                              .phase = "preparing its cards"};
    hd_status status = HD_NO_MEMORY;

    assert(steps->card_bytes >= sizeof(struct book_card));
    passage.cards =
        host->alloc(host->context, host->rank_count * steps->card_bytes, 64, book->name);
    if (passage.cards != NULL) {
        status = books_open_introduce(&passage, setup);
    }
    if (status == HD_OK) {
        status = books_open_prove(&passage);
    }
    host->free(host->context, passage.cards);
    if (status == HD_OK) {
        *out = instance;
        return HD_OK;
    }
    /* What a step has decided is said already; what is left is the bootstrap's. */
    const struct book_fault fault = book_own_fault(status);
    (void)book_fail(book, &fault, "open: rank %u was %s when %s", host->rank, passage.phase,
                    books_open_ended_by(status));
    steps->close(instance, setup->deadline_ns);
    return status;
}

/* --- the warm-up ------------------------------------------------------------------------- */

/* The bytes of the pattern at `offset`, at most 8; they end with the message. */
static uint64_t books_open_pattern_at(const struct book_lane *lane, uint64_t offset,
                                      unsigned char bytes[8])
{
    const uint64_t left_bytes = lane->channel->bytes - offset;
    const uint64_t word = hd_pattern_word(lane->number, TURN_WARM_UP, offset / 8);

    memcpy(bytes, &word, 8);
    return left_bytes < 8 ? left_bytes : 8;
}

void book_fill_pattern(const struct book_lane *lane, unsigned char *message)
{
    unsigned char bytes[8];

    for (uint64_t offset = 0; offset < lane->channel->bytes; offset += 8) {
        const uint64_t count = books_open_pattern_at(lane, offset, bytes);
        memcpy(message + offset, bytes, count);
    }
}

hd_status book_check_pattern(struct book *book, const struct book_lane *lane,
                             const unsigned char *message)
{
    const struct book_fault fault = book_peer_fault(lane, HD_PROTOCOL, TURN_WARM_UP);
    unsigned char bytes[8];

    for (uint64_t offset = 0; offset < lane->channel->bytes; offset += 8) {
        const uint64_t count = books_open_pattern_at(lane, offset, bytes);
        if (memcmp(message + offset, bytes, count) != 0) {
            return book_fail(book, &fault,
                             "channel %u: the warm-up message of rank %u differs at byte %" PRIu64,
                             lane->number, lane->peer_rank, offset);
        }
    }
    return HD_OK;
}

hd_status book_report_warm_up(struct book *book, const struct book_lane *lane, hd_status status)
{
    const struct book_fault fault = book_peer_fault(lane, status, TURN_WARM_UP);

    if (status != HD_TIMEOUT && status != HD_PEER_LOST) {
        return status;
    }
    return book_fail(book, &fault, "channel %u: rank %u %s during warm-up", lane->number,
                     lane->peer_rank, status == HD_TIMEOUT ? "did not answer" : "ended");
}
