/*
 * shm/open.c - from channels to mapped, proven memory, and back; the steps are book_open's.
 *
 *   make      the arena of this rank's incoming channels
 *   connect   hold peers, open the outgoing channels
 *   warm up   write all, then verify and credit all, then wait for all credits
 *   reset     each writer sets its words back to 0
 *
 * Nobody waits while somebody waits for it: sends never block here, credits follow
 * arrivals, and all wait in channel order.
 */
#include "shm.h"

#include <stdio.h>

/* --- memory and peers -------------------------------------------------------------------- */

static hd_status shm_make(struct hd_transport *instance, const struct hd_transport_setup *setup,
                          void *card)
{
    const struct book_fault fault = book_own_fault(HD_UNSUPPORTED);
    hd_status status = HD_OK;

    if (setup->memory != HD_MEMORY_HOST) {
        status = book_fail(&instance->book, &fault,
                           "shm carries host memory only; kernels on a device need another "
                           "transport");
    }
    if (status == HD_OK) {
        status = book_check(&instance->book);
    }
    if (status == HD_OK) {
        status = shm_arena_measure(instance);
    }
    if (status == HD_OK) {
        status = shm_arena_make(instance);
    }
    shm_peer_introduce(instance, card);
    return status;
}

static hd_status shm_connect_channel(struct hd_transport *instance, struct shm_channel *channel,
                                     const struct shm_card *cards)
{
    hd_status status = HD_OK;

    channel->peer = &instance->peers[channel->book.peer_rank];
    snprintf(channel->book.carrier, sizeof channel->book.carrier, "shm");
    if (channel->peer->book.pidfd < 0) {
        status = shm_peer_hold(instance, channel->peer, cards);
    }
    if (status != HD_OK || !channel->book.is_source) {
        return status;
    }
    return shm_arena_open(instance, channel, &cards[channel->book.peer_rank]);
}

static hd_status shm_connect_all(struct hd_transport *instance, const void *all_cards,
                                 uint64_t deadline_ns)
{
    const struct hd_host *host = instance->book.host;
    const struct shm_card *cards = all_cards;
    const int is_given = host->option_count > 0 && host->options[0].integer >= 0;
    hd_status status = HD_OK;

    (void)deadline_ns;
    for (uint32_t i = 0; status == HD_OK && i < instance->book.own_count; i++) {
        status = shm_connect_channel(instance, &instance->channels[i], cards);
    }
    instance->spin_ns = is_given ? (uint64_t)host->options[0].integer * 1000
                                 : shm_peer_spin_ns(cards, host->rank, host->rank_count);
    return status;
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
    hd_status status = shm_await_warm_up(instance, channel, deadline_ns);

    if (status == HD_OK) {
        status = book_check_pattern(&instance->book, &channel->book, shm_warm_up_slot(channel));
    }
    if (status == HD_OK) {
        shm_publish(&channel->words->credit, 1, shm_peer_asleep(channel));
    }
    return status;
}

static hd_status shm_warm_up(struct hd_transport *instance, uint64_t deadline_ns)
{
    const uint32_t own_count = instance->book.own_count;
    struct shm_channel *channels = instance->channels;
    hd_status status = HD_OK;

    for (uint32_t i = 0; i < own_count; i++) {
        if (channels[i].book.is_source) {
            book_fill_pattern(&channels[i].book, shm_warm_up_slot(&channels[i]));
            shm_publish(&channels[i].words->arrived, 1, shm_peer_asleep(&channels[i]));
        }
    }
    for (uint32_t i = 0; status == HD_OK && i < own_count; i++) {
        if (!channels[i].book.is_source) {
            status = shm_receive_warm_up(instance, &channels[i], deadline_ns);
        }
    }
    for (uint32_t i = 0; status == HD_OK && i < own_count; i++) {
        if (channels[i].book.is_source) {
            status = shm_await_warm_up(instance, &channels[i], deadline_ns);
        }
    }
    return status;
}

static void shm_reset_words(struct hd_transport *instance)
{
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct shm_channel *channel = &instance->channels[i];
        atomic_store(channel->book.is_source ? &channel->words->arrived : &channel->words->credit,
                     0);
    }
    shm_arena_close_descriptor(instance); /* every source has it mapped by now */
}

hd_status shm_open_all(const struct hd_transport_setup *setup, struct hd_transport **out)
{
    static const struct book_sizes sizes = {.instance_bytes = sizeof(struct hd_transport),
                                            .channel_bytes = sizeof(struct shm_channel),
                                            .peer_bytes = sizeof(struct shm_peer),
                                            .is_in_place = 1};
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
