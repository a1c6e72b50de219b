/* bench/exchange.c - times messages between two readings of the clock, and nothing else. */
#include "bench/exchange.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/try.h"

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

/* --- one message ----------------------------------------------------------------------------- */

/* Writes all of the next message, or only its stamp, and sends it. */
static hd_status exchange_push(struct hd_pair *pair, bool is_whole)
{
    const uint64_t sequence = pair->out.sent_count;

    HD_TRY(is_whole ? hd_pair_fill(pair, sequence) : hd_pair_stamp(pair, sequence));
    return hd_lane_send_next(&pair->out, 0);
}

/* Compares all of the oldest message, or only its stamp, and releases it. */
static hd_status exchange_pull(struct hd_pair *pair, bool is_whole)
{
    const uint64_t sequence = pair->in.released_count;

    HD_TRY(is_whole ? hd_pair_check(pair, sequence) : hd_pair_glance(pair, sequence));
    return hd_lane_release_next(&pair->in);
}

/* --- latency --------------------------------------------------------------------------------- */

/* What a burst does before its time: slots, receives and, unless the trips write the messages, the
   stamps.  On a device no trip writes bytes, so all of them are written here and compared after the
   time; the host's are not, for they would leave its cache. */
static hd_status exchange_prepare(struct hd_pair *pair, uint32_t count, bool is_whole)
{
    const bool is_device = pair->shape.device != NULL;

    HD_TRY(hd_pair_reserve(pair, pair->out.sent_count + count));
    HD_TRY(hd_pair_expect(pair, pair->received + count));
    for (uint32_t i = 0; !is_whole && i < count; i++) {
        const uint64_t sequence = pair->out.sent_count + i;
        HD_TRY(is_device ? hd_pair_fill(pair, sequence) : hd_pair_stamp(pair, sequence));
    }
    return hd_pair_settle(pair);
}

static hd_status exchange_send_one(struct hd_pair *pair, bool is_whole)
{
    if (is_whole) {
        HD_TRY(hd_pair_fill(pair, pair->out.sent_count));
    }
    return hd_lane_send_next(&pair->out, 0);
}

static hd_status exchange_receive_one(struct hd_pair *pair, bool is_whole)
{
    HD_TRY(hd_pair_receive(pair));
    return is_whole ? hd_pair_check(pair, pair->received - 1) : HD_OK;
}

static hd_status exchange_trip(struct hd_pair *pair, bool is_whole)
{
    if (pair->rank->rank == 0) {
        HD_TRY(exchange_send_one(pair, is_whole));
        return exchange_receive_one(pair, is_whole);
    }
    HD_TRY(exchange_receive_one(pair, is_whole));
    return exchange_send_one(pair, is_whole);
}

/* What a burst does after its time. */
static hd_status exchange_finish(struct hd_pair *pair, uint32_t count, bool is_whole)
{
    const bool is_device = pair->shape.device != NULL;

    for (uint32_t i = 0; i < count; i++) {
        if (is_whole) {
            HD_TRY(hd_lane_release_next(&pair->in));
        } else {
            HD_TRY(exchange_pull(pair, is_device));
        }
    }
    return HD_OK;
}

/* `count` trips; the first waits for the peer to be ready and is not counted. */
static hd_status exchange_burst(struct hd_pair *pair, uint32_t count, bool is_whole,
                                struct hd_exchange_sample *sample)
{
    uint64_t end_ns = 0;

    hd_pair_renew(pair);
    HD_TRY(exchange_prepare(pair, count, is_whole));
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t begin_ns = end_ns;
        HD_TRY(exchange_trip(pair, is_whole));
        end_ns = hd_now_ns();
        if (i > 0) {
            exchange_keep(sample, hd_drive_between_us(begin_ns, end_ns));
        }
    }
    return exchange_finish(pair, count, is_whole);
}

/* The whole burst is in the stream before it runs, and the times are those of the device.  Only
   rank 0 marks every trip: at rank 1 a mark would be part of it. */
static hd_status exchange_burst_on_device(struct hd_pair *pair, uint32_t count,
                                          struct hd_exchange_sample *sample)
{
    const struct hd_lent *lent = pair->drive.device;
    const uint32_t mark_count = pair->rank->rank == 0 ? count + 1 : 0;
    uint64_t marks[BURST_MAX + 1], passed_ns = 0, before_ns = 0;

    assert(count <= BURST_MAX);
    hd_pair_renew(pair);
    HD_TRY(exchange_prepare(pair, count, false));
    for (uint32_t i = 0; i <= count; i++) {
        if (i > 0) {
            HD_TRY(exchange_trip(pair, false));
        }
        if (mark_count > 0) {
            HD_TRY(lent->ops->mark(lent->kernel, &marks[i]));
        }
    }
    HD_TRY(hd_pair_settle(pair));
    for (uint32_t i = 0; i < mark_count; i++) {
        HD_TRY(hd_pair_reach(pair, marks[i], &passed_ns));
        if (i > 1) {
            exchange_keep(sample, hd_drive_between_us(before_ns, passed_ns));
        }
        before_ns = passed_ns;
    }
    return exchange_finish(pair, count, false);
}

hd_status hd_exchange_latency(struct hd_pair *pair, const struct hd_exchange *exchange,
                              struct hd_exchange_sample *sample)
{
    const bool is_device = pair->shape.device != NULL;
    const uint32_t most =
        (is_device ? hd_min_u32(pair->shape.depth, BURST_MAX) : pair->shape.depth) - 1;

    for (uint32_t left = exchange->count; left > 0;) {
        const uint32_t counted = hd_min_u32(left, most);
        HD_TRY(is_device ? exchange_burst_on_device(pair, counted + 1, sample)
                         : exchange_burst(pair, counted + 1, exchange->is_whole, sample));
        left -= counted;
    }
    return hd_pair_fence(pair);
}

/* --- streams --------------------------------------------------------------------------------- */

/* In a window smaller than the depth, the message `window` before has to leave first. */
static bool exchange_is_full(const struct hd_pair *pair, uint64_t first, uint32_t window)
{
    return window < pair->shape.depth && pair->out.sent_count >= first + window;
}

static void exchange_renew(struct hd_pair *pair, uint64_t count)
{
    if (count % RENEW_COUNT == 0) {
        hd_pair_renew(pair);
    }
}

static hd_status exchange_send_all(struct hd_pair *pair, const struct hd_exchange *exchange)
{
    struct hd_lane *out = &pair->out;
    const uint64_t first = out->sent_count;

    while (out->sent_count < first + exchange->count) {
        exchange_renew(pair, out->sent_count);
        if (exchange_is_full(pair, first, exchange->window)) {
            HD_TRY(hd_lane_wait(out, out->sent_count - exchange->window, pair->deadline_ns));
        }
        HD_TRY(hd_pair_reserve(pair, out->sent_count + 1));
        HD_TRY(exchange_push(pair, exchange->is_whole));
    }
    return HD_OK;
}

static hd_status exchange_receive_all(struct hd_pair *pair, const struct hd_exchange *exchange)
{
    const uint64_t end = pair->received + exchange->count;

    while (pair->received < end) {
        exchange_renew(pair, pair->received);
        HD_TRY(hd_pair_expect(pair, end));
        HD_TRY(hd_pair_receive(pair));
        HD_TRY(exchange_pull(pair, exchange->is_whole));
    }
    return HD_OK;
}

/* --- both ways at once ----------------------------------------------------------------------- */

/* HD_OK: a message was sent; HD_BUSY or HD_IN_PROGRESS: none could be. */
static hd_status exchange_try_send(struct hd_pair *pair, const struct hd_exchange *exchange,
                                   uint64_t first)
{
    struct hd_lane *out = &pair->out;

    if (exchange_is_full(pair, first, exchange->window)) {
        HD_TRY(hd_lane_test(out, out->sent_count - exchange->window));
    }
    HD_TRY(hd_lane_reserve(out, out->sent_count));
    out->written_count++;
    return exchange_push(pair, exchange->is_whole);
}

static hd_status exchange_try_receive(struct hd_pair *pair, const struct hd_exchange *exchange,
                                      uint64_t end)
{
    HD_TRY(hd_pair_expect(pair, end));
    HD_TRY(hd_lane_test(&pair->in, pair->received));
    pair->received++;
    return exchange_pull(pair, exchange->is_whole);
}

static hd_status exchange_idle(struct hd_pair *pair)
{
    const struct hd_drive *drive = &pair->drive;

    if (drive->ops->progress == NULL || drive->ops->progress(drive->transport) == HD_IN_PROGRESS) {
        sched_yield();
    }
    return hd_now_ns() < pair->deadline_ns ? HD_OK : HD_TIMEOUT;
}

static hd_status exchange_all(struct hd_pair *pair, const struct hd_exchange *exchange)
{
    const uint64_t first = pair->out.sent_count;
    const uint64_t send_end = first + exchange->count;
    const uint64_t receive_end = pair->received + exchange->count;

    while (pair->out.sent_count < send_end || pair->received < receive_end) {
        hd_status sent = HD_BUSY, received = HD_BUSY;
        exchange_renew(pair, pair->out.sent_count + pair->received);
        if (pair->out.sent_count < send_end) {
            sent = exchange_try_send(pair, exchange, first);
        }
        if (sent >= 0 && pair->received < receive_end) {
            received = exchange_try_receive(pair, exchange, receive_end);
        }
        if (sent < 0 || received < 0) {
            return sent < 0 ? sent : received;
        }
        if (sent != HD_OK && received != HD_OK) {
            HD_TRY(exchange_idle(pair));
        }
    }
    return HD_OK;
}

/* Law 7: both ways in one order, so that nothing happens at once. */
static hd_status exchange_in_order(struct hd_pair *pair, const struct hd_exchange *exchange)
{
    const uint64_t end = pair->out.sent_count + exchange->count;
    const bool is_first = pair->rank->rank == 0;

    while (pair->out.sent_count < end) {
        exchange_renew(pair, pair->out.sent_count);
        HD_TRY(hd_pair_reserve(pair, pair->out.sent_count + 1));
        if (is_first) {
            HD_TRY(exchange_push(pair, exchange->is_whole));
        }
        HD_TRY(hd_pair_receive(pair));
        if (!is_first) {
            HD_TRY(exchange_push(pair, exchange->is_whole));
        }
        HD_TRY(exchange_pull(pair, exchange->is_whole));
    }
    return HD_OK;
}

/* --- the clock ------------------------------------------------------------------------------- */

static hd_status exchange_move(struct hd_pair *pair, const struct hd_exchange *exchange)
{
    if (exchange->is_both) {
        return pair->is_serial ? exchange_in_order(pair, exchange) : exchange_all(pair, exchange);
    }
    return pair->rank->rank == 0 ? exchange_send_all(pair, exchange)
                                 : exchange_receive_all(pair, exchange);
}

hd_status hd_exchange_stream(struct hd_pair *pair, const struct hd_exchange *exchange,
                             double *gbytes)
{
    const double bytes =
        (exchange->is_both ? 2.0 : 1.0) * exchange->count * (double)pair->shape.bytes;

    assert(exchange->window > 0);
    hd_pair_renew(pair);
    HD_TRY(hd_pair_meet(pair));
    const uint64_t begin_ns = hd_now_ns();
    HD_TRY(exchange_move(pair, exchange));
    HD_TRY(hd_pair_meet(pair));
    *gbytes = bytes / (double)(hd_now_ns() - begin_ns);
    HD_TRY(hd_pair_look(pair));
    return hd_pair_fence(pair);
}
