/*
 * ucx/open.c - from channels to connected, proven channels; the steps are book_open's.
 *
 *   make      memory, worker
 *   connect   an endpoint to each peer
 *   warm up   send all, verify and release all, wait for all credits
 *
 * The warm-up is message 0 of each channel, which it really goes through: the same calls of the mode,
 * with the pattern of sequence UINT64_MAX; then every count goes back to 0.  In a fence nothing
 * moves, so a rank enters it only once everything that it sends has left it.
 */
#include "table.h"

#include <errno.h>
#include <string.h>

/* A look takes 10 ns in shared memory, and over tcp as long as the clock and a yield, 100 and more:
   they come seldom where nobody else wants the core. */
enum { SPIN_ALONE_NS = 100000, SPIN_CROWDED_NS = 20000, LOOKS_ALONE = 1000 };

/* --- what this rank has ------------------------------------------------------------------ */

static hd_status ucx_refuse_setup(struct hd_transport *instance, hd_status status,
                                  const char *reason)
{
    const struct book_fault fault = book_own_fault(status);
    return book_fail(&instance->book, &fault, "%s: %s", instance->book.name, reason);
}

static hd_status ucx_check_setup(struct hd_transport *instance,
                                 const struct hd_transport_setup *setup)
{
    if (setup->memory != HD_MEMORY_HOST) {
        return ucx_refuse_setup(instance, HD_UNSUPPORTED,
                                "host memory only; kernels on a device need another transport");
    }
    if (setup->channel_count >= UCX_CHANNEL_STOP) {
        return ucx_refuse_setup(instance, HD_UNSUPPORTED, "a tag numbers 2^20 - 1 channels");
    }
    return book_check(&instance->book);
}

static void ucx_find_peers(struct hd_transport *instance)
{
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ucx_channel *channel = &instance->channels[i];
        channel->peer = &instance->peers[channel->book.peer_rank];
        channel->peer->is_mine = 1;
    }
}

/* One flight for every slot of this rank. */
static hd_status ucx_take_flights(struct hd_transport *instance)
{
    const struct hd_host *host = instance->book.host;
    uint64_t count = 0;

    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        count += instance->channels[i].book.slot_count;
    }
    instance->flights = host->alloc(host->context, (count + 1) * sizeof *instance->flights, 64,
                                    instance->book.name);
    if (instance->flights == NULL) {
        return ucx_refuse_setup(instance, HD_NO_MEMORY, "no memory for the books of the slots");
    }
    count = 0;
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ucx_channel *channel = &instance->channels[i];
        channel->flights = &instance->flights[count];
        count += channel->book.slot_count;
    }
    return HD_OK;
}

static hd_status ucx_make(struct hd_transport *instance, const struct hd_transport_setup *setup,
                          void *own_card)
{
    struct ucx_card *card = own_card;
    hd_status status = ucx_check_setup(instance, setup);

    card->place = book_find_place();
    card->cores = book_find_cores();
    if (status == HD_OK) {
        ucx_find_peers(instance);
        status = ucx_take_flights(instance);
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

/* --- the others -------------------------------------------------------------------------- */

/* UCX needs a keep-alive round to see a death through shared memory; a pidfd says it at once.
   Without one, that and the deadline are left. */
static hd_status ucx_hold(struct hd_transport *instance, struct ucx_peer *peer,
                          const struct ucx_card *card)
{
    const struct book_fault lost = {HD_PEER_LOST, peer->book.rank, BOOK_NONE, 0};

    if (book_hold(&peer->book, card->place.pid) == ESRCH) {
        return book_fail(&instance->book, &lost, "rank %u (process %d) has ended", peer->book.rank,
                         card->place.pid);
    }
    return HD_OK;
}

static hd_status ucx_meet(struct hd_transport *instance, struct ucx_peer *peer,
                          const struct ucx_card *card, int is_here)
{
    instance->may_be_written = instance->mode->writes_remotely; /* until quiesce knows better */
    hd_status status = is_here ? ucx_hold(instance, peer, card) : HD_OK;

    if (status == HD_OK) {
        status = ucx_worker_connect(instance, peer, card);
    }
    return status == HD_OK ? instance->mode->connect(instance, peer, card) : status;
}

/* `sharer_count` ranks, this one included, want the cores that this one may run on. */
static void ucx_choose_spin(struct hd_transport *instance, uint32_t sharer_count,
                            uint32_t core_count)
{
    const struct hd_host *host = instance->book.host;
    const struct hd_option_value *spin =
        host->option_count > UCX_OPTION_SPIN ? &host->options[UCX_OPTION_SPIN] : NULL;

    const int is_alone = sharer_count <= core_count;

    instance->look_count = is_alone ? LOOKS_ALONE : UCX_LOOKS_FEW;
    if (spin != NULL && spin->integer >= 0) {
        instance->spin_ns = (uint64_t)spin->integer * 1000;
    } else {
        instance->spin_ns = is_alone ? SPIN_ALONE_NS : SPIN_CROWDED_NS;
    }
}

/* An endpoint to each that a channel leads to. */
static hd_status ucx_connect_all(struct hd_transport *instance, const void *all_cards,
                                 uint64_t deadline_ns)
{
    const struct hd_host *host = instance->book.host;
    const struct ucx_card *cards = all_cards, *own = &cards[host->rank];
    uint32_t sharer_count = 0;
    hd_status status = HD_OK;

    (void)deadline_ns;
    for (uint32_t rank = 0; status == HD_OK && rank < host->rank_count; rank++) {
        const int is_here = book_is_in_reach(&own->place, &cards[rank].place);
        sharer_count += (uint32_t)(is_here && book_share_core(&own->cores, &cards[rank].cores));
        if (instance->peers[rank].is_mine) {
            status = ucx_meet(instance, &instance->peers[rank], &cards[rank], is_here);
        }
    }
    ucx_choose_spin(instance, sharer_count, book_core_count(&own->cores));
    return status;
}

/* --- warm-up ----------------------------------------------------------------------------- */

static hd_status ucx_begin_warm_up(struct hd_transport *instance, struct ucx_channel *channel)
{
    channel->book.posted_count = 1;
    if (!channel->book.is_source) {
        return instance->mode->receive(instance, channel);
    }
    book_fill_pattern(&channel->book, channel->slots);
    return instance->mode->send(instance, channel);
}

static hd_status ucx_verify_warm_up(struct hd_transport *instance, struct ucx_channel *channel)
{
    const hd_status status = book_check_pattern(&instance->book, &channel->book, channel->slots);

    if (status != HD_OK) {
        return status;
    }
    channel->book.released_count = 1;
    return instance->mode->release(instance, channel);
}

static int ucx_is_settled(struct hd_transport *instance, const struct ucx_wait *wait)
{
    return instance->mode->is_settled(wait->channel);
}

static hd_status ucx_await_warm_up(struct hd_transport *instance, struct ucx_channel *channel,
                                   int (*is_over)(struct hd_transport *, const struct ucx_wait *),
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
    hd_status status = HD_OK;

    for (uint32_t i = 0; status >= 0 && i < instance->book.own_count; i++) {
        status = ucx_begin_warm_up(instance, &instance->channels[i]);
    }
    status = status > 0 ? HD_OK : status;
    for (uint32_t i = 0; status == HD_OK && i < instance->book.own_count; i++) {
        struct ucx_channel *channel = &instance->channels[i];
        if (!channel->book.is_source) {
            status = ucx_await_warm_up(instance, channel, NULL, deadline_ns);
            status = status == HD_OK ? ucx_verify_warm_up(instance, channel) : status;
        }
    }
    for (uint32_t i = 0; status == HD_OK && i < instance->book.own_count; i++) {
        status = ucx_await_warm_up(instance, &instance->channels[i], ucx_is_settled, deadline_ns);
    }
    return status;
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
    instance->is_open = 1;
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
