/*
 * shm/arena.c - the memory of the channels that end here: a memfd that is allocated before use.
 *
 * A memfd has no name that could be left behind.  The source opens it as /proc/PID/fd/FD while the
 * target keeps it open, and the kernel frees it with the last mapping, also after SIGKILL.  All its
 * pages are allocated at once, so that a lack of memory is an error of open and not a SIGBUS in a
 * step, and its size is sealed.
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

static uint64_t shm_head_bytes(const struct hd_transport *instance)
{
    return book_round_up(sizeof(struct shm_words) + HD_SEAL_BYTES, instance->book.alignment_bytes);
}

/* Every rank measures every channel, also those between other ranks. */
static hd_status shm_measure(struct hd_transport *instance, uint32_t number)
{
    const struct hd_channel *shape = instance->book.shapes[number];
    struct shm_channel *channel = shm_channel_of(instance, number);
    struct shm_peer *target = &instance->peers[shape->target];
    const uint64_t bytes_max = (uint64_t)1 << 46; /* half of what a process can address */
    const struct book_fault fault = book_channel_fault(HD_NO_MEMORY, number);
    uint64_t stride_bytes = 0;

    if (shape->bytes <= bytes_max) {
        stride_bytes = book_round_up(shape->bytes + HD_SEAL_BYTES, instance->book.alignment_bytes);
    }
    if (stride_bytes == 0 || shape->depth > bytes_max / stride_bytes) {
        return book_fail(&instance->book, fault,
                         "channel %u: %u slots of %" PRIu64
                         " bytes are more than a process can map: plan fewer slots or smaller "
                         "microbatches",
                         number, shape->depth, shape->bytes);
    }
    const uint64_t used_bytes = shm_head_bytes(instance) + shape->depth * stride_bytes;
    if (channel != NULL) {
        channel->stride_bytes = stride_bytes;
        channel->offset_bytes = target->arena_bytes;
        channel->used_bytes = used_bytes;
        channel->mapped_bytes = book_round_up(used_bytes, instance->page_bytes);
    }
    target->arena_bytes += book_round_up(used_bytes, instance->page_bytes);
    if (target->arena_bytes > bytes_max) {
        return book_fail(&instance->book, fault,
                         "channel %u: the channels to rank %u are more than a process can map: "
                         "plan fewer slots or smaller microbatches",
                         number, shape->target);
    }
    return HD_OK;
}

hd_status shm_arena_measure(struct hd_transport *instance)
{
    instance->page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    for (uint32_t i = 0; i < instance->book.channel_count; i++) {
        BOOK_TRY(shm_measure(instance, i));
    }
    return HD_OK;
}

static hd_status shm_refuse_memory(struct hd_transport *instance, const struct shm_channel *channel,
                                   const char *reason)
{
    const uint32_t number = channel->book.number;

    return book_fail(&instance->book, book_channel_fault(HD_NO_MEMORY, number),
                     "channel %u needs %" PRIu64 " bytes of shared memory (%u slots of %" PRIu64
                     "): %s; plan fewer slots or smaller microbatches",
                     number, channel->mapped_bytes, channel->book.shape->depth,
                     channel->book.shape->bytes, reason);
}

/* Allocates every page of the channel. */
static hd_status shm_reserve_pages(struct hd_transport *instance, struct shm_channel *channel)
{
    const uint64_t left_bytes = book_available_bytes();
    char reason[64];
    int error = 0;

    if (channel->mapped_bytes > left_bytes) {
        snprintf(reason, sizeof reason, "only %" PRIu64 " are available", left_bytes);
        return shm_refuse_memory(instance, channel, reason);
    }
    do { /* a signal undoes the whole call; the loop ends once no more signals arrive */
        error = posix_fallocate(instance->descriptor, (off_t)channel->offset_bytes,
                                (off_t)channel->mapped_bytes);
    } while (error == EINTR);
    if (error == EFBIG) {
        const uint32_t number = channel->book.number;
        return book_fail(&instance->book, book_channel_fault(HD_UNSUPPORTED, number),
                         "channel %u needs %" PRIu64
                         " bytes of shared memory, and the limit on the size of a file is %" PRIu64
                         ": raise the limit (ulimit -f)",
                         number, channel->mapped_bytes, book_file_limit_bytes());
    }
    return error == 0 ? HD_OK : shm_refuse_memory(instance, channel, strerror(error));
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
    BOOK_TRY(shm_reserve_pages(instance, channel));
    BOOK_TRY(shm_map(instance, channel, instance->descriptor));
    book_account(&instance->book, (int64_t)channel->used_bytes, "transfer");
    channel->words->magic = SHM_MAGIC;
    channel->words->nonce = instance->nonce;
    channel->words->channel = channel->book.number;
    channel->words->home = channel->words;
    atomic_store(&channel->words->holder_count, 1);
    channel->is_home = true;
    return HD_OK;
}

hd_status shm_arena_make(struct hd_transport *instance)
{
    const uint64_t arena_bytes = instance->peers[instance->book.host->rank].arena_bytes;

    if (arena_bytes == 0) {
        return HD_OK;
    }
    /* The name appears in /proc/PID/maps, and nowhere else. */
    instance->descriptor = memfd_create("heddle-channels", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (instance->descriptor < 0 ||
        getrandom(&instance->nonce, sizeof instance->nonce, 0) != sizeof instance->nonce) {
        return book_fail(&instance->book, book_own_fault(HD_NO_MEMORY),
                         "cannot create the shared memory of this rank's channels: %s",
                         strerror(errno));
    }
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        if (!instance->channels[i].book.is_source) {
            BOOK_TRY(shm_make_channel(instance, &instance->channels[i]));
        }
    }
    book_log(&instance->book, "%" PRIu64 " bytes of shared memory, in pages of %" PRIu64,
             arena_bytes, instance->page_bytes);
    /* From now on neither end can change the size. */
    (void)fcntl(instance->descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return HD_OK;
}

static hd_status shm_refuse_card(struct hd_transport *instance, const struct shm_channel *channel,
                                 hd_status status, const char *reason)
{
    return book_fail(&instance->book, book_peer_fault(&channel->book, status, 0),
                     "channel %u: cannot map the memory of rank %u: %s", channel->book.number,
                     channel->book.peer_rank, reason);
}

static bool shm_is_expected(const struct shm_channel *channel, const struct shm_card *card)
{
    return channel->words->magic == SHM_MAGIC && channel->words->nonce == card->nonce &&
           channel->words->channel == channel->book.number;
}

/*
 * Ranks that are threads of one process use the target's mapping instead of a second one, so that
 * both ends touch the same addresses and a race checker can see their accesses.
 */
static void shm_share_home(struct hd_transport *instance, struct shm_channel *channel)
{
    struct shm_words *home = channel->words->home;

    shm_arena_unmap(instance, channel);
    atomic_fetch_add(&home->holder_count, 1);
    channel->words = home;
    channel->slots = (unsigned char *)home + shm_head_bytes(instance);
    channel->is_home = true;
}

/* If the peer has ended or given up its open, its descriptor is closed.  Then report the peer as
   lost; this rank is not at fault. */
static hd_status shm_refuse_path(struct hd_transport *instance, const struct shm_channel *channel,
                                 const struct shm_card *card)
{
    const int error = errno;
    char reason[192];

    if (error == ENOENT) {
        return shm_refuse_card(instance, channel, HD_PEER_LOST,
                               "it no longer exists: that rank has ended or given up its open");
    }
    snprintf(reason, sizeof reason, "/proc/%d/fd/%d: %s; shm needs all ranks to run as one user",
             card->head.place.pid, card->descriptor, strerror(error));
    return shm_refuse_card(instance, channel, HD_UNSUPPORTED, reason);
}

hd_status shm_arena_open(struct hd_transport *instance, struct shm_channel *channel,
                         const struct shm_card *card)
{
    struct stat found;
    const int descriptor = book_open_descriptor(card->head.place.pid, card->descriptor);

    if (descriptor < 0) {
        return shm_refuse_path(instance, channel, card);
    }
    if (fstat(descriptor, &found) != 0 ||
        (uint64_t)found.st_size != instance->peers[channel->book.peer_rank].arena_bytes) {
        close(descriptor);
        return shm_refuse_card(instance, channel, HD_PEER_LOST,
                               "its descriptor is another file now: that rank has given up its "
                               "open");
    }
    const hd_status status = shm_map(instance, channel, descriptor);
    close(descriptor);
    BOOK_TRY(status);
    if (!shm_is_expected(channel, card)) {
        shm_arena_unmap(instance, channel);
        return shm_refuse_card(instance, channel, HD_PEER_LOST,
                               "it has other content: that rank has given up its open");
    }
    if (card->head.place.pid == (int32_t)getpid()) {
        shm_share_home(instance, channel);
    }
    return HD_OK;
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
    if (channel->words == NULL) {
        return;
    }
    if (!channel->book.is_source) {
        book_account(&instance->book, -(int64_t)channel->used_bytes, "transfer");
    }
    if (!channel->is_home || atomic_fetch_sub(&channel->words->holder_count, 1) == 1) {
        munmap(channel->words, channel->mapped_bytes);
    }
    channel->words = NULL;
    channel->is_home = false;
}
