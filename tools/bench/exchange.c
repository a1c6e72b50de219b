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
static hd_status exchange_write_early(struct hd_pair *pair, uint64_t sequence)
{
    return pair->shape.device != NULL ? hd_pair_fill(pair, sequence)
                                      : hd_pair_stamp(pair, sequence);
}

static hd_status exchange_read_late(struct hd_pair *pair, uint64_t sequence)
{
    return pair->shape.device != NULL ? hd_pair_check(pair, sequence)
                                      : hd_pair_glance(pair, sequence);
}

/* Everything that a burst does before its time: slots and receives, and of a bare one the
   stamps. */
static hd_status exchange_prepare(struct hd_pair *pair, uint32_t count, uint32_t is_whole)
{
    hd_status status = hd_pair_reserve(pair, pair->out.sent_count + count);

    if (status == HD_OK) {
        status = hd_pair_expect(pair, pair->received + count);
    }
    for (uint32_t i = 0; status == HD_OK && !is_whole && i < count; i++) {
        status = exchange_write_early(pair, pair->out.sent_count + i);
    }
    return status == HD_OK ? hd_pair_settle(pair) : status;
}

static hd_status exchange_send_one(struct hd_pair *pair, uint32_t is_whole)
{
    const hd_status status = is_whole ? hd_pair_fill(pair, pair->out.sent_count) : HD_OK;
    return status == HD_OK ? hd_lane_send_next(&pair->out, 0) : status;
}

static hd_status exchange_receive_one(struct hd_pair *pair, uint32_t is_whole)
{
    const hd_status status = hd_pair_receive(pair);

    return status == HD_OK && is_whole ? hd_pair_check(pair, pair->received - 1) : status;
}

static hd_status exchange_trip(struct hd_pair *pair, uint32_t is_whole)
{
    const uint32_t is_first = pair->rank->rank == 0;
    hd_status status =
        is_first ? exchange_send_one(pair, is_whole) : exchange_receive_one(pair, is_whole);

    if (status == HD_OK) {
        status =
            is_first ? exchange_receive_one(pair, is_whole) : exchange_send_one(pair, is_whole);
    }
    return status;
}

/* Everything that it does after its time. */
static hd_status exchange_finish(struct hd_pair *pair, uint32_t count, uint32_t is_whole)
{
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < count; i++) {
        status = is_whole ? HD_OK : exchange_read_late(pair, pair->in.released_count);
        if (status == HD_OK) {
            status = hd_lane_release_next(&pair->in);
        }
    }
    return status;
}

/* `count` trips, the first of which waits for the peer to be ready. */
static hd_status exchange_burst(struct hd_pair *pair, uint32_t count, uint32_t is_whole,
                                struct hd_exchange_sample *sample)
{
    hd_pair_renew(pair);
    uint64_t end_ns = 0;
    hd_status status = exchange_prepare(pair, count, is_whole);

    for (uint32_t i = 0; status == HD_OK && i < count; i++) {
        const uint64_t begin_ns = end_ns;
        status = exchange_trip(pair, is_whole);
        end_ns = hd_now_ns();
        if (i > 0 && status == HD_OK) {
            exchange_keep(sample, hd_drive_between_us(begin_ns, end_ns));
        }
    }
    return status == HD_OK ? exchange_finish(pair, count, is_whole) : status;
}

/* --- latency on a device --------------------------------------------------------------------- */

/* Into the stream: what rank 0 sends, and what comes back; rank 1 the other way round.  Only rank
   0 marks every trip: at rank 1 a mark would be part of it. */
static hd_status exchange_enqueue_trips(struct hd_pair *pair, uint32_t count, uint64_t *marks)
{
    const struct hd_lent *lent = &pair->shape.device->lent;
    const uint32_t is_first = pair->rank->rank == 0;
    hd_status status = is_first ? lent->ops->mark(lent->kernel, &marks[0]) : HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < count; i++) {
        status = exchange_trip(pair, 0);
        if (status == HD_OK && is_first) {
            status = lent->ops->mark(lent->kernel, &marks[i + 1]);
        }
    }
    return status;
}

/* The whole burst stands in the stream before it runs; the times are those of the device. */
static hd_status exchange_burst_on_device(struct hd_pair *pair, uint32_t count,
                                          struct hd_exchange_sample *sample)
{
    uint64_t marks[BURST_MAX + 1], passed_ns = 0, before_ns = 0;
    const uint32_t mark_count = pair->rank->rank == 0 ? count + 1 : 0;

    assert(count <= BURST_MAX);
    hd_pair_renew(pair);
    hd_status status = exchange_prepare(pair, count, 0);
    if (status == HD_OK) {
        status = exchange_enqueue_trips(pair, count, marks);
    }
    if (status == HD_OK) {
        status = hd_pair_settle(pair);
    }
    for (uint32_t i = 0; status == HD_OK && i < mark_count; i++) {
        status = hd_pair_reach(pair, marks[i], &passed_ns);
        if (status == HD_OK && i > 1) {
            exchange_keep(sample, hd_drive_between_us(before_ns, passed_ns));
        }
        before_ns = passed_ns;
    }
    return status == HD_OK ? exchange_finish(pair, count, 0) : status;
}

hd_status hd_exchange_latency(struct hd_pair *pair, const struct hd_exchange *exchange,
                              struct hd_exchange_sample *sample)
{
    const uint32_t depth = pair->shape.depth < BURST_MAX ? pair->shape.depth : BURST_MAX;
    const uint32_t most = pair->shape.device != NULL ? depth - 1 : pair->shape.depth - 1;
    hd_status status = HD_OK;

    for (uint32_t left = exchange->count; status == HD_OK && left > 0;) {
        const uint32_t counted = left < most ? left : most;
        status = pair->shape.device != NULL
                     ? exchange_burst_on_device(pair, counted + 1, sample)
                     : exchange_burst(pair, counted + 1, exchange->is_whole, sample);
        left -= counted;
    }
    return status == HD_OK ? hd_pair_fence(pair) : status;
}

/* --- streams --------------------------------------------------------------------------------- */

/* A window smaller than the depth: the message `window` before has to be away first. */
static hd_status exchange_keep_window(struct hd_pair *pair, uint64_t first, uint32_t window)
{
    if (window >= pair->shape.depth || pair->out.sent_count < first + window) {
        return HD_OK;
    }
    return hd_lane_wait(&pair->out, pair->out.sent_count - window, pair->deadline_ns);
}

static hd_status exchange_push(struct hd_pair *pair, uint32_t is_whole)
{
    const hd_status status = is_whole ? hd_pair_fill(pair, pair->out.sent_count)
                                      : hd_pair_stamp(pair, pair->out.sent_count);
    return status == HD_OK ? hd_lane_send_next(&pair->out, 0) : status;
}

static hd_status exchange_pull(struct hd_pair *pair, uint32_t is_whole)
{
    const hd_status status = is_whole ? hd_pair_check(pair, pair->in.released_count)
                                      : hd_pair_glance(pair, pair->in.released_count);
    return status == HD_OK ? hd_lane_release_next(&pair->in) : status;
}

static void exchange_renew(struct hd_pair *pair, uint64_t count)
{
    if (count % RENEW_COUNT == 0) {
        hd_pair_renew(pair);
    }
}

static hd_status exchange_send_all(struct hd_pair *pair, const struct hd_exchange *exchange)
{
    const uint64_t first = pair->out.sent_count, end = pair->out.sent_count + exchange->count;
    hd_status status = HD_OK;

    while (status == HD_OK && pair->out.sent_count < end) {
        exchange_renew(pair, pair->out.sent_count);
        status = exchange_keep_window(pair, first, exchange->window);
        if (status == HD_OK) {
            status = hd_pair_reserve(pair, pair->out.sent_count + 1);
        }
        if (status == HD_OK) {
            status = exchange_push(pair, exchange->is_whole);
        }
    }
    return status;
}

static hd_status exchange_receive_all(struct hd_pair *pair, const struct hd_exchange *exchange)
{
    const uint64_t end = pair->received + exchange->count;
    hd_status status = HD_OK;

    while (status == HD_OK && pair->received < end) {
        exchange_renew(pair, pair->received);
        status = hd_pair_expect(pair, end);
        if (status == HD_OK) {
            status = hd_pair_receive(pair);
        }
        if (status == HD_OK) {
            status = exchange_pull(pair, exchange->is_whole);
        }
    }
    return status;
}

/* --- both ways at once ----------------------------------------------------------------------- */

/* HD_OK: a message went; HD_BUSY: none could. */
static hd_status exchange_try_send(struct hd_pair *pair, const struct hd_exchange *exchange,
                                   uint64_t first)
{
    struct hd_lane *out = &pair->out;
    hd_status status = HD_OK;

    if (exchange->window < pair->shape.depth && out->sent_count >= first + exchange->window) {
        status = hd_lane_test(out, out->sent_count - exchange->window);
    }
    if (status == HD_OK) {
        status = hd_lane_reserve(out, out->sent_count);
        out->written_count += status == HD_OK;
    }
    if (status == HD_OK) {
        return exchange_push(pair, exchange->is_whole);
    }
    return status == HD_IN_PROGRESS ? HD_BUSY : status;
}

static hd_status exchange_try_receive(struct hd_pair *pair, const struct hd_exchange *exchange,
                                      uint64_t end)
{
    hd_status status = hd_pair_expect(pair, end);

    if (status == HD_OK) {
        status = hd_lane_test(&pair->in, pair->received);
    }
    if (status == HD_OK) {
        pair->received++;
        return exchange_pull(pair, exchange->is_whole);
    }
    return status == HD_IN_PROGRESS ? HD_BUSY : status;
}

static hd_status exchange_idle(struct hd_pair *pair)
{
    if (pair->drive.ops->progress == NULL ||
        pair->drive.ops->progress(pair->drive.transport) == HD_IN_PROGRESS) {
        sched_yield();
    }
    return hd_now_ns() < pair->deadline_ns ? HD_OK : HD_TIMEOUT;
}

static hd_status exchange_all(struct hd_pair *pair, const struct hd_exchange *exchange)
{
    const uint64_t first = pair->out.sent_count;
    const uint64_t send_end = pair->out.sent_count + exchange->count;
    const uint64_t receive_end = pair->received + exchange->count;
    hd_status status = HD_OK;

    while (status >= 0 && (pair->out.sent_count < send_end || pair->received < receive_end)) {
        hd_status sent = HD_BUSY, received = HD_BUSY;
        exchange_renew(pair, pair->out.sent_count + pair->received);
        if (pair->out.sent_count < send_end) {
            sent = exchange_try_send(pair, exchange, first);
        }
        if (sent >= 0 && pair->received < receive_end) {
            received = exchange_try_receive(pair, exchange, receive_end);
        }
        status = sent < 0 ? sent : received;
        if (sent == HD_BUSY && received == HD_BUSY) {
            status = exchange_idle(pair);
        }
    }
    return status < 0 ? status : HD_OK;
}

/* Law 7: both ways in one order, which leaves nothing to happen at once. */
static hd_status exchange_in_order(struct hd_pair *pair, const struct hd_exchange *exchange)
{
    const uint64_t end = pair->out.sent_count + exchange->count;
    hd_status status = HD_OK;

    while (status == HD_OK && pair->out.sent_count < end) {
        exchange_renew(pair, pair->out.sent_count);
        status = hd_pair_reserve(pair, pair->out.sent_count + 1);
        if (status == HD_OK && pair->rank->rank == 0) {
            status = exchange_push(pair, exchange->is_whole);
        }
        if (status == HD_OK) {
            status = hd_pair_receive(pair);
        }
        if (status == HD_OK && pair->rank->rank != 0) {
            status = exchange_push(pair, exchange->is_whole);
        }
        if (status == HD_OK) {
            status = exchange_pull(pair, exchange->is_whole);
        }
    }
    return status;
}

/* --- the clock ------------------------------------------------------------------------------- */

hd_status hd_exchange_stream(struct hd_pair *pair, const struct hd_exchange *exchange,
                             double *gbytes)
{
    const double ways = exchange->is_both ? 2 : 1;
    hd_pair_renew(pair);
    hd_status status = hd_pair_meet(pair);

    assert(exchange->window > 0);
    const uint64_t begin_ns = hd_now_ns();
    if (status == HD_OK && exchange->is_both) {
        status = pair->is_serial ? exchange_in_order(pair, exchange) : exchange_all(pair, exchange);
    } else if (status == HD_OK) {
        status = pair->rank->rank == 0 ? exchange_send_all(pair, exchange)
                                       : exchange_receive_all(pair, exchange);
    }
    if (status == HD_OK) {
        status = hd_pair_meet(pair);
    }
    const double seconds = (double)(hd_now_ns() - begin_ns) * 1e-9;
    if (status == HD_OK) {
        status = hd_pair_look(pair);
    }
    *gbytes = ways * exchange->count * (double)pair->shape.bytes * 1e-9 / seconds;
    return status == HD_OK ? hd_pair_fence(pair) : status;
}
