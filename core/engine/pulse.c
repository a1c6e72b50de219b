#include "engine/pulse.h"
#include "base/memory.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

/* To the core this is a transport like any other. */
struct hd_transport {
    const struct hd_transport_ops *inner_ops;
    struct hd_transport *inner;
    struct hd_transport_ops ops; /* NULL where inner has NULL */
    uint64_t period_ns;
    pthread_mutex_t lock; /* held in every data call */
    pthread_t thread;
    atomic_int is_stopping;
};

static void *pulse_slot(struct hd_transport *pulse, const struct hd_message *message)
{
    return pulse->inner_ops->slot(pulse->inner, message);
}

/* Returns what a call of the inner transport returns, made under the lock. */
#define PULSE_LOCKED(pulse, call)             \
    do {                                      \
        pthread_mutex_lock(&(pulse)->lock);   \
        const hd_status status = (call);      \
        pthread_mutex_unlock(&(pulse)->lock); \
        return status;                        \
    } while (0)

static hd_status pulse_reserve(struct hd_transport *pulse, const struct hd_message *message)
{
    PULSE_LOCKED(pulse, pulse->inner_ops->reserve(pulse->inner, message));
}

static hd_status pulse_post_send(struct hd_transport *pulse, const struct hd_message *message,
                                 void *stream)
{
    PULSE_LOCKED(pulse, pulse->inner_ops->post_send(pulse->inner, message, stream));
}

static hd_status pulse_post_recv(struct hd_transport *pulse, const struct hd_message *message)
{
    PULSE_LOCKED(pulse, pulse->inner_ops->post_recv(pulse->inner, message));
}

static hd_status pulse_test(struct hd_transport *pulse, const struct hd_message *message)
{
    PULSE_LOCKED(pulse, pulse->inner_ops->test(pulse->inner, message));
}

/* A wait moves everything by itself, so the thread may stay outside. */
static hd_status pulse_wait(struct hd_transport *pulse, const struct hd_message *message,
                            void *stream, uint64_t deadline_ns)
{
    PULSE_LOCKED(pulse, pulse->inner_ops->wait(pulse->inner, message, stream, deadline_ns));
}

static hd_status pulse_release(struct hd_transport *pulse, const struct hd_message *message,
                               void *stream)
{
    PULSE_LOCKED(pulse, pulse->inner_ops->release(pulse->inner, message, stream));
}

static hd_status pulse_progress(struct hd_transport *pulse)
{
    PULSE_LOCKED(pulse, pulse->inner_ops->progress(pulse->inner));
}

static hd_status pulse_quiesce(struct hd_transport *pulse, uint64_t deadline_ns)
{
    PULSE_LOCKED(pulse, pulse->inner_ops->quiesce(pulse->inner, deadline_ns));
}

static void pulse_abort_waits(struct hd_transport *pulse, const char *reason)
{
    pulse->inner_ops->abort(pulse->inner, reason);
}

static void pulse_stats(struct hd_transport *pulse, uint32_t channel, struct hd_channel_stats *out)
{
    pulse->inner_ops->stats(pulse->inner, channel, out);
}

static void pulse_close_both(struct hd_transport *pulse, uint64_t deadline_ns)
{
    if (pulse == NULL) {
        return;
    }
    atomic_store(&pulse->is_stopping, 1);
    pthread_join(pulse->thread, NULL);
    pulse->inner_ops->close(pulse->inner, deadline_ns);
    pthread_mutex_destroy(&pulse->lock);
    hd_memory_give(pulse);
}

/* A failure of this progress stays in the transport, and the next call of the engine returns it. */
static void *pulse_beat(void *argument)
{
    struct hd_transport *pulse = argument;
    const struct timespec period = {.tv_sec = (time_t)(pulse->period_ns / 1000000000u),
                                    .tv_nsec = (long)(pulse->period_ns % 1000000000u)};

    while (!atomic_load(&pulse->is_stopping)) { /* until close */
        if (pthread_mutex_trylock(&pulse->lock) == 0) {
            (void)pulse->inner_ops->progress(pulse->inner);
            pthread_mutex_unlock(&pulse->lock);
        }
        nanosleep(&period, NULL);
    }
    return NULL;
}

static struct hd_transport_ops pulse_table(const struct hd_transport_ops *inner)
{
    return (struct hd_transport_ops){
        .size = sizeof(struct hd_transport_ops),
        .slot = pulse_slot,
        .reserve = pulse_reserve,
        .post_send = pulse_post_send,
        .post_recv = pulse_post_recv,
        .test = pulse_test,
        .wait = inner->wait != NULL ? pulse_wait : NULL,
        .release = pulse_release,
        .progress = pulse_progress,
        .abort = pulse_abort_waits,
        .quiesce = inner->quiesce != NULL ? pulse_quiesce : NULL,
        .close = pulse_close_both,
        .stats = inner->stats != NULL ? pulse_stats : NULL,
    };
}

uint64_t hd_pulse_period_ns(const struct hd_pulse_need *need)
{
    const bool is_needed = (need->capabilities & HD_TRANSPORT_TARGET_PROGRESS) != 0 ||
                           need->is_hooked ||
                           (need->is_device && (need->capabilities & HD_TRANSPORT_PROGRESS) != 0);

    if (need->ops->progress == NULL) {
        return 0;
    }
    if (need->is_asked) {
        return HD_PULSE_QUICK_NS;
    }
    return is_needed ? HD_PULSE_PERIOD_NS : 0;
}

int hd_pulse_start(const struct hd_transport_ops *inner_ops, uint64_t period_ns,
                   const struct hd_transport_ops **ops, struct hd_transport **transport)
{
    struct hd_transport *pulse = hd_memory_take(sizeof *pulse, 64, "engine");
    sigset_t all;
    sigset_t before;

    if (pulse == NULL) {
        return ENOMEM;
    }
    pulse->inner_ops = inner_ops;
    pulse->inner = *transport;
    pulse->ops = pulse_table(inner_ops);
    pulse->period_ns = period_ns;
    pthread_mutex_init(&pulse->lock, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the engine's thread takes signals */
    const int error = pthread_create(&pulse->thread, NULL, pulse_beat, pulse);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        pthread_mutex_destroy(&pulse->lock);
        hd_memory_give(pulse);
        return error;
    }
    *ops = &pulse->ops;
    *transport = pulse;
    return 0;
}
