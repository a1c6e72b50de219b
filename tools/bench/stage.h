/*
 * bench/stage.h - one stage of a kernel with a device, run without an engine.
 *
 * It has its own regions, parameters and tokens.  It runs only forward, as an evaluation, which
 * retains nothing, so any number of equal passes can be in the stream.
 */
#ifndef HEDDLE_BENCH_STAGE_H
#define HEDDLE_BENCH_STAGE_H

#include "drive/device.h"

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

/* Enqueues `count` passes. */
hd_status hd_bench_stage_forward(const struct hd_bench_stage *stage, uint32_t count);

#endif /* HEDDLE_BENCH_STAGE_H */
