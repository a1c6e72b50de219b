/*
 * nccl_link/open.c - from channels to connected, proven lanes.
 *
 *   every rank     libraries, device; one card, and the id of each channel that it is
 *                  the source of                                         fence
 *                  for each channel of its own, in order: communicator, slots, one
 *                  message of the pattern with its credit                fence
 *                  counts back to 0                                      fence
 *
 * The order of the channels is the same on all ranks, and each is finished before the next, so no
 * two pairs can wait for each other however lazily NCCL connects.  The warm-up is message 0 of each
 * lane, by the same calls of the mode; then every count goes back to 0.
 */
#include "nccl_link.h"

#include <stdio.h>
#include <string.h>

enum { KEY_BYTES = 64, GENERATION_MAX = 1000 };

#define WARM_UP_SEQUENCE UINT64_MAX

/* --- what this rank has ------------------------------------------------------------------ */

static int is_own(const struct hd_channel *channel, uint32_t rank)
{
    return channel->source == rank || channel->target == rank;
}

static void fill_lanes(struct hd_transport *instance)
{
    const uint32_t rank = instance->host->rank;
    const uint64_t align = instance->alignment_bytes;
    uint32_t lane_count = 0;

    for (uint32_t i = 0; i < instance->channel_count; i++) {
        const struct hd_channel *channel = instance->channels[i];
        instance->lane_of[i] = NCCL_NONE;
        if (!is_own(channel, rank)) {
            continue;
        }
        struct nccl_lane *lane = &instance->lanes[lane_count];
        lane->channel = channel;
        lane->number = i;
        lane->is_source = channel->source == rank;
        lane->peer = lane->is_source ? channel->target : channel->source;
        lane->slot_count =
            lane->is_source && !instance->mode->is_one_sided ? channel->send_depth : channel->depth;
        lane->stride_bytes = (channel->bytes + align - 1) / align * align;
        instance->lane_of[i] = lane_count++;
    }
    instance->lane_count = lane_count;
}

static struct hd_transport *create(const struct hd_transport_setup *setup,
                                   const struct nccl_mode *mode)
{
    const struct hd_host *host = setup->host;
    const uint64_t count = (uint64_t)setup->channel_count + 1;
    struct hd_transport *instance = host->alloc(host->context, sizeof *instance, 64, mode->name);

    if (instance == NULL) {
        return NULL;
    }
    instance->host = host;
    instance->mode = mode;
    instance->channels = setup->channels;
    instance->channel_count = setup->channel_count;
    instance->alignment_bytes = setup->alignment_bytes;
    instance->max_ctas = host->option_count > NCCL_OPTION_CTAS
                             ? (uint32_t)host->options[NCCL_OPTION_CTAS].integer
                             : 1;
    pthread_mutex_init(&instance->lock, NULL);
    sem_init(&instance->wake, 0, 0);
    instance->lane_of = host->alloc(host->context, count * sizeof(uint32_t), 64, mode->name);
    instance->lanes = host->alloc(host->context, count * sizeof(struct nccl_lane), 64, mode->name);
    if (instance->lane_of == NULL || instance->lanes == NULL) {
        nccl_destroy(instance, 0);
        return NULL;
    }
    return instance;
}

/* --- cards ------------------------------------------------------------------------------- */

/*
 * A bootstrap may refuse a key that is taken, by an older instance: then the next number is
 * this one's.  Open is collective, so all ranks come to the same number.
 */
static hd_status put_card(struct hd_transport *instance, const struct nccl_card *card)
{
    const struct hd_host *host = instance->host;
    hd_status status = HD_INVALID;
    char key[KEY_BYTES];

    for (uint32_t i = 0; status == HD_INVALID && i < GENERATION_MAX; i++) {
        instance->generation = i;
        snprintf(key, sizeof key, "%s.rank.%u.%u", instance->mode->name, host->rank, i);
        status = host->put(host->context, key, card, sizeof *card);
    }
    return status;
}

static void name_channel(char key[KEY_BYTES], const struct hd_transport *instance, uint32_t channel)
{
    snprintf(key, KEY_BYTES, "%s.channel.%u.%u", instance->mode->name, channel,
             instance->generation);
}

static hd_status put_ids(struct hd_transport *instance)
{
    const struct hd_host *host = instance->host;
    hd_status status = HD_OK;
    ncclUniqueId id;
    char key[KEY_BYTES];

    for (uint32_t i = 0; status == HD_OK && i < instance->lane_count; i++) {
        const struct nccl_lane *lane = &instance->lanes[i];
        if (lane->is_source) {
            status =
                nccl_begun(instance, lane, instance->nccl.ncclGetUniqueId(&id), "ncclGetUniqueId");
            if (status == HD_OK) {
                name_channel(key, instance, lane->number);
                status = host->put(host->context, key, &id, sizeof id);
            }
        }
    }
    return status;
}

static hd_status read_cards(struct hd_transport *instance, const struct nccl_card *own,
                            uint64_t deadline_ns)
{
    const struct hd_host *host = instance->host;
    hd_status status = HD_OK;
    struct nccl_card card;
    char key[KEY_BYTES];

    for (uint32_t rank = 0; status == HD_OK && rank < host->rank_count; rank++) {
        snprintf(key, sizeof key, "%s.rank.%u.%u", instance->mode->name, rank,
                 instance->generation);
        status = host->get(host->context, key, &card, sizeof card, deadline_ns);
        if (status == HD_OK) {
            status = nccl_meet(instance, own, &card, rank);
        }
    }
    return status;
}

/* --- one lane ---------------------------------------------------------------------------- */

static hd_status make_stream(struct hd_transport *instance, const struct nccl_lane *lane,
                             cudaStream_t *stream)
{
    return nccl_cuda(instance, lane,
                     instance->cuda.cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, 0),
                     "cudaStreamCreateWithPriority");
}

static hd_status make_events(struct hd_transport *instance, struct nccl_lane *lane)
{
    const struct hd_host *host = instance->host;
    const uint32_t count = lane->slot_count;
    hd_status status = HD_OK;

    lane->moved =
        host->alloc(host->context, 2 * count * sizeof(cudaEvent_t), 64, instance->mode->name);
    lane->is_freed = host->alloc(host->context, count, 64, instance->mode->name);
    if (lane->moved == NULL || lane->is_freed == NULL) {
        const struct nccl_fault fault = {HD_NO_MEMORY, NCCL_NONE, lane->number, 0};
        return nccl_fail(instance, &fault, "no memory for the events of channel %u", lane->number);
    }
    lane->freed = lane->moved + count;
    for (uint32_t i = 0; status == HD_OK && i < 2 * count; i++) {
        const unsigned flags = i < count ? cudaEventDefault : cudaEventDisableTiming;
        status = nccl_cuda(instance, lane,
                           instance->cuda.cudaEventCreateWithFlags(&lane->moved[i], flags),
                           "cudaEventCreateWithFlags");
    }
    if (status == HD_OK) {
        status =
            nccl_cuda(instance, lane,
                      instance->cuda.cudaEventCreateWithFlags(&lane->ready, cudaEventDisableTiming),
                      "cudaEventCreateWithFlags");
    }
    return status;
}

/* A kernel of one or two blocks cannot be a cluster of four, NCCL's own default on newer GPUs. */
static ncclConfig_t configure(const struct hd_transport *instance)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 0;
    config.minCTAs = 1;
    config.maxCTAs = (int)instance->max_ctas;
    if (instance->max_ctas < 4) {
        config.cgaClusterSize = 1;
    }
    return config;
}

static hd_status connect_lane(struct hd_transport *instance, struct nccl_lane *lane,
                              uint64_t deadline_ns)
{
    const struct hd_host *host = instance->host;
    ncclConfig_t config = configure(instance);
    ncclUniqueId id;
    char key[KEY_BYTES];

    name_channel(key, instance, lane->number);
    hd_status status = host->get(host->context, key, &id, sizeof id, deadline_ns);
    if (status != HD_OK) {
        return status;
    }
    instance->may_be_written = 1; /* until quiesce knows better */
    const ncclResult_t result = instance->nccl.ncclCommInitRankConfig(
        &lane->comm, 2, id, lane->is_source ? NCCL_SOURCE : NCCL_TARGET, &config);
    return nccl_settle(instance, lane, result, "connecting", deadline_ns);
}

/* --- warm-up ----------------------------------------------------------------------------- */

static void fill_pattern(unsigned char *bytes, const struct nccl_lane *lane)
{
    for (uint64_t offset = 0; offset < lane->channel->bytes; offset += 8) {
        const uint64_t left = lane->channel->bytes - offset;
        const uint64_t word = hd_pattern_word(lane->number, WARM_UP_SEQUENCE, offset / 8);
        memcpy(bytes + offset, &word, left < 8 ? left : 8);
    }
}

static hd_status check_pattern(struct hd_transport *instance, const struct nccl_lane *lane)
{
    const struct nccl_fault fault = {HD_PROTOCOL, lane->peer, lane->number, WARM_UP_SEQUENCE};

    for (uint64_t offset = 0; offset < lane->channel->bytes; offset += 8) {
        const uint64_t left = lane->channel->bytes - offset;
        const uint64_t word = hd_pattern_word(lane->number, WARM_UP_SEQUENCE, offset / 8);
        if (memcmp(instance->staging + offset, &word, left < 8 ? left : 8) != 0) {
            return nccl_fail(instance, &fault,
                             "channel %u: the warm-up message of rank %u differs at byte %llu",
                             lane->number, lane->peer, (unsigned long long)offset);
        }
    }
    return HD_OK;
}

static hd_status copy_slot(struct hd_transport *instance, struct nccl_lane *lane, int is_down)
{
    void *target = is_down ? (void *)lane->slots : (void *)instance->staging;
    const void *source = is_down ? (const void *)instance->staging : (const void *)lane->slots;

    return nccl_cuda(instance, lane,
                     instance->cuda.cudaMemcpyAsync(target, source, lane->channel->bytes,
                                                    cudaMemcpyDefault, lane->stream),
                     "cudaMemcpyAsync");
}

static hd_status late(struct hd_transport *instance, const struct nccl_lane *lane, hd_status status)
{
    const struct nccl_fault fault = {HD_TIMEOUT, lane->peer, lane->number, WARM_UP_SEQUENCE};

    return status != HD_TIMEOUT
               ? status
               : nccl_fail(instance, &fault, "channel %u: rank %u did not answer during warm-up",
                           lane->number, lane->peer);
}

/* Until everything on the lane's own stream is over. */
static hd_status drain(struct hd_transport *instance, struct nccl_lane *lane, uint64_t deadline_ns)
{
    hd_status status =
        nccl_cuda(instance, lane, instance->cuda.cudaEventRecord(lane->ready, lane->stream),
                  "cudaEventRecord");

    if (status == HD_OK) {
        status = nccl_await_event(instance, lane, lane->ready, deadline_ns);
    }
    return late(instance, lane, status);
}

static hd_status warm_source(struct hd_transport *instance, struct nccl_lane *lane,
                             uint64_t deadline_ns)
{
    const struct hd_message first = {.sequence = 0, .channel = lane->number};

    fill_pattern(instance->staging, lane);
    hd_status status = copy_slot(instance, lane, 1);
    if (status == HD_OK) {
        status = nccl_launch(instance, lane, &first, instance->mode->send);
        lane->posted_count = 1;
    }
    if (status == HD_OK) {
        status = instance->mode->await_credit(instance, lane);
    }
    return status == HD_OK ? drain(instance, lane, deadline_ns) : status;
}

static hd_status warm_target(struct hd_transport *instance, struct nccl_lane *lane,
                             uint64_t deadline_ns)
{
    const struct hd_message first = {.sequence = 0, .channel = lane->number};
    hd_status status = nccl_launch(instance, lane, &first, instance->mode->receive);

    lane->posted_count = 1;
    if (status == HD_OK) {
        status = instance->mode->await(instance, lane, 0, NULL);
    }
    if (status == HD_OK) {
        status = nccl_await_event(instance, lane, lane->moved[0], deadline_ns);
        status = late(instance, lane, status);
    }
    if (status == HD_OK) {
        status = copy_slot(instance, lane, 0);
    }
    if (status == HD_OK) {
        status = drain(instance, lane, deadline_ns);
    }
    if (status == HD_OK) {
        status = check_pattern(instance, lane);
    }
    lane->is_freed[0] = 0;
    if (status == HD_OK) {
        status = instance->mode->release(instance, lane, 0);
    }
    return status == HD_OK ? drain(instance, lane, deadline_ns) : status;
}

static void reset(struct hd_transport *instance)
{
    for (uint32_t i = 0; i < instance->lane_count; i++) {
        struct nccl_lane *lane = &instance->lanes[i];
        lane->posted_count = 0;
        lane->done_count = 0;
        lane->awaited_count = 0;
        lane->released_count = 0;
    }
}

/* --- all of it --------------------------------------------------------------------------- */

static hd_status open_lane(struct hd_transport *instance, struct nccl_lane *lane,
                           uint64_t deadline_ns)
{
    hd_status status = make_stream(instance, lane, &lane->stream);

    if (status == HD_OK && instance->mode->is_one_sided && !lane->is_source) {
        status = make_stream(instance, lane, &lane->arrivals);
    }
    if (status == HD_OK) {
        status = make_events(instance, lane);
    }
    if (status == HD_OK) {
        status = connect_lane(instance, lane, deadline_ns);
    }
    if (status == HD_OK) {
        status = instance->mode->prepare(instance, lane);
    }
    if (status == HD_OK) {
        status = lane->is_source ? warm_source(instance, lane, deadline_ns)
                                 : warm_target(instance, lane, deadline_ns);
    }
    return status;
}

static hd_status open_lanes(struct hd_transport *instance, uint64_t deadline_ns)
{
    const struct hd_host *host = instance->host;
    uint64_t bytes_max = 8;
    hd_status status = HD_OK;

    for (uint32_t i = 0; i < instance->lane_count; i++) {
        const uint64_t bytes = instance->lanes[i].channel->bytes;
        bytes_max = bytes > bytes_max ? bytes : bytes_max;
    }
    status = nccl_cuda(
        instance, NULL,
        instance->cuda.cudaHostAlloc((void **)&instance->staging, bytes_max, cudaHostAllocDefault),
        "cudaHostAlloc");
    for (uint32_t i = 0; status == HD_OK && i < instance->lane_count; i++) {
        status = open_lane(instance, &instance->lanes[i], deadline_ns);
    }
    if (status != HD_OK || instance->lane_count == 0) {
        return status;
    }
    status = nccl_cuda(instance, NULL,
                       instance->cuda.cudaEventCreateWithFlags(&instance->base, cudaEventDefault),
                       "cudaEventCreateWithFlags");
    if (status == HD_OK) {
        status =
            nccl_cuda(instance, NULL,
                      instance->cuda.cudaEventRecord(instance->base, instance->lanes[0].stream),
                      "cudaEventRecord");
    }
    if (status == HD_OK) {
        status = nccl_await_event(instance, NULL, instance->base, deadline_ns);
        instance->base_ns = host->now_ns(host->context);
    }
    return status;
}

/* `*phase` says where it has come to, for what the bootstrap alone reports. */
static hd_status go_through(struct hd_transport *instance, const struct hd_transport_setup *setup,
                            const char **phase)
{
    const struct hd_host *host = instance->host;
    const uint64_t deadline_ns = setup->deadline_ns;
    struct nccl_card own = {.status = HD_OK};

    *phase = "publishing its card";
    own.status = nccl_check(instance, setup);
    if (own.status == HD_OK) {
        fill_lanes(instance);
        own.status = nccl_check_mode(instance);
    }
    if (own.status == HD_OK) {
        own.status = nccl_start_helper(instance);
    }
    const hd_status made = own.status;
    nccl_introduce(instance, &own);
    hd_status status = put_card(instance, &own);
    if (status == HD_OK && made == HD_OK) {
        status = put_ids(instance);
    }
    if (status == HD_OK) {
        *phase = "waiting for the cards of all ranks";
        status = host->fence(host->context, deadline_ns);
    }
    status = made != HD_OK ? made : status;
    if (status == HD_OK) {
        *phase = "reading the cards of all ranks";
        status = read_cards(instance, &own, deadline_ns);
    }
    if (status == HD_OK) {
        *phase = "connecting its channels";
        status = open_lanes(instance, deadline_ns);
    }
    if (status == HD_OK) {
        *phase = "waiting for the warm-up of all ranks";
        status = host->fence(host->context, deadline_ns);
    }
    if (status == HD_OK) {
        reset(instance);
        status = host->fence(host->context, deadline_ns);
    }
    return status;
}

static hd_status refuse_memory(const struct hd_host *host)
{
    const struct hd_error error = {sizeof error,
                                   HD_NO_MEMORY,
                                   NCCL_NONE,
                                   NCCL_NONE,
                                   0,
                                   "no memory for the books of the channels"};
    return host->fail(host->context, &error);
}

hd_status nccl_open(const struct hd_transport_setup *setup, const struct nccl_mode *mode,
                    struct hd_transport **out)
{
    struct hd_transport *instance = create(setup, mode);
    const char *phase = NULL;

    if (instance == NULL) {
        return refuse_memory(setup->host);
    }
    const hd_status status = go_through(instance, setup, &phase);
    if (status == HD_OK) {
        *out = instance;
        return HD_OK;
    }
    /* What these files have decided is said already; what is left is the bootstrap's. */
    const struct nccl_fault fault = {status, NCCL_NONE, NCCL_NONE, 0};
    nccl_fail(instance, &fault, "open: rank %u was %s when the bootstrap %s", setup->host->rank,
              phase, status == HD_TIMEOUT ? "reached its deadline" : "failed");
    nccl_destroy(instance, setup->deadline_ns);
    return status;
}
