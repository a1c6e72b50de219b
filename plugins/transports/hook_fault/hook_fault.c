/*
 * hook_fault/hook_fault.c - wraps any transport and injects faults.
 *
 *   core  -> post_send(k) -> | held until due | -> inner's post_send(k), in sequence
 *   core  -> reserve(k)   -> HD_BUSY at random, else inner's
 *   core  -> other calls  -> first passes what is due, then inner's
 *   wire  -> what becomes due while the core computes -> inner's post_send(k)
 *
 * Harmless faults change when a message goes, but no bit of it: delay, limited bandwidth, storms of
 * HD_BUSY, and messages of other channels that go first.  `fault` strikes the chosen message of the
 * chosen channel, at its source:
 *
 *   drop       it and all later messages of its channel never go  the target: TIMEOUT
 *   duplicate  the next message has its content again              the target's seal: PROTOCOL
 *   flip       flips one bit of the payload                        with debug.checksum: PROTOCOL
 *   flip_seal  flips one bit of the seal                           the target's seal: PROTOCOL
 *   partial    overwrites half of it, and kills the rank           the target: PEER_LOST
 *   kill_self, kill_peer, stop_self, stop_peer                     PEER_LOST, TIMEOUT
 *
 * All random numbers depend on the seed, the channel and the sequence, never on the time.
 */
#include "hook.h"

#include <string.h>
#include <time.h>

enum { NAP_NS = 50000, OVERTAKE_NS = 2000000 };

static const struct hd_option hook_fault_options[] = {
    {"fault", "none",
     "none | drop | duplicate | flip | flip_seal | partial | kill_self | kill_peer | stop_self | "
     "stop_peer",
     "The fault that strikes the message of channel and sequence, at its source.", HD_OPTION_TEXT,
     0},
    {"channel", "-1", "-1..1048575", "The channel that is struck; -1: every channel.",
     HD_OPTION_INTEGER, 0},
    {"sequence", "-1", "-1..1000000000000", "The message that is struck; -1: every message.",
     HD_OPTION_INTEGER, 0},
    {"delay_us", "0", "0..10000000",
     "Microseconds that a chosen message is held, on average: 0 to twice as many.",
     HD_OPTION_INTEGER, 0},
    {"bandwidth_mb", "0", "0..1000000",
     "Bandwidth of a chosen channel in 1e6 bytes a second; 0: unlimited.", HD_OPTION_INTEGER, 0},
    {"busy_percent", "0", "0..99",
     "Percentage of the reserves of a chosen channel that get HD_BUSY.", HD_OPTION_INTEGER, 0},
    {"reorder_percent", "0", "0..100",
     "Percentage of chosen messages that let a message of another channel go first, if one is "
     "posted within 2 ms.",
     HD_OPTION_INTEGER, 0},
    {"seed", "1", "0..1000000000000", "Seed of all random numbers.", HD_OPTION_INTEGER, 0},
};

/* --- held messages ----------------------------------------------------------------------- */

static bool hook_fault_has_chance(const struct hd_transport *hook, const struct hd_message *message,
                                  enum option percent)
{
    return hook_draw(hook, message->channel, message->sequence, (uint32_t)percent % 4) % 100 <
           (uint64_t)hook->values[percent];
}

/* When the message that has just been posted enters the wire, and when it is due. */
static struct held hook_fault_held_for(struct hd_transport *hook, const struct hd_message *message)
{
    struct hook_channel *channel = &hook->channels[message->channel];
    const uint64_t delay_us = (uint64_t)hook->values[DELAY_US];
    const uint64_t bandwidth_mb = (uint64_t)hook->values[BANDWIDTH_MB];
    const uint64_t bytes = hook_shape(hook, message->channel)->bytes;
    const uint64_t now_ns = hook_now_ns(hook);
    struct held held = {now_ns, now_ns};

    if (!hook_is_chosen(hook, message->channel, message->sequence)) {
        return (struct held){now_ns, 0};
    }
    if (strcmp(hook->fault, "drop") == 0) {
        return (struct held){now_ns, UINT64_MAX};
    }
    if (delay_us > 0) {
        held.due_ns +=
            hook_draw(hook, message->channel, message->sequence, 0) % (2 * delay_us * 1000 + 1);
    }
    if (bandwidth_mb > 0) {
        held.begin_ns = held.due_ns > channel->wire_free_ns ? held.due_ns : channel->wire_free_ns;
        channel->wire_free_ns = held.begin_ns + bytes * 1000 / bandwidth_mb;
        held.due_ns = channel->wire_free_ns;
    }
    if (hook->values[REORDER_PERCENT] > 0 &&
        hook_fault_has_chance(hook, message, REORDER_PERCENT)) {
        channel->yields_to = hook->passed_count + 1;
        held.due_ns += OVERTAKE_NS;
    }
    return held;
}

static bool hook_fault_is_held(const struct hook_channel *channel)
{
    return channel->passed_count < channel->posted_count;
}

/* The message that goes next; the channel must hold one. */
static const struct held *hook_fault_next_of(const struct hd_transport *hook, uint32_t number)
{
    const struct hook_channel *channel = &hook->channels[number];
    return &channel->held[channel->passed_count % hook_shape(hook, number)->depth];
}

/* The time on the slow wire is part of the transfer; inner reports its end. */
static void hook_fault_report(const struct hd_transport *hook, const struct hd_message *message)
{
    const struct hd_transfer transfer = {.size = sizeof transfer,
                                         .channel = message->channel,
                                         .sequence = message->sequence,
                                         .begin_ns =
                                             hook_fault_next_of(hook, message->channel)->begin_ns};

    hook->host->trace_transfer(hook->host->context, &transfer);
}

/* HD_OK if a message of the channel has been passed to inner, else HD_IN_PROGRESS. */
static hd_status hook_fault_pass_one(struct hd_transport *hook, uint32_t number, bool forced)
{
    struct hook_channel *channel = &hook->channels[number];
    const struct hd_message message = {.sequence = channel->passed_count, .channel = number};
    const uint64_t due_ns =
        hook_fault_is_held(channel) ? hook_fault_next_of(hook, number)->due_ns : 0;
    const bool was_overtaken = channel->yields_to > 0 && hook->passed_count >= channel->yields_to;

    if (!hook_fault_is_held(channel) || due_ns == UINT64_MAX ||
        (!forced && !was_overtaken && due_ns > hook_now_ns(hook))) {
        return HD_IN_PROGRESS;
    }
    channel->yields_to = 0;
    hook_damage(hook, &message);
    hook_fault_report(hook, &message);
    const hd_status status = hook->inner_ops->post_send(hook->inner, &message, NULL);
    channel->passed_count++;
    hook->passed_count++;
    return status;
}

hd_status hook_pass_due(struct hd_transport *hook, bool forced)
{
    hd_status result = HD_IN_PROGRESS;

    for (uint32_t i = 0; i < hook->setup.channel_count; i++) {
        hd_status status = HD_OK;
        while (hook->channels[i].held != NULL && status == HD_OK) {
            status = hook_fault_pass_one(hook, i, forced);
            if (status < 0) {
                return status;
            }
            result = status == HD_OK ? HD_OK : result;
        }
    }
    return result;
}

uint64_t hook_next_due_ns(const struct hd_transport *hook)
{
    uint64_t next_ns = UINT64_MAX;

    for (uint32_t i = 0; i < hook->setup.channel_count; i++) {
        const struct hook_channel *channel = &hook->channels[i];
        if (channel->held != NULL && hook_fault_is_held(channel) &&
            hook_fault_next_of(hook, i)->due_ns < next_ns) {
            next_ns = hook_fault_next_of(hook, i)->due_ns;
        }
    }
    return next_ns;
}

/* Whether a held message will become due. */
static bool hook_fault_holds_any(const struct hd_transport *hook)
{
    return hook_next_due_ns(hook) != UINT64_MAX;
}

/* --- the contract ------------------------------------------------------------------------ */

static void *hook_fault_slot(struct hd_transport *hook, const struct hd_message *message)
{
    return hook->inner_ops->slot(hook->inner, message);
}

static bool hook_fault_is_own(const struct hd_transport *hook, const struct hd_message *message)
{
    return message->channel < hook->setup.channel_count &&
           hook->channels[message->channel].held != NULL;
}

static hd_status hook_fault_reserve_locked(struct hd_transport *hook,
                                           const struct hd_message *message)
{
    const hd_status passed = hook_pass_due(hook, false);

    if (passed < 0 || !hook_fault_is_own(hook, message)) {
        return passed < 0 ? passed : hook->inner_ops->reserve(hook->inner, message);
    }
    struct hook_channel *channel = &hook->channels[message->channel];
    const uint64_t held_count = channel->posted_count - channel->passed_count;
    const uint64_t percent = (uint64_t)hook->values[BUSY_PERCENT];
    const bool is_stormy =
        percent > 0 && hook_is_chosen(hook, message->channel, message->sequence) &&
        hook_draw(hook, message->channel, channel->asked_count++, 1) % 100 < percent;
    if (is_stormy || held_count >= hook_shape(hook, message->channel)->depth) {
        atomic_fetch_add_explicit(&channel->busy_count, 1, memory_order_relaxed);
        return HD_BUSY;
    }
    return hook->inner_ops->reserve(hook->inner, message);
}

static hd_status hook_fault_post_send_locked(struct hd_transport *hook,
                                             const struct hd_message *message, void *stream)
{
    const bool is_mine = hook_fault_is_own(hook, message) && stream == NULL;

    if (!is_mine || message->sequence != hook->channels[message->channel].posted_count) {
        const hd_status passed = hook_pass_due(hook, true); /* inner refuses a call out of order */
        return passed < 0 ? passed : hook->inner_ops->post_send(hook->inner, message, stream);
    }
    struct hook_channel *channel = &hook->channels[message->channel];
    hook_signal(hook, message);
    channel->held[message->sequence % hook_shape(hook, message->channel)->depth] =
        hook_fault_held_for(hook, message);
    channel->posted_count++;
    pthread_cond_signal(&hook->news);
    const hd_status passed = hook_pass_due(hook, false);
    return passed < 0 ? passed : HD_OK;
}

static hd_status hook_fault_post_recv_locked(struct hd_transport *hook,
                                             const struct hd_message *message)
{
    const hd_status passed = hook_pass_due(hook, false);
    return passed < 0 ? passed : hook->inner_ops->post_recv(hook->inner, message);
}

static hd_status hook_fault_test_locked(struct hd_transport *hook, const struct hd_message *message)
{
    const hd_status passed = hook_pass_due(hook, false);

    if (passed < 0) {
        return passed;
    }
    if (hook_fault_is_own(hook, message) &&
        message->sequence >= hook->channels[message->channel].passed_count &&
        message->sequence < hook->channels[message->channel].posted_count) {
        return HD_IN_PROGRESS; /* the message is held: inner does not have it yet */
    }
    return hook->inner_ops->test(hook->inner, message);
}

static hd_status hook_fault_progress_locked(struct hd_transport *hook)
{
    const hd_status passed = hook_pass_due(hook, false);

    if (passed < 0 || hook->inner_ops->progress == NULL) {
        return passed;
    }
    const hd_status moved = hook->inner_ops->progress(hook->inner);
    return moved == HD_IN_PROGRESS ? passed : moved;
}

/* The wire's thread may pass messages meanwhile. */
static void hook_fault_nap(struct hd_transport *hook)
{
    const struct timespec duration = {0, NAP_NS};

    pthread_mutex_unlock(&hook->lock);
    nanosleep(&duration, NULL);
    pthread_mutex_lock(&hook->lock);
}

/*
 * Waits until no message is held or the message is there.  A wait of inner would delay what becomes
 * due, and a wait of inner with a nearer deadline would fail permanently.
 */
static hd_status hook_fault_wait_while_held(struct hd_transport *hook,
                                            const struct hd_message *message, uint64_t deadline_ns)
{
    hd_status status = hook_fault_test_locked(hook, message);

    while (status == HD_IN_PROGRESS && hook_fault_holds_any(hook) &&
           hook_now_ns(hook) < deadline_ns) {
        hook_fault_nap(hook);
        status = hook_fault_progress_locked(hook);
        status = status < 0 ? status : hook_fault_test_locked(hook, message);
    }
    return status;
}

static hd_status hook_fault_wait_locked(struct hd_transport *hook, const struct hd_message *message,
                                        void *stream, uint64_t deadline_ns)
{
    hd_status status = HD_IN_PROGRESS;

    if (stream == NULL) {
        status = hook_fault_wait_while_held(hook, message, deadline_ns);
    }
    while (status == HD_IN_PROGRESS && hook->inner_ops->wait == NULL &&
           hook_now_ns(hook) < deadline_ns) {
        hook_fault_nap(hook);
        status = hook_fault_progress_locked(hook);
        status = status < 0 ? status : hook_fault_test_locked(hook, message);
    }
    if (status != HD_IN_PROGRESS || hook->inner_ops->wait == NULL) {
        return status == HD_IN_PROGRESS ? HD_TIMEOUT : status;
    }
    return hook->inner_ops->wait(hook->inner, message, stream, deadline_ns);
}

static hd_status hook_fault_release_locked(struct hd_transport *hook,
                                           const struct hd_message *message, void *stream)
{
    const hd_status passed = hook_pass_due(hook, false);
    return passed < 0 ? passed : hook->inner_ops->release(hook->inner, message, stream);
}

static void hook_fault_abort_waits(struct hd_transport *hook, const char *reason)
{
    hook->inner_ops->abort(hook->inner, reason);
}

static hd_status hook_fault_quiesce_locked(struct hd_transport *hook, uint64_t deadline_ns)
{
    hd_status status = HD_OK;

    while (status >= 0 && hook_fault_holds_any(hook) && hook_now_ns(hook) < deadline_ns) {
        hook_fault_nap(hook);
        status = hook_fault_progress_locked(hook);
    }
    return hook->inner_ops->quiesce == NULL ? HD_OK
                                            : hook->inner_ops->quiesce(hook->inner, deadline_ns);
}

static void hook_fault_close_both(struct hd_transport *hook, uint64_t deadline_ns)
{
    if (hook != NULL) {
        hook_stop_wire(hook);
        hook->inner_ops->close(hook->inner, deadline_ns);
        hook_free(hook);
    }
}

static void hook_fault_stats(struct hd_transport *hook, uint32_t number,
                             struct hd_channel_stats *out)
{
    const uint32_t size = out->size;
    struct hd_channel_stats all = {.size = sizeof all};

    if (hook->inner_ops->stats != NULL) {
        hook->inner_ops->stats(hook->inner, number, &all);
    }
    all.busy_count +=
        atomic_load_explicit(&hook->channels[number].busy_count, memory_order_relaxed);
    all.size = size;
    memcpy(out, &all, size < sizeof all ? size : sizeof all);
}

/* --- the same calls, under the lock ------------------------------------------------------- */

#define HOOK_LOCKED(name, parameters, arguments)          \
    static hd_status name parameters                      \
    {                                                     \
        pthread_mutex_lock(&hook->lock);                  \
        const hd_status status = name##_locked arguments; \
        pthread_mutex_unlock(&hook->lock);                \
        return status;                                    \
    }

/* clang-format off */
HOOK_LOCKED(hook_fault_reserve, (struct hd_transport *hook, const struct hd_message *message),
            (hook, message))
HOOK_LOCKED(hook_fault_post_send, (struct hd_transport *hook, const struct hd_message *message,
                                   void *stream), (hook, message, stream))
HOOK_LOCKED(hook_fault_post_recv, (struct hd_transport *hook, const struct hd_message *message),
            (hook, message))
HOOK_LOCKED(hook_fault_test, (struct hd_transport *hook, const struct hd_message *message),
            (hook, message))
HOOK_LOCKED(hook_fault_wait, (struct hd_transport *hook, const struct hd_message *message,
                              void *stream, uint64_t deadline_ns),
            (hook, message, stream, deadline_ns))
HOOK_LOCKED(hook_fault_release, (struct hd_transport *hook, const struct hd_message *message,
                                 void *stream), (hook, message, stream))
HOOK_LOCKED(hook_fault_progress, (struct hd_transport *hook), (hook))
HOOK_LOCKED(hook_fault_quiesce, (struct hd_transport *hook, uint64_t deadline_ns),
            (hook, deadline_ns))
/* clang-format on */

static const struct hd_transport_ops hook_fault_ops = {
    .size = sizeof hook_fault_ops,
    .open = hook_open,
    .slot = hook_fault_slot,
    .reserve = hook_fault_reserve,
    .post_send = hook_fault_post_send,
    .post_recv = hook_fault_post_recv,
    .test = hook_fault_test,
    .wait = hook_fault_wait,
    .release = hook_fault_release,
    .progress = hook_fault_progress,
    .abort = hook_fault_abort_waits,
    .quiesce = hook_fault_quiesce,
    .close = hook_fault_close_both,
    .stats = hook_fault_stats,
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_TRANSPORT),
    .option_count = sizeof hook_fault_options / sizeof hook_fault_options[0],
    .options = hook_fault_options,
    .capabilities = HD_TRANSPORT_HOST | HD_TRANSPORT_HOOK,
    .name = "hook_fault",
    .summary = "wraps the transport of transport.inner, and delays, drops, damages or kills",
    .vendor = "heddle",
    .version = "0.1.0",
    .licence = "Apache-2.0",
    .source = "heddle's own, after the hook providers of libfabric",
    .ops = &hook_fault_ops,
};
