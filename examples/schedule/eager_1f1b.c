/*
 * examples/schedule/eager_1f1b.c - 1F1B with twice the warm-up; built outside heddle's tree.
 *
 * In 1F1B a rank that has just sent an activation needs its gradient as soon as possible,
 * so it waits for both transfers.  Warming up with twice as many forwards leaves one
 * action of slack on each side of every transfer.  With free transfers the length is that
 * of 1F1B; the price is memory.  Three ranks, four
 * microbatches (a forward lasts one tick, a backward two):
 *
 *   rank 0  F0 F1 F2 F3 .  .  .  B0 -- .  B1 -- .  B2 -- .  B3 --
 *   rank 1  .  F0 F1 F2 .  B0 -- F3 B1 -- .  B2 -- .  B3 -- .  .
 *   rank 2  .  .  F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 -- .  .  .  .
 *
 * With P ranks and m microbatches:
 *
 *   length    3 (m + P - 1) ticks             as 1F1B
 *   retained  min(m, 2 (P - 1 - rank) + 1)    payloads at once; 1F1B retains min(m, P - rank)
 *   costed    33 34.5 36 39 ticks at P = 4, m = 8 and transfer 0 .25 .5 1; 1F1B 33 37 41 49
 *
 * Source: Zhuang et al. 2023, "On Optimizing the Communication of Model Parallelism", where
 * it is called eager-1F1B.
 */
#include <heddle/schedule.h>

#include <stddef.h>
#include <stdio.h>

/* By how many microbatches the forward leads the backward on `rank`. */
static uint32_t lead_of(const struct hd_shape *shape, uint32_t rank)
{
    const uint32_t lead = 2 * (shape->rank_count - 1 - rank);
    return lead < shape->microbatch_count ? lead : shape->microbatch_count;
}

static uint32_t refuse(const struct hd_shape *shape, char *reason, uint32_t capacity)
{
    if (shape->stage_count == shape->rank_count) {
        return 0;
    }
    return (uint32_t)snprintf(reason, capacity,
                              "eager_1f1b holds one stage per rank, not %u stages on %u ranks; set "
                              "stages_per_rank to 1",
                              shape->stage_count, shape->rank_count);
}

static uint32_t rank_of(const struct hd_shape *shape, uint32_t stage, uint32_t replica)
{
    (void)shape;
    (void)replica;
    return stage;
}

static void plan_rank(const struct hd_shape *shape, uint32_t rank, struct hd_plan *plan)
{
    const uint32_t total = shape->microbatch_count;
    const uint32_t lead = shape->flags & HD_FORWARD_ONLY ? total : lead_of(shape, rank);
    const uint32_t backward_count = shape->flags & HD_FORWARD_ONLY ? 0 : total;

    for (uint32_t step = 0; step < total + lead; step++) {
        if (step < total) {
            hd_plan_push(plan, rank, HD_FORWARD, step);
        }
        if (step >= lead && step - lead < backward_count) {
            hd_plan_push(plan, rank, HD_BACKWARD, step - lead);
        }
    }
}

static void plan(const struct hd_shape *shape, void *scratch, struct hd_plan *const *plans)
{
    (void)scratch;
    for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
        plan_rank(shape, rank, plans[rank]);
    }
}

static const struct hd_schedule_ops ops = {
    .size = sizeof ops,
    .refuse = refuse,
    .rank_of = rank_of,
    .plan = plan,
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_SCHEDULE),
    .name = "eager_1f1b",
    .summary = "1F1B with twice the warm-up: slack for every transfer, paid with memory",
    .vendor = "an example",
    .version = "1",
    .licence = "Apache-2.0",
    .source = "Zhuang et al. 2023 (eager-1F1B)",
    .ops = &ops,
};
