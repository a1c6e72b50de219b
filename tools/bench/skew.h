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

#include "bench/skew_svg.h"
#include "drive/pair.h"

#define HD_SKEW_ITERATIONS_MAX 1000u

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

#endif /* HEDDLE_BENCH_SKEW_H */
