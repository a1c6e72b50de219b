/*
 * conform/schedule.h - shapes to check a schedule with, and plans in guarded memory.
 *
 * The actions and the scratch memory of a plan end before an inaccessible page, so a schedule that
 * writes past them is killed at once.
 */
#ifndef HEDDLE_CONFORM_SCHEDULE_H
#define HEDDLE_CONFORM_SCHEDULE_H

#include "conform/suites.h"

/* Calls `visit` with every accepted shape of the sweep (P <= 6, V <= 3, m <= 12), until there is a
   verdict; remarks how many shapes there were. */
void hd_conform_sweep(struct hd_conform_case *check, uint32_t flags,
                      void (*visit)(struct hd_conform_case *check, const struct hd_shape *shape));
/* A few larger ones, up to 64 ranks or 256 microbatches. */
void hd_conform_sweep_large(struct hd_conform_case *check,
                            void (*visit)(struct hd_conform_case *check,
                                          const struct hd_shape *shape));

const struct hd_schedule_ops *hd_conform_schedule_ops(const struct hd_conform_case *check);
struct hd_shape hd_conform_shape(const struct hd_conform_case *check, uint32_t rank_count,
                                 uint32_t stages_per_rank, uint32_t microbatch_count);
/* "P=4 V=2 m=8", or "P=4 V=2 m=8, forward only"; static, valid for three more calls. */
const char *hd_conform_shape_text(const struct hd_shape *shape);
bool hd_conform_is_refused(const struct hd_conform_case *check, const struct hd_shape *shape);

/* The plans of all ranks of one shape, in guarded memory. */
struct hd_conform_plans {
    uint32_t rank_count;
    struct hd_plan *plans;     /* [rank_count] */
    struct hd_plan **pointers; /* [rank_count], the argument of plan */
    void *scratch;             /* NULL: the schedule needs none */
};

/* Plans with room for capacities[rank] actions, or for none if NULL.  Scratch and actions are
   filled with `fill` first. */
void hd_conform_plan(const struct hd_conform_case *check, const struct hd_shape *shape,
                     const uint64_t *capacities, int fill, struct hd_conform_plans *out);
void hd_conform_plans_free(struct hd_conform_plans *plans);
/* No byte beside the scratch and the actions has been written. */
bool hd_conform_plans_are_whole(const struct hd_conform_plans *plans);

#endif /* HEDDLE_CONFORM_SCHEDULE_H */
