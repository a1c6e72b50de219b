#include "drive/pair.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/try.h"
#include "engine/pulse.h"
#include "run/launched.h"

#include <assert.h>
#include <string.h>

enum { ALIGNMENT_BYTES = 64 };
enum { STAMP_WORD = 1 << 20 }; /* of no body, and never 0 */

/* --- open and close -------------------------------------------------------------------------- */

static void pair_on_fail(void *context, const struct hd_plugin *plugin,
                         const struct hd_error *error)
{
    struct hd_pair *pair = context;
    hd_plugin_host_note(&pair->failure, plugin, error);
}

static void pair_on_transfer(void *context, const struct hd_transfer *transfer)
{
    struct hd_pair *pair = context;

    if (transfer->channel < 2) {
        pair->transfer = *transfer;
    }
}

static void pair_init_host(struct hd_pair *pair, uint32_t instance, const struct hd_plugin *plugin,
                           const struct hd_option_value *options, struct hd_plugin_host *host)
{
    *host = (struct hd_plugin_host){.plugin = plugin,
                                    .options = options,
                                    .rank = pair->rank->rank,
                                    .rank_count = HD_DRIVE_RANK_COUNT,
                                    .instance = instance,
                                    .is_untraced = pair->shape.is_untraced,
                                    .bootstrap = {.context = pair->rank->bootstrap,
                                                  .put = hd_bootstrap_put,
                                                  .get = hd_bootstrap_get,
                                                  .fence = hd_bootstrap_fence},
                                    .context = pair,
                                    .on_fail = pair_on_fail,
                                    .on_transfer = pair_on_transfer};
    hd_plugin_host_init(host);
}

hd_status hd_pair_bodies(uint64_t bytes, const unsigned char *bodies[2])
{
    const uint64_t stride_bytes = hd_round_up(bytes, 64);
    unsigned char *memory = hd_memory_take(2 * stride_bytes, 64, "bench");

    if (memory == NULL) {
        return HD_NO_MEMORY;
    }
    for (uint32_t body = 0; body < 2; body++) {
        bodies[body] = memory + body * stride_bytes;
        for (uint64_t word = 0; word < stride_bytes / 8; word++) {
            const uint64_t value = hd_pattern_word(2, body, word);
            memcpy(memory + body * stride_bytes + word * 8, &value, 8);
        }
    }
    return HD_OK;
}

hd_status hd_pair_check_hosts(const struct hd_pair_plugin *plugin, const struct hd_link *link,
                              struct hd_problem *problem)
{
    if (link == NULL || hd_link_rank(link) != 0) {
        return HD_OK;
    }
    return hd_launched_check_hosts(link, hd_pair_carrier(plugin), problem);
}

/* The needs of a hook are those of what it wraps. */
static hd_status pair_start_pulse(struct hd_pair *pair, struct hd_problem *problem)
{
    struct hd_drive *drive = &pair->drive;
    const bool has_engine_pulse = pair->shape.has_engine_pulse;
    const struct hd_pulse_need need = {
        .ops = drive->ops,
        .capabilities = has_engine_pulse ? drive->capabilities : 0,
        .is_hooked = has_engine_pulse && pair->plugin.inner != NULL,
        .is_device = has_engine_pulse && pair->shape.device != NULL,
        .is_asked = pair->shape.has_thread,
    };

    pair->period_ns = hd_pulse_period_ns(&need);
    if (pair->period_ns == 0) {
        return HD_OK;
    }
    const int error = hd_pulse_start(need.ops, pair->period_ns, &drive->ops, &drive->transport);
    return error == 0 ? HD_OK
                      : hd_problem_set(problem, HD_SYSTEM, HD_EXIT_FAILED,
                                       "cannot start the progress thread of transport %s: %s",
                                       pair->plugin.plugin->name, strerror(error));
}

static void pair_init_channels(struct hd_pair *pair)
{
    for (uint32_t i = 0; i < HD_PAIR_CHANNEL_COUNT; i++) {
        const bool is_ready = i >= 2;
        pair->channels[i] = (struct hd_channel){
            .boundary = is_ready,
            .direction = i % 2 == 0 ? HD_FORWARD : HD_BACKWARD,
            .source = i % 2,
            .target = 1 - i % 2,
            .depth = is_ready ? 2 : pair->shape.depth,
            .send_depth = is_ready ? 2 : pair->shape.depth,
            .bytes = is_ready ? HD_PAIR_STAMP_BYTES : pair->shape.bytes,
        };
        pair->list[i] = &pair->channels[i];
    }
}

static void pair_init_setup(struct hd_pair *pair)
{
    const struct hd_drive_device *device = pair->shape.device;

    pair->setup = (struct hd_transport_setup){
        .size = sizeof pair->setup,
        .channel_count = HD_PAIR_CHANNEL_COUNT,
        .channels = pair->list,
        .host = &pair->outer.host,
        .inner = pair->plugin.inner,
        .inner_host = pair->plugin.inner != NULL ? &pair->inner.host : NULL,
        .deadline_ns = pair->deadline_ns,
        .memory = device != NULL ? (uint32_t)device->lent.about.memory : HD_MEMORY_HOST,
        .device = device != NULL ? pair->rank->ordinal : 0,
        .alignment_bytes = device != NULL ? hd_lent_alignment(&device->lent) : ALIGNMENT_BYTES,
    };
    pair->drive = (struct hd_drive){
        .ops = pair->plugin.plugin->ops,
        .capabilities = hd_pair_carrier(&pair->plugin)->capabilities,
        .channels = pair->list,
        .channel_count = HD_PAIR_CHANNEL_COUNT,
        .rank = pair->rank->rank,
        .limit_ms = pair->rank->timeout_ns / HD_MS_NS,
        .device = device != NULL ? &device->lent : NULL,
    };
    pair->is_serial = (pair->drive.capabilities & HD_TRANSPORT_SERIAL) != 0;
}

static void pair_init_lanes(struct hd_pair *pair)
{
    const uint32_t out = pair->rank->rank, in = 1 - pair->rank->rank;

    pair->out = hd_drive_lane(&pair->drive, (struct hd_message){.channel = out});
    pair->in = hd_drive_lane(&pair->drive, (struct hd_message){.channel = in});
    pair->ready_out = hd_drive_lane(&pair->drive, (struct hd_message){.channel = out + 2});
    pair->ready_in = hd_drive_lane(&pair->drive, (struct hd_message){.channel = in + 2});
}

static hd_status pair_take_stamps(struct hd_pair *pair, struct hd_problem *problem)
{
    const uint64_t bytes = (pair->shape.depth + HD_PAIR_UNREAD_MAX) * sizeof(uint64_t);

    if (pair->shape.device == NULL) {
        return HD_OK;
    }
    pair->stamps_out = hd_memory_take(bytes, 4096, "bench");
    if (pair->stamps_out == NULL) {
        return hd_problem_no_memory(problem, bytes, "stamps");
    }
    pair->stamps_in = pair->stamps_out + pair->shape.depth;
    return HD_OK;
}

hd_status hd_pair_open(struct hd_pair *pair, const struct hd_drive_rank *rank, uint32_t instance,
                       struct hd_problem *problem)
{
    const struct hd_pair_plugin plugin = pair->plugin;

    assert(pair->shape.bytes > 0 && pair->shape.depth > 1);
    *pair = (struct hd_pair){.rank = rank, .plugin = plugin, .shape = pair->shape};
    hd_pair_renew(pair);
    pair_init_channels(pair);
    pair_init_host(pair, instance, plugin.plugin, plugin.options, &pair->outer);
    if (plugin.inner != NULL) {
        pair_init_host(pair, instance, plugin.inner, plugin.inner_options, &pair->inner);
    }
    pair_init_setup(pair);
    const hd_status status = pair->drive.ops->open(&pair->setup, &pair->drive.transport);
    if (status != HD_OK) {
        return hd_pair_blame(pair, status, problem);
    }
    hd_pair_renew(pair);
    HD_TRY(pair_take_stamps(pair, problem));
    HD_TRY(pair_start_pulse(pair, problem));
    pair_init_lanes(pair);
    return HD_OK;
}

hd_status hd_pair_close(struct hd_pair *pair, struct hd_problem *problem)
{
    struct hd_drive *drive = &pair->drive;

    if (drive->transport == NULL) {
        return HD_OK;
    }
    hd_pair_renew(pair);
    hd_status status = hd_pair_settle(pair); /* nothing is under way before a rank says so */
    if (status == HD_OK) {
        status = hd_pair_fence(pair);
    }
    if (status == HD_OK && drive->ops->quiesce != NULL) {
        status = drive->ops->quiesce(drive->transport, pair->deadline_ns);
    }
    if (status == HD_OK) {
        status = hd_bootstrap_fence(pair->rank->bootstrap, pair->deadline_ns);
    }
    drive->ops->close(drive->transport, pair->deadline_ns);
    drive->transport = NULL;
    hd_memory_give(pair->stamps_out);
    pair->stamps_out = NULL;
    return status == HD_OK ? HD_OK : hd_pair_blame(pair, status, problem);
}

hd_status hd_pair_blame(struct hd_pair *pair, hd_status status, struct hd_problem *problem)
{
    assert(status < 0);
    if (pair->failure.exit_code != 0 && problem->exit_code == 0) {
        *problem = pair->failure;
    }
    if (pair->shape.device != NULL && problem->exit_code == 0 &&
        pair->shape.device->failure.exit_code != 0) {
        *problem = pair->shape.device->failure;
    }
    return hd_problem_set(problem, status, hd_exit_of(status), "%s returned %s",
                          pair->plugin.plugin->name, hd_status_name(status));
}

/* --- waits ----------------------------------------------------------------------------------- */

void hd_pair_renew(struct hd_pair *pair)
{
    pair->deadline_ns = hd_now_ns() + pair->rank->timeout_ns;
}

hd_status hd_pair_fence(struct hd_pair *pair)
{
    return hd_drive_fence(&pair->drive, pair->rank->bootstrap, pair->deadline_ns);
}

hd_status hd_pair_swap(struct hd_pair *pair, const void *mine, void *theirs, uint64_t bytes)
{
    HD_TRY(hd_pair_fence(pair));
    return hd_drive_swap(pair->rank, mine, theirs, bytes);
}

hd_status hd_pair_settle(struct hd_pair *pair)
{
    return hd_drive_settle(&pair->drive, pair->deadline_ns);
}

hd_status hd_pair_reach(struct hd_pair *pair, uint64_t mark, uint64_t *passed_ns)
{
    return hd_drive_reach(&pair->drive, mark, pair->deadline_ns, passed_ns);
}

/* --- messages -------------------------------------------------------------------------------- */

static hd_status pair_reserve_until(struct hd_pair *pair, struct hd_lane *lane, uint64_t end)
{
    for (; lane->written_count < end; lane->written_count++) {
        HD_TRY(hd_lane_reserve_by(lane, lane->written_count, pair->deadline_ns));
    }
    return HD_OK;
}

hd_status hd_pair_reserve(struct hd_pair *pair, uint64_t end)
{
    return pair_reserve_until(pair, &pair->out, end);
}

hd_status hd_pair_expect(struct hd_pair *pair, uint64_t end)
{
    return pair->is_serial ? HD_OK : hd_lane_post_free(&pair->in, end);
}

/* On a device the stream waits, and the host goes on. */
static hd_status pair_wait_to_read(struct hd_pair *pair, struct hd_lane *lane, uint64_t sequence)
{
    return hd_lane_waits_on_stream(lane) ? hd_lane_wait_on_stream(lane, sequence)
                                         : hd_lane_wait(lane, sequence, pair->deadline_ns);
}

hd_status hd_pair_receive(struct hd_pair *pair)
{
    if (pair->is_serial) {
        HD_TRY(hd_lane_post_free(&pair->in, pair->received + 1));
    }
    HD_TRY(pair_wait_to_read(pair, &pair->in, pair->received));
    pair->received++;
    return HD_OK;
}

static uint64_t pair_stamp_of(const struct hd_lane *lane, uint64_t sequence)
{
    return hd_pattern_word(lane->index, sequence, STAMP_WORD);
}

static hd_status pair_copy(struct hd_pair *pair, void *target, const void *source, uint64_t count)
{
    HD_TRY(hd_lent_copy(pair->drive.device, target, source, count));
    return hd_pair_settle(pair);
}

/* --- meeting --------------------------------------------------------------------------------- */

static hd_status pair_say_ready(struct hd_pair *pair)
{
    struct hd_lane *lane = &pair->ready_out;
    const uint64_t sequence = lane->sent_count;
    const uint64_t stamp = pair_stamp_of(lane, sequence);

    HD_TRY(pair_reserve_until(pair, lane, sequence + 1));
    HD_TRY(pair_copy(pair, hd_lane_slot(lane, sequence), &stamp, sizeof stamp));
    return hd_lane_send_next(lane, 0);
}

static hd_status pair_await_ready(struct hd_pair *pair)
{
    struct hd_lane *lane = &pair->ready_in;
    const uint64_t sequence = lane->released_count;
    uint64_t stamp = 0;

    HD_TRY(hd_lane_post_until(lane, sequence));
    HD_TRY(pair_wait_to_read(pair, lane, sequence));
    HD_TRY(pair_copy(pair, &stamp, hd_lane_slot(lane, sequence), sizeof stamp));
    pair->checked_count++;
    pair->wrong_count += stamp != pair_stamp_of(lane, sequence);
    return hd_lane_release_next(lane);
}

hd_status hd_pair_meet(struct hd_pair *pair)
{
    if (!pair->is_serial) {
        HD_TRY(hd_lane_post_until(&pair->ready_in, pair->ready_in.released_count));
    }
    if (pair->rank->rank == 0) {
        HD_TRY(pair_say_ready(pair));
        return pair_await_ready(pair);
    }
    HD_TRY(pair_await_ready(pair));
    return pair_say_ready(pair);
}

/* --- stamps ---------------------------------------------------------------------------------- */

static const unsigned char *pair_body_of(const struct hd_pair *pair, uint64_t sequence)
{
    return pair->shape.bodies[sequence / pair->shape.depth % 2];
}

static uint64_t pair_stamp_bytes(const struct hd_pair *pair)
{
    return hd_min_u64(pair->shape.bytes, HD_PAIR_STAMP_BYTES);
}

/* A slot may be written again once its message has left, so the copy of its stamp is over too. */
hd_status hd_pair_stamp(struct hd_pair *pair, uint64_t sequence)
{
    uint64_t own = pair_stamp_of(&pair->out, sequence);
    uint64_t *stamp = &own;

    if (pair->shape.device != NULL) {
        stamp = &pair->stamps_out[sequence % pair->shape.depth];
        *stamp = own;
    }
    return hd_lent_copy(pair->drive.device, hd_lane_slot(&pair->out, sequence), stamp,
                        pair_stamp_bytes(pair));
}

static void pair_count(struct hd_pair *pair, bool is_wrong)
{
    pair->checked_count++;
    pair->wrong_count += is_wrong;
}

hd_status hd_pair_look(struct hd_pair *pair)
{
    const hd_status status = pair->unread_count > 0 ? hd_pair_settle(pair) : HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < pair->unread_count; i++) {
        const uint64_t stamp = pair_stamp_of(&pair->in, pair->unread_first + i);
        pair_count(pair, memcmp(&pair->stamps_in[i], &stamp, pair_stamp_bytes(pair)) != 0);
    }
    pair->unread_count = 0;
    return status;
}

hd_status hd_pair_glance(struct hd_pair *pair, uint64_t sequence)
{
    const uint64_t stamp = pair_stamp_of(&pair->in, sequence);
    const unsigned char *slot = hd_lane_slot(&pair->in, sequence);

    if (pair->shape.device == NULL) {
        pair_count(pair, memcmp(slot, &stamp, pair_stamp_bytes(pair)) != 0);
        return HD_OK;
    }
    if (pair->unread_count == HD_PAIR_UNREAD_MAX) {
        HD_TRY(hd_pair_look(pair));
    }
    if (pair->unread_count == 0) {
        pair->unread_first = sequence;
    }
    assert(sequence == pair->unread_first + pair->unread_count);
    return hd_lent_copy(pair->drive.device, &pair->stamps_in[pair->unread_count++], slot,
                        pair_stamp_bytes(pair));
}

/* --- whole messages -------------------------------------------------------------------------- */

hd_status hd_pair_fill(struct hd_pair *pair, uint64_t sequence)
{
    const uint64_t head_bytes = pair_stamp_bytes(pair);
    unsigned char *slot = hd_lane_slot(&pair->out, sequence);

    HD_TRY(hd_lent_copy(pair->drive.device, slot + head_bytes,
                        pair_body_of(pair, sequence) + head_bytes, pair->shape.bytes - head_bytes));
    return hd_pair_stamp(pair, sequence);
}

hd_status hd_pair_check(struct hd_pair *pair, uint64_t sequence)
{
    const uint64_t stamp = pair_stamp_of(&pair->in, sequence);
    const uint64_t head_bytes = pair_stamp_bytes(pair);
    const struct hd_lent *lent = pair->drive.device;
    const unsigned char *slot = hd_lane_slot(&pair->in, sequence);

    if (lent != NULL) {
        assert(pair->shape.bytes <= lent->staging_bytes);
        HD_TRY(pair_copy(pair, lent->staging, slot, pair->shape.bytes));
        slot = lent->staging;
    }
    pair_count(pair, memcmp(slot, &stamp, head_bytes) != 0 ||
                         memcmp(slot + head_bytes, pair_body_of(pair, sequence) + head_bytes,
                                pair->shape.bytes - head_bytes) != 0);
    return HD_OK;
}

/* --- in place? ------------------------------------------------------------------------------- */

hd_status hd_pair_is_in_place(struct hd_pair *pair, bool *is_in_place)
{
    const uint64_t token = 0x5bd1e995c2b2ae35ull; /* no message begins so, nor fresh memory */
    const uint64_t count = pair_stamp_bytes(pair);
    uint64_t found = 0;
    bool mine = false, theirs = false;

    assert(pair->out.sent_count == 0 && pair->received == 0);
    if (pair->rank->rank == 0) {
        HD_TRY(hd_pair_reserve(pair, 1));
        HD_TRY(pair_copy(pair, hd_lane_slot(&pair->out, 0), &token, count));
    }
    HD_TRY(hd_pair_fence(pair));
    if (pair->rank->rank == 1) {
        HD_TRY(pair_copy(pair, &found, hd_lane_slot(&pair->in, 0), count));
        mine = memcmp(&found, &token, count) == 0;
    }
    HD_TRY(hd_pair_swap(pair, &mine, &theirs, sizeof mine));
    *is_in_place = mine || theirs;
    return HD_OK;
}
