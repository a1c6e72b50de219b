/*
 * engine/watchdog.h - the thread beside the step: heartbeat, deadlines, abort.
 *
 * Every 10 ms it moves the rank's heartbeat and reads the abort word.  While the word is set it
 * repeats the call of `abort` until it is stopped, because a signal under way may overwrite a
 * poisoned word (transport.h).  It also decides when a wait has lasted too long, by following on
 * the board which rank waits for which, so that no transport needs to know what a slow stage is.
 */
#ifndef HEDDLE_ENGINE_WATCHDOG_H
#define HEDDLE_ENGINE_WATCHDOG_H

#include "engine/board.h"

#include <pthread.h>
#include <stdbool.h>

struct hd_watchdog {
    struct hd_board *board;
    uint32_t rank;
    void (*abort)(void *context,
                  const char *reason); /* [any-thread], returns within a millisecond */
    void *context;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool is_running, is_stopping;
};

/* Starts the thread; the first four members are set by the caller.  0, or errno. */
int hd_watchdog_start(struct hd_watchdog *watchdog);

/* Ends the thread and joins it.  Takes a watchdog that never started (all zero). */
void hd_watchdog_stop(struct hd_watchdog *watchdog);

#endif /* HEDDLE_ENGINE_WATCHDOG_H */
