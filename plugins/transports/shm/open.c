/*
 * shm/open.c - from channels to mapped, proven memory, and back.
 *
 *   every rank     make the arena of its incoming channels, put its card  fence
 *                  get cards, hold peers, open the outgoing channels
 *                  warm up: write all, then verify and credit all,
 *                  then wait for all credits                              fence
 *                  each writer sets its words back to 0                   fence
 *
 * Nobody waits while somebody waits for it: sends never block here, credits follow
 * arrivals, and all wait in channel order.  The last fence keeps a fast source's message
 * 0 from being taken for the warm-up, or from being wiped out with it.
 */
#include "shm.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { KEY_BYTES = 48, TEXT_BYTES = 512, GENERATION_MAX = 1000 };

#define WARM_UP_SEQUENCE UINT64_MAX

hd_status shm_fail(struct hd_transport *instance, const struct shm_fault *fault, const char *format,
                   ...)
{
    const struct hd_host *host = instance->host;
    int first = HD_OK;
    char text[TEXT_BYTES];
    va_list arguments;

    if (!atomic_compare_exchange_strong(&instance->failed, &first, fault->status)) {
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

/* --- what this rank has ------------------------------------------------------------------ */

static hd_status refuse_setup(struct hd_transport *instance, hd_status status, uint32_t channel,
                              const char *reason)
{
    const struct shm_fault fault = {status, SHM_NONE, channel, 0};
    return shm_fail(instance, &fault, "%s", reason);
}

static hd_status check_setup(struct hd_transport *instance, const struct hd_transport_setup *setup)
{
    const uint32_t align = setup->alignment_bytes;

    if (setup->memory != HD_MEMORY_HOST) {
        return refuse_setup(instance, HD_UNSUPPORTED, SHM_NONE,
                            "shm carries host memory only; kernels on a device need another "
                            "transport");
    }
    if (align < HD_SEAL_BYTES || (align & (align - 1)) != 0 || align > sysconf(_SC_PAGESIZE)) {
        return refuse_setup(instance, HD_UNSUPPORTED, SHM_NONE,
                            "shm aligns slots to a power of two from 64 bytes to one page");
    }
    for (uint32_t i = 0; i < setup->channel_count; i++) {
        const struct hd_channel *channel = setup->channels[i];
        const uint32_t rank_count = setup->host->rank_count;
        if (channel->source == channel->target || channel->source >= rank_count ||
            channel->target >= rank_count || channel->depth == 0 || channel->bytes == 0) {
            return refuse_setup(instance, HD_INVALID, i,
                                "a channel leads from one rank to another and has depth and bytes");
        }
    }
    return HD_OK;
}

/* Only what needs no other rank: memory for the books, and the options. */
static struct hd_transport *create(const struct hd_transport_setup *setup)
{
    const struct hd_host *host = setup->host;
    const uint64_t bytes =
        sizeof(struct hd_transport) + setup->channel_count * sizeof(struct shm_lane);
    struct hd_transport *instance = host->alloc(host->context, bytes, 64, "shm");
    struct shm_peer *peers =
        host->alloc(host->context, host->rank_count * sizeof *peers, 64, "shm");

    if (instance == NULL || peers == NULL) {
        host->free(host->context, peers);
        host->free(host->context, instance);
        return NULL;
    }
    instance->host = host;
    instance->is_traced = host->size < sizeof *host || !host->is_untraced;
    instance->channels = setup->channels;
    instance->channel_count = setup->channel_count;
    instance->alignment_bytes = setup->alignment_bytes;
    instance->peers = peers;
    instance->descriptor = -1;
    for (uint32_t rank = 0; rank < host->rank_count; rank++) {
        peers[rank] = (struct shm_peer){.rank = rank, .pidfd = -1};
    }
    for (uint32_t i = 0; i < setup->channel_count; i++) {
        instance->lanes[i].channel = setup->channels[i];
        instance->lanes[i].is_source = setup->channels[i]->source == host->rank;
    }
    return instance;
}

static int is_target(const struct hd_transport *instance, const struct shm_lane *lane)
{
    return lane->channel->target == instance->host->rank;
}

/* --- cards ------------------------------------------------------------------------------- */

static hd_status fence(struct hd_transport *instance, uint64_t deadline_ns)
{
    return instance->host->fence(instance->host->context, deadline_ns);
}

/* "shm.rank.3.0": the card of rank 3, of the first instance that these processes opened. */
static void name_card(char key[KEY_BYTES], uint32_t rank, const struct hd_transport *instance)
{
    snprintf(key, KEY_BYTES, "shm.rank.%u.%u", rank, instance->generation);
}

/*
 * A bootstrap may refuse a key that is taken, by an older instance: then the next number is
 * this one's.  Open is collective, so all ranks come to the same number.
 */
static hd_status put_card(struct hd_transport *instance, hd_status made)
{
    const struct hd_host *host = instance->host;
    hd_status status = HD_INVALID;
    struct shm_rank_card card;
    char key[KEY_BYTES];

    /* A rank without memory says so too: the others would else wait for their deadline. */
    shm_peer_introduce(instance, &card, made);
    for (uint32_t i = 0; status == HD_INVALID && i < GENERATION_MAX; i++) {
        instance->generation = i;
        name_card(key, host->rank, instance);
        status = host->put(host->context, key, &card, sizeof card);
    }
    return status;
}

static hd_status get_rank_cards(struct hd_transport *instance, struct shm_rank_card *cards,
                                uint64_t deadline_ns)
{
    const struct hd_host *host = instance->host;
    hd_status status = HD_OK;
    char key[KEY_BYTES];

    for (uint32_t rank = 0; status == HD_OK && rank < host->rank_count; rank++) {
        name_card(key, rank, instance);
        status = host->get(host->context, key, &cards[rank], sizeof cards[rank], deadline_ns);
        if (status == HD_OK && cards[rank].magic != SHM_MAGIC) {
            const struct shm_fault fault = {HD_PROTOCOL, rank, SHM_NONE, 0};
            status = shm_fail(instance, &fault, "rank %u runs another version of shm", rank);
        } else if (status == HD_OK && cards[rank].status != HD_OK) {
            const struct shm_fault fault = {cards[rank].status, rank, SHM_NONE, 0};
            status = shm_fail(instance, &fault,
                              "rank %u could not open shm (its own error says why)", rank);
        }
    }
    return status;
}

/* --- the other ends ---------------------------------------------------------------------- */

static hd_status connect_lane(struct hd_transport *instance, uint32_t channel,
                              const struct shm_rank_card *cards)
{
    struct shm_lane *lane = &instance->lanes[channel];
    const uint32_t rank = lane->is_source ? lane->channel->target : lane->channel->source;
    hd_status status = HD_OK;

    lane->peer = &instance->peers[rank];
    if (lane->peer->pidfd < 0) {
        status = shm_peer_hold(instance, rank, &cards[rank]);
    }
    if (status != HD_OK || !lane->is_source) {
        return status;
    }
    return shm_arena_open(instance, lane, &cards[rank]);
}

static hd_status connect_all(struct hd_transport *instance, uint64_t deadline_ns)
{
    const struct hd_host *host = instance->host;
    struct shm_rank_card *cards =
        host->alloc(host->context, host->rank_count * sizeof *cards, 64, "shm");
    hd_status status = HD_OK;

    if (cards == NULL) {
        const struct shm_fault fault = {HD_NO_MEMORY, SHM_NONE, SHM_NONE, 0};
        return shm_fail(instance, &fault, "no memory for the cards of %u ranks", host->rank_count);
    }
    status = get_rank_cards(instance, cards, deadline_ns);
    for (uint32_t i = 0; status == HD_OK && i < instance->channel_count; i++) {
        const struct shm_lane *lane = &instance->lanes[i];
        if (lane->is_source || is_target(instance, lane)) {
            status = connect_lane(instance, i, cards);
        }
    }
    if (status == HD_OK) {
        const int is_given = host->option_count > 0 && host->options[0].integer >= 0;
        instance->spin_ns = is_given ? (uint64_t)host->options[0].integer * 1000
                                     : shm_peer_spin_ns(cards, host->rank, host->rank_count);
    }
    host->free(host->context, cards);
    return status;
}

/* --- warm-up ----------------------------------------------------------------------------- */

static unsigned char *warm_up_slot(const struct shm_lane *lane)
{
    return lane->slots + WARM_UP_SEQUENCE % lane->channel->depth * lane->stride_bytes;
}

/* The bytes of the pattern at `offset`, at most 8; they end with the message. */
static uint64_t pattern_at(uint32_t channel, uint64_t offset, unsigned char bytes[8],
                           uint64_t message_bytes)
{
    const uint64_t word = hd_pattern_word(channel, WARM_UP_SEQUENCE, offset / 8);

    memcpy(bytes, &word, 8);
    return message_bytes - offset < 8 ? message_bytes - offset : 8;
}

static void send_warm_up(struct hd_transport *instance, uint32_t channel)
{
    struct shm_lane *lane = &instance->lanes[channel];
    unsigned char bytes[8];

    for (uint64_t offset = 0; offset < lane->channel->bytes; offset += 8) {
        const uint64_t count = pattern_at(channel, offset, bytes, lane->channel->bytes);
        memcpy(warm_up_slot(lane) + offset, bytes, count);
    }
    shm_publish(&lane->words->arrived, 1, shm_peer_asleep(lane));
}

static hd_status await_warm_up(struct hd_transport *instance, uint32_t channel,
                               uint64_t deadline_ns)
{
    const struct shm_lane *lane = &instance->lanes[channel];
    const struct shm_wait wait = {.word = shm_news(lane),
                                  .goal = 1,
                                  .stopped = lane->is_source ? &lane->words->target_stopped
                                                             : &lane->words->source_stopped,
                                  .asleep = shm_own_asleep(lane),
                                  .peer = lane->peer,
                                  .deadline_ns = deadline_ns};
    const struct shm_fault fault = {shm_wait_for(instance, &wait), lane->peer->rank, channel,
                                    WARM_UP_SEQUENCE};

    if (fault.status == HD_OK) {
        return HD_OK;
    }
    return shm_fail(instance, &fault, "channel %u: rank %u %s during warm-up", channel, fault.rank,
                    fault.status == HD_TIMEOUT ? "did not answer" : "ended");
}

static hd_status receive_warm_up(struct hd_transport *instance, uint32_t channel,
                                 uint64_t deadline_ns)
{
    struct shm_lane *lane = &instance->lanes[channel];
    const hd_status status = await_warm_up(instance, channel, deadline_ns);
    unsigned char bytes[8];

    if (status != HD_OK) {
        return status;
    }
    for (uint64_t offset = 0; offset < lane->channel->bytes; offset += 8) {
        const uint64_t count = pattern_at(channel, offset, bytes, lane->channel->bytes);
        if (memcmp(warm_up_slot(lane) + offset, bytes, count) != 0) {
            const struct shm_fault fault = {HD_PROTOCOL, lane->peer->rank, channel,
                                            WARM_UP_SEQUENCE};
            return shm_fail(instance, &fault,
                            "channel %u: the warm-up message of rank %u differs at byte %" PRIu64,
                            channel, fault.rank, offset);
        }
    }
    shm_publish(&lane->words->credit, 1, shm_peer_asleep(lane));
    return HD_OK;
}

static hd_status warm_up(struct hd_transport *instance, uint64_t deadline_ns)
{
    hd_status status = HD_OK;

    for (uint32_t i = 0; i < instance->channel_count; i++) {
        if (instance->lanes[i].is_source) {
            send_warm_up(instance, i);
        }
    }
    for (uint32_t i = 0; status == HD_OK && i < instance->channel_count; i++) {
        if (is_target(instance, &instance->lanes[i])) {
            status = receive_warm_up(instance, i, deadline_ns);
        }
    }
    for (uint32_t i = 0; status == HD_OK && i < instance->channel_count; i++) {
        if (instance->lanes[i].is_source) {
            status = await_warm_up(instance, i, deadline_ns);
        }
    }
    return status;
}

static void reset_words(struct hd_transport *instance)
{
    for (uint32_t i = 0; i < instance->channel_count; i++) {
        struct shm_lane *lane = &instance->lanes[i];
        if (lane->words != NULL) {
            atomic_store(lane->is_source ? &lane->words->arrived : &lane->words->credit, 0);
        }
    }
    shm_arena_close_descriptor(instance); /* every source has it mapped by now */
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

/* The whole of open; `*phase` says where it has come to. */
static hd_status go_through(struct hd_transport *instance, const struct hd_transport_setup *setup,
                            const char **phase)
{
    const uint64_t deadline_ns = setup->deadline_ns;

    *phase = "publishing its card";
    hd_status made = check_setup(instance, setup);
    if (made == HD_OK) {
        made = shm_arena_measure(instance);
    }
    if (made == HD_OK) {
        made = shm_arena_make(instance);
    }
    hd_status status = put_card(instance, made);
    if (status == HD_OK) {
        *phase = "waiting for the cards of all ranks";
        status = fence(instance, deadline_ns);
    }
    status = made != HD_OK ? made : status;
    if (status == HD_OK) {
        *phase = "reading the cards of all ranks";
        status = connect_all(instance, deadline_ns);
    }
    if (status == HD_OK) {
        *phase = "waiting for the warm-up of all ranks";
        status = warm_up(instance, deadline_ns);
    }
    if (status == HD_OK) {
        status = fence(instance, deadline_ns);
    }
    if (status == HD_OK) {
        reset_words(instance);
        status = fence(instance, deadline_ns);
    }
    return status;
}

hd_status shm_open_all(const struct hd_transport_setup *setup, struct hd_transport **out)
{
    const struct hd_host *host = setup->host;
    struct hd_transport *instance = create(setup);
    const char *phase = NULL;

    if (instance == NULL) {
        const struct hd_error error = {sizeof error,
                                       HD_NO_MEMORY,
                                       SHM_NONE,
                                       SHM_NONE,
                                       0,
                                       "no memory for the books of the channels"};
        return host->fail(host->context, &error);
    }
    const hd_status status = go_through(instance, setup, &phase);
    if (status == HD_OK) {
        *out = instance;
        return HD_OK;
    }
    /* What shm has decided is said already; what is left is the bootstrap's. */
    const struct shm_fault fault = {status, SHM_NONE, SHM_NONE, 0};
    shm_fail(instance, &fault, "open: rank %u was %s when %s", host->rank, phase, ended_by(status));
    shm_close_all(instance, setup->deadline_ns);
    return status;
}
