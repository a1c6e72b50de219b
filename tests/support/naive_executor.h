/*
 * tests/support/naive_executor.h - runs a plan without anything of core/plan.
 *
 * It asks every rank again and again, with sets of what is finished; slow, and plain enough to be
 * believed.  For one replica and small shapes: 32 stages, 32 microbatches, 16 ranks.
 */
#ifndef HD_TESTS_SUPPORT_NAIVE_EXECUTOR_H
#define HD_TESTS_SUPPORT_NAIVE_EXECUTOR_H

#include "plan/pipeline.h"

/* Does every rank come to its end?  `slots` by boundary, forward then backward (local ones too),
   for unsplit plans; NULL: no bound. */
int hd_naive_ends(const struct hd_pipeline_source *source, const uint32_t *slots);

/* The first broken law of a complete, unsplit plan at home: 2, 5, 4 or none (0). */
uint32_t hd_naive_judge(const struct hd_pipeline_source *source);

#endif /* HD_TESTS_SUPPORT_NAIVE_EXECUTOR_H */
