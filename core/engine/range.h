/*
 * engine/range.h - named ranges for a profiler that listens to NVTX, with the names of the trace.
 *
 *   step 3
 *     wait 4B2     the rank waits for what 4B2 reads
 *     credit 4B2   the rank waits for the slot that 4B2 writes
 *     4B2          the pass; of a kernel with a stream, its launch
 *
 * Built where the headers of the CUDA toolkit are.  The environment variable NVTX_INJECTION64_PATH
 * tells that there is a profiler; without it each call is one branch.  The thread that pushes a
 * range must pop it.
 */
#ifndef HEDDLE_ENGINE_RANGE_H
#define HEDDLE_ENGINE_RANGE_H

#include <heddle/schedule.h>

#include <stdint.h>

/* `head` is the text before the action: "wait ", or "". */
void hd_range_push(const char *head, const struct hd_action *action);
void hd_range_push_step(uint32_t step);
void hd_range_pop(void);

#endif /* HEDDLE_ENGINE_RANGE_H */
