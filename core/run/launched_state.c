#include "run/launched_internal.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

struct state {
    struct hd_rank_state state; /* since_ns is an age */
    uint64_t heartbeat_age_ns, stopped_age_ns;
    uint32_t is_dead, is_stopped;
};

struct lane {
    uint32_t channel, reserved;
    struct hd_session_lane lane;
};

/* --- the board ------------------------------------------------------------------------------ */

static void launched_state_pack_state(struct hd_board *board, uint32_t rank, struct state *state)
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

/* Of another process's rank: this parent is the row's only writer here. */
static void launched_state_take_state(struct hd_board *board, uint32_t rank, struct state state)
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

void hd_launched_tell_states(struct hd_session *session)
{
    struct hd_board *board = hd_session_board(session->launched.region);
    struct state *states;

    if (hd_launched_rank(session) != 0) {
        struct state state;
        atomic_store(&hd_session_rank(session, session->launched.region, hd_launched_rank(session))
                          ->clock_offset_ns,
                     hd_clock_last(hd_link_clock(session->request.link)).offset_ns);
        launched_state_pack_state(board, hd_launched_rank(session), &state);
        hd_launched_tell(session, HD_SAY_STATE, &state, sizeof state);
        return;
    }
    states = calloc(board->rank_count, sizeof *states);
    for (uint32_t rank = 0; states != NULL && rank < board->rank_count; rank++) {
        launched_state_pack_state(board, rank, &states[rank]);
    }
    if (states != NULL) { /* else the next time will do */
        hd_launched_tell(session, HD_SAY_STATES, states, board->rank_count * sizeof *states);
    }
    free(states);
}

static void launched_state_take_all_states(struct hd_session *session,
                                           const struct hd_link_message *message)
{
    struct hd_board *board = hd_session_board(session->launched.region);
    struct state state;

    if (message->byte_count != board->rank_count * sizeof state) {
        return;
    }
    for (uint32_t rank = 0; rank < board->rank_count; rank++) {
        memcpy(&state, (const unsigned char *)message->bytes + rank * sizeof state, sizeof state);
        if (rank != hd_launched_rank(session)) {
            launched_state_take_state(board, rank, state);
        }
    }
}

void hd_launched_take_states(struct hd_session *session, const struct hd_link_message *message)
{
    struct state state;

    if (message->kind == HD_SAY_STATES) {
        launched_state_take_all_states(session, message);
    } else if (message->byte_count == sizeof state) {
        memcpy(&state, message->bytes, sizeof state);
        launched_state_take_state(hd_session_board(session->launched.region), message->rank, state);
    }
}

/* --- results ---------------------------------------------------------------------------------- */

void hd_launched_tell_results(struct hd_session *session)
{
    void *region = session->launched.region;
    const uint32_t rank = hd_launched_rank(session);
    struct hd_record *records = hd_session_records(session, region, rank);
    const struct hd_clock *clock = hd_link_clock(session->request.link);
    struct hd_rank_result *result = hd_session_rank(session, region, rank);
    struct lane lane = {0};

    result->clock_first = clock->first;
    result->clock_last = hd_clock_last(clock);

    hd_launched_tell(session, HD_SAY_RESULT, result, sizeof *result);
    for (lane.channel = 0; lane.channel < session->job->pipeline->remote_count; lane.channel++) {
        lane.lane = *hd_session_lane(session, region, lane.channel);
        if (lane.lane.text[0] != '\0') {
            hd_launched_tell(session, HD_SAY_LANE, &lane, sizeof lane);
        }
    }
    for (uint64_t i = 0; i < session->record_count; i++) {
        hd_record_shift(&records[i], hd_clock_offset_ns(clock, records[i].begin_ns));
    }
    if (session->record_count > 0) {
        hd_launched_tell(session, HD_SAY_RECORDS, records, session->record_count * sizeof *records);
    }
}

static void launched_state_take_lane(struct hd_session *session,
                                     const struct hd_link_message *message)
{
    struct lane lane;

    if (message->byte_count != sizeof lane) {
        return;
    }
    memcpy(&lane, message->bytes, sizeof lane);
    lane.lane.text[sizeof lane.lane.text - 1] = '\0';
    if (lane.channel >= session->job->pipeline->remote_count) {
        return;
    }
    struct hd_session_lane *row = hd_session_lane(session, session->launched.region, lane.channel);
    memcpy(row->text, lane.lane.text, sizeof row->text);
    for (unsigned end = 0; end < 2; end++) { /* a rank knows its own end only */
        row->resident_ns[end] += lane.lane.resident_ns[end];
    }
}

static void launched_state_take_result(struct hd_session *session,
                                       const struct hd_link_message *message)
{
    struct hd_rank_result *result =
        hd_session_rank(session, session->launched.region, message->rank);

    if (message->byte_count == sizeof *result) {
        memcpy(result, message->bytes, sizeof *result);
        if (result->tag_count > HD_SESSION_TAG_MAX) {
            result->tag_count = HD_SESSION_TAG_MAX;
        }
    }
}

static void launched_state_take_records(struct hd_session *session,
                                        const struct hd_link_message *message)
{
    if (message->byte_count == session->record_count * sizeof(struct hd_record)) {
        memcpy(hd_session_records(session, session->launched.region, message->rank), message->bytes,
               message->byte_count);
    }
}

void hd_launched_take_results(struct hd_session *session, const struct hd_link_message *message)
{
    if (message->kind == HD_SAY_RESULT) {
        launched_state_take_result(session, message);
    } else if (message->kind == HD_SAY_LANE) {
        launched_state_take_lane(session, message);
    } else if (message->kind == HD_SAY_RECORDS) {
        launched_state_take_records(session, message);
    }
}
