/*
 * cuda_ipc/arena.c - slots on the GPU, and words in memory that host and GPU both access.
 *
 * The words are a memfd, which a peer opens as /proc/PID/fd/FD; its first page holds the nonce of
 * its owner.  Both ends register their mapping with CUDA, so that streams can write and watch the
 * words while the host reads them: the host needs the credits, and abort is a plain store.
 */
#include "ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD_BYTES = 4096 }; /* a page with the nonce, before the words */

/* --- places ------------------------------------------------------------------------------ */

/* Every rank measures every channel, also those between other ranks. */
static hd_status cuda_ipc_measure(struct hd_transport *instance, uint32_t number)
{
    const struct hd_channel *shape = instance->book.shapes[number];
    struct ipc_channel *channel = (struct ipc_channel *)instance->book.channel_of[number];
    struct ipc_peer *target = &instance->peers[shape->target];
    const uint64_t bytes_max = (uint64_t)1 << 46;
    uint64_t stride_bytes = 0;

    if (shape->bytes <= bytes_max) {
        stride_bytes = book_round_up(shape->bytes, instance->book.alignment_bytes);
    }
    if (stride_bytes == 0 || shape->depth > bytes_max / stride_bytes ||
        target->arena_bytes > bytes_max) {
        return book_fail(&instance->book, book_channel_fault(HD_NO_MEMORY, number),
                         "channel %u: %u slots of %" PRIu64
                         " bytes are more than a GPU has: plan fewer slots or smaller "
                         "microbatches",
                         number, shape->depth, shape->bytes);
    }
    if (channel != NULL) {
        channel->stride_bytes = stride_bytes;
        channel->offset_bytes = target->arena_bytes;
        instance->sends_bytes +=
            channel->book.is_source ? channel->book.slot_count * stride_bytes : 0;
    }
    target->arena_bytes += shape->depth * stride_bytes;
    return HD_OK;
}

hd_status ipc_arena_measure(struct hd_transport *instance)
{
    const uint32_t channel_count = instance->book.channel_count;

    instance->words_bytes =
        book_round_up(HEAD_BYTES + channel_count * sizeof(struct ipc_words), HEAD_BYTES);
    for (uint32_t i = 0; i < channel_count; i++) {
        BOOK_TRY(cuda_ipc_measure(instance, i));
    }
    return HD_OK;
}

/* --- words ------------------------------------------------------------------------------- */

static hd_status cuda_ipc_refuse_words(struct hd_transport *instance, uint32_t rank,
                                       hd_status status, const char *reason)
{
    return book_fail(&instance->book, book_rank_fault(status, rank),
                     "cannot map the signal words of rank %u: %s", rank, reason);
}

static hd_status cuda_ipc_map_words(struct hd_transport *instance, struct ipc_peer *peer,
                                    int descriptor)
{
    void *words =
        mmap(NULL, instance->words_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);

    if (words == MAP_FAILED) {
        return cuda_ipc_refuse_words(instance, peer->book.rank, HD_NO_MEMORY, strerror(errno));
    }
    peer->words = words;
    return HD_OK;
}

/* Makes the words accessible to streams. */
static hd_status cuda_ipc_register_words(struct hd_transport *instance, struct ipc_peer *peer)
{
    void *gpu = NULL;

    BOOK_TRY(IPC_RUNTIME(instance, NULL, cudaHostRegister, peer->words, instance->words_bytes,
                         cudaHostRegisterMapped));
    peer->is_registered = true;
    BOOK_TRY(IPC_RUNTIME(instance, NULL, cudaHostGetDevicePointer, &gpu, peer->words, 0));
    peer->words_gpu = gpu;
    return HD_OK;
}

static hd_status cuda_ipc_make_words(struct hd_transport *instance)
{
    struct ipc_peer *self = &instance->peers[instance->book.host->rank];

    instance->descriptor = memfd_create("heddle-cuda-ipc", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (instance->descriptor < 0 ||
        ftruncate(instance->descriptor, (off_t)instance->words_bytes) != 0 ||
        getrandom(&instance->nonce, sizeof instance->nonce, 0) != sizeof instance->nonce) {
        return cuda_ipc_refuse_words(instance, self->book.rank, HD_NO_MEMORY, strerror(errno));
    }
    (void)fcntl(instance->descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    BOOK_TRY(cuda_ipc_map_words(instance, self, instance->descriptor));
    memcpy(self->words, &instance->nonce, sizeof instance->nonce);
    return cuda_ipc_register_words(instance, self);
}

static hd_status cuda_ipc_open_words(struct hd_transport *instance, struct ipc_peer *peer,
                                     const struct ipc_card *card)
{
    const int descriptor = book_open_descriptor(card->head.place.pid, card->descriptor);
    struct stat found;

    if (descriptor < 0) {
        return cuda_ipc_refuse_words(
            instance, peer->book.rank, HD_UNSUPPORTED,
            "cannot open them: cuda_ipc needs all ranks in one PID namespace and of one user");
    }
    hd_status status = HD_UNSUPPORTED;
    if (fstat(descriptor, &found) == 0 && (uint64_t)found.st_size == instance->words_bytes) {
        status = cuda_ipc_map_words(instance, peer, descriptor);
    }
    close(descriptor);
    if (status == HD_OK && memcmp(peer->words, &card->nonce, sizeof card->nonce) == 0) {
        return cuda_ipc_register_words(instance, peer);
    }
    return cuda_ipc_refuse_words(instance, peer->book.rank, HD_UNSUPPORTED,
                                 "found another file: the ranks must run in one PID namespace");
}

/* --- device memory ----------------------------------------------------------------------- */

/* Allocates `bytes`, which begin at the aligned address *aligned. */
static hd_status cuda_ipc_allocate(struct hd_transport *instance, uint64_t bytes, const char *name,
                                   void **memory, unsigned char **aligned)
{
    const uint64_t room_bytes = bytes + instance->book.alignment_bytes;
    char text[CUDA_REASON_BYTES];

    const cudaError_t error = instance->cuda.cudaMalloc(memory, room_bytes);
    if (error != cudaSuccess) {
        return book_fail(&instance->book, book_own_fault(HD_NO_MEMORY),
                         "GPU %d cannot allocate %" PRIu64
                         " bytes for the slots of rank %u (%s): plan fewer slots or smaller "
                         "microbatches",
                         instance->device, room_bytes, instance->book.host->rank,
                         cuda_explain(&instance->cuda, "cudaMalloc", error, text));
    }
    book_account(&instance->book, (int64_t)bytes, "transfer");
    book_log(&instance->book, "%" PRIu64 " bytes of GPU %d for %s slots", room_bytes,
             instance->device, name);
    *aligned = (unsigned char *)(uintptr_t)book_round_up((uintptr_t)*memory,
                                                         instance->book.alignment_bytes);
    return HD_OK;
}

static void cuda_ipc_place_sends(struct hd_transport *instance, unsigned char *slots)
{
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ipc_channel *channel = &instance->channels[i];
        if (channel->book.is_source) {
            channel->own_slots = slots;
            slots += channel->book.slot_count * channel->stride_bytes;
        }
    }
}

hd_status ipc_arena_make(struct hd_transport *instance)
{
    struct ipc_peer *self = &instance->peers[instance->book.host->rank];
    unsigned char *aligned = NULL;

    BOOK_TRY(cuda_ipc_make_words(instance));
    if (self->arena_bytes > 0) {
        BOOK_TRY(cuda_ipc_allocate(instance, self->arena_bytes, "receive", &instance->arena,
                                   &self->arena));
        instance->shift_bytes = (uint64_t)(self->arena - (unsigned char *)instance->arena);
    }
    if (instance->sends_bytes > 0) {
        BOOK_TRY(
            cuda_ipc_allocate(instance, instance->sends_bytes, "send", &instance->sends, &aligned));
        cuda_ipc_place_sends(instance, aligned);
    }
    return HD_OK;
}

hd_status ipc_arena_reach(struct hd_transport *instance, struct ipc_peer *peer,
                          const struct ipc_card *card)
{
    const struct book_fault fault = book_rank_fault(HD_UNSUPPORTED, peer->book.rank);
    char bus_id[sizeof card->bus_id] = "";
    int other = 0;
    int can = 0;

    for (other = 0; other < instance->cuda.device_count; other++) {
        if (instance->cuda.cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, other) == cudaSuccess &&
            strncmp(bus_id, card->bus_id, sizeof bus_id) == 0) {
            break;
        }
    }
    if (other == instance->cuda.device_count) {
        return book_fail(&instance->book, fault,
                         "rank %u computes on GPU %.19s, which this process does not see: cuda_ipc "
                         "needs every GPU visible to every rank (CUDA_VISIBLE_DEVICES)",
                         peer->book.rank, card->bus_id);
    }
    peer->device = other;
    if (other == instance->device) {
        return HD_OK;
    }
    (void)instance->cuda.cudaDeviceCanAccessPeer(&can, instance->device, other);
    if (!can) {
        return book_fail(&instance->book, fault,
                         "GPU %d cannot reach GPU %d of rank %u (cudaDeviceCanAccessPeer says 0): "
                         "place neighbours on one GPU, or choose a transport that needs no peer "
                         "access",
                         instance->device, other, peer->book.rank);
    }
    return HD_OK;
}

static hd_status cuda_ipc_open_arena(struct hd_transport *instance, struct ipc_peer *peer,
                                     const struct ipc_card *card)
{
    char text[CUDA_REASON_BYTES];

    const cudaError_t error = instance->cuda.cudaIpcOpenMemHandle(&peer->import, card->handle,
                                                                  cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) {
        peer->import = NULL;
        return book_fail(&instance->book, book_rank_fault(HD_UNSUPPORTED, peer->book.rank),
                         "cannot map the receive slots of rank %u: %s", peer->book.rank,
                         cuda_explain(&instance->cuda, "cudaIpcOpenMemHandle", error, text));
    }
    peer->arena = (unsigned char *)peer->import + card->shift_bytes;
    return HD_OK;
}

hd_status ipc_arena_open(struct hd_transport *instance, struct ipc_peer *peer,
                         const struct ipc_card *card)
{
    if (card->head.place.pid == (int32_t)getpid()) {
        peer->words = (unsigned char *)(uintptr_t)card->words;
        peer->words_gpu = peer->words; /* its owner has registered them at the same address */
        peer->arena = (unsigned char *)(uintptr_t)card->arena;
        return HD_OK;
    }
    BOOK_TRY(cuda_ipc_open_words(instance, peer, card));
    return cuda_ipc_open_arena(instance, peer, card);
}

void ipc_arena_close(struct hd_transport *instance, struct ipc_peer *peer)
{
    if (peer->import != NULL) {
        (void)instance->cuda.cudaIpcCloseMemHandle(peer->import);
        peer->import = NULL;
    }
}

static void cuda_ipc_free_words(struct hd_transport *instance, struct ipc_peer *peer)
{
    const bool is_own = peer->book.rank == instance->book.host->rank;

    if (peer->is_registered) {
        (void)instance->cuda.cudaHostUnregister(peer->words);
    }
    if (peer->words != NULL && (is_own || peer->is_registered)) {
        munmap(peer->words, instance->words_bytes);
    }
    peer->words = NULL;
}

static void cuda_ipc_free(struct hd_transport *instance, void *memory, uint64_t bytes)
{
    if (memory != NULL) {
        (void)instance->cuda.cudaFree(memory);
        book_account(&instance->book, -(int64_t)bytes, "transfer");
    }
}

void ipc_arena_free(struct hd_transport *instance)
{
    const struct ipc_peer *self = &instance->peers[instance->book.host->rank];

    cuda_ipc_free(instance, instance->sends, instance->sends_bytes);
    cuda_ipc_free(instance, instance->arena, self->arena_bytes);
    for (uint32_t rank = 0; rank < instance->book.host->rank_count; rank++) {
        cuda_ipc_free_words(instance, &instance->peers[rank]);
    }
    if (instance->descriptor >= 0) {
        close(instance->descriptor);
    }
}
