/*
 * plugins/schedules/gpipe.c - all forwards, then all backwards, one stage per rank.
 *
 * The first pipeline schedule and the simplest: no rank mixes forwards with backwards.
 * The price is memory: every rank retains every microbatch at once.  Four ranks, five
 * microbatches (a forward lasts one tick, a backward two):
 *
 *   rank 0  F0 F1 F2 F3 F4 .  .  .  .  .  .  .  .  .  B0 -- B1 -- B2 -- B3 -- B4 --
 *   rank 1  .  F0 F1 F2 F3 F4 .  .  .  .  .  .  B0 -- B1 -- B2 -- B3 -- B4 -- .  .
 *   rank 2  .  .  F0 F1 F2 F3 F4 .  .  .  B0 -- B1 -- B2 -- B3 -- B4 -- .  .  .  .
 *   rank 3  .  .  .  F0 F1 F2 F3 F4 B0 -- B1 -- B2 -- B3 -- B4 -- .  .  .  .  .  .
 *
 * Backwards run in the order of the forwards, so gradients add up in ascending
 * order as in every other schedule here.  With P ranks and m microbatches:
 *
 *   length    3 (m + P - 1) ticks       of which 3 (P - 1) are empty on each rank
 *   bubble    (P - 1) / (m + P - 1)     empty ticks over all ticks
 *   retained  m                         payloads at once, on every rank
 *
 * tests/test_schedules.c checks this file against the picture and the formulas.
 *
 * Source: Huang et al. 2019 (GPipe).
 */
#include <heddle/schedule.h>

#include <assert.h>
#include <stddef.h>
#include <stdio.h>

static uint32_t gpipe_refuse(const struct hd_shape *shape, char *reason, uint32_t capacity)
{
    if (shape->stage_count == shape->rank_count) {
        return 0;
    }
    return (uint32_t)snprintf(reason, capacity,
                              "gpipe holds one stage per rank, not %u stages on %u ranks; set "
                              "stages_per_rank to 1 or use interleaved_1f1b",
                              shape->stage_count, shape->rank_count);
}

static uint32_t gpipe_rank_of(const struct hd_shape *shape, uint32_t stage, uint32_t replica)
{
    assert(stage < shape->stage_count);
    assert(replica == 0);

    return stage;
}

static void gpipe_plan_passes(const struct hd_shape *shape, uint32_t stage,
                              enum hd_action_kind kind, struct hd_plan *plan)
{
    for (uint32_t microbatch = 0; microbatch < shape->microbatch_count; microbatch++) {
        hd_plan_push(plan, stage, kind, microbatch);
    }
}

static void gpipe_plan(const struct hd_shape *shape, void *scratch, struct hd_plan *const *plans)
{
    (void)scratch;
    for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
        assert(plans[rank]->count == 0);
        assert(gpipe_rank_of(shape, rank, 0) == rank);

        gpipe_plan_passes(shape, rank, HD_FORWARD, plans[rank]);
        if (!(shape->flags & HD_FORWARD_ONLY)) {
            gpipe_plan_passes(shape, rank, HD_BACKWARD, plans[rank]);
        }
    }
}

static const struct hd_schedule_ops gpipe_ops = {
    .size = sizeof gpipe_ops,
    .refuse = gpipe_refuse,
    .rank_of = gpipe_rank_of,
    .plan = gpipe_plan,
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_SCHEDULE),
    .name = "gpipe",
    .summary = "all forwards, then all backwards; one stage per rank; retains every microbatch",
    .source = "Huang et al. 2019 (GPipe)",
    .ops = &gpipe_ops,
};
