/*
 * plugins/schedules/interleaved.h - the order of interleaved_1f1b and interleaved_lean.
 *
 * Both place V stages on each rank in a loop (rank r holds r, r + P, r + 2P, ...), and both run
 * microbatches in groups: a lap runs one group through one of the rank's stages.  Their only
 * differences are how many forwards a rank leads its backwards by, and whether idle ticks are
 * drawn.  Rank 0 of two, two stages on each, five microbatches, so groups of 3 and 2:
 *
 *   lap        0            1            0        1
 *   forwards   0F0 0F1 0F2  2F0 2F1 2F2  0F3 0F4  2F3 2F4
 *   backwards  2B0 2B1 2B2  0B0 0B1 0B2  2B3 2B4  0B3 0B4
 *
 * There are max(1, floor(m / P)) groups.  Their sizes differ by at most one, larger first, so
 * every m is accepted: groups of P with a short last one would deadlock for many shapes of three
 * and more stages per rank.
 */
#ifndef INTERLEAVED_H
#define INTERLEAVED_H

#include <heddle/schedule.h>

#include <assert.h>
#include <stdbool.h>

/* A position in one rank's forwards, or in its backwards. */
struct interleaved_walk {
    uint32_t group, first, size; /* the group, its first microbatch, its number of microbatches */
    uint32_t lap, offset;        /* the stage of the rank, the microbatch within the group */
};

static inline uint32_t interleaved_group_size(const struct hd_shape *shape, uint32_t group)
{
    const uint32_t rounds = shape->microbatch_count / shape->rank_count;
    const uint32_t groups = rounds > 0 ? rounds : 1;
    const uint32_t larger = shape->microbatch_count % groups;
    return shape->microbatch_count / groups + (group < larger ? 1 : 0);
}

static inline uint32_t interleaved_rank_of(const struct hd_shape *shape, uint32_t stage,
                                           uint32_t replica)
{
    assert(stage < shape->stage_count);
    assert(replica == 0);

    return stage % shape->rank_count;
}

/* Pushes the action at `walk`, and moves on.  Backwards take the rank's stages from the last. */
static inline void interleaved_push(const struct hd_shape *shape, uint32_t rank,
                                    enum hd_action_kind kind, struct interleaved_walk *walk,
                                    struct hd_plan *plan)
{
    const uint32_t laps = shape->stage_count / shape->rank_count;
    const uint32_t lap = kind == HD_FORWARD ? walk->lap : laps - 1 - walk->lap;

    hd_plan_push(plan, lap * shape->rank_count + rank, kind, walk->first + walk->offset);
    walk->offset++;
    if (walk->offset < walk->size) {
        return;
    }
    walk->offset = 0;
    walk->lap++;
    if (walk->lap < laps) {
        return;
    }
    walk->lap = 0;
    walk->first += walk->size;
    walk->group++;
    walk->size = interleaved_group_size(shape, walk->group);
}

/*
 * The plan of one rank, which leads by the laps of its first group but one, and by `lead` more
 * forwards for each rank downstream.  If `is_drawn`, idle ticks pair every forward with the
 * backward after it.
 */
static inline void interleaved_plan_rank(const struct hd_shape *shape, uint32_t rank, uint32_t lead,
                                         bool is_drawn, struct hd_plan *plan)
{
    const uint32_t laps = shape->stage_count / shape->rank_count;
    const uint32_t total = laps * shape->microbatch_count;
    const uint32_t downstream = shape->rank_count - 1 - rank;
    struct interleaved_walk forward = {.size = interleaved_group_size(shape, 0)};
    struct interleaved_walk backward = forward;
    uint32_t warmup = (laps - 1) * forward.size + lead * downstream;

    if (warmup > total || shape->flags & HD_FORWARD_ONLY) {
        warmup = total;
    }

    /* Warmup: forwards only; the first gradient is still 2 ticks a rank away when it ends. */
    hd_plan_idle(plan, is_drawn ? rank : 0);
    for (uint32_t step = 0; step < warmup; step++) {
        interleaved_push(shape, rank, HD_FORWARD, &forward, plan);
    }
    if (shape->flags & HD_FORWARD_ONLY) {
        return;
    }
    hd_plan_idle(plan, is_drawn ? 2 * downstream : 0);

    /* Steady: one forward, one backward; the lead stays. */
    for (uint32_t step = warmup; step < total; step++) {
        interleaved_push(shape, rank, HD_FORWARD, &forward, plan);
        interleaved_push(shape, rank, HD_BACKWARD, &backward, plan);
    }

    /* Cooldown: backwards only, at first at the pace of ranks that still pair them. */
    for (uint32_t step = 0; step < warmup; step++) {
        hd_plan_idle(plan, is_drawn && step < downstream ? 1 : 0);
        interleaved_push(shape, rank, HD_BACKWARD, &backward, plan);
    }
}

static inline void interleaved_plan(const struct hd_shape *shape, uint32_t lead, bool is_drawn,
                                    struct hd_plan *const *plans)
{
    /* The idle ticks pair forwards with backwards, which an evaluation has not. */
    const bool draws_idle = is_drawn && !(shape->flags & HD_FORWARD_ONLY);

    for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
        assert(plans[rank]->count == 0);
        interleaved_plan_rank(shape, rank, lead, draws_idle, plans[rank]);
    }
}

#endif /* INTERLEAVED_H */
