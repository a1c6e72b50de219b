/*
 * plugins/schedules/interleaved.h - the walk of interleaved_1f1b and interleaved_lean.
 *
 * Both hand V stages to each rank in a loop, and both have a rank take its microbatches group by
 * group: a lap runs one group through one of the rank's stages.  They differ only in how
 * many forwards a rank leads its backwards by.  Rank 0 of two, two stages on each, five
 * microbatches, so groups of 3 and 2:
 *
 *   lap        0            1            0        1
 *   forwards   0F0 0F1 0F2  2F0 2F1 2F2  0F3 0F4  2F3 2F4
 *   backwards  2B0 2B1 2B2  0B0 0B1 0B2  2B3 2B4  0B3 0B4
 *
 * There are max(1, floor(m / P)) groups, whose sizes differ by at most one, larger first: so every
 * m is served.  Groups of P with a short tail would deadlock for many shapes of three and more
 * stages per rank.  All functions are pure.
 */
#ifndef INTERLEAVED_H
#define INTERLEAVED_H

#include <heddle/schedule.h>

#include <assert.h>

/* One rank's walk over its forwards, or over its backwards: group by group, and within a group
   stage by stage.  A lap is one stage's turn at the group. */
struct walk {
    uint32_t group, first, size; /* the group, its first microbatch, its number of microbatches */
    uint32_t lap, offset;
};

static inline uint32_t group_count(const struct hd_shape *shape)
{
    const uint32_t groups = shape->microbatch_count / shape->rank_count;
    return groups > 0 ? groups : 1;
}

static inline uint32_t group_size(const struct hd_shape *shape, uint32_t group)
{
    const uint32_t groups = group_count(shape);
    const uint32_t larger = shape->microbatch_count % groups;
    return shape->microbatch_count / groups + (group < larger ? 1 : 0);
}

/* In a loop: rank r holds r, r + P, r + 2P, ... */
static inline uint32_t rank_of(const struct hd_shape *shape, uint32_t stage, uint32_t replica)
{
    assert(stage < shape->stage_count);
    assert(replica == 0);

    return stage % shape->rank_count;
}

static inline struct walk walk_begin(const struct hd_shape *shape)
{
    return (struct walk){.size = group_size(shape, 0)};
}

static inline void walk_step(const struct hd_shape *shape, struct walk *walk)
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

static inline void push_forward(const struct hd_shape *shape, uint32_t rank, struct walk *walk,
                                struct hd_plan *plan)
{
    const uint32_t stage = walk->lap * shape->rank_count + rank;
    hd_plan_push(plan, stage, HD_FORWARD, walk->first + walk->offset);
    walk_step(shape, walk);
}

/* The same walk, from the rank's last stage down. */
static inline void push_backward(const struct hd_shape *shape, uint32_t rank, struct walk *walk,
                                 struct hd_plan *plan)
{
    const uint32_t lap_last = shape->stage_count / shape->rank_count - 1;
    const uint32_t stage = (lap_last - walk->lap) * shape->rank_count + rank;
    hd_plan_push(plan, stage, HD_BACKWARD, walk->first + walk->offset);
    walk_step(shape, walk);
}

/* All of them: a plan without backwards. */
static inline void plan_forwards(const struct hd_shape *shape, uint32_t rank, struct hd_plan *plan)
{
    const uint32_t total = shape->stage_count / shape->rank_count * shape->microbatch_count;
    struct walk forward = walk_begin(shape);

    for (uint32_t step = 0; step < total; step++) {
        push_forward(shape, rank, &forward, plan);
    }
    assert(plan->count == total);
}

#endif /* INTERLEAVED_H */
