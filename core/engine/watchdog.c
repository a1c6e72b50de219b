#include "engine/watchdog.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* GAP_MS: if the loop is this late the process was stopped (SIGSTOP), and its deadlines restart. */
enum { PERIOD_MS = 10, GAP_MS = 1000, LINE_BYTES = 1024 };

static void watchdog_report_overdue(struct hd_watchdog *watchdog, uint32_t culprit, uint64_t now_ns)
{
    struct hd_board *board = watchdog->board;
    struct hd_problem problem = {0};
    struct hd_rank_state state;
    char mine[LINE_BYTES], other[LINE_BYTES] = "";

    hd_board_read(board, watchdog->rank, &state);
    const double limit_s = (double)hd_board_timeout_ns(board, state.step) * 1e-9;
    hd_board_line(board, watchdog->rank, now_ns, mine, sizeof mine);
    if (culprit != watchdog->rank) {
        hd_board_line(board, culprit, now_ns, other, sizeof other);
    }
    hd_problem_remedy(&problem,
                      "the state of every rank is printed below; if the step is only slow, use a "
                      "longer transport.timeout_s");
    hd_problem_set(&problem, HD_TIMEOUT, HD_EXIT_PEER, "%s%sno rank moved for %.1f s: %s", other,
                   other[0] != '\0' ? "; " : "", limit_s, mine);
    hd_board_abort(board, &problem);
}

/* The signals that the launcher has blocked in this rank. */
static void watchdog_read_signal(struct hd_rank_row *row, uint64_t now_ns)
{
    const struct timespec at_once = {0};
    sigset_t asked;

    sigemptyset(&asked);
    sigaddset(&asked, SIGTERM);
    sigaddset(&asked, SIGINT);
    sigaddset(&asked, SIGUSR1);
    const int number = sigtimedwait(&asked, NULL, &at_once);
    if (number > 0) {
        atomic_store(&row->signalled_ns, now_ns);
        atomic_store(&row->signal, number);
    }
}

static void watchdog_look(struct hd_watchdog *watchdog, uint64_t now_ns, uint64_t last_ns)
{
    struct hd_board *board = watchdog->board;
    uint32_t culprit;

    hd_board_beat(board, watchdog->rank);
    watchdog_read_signal(&board->rows[watchdog->rank], now_ns);
    if (now_ns - last_ns > GAP_MS * HD_MS_NS) {
        atomic_store(&board->rows[watchdog->rank].resumed_ns, now_ns);
    }
    if (!hd_board_is_aborted(board) &&
        hd_board_is_overdue(board, watchdog->rank, now_ns, &culprit)) {
        watchdog_report_overdue(watchdog, culprit, now_ns);
    }
    if (hd_board_is_aborted(board)) {
        watchdog->abort(watchdog->context, "another rank has ended the run");
    }
}

static void *watchdog_watch(void *argument)
{
    struct hd_watchdog *watchdog = argument;
    uint64_t last_ns = hd_now_ns();

    pthread_mutex_lock(&watchdog->lock);
    while (!watchdog->is_stopping) {
        const uint64_t until_ns = hd_now_ns() + PERIOD_MS * HD_MS_NS;
        const struct timespec until = {(time_t)(until_ns / HD_S_NS), (long)(until_ns % HD_S_NS)};
        pthread_cond_timedwait(&watchdog->wake, &watchdog->lock, &until);
        if (!watchdog->is_stopping) {
            const uint64_t now_ns = hd_now_ns();
            pthread_mutex_unlock(&watchdog->lock);
            watchdog_look(watchdog, now_ns, last_ns);
            pthread_mutex_lock(&watchdog->lock);
            last_ns = now_ns;
        }
    }
    pthread_mutex_unlock(&watchdog->lock);
    return NULL;
}

int hd_watchdog_start(struct hd_watchdog *watchdog)
{
    pthread_condattr_t attributes;

    hd_board_beat(watchdog->board, watchdog->rank);
    hd_log(HD_LOG_DEBUG, "a wait may last %.1f s in the first step, and %.1f s later",
           (double)watchdog->board->first_step_timeout_ns * 1e-9,
           (double)watchdog->board->timeout_ns * 1e-9);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&watchdog->lock, NULL);
    pthread_cond_init(&watchdog->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    const int error = pthread_create(&watchdog->thread, NULL, watchdog_watch, watchdog);
    watchdog->is_running = error == 0;
    return error;
}

void hd_watchdog_stop(struct hd_watchdog *watchdog)
{
    if (!watchdog->is_running) {
        return;
    }
    pthread_mutex_lock(&watchdog->lock);
    watchdog->is_stopping = true;
    pthread_cond_signal(&watchdog->wake);
    pthread_mutex_unlock(&watchdog->lock);
    pthread_join(watchdog->thread, NULL);
    pthread_cond_destroy(&watchdog->wake);
    pthread_mutex_destroy(&watchdog->lock);
    watchdog->is_running = false;
}
