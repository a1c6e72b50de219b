/*
 * shm/wait.c - the only place that blocks: look for a while, then sleep on a futex.
 *
 * No wake-up is lost, because of both sides each moves first and looks second:
 *
 *   waiter      asleep = 1; word >= goal? failed?;  sleep while asleep is 1
 *   publisher   word = value; asleep? -> asleep = 0, wake
 *   abort       failed = status; asleep? -> asleep = 0, wake
 *
 * The looks cannot go before the moves (sequential consistency, or a fence between), so one
 * of the two sees the other; what sleeps is the announcement itself, so the kernel sees a
 * wake-up between look and sleep.  It is `wait_until` and `publish` of
 * tests/model/slot_protocol.pml.
 */
#include "shm.h"

#include <sched.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    LOOK_COUNT = 64,          /* looks before the first glance at the clock */
    SLICE_FIRST_NS = 8000000, /* sleep this long before looking whether the peer lives */
    SLICE_LAST_NS = 32000000, /* and in a long wait this long */
};

static void shm_pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void shm_futex_wake(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, (void *)word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Returns on a wake-up, a signal, the end of the time, or at once if *word is not 1. */
static void shm_futex_sleep(_Atomic uint32_t *word, uint64_t duration_ns)
{
    const struct timespec duration = {.tv_sec = (time_t)(duration_ns / 1000000000u),
                                      .tv_nsec = (long)(duration_ns % 1000000000u)};
    (void)syscall(SYS_futex, (void *)word, FUTEX_WAIT, 1, &duration, NULL, 0);
}

void shm_wake(_Atomic uint32_t *asleep)
{
    if (atomic_load(asleep) != 0 && atomic_exchange(asleep, 0) != 0) {
        shm_futex_wake(asleep);
    }
}

/*
 * The release store alone would let the look at `asleep` go before it.  A sequentially
 * consistent store is one locked instruction, which the reader would have to wait for; a
 * fence behind the store is not on its way.
 */
static void shm_store_in_order(_Atomic uint64_t *word, uint64_t value)
{
#if defined(__SANITIZE_THREAD__) /* gcc's knows no fences */
    atomic_store(word, value);
#else
    atomic_store_explicit(word, value, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

void shm_publish(_Atomic uint64_t *word, uint64_t value, _Atomic uint32_t *asleep)
{
#if defined(__x86_64__)
    __builtin_ia32_sfence(); /* a kernel's non-temporal stores obey no release store */
#endif
    shm_store_in_order(word, value);
    shm_wake(asleep);
}

/* HD_IN_PROGRESS while nothing ends the wait that this process can see without the kernel. */
static hd_status shm_wait_look(struct hd_transport *instance, const struct shm_wait *wait)
{
    const hd_status failed = book_failed(&instance->book);

    if (failed < 0 && !wait->until_rest) {
        return failed;
    }
    /* What the peer did last before it stopped still counts: so first stopped, then the word. */
    const int is_stopped = wait->stopped != NULL && atomic_load(wait->stopped) != 0;
    if (atomic_load(wait->word) >= wait->goal) {
        return HD_OK;
    }
    return is_stopped ? HD_PEER_LOST : HD_IN_PROGRESS;
}

static hd_status shm_spin(struct hd_transport *instance, const struct shm_wait *wait)
{
    const struct book *book = &instance->book;
    hd_status status = HD_IN_PROGRESS;
    uint64_t end_ns = 0;

    do {
        for (uint32_t i = 0; status == HD_IN_PROGRESS && i < LOOK_COUNT; i++) {
            status = shm_wait_look(instance, wait);
            if (status == HD_IN_PROGRESS) { /* a pause is as long as half a message takes */
                shm_pause_briefly();
            }
        }
        if (end_ns == 0 && instance->spin_ns > 0) {
            end_ns = book_now_ns(book) + instance->spin_ns;
        }
        if (status == HD_IN_PROGRESS && end_ns != 0) {
            sched_yield(); /* the peer may share this core, whatever the affinity masks say */
        }
    } while (status == HD_IN_PROGRESS && end_ns != 0 && book_now_ns(book) < end_ns);
    return status;
}

/* One sleep of at most `slice_ns`, and a look at the peer. */
static hd_status shm_sleep_once(struct hd_transport *instance, const struct shm_wait *wait,
                                uint64_t slice_ns)
{
    const uint64_t now_ns = book_now_ns(&instance->book);

    if (now_ns >= wait->deadline_ns) {
        return HD_TIMEOUT;
    }
    const uint64_t left_ns = wait->deadline_ns - now_ns;
    atomic_store(wait->asleep, 1);
    hd_status status = shm_wait_look(instance, wait);
    if (status == HD_IN_PROGRESS) {
        shm_futex_sleep(wait->asleep, left_ns < slice_ns ? left_ns : slice_ns);
    }
    atomic_store(wait->asleep, 0);
    if (status == HD_IN_PROGRESS && book_has_ended(&wait->peer->book)) {
        status = shm_wait_look(instance, wait); /* its last signal may have come before its end */
        return status == HD_IN_PROGRESS ? HD_PEER_LOST : status;
    }
    return status == HD_IN_PROGRESS ? shm_wait_look(instance, wait) : status;
}

hd_status shm_wait_for(struct hd_transport *instance, const struct shm_wait *wait)
{
    uint64_t slice_ns = SLICE_FIRST_NS;
    hd_status status = shm_spin(instance, wait);

    while (status == HD_IN_PROGRESS) { /* ends at the deadline */
        status = shm_sleep_once(instance, wait, slice_ns);
        slice_ns = slice_ns < SLICE_LAST_NS ? slice_ns * 2 : slice_ns;
    }
    return status;
}
