/*
 * engine/range.h - named ranges for a profiler that listens to NVTX, with the names of the trace.
 *
 *   step 3
 *     wait 4B2     the rank waits for what 4B2 reads
 *     credit 4B2   and for the slot that it writes
 *     4B2          the pass; of a kernel with a stream, its launch
 *
 * Built where the CUDA toolkit's headers are; a profiler says that it is there by the environment
 * (NVTX_INJECTION64_PATH).  Without one each call is a branch, and no name is made.  A range
 * belongs to its thread: the one that pushed it pops it.
 */
#ifndef HEDDLE_ENGINE_RANGE_H
#define HEDDLE_ENGINE_RANGE_H

#include <heddle/schedule.h>

#include <stdint.h>

/* `head` stands before the action: "wait ", or "". */
void hd_range_push(const char *head, const struct hd_action *action);
void hd_range_push_step(uint32_t step);
void hd_range_pop(void);

#endif /* HEDDLE_ENGINE_RANGE_H */
