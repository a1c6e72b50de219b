/* rates/samples.c - see samples.h. */
#include "samples.h"

#include <stdlib.h>
#include <time.h>

enum { SAMPLE_MAX = 4096 };

uint64_t samples_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int samples_compare(const void *left, const void *right)
{
    const double one = *(const double *)left, other = *(const double *)right;
    return (one > other) - (one < other);
}

double samples_median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, samples_compare);
    return values[count / 2];
}

struct samples samples_take(void (*run)(const void *context), const void *context, double seconds,
                            int repeat, double work)
{
    static double rates[SAMPLE_MAX];
    struct samples samples = {0};

    run(context);
    const uint64_t until_ns = samples_now_ns() + (uint64_t)(seconds * 1e9);
    while (samples.count < SAMPLE_MAX &&
           (samples.count < SAMPLE_MIN || samples_now_ns() < until_ns)) {
        const uint64_t begin_ns = samples_now_ns();
        for (int i = 0; i < repeat; i++) {
            run(context);
        }
        rates[samples.count++] = work * repeat / (double)(samples_now_ns() - begin_ns);
    }
    samples.median = samples_median(rates, samples.count);
    samples.best = rates[samples.count - 1];
    return samples;
}
