/*
 * launch/clock.h - the offset of another host's clock, from messages there and back.
 *
 *   asked_ns      here, when the question was sent    \  at some moment between the two the other
 *   answered_ns   here, when the answer arrived       /  clock said there_ns: the error of the
 *                                                         middle is at most half their distance
 *
 * The shortest round trip gives the best reading.  Clocks drift, so there is a reading of the start
 * and one of the last seconds, and a straight line between them.  Pure; the caller's thread.
 */
#ifndef HEDDLE_LAUNCH_CLOCK_H
#define HEDDLE_LAUNCH_CLOCK_H

#include <stdint.h>

struct hd_clock_sample {
    uint64_t asked_ns, there_ns, answered_ns;
};

struct hd_clock_reading {
    uint64_t at_ns;    /* of this clock; 0: no reading */
    int64_t offset_ns; /* to add to this clock to get the other */
    uint64_t error_ns; /* the largest error of offset_ns */
};

#define HD_CLOCK_WINDOW 8u

/* All zero: both processes use one clock. */
struct hd_clock {
    struct hd_clock_reading first;
    struct hd_clock_reading window[HD_CLOCK_WINDOW]; /* a ring of the last readings */
    uint32_t count;                                  /* readings put into the window so far */
};

struct hd_clock_reading hd_clock_read(struct hd_clock_sample sample);
/* Takes a sample of the start, and keeps the best. */
void hd_clock_take_first(struct hd_clock *clock, struct hd_clock_sample sample);
/* Takes a sample during the run. */
void hd_clock_take(struct hd_clock *clock, struct hd_clock_sample sample);

/* The best reading of the window; the first if the window is empty. */
struct hd_clock_reading hd_clock_last(const struct hd_clock *clock);
/* The offset at `at_ns`: on a straight line between the first reading and the last, and constant
   before and after. */
int64_t hd_clock_offset_ns(const struct hd_clock *clock, uint64_t at_ns);

#endif /* HEDDLE_LAUNCH_CLOCK_H */
