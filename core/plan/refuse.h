/* plan/refuse.h - memory of a plan, and the refusal of a broken law; internal to core/plan. */
#ifndef HEDDLE_PLAN_REFUSE_H
#define HEDDLE_PLAN_REFUSE_H

#include "base/problem.h"

/* Memory filled with zeros, given back with hd_memory_give; or NULL, and `problem` says so. */
void *hd_plan_take(uint64_t count, uint64_t element_bytes, struct hd_problem *problem);

/* Fills `problem` with the broken law and its rank; the message is printf's.  HD_INVALID. */
hd_status hd_law_refuse(struct hd_problem *problem, uint32_t law, uint32_t rank, const char *format,
                        ...) __attribute__((format(printf, 4, 5)));

#endif /* HEDDLE_PLAN_REFUSE_H */
