/*
 * plugins/schedules/interleaved_1f1b.c - 1F1B over several stages per rank.
 *
 * 1F1B waits 3 (P - 1) ticks of whole stages.  Cut each rank's work into V smaller
 * stages and hand them out in a loop (rank r holds r, r + P, r + 2P, ...): the
 * pipeline fills V times faster, and the bubble shrinks by V.  Microbatches go
 * in groups: a rank runs a group through its first stage, then through its second,
 * and backwards from the last stage to the first.
 *
 * Two ranks, two stages on each, four microbatches, as soon as possible:
 *
 *   rank 0  0F0 0F1 2F0 2F1 0F2 .   2B0 --  0F3 2B1 --  2F2 0B0 --
 *   rank 1  .   1F0 1F1 3F0 3B0 --  3F1 3B1 --  1F2 1B0 --  1F3 1B1
 *
 *   rank 0  2F3 0B1 --  .   2B2 --  .   2B3 --  0B2 --  0B3 --
 *   rank 1  --  3F2 3B2 --  3F3 3B3 --  1B2 --  1B3 --  .   .
 *
 * The warmup is twice as deep as 1F1B's, 2 (P - 1 - rank) beyond the full groups:
 * a tensor then arrives one whole pair of actions before its consumer, so a transfer
 * can hide behind other work.  interleaved_lean halves it, for less memory.
 *
 *   groups    max(1, floor(m / P)), sizes differ by at most one, larger first; g0
 *             is the first size (P divides m: all are P)
 *   length    3 V m + 3 (P - 1) ticks   for m >= P; 3 (P - 1) are empty on a rank
 *   bubble    (P - 1) / (V m + P - 1)   empty ticks over all ticks
 *   copies    min(V m, (V - 1) g0 + 2 (P - 1 - rank) + 1)
 *
 * Balanced groups serve every m; groups of P with a short tail would deadlock for
 * many shapes of three and more stages per rank.  The idle ticks draw the report's
 * figure, which pairs every forward with the backward after it; an engine ignores
 * them.  tests/test_schedules.c holds this file to the picture and the formulas.
 *
 * Source: Narayanan et al. 2021 (Megatron-LM), section 2.2; the report, figure 25.
 */
#include <heddle/schedule.h>

#include <assert.h>
#include <stddef.h>
#include <stdio.h>

/* One rank's walk over its forwards, or over its backwards: group by group, and within a group
   stage by stage.  A lap is one stage's turn at the group. */
struct walk {
    uint32_t group, first, size; /* the group, its first microbatch, its number of microbatches */
    uint32_t lap, offset;
};

static uint32_t group_count(const struct hd_shape *shape)
{
    const uint32_t groups = shape->microbatch_count / shape->rank_count;
    return groups > 0 ? groups : 1;
}

static uint32_t group_size(const struct hd_shape *shape, uint32_t group)
{
    const uint32_t groups = group_count(shape);
    const uint32_t larger = shape->microbatch_count % groups;
    return shape->microbatch_count / groups + (group < larger ? 1 : 0);
}

/* By how many forwards `rank` leads, the stages of its first group included. */
static uint32_t warmup_of(const struct hd_shape *shape, uint32_t rank)
{
    assert(rank < shape->rank_count);

    const uint32_t laps = shape->stage_count / shape->rank_count;
    const uint32_t total = laps * shape->microbatch_count;
    const uint32_t downstream = shape->rank_count - 1 - rank;
    const uint32_t warmup = (laps - 1) * group_size(shape, 0) + 2 * downstream;
    return warmup < total ? warmup : total;
}

static uint32_t rank_of(const struct hd_shape *shape, uint32_t stage, uint32_t replica)
{
    assert(stage < shape->stage_count);
    assert(replica == 0);

    return stage % shape->rank_count;
}

static struct walk walk_begin(const struct hd_shape *shape)
{
    return (struct walk){.size = group_size(shape, 0)};
}

static void walk_step(const struct hd_shape *shape, struct walk *walk)
{
    walk->offset++;
    if (walk->offset < walk->size) {
        return;
    }
    walk->offset = 0;
    walk->lap++;
    if (walk->lap < shape->stage_count / shape->rank_count) {
        return;
    }
    walk->lap = 0;
    walk->first += walk->size;
    walk->group++;
    walk->size = group_size(shape, walk->group);
}

static void push_forward(const struct hd_shape *shape, uint32_t rank, struct walk *walk,
                         struct hd_plan *plan)
{
    const uint32_t stage = walk->lap * shape->rank_count + rank;
    hd_plan_push(plan, stage, HD_FORWARD, walk->first + walk->offset);
    walk_step(shape, walk);
}

/* The same walk, from the rank's last stage down. */
static void push_backward(const struct hd_shape *shape, uint32_t rank, struct walk *walk,
                          struct hd_plan *plan)
{
    const uint32_t lap_last = shape->stage_count / shape->rank_count - 1;
    const uint32_t stage = (lap_last - walk->lap) * shape->rank_count + rank;
    hd_plan_push(plan, stage, HD_BACKWARD, walk->first + walk->offset);
    walk_step(shape, walk);
}

static void plan_rank(const struct hd_shape *shape, uint32_t rank, struct hd_plan *plan)
{
    const uint32_t total = shape->stage_count / shape->rank_count * shape->microbatch_count;
    const uint32_t warmup = warmup_of(shape, rank);
    const uint32_t downstream = shape->rank_count - 1 - rank;
    struct walk forward = walk_begin(shape);
    struct walk backward = walk_begin(shape);

    assert(warmup <= total);

    /* Warmup: forwards only; the first gradient is still 2 ticks a rank away when it ends. */
    hd_plan_idle(plan, rank);
    for (uint32_t step = 0; step < warmup; step++) {
        push_forward(shape, rank, &forward, plan);
    }
    hd_plan_idle(plan, 2 * downstream);

    /* Steady: one forward, one backward; the lead stays. */
    for (uint32_t step = warmup; step < total; step++) {
        push_forward(shape, rank, &forward, plan);
        push_backward(shape, rank, &backward, plan);
    }

    /* Cooldown: backwards only, at first at the pace of ranks that still pair them. */
    for (uint32_t step = 0; step < warmup; step++) {
        hd_plan_idle(plan, step < downstream ? 1 : 0);
        push_backward(shape, rank, &backward, plan);
    }
}

static void plan_forwards(const struct hd_shape *shape, uint32_t rank, struct hd_plan *plan)
{
    const uint32_t total = shape->stage_count / shape->rank_count * shape->microbatch_count;
    struct walk forward = walk_begin(shape);

    for (uint32_t step = 0; step < total; step++) {
        push_forward(shape, rank, &forward, plan);
    }
    assert(plan->count == total);
}

static void plan(const struct hd_shape *shape, void *scratch, struct hd_plan *const *plans)
{
    (void)scratch;
    for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
        assert(plans[rank]->count == 0);
        if (shape->flags & HD_FORWARD_ONLY) {
            plan_forwards(shape, rank, plans[rank]);
        } else {
            plan_rank(shape, rank, plans[rank]);
        }
    }
}

static const struct hd_schedule_ops ops = {
    .size = sizeof ops,
    .stages_per_rank = 2,
    .rank_of = rank_of,
    .plan = plan,
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_SCHEDULE),
    .name = "interleaved_1f1b",
    .summary = "1F1B over V stages per rank in a loop: the bubble over V, for more copies",
    .source = "Narayanan et al. 2021 (Megatron-LM), section 2.2",
    .ops = &ops,
};
