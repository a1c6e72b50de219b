/*
 * bench/skew_work.h - the compute of `heddle bench skew`: so much of it that it lasts a stage.
 *
 *   host    floats that fit into a core's own cache, by the clock on the wall
 *   device  forward passes of one block, in the stream in which the message was posted, by the
 *           marks of the kernel that lends the device; the host waits and looks
 *
 * Calibrated once, and the same amount from then on.
 */
#ifndef HEDDLE_BENCH_SKEW_WORK_H
#define HEDDLE_BENCH_SKEW_WORK_H

#include "drive/pair.h"
#include "bench/stage.h"

#define HD_SKEW_WORK_FLOATS 8192u

/* So much of it fits into a core's own cache, and none of it into its registers. */
struct hd_skew_work {
    float left[HD_SKEW_WORK_FLOATS], right[HD_SKEW_WORK_FLOATS];
    uint64_t stage_units;               /* what lasts a stage; of a device: passes */
    const struct hd_bench_stage *stage; /* NULL: the host computes */
};

/* Times of one rank in milliseconds, counted from its own begin; NaN: not known. */
struct hd_skew_times {
    uint64_t origin_ns;                            /* when it left the fence */
    double compute_begin, compute, stolen, thread; /* source; of a device nothing is stolen */
    double arrival, readable;                      /* target */
    double free, source_wait;                      /* source */
    double transfer_begin, transfer_end, resident; /* as told; resident: source */
};

/* Looks now and then whether the slot of the message under way is free: when it was, or 0. */
struct hd_skew_watch {
    struct hd_pair *pair;
    uint64_t finished_goal, seen_ns;
};

double hd_skew_since(uint64_t begin_ns, uint64_t now_ns); /* ms */
struct hd_channel_stats hd_skew_stats(const struct hd_pair *pair);

/* work->stage is set. */
hd_status hd_skew_calibrate(struct hd_skew_work *work, uint64_t stage_ns);
/* Fills compute_begin, compute, stolen and thread; *end_ns: when it was over. */
hd_status hd_skew_compute(struct hd_skew_work *work, struct hd_skew_watch *watch,
                          struct hd_skew_times *times, uint64_t *end_ns);
/* The target is busy elsewhere, on the host; beside a device it rests. */
void hd_skew_be_late(struct hd_skew_work *work, uint64_t origin_ns, uint64_t late_ns);

#endif /* HEDDLE_BENCH_SKEW_WORK_H */
