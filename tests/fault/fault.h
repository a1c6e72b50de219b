/*
 * tests/fault/fault.h - a schedule that is right in everything, for the files beside it to break in
 * one place.  Each defines what it breaks and includes this.
 */
#ifndef HD_TESTS_FAULT_H
#define HD_TESTS_FAULT_H

#include <heddle/schedule.h>

#include <stddef.h>

static uint32_t rank_of(const struct hd_shape *shape, uint32_t stage, uint32_t replica)
{
    (void)replica;
    return stage % shape->rank_count;
}

static void plan(const struct hd_shape *shape, void *scratch, struct hd_plan *const *plans)
{
    (void)scratch;
    for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
        for (uint32_t i = 0; i < shape->microbatch_count; i++) {
            hd_plan_push(plans[rank], rank, HD_FORWARD, i);
        }
        for (uint32_t i = 0; i < shape->microbatch_count; i++) {
            hd_plan_push(plans[rank], rank, HD_BACKWARD, i);
        }
    }
}

#endif /* HD_TESTS_FAULT_H */
