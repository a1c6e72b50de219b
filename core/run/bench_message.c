/* run/bench_message.c - messages over a line: the calls of the contract, and the bytes. */
#include "base/clock.h"
#include "run/bench_line.h"

#include <assert.h>
#include <sched.h>
#include <string.h>
#include <time.h>

enum { POLL_COUNT = 64, NAP_NS = 50000 };
enum { STAMP_WORD = 1 << 20 }; /* of no body, and never 0 */

/* --- messages -------------------------------------------------------------------------------- */

hd_status hd_line_wait(struct hd_line *line, const struct hd_message *message)
{
    const struct timespec nap = {0, NAP_NS};
    hd_status status = HD_IN_PROGRESS;

    if (line->ops->wait != NULL) {
        return line->ops->wait(line->transport, message, NULL, line->deadline_ns);
    }
    for (uint64_t turn = 1; status == HD_IN_PROGRESS; turn++) {
        hd_status moved = HD_IN_PROGRESS;
        if (line->ops->progress != NULL) {
            moved = line->ops->progress(line->transport);
        }
        status = moved < 0 ? moved : line->ops->test(line->transport, message);
        if (status == HD_IN_PROGRESS && turn % POLL_COUNT == 0) {
            if (hd_now_ns() >= line->deadline_ns) {
                return HD_TIMEOUT;
            }
            nanosleep(&nap, NULL);
        } else if (status == HD_IN_PROGRESS && moved != HD_OK) {
            sched_yield();
        }
    }
    return status;
}

static hd_status reserve_one(struct hd_line *line, const struct hd_message *message)
{
    hd_status status = line->ops->reserve(line->transport, message);

    while (status == HD_BUSY) { /* a hook may say so again; the wait has a deadline */
        status = hd_line_wait(line, message);
        status = status == HD_OK ? line->ops->reserve(line->transport, message) : status;
    }
    return status;
}

hd_status hd_line_reserve(struct hd_line *line, uint64_t end)
{
    hd_status status = HD_OK;

    while (status == HD_OK && line->reserved < end) {
        const struct hd_message message = {.sequence = line->reserved, .channel = line->out};
        status = reserve_one(line, &message);
        line->reserved += status == HD_OK;
    }
    return status;
}

hd_status hd_line_post(struct hd_line *line)
{
    const struct hd_message message = {.sequence = line->sent, .channel = line->out};
    const hd_status status = line->ops->post_send(line->transport, &message, NULL);

    line->sent += status == HD_OK;
    return status;
}

static hd_status expect(struct hd_line *line, uint64_t end)
{
    hd_status status = HD_OK;

    while (status == HD_OK && line->posted < end &&
           line->posted < line->released + line->shape.depth) {
        const struct hd_message message = {.sequence = line->posted, .channel = line->in};
        status = line->ops->post_recv(line->transport, &message);
        line->posted += status == HD_OK;
    }
    return status;
}

hd_status hd_line_expect(struct hd_line *line, uint64_t end)
{
    return line->is_serial ? HD_OK : expect(line, end);
}

hd_status hd_line_receive(struct hd_line *line)
{
    const struct hd_message message = {.sequence = line->received, .channel = line->in};
    hd_status status = line->is_serial ? expect(line, line->received + 1) : HD_OK;

    if (status == HD_OK) {
        status = hd_line_wait(line, &message);
    }
    line->received += status == HD_OK;
    return status;
}

hd_status hd_line_release(struct hd_line *line)
{
    const struct hd_message message = {.sequence = line->released, .channel = line->in};
    const hd_status status = line->ops->release(line->transport, &message, NULL);

    line->released += status == HD_OK;
    return status;
}

/* --- bytes ----------------------------------------------------------------------------------- */

static unsigned char *slot_of(const struct hd_line *line, uint32_t channel, uint64_t sequence)
{
    const struct hd_message message = {.sequence = sequence, .channel = channel};
    return line->ops->slot(line->transport, &message);
}

static const unsigned char *body_of(const struct hd_line *line, uint64_t sequence)
{
    return line->shape.bodies[sequence / line->shape.depth % 2];
}

static uint64_t stamp_of(uint32_t channel, uint64_t sequence)
{
    return hd_pattern_word(channel, sequence, STAMP_WORD);
}

static uint64_t stamp_bytes(const struct hd_line *line)
{
    return line->shape.bytes < HD_LINE_STAMP_BYTES ? line->shape.bytes : HD_LINE_STAMP_BYTES;
}

void hd_line_stamp(const struct hd_line *line, uint64_t sequence)
{
    const uint64_t stamp = stamp_of(line->out, sequence);
    memcpy(slot_of(line, line->out, sequence), &stamp, stamp_bytes(line));
}

void hd_line_fill(const struct hd_line *line, uint64_t sequence)
{
    const uint64_t head_bytes = stamp_bytes(line);

    memcpy(slot_of(line, line->out, sequence) + head_bytes, body_of(line, sequence) + head_bytes,
           line->shape.bytes - head_bytes);
    hd_line_stamp(line, sequence);
}

void hd_line_glance(struct hd_line *line, uint64_t sequence)
{
    const uint64_t stamp = stamp_of(line->in, sequence);

    line->checked_count++;
    line->wrong_count += memcmp(slot_of(line, line->in, sequence), &stamp, stamp_bytes(line)) != 0;
}

void hd_line_check(struct hd_line *line, uint64_t sequence)
{
    const uint64_t stamp = stamp_of(line->in, sequence);
    const uint64_t head_bytes = stamp_bytes(line);
    const unsigned char *slot = slot_of(line, line->in, sequence);

    line->checked_count++;
    line->wrong_count += memcmp(slot, &stamp, head_bytes) != 0 ||
                         memcmp(slot + head_bytes, body_of(line, sequence) + head_bytes,
                                line->shape.bytes - head_bytes) != 0;
}

static hd_status ring(struct hd_line *line)
{
    const struct hd_message bell = {.sequence = line->meeting_count, .channel = line->out + 2};
    const uint64_t stamp = stamp_of(bell.channel, bell.sequence);
    const hd_status status = reserve_one(line, &bell);

    if (status != HD_OK) {
        return status;
    }
    memcpy(slot_of(line, bell.channel, bell.sequence), &stamp, sizeof stamp);
    return line->ops->post_send(line->transport, &bell, NULL);
}

static hd_status hear(struct hd_line *line)
{
    const struct hd_message bell = {.sequence = line->meeting_count, .channel = line->in + 2};
    const uint64_t stamp = stamp_of(bell.channel, bell.sequence);
    hd_status status = HD_OK;

    if (line->is_serial) {
        status = line->ops->post_recv(line->transport, &bell);
    }
    if (status == HD_OK) {
        status = hd_line_wait(line, &bell);
    }
    if (status != HD_OK) {
        return status;
    }
    line->checked_count++;
    line->wrong_count +=
        memcmp(slot_of(line, bell.channel, bell.sequence), &stamp, sizeof stamp) != 0;
    return line->ops->release(line->transport, &bell, NULL);
}

hd_status hd_line_meet(struct hd_line *line)
{
    const struct hd_message bell = {.sequence = line->meeting_count, .channel = line->in + 2};
    const uint32_t is_first = line->rank->rank == 0;
    hd_status status = HD_OK;

    if (!line->is_serial) {
        status = line->ops->post_recv(line->transport, &bell);
    }
    if (status == HD_OK) {
        status = is_first ? ring(line) : hear(line);
    }
    if (status == HD_OK) {
        status = is_first ? hear(line) : ring(line);
    }
    line->meeting_count++;
    return status;
}

hd_status hd_line_is_in_place(struct hd_line *line, uint32_t *is_in_place)
{
    const uint64_t token = 0xa5a5a5a5a5a5a5a5ull; /* no message begins so */
    uint32_t seen = 0, other = 0;
    hd_status status = HD_OK;

    assert(line->sent == 0 && line->received == 0);
    if (line->rank->rank == 0) {
        status = hd_line_reserve(line, 1);
        if (status == HD_OK) {
            memcpy(slot_of(line, 0, 0), &token, stamp_bytes(line));
        }
    }
    if (status == HD_OK) {
        status = hd_line_fence(line);
    }
    if (status == HD_OK) {
        seen = line->rank->rank == 1 && memcmp(slot_of(line, 0, 0), &token, stamp_bytes(line)) == 0;
        status = hd_line_swap(line, &seen, &other, sizeof seen);
    }
    *is_in_place = seen | other;
    return status;
}
