#include "support/transport_traffic.h"

#include "base/clock.h"

#include <sched.h>
#include <string.h>

enum { SEAL_WORD = 1 << 20, LIMIT_MS = 20000 };

static const struct hd_channel *channel_of(const struct hd_testbed_rank *rank,
                                           struct hd_message message)
{
    return &rank->job->channels[message.channel];
}

static int promises(const struct hd_testbed_rank *rank, uint64_t capability)
{
    return (rank->capabilities & capability) != 0;
}

/* At most 8 bytes of the message at `offset`; how many. */
static uint64_t pattern(struct hd_message message, uint64_t offset, uint64_t limit_bytes,
                        unsigned char bytes[8])
{
    const uint64_t word = hd_pattern_word(message.channel, message.sequence, offset / 8);
    memcpy(bytes, &word, 8);
    return limit_bytes - offset < 8 ? limit_bytes - offset : 8;
}

void hd_traffic_fill(struct hd_testbed_rank *rank, struct hd_message message)
{
    const uint64_t limit_bytes = channel_of(rank, message)->bytes;
    unsigned char *slot = rank->ops->slot(rank->transport, &message);
    unsigned char bytes[8];

    for (uint64_t offset = 0; offset < limit_bytes; offset += 8) {
        const uint64_t count = pattern(message, offset, limit_bytes, bytes);
        memcpy(slot + offset, bytes, count);
    }
    if (promises(rank, HD_TRANSPORT_SEALED)) {
        for (uint64_t word = 0; word < HD_SEAL_BYTES / 8; word++) {
            const uint64_t value =
                hd_pattern_word(message.channel, message.sequence, SEAL_WORD + word);
            memcpy(slot - HD_SEAL_BYTES + word * 8, &value, 8);
        }
    }
}

static int is_sealed(const unsigned char *slot, struct hd_message message)
{
    int holds = 1;

    for (uint64_t word = 0; word < HD_SEAL_BYTES / 8; word++) {
        const uint64_t value = hd_pattern_word(message.channel, message.sequence, SEAL_WORD + word);
        holds = holds && memcmp(slot - HD_SEAL_BYTES + word * 8, &value, 8) == 0;
    }
    return holds;
}

int hd_traffic_is_whole(struct hd_testbed_rank *rank, struct hd_message message)
{
    const int sealed = promises(rank, HD_TRANSPORT_SEALED);
    const uint64_t whole_bytes = channel_of(rank, message)->bytes;
    const uint64_t limit_bytes = sealed ? whole_bytes : whole_bytes / 8 * 8;
    const unsigned char *slot = rank->ops->slot(rank->transport, &message);
    unsigned char bytes[8];
    int holds = !sealed || is_sealed(slot, message);

    for (uint64_t offset = 0; holds && offset < limit_bytes; offset += 8) {
        const uint64_t count = pattern(message, offset, limit_bytes, bytes);
        holds = memcmp(slot + offset, bytes, count) == 0;
    }
    return holds;
}

hd_status hd_traffic_wait(struct hd_testbed_rank *rank, struct hd_message message,
                          uint64_t deadline_ns)
{
    const struct hd_transport_ops *ops = rank->ops;

    if (ops->wait != NULL) {
        return ops->wait(rank->transport, &message, NULL, deadline_ns);
    }
    hd_status status = ops->test(rank->transport, &message);
    while (status == HD_IN_PROGRESS && hd_now_ns() < deadline_ns) {
        if (ops->progress == NULL || ops->progress(rank->transport) == HD_IN_PROGRESS) {
            sched_yield();
        }
        status = ops->test(rank->transport, &message);
    }
    return status == HD_IN_PROGRESS ? HD_TIMEOUT : status;
}

hd_status hd_traffic_send(struct hd_testbed_rank *rank, struct hd_message message)
{
    hd_status status = rank->ops->reserve(rank->transport, &message);

    while (status == HD_BUSY) { /* each wait has a deadline, and a storm has an end */
        status = hd_traffic_wait(rank, message, hd_testbed_deadline_ns(LIMIT_MS));
        status = status == HD_OK ? rank->ops->reserve(rank->transport, &message) : status;
    }
    if (status == HD_OK) {
        hd_traffic_fill(rank, message);
        status = rank->ops->post_send(rank->transport, &message, NULL);
    }
    return status;
}

hd_status hd_traffic_receive(struct hd_testbed_rank *rank, struct hd_message message)
{
    hd_status status = rank->ops->post_recv(rank->transport, &message);

    if (status == HD_OK) {
        status = hd_traffic_wait(rank, message, hd_testbed_deadline_ns(LIMIT_MS));
    }
    return status != HD_OK || hd_traffic_is_whole(rank, message) ? status : HD_PROTOCOL;
}

hd_status hd_traffic_release(struct hd_testbed_rank *rank, struct hd_message message)
{
    memset(rank->ops->slot(rank->transport, &message), 0xFF, channel_of(rank, message)->bytes);
    return rank->ops->release(rank->transport, &message, NULL);
}

/* --- all channels at once ---------------------------------------------------------------- */

struct lane {
    uint64_t sent, posted, read, released; /* counts, and the next sequence of each */
};

static uint64_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

/* One message, if its slot is free. */
static hd_status push(struct hd_testbed_rank *rank, uint32_t channel, struct lane *lane)
{
    const struct hd_message message = {.sequence = lane->sent, .channel = channel};
    hd_status status = rank->ops->reserve(rank->transport, &message);

    if (status == HD_OK) {
        hd_traffic_fill(rank, message);
        status = rank->ops->post_send(rank->transport, &message, NULL);
        lane->sent += status == HD_OK;
    }
    return status;
}

/* Reads the next message if it is there; HD_BUSY when nothing could be done. */
static hd_status pull(struct hd_testbed_rank *rank, uint32_t channel, struct lane *lane,
                      uint64_t end)
{
    const uint64_t depth = rank->job->channels[channel].depth;
    const struct hd_message message = {.sequence = lane->read, .channel = channel};
    hd_status status = HD_OK;

    while (status == HD_OK && lane->posted < end && lane->posted < lane->released + depth) {
        const struct hd_message next = {.sequence = lane->posted++, .channel = channel};
        status = rank->ops->post_recv(rank->transport, &next);
    }
    if (status == HD_OK && lane->read < lane->posted) {
        status = rank->ops->test(rank->transport, &message);
        if (status == HD_OK) {
            lane->read++;
            return hd_traffic_is_whole(rank, message) ? HD_OK : HD_PROTOCOL;
        }
        return status;
    }
    return status == HD_OK ? HD_BUSY : status;
}

/* Ends the oldest lease, after another look at what was leased. */
static hd_status end_lease(struct hd_testbed_rank *rank, uint32_t channel, struct lane *lane)
{
    const struct hd_message message = {.sequence = lane->released, .channel = channel};
    const int holds = hd_traffic_is_whole(rank, message);

    lane->released++;
    const hd_status status = hd_traffic_release(rank, message);
    return holds ? status : HD_PROTOCOL;
}

/* Moves what can move on one channel. */
static hd_status advance(struct hd_testbed_rank *rank, uint32_t channel, struct lane *lane,
                         uint64_t end, uint64_t *random)
{
    const struct hd_channel *shape = &rank->job->channels[channel];
    hd_status status = HD_BUSY;

    if (shape->source == rank->rank && lane->sent < end) {
        return push(rank, channel, lane);
    }
    if (shape->target == rank->rank && lane->released < end) {
        status = pull(rank, channel, lane, end);
        const uint64_t held = lane->read - lane->released;
        const int is_full = held == shape->depth || lane->read == end;
        if (status >= 0 && held > 0 && (is_full || draw(random) % 4 == 0)) {
            return end_lease(rank, channel, lane);
        }
    }
    return status;
}

static int is_done(const struct hd_testbed_rank *rank, const struct lane *lanes, uint64_t end)
{
    for (uint32_t i = 0; i < rank->job->channel_count; i++) {
        const struct hd_channel *shape = &rank->job->channels[i];
        if ((shape->source == rank->rank && lanes[i].sent < end) ||
            (shape->target == rank->rank && lanes[i].released < end)) {
            return 0;
        }
    }
    return 1;
}

/* What moves only by progress may still be queued here, and the caller may turn to other things. */
static int let_go(struct hd_testbed_rank *rank, uint64_t end, uint64_t deadline_ns)
{
    for (uint32_t i = 0; i < rank->job->channel_count; i++) {
        if (rank->job->channels[i].source == rank->rank) {
            const struct hd_message last = {.sequence = end - 1, .channel = i};
            HD_REQUIRE(rank, hd_traffic_wait(rank, last, deadline_ns) == HD_OK);
        }
    }
    return 0;
}

int hd_traffic_mix(struct hd_testbed_rank *rank, uint64_t first, uint64_t count)
{
    static struct lane lanes[HD_TESTBED_CHANNEL_MAX];
    const uint64_t deadline_ns = hd_testbed_deadline_ns(LIMIT_MS);
    const uint64_t end = first + count;
    uint64_t random = rank->rank + 1;

    for (uint32_t i = 0; i < rank->job->channel_count; i++) {
        lanes[i] = (struct lane){first, first, first, first};
    }
    while (!is_done(rank, lanes, end)) {
        int moved = rank->ops->progress != NULL && rank->ops->progress(rank->transport) == HD_OK;
        for (uint32_t i = 0; i < rank->job->channel_count; i++) {
            const uint32_t channel = (uint32_t)(draw(&random) % rank->job->channel_count);
            const hd_status status = advance(rank, channel, &lanes[channel], end, &random);
            HD_REQUIRE(rank, status >= 0);
            moved |= status == HD_OK;
        }
        HD_REQUIRE(rank, hd_now_ns() < deadline_ns);
        if (!moved) {
            sched_yield();
        }
    }
    return let_go(rank, end, deadline_ns);
}
