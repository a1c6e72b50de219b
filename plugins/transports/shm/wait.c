/*
 * shm/wait.c - the only file that blocks: a wait spins for a while, then sleeps on a futex.
 *
 * No wake-up is lost, because each side first writes and then reads:
 *
 *   waiter      asleep = 1; word >= goal? failed?;  sleep while asleep is 1
 *   publisher   word = value; asleep? -> asleep = 0, wake
 *   abort       failed = status; asleep? -> asleep = 0, wake
 *
 * Sequential consistency, or a fence, keeps each read behind its write, so at least one side sees
 * the other's write.  The futex is `asleep` itself, so the kernel notices a wake-up between the
 * read and the sleep.  tests/model/slot_protocol.pml models this as `wait_until` and `publish`.
 */
#include "shm.h"

#include <sched.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    LOOK_COUNT = 64,          /* looks at the word between two reads of the clock */
    SLICE_FIRST_NS = 8000000, /* the first sleep before a look whether the peer is alive */
    SLICE_LAST_NS = 32000000, /* the longest such sleep; each is twice the one before */
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

/* Returns on a wake-up, on a signal, after `duration_ns`, or at once if *word is not 1. */
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
 * A release store alone would allow the read of `asleep` to go before it.  A sequentially
 * consistent store is a locked instruction, which delays the reader; a fence after the store does
 * not.
 */
static void shm_store_in_order(_Atomic uint64_t *word, uint64_t value)
{
#if defined(__SANITIZE_THREAD__) /* the thread sanitizer of gcc does not support fences */
    atomic_store(word, value);
#else
    atomic_store_explicit(word, value, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

void shm_publish(_Atomic uint64_t *word, uint64_t value, _Atomic uint32_t *asleep)
{
#if defined(__x86_64__)
    __builtin_ia32_sfence(); /* a release store does not order non-temporal stores of a kernel */
#endif
    shm_store_in_order(word, value);
    shm_wake(asleep);
}

/* HD_IN_PROGRESS unless something in memory ends the wait; asks the kernel nothing. */
static hd_status shm_wait_look(struct hd_transport *instance, const struct shm_wait *wait)
{
    const hd_status failed = book_failed(&instance->book);

    if (failed < 0 && !wait->until_rest) {
        return failed;
    }
    /* Read `stopped` before the word: what the peer sent before it stopped still counts. */
    const bool is_stopped = wait->stopped != NULL && atomic_load(wait->stopped) != 0;
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
            if (status == HD_IN_PROGRESS) { /* a pause lasts half as long as a message */
                shm_pause_briefly();
            }
        }
        if (end_ns == 0 && instance->spin_ns > 0) {
            end_ns = book_now_ns(book) + instance->spin_ns;
        }
        if (status == HD_IN_PROGRESS && end_ns != 0) {
            sched_yield(); /* the peer may share this core, even if the affinity masks differ */
        }
    } while (status == HD_IN_PROGRESS && end_ns != 0 && book_now_ns(book) < end_ns);
    return status;
}

/* Sleeps for at most `slice_ns`, then looks whether the peer is alive. */
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
        status = shm_wait_look(instance,
                               wait); /* the peer may have sent its last signal before it ended */
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
