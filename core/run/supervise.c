/*
 * run/supervise.c - the parent: what it concludes from the ends and stops of its ranks.
 *
 *   a rank dies       it is marked dead; once no other rank moves (or REST_MS later) the death is
 *                     the cause, so that the report shows which rank waits for which
 *   a rank stops      a cause once it has been stopped for longer than the deadline
 *   a signal          the ranks end after this step; a cause if the step outlasts the deadline
 *   a cause           the launcher aborts the bootstrap, and kills what is left after its grace
 */
#include "run/supervise.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/number.h"
#include "run/rank_main.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* REST_MS: how long after a death the other ranks may go on moving.  LATE_MS: a tick this late
   means that the parent itself was stopped.  GRACE_MS: from a cause to the kill.  ALONE_MS: after
   this a signal to a rank was not one to all processes. */
enum { REST_MS = 1000, LATE_MS = 1000, GRACE_MS = 700, ALONE_MS = 100 };

static const char *supervise_signal_name(int signal)
{
    const char *name = strsignal(signal);
    return name != NULL ? name : "an unknown signal";
}

static void supervise_note_death(struct hd_session *session, const struct hd_launch_event *event)
{
    atomic_store(&session->shared.board->rows[event->rank].is_dead, 1u);
    if (session->death.kind == 0) {
        session->death = *event;
        hd_log(HD_LOG_DEBUG, "rank %u (pid %d) ended: exit code %d, signal %d", event->rank,
               (int)event->pid, event->exit_code, event->signal);
    }
}

/* "rank 2 died at 2F3, killed by signal 9 (Killed)". */
static void supervise_blame_death(const struct hd_session *session)
{
    struct hd_board *board = session->shared.board;
    const struct hd_launch_event *event = &session->death;
    struct hd_problem problem = {0};
    char line[512];

    hd_board_line(board, event->rank, hd_now_ns(), line, sizeof line);
    if (event->kind == HD_LAUNCH_LOST) {
        hd_problem_set(&problem, HD_PEER_LOST, HD_EXIT_PEER, "%s; its process on %s is gone", line,
                       hd_link_peer(session->request.link, event->rank)->host);
    } else if (event->kind == HD_LAUNCH_KILLED) {
        hd_problem_set(&problem, HD_PEER_LOST, HD_EXIT_PEER, "%s, killed by signal %d (%s)", line,
                       event->signal, supervise_signal_name(event->signal));
    } else {
        hd_problem_set(&problem, HD_PEER_LOST, HD_EXIT_FAILED, "%s, with exit code %d", line,
                       event->exit_code);
    }
    hd_board_abort(board, &problem);
}

static void supervise_blame_stop(const struct hd_session *session, uint64_t now_ns)
{
    struct hd_board *board = session->shared.board;
    const uint64_t limit_ns = hd_board_timeout_ns(board, hd_board_newest_step(board));

    for (uint32_t rank = 0; rank < board->rank_count; rank++) {
        const struct hd_rank_row *row = &board->rows[rank];
        const uint64_t stopped_ns = atomic_load(&row->stopped_ns);
        if (atomic_load(&row->is_stopped) && now_ns > stopped_ns &&
            now_ns - stopped_ns >= limit_ns) {
            struct hd_problem problem = {0};
            char line[512];
            hd_board_line(board, rank, now_ns, line, sizeof line);
            hd_problem_remedy(&problem, "continue it with SIGCONT before the deadline%s",
                              session->request.link != NULL ? ", or repair the network" : "");
            hd_problem_set(&problem, HD_TIMEOUT, HD_EXIT_PEER, "%s, longer than %.1f s", line,
                           (double)limit_ns * 1e-9);
            hd_board_abort(board, &problem);
        }
    }
}

static void supervise_blame_signal(const struct hd_session *session, uint64_t now_ns)
{
    struct hd_board *board = session->shared.board;
    struct hd_problem problem = {0};

    if (session->signal == 0 || now_ns - session->signalled_ns < board->timeout_ns) {
        return;
    }
    hd_problem_set(&problem, HD_TIMEOUT, 128 + session->signal,
                   "signal %d (%s): the step did not end within %.1f s", session->signal,
                   supervise_signal_name(session->signal), (double)board->timeout_ns * 1e-9);
    hd_board_abort(board, &problem);
}

static bool supervise_on_event(void *context, void *region, const struct hd_launch_event *event);

/* A signal to a rank alone ends the run as one to the parent does.  A signal to all processes
   reaches the parent as well, within ALONE_MS. */
static void supervise_take_rank_signals(struct hd_session *session, uint64_t now_ns)
{
    struct hd_board *board = session->shared.board;

    for (uint32_t rank = 0; rank < board->rank_count && session->signalled_rank < 0; rank++) {
        const int32_t number = atomic_load(&board->rows[rank].signal);
        if (number != 0 && session->signal == 0 &&
            now_ns > atomic_load(&board->rows[rank].signalled_ns) + ALONE_MS * HD_MS_NS) {
            const struct hd_launch_event event = {
                .kind = HD_LAUNCH_SIGNALLED, .rank = rank, .signal = number, .at_ns = now_ns};
            session->signalled_rank = (int32_t)rank;
            hd_log(HD_LOG_WARN, "rank %u got signal %d (%s): the run ends after this step", rank,
                   number, supervise_signal_name(number));
            supervise_on_event(session, NULL, &event);
        }
    }
}

static void supervise_tick(struct hd_session *session, uint64_t now_ns)
{
    struct hd_board *board = session->shared.board;

    /* What the parent saw before it was stopped itself counts from now on. */
    if (session->last_tick_ns > 0 && now_ns - session->last_tick_ns > LATE_MS * HD_MS_NS) {
        hd_log(HD_LOG_DEBUG, "the parent was stopped for %.1f s: deadlines start again",
               (double)(now_ns - session->last_tick_ns) * 1e-9);
        for (uint32_t rank = 0; rank < board->rank_count; rank++) {
            atomic_store(&board->rows[rank].stopped_ns, now_ns);
        }
        session->signalled_ns = now_ns;
    }
    session->last_tick_ns = now_ns;
    supervise_take_rank_signals(session, now_ns);
    if (hd_board_is_aborted(board)) {
        return;
    }
    if (session->death.kind == 0) {
        supervise_blame_stop(session, now_ns);
        supervise_blame_signal(session, now_ns);
        return;
    }
    const bool is_late = now_ns - session->death.at_ns > REST_MS * HD_MS_NS;
    if (is_late || (hd_launched_is_current(&session->launched, session->death.at_ns, now_ns) &&
                    hd_board_is_at_rest(board, now_ns))) {
        hd_log(HD_LOG_DEBUG, "%.0f ms after the death of rank %u: %s",
               (double)(now_ns - session->death.at_ns) * 1e-6, session->death.rank,
               is_late ? "ranks still move, but the report cannot wait" : "no rank moves");
        supervise_blame_death(session);
    }
}

/* Whether to print where each rank was: only after a lost or late peer, or once a step has
   begun. */
static bool supervise_needs_report(const struct hd_board *board, int32_t exit_code)
{
    bool has_begun = exit_code == HD_EXIT_PEER;
    struct hd_rank_state state;

    for (uint32_t rank = 0; rank < board->rank_count; rank++) {
        hd_board_read(board, rank, &state);
        has_begun |= state.step > board->steps_before;
    }
    return has_begun && exit_code <= HD_EXIT_PEER && exit_code != HD_EXIT_USAGE;
}

static void supervise_end(struct hd_session *session)
{
    struct hd_board *board = session->shared.board;
    struct hd_problem late = {0};
    hd_status status = HD_OK;

    if (session->death.kind != 0 && !hd_board_is_aborted(board)) {
        supervise_blame_death(session); /* no rank is left that could come to rest */
    }
    if (hd_board_is_aborted(board) && hd_board_cause(board, &session->problem) &&
        supervise_needs_report(board, session->problem.exit_code)) {
        session->report = strndup(board->report, sizeof board->report);
    }
    if (hd_launched_is_member(&session->launched)) {
        const struct hd_problem *verdict = hd_link_verdict(session->request.link);
        session->problem = verdict != NULL ? *verdict : session->problem;
        return;
    }
    const int32_t exit_code = session->problem.exit_code != 0
                                  ? session->problem.exit_code
                                  : (session->signal != 0 ? 128 + session->signal : 0);
    if (session->listener.on_end != NULL) {
        status = session->listener.on_end(session->listener.context, session, exit_code, &late);
    }
    if (status != HD_OK && session->problem.exit_code == 0) {
        session->problem = late;
    }
}

/* A plugin may call exit(0) in the middle of a step, so the board decides. */
static bool supervise_has_ended_well(const struct hd_session *session,
                                     const struct hd_launch_event *event)
{
    const int32_t wanted = session->signal != 0 ? 128 + session->signal : 0;
    struct hd_rank_state state;

    hd_board_read(session->shared.board, event->rank, &state);
    return state.phase == HD_PHASE_DONE && (event->exit_code == 0 || event->exit_code == wanted);
}

/* "ended by signal 2 (Interrupt)". */
static void supervise_set_signalled(struct hd_problem *problem, int32_t signal)
{
    hd_problem_set(problem, HD_ABORTED, 128 + signal, "ended by signal %d (%s)", signal,
                   supervise_signal_name(signal));
}

/* A second signal kills the rank that gets it; of a launched run all processes then end. */
static void supervise_take_kill(struct hd_session *session, const struct hd_launch_event *event)
{
    struct hd_problem problem = {0};

    if (session->signal == 0) {
        supervise_note_death(session, event);
    } else if (session->request.link != NULL) {
        supervise_set_signalled(&problem, session->signal);
        hd_board_abort(session->shared.board, &problem);
    }
}

/* An event of a rank, seen here or sent over the link. */
static void supervise_take_event(void *context, const struct hd_launch_event *event)
{
    struct hd_session *session = context;
    struct hd_board *board = session->shared.board;

    switch (event->kind) {
    case HD_LAUNCH_EXITED:
        if (!supervise_has_ended_well(session, event)) {
            supervise_note_death(session, event);
        }
        break;
    case HD_LAUNCH_KILLED:
        supervise_take_kill(session, event);
        break;
    case HD_LAUNCH_LOST:
        supervise_note_death(session, event);
        break;
    case HD_LAUNCH_STOPPED:
        atomic_store(&board->rows[event->rank].stopped_ns, event->at_ns);
        atomic_store(&board->rows[event->rank].is_stopped, 1u);
        hd_log(HD_LOG_WARN, "rank %u (pid %d) was stopped by signal %d", event->rank,
               (int)event->pid, event->signal);
        break;
    case HD_LAUNCH_CONTINUED:
        atomic_store(&board->rows[event->rank].is_stopped, 0u);
        break;
    case HD_LAUNCH_SIGNALLED:
        if (session->signal == 0) { /* else another process got one before */
            session->signal = event->signal;
            session->signalled_ns = event->at_ns;
        }
        atomic_store(&board->stop_signal, event->signal);
        break;
    case HD_LAUNCH_TICK:
        supervise_tick(session, event->at_ns);
        hd_launched_tick(&session->launched, event->at_ns);
        break;
    case HD_LAUNCH_ENDED:
        supervise_end(session);
        break;
    default:
        break;
    }
}

static bool supervise_on_event(void *context, void *region, const struct hd_launch_event *event)
{
    struct hd_session *session = context;

    (void)region;
    if (!hd_launched_forward(&session->launched, event)) {
        supervise_take_event(session, event);
    }
    return hd_board_is_aborted(session->shared.board);
}

static bool supervise_is_settled(void *context, void *region)
{
    const struct hd_session *session = context;

    (void)region;
    return hd_launched_is_settled(&session->launched);
}

/* The numbers of the steps before a resumed run; only the hub writes them into files. */
static void supervise_copy_steps(struct hd_session *session)
{
    const struct hd_resume *const resume = session->request.resume;
    const struct hd_shared *shared = &session->shared;
    const uint64_t bytes = session->steps_before * sizeof(double);

    if (session->steps_before == 0 || hd_launched_is_member(&session->launched)) {
        return;
    }
    memcpy(shared->losses, resume->losses, bytes);
    memcpy(shared->norms, resume->grad_norms, bytes);
    memcpy(shared->step_seconds, resume->step_seconds, bytes);
    shared->results->steps_done = session->steps_before;
    shared->results->skipped = resume->state.skipped;
}

static void supervise_prepare(void *context, void *region)
{
    struct hd_session *session = context;
    const struct hd_config *config = session->job->config;
    const struct hd_launched_handler handler = {session, supervise_take_event};

    hd_shared_map(&session->shared, session->job, region);
    struct hd_board *board = session->shared.board;
    hd_board_init(board, session->shared.rank_count);
    board->timeout_ns = (uint64_t)(config->transport.timeout_s * 1e9);
    board->first_step_timeout_ns = (uint64_t)(config->transport.first_step_timeout_s * 1e9);
    board->steps_before = session->steps_before;
    session->shared.results->measured_bubble = NAN;
    supervise_copy_steps(session);
    hd_launched_begin(&session->launched, &session->shared, &handler,
                      session->request.has_files ? session->rundir.path : NULL);
}

static hd_status supervise_begin(struct hd_session *session, struct hd_problem *problem)
{
    if (session->job->pipeline->rank_count > HD_LAUNCH_RANK_MAX) {
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "%u ranks are more than the %u that one machine can start",
                              session->job->pipeline->rank_count, HD_LAUNCH_RANK_MAX);
    }
    if (hd_launched_is_member(&session->launched)) {
        return hd_launched_await(&session->launched,
                                 session->job->config->transport.first_step_timeout_s,
                                 session->rundir.path, problem);
    }
    return session->listener.on_begin != NULL
               ? session->listener.on_begin(session->listener.context, session, problem)
               : HD_OK;
}

hd_status hd_supervise(struct hd_session *session, struct hd_problem *problem)
{
    const uint64_t gather_bytes =
        hd_max_u64(session->exchange.block_bytes, session->digest_count * sizeof(struct hd_tensor));
    const struct hd_launch launch = {
        .rank_count = session->job->pipeline->rank_count,
        .shared_bytes = hd_shared_map(&session->shared, session->job, NULL),
        .gather_bytes = hd_max_u64(gather_bytes, HD_HASH_TEXT_BYTES),
        .context = session,
        .prepare = supervise_prepare,
        .rank_main = hd_rank_main,
        .on_event = supervise_on_event,
        .grace_ms = GRACE_MS,
        .link = session->request.link,
        .is_settled = supervise_is_settled,
    };
    struct hd_launch_outcome outcome;

    hd_status status = supervise_begin(session, problem);
    if (status == HD_OK) {
        status = hd_launch_run(&launch, &outcome, problem);
        hd_shared_map(&session->shared, session->job, NULL);
    }
    if (status != HD_OK) {
        return status;
    }
    const int32_t signal = session->signal != 0 ? session->signal : outcome.signal;
    if (session->problem.exit_code == 0 && signal != 0 &&
        !hd_launched_is_member(&session->launched)) {
        supervise_set_signalled(&session->problem, signal);
        if (session->signalled_rank >= 0) {
            hd_problem_place(&session->problem, "rank %d", (int)session->signalled_rank);
        }
        if (session->request.has_files && session->job->config->output.checkpoint_every >= 0) {
            hd_problem_remedy(&session->problem, "continue with heddle run --resume %.400s",
                              session->rundir.path);
        }
    }
    if (session->problem.exit_code != 0) {
        *problem = session->problem;
        return HD_ABORTED;
    }
    return HD_OK;
}
