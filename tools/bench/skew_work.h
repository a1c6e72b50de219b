/*
 * bench/skew_work.h - the compute of `heddle bench skew`, which lasts as long as a stage.
 *
 *   host    arithmetic on floats that fit into a core's own cache, by the wall clock
 *   device  forward passes of one block, in the stream in which the message was posted, by marks of
 *           the kernel that lends the device; the host waits and polls
 *
 * The amount of work is calibrated once and then stays the same.
 */
#ifndef HEDDLE_BENCH_SKEW_WORK_H
#define HEDDLE_BENCH_SKEW_WORK_H

#include "drive/pair.h"

#define HD_SKEW_WORK_FLOATS 8192u

/* One stage of a kernel with a device.  It has its own regions, parameters and tokens.  It runs
   only forward, as an evaluation, which retains nothing, so any number of equal passes can be in
   the stream. */
struct hd_bench_stage {
    struct hd_drive_device *device; /* borrowed */
    struct hd_stage *instance;      /* NULL: not open */
    struct hd_stage_needs needs;
    struct hd_stage_memory memory; /* on the device, like all that follows; freed with it */
    void *tokens, *output, *terms;
};

/* `spec` is the first stage, and not the last.  The parameters are those of a run with this
   seed. */
hd_status hd_bench_stage_open(struct hd_bench_stage *stage, struct hd_drive_device *device,
                              const struct hd_stage_spec *spec, uint64_t seed,
                              struct hd_problem *problem);
void hd_bench_stage_close(struct hd_bench_stage *stage); /* takes a stage that is not open */

/* The floats fit into a core's own cache, but not into its registers. */
struct hd_skew_work {
    float left[HD_SKEW_WORK_FLOATS], right[HD_SKEW_WORK_FLOATS];
    uint64_t stage_units;               /* the work of a stage; on a device: passes */
    const struct hd_bench_stage *stage; /* NULL: the host computes */
};

/* Times of one rank in milliseconds after origin_ns; NaN: unknown. */
struct hd_skew_times {
    uint64_t origin_ns;                            /* when the rank left the fence */
    double compute_begin, compute, stolen, thread; /* source; stolen is NaN on a device */
    double arrival, readable;                      /* target */
    double free, source_wait;                      /* source */
    double transfer_begin, transfer_end,
        resident; /* as reported by the transport; resident: source */
};

/* Polls now and then whether the slot of the message is free; seen_ns: when it was, or 0. */
struct hd_skew_watch {
    struct hd_pair *pair;
    uint64_t finished_goal, seen_ns;
};

double hd_skew_since(uint64_t begin_ns, uint64_t now_ns); /* ms */
struct hd_channel_stats hd_skew_stats(const struct hd_pair *pair);

/* The caller sets work->stage. */
hd_status hd_skew_calibrate(struct hd_skew_work *work, uint64_t stage_ns);
/* Fills compute_begin, compute, stolen and thread; *end_ns: when the compute ended. */
hd_status hd_skew_compute(struct hd_skew_work *work, struct hd_skew_watch *watch,
                          struct hd_skew_times *times, uint64_t *end_ns);
/* The target computes on the host until it is late enough, or sleeps if it has a device. */
void hd_skew_be_late(struct hd_skew_work *work, uint64_t origin_ns, uint64_t late_ns);

#endif /* HEDDLE_BENCH_SKEW_WORK_H */
