#include "run/launched.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/number.h"
#include "run/launched_state.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* TELL_MS: between two states of a rank; the hub adds TELL_RANK_MS for each rank.  SILENT_MS: as in
   engine/board.c.  GAP_MS: a tick this late means that this process was stopped.  SETTLE_MS: after
   an abort, the longest wait for the others; the grace of the ranks ends before it. */
enum { TELL_MS = 50, TELL_RANK_MS = 2, SILENT_MS = 2000, GAP_MS = 1000, SETTLE_MS = 900 };

enum { IS_SILENT = 2 }; /* hd_rank_row.is_stopped */

struct beginning {
    char directory[HD_LAUNCHED_PATH_BYTES];
};

/* --- the abort ------------------------------------------------------------------------------- */

static void launched_watch_abort(struct hd_launched *launched, uint64_t now_ns)
{
    struct hd_problem cause;

    if (!hd_board_is_aborted(launched->shared->board)) {
        return;
    }
    if (launched->aborted_ns == 0) {
        launched->aborted_ns = now_ns;
    }
    if (!launched->has_told_abort) {
        hd_board_cause(launched->shared->board, &cause);
        hd_log(HD_LOG_DEBUG, "link: sends the cause: %.200s", cause.message);
        launched->has_told_abort = true;
        hd_launched_tell_states(launched->link, launched->shared);
        hd_launched_tell(launched->link, HD_SAY_ABORT, &cause, sizeof cause);
    }
}

static void launched_take_abort(struct hd_launched *launched, const struct hd_link_message *message)
{
    struct hd_problem problem;

    if (hd_problem_read(&problem, message->bytes, message->byte_count) != HD_OK ||
        problem.exit_code <= 0) {
        return;
    }
    if (launched->shared == NULL) {
        launched->failure = problem;
    } else {
        hd_board_abort(launched->shared->board, &problem);
    }
}

/* --- events --------------------------------------------------------------------------------- */

static bool launched_is_end(const struct hd_launch_event *event)
{
    return event->kind == HD_LAUNCH_EXITED || event->kind == HD_LAUNCH_KILLED;
}

bool hd_launched_forward(struct hd_launched *launched, const struct hd_launch_event *event)
{
    if (!hd_launched_is_member(launched) || event->kind > HD_LAUNCH_SIGNALLED ||
        hd_link_is_lost(launched->link, 0)) {
        return false;
    }
    struct hd_rank_row *row = &launched->shared->board->rows[hd_launched_rank(launched)];
    if (event->kind == HD_LAUNCH_STOPPED) {
        atomic_store(&row->stopped_ns, event->at_ns);
    }
    if (event->kind == HD_LAUNCH_STOPPED || event->kind == HD_LAUNCH_CONTINUED) {
        atomic_store(&row->is_stopped, event->kind == HD_LAUNCH_STOPPED);
    }
    hd_launched_tell_states(launched->link, launched->shared);
    /* The cause goes first: a rank that leaves because of it has not died. */
    launched_watch_abort(launched, event->at_ns);
    if (launched_is_end(event)) {
        hd_launched_tell_results(launched->link, launched->shared);
    }
    hd_launched_tell(launched->link, HD_SAY_EVENT, event, sizeof *event);
    return true;
}

static void launched_handle(const struct hd_launched *launched, const struct hd_launch_event *event)
{
    launched->handler.on_event(launched->handler.context, event);
}

static void launched_take_event(struct hd_launched *launched, const struct hd_link_message *message)
{
    struct hd_launch_event event;

    if (message->byte_count != sizeof event) {
        return;
    }
    memcpy(&event, message->bytes, sizeof event);
    event.rank = event.kind == HD_LAUNCH_SIGNALLED ? UINT32_MAX : message->rank;
    event.at_ns = hd_now_ns();
    if (event.kind >= HD_LAUNCH_EXITED && event.kind <= HD_LAUNCH_SIGNALLED) {
        launched->is_done[message->rank] |= (uint8_t)launched_is_end(&event);
        launched_handle(launched, &event);
    }
}

/* --- messages ------------------------------------------------------------------------------- */

static void launched_take_beginning(struct hd_launched *launched,
                                    const struct hd_link_message *message)
{
    if (message->byte_count == sizeof(struct beginning)) {
        memcpy(launched->directory, message->bytes, sizeof(struct beginning));
        launched->directory[sizeof(struct beginning) - 1] = '\0';
        launched->has_begun = true;
        hd_link_pause(launched->link); /* what follows is for memory that is not mapped yet */
    }
}

static void launched_take_from_hub(struct hd_launched *launched,
                                   const struct hd_link_message *message)
{
    if (message->kind == HD_SAY_BEGIN && !launched->has_begun) {
        launched_take_beginning(launched, message);
    } else if (message->kind == HD_SAY_STATES && launched->shared != NULL) {
        hd_launched_take_states(launched->link, launched->shared, message);
    } else if (message->kind == HD_SAY_ABORT) {
        launched_take_abort(launched, message);
    }
}

static void launched_take_from_member(struct hd_launched *launched,
                                      const struct hd_link_message *message)
{
    if (message->kind == HD_SAY_ABORT || message->kind == HD_LINK_FAILED) {
        launched_take_abort(launched, message);
    } else if (launched->shared == NULL) {
        return;
    } else if (message->kind == HD_SAY_STATE) {
        hd_launched_take_states(launched->link, launched->shared, message);
    } else if (message->kind == HD_SAY_EVENT) {
        launched_take_event(launched, message);
    } else {
        hd_launched_take_results(launched->shared, message);
    }
}

static void launched_on_message(void *context, const struct hd_link_message *message)
{
    struct hd_launched *launched = context;

    if (hd_launched_is_member(launched)) {
        launched_take_from_hub(launched, message);
    } else {
        launched_take_from_member(launched, message);
    }
}

static void launched_on_lost(void *context, uint32_t rank)
{
    struct hd_launched *launched = context;
    const struct hd_launch_event event = {
        .kind = HD_LAUNCH_LOST, .rank = rank, .at_ns = hd_now_ns()};
    const bool is_over = launched->is_done[rank] || hd_link_verdict(launched->link) != NULL;

    launched->is_done[rank] = 1;
    if (!is_over && launched->shared != NULL) {
        launched_handle(launched, &event);
    }
}

/* --- before the run ------------------------------------------------------------------------- */

hd_status hd_launched_check_hosts(const struct hd_link *link, const struct hd_plugin *transport,
                                  struct hd_problem *problem)
{
    const struct hd_peer *first = hd_link_peer(link, 0);

    for (uint32_t rank = 1; rank < hd_link_rank_count(link); rank++) {
        const struct hd_peer *peer = hd_link_peer(link, rank);
        if (strcmp(first->boot, peer->boot) != 0 &&
            !(transport->capabilities & HD_TRANSPORT_MANY_HOSTS)) {
            hd_problem_key(problem, "transport.name");
            hd_problem_remedy(problem, "use one that does; `heddle list transport` shows them");
            return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_USAGE,
                                  "%s does not reach another host or container: rank 0 is in one "
                                  "on %s, rank %u in another on %s",
                                  transport->name, first->host, rank, peer->host);
        }
    }
    return HD_OK;
}

hd_status hd_launched_create(struct hd_launched *launched, struct hd_link *link,
                             const struct hd_plugin *carrier, struct hd_problem *problem)
{
    const struct hd_link_listener listener = {launched, launched_on_message, launched_on_lost};

    *launched = (struct hd_launched){.link = link};
    if (link == NULL) {
        return HD_OK;
    }
    launched->is_done = calloc(hd_link_rank_count(link), 1);
    if (launched->is_done == NULL) {
        return hd_problem_no_memory(problem, hd_link_rank_count(link), "the ranks");
    }
    hd_link_listen(link, &listener);
    return hd_launched_is_member(launched) ? HD_OK
                                           : hd_launched_check_hosts(link, carrier, problem);
}

void hd_launched_finish(struct hd_launched *launched)
{
    free(launched->is_done);
    launched->is_done = NULL;
}

/* On a host that does not share rank 0's disk the directory is made for the logs alone. */
static void launched_make_log_directory(char *directory)
{
    char path[HD_LAUNCHED_PATH_BYTES + 8];

    snprintf(path, sizeof path, "%s/log", directory);
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        hd_log(HD_LOG_ERROR, "%s: %s: this rank writes no log", path, strerror(errno));
        directory[0] = '\0';
    }
}

hd_status hd_launched_await(struct hd_launched *launched, double patience_s, char *directory,
                            struct hd_problem *problem)
{
    const uint64_t deadline_ns = hd_now_ns() + (uint64_t)(patience_s * 1e9);
    struct hd_link *link = launched->link;
    struct pollfd awaited = {.fd = hd_link_descriptor(link), .events = POLLIN};
    const struct hd_problem *verdict = NULL;

    launched->directory = directory;
    while (!launched->has_begun && verdict == NULL && !hd_link_is_lost(link, 0)) {
        if (hd_now_ns() >= deadline_ns) {
            hd_problem_place(problem, "rank %u", hd_launched_rank(launched));
            hd_problem_remedy(problem, "if rank 0 only reads a large corpus, use a longer "
                                       "transport.first_step_timeout_s");
            return hd_problem_set(problem, HD_TIMEOUT, HD_EXIT_PEER,
                                  "rank 0 on %s has not begun the run within %.1f s",
                                  hd_link_peer(link, 0)->host, patience_s);
        }
        poll(&awaited, 1, 100);
        hd_link_poll(link);
        verdict = hd_link_verdict(link);
    }
    if (verdict != NULL) {
        *problem = *verdict;
        return HD_ABORTED;
    }
    if (!launched->has_begun) {
        hd_problem_place(problem, "rank %u", hd_launched_rank(launched));
        return hd_problem_set(problem, HD_PEER_LOST, HD_EXIT_PEER,
                              "the process of rank 0 on %s ended before the run began",
                              hd_link_peer(link, 0)->host);
    }
    hd_log(HD_LOG_DEBUG, "rank 0 has begun; run directory: %s",
           directory[0] != '\0' ? directory : "none");
    if (directory[0] != '\0') {
        launched_make_log_directory(directory);
    }
    return HD_OK;
}

void hd_launched_begin(struct hd_launched *launched, const struct hd_shared *shared,
                       const struct hd_launched_handler *handler, const char *directory)
{
    struct beginning beginning = {{0}};

    if (launched->link == NULL) {
        return;
    }
    launched->shared = shared;
    launched->handler = *handler;
    launched->heard_from_ns = hd_now_ns();
    if (!hd_launched_is_member(launched)) {
        if (directory != NULL && realpath(directory, beginning.directory) == NULL) {
            hd_log(HD_LOG_WARN, "%s: %s", directory, strerror(errno));
        }
        hd_launched_tell(launched->link, HD_SAY_BEGIN, &beginning, sizeof beginning);
    }
    if (launched->failure.exit_code > 0) {
        hd_board_abort(shared->board, &launched->failure);
    }
}

/* --- while it runs -------------------------------------------------------------------------- */

static bool launched_is_silent(const struct hd_launched *launched, uint32_t rank, uint64_t now_ns)
{
    const uint64_t heard_ns =
        hd_max_u64(hd_link_heard_ns(launched->link, rank), launched->heard_from_ns);

    return !launched->is_done[rank] && !hd_link_is_lost(launched->link, rank) &&
           hd_age_ns(now_ns, heard_ns) > SILENT_MS * HD_MS_NS;
}

/* The next state that the rank's process sends, if any, takes this back. */
static void launched_note_silence(struct hd_launched *launched, uint32_t rank)
{
    struct hd_rank_row *row = &launched->shared->board->rows[rank];

    if (atomic_load(&row->is_stopped) == 0) {
        atomic_store(&row->stopped_ns, hd_link_heard_ns(launched->link, rank));
        atomic_store(&row->is_stopped, (unsigned)IS_SILENT);
        hd_log(HD_LOG_WARN, "rank %u on %s sends nothing: it is stopped or cut off", rank,
               hd_link_peer(launched->link, rank)->host);
    }
}

/* A member learns of the others through the hub alone: without it their last states are old, and
   their silence is not theirs.  So they count as running, and only rank 0 as missing. */
static void launched_forget_waits(struct hd_launched *launched)
{
    struct hd_board *board = launched->shared->board;
    struct hd_rank_state state;

    for (uint32_t rank = 1; rank < board->rank_count; rank++) {
        if (rank == hd_launched_rank(launched)) {
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

static void launched_watch_silence(struct hd_launched *launched, uint64_t now_ns)
{
    if (hd_launched_is_member(launched)) {
        if (launched_is_silent(launched, 0, now_ns)) {
            launched_note_silence(launched, 0);
            launched_forget_waits(launched);
        }
        return;
    }
    for (uint32_t rank = 1; rank < launched->shared->rank_count; rank++) {
        if (launched_is_silent(launched, rank, now_ns)) {
            launched_note_silence(launched, rank);
        }
    }
}

bool hd_launched_is_current(const struct hd_launched *launched, uint64_t death_ns, uint64_t now_ns)
{
    return launched->link == NULL || hd_age_ns(now_ns, death_ns) > 3 * TELL_MS * HD_MS_NS;
}

void hd_launched_tick(struct hd_launched *launched, uint64_t now_ns)
{
    if (launched->link == NULL) {
        return;
    }
    const uint64_t pause_ms =
        TELL_MS +
        (hd_launched_is_member(launched) ? 0 : launched->shared->rank_count * TELL_RANK_MS);
    if (launched->tick_ns > 0 && now_ns - launched->tick_ns > GAP_MS * HD_MS_NS) {
        launched->heard_from_ns = now_ns; /* this process was stopped itself */
    }
    launched->tick_ns = now_ns;
    if (now_ns - launched->told_ns >= pause_ms * HD_MS_NS) {
        launched->told_ns = now_ns;
        hd_launched_tell_states(launched->link, launched->shared);
    }
    launched_watch_silence(launched, now_ns);
    launched_watch_abort(launched, now_ns);
}

static bool launched_is_cut_off(const struct hd_launched *launched, uint32_t rank)
{
    return atomic_load(&launched->shared->board->rows[rank].is_stopped) == IS_SILENT;
}

bool hd_launched_is_settled(const struct hd_launched *launched)
{
    const struct hd_link *link = launched->link;
    const bool is_aborted = launched->aborted_ns != 0;
    const uint64_t since_ns = is_aborted ? hd_age_ns(hd_now_ns(), launched->aborted_ns) : 0;
    bool is_complete = true;

    if (hd_launched_is_member(launched)) {
        /* The hub writes files before it tells the verdict. */
        return hd_link_verdict(link) != NULL || hd_link_is_lost(link, 0) ||
               (is_aborted && launched_is_cut_off(launched, 0)) ||
               since_ns > 2 * SETTLE_MS * HD_MS_NS;
    }
    for (uint32_t rank = 1; rank < hd_link_rank_count(link); rank++) {
        is_complete &=
            launched->is_done[rank] || (is_aborted && launched_is_cut_off(launched, rank));
    }
    return is_complete || since_ns > SETTLE_MS * HD_MS_NS;
}
