/* base/clock.h - the clock of all deadlines: CLOCK_MONOTONIC, in nanoseconds. [any-thread] */
#ifndef HEDDLE_BASE_CLOCK_H
#define HEDDLE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define HD_MS_NS 1000000ull
#define HD_S_NS  1000000000ull

static inline uint64_t hd_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * HD_S_NS + (uint64_t)now.tv_nsec;
}

/* CPU time of the calling thread, to measure overhead; rates use hd_now_ns. */
static inline uint64_t hd_thread_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * HD_S_NS + (uint64_t)now.tv_nsec;
}

#endif /* HEDDLE_BASE_CLOCK_H */
