/*
 * shm/open.c - from channels to mapped and tested memory; book_open calls these steps.
 *
 *   make      allocate the memory of this rank's incoming channels
 *   connect   open pidfds of the peers, map the outgoing channels
 *   warm up   write all messages, then verify and release all, then wait for all credits
 *   reset     each writer sets its words back to 0
 *
 * No cycle of waits is possible: sends never block here, a credit follows its message at once, and
 * all ranks wait in channel order.
 */
#include "shm.h"

#include <stdio.h>

enum {
    SPIN_ALONE_NS = 100000, /* a futex sleep and its wake-up cost about 35 us */
    SPIN_CROWDED_NS = 0,    /* only the first looks: the peer may need this core */
};

/* --- memory and peers -------------------------------------------------------------------- */

static hd_status shm_make(struct hd_transport *instance, const struct hd_transport_setup *setup,
                          void *own_card)
{
    struct shm_card *card = own_card;

    card->descriptor = -1;
    if (setup->memory != HD_MEMORY_HOST) {
        return book_fail(&instance->book, book_own_fault(HD_UNSUPPORTED),
                         "shm carries host memory only: choose another transport for kernels on a "
                         "device");
    }
    BOOK_TRY(book_check(&instance->book));
    BOOK_TRY(shm_arena_measure(instance));
    const hd_status status = shm_arena_make(instance);
    for (uint32_t i = 0; status != HD_OK && i < instance->book.own_count; i++) {
        shm_arena_unmap(instance, &instance->channels[i]); /* no peer maps what failed */
    }
    BOOK_TRY(status);
    card->nonce = instance->nonce;
    card->descriptor = instance->descriptor;
    return HD_OK;
}

static hd_status shm_connect_channel(struct hd_transport *instance, struct shm_channel *channel,
                                     const struct shm_card *cards)
{
    const struct shm_card *card = &cards[channel->book.peer_rank];

    channel->peer = &instance->peers[channel->book.peer_rank];
    snprintf(channel->book.carrier, sizeof channel->book.carrier, "shm");
    if (channel->peer->book.pidfd < 0) {
        BOOK_TRY(book_hold_peer(&instance->book, &channel->peer->book,
                                &cards[instance->book.host->rank].head, &card->head));
    }
    return channel->book.is_source ? shm_arena_open(instance, channel, card) : HD_OK;
}

static hd_status shm_connect_all(struct hd_transport *instance, const void *cards,
                                 uint64_t deadline_ns)
{
    const int64_t spin_us = book_option(&instance->book, 0, -1);

    (void)deadline_ns;
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        BOOK_TRY(shm_connect_channel(instance, &instance->channels[i], cards));
    }
    instance->spin_ns = book_is_crowded(&instance->book, cards, sizeof(struct shm_card))
                            ? SPIN_CROWDED_NS
                            : SPIN_ALONE_NS;
    instance->spin_ns = spin_us >= 0 ? (uint64_t)spin_us * 1000 : instance->spin_ns;
    book_log(&instance->book, "a wait spins for %u us before it sleeps",
             (unsigned)(instance->spin_ns / 1000));
    return HD_OK;
}

/* --- warm-up ----------------------------------------------------------------------------- */

static unsigned char *shm_warm_up_slot(const struct shm_channel *channel)
{
    return channel->slots + BOOK_WARM_UP % channel->book.slot_count * channel->stride_bytes;
}

static hd_status shm_await_warm_up(struct hd_transport *instance, const struct shm_channel *channel,
                                   uint64_t deadline_ns)
{
    const struct shm_wait wait = {.word = shm_news(channel),
                                  .goal = 1,
                                  .stopped = channel->book.is_source
                                                 ? &channel->words->target_stopped
                                                 : &channel->words->source_stopped,
                                  .asleep = shm_own_asleep(channel),
                                  .peer = channel->peer,
                                  .deadline_ns = deadline_ns};

    return book_report_warm_up(&instance->book, &channel->book, shm_wait_for(instance, &wait));
}

static hd_status shm_receive_warm_up(struct hd_transport *instance, struct shm_channel *channel,
                                     uint64_t deadline_ns)
{
    BOOK_TRY(shm_await_warm_up(instance, channel, deadline_ns));
    BOOK_TRY(book_check_pattern(&instance->book, &channel->book, shm_warm_up_slot(channel)));
    shm_publish(&channel->words->credit, 1, shm_peer_asleep(channel));
    return HD_OK;
}

static hd_status shm_warm_up(struct hd_transport *instance, uint64_t deadline_ns)
{
    const uint32_t own_count = instance->book.own_count;
    struct shm_channel *channels = instance->channels;

    for (uint32_t i = 0; i < own_count; i++) {
        if (channels[i].book.is_source) {
            book_fill_pattern(&channels[i].book, shm_warm_up_slot(&channels[i]));
            shm_publish(&channels[i].words->arrived, 1, shm_peer_asleep(&channels[i]));
        }
    }
    for (uint32_t i = 0; i < own_count; i++) {
        if (!channels[i].book.is_source) {
            BOOK_TRY(shm_receive_warm_up(instance, &channels[i], deadline_ns));
        }
    }
    for (uint32_t i = 0; i < own_count; i++) {
        if (channels[i].book.is_source) {
            BOOK_TRY(shm_await_warm_up(instance, &channels[i], deadline_ns));
        }
    }
    return HD_OK;
}

static void shm_reset_words(struct hd_transport *instance)
{
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct shm_channel *channel = &instance->channels[i];
        atomic_store(channel->book.is_source ? &channel->words->arrived : &channel->words->credit,
                     0);
    }
    shm_arena_close_descriptor(instance); /* every source has mapped it by now */
}

hd_status shm_open_all(const struct hd_transport_setup *setup, struct hd_transport **out)
{
    static const struct book_sizes sizes = {.instance_bytes = sizeof(struct hd_transport),
                                            .channel_bytes = sizeof(struct shm_channel),
                                            .peer_bytes = sizeof(struct shm_peer),
                                            .is_in_place = true};
    static const struct book_steps steps = {.magic = SHM_MAGIC,
                                            .card_bytes = sizeof(struct shm_card),
                                            .make = shm_make,
                                            .connect = shm_connect_all,
                                            .warm_up = shm_warm_up,
                                            .reset = shm_reset_words,
                                            .close = shm_close_all};
    struct hd_transport *instance = book_create(setup, "shm", &sizes);

    if (instance == NULL) {
        return HD_NO_MEMORY;
    }
    instance->channels = instance->book.own_channels;
    instance->peers = instance->book.peers;
    instance->descriptor = -1;
    return book_open(instance, setup, &steps, out);
}
