/*
 * ucx/open.c - from channels to connected and tested endpoints; book_open calls these steps.
 *
 *   make      memory, worker
 *   connect   an endpoint to each peer
 *   warm up   send all, verify and release all, wait for all credits
 *
 * The warm-up is message 0 of each channel, sent by the mode's usual calls, with the pattern of
 * sequence UINT64_MAX; then every count is reset to 0.  UCX does not move during a fence, so a rank
 * enters the fence only when everything that it sends has left it.
 */
#include "table.h"

#include <errno.h>
#include <string.h>

/* A look takes 10 ns in shared memory.  Over tcp it takes as long as reading the clock and a yield,
   100 ns and more, so both are done seldom if no other rank wants the core. */
enum { SPIN_ALONE_NS = 100000, SPIN_CROWDED_NS = 20000, LOOKS_ALONE = 1000 };

/* --- make -------------------------------------------------------------------------------- */

static hd_status ucx_refuse_setup(struct hd_transport *instance, hd_status status,
                                  const char *reason)
{
    return book_fail(&instance->book, book_own_fault(status), "%s: %s", instance->book.name,
                     reason);
}

static hd_status ucx_check_setup(struct hd_transport *instance,
                                 const struct hd_transport_setup *setup)
{
    if (setup->memory != HD_MEMORY_HOST) {
        return ucx_refuse_setup(instance, HD_UNSUPPORTED,
                                "carries host memory only: choose another transport for kernels "
                                "on a device");
    }
    if (setup->channel_count >= UCX_CHANNEL_STOP) {
        return ucx_refuse_setup(instance, HD_UNSUPPORTED,
                                "the plan must have at most 2^20 - 1 channels");
    }
    return book_check(&instance->book);
}

/* Finds the peer of each channel, and allocates one flight for every slot of this rank. */
static hd_status ucx_fill_channels(struct hd_transport *instance)
{
    const struct hd_host *host = instance->book.host;
    uint64_t count = 0;

    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        count += instance->channels[i].book.slot_count;
    }
    instance->flights = host->alloc(host->context, (count + 1) * sizeof *instance->flights, 64,
                                    instance->book.name);
    if (instance->flights == NULL) {
        return ucx_refuse_setup(instance, HD_NO_MEMORY, "cannot allocate the state of its slots");
    }
    struct ucx_flight *next = instance->flights;
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ucx_channel *channel = &instance->channels[i];
        channel->peer = &instance->peers[channel->book.peer_rank];
        channel->peer->is_mine = true;
        channel->flights = next;
        next += channel->book.slot_count;
    }
    return HD_OK;
}

static hd_status ucx_make(struct hd_transport *instance, const struct hd_transport_setup *setup,
                          void *card)
{
    BOOK_TRY(ucx_check_setup(instance, setup));
    BOOK_TRY(ucx_fill_channels(instance));
    BOOK_TRY(ucx_worker_open(instance));
    BOOK_TRY(instance->mode->prepare(instance, card));
    return ucx_worker_introduce(instance, card);
}

/* --- connect ----------------------------------------------------------------------------- */

/* UCX needs a keep-alive round to notice a death through shared memory; a pidfd shows it at once.
   If no pidfd can be opened, the keep-alive and the deadline remain. */
static hd_status ucx_hold(struct hd_transport *instance, struct ucx_peer *peer,
                          const struct ucx_card *card)
{
    const int32_t pid = card->head.place.pid;

    if (book_hold(&peer->book, pid) == ESRCH) {
        return book_fail(&instance->book, book_rank_fault(HD_PEER_LOST, peer->book.rank),
                         "rank %u (process %d) has ended", peer->book.rank, pid);
    }
    return HD_OK;
}

static hd_status ucx_meet(struct hd_transport *instance, struct ucx_peer *peer,
                          const struct ucx_card *cards)
{
    const struct ucx_card *card = &cards[peer->book.rank];
    const struct ucx_card *own = &cards[instance->book.host->rank];

    instance->may_be_written = instance->mode->writes_remotely; /* until quiesce decides */
    if (book_is_in_reach(&own->head.place, &card->head.place)) {
        BOOK_TRY(ucx_hold(instance, peer, card));
    }
    BOOK_TRY(ucx_worker_connect(instance, peer, card));
    return instance->mode->connect != NULL ? instance->mode->connect(instance, peer, card) : HD_OK;
}

static void ucx_choose_spin(struct hd_transport *instance, const struct ucx_card *cards)
{
    const int64_t spin_us = book_option(&instance->book, UCX_OPTION_SPIN, -1);
    const bool is_crowded = book_is_crowded(&instance->book, cards, sizeof *cards);

    instance->look_count = is_crowded ? UCX_LOOKS_FEW : LOOKS_ALONE;
    instance->spin_ns = is_crowded ? SPIN_CROWDED_NS : SPIN_ALONE_NS;
    instance->spin_ns = spin_us >= 0 ? (uint64_t)spin_us * 1000 : instance->spin_ns;
    book_log(&instance->book, "a wait spins for %u us, %u looks at a time, before it sleeps",
             (unsigned)(instance->spin_ns / 1000), instance->look_count);
}

static hd_status ucx_connect_all(struct hd_transport *instance, const void *cards,
                                 uint64_t deadline_ns)
{
    (void)deadline_ns;
    for (uint32_t rank = 0; rank < instance->book.host->rank_count; rank++) {
        if (instance->peers[rank].is_mine) {
            BOOK_TRY(ucx_meet(instance, &instance->peers[rank], cards));
        }
    }
    ucx_choose_spin(instance, cards);
    return HD_OK;
}

/* --- warm-up ----------------------------------------------------------------------------- */

static hd_status ucx_begin_warm_up(struct hd_transport *instance, struct ucx_channel *channel)
{
    const struct ucx_mode *mode = instance->mode;

    channel->book.posted_count = 1;
    if (channel->book.is_source) {
        book_fill_pattern(&channel->book, channel->slots);
        return mode->send(instance, channel);
    }
    return mode->receive != NULL ? mode->receive(instance, channel) : HD_OK;
}

static hd_status ucx_verify_warm_up(struct hd_transport *instance, struct ucx_channel *channel)
{
    BOOK_TRY(book_check_pattern(&instance->book, &channel->book, channel->slots));
    channel->book.released_count = 1;
    return instance->mode->release != NULL ? instance->mode->release(instance, channel) : HD_OK;
}

static bool ucx_is_settled(struct hd_transport *instance, const struct ucx_wait *wait)
{
    return instance->mode->is_settled(wait->channel);
}

static hd_status ucx_await_warm_up(struct hd_transport *instance, struct ucx_channel *channel,
                                   bool (*is_over)(struct hd_transport *, const struct ucx_wait *),
                                   uint64_t deadline_ns)
{
    const struct ucx_wait wait = {.is_over = is_over,
                                  .channel = channel,
                                  .peer = channel->peer,
                                  .goal = 1,
                                  .deadline_ns = deadline_ns};

    return book_report_warm_up(&instance->book, &channel->book, ucx_wait_for(instance, &wait));
}

static hd_status ucx_warm_up(struct hd_transport *instance, uint64_t deadline_ns)
{
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        const hd_status status = ucx_begin_warm_up(instance, &instance->channels[i]);
        if (status < 0) {
            return status;
        }
    }
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ucx_channel *channel = &instance->channels[i];
        if (!channel->book.is_source) {
            BOOK_TRY(ucx_await_warm_up(instance, channel, NULL, deadline_ns));
            BOOK_TRY(ucx_verify_warm_up(instance, channel));
        }
    }
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        BOOK_TRY(ucx_await_warm_up(instance, &instance->channels[i], ucx_is_settled, deadline_ns));
    }
    return HD_OK;
}

static void ucx_reset(struct hd_transport *instance)
{
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ucx_channel *channel = &instance->channels[i];
        instance->mode->reset(channel);
        channel->book.posted_count = 0;
        ucx_set_done(channel, 0);
        channel->book.released_count = 0;
        memset(channel->flights, 0, channel->book.slot_count * sizeof *channel->flights);
    }
    for (uint32_t rank = 0; rank < instance->book.host->rank_count; rank++) {
        if (instance->peers[rank].is_mine) {
            ucx_name_channels(instance, &instance->peers[rank]);
        }
    }
    instance->is_open = true;
}

hd_status ucx_open(const struct hd_transport_setup *setup, const struct ucx_mode *mode,
                   struct hd_transport **out)
{
    static const struct book_sizes sizes = {.instance_bytes = sizeof(struct hd_transport),
                                            .channel_bytes = sizeof(struct ucx_channel),
                                            .peer_bytes = sizeof(struct ucx_peer)};
    static const struct book_steps steps = {.magic = UCX_MAGIC,
                                            .card_bytes = sizeof(struct ucx_card),
                                            .make = ucx_make,
                                            .connect = ucx_connect_all,
                                            .warm_up = ucx_warm_up,
                                            .reset = ucx_reset,
                                            .close = ucx_close};
    struct hd_transport *instance = book_create(setup, mode->name, &sizes);

    if (instance == NULL) {
        return HD_NO_MEMORY;
    }
    instance->mode = mode;
    instance->channels = instance->book.own_channels;
    instance->peers = instance->book.peers;
    return book_open(instance, setup, &steps, out);
}
