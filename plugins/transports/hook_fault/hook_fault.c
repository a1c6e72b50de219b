/*
 * plugins/transports/hook_fault.c - wraps any transport, and breaks it where it is told to.
 *
 *   core  -> post_send(k) -> | held until due | -> inner's post_send(k), in sequence
 *   core  -> reserve(k)   -> HD_BUSY now and then, else inner's
 *   core  -> all else     -> what is due goes first, then inner's
 *
 * Harmless faults change when a message goes, and no bit of it: delay, a limited bandwidth, BUSY
 * storms, messages of other channels that go first.  The one fault of `fault` strikes the chosen
 * message of the chosen channel, at its source:
 *
 *   drop       it, and what is behind it, never goes          the target: TIMEOUT
 *   duplicate  the next message has its content once more     the target's seal: PROTOCOL
 *   flip       one bit of the payload                         with debug.checksum: PROTOCOL
 *   flip_seal  one bit of the seal                            the target's seal: PROTOCOL
 *   partial    half of it is written over, and the rank dies  the target: PEER_LOST
 *   kill_self, kill_peer, stop_self, stop_peer                PEER_LOST, TIMEOUT
 *
 * All chance comes from the seed, the channel and the sequence, never from the time.
 */
#include "hook.h"

#include <string.h>
#include <time.h>

enum { NAP_NS = 50000, OVERTAKE_NS = 2000000 };

static const struct hd_option options[] = {
    {"fault", "none",
     "none | drop | duplicate | flip | flip_seal | partial | kill_self | kill_peer | stop_self | "
     "stop_peer",
     "What strikes the one message of channel and sequence, at its source.", HD_OPTION_TEXT, 0},
    {"channel", "-1", "-1..1048575", "The channel that is struck; -1: all.", HD_OPTION_INTEGER, 0},
    {"sequence", "-1", "-1..1000000000000", "The message that is struck; -1: all.",
     HD_OPTION_INTEGER, 0},
    {"delay_us", "0", "0..10000000", "A chosen message is held for 0 to twice as long.",
     HD_OPTION_INTEGER, 0},
    {"bandwidth_mb", "0", "0..1000000",
     "A chosen channel carries so many 1e6 bytes a second; 0: as many as it can.",
     HD_OPTION_INTEGER, 0},
    {"busy_percent", "0", "0..99", "So many reserves of a chosen channel are told HD_BUSY.",
     HD_OPTION_INTEGER, 0},
    {"reorder_percent", "0", "0..100",
     "So many chosen messages let one of another channel go first, if one comes within 2 ms.",
     HD_OPTION_INTEGER, 0},
    {"seed", "1", "0..1000000000000", "Of all chance.", HD_OPTION_INTEGER, 0},
};

/* --- what is held ------------------------------------------------------------------------ */

static int has_chance(const struct hd_transport *hook, const struct hd_message *message,
                      enum option percent)
{
    return hook_draw(hook, message->channel, message->sequence, (uint32_t)percent % 4) % 100 <
           (uint64_t)hook->values[percent];
}

/* When may the message go that has just been posted? */
static uint64_t due_of(struct hd_transport *hook, const struct hd_message *message)
{
    struct lane *lane = &hook->lanes[message->channel];
    const uint64_t delay_us = (uint64_t)hook->values[DELAY_US];
    const uint64_t bandwidth_mb = (uint64_t)hook->values[BANDWIDTH_MB];
    const uint64_t bytes = hook_channel(hook, message->channel)->bytes;
    uint64_t due_ns = hook_now_ns(hook);

    if (!hook_is_chosen(hook, message->channel, message->sequence)) {
        return 0;
    }
    if (strcmp(hook->fault, "drop") == 0) {
        return UINT64_MAX;
    }
    if (delay_us > 0) {
        due_ns +=
            hook_draw(hook, message->channel, message->sequence, 0) % (2 * delay_us * 1000 + 1);
    }
    if (bandwidth_mb > 0) {
        const uint64_t begin_ns = due_ns > lane->line_free_ns ? due_ns : lane->line_free_ns;
        lane->line_free_ns = begin_ns + bytes * 1000 / bandwidth_mb;
        due_ns = lane->line_free_ns;
    }
    if (hook->values[REORDER_PERCENT] > 0 && has_chance(hook, message, REORDER_PERCENT)) {
        lane->yields_to = hook->passed_count + 1;
        due_ns += OVERTAKE_NS;
    }
    return due_ns;
}

static int is_held(const struct lane *lane)
{
    return lane->passed_count < lane->posted_count;
}

/* HD_OK if a message of the lane went to inner, else HD_IN_PROGRESS. */
static hd_status pass_one(struct hd_transport *hook, uint32_t channel, int forced)
{
    struct lane *lane = &hook->lanes[channel];
    const struct hd_message message = {.sequence = lane->passed_count, .channel = channel};
    const uint64_t due_ns =
        is_held(lane) ? lane->due_ns[message.sequence % hook_channel(hook, channel)->depth] : 0;
    const int was_overtaken = lane->yields_to > 0 && hook->passed_count >= lane->yields_to;

    if (!is_held(lane) || due_ns == UINT64_MAX ||
        (!forced && !was_overtaken && due_ns > hook_now_ns(hook))) {
        return HD_IN_PROGRESS;
    }
    lane->yields_to = 0;
    hook_damage(hook, &message);
    const hd_status status = hook->inner_ops->post_send(hook->inner, &message, NULL);
    lane->passed_count++;
    hook->passed_count++;
    return status;
}

/* Everything that is due, channel by channel; HD_OK if anything went. */
static hd_status pass_due(struct hd_transport *hook, int forced)
{
    hd_status result = HD_IN_PROGRESS;

    for (uint32_t i = 0; i < hook->setup.channel_count; i++) {
        hd_status status = HD_OK;
        while (hook->lanes[i].due_ns != NULL && status == HD_OK) {
            status = pass_one(hook, i, forced);
            if (status < 0) {
                return status;
            }
            result = status == HD_OK ? HD_OK : result;
        }
    }
    return result;
}

/* Is anything held that will go by itself? */
static int holds_any(const struct hd_transport *hook)
{
    for (uint32_t i = 0; i < hook->setup.channel_count; i++) {
        const struct lane *lane = &hook->lanes[i];
        if (lane->due_ns != NULL && is_held(lane) &&
            lane->due_ns[lane->passed_count % hook_channel(hook, i)->depth] != UINT64_MAX) {
            return 1;
        }
    }
    return 0;
}

/* --- the contract ------------------------------------------------------------------------ */

static void *slot(struct hd_transport *hook, const struct hd_message *message)
{
    return hook->inner_ops->slot(hook->inner, message);
}

static int is_own(const struct hd_transport *hook, const struct hd_message *message)
{
    return message->channel < hook->setup.channel_count &&
           hook->lanes[message->channel].due_ns != NULL;
}

static hd_status reserve(struct hd_transport *hook, const struct hd_message *message)
{
    const hd_status passed = pass_due(hook, 0);

    if (passed < 0 || !is_own(hook, message)) {
        return passed < 0 ? passed : hook->inner_ops->reserve(hook->inner, message);
    }
    struct lane *lane = &hook->lanes[message->channel];
    const uint64_t held_count = lane->posted_count - lane->passed_count;
    const uint64_t percent = (uint64_t)hook->values[BUSY_PERCENT];
    const int is_stormy = percent > 0 &&
                          hook_is_chosen(hook, message->channel, message->sequence) &&
                          hook_draw(hook, message->channel, lane->asked_count++, 1) % 100 < percent;
    if (is_stormy || held_count >= hook_channel(hook, message->channel)->depth) {
        atomic_fetch_add_explicit(&lane->busy_count, 1, memory_order_relaxed);
        return HD_BUSY;
    }
    return hook->inner_ops->reserve(hook->inner, message);
}

static hd_status post_send(struct hd_transport *hook, const struct hd_message *message,
                           void *stream)
{
    const int is_mine = is_own(hook, message) && stream == NULL;

    if (!is_mine || message->sequence != hook->lanes[message->channel].posted_count) {
        const hd_status passed = pass_due(hook, 1); /* what is out of turn is inner's to refuse */
        return passed < 0 ? passed : hook->inner_ops->post_send(hook->inner, message, stream);
    }
    struct lane *lane = &hook->lanes[message->channel];
    hook_signal(hook, message);
    lane->due_ns[message->sequence % hook_channel(hook, message->channel)->depth] =
        due_of(hook, message);
    lane->posted_count++;
    const hd_status passed = pass_due(hook, 0);
    return passed < 0 ? passed : HD_OK;
}

static hd_status post_recv(struct hd_transport *hook, const struct hd_message *message)
{
    const hd_status passed = pass_due(hook, 0);
    return passed < 0 ? passed : hook->inner_ops->post_recv(hook->inner, message);
}

static hd_status test(struct hd_transport *hook, const struct hd_message *message)
{
    const hd_status passed = pass_due(hook, 0);

    if (passed < 0) {
        return passed;
    }
    if (is_own(hook, message) && message->sequence >= hook->lanes[message->channel].passed_count &&
        message->sequence < hook->lanes[message->channel].posted_count) {
        return HD_IN_PROGRESS; /* held: inner does not know it yet */
    }
    return hook->inner_ops->test(hook->inner, message);
}

static hd_status progress(struct hd_transport *hook)
{
    const hd_status passed = pass_due(hook, 0);

    if (passed < 0 || hook->inner_ops->progress == NULL) {
        return passed;
    }
    const hd_status moved = hook->inner_ops->progress(hook->inner);
    return moved == HD_IN_PROGRESS ? passed : moved;
}

static void nap(void)
{
    const struct timespec duration = {0, NAP_NS};
    nanosleep(&duration, NULL);
}

/*
 * Until nothing is held, or the message is there.  A wait of inner would sleep through what is due,
 * and one with a nearer deadline would fail for good.
 */
static hd_status wait_while_held(struct hd_transport *hook, const struct hd_message *message,
                                 uint64_t deadline_ns)
{
    hd_status status = test(hook, message);

    while (status == HD_IN_PROGRESS && holds_any(hook) && hook_now_ns(hook) < deadline_ns) {
        nap();
        status = progress(hook);
        status = status < 0 ? status : test(hook, message);
    }
    return status;
}

static hd_status wait(struct hd_transport *hook, const struct hd_message *message, void *stream,
                      uint64_t deadline_ns)
{
    hd_status status = HD_IN_PROGRESS;

    if (stream == NULL) {
        status = wait_while_held(hook, message, deadline_ns);
    }
    while (status == HD_IN_PROGRESS && hook->inner_ops->wait == NULL &&
           hook_now_ns(hook) < deadline_ns) {
        nap();
        status = progress(hook);
        status = status < 0 ? status : test(hook, message);
    }
    if (status != HD_IN_PROGRESS || hook->inner_ops->wait == NULL) {
        return status == HD_IN_PROGRESS ? HD_TIMEOUT : status;
    }
    return hook->inner_ops->wait(hook->inner, message, stream, deadline_ns);
}

static hd_status release(struct hd_transport *hook, const struct hd_message *message, void *stream)
{
    const hd_status passed = pass_due(hook, 0);
    return passed < 0 ? passed : hook->inner_ops->release(hook->inner, message, stream);
}

static void abort_waits(struct hd_transport *hook, const char *reason)
{
    hook->inner_ops->abort(hook->inner, reason);
}

static hd_status quiesce(struct hd_transport *hook, uint64_t deadline_ns)
{
    hd_status status = HD_OK;

    while (status >= 0 && holds_any(hook) && hook_now_ns(hook) < deadline_ns) {
        nap();
        status = progress(hook);
    }
    return hook->inner_ops->quiesce == NULL ? HD_OK
                                            : hook->inner_ops->quiesce(hook->inner, deadline_ns);
}

static void close_both(struct hd_transport *hook, uint64_t deadline_ns)
{
    if (hook != NULL) {
        hook->inner_ops->close(hook->inner, deadline_ns);
        hook_free(hook);
    }
}

static void stats(struct hd_transport *hook, uint32_t channel, struct hd_channel_stats *out)
{
    const uint32_t size = out->size;
    struct hd_channel_stats all = {.size = sizeof all};

    if (hook->inner_ops->stats != NULL) {
        hook->inner_ops->stats(hook->inner, channel, &all);
    }
    all.busy_count += atomic_load_explicit(&hook->lanes[channel].busy_count, memory_order_relaxed);
    all.size = size;
    memcpy(out, &all, size < sizeof all ? size : sizeof all);
}

static const struct hd_transport_ops ops = {
    .size = sizeof ops,
    .open = hook_open,
    .slot = slot,
    .reserve = reserve,
    .post_send = post_send,
    .post_recv = post_recv,
    .test = test,
    .wait = wait,
    .release = release,
    .progress = progress,
    .abort = abort_waits,
    .quiesce = quiesce,
    .close = close_both,
    .stats = stats,
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_TRANSPORT),
    .option_count = sizeof options / sizeof options[0],
    .options = options,
    .capabilities = HD_TRANSPORT_HOST | HD_TRANSPORT_HOOK,
    .name = "hook_fault",
    .summary = "wraps the transport of transport.inner, and delays, drops, breaks or kills",
    .vendor = "heddle",
    .version = "0.1.0",
    .licence = "Apache-2.0",
    .source = "heddle's own; the hook providers of libfabric are the idea",
    .ops = &ops,
};
