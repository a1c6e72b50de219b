/*
 * shm/close.c - the end: announce that this rank writes no more, wait until no peer writes here.
 *
 * A source that has neither stopped nor died may still write into this rank's memory.  That memory
 * is then leaked with its mapping, so that the addresses are never reused.
 */
#include "shm.h"

#include <inttypes.h>

/* On every channel: a source writes payloads, a target writes credits. */
static void shm_tell_peers(struct hd_transport *instance)
{
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct shm_channel *channel = &instance->channels[i];
        if (channel->words != NULL) {
            shm_publish(channel->book.is_source ? &channel->words->source_stopped
                                                : &channel->words->target_stopped,
                        1, shm_peer_asleep(channel));
        }
    }
}

/* Whether the source of this incoming channel has stopped writing. */
static bool shm_is_at_rest(const struct shm_channel *channel)
{
    return atomic_load(&channel->words->source_stopped) != 0 ||
           (channel->peer != NULL && book_has_ended(&channel->peer->book));
}

static hd_status shm_await_rest(struct hd_transport *instance, const struct shm_channel *channel,
                                uint64_t deadline_ns)
{
    const struct shm_wait wait = {.word = &channel->words->source_stopped,
                                  .goal = 1,
                                  .asleep = shm_own_asleep(channel),
                                  .peer = channel->peer,
                                  .until_rest = true,
                                  .deadline_ns = deadline_ns};

    if (shm_wait_for(instance, &wait) != HD_TIMEOUT) {
        return HD_OK; /* the source has stopped or died */
    }
    const struct book_fault fault =
        book_peer_fault(&channel->book, HD_TIMEOUT, atomic_load(&channel->words->arrived));
    book_fail(&instance->book, fault,
              "channel %u: rank %u did not stop writing by the deadline (it has sent %" PRIu64
              " messages): its memory here is leaked",
              fault.channel, fault.rank, fault.sequence);
    return HD_TIMEOUT;
}

/* Its result does not depend on earlier failures: close frees only what this found unused. */
hd_status shm_quiesce(struct hd_transport *instance, uint64_t deadline_ns)
{
    hd_status status = HD_OK;

    shm_tell_peers(instance);
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        const struct shm_channel *channel = &instance->channels[i];
        if (channel->words != NULL && !channel->book.is_source &&
            shm_await_rest(instance, channel, deadline_ns) != HD_OK) {
            status = HD_TIMEOUT;
        }
    }
    return status;
}

void shm_close_all(struct hd_transport *instance, uint64_t deadline_ns)
{
    (void)deadline_ns;
    if (instance == NULL) {
        return;
    }
    shm_tell_peers(instance);
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct shm_channel *channel = &instance->channels[i];
        if (channel->words != NULL && (channel->book.is_source || shm_is_at_rest(channel))) {
            shm_arena_unmap(instance, channel);
        }
    }
    shm_arena_close_descriptor(instance);
    book_destroy(instance);
}
