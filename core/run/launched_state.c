#include "run/launched_state.h"
#include "base/clock.h"
#include "base/number.h"

#include <stdlib.h>
#include <string.h>

struct state {
    struct hd_rank_state state; /* since_ns is an age */
    uint64_t heartbeat_age_ns, stopped_age_ns;
    uint32_t is_dead, is_stopped;
};

struct channel {
    uint32_t index, reserved;
    struct hd_channel_result result;
};

void hd_launched_tell(struct hd_link *link, uint32_t kind, const void *bytes, uint64_t count)
{
    const struct hd_link_message message = {kind, hd_link_rank(link), bytes, count};

    hd_link_send(link, UINT32_MAX, &message);
}

/* --- the board ------------------------------------------------------------------------------ */

static void launched_state_pack(struct hd_board *board, uint32_t rank, struct state *state)
{
    const struct hd_rank_row *row = &board->rows[rank];
    const uint64_t now_ns = hd_now_ns();

    memset(state, 0, sizeof *state);
    hd_board_read(board, rank, &state->state);
    state->state.since_ns = hd_age_ns(now_ns, state->state.since_ns);
    state->heartbeat_age_ns = hd_age_ns(now_ns, atomic_load(&row->heartbeat_ns));
    state->stopped_age_ns = hd_age_ns(now_ns, atomic_load(&row->stopped_ns));
    state->is_dead = atomic_load(&row->is_dead);
    state->is_stopped = atomic_load(&row->is_stopped);
}

/* The rank is another process's, so this parent is the only writer of its row here. */
static void launched_state_take(struct hd_board *board, uint32_t rank, struct state state)
{
    struct hd_rank_row *row = &board->rows[rank];
    const uint64_t now_ns = hd_now_ns();

    state.state.since_ns = hd_age_ns(now_ns, state.state.since_ns);
    hd_board_publish(board, rank, &state.state);
    atomic_store(&row->heartbeat_ns, hd_age_ns(now_ns, state.heartbeat_age_ns));
    atomic_store(&row->stopped_ns, hd_age_ns(now_ns, state.stopped_age_ns));
    atomic_store(&row->is_stopped, state.is_stopped);
    if (state.is_dead) {
        atomic_store(&row->is_dead, 1u);
    }
}

void hd_launched_tell_states(struct hd_link *link, const struct hd_shared *shared)
{
    struct hd_board *board = shared->board;
    const uint32_t own = hd_link_rank(link);
    struct state *states;

    if (own != 0) {
        struct state state;
        atomic_store(&shared->ranks[own].clock_offset_ns,
                     hd_clock_last(hd_link_clock(link)).offset_ns);
        launched_state_pack(board, own, &state);
        hd_launched_tell(link, HD_SAY_STATE, &state, sizeof state);
        return;
    }
    states = calloc(board->rank_count, sizeof *states);
    for (uint32_t rank = 0; states != NULL && rank < board->rank_count; rank++) {
        launched_state_pack(board, rank, &states[rank]);
    }
    if (states != NULL) { /* else the next call sends them */
        hd_launched_tell(link, HD_SAY_STATES, states, board->rank_count * sizeof *states);
    }
    free(states);
}

void hd_launched_take_states(const struct hd_link *link, const struct hd_shared *shared,
                             const struct hd_link_message *message)
{
    const bool is_all = message->kind == HD_SAY_STATES;
    const uint32_t count = is_all ? shared->rank_count : 1;
    struct state state;

    if (message->byte_count != count * sizeof state) {
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t rank = is_all ? i : message->rank;
        memcpy(&state, (const unsigned char *)message->bytes + i * sizeof state, sizeof state);
        if (rank != hd_link_rank(link)) {
            launched_state_take(shared->board, rank, state);
        }
    }
}

/* --- results ---------------------------------------------------------------------------------- */

void hd_launched_tell_results(struct hd_link *link, const struct hd_shared *shared)
{
    const uint32_t rank = hd_link_rank(link);
    const struct hd_clock *clock = hd_link_clock(link);
    struct hd_rank_result *result = &shared->ranks[rank];
    struct hd_record *records = hd_shared_records(shared, rank);

    result->clock_first = clock->first;
    result->clock_last = hd_clock_last(clock);
    hd_launched_tell(link, HD_SAY_RESULT, result, sizeof *result);
    for (uint32_t i = 0; i < shared->remote_count; i++) {
        const struct channel channel = {.index = i, .result = shared->channels[i]};
        if (channel.result.carrier[0] != '\0') {
            hd_launched_tell(link, HD_SAY_CHANNEL, &channel, sizeof channel);
        }
    }
    for (uint64_t i = 0; i < shared->record_count; i++) {
        hd_record_shift(&records[i], hd_clock_offset_ns(clock, records[i].begin_ns));
    }
    if (shared->record_count > 0) {
        hd_launched_tell(link, HD_SAY_RECORDS, records, shared->record_count * sizeof *records);
    }
}

static void launched_state_take_channel(const struct hd_shared *shared,
                                        const struct hd_link_message *message)
{
    struct channel channel;

    if (message->byte_count != sizeof channel) {
        return;
    }
    memcpy(&channel, message->bytes, sizeof channel);
    channel.result.carrier[sizeof channel.result.carrier - 1] = '\0';
    if (channel.index >= shared->remote_count) {
        return;
    }
    struct hd_channel_result *row = &shared->channels[channel.index];
    memcpy(row->carrier, channel.result.carrier, sizeof row->carrier);
    for (unsigned end = 0; end < 2; end++) { /* a rank knows its own end only */
        row->resident_ns[end] += channel.result.resident_ns[end];
    }
}

void hd_launched_take_results(const struct hd_shared *shared, const struct hd_link_message *message)
{
    struct hd_rank_result *result = &shared->ranks[message->rank];
    const uint64_t record_bytes = shared->record_count * sizeof *shared->records;

    if (message->kind == HD_SAY_RESULT && message->byte_count == sizeof *result) {
        memcpy(result, message->bytes, sizeof *result);
        result->tag_count = hd_min_u32(result->tag_count, HD_RANK_TAG_MAX);
    } else if (message->kind == HD_SAY_CHANNEL) {
        launched_state_take_channel(shared, message);
    } else if (message->kind == HD_SAY_RECORDS && message->byte_count == record_bytes) {
        memcpy(hd_shared_records(shared, message->rank), message->bytes, record_bytes);
    }
}
