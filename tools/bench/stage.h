/*
 * bench/stage.h - one stage of the kernel that lends a device, run without an engine.
 *
 * It has regions, drawn parameters and tokens of its own, and is only ever run forward, as an
 * evaluation: nothing is retained, so any number of passes stands in the stream, each the same
 * work.
 */
#ifndef HEDDLE_BENCH_STAGE_H
#define HEDDLE_BENCH_STAGE_H

#include "drive/device.h"

struct hd_bench_stage {
    struct hd_drive_device *device; /* borrowed */
    struct hd_stage *instance;      /* NULL: not open */
    struct hd_stage_needs needs;
    struct hd_stage_memory memory; /* the device's, as is all that follows; freed with it */
    void *tokens, *output, *terms;
};

/* `spec` is a first stage, and not the last.  Parameters are those of a run with that seed. */
hd_status hd_bench_stage_open(struct hd_bench_stage *stage, struct hd_drive_device *device,
                              const struct hd_stage_spec *spec, uint64_t seed,
                              struct hd_problem *problem);
void hd_bench_stage_close(struct hd_bench_stage *stage); /* takes one that is not open */

/* Enqueues `count` passes. */
hd_status hd_bench_stage_forward(const struct hd_bench_stage *stage, uint32_t count);

#endif /* HEDDLE_BENCH_STAGE_H */
