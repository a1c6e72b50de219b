/*
 * ucx/open.c - from channels to connected, proven lanes.
 *
 *   every rank     memory, worker, one card                               fence
 *                  get cards, an endpoint to each peer
 *                  warm up: send all, verify and release all, wait for
 *                  all credits                                            fence
 *                  reset                                                  fence
 *
 * The warm-up is message 0 of each lane, which it really goes through: the same calls of the mode,
 * with the pattern of sequence UINT64_MAX; then every count goes back to 0.  In a fence nothing
 * moves, so a rank enters it only once everything that it sends has left it.
 */
#include "table.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    KEY_BYTES = 48,
    GENERATION_MAX = 1000,
    SPIN_ALONE_NS = 100000,
    SPIN_CROWDED_NS = 20000,
};

#define WARM_UP_SEQUENCE UINT64_MAX

/* --- what this rank has ------------------------------------------------------------------ */

static hd_status refuse_setup(struct hd_transport *instance, hd_status status, uint32_t channel,
                              const char *reason)
{
    const struct ucx_fault fault = {status, UCX_NONE, channel, 0};
    return ucx_fail(instance, &fault, "%s: %s", instance->mode->name, reason);
}

static hd_status check_setup(struct hd_transport *instance, const struct hd_transport_setup *setup)
{
    const uint32_t align = setup->alignment_bytes;

    if (setup->memory != HD_MEMORY_HOST) {
        return refuse_setup(instance, HD_UNSUPPORTED, UCX_NONE,
                            "host memory only; kernels on a device need another transport");
    }
    if (align < HD_SEAL_BYTES || (align & (align - 1)) != 0 || align > sysconf(_SC_PAGESIZE)) {
        return refuse_setup(instance, HD_UNSUPPORTED, UCX_NONE,
                            "slots are aligned to a power of two from 64 bytes to one page");
    }
    if (setup->channel_count >= UCX_CHANNEL_STOP) {
        return refuse_setup(instance, HD_UNSUPPORTED, UCX_NONE, "a tag numbers 2^20 - 1 channels");
    }
    for (uint32_t i = 0; i < setup->channel_count; i++) {
        const struct hd_channel *channel = setup->channels[i];
        const uint32_t rank_count = setup->host->rank_count;
        if (channel->source == channel->target || channel->source >= rank_count ||
            channel->target >= rank_count || channel->depth == 0 || channel->bytes == 0 ||
            channel->send_depth == 0 || channel->send_depth > channel->depth) {
            return refuse_setup(instance, HD_INVALID, i,
                                "a channel leads from one rank to another and has depth and bytes");
        }
    }
    return HD_OK;
}

static int is_own(const struct hd_channel *channel, uint32_t rank)
{
    return channel->source == rank || channel->target == rank;
}

static void fill_lanes(struct hd_transport *instance)
{
    const uint32_t rank = instance->host->rank;
    uint32_t lane_count = 0;

    for (uint32_t i = 0; i < instance->channel_count; i++) {
        const struct hd_channel *channel = instance->channels[i];
        instance->lane_of[i] = UCX_NONE;
        if (!is_own(channel, rank)) {
            continue;
        }
        struct ucx_lane *lane = &instance->lanes[lane_count];
        lane->channel = channel;
        lane->number = i;
        lane->is_source = channel->source == rank;
        lane->slot_count = lane->is_source ? channel->send_depth : channel->depth;
        lane->peer = &instance->peers[lane->is_source ? channel->target : channel->source];
        lane->peer->is_mine = 1;
        instance->lane_of[i] = lane_count++;
    }
}

static uint32_t count_lanes(const struct hd_transport_setup *setup)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < setup->channel_count; i++) {
        count += is_own(setup->channels[i], setup->host->rank) ? 1 : 0;
    }
    return count;
}

static struct hd_transport *create(const struct hd_transport_setup *setup,
                                   const struct ucx_mode *mode)
{
    const struct hd_host *host = setup->host;
    const uint64_t lane_count = count_lanes(setup);
    struct hd_transport *instance = host->alloc(host->context, sizeof *instance, 64, mode->name);

    if (instance == NULL) {
        return NULL;
    }
    instance->host = host;
    instance->is_traced = host->size < sizeof *host || !host->is_untraced;
    instance->mode = mode;
    instance->channels = setup->channels;
    instance->channel_count = setup->channel_count;
    instance->lane_count = (uint32_t)lane_count;
    instance->alignment_bytes = setup->alignment_bytes;
    instance->lane_of = host->alloc(
        host->context, (setup->channel_count + 1) * sizeof *instance->lane_of, 64, mode->name);
    instance->lanes =
        host->alloc(host->context, (lane_count + 1) * sizeof *instance->lanes, 64, mode->name);
    instance->peers =
        host->alloc(host->context, host->rank_count * sizeof *instance->peers, 64, mode->name);
    if (instance->lane_of == NULL || instance->lanes == NULL || instance->peers == NULL) {
        instance->lane_count = 0;
        host->free(host->context, instance->lane_of);
        host->free(host->context, instance->lanes);
        host->free(host->context, instance->peers);
        host->free(host->context, instance);
        return NULL;
    }
    for (uint32_t rank = 0; rank < host->rank_count; rank++) {
        instance->peers[rank].instance = instance;
        instance->peers[rank].rank = rank;
        instance->peers[rank].pidfd = -1;
    }
    return instance;
}

/* One flight for every slot of this rank. */
static hd_status take_flights(struct hd_transport *instance)
{
    const struct hd_host *host = instance->host;
    uint64_t count = 0;

    for (uint32_t i = 0; i < instance->lane_count; i++) {
        count += instance->lanes[i].slot_count;
    }
    instance->flights = host->alloc(host->context, (count + 1) * sizeof *instance->flights, 64,
                                    instance->mode->name);
    if (instance->flights == NULL) {
        return refuse_setup(instance, HD_NO_MEMORY, UCX_NONE,
                            "no memory for the books of the slots");
    }
    count = 0;
    for (uint32_t i = 0; i < instance->lane_count; i++) {
        instance->lanes[i].flights = &instance->flights[count];
        count += instance->lanes[i].slot_count;
    }
    return HD_OK;
}

/* Of all that both ends must agree on. */
static uint64_t digest_of(const struct hd_transport *instance)
{
    uint64_t digest = 0xcbf29ce484222325ull ^ instance->alignment_bytes;

    for (uint32_t i = 0; i < instance->channel_count; i++) {
        const struct hd_channel *channel = instance->channels[i];
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

static hd_status prepare(struct hd_transport *instance, const struct hd_transport_setup *setup,
                         struct ucx_card *card)
{
    hd_status status = check_setup(instance, setup);

    if (status == HD_OK) {
        fill_lanes(instance);
        status = take_flights(instance);
    }
    if (status == HD_OK) {
        status = ucx_worker_open(instance);
    }
    if (status == HD_OK) {
        status = instance->mode->prepare(instance, card);
    }
    if (status == HD_OK) {
        status = ucx_worker_introduce(instance, card);
    }
    return status;
}

/* --- cards ------------------------------------------------------------------------------- */

static hd_status fence(struct hd_transport *instance, uint64_t deadline_ns)
{
    return instance->host->fence(instance->host->context, deadline_ns);
}

static void name_card(char key[KEY_BYTES], const struct hd_transport *instance, uint32_t rank)
{
    snprintf(key, KEY_BYTES, "%s.rank.%u.%u", instance->mode->name, rank, instance->generation);
}

/*
 * A bootstrap may refuse a key that is taken, by an older instance: then the next number is
 * this one's.  Open is collective, so all ranks come to the same number.
 */
static hd_status put_card(struct hd_transport *instance, const struct ucx_card *card)
{
    const struct hd_host *host = instance->host;
    hd_status status = HD_INVALID;
    char key[KEY_BYTES];

    for (uint32_t i = 0; status == HD_INVALID && i < GENERATION_MAX; i++) {
        instance->generation = i;
        name_card(key, instance, host->rank);
        status = host->put(host->context, key, card, sizeof *card);
    }
    return status;
}

static hd_status check_card(struct hd_transport *instance, const struct ucx_card *own,
                            const struct ucx_card *card, uint32_t rank)
{
    const struct ucx_fault broken = {HD_PROTOCOL, rank, UCX_NONE, 0};
    const struct ucx_fault refused = {card->status, rank, UCX_NONE, 0};

    if (card->magic != UCX_MAGIC) {
        return ucx_fail(instance, &broken, "rank %u runs another version of %s", rank,
                        instance->mode->name);
    }
    if (card->status != HD_OK) {
        return ucx_fail(instance, &refused, "rank %u could not open %s (its own error says why)",
                        rank, instance->mode->name);
    }
    if (card->digest != own->digest) {
        return ucx_fail(instance, &broken,
                        "rank %u has other channels than this rank: the ranks do not run one plan",
                        rank);
    }
    return HD_OK;
}

static hd_status meet(struct hd_transport *instance, struct ucx_peer *peer,
                      const struct ucx_card *own, const struct ucx_card *card)
{
    instance->may_be_written = instance->mode->writes_remotely; /* until quiesce knows better */
    hd_status status = ucx_peer_is_here(own, card) ? ucx_peer_hold(instance, peer, card) : HD_OK;

    if (status == HD_OK) {
        status = ucx_worker_connect(instance, peer, card);
    }
    return status == HD_OK ? instance->mode->connect(instance, peer, card) : status;
}

/* All ranks learn whether all could; an endpoint to each that a channel leads to. */
static hd_status connect_all(struct hd_transport *instance, const struct ucx_card *own,
                             struct ucx_card *card, uint64_t deadline_ns)
{
    const struct hd_host *host = instance->host;
    const struct hd_option_value *spin =
        host->option_count > UCX_OPTION_SPIN ? &host->options[UCX_OPTION_SPIN] : NULL;
    uint32_t here_count = 0;
    hd_status status = HD_OK;
    char key[KEY_BYTES];

    for (uint32_t rank = 0; status == HD_OK && rank < host->rank_count; rank++) {
        name_card(key, instance, rank);
        status = host->get(host->context, key, card, sizeof *card, deadline_ns);
        if (status == HD_OK) {
            status = check_card(instance, own, card, rank);
            here_count += (uint32_t)ucx_peer_is_here(own, card);
        }
        if (status == HD_OK && instance->peers[rank].is_mine) {
            status = meet(instance, &instance->peers[rank], own, card);
        }
    }
    if (spin != NULL && spin->integer >= 0) {
        instance->spin_ns = (uint64_t)spin->integer * 1000;
    } else {
        instance->spin_ns = here_count <= ucx_peer_core_count() ? SPIN_ALONE_NS : SPIN_CROWDED_NS;
    }
    return status;
}

/* --- warm-up ----------------------------------------------------------------------------- */

/* The bytes of the pattern at `offset`, at most 8; they end with the message. */
static uint64_t pattern_at(const struct ucx_lane *lane, uint64_t offset, unsigned char bytes[8])
{
    const uint64_t left_bytes = lane->channel->bytes - offset;
    const uint64_t word = hd_pattern_word(lane->number, WARM_UP_SEQUENCE, offset / 8);

    memcpy(bytes, &word, 8);
    return left_bytes < 8 ? left_bytes : 8;
}

static hd_status begin_warm_up(struct hd_transport *instance, struct ucx_lane *lane)
{
    unsigned char bytes[8];

    lane->posted_count = 1;
    if (!lane->is_source) {
        return instance->mode->receive(instance, lane);
    }
    for (uint64_t offset = 0; offset < lane->channel->bytes; offset += 8) {
        const uint64_t count = pattern_at(lane, offset, bytes);
        memcpy(lane->slots + offset, bytes, count);
    }
    return instance->mode->send(instance, lane);
}

static hd_status verify_warm_up(struct hd_transport *instance, struct ucx_lane *lane)
{
    const struct ucx_fault fault = {HD_PROTOCOL, lane->peer->rank, lane->number, WARM_UP_SEQUENCE};
    unsigned char bytes[8];

    for (uint64_t offset = 0; offset < lane->channel->bytes; offset += 8) {
        const uint64_t count = pattern_at(lane, offset, bytes);
        if (memcmp(lane->slots + offset, bytes, count) != 0) {
            return ucx_fail(instance, &fault,
                            "channel %u: the warm-up message of rank %u differs at byte %" PRIu64,
                            lane->number, fault.rank, offset);
        }
    }
    lane->released_count = 1;
    return instance->mode->release(instance, lane);
}

static int is_done(struct hd_transport *instance, const struct ucx_wait *wait)
{
    (void)instance;
    return wait->lane->done_count >= 1;
}

static int is_settled(struct hd_transport *instance, const struct ucx_wait *wait)
{
    return instance->mode->is_settled(wait->lane);
}

static hd_status await_warm_up(struct hd_transport *instance, struct ucx_lane *lane,
                               int (*is_over)(struct hd_transport *, const struct ucx_wait *),
                               uint64_t deadline_ns)
{
    const struct ucx_wait wait = {
        .is_over = is_over, .lane = lane, .peer = lane->peer, .deadline_ns = deadline_ns};
    const struct ucx_fault fault = {ucx_wait_for(instance, &wait), lane->peer->rank, lane->number,
                                    WARM_UP_SEQUENCE};

    if (fault.status == HD_OK) {
        return HD_OK;
    }
    return ucx_fail(instance, &fault, "channel %u: rank %u %s during warm-up", lane->number,
                    fault.rank, fault.status == HD_TIMEOUT ? "did not answer" : "ended");
}

static hd_status warm_up(struct hd_transport *instance, uint64_t deadline_ns)
{
    hd_status status = HD_OK;

    for (uint32_t i = 0; status >= 0 && i < instance->lane_count; i++) {
        status = begin_warm_up(instance, &instance->lanes[i]);
    }
    status = status > 0 ? HD_OK : status;
    for (uint32_t i = 0; status == HD_OK && i < instance->lane_count; i++) {
        struct ucx_lane *lane = &instance->lanes[i];
        if (!lane->is_source) {
            status = await_warm_up(instance, lane, is_done, deadline_ns);
            status = status == HD_OK ? verify_warm_up(instance, lane) : status;
        }
    }
    for (uint32_t i = 0; status == HD_OK && i < instance->lane_count; i++) {
        status = await_warm_up(instance, &instance->lanes[i], is_settled, deadline_ns);
    }
    return status;
}

static void reset(struct hd_transport *instance)
{
    for (uint32_t i = 0; i < instance->lane_count; i++) {
        struct ucx_lane *lane = &instance->lanes[i];
        instance->mode->reset(lane);
        lane->posted_count = 0;
        lane->done_count = 0;
        lane->released_count = 0;
        atomic_store(&lane->finished_count, 0);
        memset(lane->flights, 0, lane->slot_count * sizeof *lane->flights);
    }
    for (uint32_t rank = 0; rank < instance->host->rank_count; rank++) {
        if (instance->peers[rank].is_mine) {
            ucx_name_lanes(instance, &instance->peers[rank]);
        }
    }
    instance->is_open = 1;
}

/* --- all of it --------------------------------------------------------------------------- */

/* `cards` holds this rank's, and the one that is being read; `*phase` says where it has come to. */
static hd_status go_through(struct hd_transport *instance, const struct hd_transport_setup *setup,
                            struct ucx_card cards[2], const char **phase)
{
    const uint64_t deadline_ns = setup->deadline_ns;

    *phase = "publishing its card";
    ucx_peer_introduce(&cards[0]);
    cards[0].digest = digest_of(instance);
    cards[0].status = prepare(instance, setup, &cards[0]);
    const hd_status made = cards[0].status;
    hd_status status = put_card(instance, &cards[0]);
    if (status == HD_OK) {
        *phase = "waiting for the cards of all ranks";
        status = fence(instance, deadline_ns);
    }
    status = made != HD_OK ? made : status;
    if (status == HD_OK) {
        *phase = "reading the cards of all ranks";
        status = connect_all(instance, &cards[0], &cards[1], deadline_ns);
    }
    if (status == HD_OK) {
        *phase = "waiting for the warm-up of all ranks";
        status = warm_up(instance, deadline_ns);
    }
    if (status == HD_OK) {
        status = fence(instance, deadline_ns);
    }
    if (status == HD_OK) {
        reset(instance);
        status = fence(instance, deadline_ns);
    }
    return status;
}

static hd_status refuse_memory(const struct hd_host *host)
{
    const struct hd_error error = {sizeof error,
                                   HD_NO_MEMORY,
                                   UCX_NONE,
                                   UCX_NONE,
                                   0,
                                   "no memory for the books of the channels"};
    return host->fail(host->context, &error);
}

/* Why the bootstrap did no more. */
static const char *ended_by(hd_status status)
{
    const char *name = status == HD_TIMEOUT ? "the deadline passed" : "the bootstrap failed";

    name = status == HD_NO_MEMORY ? "the bootstrap had no room left" : name;
    return status == HD_ABORTED ? "the run was aborted" : name;
}

hd_status ucx_open(const struct hd_transport_setup *setup, const struct ucx_mode *mode,
                   struct hd_transport **out)
{
    const struct hd_host *host = setup->host;
    struct hd_transport *instance = create(setup, mode);
    struct ucx_card *cards = host->alloc(host->context, 2 * sizeof *cards, 64, mode->name);
    const char *phase = NULL;
    hd_status status = HD_NO_MEMORY;

    if (instance == NULL || cards == NULL) {
        status = refuse_memory(host);
    } else {
        status = go_through(instance, setup, cards, &phase);
    }
    host->free(host->context, cards);
    if (status == HD_OK) {
        *out = instance;
        return HD_OK;
    }
    if (instance != NULL && phase != NULL) {
        /* What this file has decided is said already; what is left is the bootstrap's. */
        const struct ucx_fault fault = {status, UCX_NONE, UCX_NONE, 0};
        ucx_fail(instance, &fault, "open: rank %u was %s when %s", host->rank, phase,
                 ended_by(status));
    }
    ucx_destroy(instance, setup->deadline_ns);
    return status;
}
