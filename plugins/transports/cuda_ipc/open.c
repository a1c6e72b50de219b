/*
 * cuda_ipc/open.c - from channels to memory that is lent, mapped and proven.
 *
 *   every rank     find CUDA, take the GPU, make words, arena, send slots, streams; put its card
 * fence get cards, hold peers, map their words and arenas warm up: send all, then receive, verify
 * and credit all, then await credits    fence each writer sets its words back to 0 fence
 *
 * Whatever a rank lacks stands in its card, so that nobody waits for it.
 */
#include "ipc.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { KEY_BYTES = 48, TEXT_BYTES = 768, GENERATION_MAX = 1000 };

hd_status ipc_fail(struct hd_transport *instance, const struct ipc_fault *fault, const char *format,
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

uint32_t ipc_number(const struct hd_transport *instance, const struct ipc_lane *lane)
{
    return (uint32_t)(lane - instance->lanes);
}

uint64_t ipc_now_ns(const struct hd_transport *instance)
{
    return instance->host->now_ns(instance->host->context);
}

/* An error of CUDA's, where it was noticed; it may be of work that was enqueued before. */
static hd_status fail_device(struct hd_transport *instance, const struct ipc_lane *lane,
                             const char *text)
{
    const struct ipc_fault fault = {HD_DEVICE, IPC_NONE,
                                    lane != NULL ? ipc_number(instance, lane) : IPC_NONE, 0};

    if (lane == NULL) {
        return ipc_fail(instance, &fault, "GPU %d: %s", instance->device, text);
    }
    return ipc_fail(instance, &fault, "channel %u on GPU %d: %s", fault.channel, instance->device,
                    text);
}

hd_status ipc_runtime(struct hd_transport *instance, const struct ipc_lane *lane, const char *call,
                      cudaError_t error)
{
    char text[CUDA_REASON_BYTES];

    if (error == cudaSuccess) {
        return HD_OK;
    }
    return fail_device(instance, lane, cuda_explain(&instance->cuda, call, error, text));
}

hd_status ipc_driver(struct hd_transport *instance, const struct ipc_lane *lane, const char *call,
                     CUresult error)
{
    char text[CUDA_REASON_BYTES];

    if (error == CUDA_SUCCESS) {
        return HD_OK;
    }
    return fail_device(instance, lane, cuda_explain_driver(&instance->cuda, call, error, text));
}

/* --- what this rank has ------------------------------------------------------------------ */

static hd_status refuse(struct hd_transport *instance, hd_status status, const char *reason)
{
    const struct ipc_fault fault = {status, IPC_NONE, IPC_NONE, 0};
    return ipc_fail(instance, &fault, "%s", reason);
}

static hd_status check_setup(struct hd_transport *instance, const struct hd_transport_setup *setup)
{
    const uint32_t align = setup->alignment_bytes;
    const uint32_t rank_count = setup->host->rank_count;

    if (setup->memory != HD_MEMORY_CUDA) {
        return refuse(instance, HD_UNSUPPORTED,
                      "cuda_ipc carries device memory only; kernels in host memory need another "
                      "transport, such as shm");
    }
    if (align < 64 || (align & (align - 1)) != 0) {
        return refuse(instance, HD_UNSUPPORTED, "slots are aligned to a power of two from 64 on");
    }
    for (uint32_t i = 0; i < setup->channel_count; i++) {
        const struct hd_channel *channel = setup->channels[i];
        if (channel->source == channel->target || channel->source >= rank_count ||
            channel->target >= rank_count || channel->depth == 0 || channel->bytes == 0 ||
            channel->send_depth == 0 || channel->send_depth > channel->depth) {
            return refuse(instance, HD_INVALID,
                          "a channel leads from one rank to another and has depth, send_depth up "
                          "to it, and bytes");
        }
    }
    return HD_OK;
}

static hd_status find_cuda(struct hd_transport *instance)
{
    const struct hd_host *host = instance->host;
    const char *path = host->option_count > 0 ? host->options[0].text : "libcudart.so.13";

    return cuda_load(&instance->cuda, path) == HD_OK
               ? HD_OK
               : refuse(instance, HD_UNSUPPORTED, instance->cuda.reason);
}

/* Ranks beyond the GPUs of this machine share them, in turn. */
static hd_status take_device(struct hd_transport *instance, uint32_t ordinal)
{
    const struct cuda_library *cuda = &instance->cuda;
    const enum cudaDeviceAttr has_operations =
        (enum cudaDeviceAttr)CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
    int can = 0;

    instance->device = (int)(ordinal % (uint32_t)cuda->device_count);
    hd_status status =
        ipc_runtime(instance, NULL, "cudaSetDevice", cuda->cudaSetDevice(instance->device));
    if (status == HD_OK) {
        status = ipc_runtime(instance, NULL, "cudaDeviceGetAttribute",
                             cuda->cudaDeviceGetAttribute(&can, has_operations, instance->device));
    }
    if (status == HD_OK && !can) {
        const struct ipc_fault fault = {HD_UNSUPPORTED, IPC_NONE, IPC_NONE, 0};
        status = ipc_fail(instance, &fault,
                          "GPU %d has no 64-bit stream memory operations "
                          "(CAN_USE_64_BIT_STREAM_MEM_OPS), which cuda_ipc signals with",
                          instance->device);
    }
    return status;
}

/* Only what needs no other rank and no GPU. */
static struct hd_transport *create(const struct hd_transport_setup *setup)
{
    const struct hd_host *host = setup->host;
    const uint64_t bytes =
        sizeof(struct hd_transport) + setup->channel_count * sizeof(struct ipc_lane);
    struct hd_transport *instance = host->alloc(host->context, bytes, 64, "cuda_ipc");
    struct ipc_peer *peers =
        host->alloc(host->context, host->rank_count * sizeof *peers, 64, "cuda_ipc");

    if (instance == NULL || peers == NULL) {
        host->free(host->context, peers);
        host->free(host->context, instance);
        return NULL;
    }
    instance->host = host;
    instance->channels = setup->channels;
    instance->channel_count = setup->channel_count;
    instance->alignment_bytes = setup->alignment_bytes;
    instance->peers = peers;
    instance->descriptor = -1;
    for (uint32_t rank = 0; rank < host->rank_count; rank++) {
        peers[rank] = (struct ipc_peer){.rank = rank, .pidfd = -1};
    }
    for (uint32_t i = 0; i < setup->channel_count; i++) {
        instance->lanes[i].channel = setup->channels[i];
        instance->lanes[i].is_source = setup->channels[i]->source == host->rank;
    }
    return instance;
}

static hd_status make_own(struct hd_transport *instance, const struct hd_transport_setup *setup)
{
    hd_status status = check_setup(instance, setup);

    if (status == HD_OK) {
        status = find_cuda(instance);
    }
    if (status == HD_OK) {
        status = take_device(instance, setup->device);
    }
    if (status == HD_OK) {
        status = ipc_arena_measure(instance);
    }
    if (status == HD_OK) {
        status = ipc_arena_make(instance);
    }
    return status == HD_OK ? ipc_streams_make(instance) : status;
}

/* --- cards ------------------------------------------------------------------------------- */

static hd_status fence(struct hd_transport *instance, uint64_t deadline_ns)
{
    return instance->host->fence(instance->host->context, deadline_ns);
}

static void name_card(char key[KEY_BYTES], uint32_t rank, const struct hd_transport *instance)
{
    snprintf(key, KEY_BYTES, "cuda_ipc.rank.%u.%u", rank, instance->generation);
}

/* What the others need of this rank, or why they get nothing. */
static hd_status fill_card(struct hd_transport *instance, hd_status made, struct ipc_card *card)
{
    const struct ipc_peer *self = &instance->peers[instance->host->rank];

    *card = (struct ipc_card){.magic = IPC_MAGIC,
                              .nonce = instance->nonce,
                              .arena_bytes = self->arena_bytes,
                              .shift_bytes = instance->shift_bytes,
                              .arena = (uintptr_t)self->arena,
                              .words = (uintptr_t)self->words,
                              .pid = (int32_t)getpid(),
                              .descriptor = instance->descriptor,
                              .status = made};
    if (made == HD_OK) {
        made = ipc_runtime(instance, NULL, "cudaDeviceGetPCIBusId",
                           instance->cuda.cudaDeviceGetPCIBusId(card->bus_id, sizeof card->bus_id,
                                                                instance->device));
    }
    if (made == HD_OK && instance->arena != NULL) {
        made = ipc_runtime(instance, NULL, "cudaIpcGetMemHandle",
                           instance->cuda.cudaIpcGetMemHandle(&card->handle, instance->arena));
    }
    card->status = made;
    return made;
}

/* A key that is taken is an older instance's: open is collective, so all come to one number. */
static hd_status put_card(struct hd_transport *instance, const struct ipc_card *card)
{
    const struct hd_host *host = instance->host;
    hd_status status = HD_INVALID;
    char key[KEY_BYTES];

    for (uint32_t i = 0; status == HD_INVALID && i < GENERATION_MAX; i++) {
        instance->generation = i;
        name_card(key, host->rank, instance);
        status = host->put(host->context, key, card, sizeof *card);
    }
    return status;
}

static hd_status get_card(struct hd_transport *instance, uint32_t rank, struct ipc_card *card,
                          uint64_t deadline_ns)
{
    const struct hd_host *host = instance->host;
    char key[KEY_BYTES];

    name_card(key, rank, instance);
    const hd_status status = host->get(host->context, key, card, sizeof *card, deadline_ns);
    if (status == HD_OK && card->magic != IPC_MAGIC) {
        const struct ipc_fault fault = {HD_PROTOCOL, rank, IPC_NONE, 0};
        return ipc_fail(instance, &fault, "rank %u runs another version of cuda_ipc", rank);
    }
    if (status == HD_OK && card->status != HD_OK) {
        const struct ipc_fault fault = {card->status, rank, IPC_NONE, 0};
        return ipc_fail(instance, &fault,
                        "rank %u could not open cuda_ipc (its own error says why)", rank);
    }
    return status;
}

/* --- the other ends ---------------------------------------------------------------------- */

static void place_lane(struct hd_transport *instance, struct ipc_lane *lane)
{
    struct ipc_peer *self = &instance->peers[instance->host->rank];
    struct ipc_peer *target = &instance->peers[lane->channel->target];
    const uint64_t offset_bytes =
        4096 + ipc_number(instance, lane) * sizeof(struct ipc_words); /* behind the nonce's page */

    lane->words = (struct ipc_words *)(void *)(target->words + offset_bytes);
    lane->words_gpu = (CUdeviceptr)(uintptr_t)(target->words_gpu + offset_bytes);
    if (lane->is_source) {
        lane->peer_slots = target->arena + lane->offset_bytes;
    } else {
        lane->own_slots = self->arena + lane->offset_bytes;
    }
}

static hd_status connect_lane(struct hd_transport *instance, struct ipc_lane *lane,
                              uint64_t deadline_ns)
{
    const uint32_t rank = lane->is_source ? lane->channel->target : lane->channel->source;
    struct ipc_peer *peer = &instance->peers[rank];
    struct ipc_card card;
    hd_status status = get_card(instance, rank, &card, deadline_ns);

    lane->peer = peer;
    if (status == HD_OK && peer->pidfd < 0) {
        status = ipc_arena_reach(instance, peer, &card);
        status = status == HD_OK ? ipc_peer_hold(instance, peer, &card) : status;
    }
    if (status == HD_OK && lane->is_source && peer->words == NULL) {
        status = ipc_arena_open(instance, peer, &card);
    }
    if (status == HD_OK) {
        place_lane(instance, lane);
    }
    return status;
}

/* A rank that has no channel with the one that failed must hear of it too. */
static hd_status connect_all(struct hd_transport *instance, uint64_t deadline_ns)
{
    const uint32_t rank = instance->host->rank;
    struct ipc_card card;
    hd_status status = HD_OK;

    for (uint32_t other = 0; status == HD_OK && other < instance->host->rank_count; other++) {
        status = get_card(instance, other, &card, deadline_ns);
    }
    for (uint32_t i = 0; status == HD_OK && i < instance->channel_count; i++) {
        struct ipc_lane *lane = &instance->lanes[i];
        if (lane->is_source || lane->channel->target == rank) {
            status = connect_lane(instance, lane, deadline_ns);
        }
    }
    return status;
}

static void reset_words(struct hd_transport *instance)
{
    for (uint32_t i = 0; i < instance->channel_count; i++) {
        struct ipc_lane *lane = &instance->lanes[i];
        if (lane->words != NULL) {
            atomic_store(lane->is_source ? &lane->words->arrived : &lane->words->credit, 0);
        }
    }
}

/* --- open -------------------------------------------------------------------------------- */

/* The whole of it; `*phase` says where it has come to. */
static hd_status go_through(struct hd_transport *instance, const struct hd_transport_setup *setup,
                            const char **phase)
{
    const uint64_t deadline_ns = setup->deadline_ns;
    struct ipc_card card;

    *phase = "publishing its card";
    const hd_status made = fill_card(instance, make_own(instance, setup), &card);
    instance->is_at_rest = made != HD_OK; /* nobody will map what this rank has */
    hd_status status = put_card(instance, &card);
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
        status = ipc_warm_up(instance, deadline_ns);
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

hd_status ipc_open_all(const struct hd_transport_setup *setup, struct hd_transport **out)
{
    const struct hd_host *host = setup->host;
    struct hd_transport *instance = create(setup);
    const char *phase = NULL;

    if (instance == NULL) {
        const struct hd_error error = {
            sizeof error, HD_NO_MEMORY, IPC_NONE, IPC_NONE, 0, "no memory for the books"};
        return host->fail(host->context, &error);
    }
    const hd_status status = go_through(instance, setup, &phase);
    if (status == HD_OK) {
        *out = instance;
        return HD_OK;
    }
    /* What cuda_ipc has decided is said already; what is left is the bootstrap's. */
    const struct ipc_fault fault = {status, IPC_NONE, IPC_NONE, 0};
    (void)ipc_fail(instance, &fault, "open: rank %u was %s when the bootstrap ended it (%d)",
                   host->rank, phase, (int)status);
    ipc_poison(instance); /* the warm-up's stream may wait */
    ipc_close_all(instance, setup->deadline_ns);
    return status;
}
