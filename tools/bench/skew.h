/*
 * bench/skew.h - a message to a peer that comes late, and compute meanwhile.
 *
 *   source   write | post | compute ........................ | wait until its slot is free
 *   target   compute for the lateness ... | post_recv | wait until readable | read | release
 *
 * Where the slots lie on a device, the compute is passes of a block in the stream in which the
 * message was posted (bench/skew_work.h), the target's device rests while it is late, and the
 * message is readable when that stream gets behind its wait.
 *
 * The compute is a fixed amount of work, calibrated once to last a stage; each repetition measures
 * it with nothing under way, and then with the message; the peer is as late in both.  The transport
 * is moved as the engine moves it: by the calls, and by the thread that it needs or is asked for.
 */
#ifndef HEDDLE_BENCH_SKEW_H
#define HEDDLE_BENCH_SKEW_H

#include "bench/skew_svg.h"
#include "drive/pair.h"

#define HD_SKEW_ITERATIONS_MAX 1000u

struct hd_skew_request {
    uint32_t line_count;
    struct {
        struct hd_pair_plugin plugin;
        uint32_t has_thread;
        char name[112];
    } lines[HD_SKEW_LINE_MAX];
    struct hd_drive_lender lender; /* of the device that all slots lie on; kernel NULL: the host */
    struct hd_stage_spec block;    /* what is computed there */
    uint64_t seed;                 /* of its parameters */
    uint64_t bytes, stage_ns;
    uint32_t iterations, warmup;
    uint32_t is_posted_early;
    double timeout_s;
    struct hd_link *link; /* NULL: the ranks are forked here */
};

/* Lines that were measured are there also after a failure. */
hd_status hd_bench_skew(const struct hd_skew_request *request, struct hd_skew *result,
                        struct hd_problem *problem);

#endif /* HEDDLE_BENCH_SKEW_H */
