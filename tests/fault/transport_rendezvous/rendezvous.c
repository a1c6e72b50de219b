/*
 * A transport between processes of a node that is strictly rendezvous: nothing moves before both
 * ranks have posted it and come to it, a rank moves the transfers that it has posted one after
 * another, in that order, and nothing is buffered between a send slot and a receive slot.  Where
 * two ranks post in orders that do not fit, it stands still for ever, as the libraries that it
 * stands for do.
 *
 *   source                        memfd of the target                          target
 *   queue  a | b | c              offers: what its group receives     queue  b | a
 *          ^ head: a sends            ^ looked up                            ^ head: b receives
 *   mover  is a among them?  ----/    slot: copied to, then arrived + 1      mover
 *
 * Each rank has a thread, its mover, that looks at the head of its queue and sleeps on its bell;
 * peers ring it.  Posts of a group (law 7) come to the head together, and move in any order.
 */
#include "rendezvous.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* --- errors ------------------------------------------------------------------------------ */

hd_status meet_fail(struct hd_transport *instance, hd_status status, uint32_t rank,
                    const char *format, ...)
{
    const struct hd_host *host = instance->setup->host;
    int none = HD_OK;
    char text[256];
    va_list arguments;

    if (atomic_compare_exchange_strong(&instance->failed, &none, status)) {
        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        const struct hd_error error = {sizeof error, status, rank, MEET_NOBODY, 0, text};
        host->fail(host->context, &error);
    }
    return atomic_load(&instance->failed);
}

static hd_status take_turn(struct hd_transport *instance, const struct hd_message *message,
                           int is_in_turn)
{
    const hd_status failed = atomic_load(&instance->failed);

    if (failed < 0 || is_in_turn) {
        return failed;
    }
    return meet_fail(instance, HD_INVALID, MEET_NOBODY,
                     "channel %u: a call for message %llu out of turn", message->channel,
                     (unsigned long long)message->sequence);
}

/* --- the contract ------------------------------------------------------------------------ */

static void *slot(struct hd_transport *instance, const struct hd_message *message)
{
    const struct lane *lane = &instance->lanes[message->channel];
    return meet_is_source(instance, message) ? meet_send_slot(lane, message->sequence)
                                             : meet_receive_slot(lane, message->sequence);
}

/* Is the send slot free, or free of this very message? */
static int is_free(const struct lane *lane, uint64_t sequence)
{
    return sequence < lane->posted_count ? sequence < lane->moved_count
                                         : sequence < lane->moved_count + lane->channel->send_depth;
}

static hd_status reserve(struct hd_transport *instance, const struct hd_message *message)
{
    struct lane *lane = &instance->lanes[message->channel];

    pthread_mutex_lock(&instance->lock);
    hd_status status = take_turn(instance, message, message->sequence == lane->reserved_count);
    if (status == HD_OK && !is_free(lane, message->sequence)) {
        status = HD_BUSY;
    }
    lane->reserved_count += status == HD_OK;
    pthread_mutex_unlock(&instance->lock);
    return status;
}

static hd_status post(struct hd_transport *instance, const struct hd_message *message,
                      int is_in_turn)
{
    struct lane *lane = &instance->lanes[message->channel];
    const hd_status status =
        take_turn(instance, message, is_in_turn && message->sequence == lane->posted_count);

    if (status == HD_OK) {
        lane->posted_count++;
        meet_enqueue(instance, message);
    }
    pthread_mutex_unlock(&instance->lock);
    return status;
}

static hd_status post_send(struct hd_transport *instance, const struct hd_message *message,
                           void *stream)
{
    pthread_mutex_lock(&instance->lock);
    return post(instance, message,
                stream == NULL &&
                    message->sequence < instance->lanes[message->channel].reserved_count);
}

static hd_status post_recv(struct hd_transport *instance, const struct hd_message *message)
{
    const struct lane *lane = &instance->lanes[message->channel];

    pthread_mutex_lock(&instance->lock);
    return post(instance, message,
                lane->posted_count < lane->released_count + lane->channel->depth);
}

/* Under the lock. */
static hd_status look(struct hd_transport *instance, const struct hd_message *message)
{
    struct lane *lane = &instance->lanes[message->channel];
    const uint64_t sequence = message->sequence;

    if (meet_is_source(instance, message)) {
        const hd_status status = take_turn(instance, message, sequence <= lane->reserved_count);
        return status != HD_OK || is_free(lane, sequence) ? status : HD_IN_PROGRESS;
    }
    const hd_status status =
        take_turn(instance, message,
                  sequence >= lane->released_count && sequence < lane->posted_count &&
                      sequence <= lane->read_count);
    if (status != HD_OK || sequence >= lane->moved_count) {
        return status != HD_OK ? status : HD_IN_PROGRESS;
    }
    lane->read_count += sequence == lane->read_count;
    return HD_OK;
}

static hd_status test(struct hd_transport *instance, const struct hd_message *message)
{
    pthread_mutex_lock(&instance->lock);
    const hd_status status = look(instance, message);
    pthread_mutex_unlock(&instance->lock);
    return status;
}

/* Under the lock, which it lets go: until something has moved, or the deadline at the latest. */
static int sleep_until(struct hd_transport *instance, uint64_t deadline_ns)
{
    const struct hd_host *host = instance->setup->host;
    const uint64_t now_ns = host->now_ns(host->context);
    struct timespec until;

    if (now_ns >= deadline_ns) {
        return 0;
    }
    const uint64_t left_ns =
        deadline_ns - now_ns < MEET_NAP_NS ? deadline_ns - now_ns : MEET_NAP_NS;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const uint64_t end_ns = (uint64_t)until.tv_nsec + left_ns;
    until.tv_sec += (time_t)(end_ns / 1000000000u);
    until.tv_nsec = (long)(end_ns % 1000000000u);
    pthread_cond_timedwait(&instance->moved, &instance->lock, &until);
    return 1;
}

static hd_status wait(struct hd_transport *instance, const struct hd_message *message, void *stream,
                      uint64_t deadline_ns)
{
    const struct hd_channel *channel = instance->lanes[message->channel].channel;
    const uint32_t peer = meet_is_source(instance, message) ? channel->target : channel->source;

    pthread_mutex_lock(&instance->lock);
    hd_status status = take_turn(instance, message, stream == NULL);
    if (status == HD_OK) {
        status = look(instance, message);
    }
    while (status == HD_IN_PROGRESS) {
        if (!sleep_until(instance, deadline_ns)) {
            status = meet_fail(instance, HD_TIMEOUT, peer,
                               "channel %u: rank %u has not come to message %llu by the deadline",
                               message->channel, peer, (unsigned long long)message->sequence);
        } else {
            status = look(instance, message);
        }
    }
    pthread_mutex_unlock(&instance->lock);
    return status;
}

static hd_status release(struct hd_transport *instance, const struct hd_message *message,
                         void *stream)
{
    struct lane *lane = &instance->lanes[message->channel];

    pthread_mutex_lock(&instance->lock);
    const hd_status status =
        take_turn(instance, message,
                  stream == NULL && message->sequence == lane->released_count &&
                      message->sequence < lane->read_count);
    lane->released_count += status == HD_OK;
    pthread_mutex_unlock(&instance->lock);
    return status;
}

static void abort_waits(struct hd_transport *instance, const char *reason)
{
    int none = HD_OK;

    (void)reason;
    atomic_compare_exchange_strong(&instance->failed, &none, HD_ABORTED);
    pthread_cond_broadcast(&instance->moved); /* who misses it wakes by itself, 20 ms later */
}

/* All sends go first; then no copy of this rank's is under way any more. */
static hd_status quiesce(struct hd_transport *instance, uint64_t deadline_ns)
{
    const struct hd_transport_setup *setup = instance->setup;
    int is_in_time = 1;

    pthread_mutex_lock(&instance->lock);
    for (uint32_t i = 0; i < setup->channel_count; i++) {
        const struct lane *lane = &instance->lanes[i];
        const int sends = setup->channels[i]->source == setup->host->rank;
        while (sends && is_in_time && atomic_load(&instance->failed) == HD_OK &&
               lane->moved_count < lane->posted_count) {
            is_in_time = sleep_until(instance, deadline_ns);
        }
    }
    pthread_mutex_unlock(&instance->lock);
    meet_stop_mover(instance);
    atomic_store(&meet_own_words(instance)->is_resting, 1);
    pthread_mutex_lock(&instance->lock);
    for (uint32_t i = 0; i < setup->channel_count; i++) {
        const uint32_t source = setup->channels[i]->source;
        const int receives = setup->channels[i]->target == setup->host->rank;
        while (receives && is_in_time && !atomic_load(&instance->words[source]->is_resting)) {
            is_in_time = sleep_until(instance, deadline_ns);
        }
    }
    pthread_mutex_unlock(&instance->lock);
    return is_in_time ? HD_OK : HD_TIMEOUT;
}

static void stats(struct hd_transport *instance, uint32_t channel, struct hd_channel_stats *out)
{
    struct hd_channel_stats all = {.size = out->size, .lane = "rendezvous"};

    all.finished_count = instance->lanes[channel].moved_count;
    memcpy(out, &all, out->size < sizeof all ? out->size : sizeof all);
}

const struct hd_transport_ops meet_ops = {
    .size = sizeof meet_ops,
    .open = meet_open_all,
    .slot = slot,
    .reserve = reserve,
    .post_send = post_send,
    .post_recv = post_recv,
    .test = test,
    .wait = wait,
    .release = release,
    .abort = abort_waits,
    .quiesce = quiesce,
    .close = meet_close_all,
    .stats = stats,
};

static const struct hd_option options[] = {
    {"does", "nothing", "nothing | ungroup", "which promise it breaks: that groups go as one",
     HD_OPTION_TEXT, 0},
    {"late_us", "0", "0..999999", "how long a transfer takes, at most", HD_OPTION_INTEGER, 0},
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_TRANSPORT),
    .name = "rendezvous",
    .summary = "moves one transfer at a time a rank, once both have come to it",
    .option_count = sizeof options / sizeof options[0],
    .options = options,
    .capabilities =
        HD_TRANSPORT_HOST | HD_TRANSPORT_SEALED | HD_TRANSPORT_NO_RESIDENT | HD_TRANSPORT_SERIAL,
    .ops = &meet_ops,
};
