#include "drive/port.h"

#include "base/clock.h"

#include <assert.h>
#include <sched.h>
#include <string.h>

enum { SEAL_WORD = 1 << 20 };

static const struct hd_channel *port_channel_of(const struct hd_port *port,
                                                struct hd_message message)
{
    return port->channels[message.channel];
}

static uint64_t port_limit_of(const struct hd_port *port)
{
    return hd_now_ns() + port->limit_ms * HD_MS_NS;
}

/* A seal stands before slots of the host only. */
static int port_is_sealed(const struct hd_port *port)
{
    return (port->capabilities & HD_TRANSPORT_SEALED) != 0 && port->device == NULL;
}

/* At most 8 bytes of the message at `offset`; how many. */
static uint64_t port_pattern(struct hd_message message, uint64_t offset, uint64_t limit_bytes,
                             unsigned char bytes[8])
{
    const uint64_t word = hd_pattern_word(message.channel, message.sequence, offset / 8);
    memcpy(bytes, &word, 8);
    return limit_bytes - offset < 8 ? limit_bytes - offset : 8;
}

/* The bytes of a slot where the host can touch them: its own, or an image of them. */
static unsigned char *port_image_of(const struct hd_port *port, struct hd_message message)
{
    assert(port->device == NULL ||
           port_channel_of(port, message)->bytes <= port->device->staging_bytes);
    return port->device != NULL ? port->device->staging
                                : port->ops->slot(port->transport, &message);
}

hd_status hd_port_fill(const struct hd_port *port, struct hd_message message)
{
    const uint64_t limit_bytes = port_channel_of(port, message)->bytes;
    unsigned char *slot = port_image_of(port, message);
    unsigned char bytes[8];

    for (uint64_t offset = 0; offset < limit_bytes; offset += 8) {
        const uint64_t count = port_pattern(message, offset, limit_bytes, bytes);
        memcpy(slot + offset, bytes, count);
    }
    if (port_is_sealed(port)) {
        for (uint64_t word = 0; word < HD_SEAL_BYTES / 8; word++) {
            const uint64_t value =
                hd_pattern_word(message.channel, message.sequence, SEAL_WORD + word);
            memcpy(slot - HD_SEAL_BYTES + word * 8, &value, 8);
        }
    }
    return port->device == NULL
               ? HD_OK
               : hd_lent_write(port->device, port->ops->slot(port->transport, &message), slot,
                               limit_bytes);
}

static int port_has_seal(const unsigned char *slot, struct hd_message message)
{
    int holds = 1;

    for (uint64_t word = 0; word < HD_SEAL_BYTES / 8; word++) {
        const uint64_t value = hd_pattern_word(message.channel, message.sequence, SEAL_WORD + word);
        holds = holds && memcmp(slot - HD_SEAL_BYTES + word * 8, &value, 8) == 0;
    }
    return holds;
}

int hd_port_is_whole(const struct hd_port *port, struct hd_message message)
{
    const int sealed = port_is_sealed(port);
    const uint64_t whole_bytes = port_channel_of(port, message)->bytes;
    const uint64_t limit_bytes = sealed ? whole_bytes : whole_bytes / 8 * 8;
    unsigned char *slot = port_image_of(port, message);
    unsigned char bytes[8];
    int holds = 1;

    if (port->device != NULL) {
        holds = hd_lent_read(port->device, slot, port->ops->slot(port->transport, &message),
                             whole_bytes) == HD_OK;
    }
    holds = holds && (!sealed || port_has_seal(slot, message));

    for (uint64_t offset = 0; holds && offset < limit_bytes; offset += 8) {
        const uint64_t count = port_pattern(message, offset, limit_bytes, bytes);
        holds = memcmp(slot + offset, bytes, count) == 0;
    }
    return holds;
}

hd_status hd_port_wait(const struct hd_port *port, struct hd_message message, uint64_t deadline_ns)
{
    const struct hd_transport_ops *ops = port->ops;

    if (ops->wait != NULL) {
        return ops->wait(port->transport, &message, NULL, deadline_ns);
    }
    hd_status status = ops->test(port->transport, &message);
    while (status == HD_IN_PROGRESS && hd_now_ns() < deadline_ns) {
        if (ops->progress == NULL || ops->progress(port->transport) == HD_IN_PROGRESS) {
            sched_yield();
        }
        status = ops->test(port->transport, &message);
    }
    return status == HD_IN_PROGRESS ? HD_TIMEOUT : status;
}

/* A slot may be told busy for longer than it is: so it is asked for again, as the core does. */
hd_status hd_port_post(const struct hd_port *port, struct hd_message message)
{
    return port->ops->post_send(port->transport, &message, hd_lent_stream(port->device));
}

hd_status hd_port_give(const struct hd_port *port, struct hd_message message)
{
    return port->ops->release(port->transport, &message, hd_lent_stream(port->device));
}

/* On a device the stream may wait, and then the host for what is behind it. */
static hd_status port_wait_to_read(const struct hd_port *port, struct hd_message message)
{
    void *stream = hd_lent_stream(port->device);

    if (stream == NULL || port->ops->wait == NULL || message.sequence % 2 == 0) {
        return hd_port_wait(port, message, port_limit_of(port));
    }
    const hd_status status =
        port->ops->wait(port->transport, &message, stream, port_limit_of(port));
    return status == HD_OK ? hd_lent_rest(port->device) : status;
}

hd_status hd_port_send(const struct hd_port *port, struct hd_message message)
{
    const uint64_t deadline_ns = port_limit_of(port);
    hd_status status = port->ops->reserve(port->transport, &message);

    while (status == HD_BUSY) {
        status = hd_port_wait(port, message, deadline_ns);
        if (status == HD_OK) {
            status = hd_now_ns() < deadline_ns ? port->ops->reserve(port->transport, &message)
                                               : HD_TIMEOUT;
        }
    }
    if (status == HD_OK) {
        status = hd_port_fill(port, message);
    }
    return status == HD_OK ? hd_port_post(port, message) : status;
}

hd_status hd_port_receive(const struct hd_port *port, struct hd_message message)
{
    hd_status status = port->ops->post_recv(port->transport, &message);

    if (status == HD_OK) {
        status = port_wait_to_read(port, message);
    }
    return status != HD_OK || hd_port_is_whole(port, message) ? status : HD_PROTOCOL;
}

hd_status hd_port_release(const struct hd_port *port, struct hd_message message)
{
    const hd_status status = hd_lent_fill(port->device, port->ops->slot(port->transport, &message),
                                          0xFF, port_channel_of(port, message)->bytes);
    return status == HD_OK ? hd_port_give(port, message) : status;
}

/* --- all channels at once ---------------------------------------------------------------- */

struct lane {
    uint64_t sent, posted, read, released; /* counts, and the next sequence of each */
};

static uint64_t port_draw(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

/* One message, if its slot is free. */
static hd_status port_push(const struct hd_port *port, uint32_t channel, struct lane *lane)
{
    const struct hd_message message = {.sequence = lane->sent, .channel = channel};
    hd_status status = port->ops->reserve(port->transport, &message);

    if (status == HD_OK) {
        status = hd_port_fill(port, message);
        status = status == HD_OK ? hd_port_post(port, message) : status;
        lane->sent += status == HD_OK;
    }
    return status;
}

/* Reads the next message if it is there; HD_BUSY when nothing could be done. */
static hd_status port_pull(const struct hd_port *port, uint32_t channel, struct lane *lane,
                           uint64_t end)
{
    const uint64_t depth = port->channels[channel]->depth;
    const struct hd_message message = {.sequence = lane->read, .channel = channel};
    hd_status status = HD_OK;

    while (status == HD_OK && lane->posted < end && lane->posted < lane->released + depth) {
        const struct hd_message next = {.sequence = lane->posted++, .channel = channel};
        status = port->ops->post_recv(port->transport, &next);
    }
    if (status == HD_OK && lane->read < lane->posted) {
        status = port->ops->test(port->transport, &message);
        if (status == HD_OK) {
            lane->read++;
            return hd_port_is_whole(port, message) ? HD_OK : HD_PROTOCOL;
        }
        return status;
    }
    return status == HD_OK ? HD_BUSY : status;
}

/* Ends the oldest lease, after another look at what was leased. */
static hd_status port_end_lease(const struct hd_port *port, uint32_t channel, struct lane *lane)
{
    const struct hd_message message = {.sequence = lane->released, .channel = channel};
    const int holds = hd_port_is_whole(port, message);

    lane->released++;
    const hd_status status = hd_port_release(port, message);
    return holds ? status : HD_PROTOCOL;
}

/* Moves what can move on one channel. */
static hd_status port_advance(const struct hd_port *port, uint32_t channel, struct lane *lane,
                              uint64_t end, uint64_t *random)
{
    const struct hd_channel *shape = port->channels[channel];
    hd_status status = HD_BUSY;

    if (shape->source == port->rank && lane->sent < end) {
        return port_push(port, channel, lane);
    }
    if (shape->target == port->rank && lane->released < end) {
        status = port_pull(port, channel, lane, end);
        const uint64_t held = lane->read - lane->released;
        const int is_full = held == shape->depth || lane->read == end;
        if (status >= 0 && held > 0 && (is_full || port_draw(random) % 4 == 0)) {
            return port_end_lease(port, channel, lane);
        }
    }
    return status;
}

static int port_is_done(const struct hd_port *port, const struct lane *lanes, uint64_t end)
{
    for (uint32_t i = 0; i < port->channel_count; i++) {
        const struct hd_channel *shape = port->channels[i];
        if ((shape->source == port->rank && lanes[i].sent < end) ||
            (shape->target == port->rank && lanes[i].released < end)) {
            return 0;
        }
    }
    return 1;
}

/* One turn over all channels, in any order; *moved: something did. */
static hd_status port_turn(const struct hd_port *port, struct lane *lanes, struct hd_port_mix *mix,
                           uint64_t *random, int *moved)
{
    const uint64_t end = mix->first + mix->count;

    *moved = port->ops->progress != NULL && port->ops->progress(port->transport) == HD_OK;
    for (uint32_t i = 0; i < port->channel_count; i++) {
        const uint32_t channel = (uint32_t)(port_draw(random) % port->channel_count);
        struct lane *lane = &lanes[channel];
        const int is_source = port->channels[channel]->source == port->rank;
        mix->wrong_channel = channel;
        mix->wrong_sequence = is_source ? lane->sent : lane->read;
        const hd_status status = port_advance(port, channel, lane, end, random);
        if (status < 0) {
            return status;
        }
        *moved |= status == HD_OK;
    }
    return HD_OK;
}

/* --- all channels in one order, for a transport that is serial ----------------------------- */

/* Waits for the next message of the channel; its lease begins. */
static hd_status port_take(const struct hd_port *port, uint32_t channel, struct lane *lane)
{
    const struct hd_message message = {.sequence = lane->read, .channel = channel};
    const hd_status status = port_wait_to_read(port, message);

    lane->read += status == HD_OK;
    return status != HD_OK || hd_port_is_whole(port, message) ? status : HD_PROTOCOL;
}

/* Leases are ended, oldest first, until no more than `most` messages are posted or leased. */
static hd_status port_make_room(const struct hd_port *port, uint32_t channel, struct lane *lane,
                                uint64_t most)
{
    hd_status status = HD_OK;

    while (status == HD_OK && lane->posted - lane->released > most) {
        if (lane->released == lane->read) {
            status = port_take(port, channel, lane);
        }
        if (status == HD_OK) {
            status = port_end_lease(port, channel, lane);
        }
    }
    return status;
}

/* The next message of one channel, if this rank is at an end of it. */
static hd_status port_post_in_turn(const struct hd_port *port, uint32_t channel, struct lane *lane,
                                   uint64_t *random)
{
    const struct hd_channel *shape = port->channels[channel];
    hd_status status = HD_OK;

    if (shape->source == port->rank) {
        const struct hd_message message = {.sequence = lane->sent++, .channel = channel};
        return hd_port_send(port, message);
    }
    if (shape->target == port->rank) {
        status = port_make_room(port, channel, lane, shape->depth - 1);
        if (status == HD_OK && lane->read < lane->posted && port_draw(random) % 4 == 0) {
            status = port_take(port, channel, lane);
        }
        const struct hd_message message = {.sequence = lane->posted, .channel = channel};
        if (status == HD_OK) {
            lane->posted++;
            status = port->ops->post_recv(port->transport, &message);
        }
    }
    return status;
}

/* Message by message, channel by channel: both ends of every transfer come to it in one order, and
   a rank waits only for what stands before its next post. */
static hd_status port_mix_in_order(const struct hd_port *port, struct hd_port_mix *mix,
                                   struct lane *lanes, uint64_t *random)
{
    hd_status status = HD_OK;

    for (uint64_t i = 0; i <= mix->count; i++) {
        for (uint32_t channel = 0; channel < port->channel_count; channel++) {
            struct lane *lane = &lanes[channel];
            mix->wrong_channel = channel;
            mix->wrong_sequence = mix->first + i;
            status = i < mix->count ? port_post_in_turn(port, channel, lane, random)
                                    : port_make_room(port, channel, lane, 0);
            if (status != HD_OK) {
                return status;
            }
        }
    }
    return HD_OK;
}

hd_status hd_port_mix(const struct hd_port *port, struct hd_port_mix *mix)
{
    struct lane lanes[HD_PORT_CHANNEL_MAX];
    const uint64_t deadline_ns = port_limit_of(port);
    uint64_t random = mix->seed + port->rank + 1;

    assert(port->channel_count <= HD_PORT_CHANNEL_MAX);
    for (uint32_t i = 0; i < port->channel_count; i++) {
        lanes[i] = (struct lane){mix->first, mix->first, mix->first, mix->first};
    }
    if ((port->capabilities & HD_TRANSPORT_SERIAL) != 0) {
        return port_mix_in_order(port, mix, lanes, &random);
    }
    while (!port_is_done(port, lanes, mix->first + mix->count)) {
        int moved = 0;
        hd_status status = port_turn(port, lanes, mix, &random, &moved);
        if (status == HD_OK && hd_now_ns() >= deadline_ns) {
            status = HD_TIMEOUT;
        }
        if (status != HD_OK) {
            return status;
        }
        if (!moved) {
            sched_yield();
        }
    }
    return HD_OK;
}
