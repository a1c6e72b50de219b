#include "run/launched_internal.h"
#include "base/clock.h"
#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* TELL_MS: between two states of a rank; of many ranks the hub speaks less often.  SILENT_MS: as
   the board's own.  SETTLE_MS: after an abort, until nobody is waited for; the ranks' grace ends
   before it. */
enum { TELL_MS = 50, TELL_RANKS_A_MS = 2, SILENT_MS = 2000, GAP_MS = 1000, SETTLE_MS = 900 };

enum { IS_SILENT = 2 }; /* hd_rank_row.is_stopped */

struct beginning {
    char directory[4096];
};

uint32_t hd_launched_is_member(const struct hd_session *session)
{
    return session->request.link != NULL && hd_link_rank(session->request.link) != 0;
}

void hd_launched_tell(const struct hd_session *session, uint32_t kind, const void *bytes,
                      uint64_t count)
{
    const struct hd_link_message message = {kind, hd_launched_rank(session), bytes, count};

    hd_link_send(session->request.link, UINT32_MAX, &message);
}

/* --- the abort ------------------------------------------------------------------------------- */

static void launched_watch_abort(struct hd_session *session, uint64_t now_ns)
{
    struct hd_launched *launched = &session->launched;
    struct hd_board *board = hd_session_board(launched->region);

    if (!hd_board_is_aborted(board)) {
        return;
    }
    if (launched->aborted_ns == 0) {
        launched->aborted_ns = now_ns;
    }
    if (!launched->has_told_abort) {
        struct hd_problem cause;
        hd_board_cause(board, &cause);
        launched->has_told_abort = 1;
        hd_launched_tell_states(session);
        hd_launched_tell(session, HD_SAY_ABORT, &cause, sizeof cause);
    }
}

/* --- events --------------------------------------------------------------------------------- */

static uint32_t launched_is_end(const struct hd_launch_event *event)
{
    return event->kind == HD_LAUNCH_EXITED || event->kind == HD_LAUNCH_KILLED;
}

uint32_t hd_launched_forward(struct hd_session *session, const struct hd_launch_event *event)
{
    if (!hd_launched_is_member(session) || event->kind > HD_LAUNCH_SIGNALLED ||
        hd_link_is_lost(session->request.link, 0)) {
        return 0;
    }
    struct hd_board *board = hd_session_board(session->launched.region);
    struct hd_rank_row *row = &board->rows[hd_launched_rank(session)];
    if (event->kind == HD_LAUNCH_STOPPED) {
        atomic_store(&row->stopped_ns, event->at_ns);
    }
    if (event->kind == HD_LAUNCH_STOPPED || event->kind == HD_LAUNCH_CONTINUED) {
        atomic_store(&row->is_stopped, event->kind == HD_LAUNCH_STOPPED);
    }
    hd_launched_tell_states(session);
    launched_watch_abort(session,
                         event->at_ns); /* a rank that leaves has a cause, and did not die of it */
    if (launched_is_end(event)) {
        hd_launched_tell_results(session);
    }
    hd_launched_tell(session, HD_SAY_EVENT, event, sizeof *event);
    return 1;
}

static void launched_take_event(struct hd_session *session, const struct hd_link_message *message)
{
    struct hd_launch_event event;

    if (message->byte_count != sizeof event) {
        return;
    }
    memcpy(&event, message->bytes, sizeof event);
    event.rank = event.kind == HD_LAUNCH_SIGNALLED ? UINT32_MAX : message->rank;
    event.at_ns = hd_now_ns();
    if (event.kind >= HD_LAUNCH_EXITED && event.kind <= HD_LAUNCH_SIGNALLED) {
        session->launched.is_done[message->rank] |= (uint8_t)launched_is_end(&event);
        hd_session_on_event(session, session->launched.region, &event);
    }
}

static void launched_take_abort(struct hd_session *session, const struct hd_link_message *message)
{
    struct hd_problem problem;

    if (hd_link_read_problem(message, &problem) != HD_OK || problem.exit_code <= 0) {
        return;
    }
    if (session->launched.region == NULL) {
        session->launched.failure = problem;
    } else {
        hd_board_abort(hd_session_board(session->launched.region), &problem);
    }
}

/* --- what the link says --------------------------------------------------------------------- */

static void launched_take_beginning(struct hd_session *session,
                                    const struct hd_link_message *message)
{
    struct beginning beginning;

    if (message->byte_count == sizeof beginning) {
        memcpy(&beginning, message->bytes, sizeof beginning);
        beginning.directory[sizeof beginning.directory - 1] = '\0';
        memcpy(session->rundir.path, beginning.directory, sizeof beginning.directory);
        session->launched.has_begun = 1;
        hd_link_pause(
            session->request.link); /* what follows is for the region, which is not there */
    }
}

static void launched_take_of_hub(struct hd_session *session, const struct hd_link_message *message)
{
    if (message->kind == HD_SAY_BEGIN && !session->launched.has_begun) {
        launched_take_beginning(session, message);
    } else if (message->kind == HD_SAY_STATES && session->launched.region != NULL) {
        hd_launched_take_states(session, message);
    } else if (message->kind == HD_SAY_ABORT) {
        launched_take_abort(session, message);
    }
}

static void launched_take_of_member(struct hd_session *session,
                                    const struct hd_link_message *message)
{
    if (message->kind == HD_SAY_ABORT || message->kind == HD_LINK_FAILED) {
        launched_take_abort(session, message);
        return;
    }
    if (session->launched.region == NULL) {
        return;
    }
    if (message->kind == HD_SAY_STATE) {
        hd_launched_take_states(session, message);
    } else if (message->kind == HD_SAY_EVENT) {
        launched_take_event(session, message);
    } else {
        hd_launched_take_results(session, message);
    }
}

static void launched_on_message(void *context, const struct hd_link_message *message)
{
    struct hd_session *session = context;

    if (hd_launched_is_member(session)) {
        launched_take_of_hub(session, message);
    } else {
        launched_take_of_member(session, message);
    }
}

static void launched_on_lost(void *context, uint32_t rank)
{
    struct hd_session *session = context;
    const struct hd_launch_event event = {
        .kind = HD_LAUNCH_LOST, .rank = rank, .at_ns = hd_now_ns()};
    const uint32_t is_over =
        session->launched.is_done[rank] || hd_link_verdict(session->request.link) != NULL;

    session->launched.is_done[rank] = 1;
    if (!is_over && session->launched.region != NULL) {
        hd_session_on_event(session, session->launched.region, &event);
    }
}

/* --- before the run ------------------------------------------------------------------------- */

hd_status hd_launched_check_hosts(const struct hd_link *link, const struct hd_plugin *transport,
                                  struct hd_problem *problem)
{
    const struct hd_link_peer *first = hd_link_peer(link, 0);

    for (uint32_t rank = 1; rank < hd_link_rank_count(link); rank++) {
        const struct hd_link_peer *peer = hd_link_peer(link, rank);
        if (strcmp(first->boot, peer->boot) != 0 &&
            !(transport->capabilities & HD_TRANSPORT_MANY_HOSTS)) {
            hd_problem_key(problem, "transport.name");
            hd_problem_remedy(problem, "take one that does; `heddle list transport` shows them");
            return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_USAGE,
                                  "%s does not reach from host to host or out of a container, and "
                                  "rank 0 is in one on %s, rank %u in another on %s",
                                  transport->name, first->host, rank, peer->host);
        }
    }
    return HD_OK;
}

hd_status hd_launched_create(struct hd_session *session, struct hd_problem *problem)
{
    const struct hd_link_listener listener = {session, launched_on_message, launched_on_lost};
    struct hd_link *link = session->request.link;

    if (link == NULL) {
        return HD_OK;
    }
    assert(hd_link_rank_count(link) == session->job->pipeline->rank_count);
    session->launched.session = session;
    session->launched.is_done = calloc(hd_link_rank_count(link), 1);
    if (session->launched.is_done == NULL) {
        return hd_problem_set(problem, HD_NO_MEMORY, HD_EXIT_FAILED, "no memory for the ranks");
    }
    hd_link_listen(link, &listener);
    if (hd_launched_rank(session) != 0) {
        return HD_OK;
    }
    return hd_launched_check_hosts(link, hd_plugins_carrier(&session->job->plugins), problem);
}

void hd_launched_finish(struct hd_session *session)
{
    free(session->launched.is_done);
    session->launched.is_done = NULL;
}

/* On a host that does not share rank 0's disk the directory is made for the logs alone. */
static void launched_make_log_directory(struct hd_session *session)
{
    char path[sizeof session->rundir.path + 8];

    snprintf(path, sizeof path, "%s/log", session->rundir.path);
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        hd_log(HD_LOG_ERROR, "%s: %s: this rank writes no log", path, strerror(errno));
        session->rundir.path[0] = '\0';
    }
}

hd_status hd_launched_await(struct hd_session *session, struct hd_problem *problem)
{
    struct hd_link *link = session->request.link;
    struct hd_launched *launched = &session->launched;
    struct pollfd awaited = {.fd = hd_link_descriptor(link), .events = POLLIN};
    const struct hd_problem *verdict = NULL;

    /* No deadline: the hub reads a corpus and makes files, and its end is noticed. */
    while (!launched->has_begun && verdict == NULL && !hd_link_is_lost(link, 0)) {
        poll(&awaited, 1, 1000);
        hd_link_turn(link);
        verdict = hd_link_verdict(link);
    }
    if (verdict != NULL) {
        *problem = *verdict;
        return HD_ABORTED;
    }
    if (!launched->has_begun) {
        hd_problem_place(problem, "rank %u", hd_launched_rank(session));
        return hd_problem_set(problem, HD_PEER_LOST, HD_EXIT_PEER,
                              "rank 0 on %s is gone before the run began",
                              hd_link_peer(link, 0)->host);
    }
    if (session->request.has_files) {
        launched_make_log_directory(session);
    }
    return HD_OK;
}

void hd_launched_begin(struct hd_session *session, void *region)
{
    struct beginning beginning = {{0}};

    if (session->request.link == NULL) {
        return;
    }
    session->launched.region = region;
    session->launched.heard_from_ns = hd_now_ns();
    if (hd_launched_rank(session) == 0) {
        if (session->request.has_files &&
            realpath(session->rundir.path, beginning.directory) == NULL) {
            hd_log(HD_LOG_WARN, "%s: %s", session->rundir.path, strerror(errno));
        }
        hd_launched_tell(session, HD_SAY_BEGIN, &beginning, sizeof beginning);
    }
    if (session->launched.failure.exit_code > 0) {
        hd_board_abort(hd_session_board(region), &session->launched.failure);
    }
}

/* --- while it runs -------------------------------------------------------------------------- */

static uint32_t launched_is_silent(const struct hd_session *session, uint32_t rank, uint64_t now_ns)
{
    const struct hd_link *link = session->request.link;
    uint64_t heard_ns = hd_link_heard_ns(link, rank);

    if (heard_ns < session->launched.heard_from_ns) {
        heard_ns = session->launched.heard_from_ns;
    }
    return !session->launched.is_done[rank] && !hd_link_is_lost(link, rank) &&
           hd_age_ns(now_ns, heard_ns) > SILENT_MS * HD_MS_NS;
}

/* What it says next, if it ever does, takes this back. */
static void launched_note_silence(struct hd_session *session, uint32_t rank)
{
    const struct hd_link *link = session->request.link;
    struct hd_rank_row *row = &hd_session_board(session->launched.region)->rows[rank];

    if (atomic_load(&row->is_stopped) == 0) {
        atomic_store(&row->stopped_ns, hd_link_heard_ns(link, rank));
        atomic_store(&row->is_stopped, (unsigned)IS_SILENT);
        hd_log(HD_LOG_WARN, "nothing comes from rank %u on %s: it is stopped, or cut off", rank,
               hd_link_peer(link, rank)->host);
    }
}

/* Of the others nothing can be known without the hub: it is not their silence, and who waits for
   whom is old.  So they count as busy, and only rank 0 as missing. */
static void launched_forget_waits(struct hd_session *session)
{
    struct hd_board *board = hd_session_board(session->launched.region);
    struct hd_rank_state state;

    for (uint32_t rank = 1; rank < board->rank_count; rank++) {
        if (rank == hd_launched_rank(session)) {
            continue;
        }
        hd_board_read(board, rank, &state);
        if (state.phase != HD_PHASE_DONE) {
            state.phase = HD_PHASE_RUN;
            hd_board_publish(board, rank, &state);
        }
        hd_board_beat(board, rank);
    }
}

static void launched_watch_silence(struct hd_session *session, uint64_t now_ns)
{
    struct hd_board *board = hd_session_board(session->launched.region);

    for (uint32_t rank = 1; hd_launched_rank(session) == 0 && rank < board->rank_count; rank++) {
        if (launched_is_silent(session, rank, now_ns)) {
            launched_note_silence(session, rank);
        }
    }
    if (hd_launched_rank(session) != 0 && launched_is_silent(session, 0, now_ns)) {
        launched_note_silence(session, 0);
        launched_forget_waits(session);
    }
}

uint32_t hd_launched_is_current(const struct hd_session *session, uint64_t now_ns)
{
    return session->request.link == NULL ||
           hd_age_ns(now_ns, session->death.at_ns) > 3 * TELL_MS * HD_MS_NS;
}

void hd_launched_tick(struct hd_session *session, uint64_t now_ns)
{
    struct hd_launched *launched = &session->launched;

    if (session->request.link == NULL) {
        return;
    }
    const uint64_t pause_ms =
        hd_launched_rank(session) == 0
            ? TELL_MS + hd_link_rank_count(session->request.link) * TELL_RANKS_A_MS
            : TELL_MS;
    if (launched->tick_ns > 0 && now_ns - launched->tick_ns > GAP_MS * HD_MS_NS) {
        launched->heard_from_ns = now_ns; /* I was stopped myself */
    }
    launched->tick_ns = now_ns;
    if (now_ns - launched->told_ns >= pause_ms * HD_MS_NS) {
        launched->told_ns = now_ns;
        hd_launched_tell_states(session);
    }
    launched_watch_silence(session, now_ns);
    launched_watch_abort(session, now_ns);
}

static uint32_t launched_is_cut_off(const struct hd_session *session, uint32_t rank)
{
    const struct hd_board *board = hd_session_board(session->launched.region);

    return atomic_load(&board->rows[rank].is_stopped) == IS_SILENT;
}

static uint32_t launched_has_verdict(const struct hd_session *session)
{
    const struct hd_link *link = session->request.link;

    return hd_link_verdict(link) != NULL || hd_link_is_lost(link, 0);
}

uint32_t hd_launched_is_settled(const struct hd_session *session)
{
    const struct hd_launched *launched = &session->launched;
    const uint64_t left_ns = launched->aborted_ns;
    const uint64_t since_ns = left_ns != 0 ? hd_age_ns(hd_now_ns(), left_ns) : 0;
    uint32_t is_complete = 1;

    if (hd_launched_is_member(session)) {
        /* The hub writes files before it speaks. */
        return launched_has_verdict(session) || (left_ns != 0 && launched_is_cut_off(session, 0)) ||
               since_ns > 2 * SETTLE_MS * HD_MS_NS;
    }
    for (uint32_t rank = 1; rank < hd_link_rank_count(session->request.link); rank++) {
        is_complete &=
            launched->is_done[rank] || (left_ns != 0 && launched_is_cut_off(session, rank));
    }
    return is_complete || since_ns > SETTLE_MS * HD_MS_NS;
}
