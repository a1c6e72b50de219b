/* drive/message.c - messages over a line: the calls of the contract. */
#include "base/clock.h"
#include "drive/line.h"

#include <sched.h>
#include <time.h>

enum { POLL_COUNT = 64, NAP_NS = 50000 };

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

static hd_status message_reserve_one(struct hd_line *line, const struct hd_message *message)
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
        status = message_reserve_one(line, &message);
        line->reserved += status == HD_OK;
    }
    return status;
}

hd_status hd_line_post(struct hd_line *line)
{
    const struct hd_message message = {.sequence = line->sent, .channel = line->out};
    const hd_status status = line->ops->post_send(line->transport, &message, hd_line_stream(line));

    line->sent += status == HD_OK;
    return status;
}

static hd_status message_expect(struct hd_line *line, uint64_t end)
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
    return line->is_serial ? HD_OK : message_expect(line, end);
}

/* On a device the stream waits, and the host goes on. */
static hd_status message_wait_to_read(struct hd_line *line, const struct hd_message *message)
{
    void *stream = hd_line_stream(line);

    return stream != NULL && line->ops->wait != NULL
               ? line->ops->wait(line->transport, message, stream, line->deadline_ns)
               : hd_line_wait(line, message);
}

hd_status hd_line_receive(struct hd_line *line)
{
    const struct hd_message message = {.sequence = line->received, .channel = line->in};
    hd_status status = line->is_serial ? message_expect(line, line->received + 1) : HD_OK;

    if (status == HD_OK) {
        status = message_wait_to_read(line, &message);
    }
    line->received += status == HD_OK;
    return status;
}

hd_status hd_line_release(struct hd_line *line)
{
    const struct hd_message message = {.sequence = line->released, .channel = line->in};
    const hd_status status = line->ops->release(line->transport, &message, hd_line_stream(line));

    line->released += status == HD_OK;
    return status;
}

/* --- meeting --------------------------------------------------------------------------------- */

static hd_status message_ring(struct hd_line *line)
{
    const struct hd_message bell = {.sequence = line->meeting_count, .channel = line->out + 2};
    const uint64_t stamp = hd_line_stamp_of(bell.channel, bell.sequence);
    hd_status status = message_reserve_one(line, &bell);

    if (status == HD_OK) {
        status = hd_line_put(line, hd_line_slot(line, bell.channel, bell.sequence), &stamp,
                             sizeof stamp);
    }
    return status == HD_OK ? line->ops->post_send(line->transport, &bell, hd_line_stream(line))
                           : status;
}

static hd_status message_hear(struct hd_line *line)
{
    const struct hd_message bell = {.sequence = line->meeting_count, .channel = line->in + 2};
    const uint64_t stamp = hd_line_stamp_of(bell.channel, bell.sequence);
    uint64_t heard = 0;
    hd_status status = HD_OK;

    if (line->is_serial) {
        status = line->ops->post_recv(line->transport, &bell);
    }
    if (status == HD_OK) {
        status = message_wait_to_read(line, &bell);
    }
    if (status == HD_OK) {
        status = hd_line_get(line, &heard, hd_line_slot(line, bell.channel, bell.sequence),
                             sizeof heard);
    }
    if (status != HD_OK) {
        return status;
    }
    line->checked_count++;
    line->wrong_count += heard != stamp;
    return line->ops->release(line->transport, &bell, hd_line_stream(line));
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
        status = is_first ? message_ring(line) : message_hear(line);
    }
    if (status == HD_OK) {
        status = is_first ? message_hear(line) : message_ring(line);
    }
    line->meeting_count++;
    return status;
}
