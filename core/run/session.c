#include "run/session.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "plan/timeline.h"
#include "run/job_check.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* REST_MS: how long after a death the others may take to come to rest. */
enum { REST_MS = 1000 };

static uint64_t session_place(uint64_t *end, uint64_t bytes)
{
    const uint64_t offset = (*end + 63) / 64 * 64;

    *end = offset + bytes;
    return offset;
}

static void session_lay_out(struct hd_session *session)
{
    const struct hd_job *job = session->job;
    const struct hd_pipeline *pipeline = job->pipeline;
    const uint64_t rank_count = pipeline->rank_count;
    uint64_t end = hd_board_bytes(pipeline->rank_count);

    for (uint32_t rank = 0; rank < rank_count; rank++) {
        const uint64_t actions = pipeline->rank_begin[rank + 1] - pipeline->rank_begin[rank];
        session->actions_max = actions > session->actions_max ? actions : session->actions_max;
    }
    if (job->config->output.trace) {
        session->record_count = session->actions_max * job->config->output.trace_steps;
    }
    session->results_offset = session_place(&end, sizeof(struct hd_results));
    session->steps_offset = session_place(&end, 3ull * job->config->train.steps * sizeof(double));
    session->ranks_offset = session_place(&end, rank_count * sizeof(struct hd_rank_result));
    session->lanes_offset =
        session_place(&end, pipeline->remote_count * sizeof(struct hd_session_lane));
    session->records_offset =
        session_place(&end, rank_count * session->record_count * sizeof(struct hd_record));
    session->region_bytes = end;
}

static hd_status session_lay_out_exchange(struct hd_session *session, struct hd_problem *problem)
{
    const struct hd_job *job = session->job;
    const struct hd_pipeline *pipeline = job->pipeline;
    struct hd_exchange_stage *rows =
        hd_memory_take(pipeline->stage_count * sizeof *rows, 64, "exchange");
    uint64_t *tensors = hd_memory_take(pipeline->rank_count * sizeof *tensors, 64, "exchange");
    hd_status status = rows != NULL && tensors != NULL ? HD_OK : HD_NO_MEMORY;

    session->digest_count = 1;
    for (uint32_t stage = 0; status == HD_OK && stage < pipeline->stage_count; stage++) {
        const uint32_t rank = pipeline->stage_rank[stage];
        rows[stage] = (struct hd_exchange_stage){
            .rank = rank,
            .tensor_count = job->needs[stage].tensor_count,
            .term_count = job->needs[stage].term_count,
            .has_head = job->model.specs[stage].has_head && job->needs[stage].term_count > 0,
        };
        tensors[rank] += rows[stage].tensor_count;
        session->digest_count =
            tensors[rank] > session->digest_count ? tensors[rank] : session->digest_count;
    }
    if (status == HD_OK) {
        status = hd_exchange_layout(&session->exchange, pipeline->rank_count, pipeline->stage_count,
                                    rows);
    }
    hd_memory_give(rows);
    hd_memory_give(tensors);
    return status != HD_OK ? hd_problem_set(problem, status, HD_EXIT_FAILED,
                                            "no memory for the exchange of the ranks")
                           : HD_OK;
}

/* A kernel without terms (synthetic) reads no tokens that matter, and trains nothing. */
static uint32_t session_has_loss(const struct hd_job *job)
{
    return job->needs[job->pipeline->stage_count - 1].term_count > 0;
}

static hd_status session_open_corpus(struct hd_session *session, struct hd_problem *problem)
{
    const struct hd_config *config = session->job->config;
    const struct hd_corpus_request request = {
        .path = config->data.corpus,
        .format = config->data.format,
        .token_bytes = config->data.token_bytes,
        .vocabulary = config->model.vocabulary,
        .sequence = config->model.sequence,
        .samples_per_step = session->request.is_evaluation ? 1 : session->samples_per_step,
    };

    if (!session_has_loss(session->job)) {
        return HD_OK;
    }
    return hd_corpus_open(&request, &session->corpus, problem);
}

static hd_status session_plan_bubble(struct hd_session *session, struct hd_problem *problem)
{
    struct hd_timeline *timeline = NULL;

    const hd_status status =
        hd_timeline_create(session->job->pipeline, HD_TIMELINE_ASAP, NULL, &timeline, problem);
    if (status == HD_OK) {
        session->planned_bubble = timeline->bubble;
    }
    hd_timeline_destroy(timeline);
    return status;
}

hd_status hd_session_create(struct hd_session *session, struct hd_job *job,
                            const struct hd_session_request *request, struct hd_problem *problem)
{
    const struct hd_config *config = job->config;
    const time_t now = time(NULL);
    struct tm local;

    *session = (struct hd_session){.job = job, .request = *request, .started_ns = hd_now_ns()};
    session->rundir.metrics = -1;
    session->samples_per_step =
        (uint64_t)config->pipeline.microbatches * config->data.microbatch_size;
    localtime_r(&now, &local);
    strftime(session->started, sizeof session->started, "%Y-%m-%dT%H:%M:%S%z", &local);
    hd_status status = hd_job_check(job, problem);
    if (status == HD_OK) {
        status = session_plan_bubble(session, problem);
    }
    if (status == HD_OK) {
        status = hd_launched_create(session, problem);
    }
    if (status == HD_OK) {
        status = session_open_corpus(session, problem);
    }
    if (status == HD_OK) {
        status = session_lay_out_exchange(session, problem);
    }
    if (status == HD_OK) {
        status = hd_session_start(session, problem);
    }
    session_lay_out(session);
    if (status != HD_OK) {
        hd_session_finish(session);
    }
    return status;
}

void hd_session_finish(struct hd_session *session)
{
    hd_corpus_close(session->corpus);
    session->corpus = NULL;
    hd_exchange_finish(&session->exchange);
    hd_rundir_close(&session->rundir);
    hd_launched_finish(session);
    free(session->report);
    session->report = NULL;
}

static const char *session_signal_word(int signal)
{
    const char *word = strsignal(signal);
    return word != NULL ? word : "an unknown signal";
}

/* The others run until they wait for the dead one; only then is it clear who waits for whom. */
static void session_note_death(struct hd_session *session, struct hd_board *board,
                               const struct hd_launch_event *event)
{
    atomic_store(&board->rows[event->rank].is_dead, 1u);
    if (session->death.kind == 0) {
        session->death = *event;
    }
}

/* "rank 2 died at 2F3, killed by signal 9 (Killed)": the row says where it was. */
static void session_blame_death(const struct hd_session *session, struct hd_board *board)
{
    const struct hd_launch_event *event = &session->death;
    struct hd_problem problem = {0};
    char line[512];

    hd_board_line(board, event->rank, hd_now_ns(), line, sizeof line);
    if (event->kind == HD_LAUNCH_LOST) {
        hd_problem_set(&problem, HD_PEER_LOST, HD_EXIT_PEER, "%s; its process on %s is gone", line,
                       hd_link_peer(session->request.link, event->rank)->host);
    } else if (event->kind == HD_LAUNCH_KILLED) {
        hd_problem_set(&problem, HD_PEER_LOST, HD_EXIT_PEER, "%s, killed by signal %d (%s)", line,
                       event->signal, session_signal_word(event->signal));
    } else {
        hd_problem_set(&problem, HD_PEER_LOST, HD_EXIT_FAILED, "%s, with exit code %d", line,
                       event->exit_code);
    }
    hd_board_abort(board, &problem);
}

static void session_blame_stop(const struct hd_session *session, struct hd_board *board,
                               uint64_t now_ns)
{
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
                              session->request.link != NULL ? ", or mend the network" : "");
            hd_problem_set(&problem, HD_TIMEOUT, HD_EXIT_PEER, "%s, longer than %.1f s", line,
                           (double)limit_ns * 1e-9);
            hd_board_abort(board, &problem);
        }
    }
}

/* A signal asks for the end of the step; if that does not come in time, the run ends as it is. */
static void session_blame_signal(struct hd_session *session, struct hd_board *board,
                                 uint64_t now_ns)
{
    struct hd_problem problem = {0};

    if (session->signal == 0 || now_ns - session->signalled_ns < board->timeout_ns) {
        return;
    }
    hd_problem_set(&problem, HD_TIMEOUT, 128 + session->signal,
                   "signal %d (%s): the step did not end within %.1f s", session->signal,
                   session_signal_word(session->signal), (double)board->timeout_ns * 1e-9);
    hd_board_abort(board, &problem);
}

static void session_tick(struct hd_session *session, struct hd_board *board, uint64_t now_ns)
{
    /* A tick this late: the parent itself was stopped, so what it saw before counts anew. */
    if (session->last_tick_ns > 0 && now_ns - session->last_tick_ns > HD_S_NS) {
        for (uint32_t rank = 0; rank < board->rank_count; rank++) {
            atomic_store(&board->rows[rank].stopped_ns, now_ns);
        }
        session->signalled_ns = now_ns;
    }
    session->last_tick_ns = now_ns;
    if (hd_board_is_aborted(board)) {
        return;
    }
    if (session->death.kind != 0) {
        if ((hd_launched_is_current(session, now_ns) && hd_board_is_at_rest(board, now_ns)) ||
            now_ns - session->death.at_ns > REST_MS * HD_MS_NS) {
            session_blame_death(session, board);
        }
    } else {
        session_blame_stop(session, board, now_ns);
        session_blame_signal(session, board, now_ns);
    }
}

/* Is it of use who was where?  When a peer was lost or late, or steps were on; before the first one
   nobody waits for anybody, and the cause says all. */
static uint32_t session_has_hang(const struct hd_board *board, int32_t exit_code)
{
    uint32_t has_begun = exit_code == HD_EXIT_PEER;
    struct hd_rank_state state;

    for (uint32_t rank = 0; rank < board->rank_count; rank++) {
        hd_board_read(board, rank, &state);
        has_begun |= state.step > board->steps_before;
    }
    return has_begun && exit_code <= HD_EXIT_PEER && exit_code != HD_EXIT_USAGE;
}

/* All ranks are gone: whatever the region holds is read now. */
static void session_end(struct hd_session *session, void *region)
{
    struct hd_board *board = hd_session_board(region);
    struct hd_problem late = {0};

    if (session->death.kind != 0 && !hd_board_is_aborted(board)) {
        session_blame_death(session, board); /* nobody was left to come to rest */
    }
    if (hd_board_is_aborted(board)) {
        const uint32_t is_known = hd_board_cause(board, &session->problem);
        if (is_known && session_has_hang(board, session->problem.exit_code)) {
            session->report = strndup(board->report, sizeof board->report);
        }
    }
    if (hd_launched_is_member(session)) {
        const struct hd_problem *verdict = hd_link_verdict(session->request.link);
        session->problem = verdict != NULL ? *verdict : session->problem;
        return;
    }
    const int32_t exit_code = session->problem.exit_code != 0
                                  ? session->problem.exit_code
                                  : (session->signal != 0 ? 128 + session->signal : 0);
    hd_status status = HD_OK;
    if (session->listener.on_end != NULL) {
        status =
            session->listener.on_end(session->listener.context, session, region, exit_code, &late);
    }
    if (status != HD_OK && session->problem.exit_code == 0) {
        session->problem = late;
    }
}

/* A plugin may call exit(0) in the middle: the board knows better. */
static uint32_t session_has_ended_well(const struct hd_session *session,
                                       const struct hd_board *board,
                                       const struct hd_launch_event *event)
{
    const int32_t wanted = session->signal != 0 ? 128 + session->signal : 0;
    struct hd_rank_state state;

    hd_board_read(board, event->rank, &state);
    return state.phase == HD_PHASE_DONE && (event->exit_code == 0 || event->exit_code == wanted);
}

/* Of a launched run one process was told to end at once: then all do. */
static void session_end_by_signal(struct hd_session *session, struct hd_board *board)
{
    struct hd_problem problem = {0};

    hd_problem_set(&problem, HD_ABORTED, 128 + session->signal, "ended by signal %d (%s)",
                   session->signal, session_signal_word(session->signal));
    hd_board_abort(board, &problem);
}

uint32_t hd_session_on_event(struct hd_session *session, void *region,
                             const struct hd_launch_event *event)
{
    struct hd_board *board = hd_session_board(region);

    switch (event->kind) {
    case HD_LAUNCH_EXITED:
        if (!session_has_ended_well(session, board, event)) {
            session_note_death(session, board, event);
        }
        break;
    case HD_LAUNCH_KILLED:
        if (session->signal == 0) { /* else the second signal killed it */
            session_note_death(session, board, event);
        } else if (session->request.link != NULL) {
            session_end_by_signal(session, board);
        }
        break;
    case HD_LAUNCH_LOST:
        session_note_death(session, board, event);
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
        if (session->signal == 0) { /* else another process was told, too */
            session->signal = event->signal;
            session->signalled_ns = event->at_ns;
        }
        atomic_store(&board->stop_signal, event->signal);
        break;
    case HD_LAUNCH_TICK:
        session_tick(session, board, event->at_ns);
        hd_launched_tick(session, event->at_ns);
        break;
    case HD_LAUNCH_ENDED:
        session_end(session, region);
        break;
    default:
        break;
    }
    return hd_board_is_aborted(board);
}

static uint32_t session_on_event(void *context, void *region, const struct hd_launch_event *event)
{
    if (hd_launched_forward(context, event)) {
        return hd_board_is_aborted(hd_session_board(region));
    }
    return hd_session_on_event(context, region, event);
}

static uint32_t session_is_settled(void *context, void *region)
{
    (void)region;
    return hd_launched_is_settled(context);
}

static void session_prepare_region(void *context, void *region)
{
    struct hd_session *session = context;
    const struct hd_config *config = session->job->config;
    struct hd_board *board = hd_session_board(region);

    hd_board_init(board, session->job->pipeline->rank_count);
    hd_session_results(session, region)->measured_bubble = NAN;
    board->timeout_ns = (uint64_t)(config->transport.timeout_s * 1e9);
    board->first_step_timeout_ns = (uint64_t)(config->transport.first_step_timeout_s * 1e9);
    hd_session_prepare_steps(session, region);
    hd_launched_begin(session, region);
}

hd_status hd_session_run(struct hd_session *session, struct hd_problem *problem)
{
    const uint64_t digest_bytes = session->digest_count * sizeof(struct hd_tensor);
    const uint64_t block_bytes = session->exchange.block_bytes;
    uint64_t gather_bytes = block_bytes > digest_bytes ? block_bytes : digest_bytes;
    struct hd_launch_outcome outcome;

    if (gather_bytes < HD_HASH_TEXT_BYTES) {
        gather_bytes = HD_HASH_TEXT_BYTES;
    }
    const struct hd_launch launch = {
        .rank_count = session->job->pipeline->rank_count,
        .shared_bytes = session->region_bytes,
        .gather_bytes = gather_bytes,
        .context = session,
        .prepare = session_prepare_region,
        .rank_main = hd_session_rank_main,
        .on_event = session_on_event,
        .grace_ms = 700,
        .link = session->request.link,
        .is_settled = session_is_settled,
    };
    if (launch.rank_count > HD_LAUNCH_RANK_MAX) {
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "%u ranks are more than the %u that one machine starts",
                              launch.rank_count, HD_LAUNCH_RANK_MAX);
    }
    hd_status status = HD_OK;
    if (hd_launched_is_member(session)) {
        status = hd_launched_await(session, problem);
    } else if (session->listener.on_begin != NULL) {
        status = session->listener.on_begin(session->listener.context, session, problem);
    }
    if (status == HD_OK) {
        status = hd_launch_run(&launch, &outcome, problem);
    }
    if (status != HD_OK) {
        return status;
    }
    const int32_t signal = session->signal != 0 ? session->signal : outcome.signal;
    if (session->problem.exit_code == 0 && signal != 0 && !hd_launched_is_member(session)) {
        hd_problem_set(&session->problem, HD_ABORTED, 128 + signal, "ended by signal %d (%s)",
                       signal, session_signal_word(signal));
        if (session->request.has_files && session->job->config->output.checkpoint_every >= 0) {
            hd_problem_remedy(&session->problem, "heddle run --resume %.400s goes on",
                              session->rundir.path);
        }
    }
    if (session->problem.exit_code != 0) {
        *problem = session->problem;
        return HD_ABORTED;
    }
    return HD_OK;
}
