/*
 * bench/skew.h - a message to a late peer, and compute while the message is under way.
 *
 *   source   write | post | compute ........................ | wait until its slot is free
 *   target   compute for the lateness ... | post_recv | wait until readable | read | release
 *
 * If the slots are on a device, the compute is passes of a block in the stream in which the message
 * was posted (bench/skew_work.h), the target's device is idle while the target is late, and the
 * message is readable when the stream has passed its wait.
 *
 * The compute is a fixed amount of work, calibrated once to last a stage.  Each repetition measures
 * it without a message and then with one; the peer is equally late in both.  The transport makes
 * progress as in the engine: in its calls, and in the thread that it needs or that the user asks
 * for.
 */
#ifndef HEDDLE_BENCH_SKEW_H
#define HEDDLE_BENCH_SKEW_H

#include "drive/pair.h"

#include <stdio.h>

#define HD_SKEW_POINT_MAX      5u
#define HD_SKEW_SERIES_MAX     8u
#define HD_SKEW_ITERATIONS_MAX 1000u

/* One lateness on one transport; medians.  Times are milliseconds after the source has posted its
   message; NaN: unknown. */
struct hd_skew_point {
    double late_ms;              /* the lateness that was asked for */
    double arrival_ms;           /* when the target arrived */
    double solo_ms;              /* the compute of the source without a message */
    double compute_ms;           /* the same while the message is under way */
    double begin_ms;             /* when that compute began */
    double stolen_ms;            /* in which the source's thread did not run; NaN on a device */
    double thread_ms;            /* CPU time of the source's other threads */
    double source_wait_ms;       /* from the end of its compute until its slot is free */
    double target_wait_ms;       /* from its arrival until the message is readable */
    double readable_ms, free_ms; /* at the target; at the source */
    double transfer_begin_ms, transfer_end_ms; /* as reported by the transport */
    double resident_ms; /* a kernel occupied the source's device while it waited */
};

struct hd_skew_series {
    char transport[112], carrier[36];
    uint32_t period_us; /* of the progress thread; 0: there is none */
    bool has_thread;    /* transport.progress_thread = on */
    uint32_t point_count;
    struct hd_skew_point points[HD_SKEW_POINT_MAX];
};

struct hd_skew {
    double stage_ms; /* the calibrated length of the compute */
    uint64_t bytes;
    uint32_t iterations;
    bool is_posted_early; /* the target posts its receive before it is late */
    char device[256];     /* on which the source computes; empty: the host */
    uint32_t pass_count;  /* forward passes of its compute; 0: on the host */
    uint32_t series_count;
    struct hd_skew_series series[HD_SKEW_SERIES_MAX];
};

struct hd_skew_request {
    uint32_t series_count;
    struct {
        struct hd_pair_plugin plugin;
        bool has_thread;
        char name[112];
    } series[HD_SKEW_SERIES_MAX];
    struct hd_drive_lender lender; /* of the device with all slots; kernel NULL: host memory */
    struct hd_stage_spec block;    /* the compute of a device */
    uint64_t seed;                 /* of the parameters of the block */
    uint64_t bytes, stage_ns;
    uint32_t iterations, warmup;
    bool is_posted_early;
    double timeout_s;
    struct hd_link *link; /* NULL: this process forks the ranks */
};

/* Series that were measured are valid also after a failure. */
hd_status hd_bench_skew(const struct hd_skew_request *request, struct hd_skew *result,
                        struct hd_problem *problem);

/*
 * A figure like the report's figure 27 (docs/sources.md).
 *
 * One panel for each transport, one pair of bars for each lateness.  The upper bar is the message,
 * until the source's slot is free, darker while the target waits for it.  The lower bar is the
 * compute: its length alone, its stretch, and the wait after it.  Text is text, lengths are
 * millimetres.  The caller checks the stream for errors.
 */
void hd_skew_svg_write(const struct hd_skew *skew, double width_mm, FILE *stream);

#endif /* HEDDLE_BENCH_SKEW_H */
