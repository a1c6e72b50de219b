#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum { CAUSE_MS = 2000, NEWS_MS = 200 };
enum { KEY_BYTES = 128, ROUNDING_MASK = 0xffc0, ROUNDING = 0x1f80 };

static void *engine_host_alloc(void *context, uint64_t bytes, uint64_t alignment_bytes,
                               const char *tag)
{
    (void)context;
    return hd_memory_take(bytes, alignment_bytes, tag);
}

static void engine_host_free(void *context, void *memory)
{
    (void)context;
    hd_memory_give(memory);
}

static uint64_t engine_host_now_ns(void *context)
{
    (void)context;
    return hd_now_ns();
}

static void host_log(void *context, uint32_t level, const char *text)
{
    const struct hd_engine_host *host = context;
    hd_log(level, "%s: %s", host->plugin->name, text);
}

static hd_status host_fail(void *context, const struct hd_error *error)
{
    const struct hd_engine_host *host = context;
    struct hd_engine *engine = host->engine;
    struct hd_board *board = engine->setup.board;

    assert(error->status < 0);
    pthread_mutex_lock(&engine->failure_lock);
    hd_problem_set(&engine->failure, error->status, hd_exit_of(error->status), "%s: %s",
                   host->plugin->name, error->text);
    pthread_mutex_unlock(&engine->failure_lock);
    if (error->status == HD_PEER_LOST && error->rank < board->rank_count) {
        atomic_store(&board->rows[error->rank].is_dead, 1u);
    }
    return error->status;
}

/* Keys of different plugins must not meet. */
static void host_scoped(const struct hd_engine_host *host, const char *key, char text[KEY_BYTES])
{
    snprintf(text, KEY_BYTES, "%s/%s", host->plugin->name, key);
}

static hd_status host_put(void *context, const char *key, const void *value, uint64_t bytes)
{
    const struct hd_engine_host *host = context;
    const struct hd_engine_bootstrap *bootstrap = &host->engine->setup.bootstrap;
    char text[KEY_BYTES];

    host_scoped(host, key, text);
    return bootstrap->put(bootstrap->context, text, value, bytes);
}

static hd_status host_get(void *context, const char *key, void *value, uint64_t bytes,
                          uint64_t deadline_ns)
{
    const struct hd_engine_host *host = context;
    const struct hd_engine_bootstrap *bootstrap = &host->engine->setup.bootstrap;
    char text[KEY_BYTES];

    host_scoped(host, key, text);
    return bootstrap->get(bootstrap->context, text, value, bytes, deadline_ns);
}

static hd_status host_fence(void *context, uint64_t deadline_ns)
{
    const struct hd_engine_host *host = context;
    const struct hd_engine_bootstrap *bootstrap = &host->engine->setup.bootstrap;
    return bootstrap->fence(bootstrap->context, deadline_ns);
}

static void engine_host_account(void *context, int64_t bytes, const char *tag)
{
    (void)context;
    hd_memory_account(bytes, tag);
}

static void host_trace(void *context, const struct hd_transfer *transfer)
{
    const struct hd_engine_host *host = context;
    hd_engine_note_transfer(host->engine, transfer);
}

void hd_engine_host_init(struct hd_engine_host *host, struct hd_engine *engine,
                         const struct hd_plugin *plugin, const struct hd_option_value *options)
{
    host->engine = engine;
    host->plugin = plugin;
    host->host = (struct hd_host){
        .size = sizeof host->host,
        .rank = engine->setup.rank,
        .rank_count = engine->setup.pipeline->rank_count,
        .option_count = plugin->option_count,
        .options = options,
        .context = host,
        .alloc = engine_host_alloc,
        .free = engine_host_free,
        .now_ns = engine_host_now_ns,
        .log = host_log,
        .fail = host_fail,
        .put = host_put,
        .get = host_get,
        .fence = host_fence,
        .trace_transfer = host_trace,
        .account = engine_host_account,
        .is_untraced = engine->setup.trace_steps == 0,
    };
}

const char *const hd_engine_memory_remedy = "`heddle plan` says the bytes of every rank: take more "
                                            "ranks, fewer payload slots, or a smaller "
                                            "model, sequence or microbatch";

hd_status hd_engine_blame(struct hd_engine *engine, hd_status status, const char *what,
                          struct hd_problem *problem)
{
    struct hd_board *board = engine->setup.board;

    assert(problem->exit_code > 0 && status < 0);
    engine->has_failed = 1;
    if (problem->place[0] == '\0') {
        hd_problem_place(problem, "rank %u, %s", engine->setup.rank, what);
    }
    if (status == HD_NO_MEMORY && problem->remedy[0] == '\0') {
        hd_problem_remedy(problem, "%s", hd_engine_memory_remedy);
    }
    if (hd_board_abort(board, problem)) {
        hd_log(HD_LOG_INFO, "%s: %s", what, problem->message); /* the command says it on stderr */
    }
    engine->setup.bootstrap.abort(engine->setup.bootstrap.context);
    return status;
}

static uint32_t host_has_cause(const struct hd_board *board)
{
    return hd_board_is_aborted(board);
}

static uint32_t host_has_death(const struct hd_board *board)
{
    uint32_t dead = hd_board_is_aborted(board);

    for (uint32_t rank = 0; rank < board->rank_count; rank++) {
        dead |= atomic_load(&board->rows[rank].is_dead);
    }
    return dead;
}

static uint32_t host_await(const struct hd_board *board,
                           uint32_t (*is_there)(const struct hd_board *), uint32_t limit_ms)
{
    const uint64_t deadline_ns = hd_now_ns() + limit_ms * HD_MS_NS;
    const struct timespec nap = {0, 5 * (long)HD_MS_NS};

    while (!is_there(board) && hd_now_ns() < deadline_ns) {
        nanosleep(&nap, NULL);
    }
    return is_there(board);
}

/*
 * Who starts the ranks knows best who died of what, and says so when the others have come to rest;
 * a rank that sees a death waits for that sentence.  A peer that dies while this rank opens may
 * show as any error (its memory is gone, its address is nobody's), so then the news is awaited.
 */
static uint32_t host_is_by_death(const struct hd_engine *engine, hd_status status)
{
    const struct hd_board *board = engine->setup.board;
    const uint32_t is_opening = engine->state.phase == HD_PHASE_OPEN && status != HD_ABORTED;

    return (status == HD_PEER_LOST || (is_opening && host_await(board, host_has_death, NEWS_MS))) &&
           host_await(board, host_has_cause, CAUSE_MS);
}

hd_status hd_engine_fail(struct hd_engine *engine, hd_status status, const struct hd_plugin *plugin,
                         const char *what, struct hd_problem *problem)
{
    struct hd_board *board = engine->setup.board;

    assert(status < 0);
    if ((status == HD_ABORTED && hd_board_is_aborted(board)) || host_is_by_death(engine, status)) {
        engine->has_failed = 1;
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
    return hd_engine_blame(engine, status, what, problem);
}

hd_status hd_engine_kernel_failed(struct hd_engine *engine, hd_status status,
                                  const struct hd_instruction *instruction, const char *what,
                                  struct hd_problem *problem)
{
    const struct hd_action *action = &instruction->action;
    const struct hd_lease_pool *pool = &engine->stages[instruction->local_stage].pools[0];
    const uint32_t slot = status == HD_PROTOCOL && action->kind != HD_FORWARD
                              ? pool->slot_of[action->microbatch]
                              : HD_LEASE_NO_SLOT;
    char text[160];

    snprintf(text, sizeof text, "%s", what);
    if (slot != HD_LEASE_NO_SLOT) { /* on a device the lease may have ended since */
        snprintf(text, sizeof text, "%s, payload slot %u", what, slot);
    }
    return hd_engine_fail(engine, status, engine->setup.kernel, text, problem);
}

void hd_engine_enter(struct hd_engine *engine, uint32_t phase)
{
    engine->state.phase = phase;
    engine->state.since_ns = hd_now_ns();
    hd_board_publish(engine->setup.board, engine->setup.rank, &engine->state);
}

#if defined(__x86_64__)
void hd_engine_set_rounding(void)
{
    _mm_setcsr(ROUNDING);
}

uint32_t hd_engine_rounding_is_kept(void)
{
    return (_mm_getcsr() & ROUNDING_MASK) == ROUNDING;
}
#else
void hd_engine_set_rounding(void)
{
}

uint32_t hd_engine_rounding_is_kept(void)
{
    return 1;
}
#endif
