/*
 * hook_fault/wire.c - the thread that passes a held message to inner when it is due.
 *
 * A slow wire must not wait until its rank, which may be in a long action, makes its next call.  So
 * every data call holds the lock, and this thread takes it when the next message is due.  The
 * thread exists only if an option can hold a message back.
 */
#include "hook.h"

#include <errno.h>
#include <signal.h>
#include <time.h>

static const uint64_t hook_fault_second_ns = 1000000000u;

static void hook_fault_sleep_until(struct hd_transport *hook, uint64_t due_ns)
{
    const struct timespec due = {(time_t)(due_ns / hook_fault_second_ns),
                                 (long)(due_ns % hook_fault_second_ns)};

    if (due_ns == UINT64_MAX) {
        pthread_cond_wait(&hook->news, &hook->lock);
    } else {
        pthread_cond_timedwait(&hook->news, &hook->lock, &due);
    }
}

/* A failure is inner's, and inner returns it to the next call of the core. */
static void *hook_fault_run(void *argument)
{
    struct hd_transport *hook = argument;
    hd_status status = HD_OK;

    pthread_mutex_lock(&hook->lock);
    while (status >= 0 && !hook->is_resting) { /* until close */
        status = hook_pass_due(hook, false);
        if (status >= 0 && !hook->is_resting) {
            hook_fault_sleep_until(hook, hook_next_due_ns(hook));
        }
    }
    pthread_mutex_unlock(&hook->lock);
    return NULL;
}

static bool hook_fault_is_needed(const struct hd_transport *hook)
{
    return hook->values[DELAY_US] > 0 || hook->values[BANDWIDTH_MB] > 0 ||
           hook->values[REORDER_PERCENT] > 0;
}

int hook_start_wire(struct hd_transport *hook)
{
    pthread_condattr_t attributes;
    sigset_t all, before;

    pthread_mutex_init(&hook->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* the host's clock */
    pthread_cond_init(&hook->news, &attributes);
    pthread_condattr_destroy(&attributes);
    if (!hook_fault_is_needed(hook)) {
        return 0;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals belong to the core's threads */
    const int error = pthread_create(&hook->thread, NULL, hook_fault_run, hook);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    hook->has_thread = error == 0;
    return error;
}

void hook_stop_wire(struct hd_transport *hook)
{
    if (hook->has_thread) {
        pthread_mutex_lock(&hook->lock);
        hook->is_resting = true;
        pthread_cond_signal(&hook->news);
        pthread_mutex_unlock(&hook->lock);
        pthread_join(hook->thread, NULL);
        hook->has_thread = false;
    }
    pthread_cond_destroy(&hook->news);
    pthread_mutex_destroy(&hook->lock);
}
