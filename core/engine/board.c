#include "engine/board.h"
#include "base/clock.h"

#include <assert.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

/*
 * CAUSE_MS: how long a reader waits for a half-written row or cause.
 * STALE_MS: a heartbeat older than this means that the process is not running.
 * REST_MS: a rank that has waited this long is not about to be woken by a message.
 */
enum { CAUSE_MS = 500, STALE_MS = 2000, REST_MS = 40 };

/* A reader yields after so many reads of a half-written row. */
enum { YIELD_READS = 16 };

static uint64_t board_since_ms(uint64_t now_ns, uint64_t then_ns)
{
    return now_ns > then_ns ? (now_ns - then_ns) / HD_MS_NS : 0;
}

uint64_t hd_board_bytes(uint32_t rank_count)
{
    return sizeof(struct hd_board) + rank_count * sizeof(struct hd_rank_row);
}

void hd_board_init(struct hd_board *board, uint32_t rank_count)
{
    const struct hd_rank_state nowhere = {
        .peer = UINT32_MAX, .channel = UINT32_MAX, .since_ns = hd_now_ns()};

    assert(rank_count > 0);
    board->rank_count = rank_count;
    for (uint32_t rank = 0; rank < rank_count; rank++) {
        hd_board_publish(board, rank, &nowhere);
    }
}

void hd_board_publish(struct hd_board *board, uint32_t rank, const struct hd_rank_state *state)
{
    struct hd_rank_row *row = &board->rows[rank];
    const unsigned version = atomic_load_explicit(&row->version, memory_order_relaxed);
    uint64_t words[HD_STATE_WORDS];

    memcpy(words, state, sizeof words);
    atomic_store_explicit(&row->version, version + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (uint32_t i = 0; i < HD_STATE_WORDS; i++) {
        atomic_store_explicit(&row->state[i], words[i], memory_order_relaxed);
    }
    atomic_store_explicit(&row->version, version + 2, memory_order_release);
}

void hd_board_beat(struct hd_board *board, uint32_t rank)
{
    atomic_store_explicit(&board->rows[rank].heartbeat_ns, hd_now_ns(), memory_order_relaxed);
}

/*
 * A writer that died in the middle leaves an odd version.  The reader takes what is written, but
 * only after a time in which a writer that merely lost its core runs again, even on a busy machine.
 */
void hd_board_read(const struct hd_board *board, uint32_t rank, struct hd_rank_state *state)
{
    const struct hd_rank_row *row = &board->rows[rank];
    uint64_t words[HD_STATE_WORDS];
    uint64_t deadline_ns = 0;

    for (uint64_t read = 0;; read++) {
        const unsigned before = atomic_load_explicit(&row->version, memory_order_acquire);
        for (uint32_t i = 0; i < HD_STATE_WORDS; i++) {
            words[i] = atomic_load_explicit(&row->state[i], memory_order_relaxed);
        }
        memcpy(state, words, sizeof *state);
        atomic_thread_fence(memory_order_acquire);
        const unsigned after = atomic_load_explicit(&row->version, memory_order_relaxed);
        if (before == after && before % 2 == 0) {
            return;
        }
        if (read % YIELD_READS == YIELD_READS - 1) {
            const uint64_t now_ns = hd_now_ns();
            deadline_ns = deadline_ns == 0 ? now_ns + CAUSE_MS * HD_MS_NS : deadline_ns;
            if (now_ns > deadline_ns) {
                return;
            }
            sched_yield(); /* the writer may have lost its core in the middle */
        }
    }
}

/* Waits until the cause is written; false if its writer seems to have died in the middle. */
static bool board_await_cause(const struct hd_board *board)
{
    const uint64_t deadline_ns = hd_now_ns() + CAUSE_MS * HD_MS_NS;

    while (atomic_load_explicit(&board->is_caused, memory_order_acquire) != 2u) {
        if (hd_now_ns() > deadline_ns) {
            return false;
        }
        sched_yield();
    }
    return true;
}

bool hd_board_abort(struct hd_board *board, const struct hd_problem *problem)
{
    unsigned is_free = 0;
    const bool is_first = atomic_compare_exchange_strong(&board->is_caused, &is_free, 1u);

    assert(problem->exit_code > 0);
    if (is_first) {
        board->cause = *problem;
        hd_board_report(board, board->report, sizeof board->report);
        atomic_store_explicit(&board->is_caused, 2u, memory_order_release);
    } else {
        board_await_cause(board); /* a process that sees the abort must find the cause */
    }
    atomic_store(&board->abort, 1u);
    return is_first;
}

bool hd_board_cause(const struct hd_board *board, struct hd_problem *cause)
{
    if (board_await_cause(board)) {
        *cause = board->cause;
        return true;
    }
    memset(cause, 0, sizeof *cause);
    hd_problem_set(cause, HD_PEER_LOST, HD_EXIT_FAILED,
                   "a rank ended the run and died before it could give the reason");
    return false;
}

bool hd_board_is_aborted(const struct hd_board *board)
{
    return atomic_load_explicit(&board->abort, memory_order_acquire) != 0;
}

uint64_t hd_board_timeout_ns(const struct hd_board *board, uint32_t step)
{
    return step <= board->steps_before + 1 ? board->first_step_timeout_ns : board->timeout_ns;
}

uint32_t hd_board_newest_step(const struct hd_board *board)
{
    struct hd_rank_state state;
    uint32_t step = 0;

    for (uint32_t rank = 0; rank < board->rank_count; rank++) {
        hd_board_read(board, rank, &state);
        step = state.step > step ? state.step : step;
    }
    return step;
}

static bool board_is_waiting(const struct hd_rank_state *state)
{
    return state->phase == HD_PHASE_RECEIVE || state->phase == HD_PHASE_CREDIT ||
           state->phase == HD_PHASE_ORDER;
}

static bool board_is_alive(const struct hd_board *board, uint32_t rank, uint64_t now_ns)
{
    const struct hd_rank_row *row = &board->rows[rank];
    return !atomic_load(&row->is_dead) && !atomic_load(&row->is_stopped) &&
           board_since_ms(now_ns, atomic_load(&row->heartbeat_ns)) < STALE_MS;
}

/* The rank that a rank at the end of its step waits for: the first that has not got there, or else,
   if the ranks meet at different places, the first that is elsewhere. */
static uint32_t board_latecomer(const struct hd_board *board, uint32_t rank, uint32_t step,
                                bool *is_late)
{
    uint32_t elsewhere = UINT32_MAX;
    struct hd_rank_state state;

    *is_late = true;
    for (uint32_t other = 0; other < board->rank_count; other++) {
        hd_board_read(board, other, &state);
        if (other != rank && state.phase != HD_PHASE_TOGETHER && state.step <= step) {
            return other;
        }
        if (other != rank && state.step != step && elsewhere == UINT32_MAX) {
            elsewhere = other;
        }
    }
    *is_late = false;
    return elsewhere;
}

/* When a rank's deadline starts: when its phase began, or when it ran again after a stop. */
static uint64_t board_counted_from(const struct hd_board *board, uint32_t rank,
                                   const struct hd_rank_state *state)
{
    const uint64_t resumed_ns = atomic_load(&board->rows[rank].resumed_ns);
    return state->since_ns > resumed_ns ? state->since_ns : resumed_ns;
}

/* Whether every rank waits, has left, or is gone; raises `latest_ns` to the last change of any. */
static bool board_is_all_waiting(const struct hd_board *board, uint64_t now_ns, uint64_t *latest_ns)
{
    struct hd_rank_state state;

    for (uint32_t rank = 0; rank < board->rank_count; rank++) {
        hd_board_read(board, rank, &state);
        if (board_counted_from(board, rank, &state) > *latest_ns) {
            *latest_ns = board_counted_from(board, rank, &state);
        }
        if (!board_is_waiting(&state) && state.phase != HD_PHASE_TOGETHER &&
            state.phase != HD_PHASE_DONE && board_is_alive(board, rank, now_ns)) {
            return false;
        }
    }
    return true;
}

bool hd_board_is_overdue(const struct hd_board *board, uint32_t rank, uint64_t now_ns,
                         uint32_t *culprit)
{
    struct hd_rank_state state;
    uint32_t at = rank;

    hd_board_read(board, rank, &state);
    const uint64_t patience_ns = hd_board_timeout_ns(board, state.step);
    /* The last change on the chain: a message may have just come and not woken its reader yet. */
    uint64_t latest_ns = board_counted_from(board, rank, &state);
    *culprit = rank;
    if (now_ns < latest_ns || now_ns - latest_ns < patience_ns) {
        return false;
    }
    for (uint32_t hop = 0; hop <= board->rank_count; hop++) {
        if (hop > 0 && !board_is_alive(board, at, now_ns)) {
            return true;
        }
        if (board_counted_from(board, at, &state) > latest_ns) {
            latest_ns = board_counted_from(board, at, &state);
        }
        if (state.phase == HD_PHASE_DEVICE || (hop > 0 && state.phase == HD_PHASE_DONE)) {
            break;
        }
        uint32_t next = UINT32_MAX;
        if (board_is_waiting(&state)) {
            next = state.peer;
        } else if (state.phase == HD_PHASE_TOGETHER) {
            bool is_late;
            next = board_latecomer(board, at, state.step, &is_late);
            if (!is_late && board_is_all_waiting(board, now_ns, &latest_ns)) {
                *culprit = at == rank && next < board->rank_count ? next : at;
                break; /* all ranks wait, and no rank is left that could end the wait */
            }
            next = is_late ? next : UINT32_MAX;
        }
        if (next >= board->rank_count) {
            return false; /* this rank runs, and its heartbeat moves */
        }
        at = next;
        *culprit = at;
        hd_board_read(board, at, &state);
    }
    /* A cycle, a peer that has left, or a pass that does not end: no rank on the chain runs. */
    return now_ns >= latest_ns && now_ns - latest_ns >= patience_ns;
}

bool hd_board_is_at_rest(const struct hd_board *board, uint64_t now_ns)
{
    struct hd_rank_state state;
    bool at_rest = true;

    for (uint32_t rank = 0; rank < board->rank_count; rank++) {
        hd_board_read(board, rank, &state);
        const bool moves = state.phase == HD_PHASE_RUN || state.phase == HD_PHASE_UPDATE ||
                           state.phase == HD_PHASE_SAVE || state.phase == HD_PHASE_DEVICE ||
                           board_since_ms(now_ns, state.since_ns) < REST_MS;
        at_rest &= !moves || !board_is_alive(board, rank, now_ns);
    }
    return at_rest;
}

static const char *board_action_name(const struct hd_rank_state *state, char text[32])
{
    switch (state->phase) {
    case HD_PHASE_NONE:
    case HD_PHASE_OPEN:
        return "its start";
    case HD_PHASE_TOGETHER:
        snprintf(text, 32, "the end of step %u", state->step);
        return text;
    case HD_PHASE_UPDATE:
        return "the optimizer";
    case HD_PHASE_DONE:
        return "its end";
    case HD_PHASE_SAVE:
        return "the checkpoint";
    default:
        break;
    }
    if (state->kind == 0) {
        return state->phase == HD_PHASE_DEVICE && state->action_count == 0
                   ? "the beginning of its actions"
                   : "the end of its actions";
    }
    snprintf(text, 32, "%u%c%u", state->stage, (char)state->kind, state->microbatch);
    return text;
}

/* Where a rank is; not which rank it waits for. */
static void board_place_of(const struct hd_board *board, uint32_t rank, uint64_t now_ns,
                           char text[128])
{
    const struct hd_rank_row *row = &board->rows[rank];
    struct hd_rank_state state;
    char action[32];

    hd_board_read(board, rank, &state);
    const double age_s = (double)board_since_ms(now_ns, state.since_ns) * 1e-3;
    const char *name = board_action_name(&state, action);
    if (atomic_load(&row->is_dead)) {
        snprintf(text, 128, "died at %s", name);
    } else if (atomic_load(&row->is_stopped) == 2) {
        const double silent_s =
            (double)board_since_ms(now_ns, atomic_load(&row->stopped_ns)) * 1e-3;
        snprintf(text, 128, "has been silent for %.1f s, stopped or cut off, at %s", silent_s,
                 name);
    } else if (atomic_load(&row->is_stopped)) {
        const double stopped_s =
            (double)board_since_ms(now_ns, atomic_load(&row->stopped_ns)) * 1e-3;
        snprintf(text, 128, "has been stopped at %s for %.1f s", name, stopped_s);
    } else if (board_is_waiting(&state)) {
        snprintf(text, 128, "has itself been waiting at %s for %.1f s", name, age_s);
    } else if (state.phase == HD_PHASE_TOGETHER) {
        snprintf(text, 128, "has finished step %u", state.step);
    } else if (state.phase == HD_PHASE_DONE) {
        snprintf(text, 128, "has finished");
    } else if (state.phase == HD_PHASE_OPEN || state.phase == HD_PHASE_NONE) {
        snprintf(text, 128, "has been starting for %.1f s", age_s);
    } else if (state.phase == HD_PHASE_UPDATE) {
        snprintf(text, 128, "has been at the optimizer for %.1f s", age_s);
    } else if (state.phase == HD_PHASE_SAVE) {
        snprintf(text, 128, "has been at the checkpoint for %.1f s", age_s);
    } else if (state.phase == HD_PHASE_DEVICE) {
        snprintf(text, 128, "has been at %s on its device for %.1f s", name, age_s);
    } else {
        snprintf(text, 128, "has been at %s for %.1f s", name, age_s);
    }
}

/* "for 2B2 from", "at 2F2 for a slot of": what goes before the rank that is waited for. */
static void board_wait_text(const struct hd_rank_state *state, char text[64])
{
    char action[32];
    const char *name = board_action_name(state, action);

    switch (state->phase) {
    case HD_PHASE_CREDIT:
        snprintf(text, 64, "at %s for a slot of", name);
        break;
    case HD_PHASE_ORDER:
        snprintf(text, 64, "at %s behind a transfer with", name);
        break;
    default:
        snprintf(text, 64, "for %s from", name);
        break;
    }
}

static bool board_is_gone(const struct hd_rank_row *row)
{
    return atomic_load(&row->is_dead) != 0 || atomic_load(&row->is_stopped) != 0;
}

uint32_t hd_board_line(const struct hd_board *board, uint32_t rank, uint64_t now_ns, char *text,
                       uint32_t capacity)
{
    struct hd_rank_state state;
    char wait[64], place[128], other[128];

    hd_board_read(board, rank, &state);
    board_place_of(board, rank, now_ns, place);
    if (board_is_gone(&board->rows[rank]) || !board_is_waiting(&state) ||
        state.peer >= board->rank_count) {
        return (uint32_t)snprintf(text, capacity, "rank %u %s (%u actions done in step %u)", rank,
                                  place, state.action_count, state.step);
    }
    board_wait_text(&state, wait);
    board_place_of(board, state.peer, now_ns, other);
    return (uint32_t)snprintf(
        text, capacity,
        "rank %u is waiting %s rank %u, which %s (channel %u, sequence %llu, %llu bytes, waiting "
        "%.1f s, %u actions done in step %u)",
        rank, wait, state.peer, other, state.channel, (unsigned long long)state.sequence,
        (unsigned long long)state.message_bytes,
        (double)board_since_ms(now_ns, state.since_ns) * 1e-3, state.action_count, state.step);
}

uint32_t hd_board_report(const struct hd_board *board, char *text, uint32_t capacity)
{
    const uint64_t now_ns = hd_now_ns();
    uint32_t length = 0;

    text[0] = '\0';
    for (uint32_t i = 0; i < 2 * board->rank_count; i++) {
        const uint32_t rank = i % board->rank_count;
        const bool is_first_pass = i < board->rank_count;
        if (board_is_gone(&board->rows[rank]) == is_first_pass && length < capacity) {
            length += hd_board_line(board, rank, now_ns, text + length, capacity - length);
            length +=
                length < capacity ? (uint32_t)snprintf(text + length, capacity - length, "\n") : 0;
        }
    }
    return length;
}
