/* turn/turn_open.c - books, cards, and the steps of open in their order. */
#include "turn_open.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { GENERATION_MAX = 1000 };

/* --- books ------------------------------------------------------------------------------- */

static int is_own(const struct hd_channel *channel, uint32_t rank)
{
    return channel->source == rank || channel->target == rank;
}

static uint32_t count_lanes(const struct hd_transport_setup *setup)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < setup->channel_count; i++) {
        count += (uint32_t)is_own(setup->channels[i], setup->host->rank);
    }
    return count;
}

static void fill_lanes(struct turn *turn, uint64_t lane_bytes)
{
    const uint32_t rank = turn->host->rank;
    unsigned char *next = turn->lanes;

    for (uint32_t i = 0; i < turn->channel_count; i++) {
        const struct hd_channel *channel = turn->channels[i];
        if (is_own(channel, rank)) {
            struct turn_lane *lane = (struct turn_lane *)(void *)next;
            lane->channel = channel;
            lane->number = i;
            lane->is_source = channel->source == rank;
            lane->peer_rank = lane->is_source ? channel->target : channel->source;
            lane->slot_count =
                lane->is_source && !turn->is_in_place ? channel->send_depth : channel->depth;
            turn->lane_of[i] = lane;
            next += lane_bytes;
        }
    }
}

static struct turn_peer *peer_of(const struct turn *turn, uint32_t rank)
{
    return (void *)((unsigned char *)turn->peers + rank * turn->peer_bytes);
}

static void fill_peers(struct turn *turn)
{
    for (uint32_t rank = 0; turn->peer_bytes > 0 && rank < turn->host->rank_count; rank++) {
        *peer_of(turn, rank) = (struct turn_peer){.rank = rank, .pidfd = -1};
    }
}

/* The books of a rank; 1 if there was memory for all of them. */
static int take_books(struct turn *turn, const struct turn_sizes *sizes)
{
    const struct hd_host *host = turn->host;

    turn->lane_of =
        host->alloc(host->context, (turn->channel_count + (uint64_t)1) * sizeof(struct turn_lane *),
                    64, turn->name);
    turn->lanes = host->alloc(host->context, (turn->lane_count + (uint64_t)1) * sizes->lane_bytes,
                              64, turn->name);
    turn->peers =
        host->alloc(host->context, host->rank_count * sizes->peer_bytes + 1, 64, turn->name);
    return turn->lane_of != NULL && turn->lanes != NULL && turn->peers != NULL;
}

struct hd_transport *turn_create(const struct hd_transport_setup *setup, const char *name,
                                 const struct turn_sizes *sizes)
{
    const struct hd_host *host = setup->host;
    struct turn *turn = host->alloc(host->context, sizes->instance_bytes, 64, name);

    assert(sizes->instance_bytes >= sizeof *turn);
    assert(sizes->lane_bytes >= sizeof(struct turn_lane));
    if (turn != NULL) {
        turn->host = host;
        turn->name = name;
        turn->channels = setup->channels;
        turn->channel_count = setup->channel_count;
        turn->lane_count = count_lanes(setup);
        turn->alignment_bytes = setup->alignment_bytes;
        turn->is_traced = host->size < sizeof *host || !host->is_untraced;
        turn->is_in_place = sizes->is_in_place;
        turn->peer_bytes = sizes->peer_bytes;
        if (take_books(turn, sizes)) {
            fill_lanes(turn, sizes->lane_bytes);
            fill_peers(turn);
            return (struct hd_transport *)turn;
        }
    }
    const struct hd_error error = {sizeof error,
                                   HD_NO_MEMORY,
                                   TURN_NONE,
                                   TURN_NONE,
                                   0,
                                   "no memory for the books of the channels"};
    (void)host->fail(host->context, &error);
    turn_destroy((struct hd_transport *)turn);
    return NULL;
}

void turn_destroy(struct hd_transport *instance)
{
    struct turn *turn = (struct turn *)instance;

    if (turn == NULL) {
        return;
    }
    const struct hd_host *host = turn->host;
    turn_let_go(turn);
    host->free(host->context, turn->peers);
    host->free(host->context, turn->lanes);
    host->free(host->context, turn->lane_of);
    host->free(host->context, turn);
}

void turn_let_go(struct turn *turn)
{
    const uint32_t count = turn->peers != NULL && turn->peer_bytes > 0 ? turn->host->rank_count : 0;

    for (uint32_t rank = 0; rank < count; rank++) {
        struct turn_peer *peer = peer_of(turn, rank);
        if (peer->pidfd >= 0) {
            close(peer->pidfd);
            peer->pidfd = -1;
        }
    }
}

/* --- what must agree --------------------------------------------------------------------- */

static int is_sound(const struct turn *turn, const struct hd_channel *channel)
{
    const uint32_t rank_count = turn->host->rank_count;
    const int has_sends =
        turn->is_in_place || (channel->send_depth > 0 && channel->send_depth <= channel->depth);

    return channel->source != channel->target && channel->source < rank_count &&
           channel->target < rank_count && channel->depth > 0 && channel->bytes > 0 && has_sends;
}

hd_status turn_check(struct turn *turn)
{
    const uint32_t align = turn->alignment_bytes;

    if (align < HD_SEAL_BYTES || (align & (align - 1)) != 0 || align > sysconf(_SC_PAGESIZE)) {
        const struct turn_fault fault = turn_own_fault(HD_UNSUPPORTED);
        return turn_fail(turn, &fault,
                         "%s aligns slots to a power of two from 64 bytes to one page, not to %u",
                         turn->name, align);
    }
    for (uint32_t i = 0; i < turn->channel_count; i++) {
        if (!is_sound(turn, turn->channels[i])) {
            const struct turn_fault fault = {HD_INVALID, TURN_NONE, i, 0};
            return turn_fail(turn, &fault,
                             "channel %u: a channel leads from one rank to another and has bytes, "
                             "depth, and send_depth up to that",
                             i);
        }
    }
    return HD_OK;
}

/* Of all that both ends of a channel must agree on. */
static uint64_t digest_of(const struct turn *turn)
{
    uint64_t digest = 0xcbf29ce484222325ull ^ turn->alignment_bytes;

    for (uint32_t i = 0; i < turn->channel_count; i++) {
        const struct hd_channel *channel = turn->channels[i];
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
    const struct turn_steps *steps;
    unsigned char *cards; /* [rank_count, card_bytes] */
    uint64_t deadline_ns;
    const char *phase; /* what this rank was doing, for what the bootstrap alone reports */
};

static struct turn *turn_of(const struct passage *passage)
{
    return (struct turn *)passage->instance;
}

static struct turn_card *card_of(const struct passage *passage, uint32_t rank)
{
    return (void *)(passage->cards + rank * passage->steps->card_bytes);
}

void turn_key(const struct turn *turn, const char *what, uint32_t number, char key[TURN_KEY_BYTES])
{
    snprintf(key, TURN_KEY_BYTES, "%s.%s.%u.%u", turn->name, what, number, turn->generation);
}

/*
 * A bootstrap may refuse a key that is taken, by an older instance: then the next number is
 * this one's.  Open is collective, so all ranks come to the same number.
 */
static hd_status put_card(struct passage *passage)
{
    struct turn *turn = turn_of(passage);
    const struct hd_host *host = turn->host;
    hd_status status = HD_INVALID;
    char key[TURN_KEY_BYTES];

    for (uint32_t i = 0; status == HD_INVALID && i < GENERATION_MAX; i++) {
        turn->generation = i;
        turn_key(turn, "rank", host->rank, key);
        status =
            host->put(host->context, key, card_of(passage, host->rank), passage->steps->card_bytes);
    }
    return status;
}

static hd_status check_card(struct turn *turn, uint32_t rank, const struct turn_card *own,
                            const struct turn_card *card)
{
    const struct turn_fault broken = {HD_PROTOCOL, rank, TURN_NONE, 0};
    const struct turn_fault refused = {card->status, rank, TURN_NONE, 0};

    if (card->magic != own->magic) {
        return turn_fail(turn, &broken, "rank %u runs another version of %s", rank, turn->name);
    }
    if (card->status != HD_OK) {
        return turn_fail(turn, &refused, "rank %u could not open %s (its own error says why)", rank,
                         turn->name);
    }
    if (card->digest != own->digest) {
        return turn_fail(turn, &broken,
                         "rank %u has other channels than this rank: the ranks do not run one plan",
                         rank);
    }
    return HD_OK;
}

static hd_status read_cards(struct passage *passage)
{
    struct turn *turn = turn_of(passage);
    const struct hd_host *host = turn->host;
    const struct turn_card own = *card_of(passage, host->rank);
    hd_status status = HD_OK;
    char key[TURN_KEY_BYTES];

    for (uint32_t rank = 0; status == HD_OK && rank < host->rank_count; rank++) {
        struct turn_card *card = card_of(passage, rank);
        turn_key(turn, "rank", rank, key);
        status =
            host->get(host->context, key, card, passage->steps->card_bytes, passage->deadline_ns);
        if (status == HD_OK) {
            status = check_card(turn, rank, &own, card);
        }
    }
    return status;
}

/* --- the steps --------------------------------------------------------------------------- */

static hd_status fence(struct passage *passage)
{
    const struct hd_host *host = turn_of(passage)->host;
    return host->fence(host->context, passage->deadline_ns);
}

/* Up to the cards of all ranks: whoever could not comes to the fence all the same. */
static hd_status introduce(struct passage *passage, const struct hd_transport_setup *setup)
{
    struct turn *turn = turn_of(passage);
    struct turn_card *card = card_of(passage, turn->host->rank);

    passage->phase = "publishing its card";
    const hd_status made = passage->steps->make(passage->instance, setup, card);
    *card = (struct turn_card){
        .magic = passage->steps->magic, .digest = digest_of(turn), .status = made};
    hd_status status = put_card(passage);
    if (status == HD_OK && made == HD_OK && passage->steps->publish != NULL) {
        status = passage->steps->publish(passage->instance);
    }
    if (status == HD_OK) {
        passage->phase = "waiting for the cards of all ranks";
        status = fence(passage);
    }
    status = made != HD_OK ? made : status;
    if (status == HD_OK) {
        passage->phase = "reading the cards of all ranks";
        status = read_cards(passage);
    }
    return status;
}

static hd_status prove(struct passage *passage)
{
    const struct turn_steps *steps = passage->steps;
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
        status = fence(passage);
    }
    if (status == HD_OK) {
        steps->reset(instance);
        status = fence(passage);
    }
    return status;
}

/* Why the bootstrap did no more. */
static const char *ended_by(hd_status status)
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

hd_status turn_open(struct hd_transport *instance, const struct hd_transport_setup *setup,
                    const struct turn_steps *steps, struct hd_transport **out)
{
    struct turn *turn = (struct turn *)instance;
    const struct hd_host *host = turn->host;
    struct passage passage = {.instance = instance,
                              .steps = steps,
                              .deadline_ns = setup->deadline_ns,
                              .phase = "preparing its cards"};
    hd_status status = HD_NO_MEMORY;

    assert(steps->card_bytes >= sizeof(struct turn_card));
    passage.cards =
        host->alloc(host->context, host->rank_count * steps->card_bytes, 64, turn->name);
    if (passage.cards != NULL) {
        status = introduce(&passage, setup);
    }
    if (status == HD_OK) {
        status = prove(&passage);
    }
    host->free(host->context, passage.cards);
    if (status == HD_OK) {
        *out = instance;
        return HD_OK;
    }
    /* What a step has decided is said already; what is left is the bootstrap's. */
    const struct turn_fault fault = turn_own_fault(status);
    (void)turn_fail(turn, &fault, "open: rank %u was %s when %s", host->rank, passage.phase,
                    ended_by(status));
    steps->close(instance, setup->deadline_ns);
    return status;
}

/* --- the warm-up ------------------------------------------------------------------------- */

/* The bytes of the pattern at `offset`, at most 8; they end with the message. */
static uint64_t pattern_at(const struct turn_lane *lane, uint64_t offset, unsigned char bytes[8])
{
    const uint64_t left_bytes = lane->channel->bytes - offset;
    const uint64_t word = hd_pattern_word(lane->number, TURN_WARM_UP, offset / 8);

    memcpy(bytes, &word, 8);
    return left_bytes < 8 ? left_bytes : 8;
}

void turn_fill_pattern(const struct turn_lane *lane, unsigned char *message)
{
    unsigned char bytes[8];

    for (uint64_t offset = 0; offset < lane->channel->bytes; offset += 8) {
        const uint64_t count = pattern_at(lane, offset, bytes);
        memcpy(message + offset, bytes, count);
    }
}

hd_status turn_check_pattern(struct turn *turn, const struct turn_lane *lane,
                             const unsigned char *message)
{
    const struct turn_fault fault = turn_peer_fault(lane, HD_PROTOCOL, TURN_WARM_UP);
    unsigned char bytes[8];

    for (uint64_t offset = 0; offset < lane->channel->bytes; offset += 8) {
        const uint64_t count = pattern_at(lane, offset, bytes);
        if (memcmp(message + offset, bytes, count) != 0) {
            return turn_fail(turn, &fault,
                             "channel %u: the warm-up message of rank %u differs at byte %" PRIu64,
                             lane->number, lane->peer_rank, offset);
        }
    }
    return HD_OK;
}

hd_status turn_report_warm_up(struct turn *turn, const struct turn_lane *lane, hd_status status)
{
    const struct turn_fault fault = turn_peer_fault(lane, status, TURN_WARM_UP);

    if (status != HD_TIMEOUT && status != HD_PEER_LOST) {
        return status;
    }
    return turn_fail(turn, &fault, "channel %u: rank %u %s during warm-up", lane->number,
                     lane->peer_rank, status == HD_TIMEOUT ? "did not answer" : "ended");
}
