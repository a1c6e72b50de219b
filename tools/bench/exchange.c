/* bench/exchange.c - what is measured lies between two readings of the clock, and nothing
   else. */
#include "bench/exchange.h"
#include "base/clock.h"
#include "base/memory.h"

#include <assert.h>
#include <sched.h>

enum { RENEW_COUNT = 64, BURST_MAX = 64 };

hd_status hd_exchange_take(struct hd_exchange_sample *sample, uint32_t capacity)
{
    *sample = (struct hd_exchange_sample){.capacity = capacity};
    sample->half_us = hd_memory_take(capacity * sizeof *sample->half_us, 64, "bench");
    return sample->half_us != NULL ? HD_OK : HD_NO_MEMORY;
}

void hd_exchange_give(struct hd_exchange_sample *sample)
{
    hd_memory_give(sample->half_us);
    *sample = (struct hd_exchange_sample){0};
}

static void exchange_keep(struct hd_exchange_sample *sample, double trip_us)
{
    if (sample->half_us != NULL && sample->count < sample->capacity) {
        sample->half_us[sample->count++] = trip_us / 2;
    }
}

/* --- latency --------------------------------------------------------------------------------- */

/* Outside the time of a latency.  On a device nothing is measured with its bytes, so here is where
   all of them are written and compared; the host's would only be driven out of its cache. */
static hd_status exchange_write_early(struct hd_line *line, uint64_t sequence)
{
    return line->shape.device != NULL ? hd_line_fill(line, sequence)
                                      : hd_line_stamp(line, sequence);
}

static hd_status exchange_read_late(struct hd_line *line, uint64_t sequence)
{
    return line->shape.device != NULL ? hd_line_check(line, sequence)
                                      : hd_line_glance(line, sequence);
}

/* Everything that a burst does before its time: slots and receives, and of a bare one the
   stamps. */
static hd_status exchange_prepare(struct hd_line *line, uint32_t count, uint32_t is_whole)
{
    hd_status status = hd_line_reserve(line, line->sent + count);

    if (status == HD_OK) {
        status = hd_line_expect(line, line->received + count);
    }
    for (uint32_t i = 0; status == HD_OK && !is_whole && i < count; i++) {
        status = exchange_write_early(line, line->sent + i);
    }
    return status == HD_OK ? hd_line_settle(line) : status;
}

static hd_status exchange_send_one(struct hd_line *line, uint32_t is_whole)
{
    const hd_status status = is_whole ? hd_line_fill(line, line->sent) : HD_OK;
    return status == HD_OK ? hd_line_post(line) : status;
}

static hd_status exchange_receive_one(struct hd_line *line, uint32_t is_whole)
{
    const hd_status status = hd_line_receive(line);

    return status == HD_OK && is_whole ? hd_line_check(line, line->received - 1) : status;
}

static hd_status exchange_trip(struct hd_line *line, uint32_t is_whole)
{
    const uint32_t is_first = line->rank->rank == 0;
    hd_status status =
        is_first ? exchange_send_one(line, is_whole) : exchange_receive_one(line, is_whole);

    if (status == HD_OK) {
        status =
            is_first ? exchange_receive_one(line, is_whole) : exchange_send_one(line, is_whole);
    }
    return status;
}

/* Everything that it does after its time. */
static hd_status exchange_finish(struct hd_line *line, uint32_t count, uint32_t is_whole)
{
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < count; i++) {
        status = is_whole ? HD_OK : exchange_read_late(line, line->released);
        if (status == HD_OK) {
            status = hd_line_release(line);
        }
    }
    return status;
}

/* `count` trips, the first of which waits for the peer to be ready. */
static hd_status exchange_burst(struct hd_line *line, uint32_t count, uint32_t is_whole,
                                struct hd_exchange_sample *sample)
{
    hd_line_renew(line);
    uint64_t end_ns = 0;
    hd_status status = exchange_prepare(line, count, is_whole);

    for (uint32_t i = 0; status == HD_OK && i < count; i++) {
        const uint64_t begin_ns = end_ns;
        status = exchange_trip(line, is_whole);
        end_ns = hd_now_ns();
        if (i > 0 && status == HD_OK) {
            exchange_keep(sample, hd_bench_between_us(begin_ns, end_ns));
        }
    }
    return status == HD_OK ? exchange_finish(line, count, is_whole) : status;
}

/* --- latency on a device --------------------------------------------------------------------- */

/* Into the stream: what rank 0 sends, and what comes back; rank 1 the other way round.  Only rank
   0 marks every trip: at rank 1 a mark would be part of it. */
static hd_status exchange_enqueue_trips(struct hd_line *line, uint32_t count, uint64_t *marks)
{
    const struct hd_lent *lent = &line->shape.device->lent;
    const uint32_t is_first = line->rank->rank == 0;
    hd_status status = is_first ? lent->ops->mark(lent->kernel, &marks[0]) : HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < count; i++) {
        status = exchange_trip(line, 0);
        if (status == HD_OK && is_first) {
            status = lent->ops->mark(lent->kernel, &marks[i + 1]);
        }
    }
    return status;
}

/* The whole burst stands in the stream before it runs; the times are those of the device. */
static hd_status exchange_burst_on_device(struct hd_line *line, uint32_t count,
                                          struct hd_exchange_sample *sample)
{
    uint64_t marks[BURST_MAX + 1], passed_ns = 0, before_ns = 0;
    const uint32_t mark_count = line->rank->rank == 0 ? count + 1 : 0;

    assert(count <= BURST_MAX);
    hd_line_renew(line);
    hd_status status = exchange_prepare(line, count, 0);
    if (status == HD_OK) {
        status = exchange_enqueue_trips(line, count, marks);
    }
    if (status == HD_OK) {
        status = hd_line_settle(line);
    }
    for (uint32_t i = 0; status == HD_OK && i < mark_count; i++) {
        status = hd_line_reach(line, marks[i], &passed_ns);
        if (status == HD_OK && i > 1) {
            exchange_keep(sample, hd_bench_between_us(before_ns, passed_ns));
        }
        before_ns = passed_ns;
    }
    return status == HD_OK ? exchange_finish(line, count, 0) : status;
}

hd_status hd_exchange_latency(struct hd_line *line, const struct hd_exchange *exchange,
                              struct hd_exchange_sample *sample)
{
    const uint32_t depth = line->shape.depth < BURST_MAX ? line->shape.depth : BURST_MAX;
    const uint32_t most = line->shape.device != NULL ? depth - 1 : line->shape.depth - 1;
    hd_status status = HD_OK;

    for (uint32_t left = exchange->count; status == HD_OK && left > 0;) {
        const uint32_t counted = left < most ? left : most;
        status = line->shape.device != NULL
                     ? exchange_burst_on_device(line, counted + 1, sample)
                     : exchange_burst(line, counted + 1, exchange->is_whole, sample);
        left -= counted;
    }
    return status == HD_OK ? hd_line_fence(line) : status;
}

/* --- streams --------------------------------------------------------------------------------- */

/* A window smaller than the depth: the message `window` before has to be away first. */
static hd_status exchange_keep_window(struct hd_line *line, uint64_t first, uint32_t window)
{
    if (window >= line->shape.depth || line->sent < first + window) {
        return HD_OK;
    }
    const struct hd_message message = {.sequence = line->sent - window, .channel = line->out};
    return hd_line_wait(line, &message);
}

static hd_status exchange_push(struct hd_line *line, uint32_t is_whole)
{
    const hd_status status =
        is_whole ? hd_line_fill(line, line->sent) : hd_line_stamp(line, line->sent);
    return status == HD_OK ? hd_line_post(line) : status;
}

static hd_status exchange_pull(struct hd_line *line, uint32_t is_whole)
{
    const hd_status status =
        is_whole ? hd_line_check(line, line->released) : hd_line_glance(line, line->released);
    return status == HD_OK ? hd_line_release(line) : status;
}

static void exchange_renew(struct hd_line *line, uint64_t turn)
{
    if (turn % RENEW_COUNT == 0) {
        hd_line_renew(line);
    }
}

static hd_status exchange_send_all(struct hd_line *line, const struct hd_exchange *exchange)
{
    const uint64_t first = line->sent, end = line->sent + exchange->count;
    hd_status status = HD_OK;

    while (status == HD_OK && line->sent < end) {
        exchange_renew(line, line->sent);
        status = exchange_keep_window(line, first, exchange->window);
        if (status == HD_OK) {
            status = hd_line_reserve(line, line->sent + 1);
        }
        if (status == HD_OK) {
            status = exchange_push(line, exchange->is_whole);
        }
    }
    return status;
}

static hd_status exchange_receive_all(struct hd_line *line, const struct hd_exchange *exchange)
{
    const uint64_t end = line->received + exchange->count;
    hd_status status = HD_OK;

    while (status == HD_OK && line->received < end) {
        exchange_renew(line, line->received);
        status = hd_line_expect(line, end);
        if (status == HD_OK) {
            status = hd_line_receive(line);
        }
        if (status == HD_OK) {
            status = exchange_pull(line, exchange->is_whole);
        }
    }
    return status;
}

/* --- both ways at once ----------------------------------------------------------------------- */

/* HD_OK: a message went; HD_BUSY: none could. */
static hd_status exchange_try_send(struct hd_line *line, const struct hd_exchange *exchange,
                                   uint64_t first)
{
    const struct hd_message message = {.sequence = line->sent, .channel = line->out};
    const struct hd_message older = {.sequence = line->sent - exchange->window,
                                     .channel = line->out};
    hd_status status = HD_OK;

    if (exchange->window < line->shape.depth && line->sent >= first + exchange->window) {
        status = line->ops->test(line->transport, &older);
    }
    if (status == HD_OK) {
        status = line->ops->reserve(line->transport, &message);
        line->reserved += status == HD_OK;
    }
    if (status == HD_OK) {
        return exchange_push(line, exchange->is_whole);
    }
    return status == HD_IN_PROGRESS ? HD_BUSY : status;
}

static hd_status exchange_try_receive(struct hd_line *line, const struct hd_exchange *exchange,
                                      uint64_t end)
{
    const struct hd_message message = {.sequence = line->received, .channel = line->in};
    hd_status status = hd_line_expect(line, end);

    if (status == HD_OK) {
        status = line->ops->test(line->transport, &message);
    }
    if (status == HD_OK) {
        line->received++;
        return exchange_pull(line, exchange->is_whole);
    }
    return status == HD_IN_PROGRESS ? HD_BUSY : status;
}

static hd_status exchange_idle(struct hd_line *line)
{
    if (line->ops->progress == NULL || line->ops->progress(line->transport) == HD_IN_PROGRESS) {
        sched_yield();
    }
    return hd_now_ns() < line->deadline_ns ? HD_OK : HD_TIMEOUT;
}

static hd_status exchange_all(struct hd_line *line, const struct hd_exchange *exchange)
{
    const uint64_t first = line->sent;
    const uint64_t send_end = line->sent + exchange->count;
    const uint64_t receive_end = line->received + exchange->count;
    hd_status status = HD_OK;

    while (status >= 0 && (line->sent < send_end || line->received < receive_end)) {
        hd_status sent = HD_BUSY, received = HD_BUSY;
        exchange_renew(line, line->sent + line->received);
        if (line->sent < send_end) {
            sent = exchange_try_send(line, exchange, first);
        }
        if (sent >= 0 && line->received < receive_end) {
            received = exchange_try_receive(line, exchange, receive_end);
        }
        status = sent < 0 ? sent : received;
        if (sent == HD_BUSY && received == HD_BUSY) {
            status = exchange_idle(line);
        }
    }
    return status < 0 ? status : HD_OK;
}

/* Law 7: both ways in one order, which leaves nothing to happen at once. */
static hd_status exchange_in_order(struct hd_line *line, const struct hd_exchange *exchange)
{
    const uint64_t end = line->sent + exchange->count;
    hd_status status = HD_OK;

    while (status == HD_OK && line->sent < end) {
        exchange_renew(line, line->sent);
        status = hd_line_reserve(line, line->sent + 1);
        if (status == HD_OK && line->rank->rank == 0) {
            status = exchange_push(line, exchange->is_whole);
        }
        if (status == HD_OK) {
            status = hd_line_receive(line);
        }
        if (status == HD_OK && line->rank->rank != 0) {
            status = exchange_push(line, exchange->is_whole);
        }
        if (status == HD_OK) {
            status = exchange_pull(line, exchange->is_whole);
        }
    }
    return status;
}

/* --- the clock ------------------------------------------------------------------------------- */

hd_status hd_exchange_stream(struct hd_line *line, const struct hd_exchange *exchange,
                             double *gbytes)
{
    const double ways = exchange->is_both ? 2 : 1;
    hd_line_renew(line);
    hd_status status = hd_line_meet(line);

    assert(exchange->window > 0);
    const uint64_t begin_ns = hd_now_ns();
    if (status == HD_OK && exchange->is_both) {
        status = line->is_serial ? exchange_in_order(line, exchange) : exchange_all(line, exchange);
    } else if (status == HD_OK) {
        status = line->rank->rank == 0 ? exchange_send_all(line, exchange)
                                       : exchange_receive_all(line, exchange);
    }
    if (status == HD_OK) {
        status = hd_line_meet(line);
    }
    const double seconds = (double)(hd_now_ns() - begin_ns) * 1e-9;
    if (status == HD_OK) {
        status = hd_line_look(line);
    }
    *gbytes = ways * exchange->count * (double)line->shape.bytes * 1e-9 / seconds;
    return status == HD_OK ? hd_line_fence(line) : status;
}
