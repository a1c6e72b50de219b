/* rates/samples.h - the clock and the samples of the rate programs. */
#ifndef HD_RATES_SAMPLES_H
#define HD_RATES_SAMPLES_H

#include <stdint.h>

enum { SAMPLE_MIN = 3, EXIT_USAGE = 2 };

struct samples {
    double median, best; /* work per nanosecond */
    uint32_t count;
};

uint64_t samples_now_ns(void);
/* Sorts the values. */
double samples_median(double *values, uint32_t count);
/* Runs once to warm up, then for `seconds`.  A sample is `repeat` runs of `work` each, so that
   reading the clock costs little. */
struct samples samples_take(void (*run)(const void *context), const void *context, double seconds,
                            int repeat, double work);

#endif /* HD_RATES_SAMPLES_H */
