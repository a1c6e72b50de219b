/* engine/failure.c - how an error of this rank becomes the end of the run, and what the rank's row
   of the board says until then. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/internal.h"

#include <assert.h>
#include <stdio.h>
#include <time.h>

/* How long a rank that sees a death waits for the parent to name it, and how long a rank that fails
   while it opens waits for news of a death. */
enum { CAUSE_MS = 2000, NEWS_MS = 200, NAP_MS = 5 };

const char *const hd_engine_memory_remedy =
    "`heddle plan` prints the bytes of every rank: use more ranks, fewer payload slots, or a "
    "smaller model, sequence or microbatch";

/* A transport tells its peers that it cannot open.  The rank with the reason claims the cause
   before that, or a peer that only knows which rank failed may be first. */
static bool failure_is_own_at_open(const struct hd_engine *engine, const struct hd_plugin *plugin,
                                   const struct hd_error *error)
{
    const uint32_t rank = error->rank;

    return engine->state.phase == HD_PHASE_OPEN && plugin != engine->setup.kernel &&
           (error->status == HD_NO_MEMORY || error->status == HD_UNSUPPORTED ||
            error->status == HD_INVALID) &&
           (rank == engine->setup.rank || rank >= engine->setup.board->rank_count);
}

void hd_engine_note_failure(void *context, const struct hd_plugin *plugin,
                            const struct hd_error *error)
{
    struct hd_engine *engine = context;
    struct hd_board *board = engine->setup.board;

    pthread_mutex_lock(&engine->failure_lock);
    hd_plugin_host_note(&engine->failure, plugin, error);
    struct hd_problem cause = engine->failure;
    pthread_mutex_unlock(&engine->failure_lock);
    if (failure_is_own_at_open(engine, plugin, error)) {
        hd_problem_place(&cause, "rank %u, opening the transport", engine->setup.rank);
        if (error->status == HD_NO_MEMORY) {
            hd_problem_remedy(&cause, "%s", hd_engine_memory_remedy);
        }
        hd_board_abort(board, &cause);
    }
    if (error->status == HD_PEER_LOST && error->rank < board->rank_count) {
        atomic_store(&board->rows[error->rank].is_dead, 1u);
    }
}

hd_status hd_engine_check_own(struct hd_engine *engine, hd_status status, const char *what,
                              struct hd_problem *problem)
{
    if (status == HD_OK) {
        return HD_OK;
    }
    assert(problem->exit_code > 0 && status < 0);
    engine->has_failed = true;
    if (problem->place[0] == '\0') {
        hd_problem_place(problem, "rank %u, %s", engine->setup.rank, what);
    }
    if (status == HD_NO_MEMORY && problem->remedy[0] == '\0') {
        hd_problem_remedy(problem, "%s", hd_engine_memory_remedy);
    }
    if (hd_board_abort(engine->setup.board, problem)) {
        hd_log(HD_LOG_INFO, "%s: %s", what, problem->message); /* the command prints it */
    }
    engine->setup.bootstrap.abort(engine->setup.bootstrap.context);
    return status;
}

hd_status hd_engine_no_memory(struct hd_engine *engine, uint64_t bytes, const char *what,
                              struct hd_problem *problem)
{
    hd_problem_no_memory(problem, bytes, "%s", what);
    return hd_engine_check_own(engine, HD_NO_MEMORY, "allocating", problem);
}

static bool failure_has_death(const struct hd_board *board)
{
    bool is_dead = hd_board_is_aborted(board);

    for (uint32_t rank = 0; rank < board->rank_count; rank++) {
        is_dead |= atomic_load(&board->rows[rank].is_dead) != 0;
    }
    return is_dead;
}

static bool failure_await(const struct hd_board *board, bool (*is_there)(const struct hd_board *),
                          uint32_t limit_ms)
{
    const uint64_t deadline_ns = hd_now_ns() + limit_ms * HD_MS_NS;
    const struct timespec nap = {0, NAP_MS * (long)HD_MS_NS};

    while (!is_there(board) && hd_now_ns() < deadline_ns) {
        nanosleep(&nap, NULL);
    }
    return is_there(board);
}

/*
 * The parent process knows which rank died of what, and writes the cause once the other ranks wait.
 * So a rank that sees a death waits for that cause.  While this rank opens its plugins, the death
 * of a peer may show as any error (its memory or its address is gone), so the rank waits for news.
 */
static bool failure_is_by_death(const struct hd_engine *engine, hd_status status)
{
    const struct hd_board *board = engine->setup.board;
    const bool is_opening = engine->state.phase == HD_PHASE_OPEN && status != HD_ABORTED;

    return (status == HD_PEER_LOST ||
            (is_opening && failure_await(board, failure_has_death, NEWS_MS))) &&
           failure_await(board, hd_board_is_aborted, CAUSE_MS);
}

hd_status hd_engine_check_call(struct hd_engine *engine, hd_status status,
                               const struct hd_plugin *plugin, const char *what,
                               struct hd_problem *problem)
{
    const struct hd_board *board = engine->setup.board;

    if (status == HD_OK) {
        return HD_OK;
    }
    assert(status < 0);
    if ((status == HD_ABORTED && hd_board_is_aborted(board)) ||
        failure_is_by_death(engine, status)) {
        engine->has_failed = true;
        hd_board_cause(board, problem);
        return status;
    }
    pthread_mutex_lock(&engine->failure_lock);
    if (engine->failure.exit_code != 0) {
        *problem = engine->failure;
    }
    pthread_mutex_unlock(&engine->failure_lock);
    if (problem->exit_code == 0) {
        hd_problem_set(problem, status, hd_exit_of(status), "%s returned %s", plugin->name,
                       hd_status_name(status));
    }
    return hd_engine_check_own(engine, status, what, problem);
}

/* The kernel refuses a payload without knowing its slot, so the slot is named here.  On a device
   the lease may have ended by now. */
hd_status hd_engine_check_pass(struct hd_engine *engine, hd_status status,
                               const struct hd_instruction *instruction, struct hd_problem *problem)
{
    const struct hd_lease_pool *pool = &engine->stages[instruction->local_stage].pools[0];
    const bool is_refused = status == HD_PROTOCOL && instruction->action.kind != HD_FORWARD;
    const uint32_t slot =
        is_refused ? pool->slot_of[instruction->action.microbatch] : HD_LEASE_NO_SLOT;
    char name[96], text[160];

    if (status == HD_OK) {
        return HD_OK;
    }
    hd_engine_name_action(engine, instruction, "running", name);
    if (slot != HD_LEASE_NO_SLOT) {
        snprintf(text, sizeof text, "%s, payload slot %u", name, slot);
    } else {
        snprintf(text, sizeof text, "%s", name);
    }
    return hd_engine_check_call(engine, status, engine->setup.kernel, text, problem);
}

const char *hd_engine_name_action(const struct hd_engine *engine,
                                  const struct hd_instruction *instruction, const char *verb,
                                  char text[96])
{
    char action[32];

    snprintf(text, 96, "%s %s of step %u", verb, hd_action_text(&instruction->action, action),
             engine->state.step);
    return text;
}

void hd_engine_enter(struct hd_engine *engine, uint32_t phase)
{
    engine->state.phase = phase;
    engine->state.since_ns = hd_now_ns();
    hd_board_publish(engine->setup.board, engine->setup.rank, &engine->state);
}

void hd_engine_phase(struct hd_engine *engine, uint32_t phase)
{
    engine->state.kind = 0;
    engine->state.peer = UINT32_MAX;
    engine->state.channel = UINT32_MAX;
    hd_engine_enter(engine, phase);
}

bool hd_engine_is_sound(const struct hd_engine *engine)
{
    return !engine->has_failed && !hd_board_is_aborted(engine->setup.board);
}
