/*
 * shm/arena.c - the memory of the channels that end here: a memfd, reserved whole before use.
 *
 * A memfd has no name that could stay behind: the peer opens it as /proc/PID/fd/FD while
 * its target holds it open, and it is gone with the last mapping, also after SIGKILL.
 * It is filled with pages at once, so that a full machine is an error at open and not a
 * SIGBUS in a step, and sealed against any change of size.
 */
#include "shm.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t shm_round_up(uint64_t bytes, uint64_t alignment_bytes)
{
    return (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

static uint64_t shm_head_bytes(const struct hd_transport *instance)
{
    return shm_round_up(sizeof(struct shm_words) + HD_SEAL_BYTES, instance->book.alignment_bytes);
}

/* Every rank reckons where each channel lies, also those between others. */
static hd_status shm_measure(struct hd_transport *instance, uint32_t number)
{
    const struct hd_channel *shape = instance->book.shapes[number];
    struct shm_channel *channel = shm_channel_of(instance, number);
    struct shm_peer *target = &instance->peers[shape->target];
    const uint64_t bytes_max = (uint64_t)1 << 46; /* half of what a process can address */
    const struct book_fault fault = {HD_NO_MEMORY, BOOK_NONE, number, 0};
    uint64_t stride_bytes = 0;

    if (shape->bytes <= bytes_max) {
        stride_bytes = shm_round_up(shape->bytes + HD_SEAL_BYTES, instance->book.alignment_bytes);
    }
    if (stride_bytes == 0 || shape->depth > bytes_max / stride_bytes) {
        return book_fail(&instance->book, &fault,
                         "channel %u: %u slots of %" PRIu64
                         " bytes are more than a process can map",
                         number, shape->depth, shape->bytes);
    }
    const uint64_t used_bytes = shm_head_bytes(instance) + shape->depth * stride_bytes;
    if (channel != NULL) {
        channel->stride_bytes = stride_bytes;
        channel->offset_bytes = target->arena_bytes;
        channel->used_bytes = used_bytes;
        channel->mapped_bytes = shm_round_up(used_bytes, instance->page_bytes);
    }
    target->arena_bytes += shm_round_up(used_bytes, instance->page_bytes);
    if (target->arena_bytes > bytes_max) {
        return book_fail(&instance->book, &fault,
                         "channel %u: the channels to rank %u are more than a process can map",
                         number, shape->target);
    }
    return HD_OK;
}

hd_status shm_arena_measure(struct hd_transport *instance)
{
    hd_status status = HD_OK;

    instance->page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    for (uint32_t i = 0; status == HD_OK && i < instance->book.channel_count; i++) {
        status = shm_measure(instance, i);
    }
    return status;
}

static hd_status shm_refuse_memory(struct hd_transport *instance, const struct shm_channel *channel,
                                   const char *reason)
{
    const struct book_fault fault = {HD_NO_MEMORY, BOOK_NONE, channel->book.number, 0};
    return book_fail(&instance->book, &fault,
                     "channel %u needs %" PRIu64 " bytes of shared memory (%u slots of %" PRIu64
                     "): %s; plan fewer slots or smaller microbatches",
                     fault.channel, channel->mapped_bytes, channel->book.shape->depth,
                     channel->book.shape->bytes, reason);
}

/* Every page is there afterwards. */
static hd_status shm_reserve_pages(struct hd_transport *instance, struct shm_channel *channel)
{
    const uint64_t left_bytes = book_available_bytes();
    char reason[64];
    int error = 0;

    if (channel->mapped_bytes > left_bytes) {
        snprintf(reason, sizeof reason, "only %" PRIu64 " are available", left_bytes);
        return shm_refuse_memory(instance, channel, reason);
    }
    do { /* a signal undoes the whole call, so this ends once signals do */
        error = posix_fallocate(instance->descriptor, (off_t)channel->offset_bytes,
                                (off_t)channel->mapped_bytes);
    } while (error == EINTR);
    if (error != 0) {
        return shm_refuse_memory(instance, channel, strerror(error));
    }
    return HD_OK;
}

static hd_status shm_map(struct hd_transport *instance, struct shm_channel *channel, int descriptor)
{
    void *memory = mmap(NULL, channel->mapped_bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_POPULATE, descriptor, (off_t)channel->offset_bytes);
    if (memory == MAP_FAILED) {
        return shm_refuse_memory(instance, channel, strerror(errno));
    }
    channel->words = memory;
    channel->slots = (unsigned char *)memory + shm_head_bytes(instance);
    return HD_OK;
}

static hd_status shm_make_channel(struct hd_transport *instance, struct shm_channel *channel)
{
    hd_status status = shm_reserve_pages(instance, channel);

    if (status == HD_OK) {
        status = shm_map(instance, channel, instance->descriptor);
    }
    if (status == HD_OK) {
        book_account(&instance->book, (int64_t)channel->used_bytes, "transfer");
        channel->words->magic = SHM_MAGIC;
        channel->words->nonce = instance->nonce;
        channel->words->channel = channel->book.number;
        channel->words->home = channel->words;
        atomic_store(&channel->words->holder_count, 1);
        channel->is_home = 1;
    }
    return status;
}

static hd_status shm_refuse_memfd(struct hd_transport *instance)
{
    const struct book_fault fault = book_own_fault(HD_NO_MEMORY);

    return book_fail(&instance->book, &fault, "no shared memory for this rank's channels: %s",
                     strerror(errno));
}

hd_status shm_arena_make(struct hd_transport *instance)
{
    const uint32_t rank = instance->book.host->rank;
    hd_status status = HD_OK;

    if (instance->peers[rank].arena_bytes == 0) {
        return HD_OK;
    }
    /* The name is shown in /proc/PID/maps, and nowhere else. */
    instance->descriptor = memfd_create("heddle-channels", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (instance->descriptor < 0 ||
        getrandom(&instance->nonce, sizeof instance->nonce, 0) != sizeof instance->nonce) {
        return shm_refuse_memfd(instance);
    }
    for (uint32_t i = 0; status == HD_OK && i < instance->book.own_count; i++) {
        if (!instance->channels[i].book.is_source) {
            status = shm_make_channel(instance, &instance->channels[i]);
        }
    }
    /* No end can change the size afterwards. */
    (void)fcntl(instance->descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return status;
}

static hd_status shm_refuse_card(struct hd_transport *instance, const struct shm_channel *channel,
                                 hd_status status, const char *reason)
{
    const struct book_fault fault = book_peer_fault(&channel->book, status, 0);
    return book_fail(&instance->book, &fault, "channel %u: the memory of rank %u: %s",
                     fault.channel, fault.rank, reason);
}

static int shm_is_expected(const struct shm_channel *channel, const struct shm_card *card)
{
    return channel->words->magic == SHM_MAGIC && channel->words->nonce == card->nonce &&
           channel->words->channel == channel->book.number;
}

/*
 * Ranks that are threads of one process need no second mapping; with one, what both ends touch has
 * one address, and a checker of races sees it.
 */
static void shm_share_home(struct hd_transport *instance, struct shm_channel *channel)
{
    struct shm_words *home = channel->words->home;

    shm_arena_unmap(instance, channel);
    atomic_fetch_add(&home->holder_count, 1);
    channel->words = home;
    channel->slots = (unsigned char *)home + shm_head_bytes(instance);
    channel->is_home = 1;
}

/* A rank that has given up, or ended, has closed its descriptor: then it is lost, and this is none
   of this rank's doing. */
static hd_status shm_refuse_path(struct hd_transport *instance, const struct shm_channel *channel,
                                 const char *path)
{
    const int error = errno;
    char reason[192];

    if (error == ENOENT) {
        return shm_refuse_card(
            instance, channel, HD_PEER_LOST,
            "it is not there any more: that rank has ended, or given up its open");
    }
    snprintf(reason, sizeof reason, "%s: %s; shm needs all ranks to be of one user", path,
             strerror(error));
    return shm_refuse_card(instance, channel, HD_UNSUPPORTED, reason);
}

hd_status shm_arena_open(struct hd_transport *instance, struct shm_channel *channel,
                         const struct shm_card *card)
{
    char path[64];
    struct stat found;

    snprintf(path, sizeof path, "/proc/%d/fd/%d", card->place.pid, card->descriptor);
    const int descriptor = open(path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) {
        return shm_refuse_path(instance, channel, path);
    }
    if (fstat(descriptor, &found) != 0 ||
        (uint64_t)found.st_size != instance->peers[channel->book.peer_rank].arena_bytes) {
        close(descriptor);
        return shm_refuse_card(instance, channel, HD_PEER_LOST,
                               "another file stands there: that rank has given up its open");
    }
    hd_status status = shm_map(instance, channel, descriptor);
    close(descriptor);
    if (status == HD_OK && !shm_is_expected(channel, card)) {
        shm_arena_unmap(instance, channel);
        status = shm_refuse_card(instance, channel, HD_PEER_LOST,
                                 "other content stands there: that rank has given up its open");
    }
    if (status == HD_OK && card->place.pid == (int32_t)getpid()) {
        shm_share_home(instance, channel);
    }
    return status;
}

void shm_arena_close_descriptor(struct hd_transport *instance)
{
    if (instance->descriptor >= 0) {
        close(instance->descriptor);
        instance->descriptor = -1;
    }
}

void shm_arena_unmap(struct hd_transport *instance, struct shm_channel *channel)
{
    if (channel->words != NULL) {
        if (!channel->book.is_source) {
            book_account(&instance->book, -(int64_t)channel->used_bytes, "transfer");
        }
        const int is_last =
            !channel->is_home || atomic_fetch_sub(&channel->words->holder_count, 1) == 1;
        if (is_last) {
            munmap(channel->words, channel->mapped_bytes);
        }
        channel->words = NULL;
        channel->is_home = 0;
    }
}
