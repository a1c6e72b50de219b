/*
 * bench/skew_svg.h - what a late peer costs the compute that should hide its transfer, as numbers
 * and as a figure: the report's figure 27, drawn from measurements.
 *
 * All times are milliseconds since the source posted its message; NaN: not known.
 */
#ifndef HEDDLE_BENCH_SKEW_SVG_H
#define HEDDLE_BENCH_SKEW_SVG_H

#include <stdint.h>
#include <stdio.h>

#define HD_SKEW_POINT_MAX 5u
#define HD_SKEW_LINE_MAX  8u

/* One lateness on one transport; medians. */
struct hd_skew_point {
    double late_ms;              /* what was asked */
    double arrival_ms;           /* when the target came */
    double solo_ms;              /* the source's compute, with nothing under way */
    double compute_ms;           /* the same with the message under way */
    double begin_ms;             /* of that compute */
    double stolen_ms;            /* of it: the source's thread was not running; NaN on a device */
    double thread_ms;            /* CPU time of the source's other threads in it */
    double source_wait_ms;       /* after its compute, until its slot is free */
    double target_wait_ms;       /* after its arrival, until the message is readable */
    double readable_ms, free_ms; /* at the target; at the source */
    double transfer_begin_ms, transfer_end_ms; /* as the transport tells */
    double resident_ms;                        /* a kernel held the source's device for its peer */
};

struct hd_skew_line {
    char transport[112], lane[36];
    uint32_t beat_us;    /* a thread moves it so often; 0: none */
    uint32_t has_thread; /* transport.progress_thread = on */
    uint32_t point_count;
    struct hd_skew_point points[HD_SKEW_POINT_MAX];
};

struct hd_skew {
    double stage_ms; /* how long the compute lasts, as calibrated */
    uint64_t bytes;
    uint32_t iterations;
    uint32_t is_posted_early; /* the target's receive stands before its lateness */
    char device[256];         /* of the source, which computes there; empty: on the host */
    uint32_t pass_count;      /* forward passes that its compute consists of; 0: on the host */
    uint32_t line_count;
    struct hd_skew_line lines[HD_SKEW_LINE_MAX];
};

/*
 * One panel a transport, one pair of bars a lateness: the message above (until the source's slot is
 * free, and darker while the target waits for it), the compute below (its length alone, what it got
 * longer, and the wait behind it).  Text is text, lengths are millimetres.  Whether the stream took
 * it is for the caller to ask.
 */
void hd_skew_svg_write(const struct hd_skew *skew, double width_mm, FILE *stream);

#endif /* HEDDLE_BENCH_SKEW_SVG_H */
