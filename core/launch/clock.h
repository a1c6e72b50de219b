/*
 * launch/clock.h - how far apart the clocks of two hosts are, from messages there and back.
 *
 *   asked_ns      here, when the question left       \  at some moment between the two the other
 *   answered_ns   here, when the answer was there    /  clock said there_ns: half their distance
 *                                                        is the most that the middle can be wrong
 *
 * The shortest way there and back says most.  Clocks drift, so there is a reading of the start and
 * one of the last seconds, and in between a straight line.  Pure; the caller's thread.
 */
#ifndef HEDDLE_LAUNCH_CLOCK_H
#define HEDDLE_LAUNCH_CLOCK_H

#include <stdint.h>

struct hd_clock_sample {
    uint64_t asked_ns, there_ns, answered_ns;
};

struct hd_clock_reading {
    uint64_t at_ns;    /* of this clock; 0: there is no reading */
    int64_t offset_ns; /* to add to this clock for the other */
    uint64_t error_ns; /* at most */
};

#define HD_CLOCK_WINDOW 8u

/* All zero: the two are one clock. */
struct hd_clock {
    struct hd_clock_reading first;
    struct hd_clock_reading window[HD_CLOCK_WINDOW]; /* the last ones, a ring */
    uint32_t count;                                  /* taken into the window so far */
};

struct hd_clock_reading hd_clock_read(struct hd_clock_sample sample);
/* A sample of the start; the better one stays.  One of the run. */
void hd_clock_take_first(struct hd_clock *clock, struct hd_clock_sample sample);
void hd_clock_take(struct hd_clock *clock, struct hd_clock_sample sample);

/* The best of the window; of none, the first. */
struct hd_clock_reading hd_clock_last(const struct hd_clock *clock);
/* To add to this clock at `at_ns`: between first and last by a straight line, outside as there. */
int64_t hd_clock_offset_ns(const struct hd_clock *clock, uint64_t at_ns);

#endif /* HEDDLE_LAUNCH_CLOCK_H */
