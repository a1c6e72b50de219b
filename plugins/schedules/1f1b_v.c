/*
 * plugins/schedules/1f1b_v.c - 1F1B folded into a V, two stages per rank.
 *
 * Interleaving gives rank 0 the stages that retain longest and the last rank those
 * that retain shortest.  Folded, rank r holds stages r and 2P - 1 - r: a long-lived
 * stage sits with a short-lived one, and every rank retains about the same.  The
 * loss is computed on rank 0, and the turn at the last rank crosses no wire.
 *
 * Three ranks, two stages on each, four microbatches, as soon as possible:
 *
 *   rank 0  0F0 0F1 0F2 0F3 .   5F0 5B0 --  5F1 5B1 --  5F2 5B2 --  .   .
 *   rank 1  .   1F0 1F1 1F2 4F0 1F3 4F1 .   4B0 --  4F2 4B1 --  .   1B0 --
 *   rank 2  .   .   2F0 3F0 2F1 3F1 2F2 3F2 .   .   3B0 --  2B0 --  2F3 3F3
 *
 *   rank 0  .   5F3 0B0 --  5B3 --  0B1 --  .   .   0B2 --  .   .   0B3 --
 *   rank 1  4F3 4B2 --  .   1B1 --  4B3 --  1B2 --  .   .   1B3 --  .   .
 *   rank 2  3B1 --  2B1 --  3B2 --  2B2 --  3B3 --  2B3 --  .   .   .   .
 *
 * How it is made: one microbatch makes 4P visits (down and up the ranks with its
 * forwards, down and up with its backwards).  Each visit gets a beat in a period of
 * six ticks, so that a rank's four actions, 1 + 1 + 2 + 2 ticks, never collide;
 * microbatch i runs 6 i ticks after the first.  That is the steady state, and it is
 * full.  Then every action, in order of time, moves as early as its predecessors and
 * a free tick allow; forwards only while the rank retains no more than the steady
 * state does on any rank.
 *
 *   copies     2 ceil((2P + 1) / 3)     on every rank, once m is large enough
 *   length     about 6 m + 5 P ticks    the bubble is wider than interleaved_1f1b's
 *
 * `pull_ahead` lets a rank retain that many more copies, so that its forwards run
 * earlier and fewer tensors are consumed in the tick after they were made.
 * tests/test_schedules.c holds this file to the picture and to the golden tables.
 *
 * Source: Qi et al. 2024 (pipeline parallelism with controllable memory); the report,
 * sections 6.2 and 6.3.
 */
#include <heddle/schedule.h>

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define PERIOD         6u
#define PULL_AHEAD_MAX 65536u

/* The passes of a microbatch over all ranks, in the order in which it makes them. */
enum pass { LOW_FORWARD, HIGH_FORWARD, HIGH_BACKWARD, LOW_BACKWARD, PASS_COUNT };

#define NO_VISIT UINT32_MAX

/*
 * The V being folded: visit v = 0 .. 4P-1 is one pass on one rank, and its input comes from visit
 * v - 1.  A tick of a rank is free (0) or holds an action's pass + 1, or CONTINUED.
 */
struct fold {
    uint32_t rank_count, microbatch_count, tick_count;
    uint32_t *start;       /* [4P], the tick of microbatch 0 in the steady state */
    uint32_t *visit_at;    /* [P, PERIOD], the visit that a rank begins on this beat, or NO_VISIT */
    uint32_t *placed;      /* [4P, m], the tick after compaction */
    uint32_t *limit;       /* [P], copies that a forward may not exceed by moving */
    uint32_t *retained;    /* [P], after the last action placed so far */
    uint32_t *known;       /* [P], retained_at is written below this tick */
    uint32_t *retained_at; /* [P, tick_count] */
    uint8_t *occupant;     /* [P, tick_count] */
};

#define CONTINUED (PASS_COUNT + 1u)

static uint32_t pass_of(uint32_t visit, uint32_t rank_count)
{
    return visit / rank_count;
}

/* Low forwards and high backwards go down the ranks, the two others come back up. */
static uint32_t rank_at(uint32_t visit, uint32_t rank_count)
{
    const uint32_t step = visit % rank_count;
    return pass_of(visit, rank_count) % 2 == 0 ? step : rank_count - 1 - step;
}

static uint32_t ticks_of(uint32_t pass)
{
    return pass < HIGH_BACKWARD ? 1 : 2;
}

/*
 * The steady state, visit by visit.  `beat` is where the visit falls in the period: forwards
 * follow each other; backwards take two ticks each and leave three for the forwards after every
 * third, in a phase that depends on P.  The tick is the first on that beat after the input.
 */
struct steady {
    uint32_t beat, backwards_in_row, tick;
};

static struct steady steady_begin(uint32_t rank_count)
{
    const uint32_t phase = (3 - (rank_count + 2) % 3) % 3;
    return (struct steady){.beat = 1, .backwards_in_row = phase, .tick = PERIOD};
}

/* The tick of `visit`; to be called for each in turn. */
static uint32_t steady_next(struct steady *steady, uint32_t visit, uint32_t rank_count)
{
    if (visit == 2 * rank_count && rank_count % 3 == 0) {
        steady->beat += 3;
    }
    const uint32_t late = (steady->beat + PERIOD - steady->tick % PERIOD) % PERIOD;
    const uint32_t tick = steady->tick + late;
    const uint32_t pass = pass_of(visit, rank_count);

    steady->tick = tick + 1;
    steady->beat += ticks_of(pass);
    if (pass >= HIGH_BACKWARD) {
        steady->backwards_in_row++;
        if (steady->backwards_in_row == 3) {
            steady->backwards_in_row = 0;
            steady->beat += 3;
        }
    }
    steady->beat %= PERIOD;
    return tick;
}

/* Ticks of the steady state from its first action to its last. */
static uint32_t count_ticks(const struct hd_shape *shape)
{
    struct steady steady = steady_begin(shape->rank_count);
    uint32_t tick = 0;
    for (uint32_t visit = 0; visit < PASS_COUNT * shape->rank_count; visit++) {
        tick = steady_next(&steady, visit, shape->rank_count);
    }
    return tick + PERIOD * shape->microbatch_count;
}

/* Reads "1" or "1,0,1,1" into extra[capacity]; returns how many numbers it names, 0 if it is no
   such text. */
static uint32_t read_pull_ahead(const char *text, uint32_t *extra, uint32_t capacity)
{
    uint32_t count = 0;
    for (;;) {
        uint32_t value = 0;
        uint32_t digits = 0;
        text += strspn(text, " ");
        for (; *text >= '0' && *text <= '9' && value <= PULL_AHEAD_MAX; text++, digits++) {
            value = 10 * value + (uint32_t)(*text - '0');
        }
        text += strspn(text, " ");
        if (digits == 0 || value > PULL_AHEAD_MAX || (*text != ',' && *text != '\0')) {
            return 0;
        }
        if (count < capacity) {
            extra[count] = value;
        }
        count++;
        if (*text == '\0') {
            return count;
        }
        text++;
    }
}

static const char *pull_ahead_of(const struct hd_shape *shape)
{
    return shape->option_count > 0 && shape->options ? shape->options[0].text : "0";
}

static uint32_t refuse(const struct hd_shape *shape, char *reason, uint32_t capacity)
{
    if (shape->stage_count != 2 * shape->rank_count) {
        return (uint32_t)snprintf(reason, capacity,
                                  "1f1b_v holds two stages per rank, not %u on %u; set "
                                  "stages_per_rank to 2 or use interleaved_1f1b",
                                  shape->stage_count, shape->rank_count);
    }
    const uint32_t count = read_pull_ahead(pull_ahead_of(shape), NULL, 0);
    if (count == 0) {
        return (uint32_t)snprintf(reason, capacity,
                                  "pull_ahead \"%s\" is neither a number of copies, 0 .. %u, nor a "
                                  "list of them; write 1, or one number a rank as 1,0,1,1",
                                  pull_ahead_of(shape), PULL_AHEAD_MAX);
    }
    if (count != 1 && count != shape->rank_count) {
        return (uint32_t)snprintf(reason, capacity,
                                  "pull_ahead names %u ranks and the pipeline has %u; give one "
                                  "number for all, or one a rank",
                                  count, shape->rank_count);
    }
    return 0;
}

static uint32_t rank_of(const struct hd_shape *shape, uint32_t stage, uint32_t replica)
{
    assert(stage < shape->stage_count);
    assert(replica == 0);

    return stage < shape->rank_count ? stage : shape->stage_count - 1 - stage;
}

/* The next `bytes` of `memory`, aligned to 64; with memory NULL they are only counted. */
static void *carve(char *memory, uint64_t *used, uint64_t bytes)
{
    void *part = memory ? memory + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return part;
}

/* Lays the fold's arrays out over `memory`; returns the bytes that they take. */
static uint64_t fold_lay_out(struct fold *fold, const struct hd_shape *shape, char *memory)
{
    const uint64_t ranks = shape->rank_count;
    const uint64_t ticks = count_ticks(shape);
    uint64_t used = 0;

    *fold = (struct fold){.rank_count = shape->rank_count,
                          .microbatch_count = shape->microbatch_count,
                          .tick_count = (uint32_t)ticks};
    fold->start = carve(memory, &used, PASS_COUNT * ranks * sizeof *fold->start);
    fold->visit_at = carve(memory, &used, ranks * PERIOD * sizeof *fold->visit_at);
    fold->placed =
        carve(memory, &used, PASS_COUNT * ranks * shape->microbatch_count * sizeof *fold->placed);
    fold->limit = carve(memory, &used, ranks * sizeof *fold->limit);
    fold->retained = carve(memory, &used, ranks * sizeof *fold->retained);
    fold->known = carve(memory, &used, ranks * sizeof *fold->known);
    fold->retained_at = carve(memory, &used, ranks * ticks * sizeof *fold->retained_at);
    fold->occupant = carve(memory, &used, ranks * ticks);
    return used;
}

static uint64_t scratch_bytes(const struct hd_shape *shape)
{
    struct fold fold;
    return shape->flags & HD_FORWARD_ONLY ? 0 : fold_lay_out(&fold, shape, NULL);
}

/* The visit that `rank` begins at `tick` of the steady state, or NO_VISIT. */
static uint32_t visit_at(const struct fold *fold, uint32_t rank, uint32_t tick)
{
    const uint32_t visit = fold->visit_at[rank * PERIOD + tick % PERIOD];
    if (visit == NO_VISIT || tick < fold->start[visit] ||
        (tick - fold->start[visit]) / PERIOD >= fold->microbatch_count) {
        return NO_VISIT;
    }
    return visit;
}

static void plan_steady(struct fold *fold)
{
    struct steady steady = steady_begin(fold->rank_count);

    for (uint32_t beat = 0; beat < fold->rank_count * PERIOD; beat++) {
        fold->visit_at[beat] = NO_VISIT;
    }
    for (uint32_t visit = 0; visit < PASS_COUNT * fold->rank_count; visit++) {
        const uint32_t tick = steady_next(&steady, visit, fold->rank_count);
        const uint32_t rank = rank_at(visit, fold->rank_count);
        uint32_t *beat = &fold->visit_at[rank * PERIOD + tick % PERIOD];
        assert(*beat == NO_VISIT);
        *beat = visit;
        fold->start[visit] = tick;
    }
}

/* The most copies that any rank retains in the steady state. */
static uint32_t peak_of_steady(const struct fold *fold)
{
    uint32_t peak = 0;
    for (uint32_t rank = 0; rank < fold->rank_count; rank++) {
        uint32_t retained = 0;
        for (uint32_t tick = 0; tick < fold->tick_count; tick++) {
            const uint32_t visit = visit_at(fold, rank, tick);
            if (visit != NO_VISIT && pass_of(visit, fold->rank_count) < HIGH_BACKWARD) {
                retained++;
                peak = retained > peak ? retained : peak;
            }
            const uint32_t ended = tick > 0 ? visit_at(fold, rank, tick - 1) : NO_VISIT;
            if (ended != NO_VISIT && pass_of(ended, fold->rank_count) >= HIGH_BACKWARD) {
                retained--;
            }
        }
    }
    return peak;
}

/* From `tick` on, `rank` retains one copy more (change 1) or less (change UINT32_MAX, mod 2^32). */
static void retain(struct fold *fold, uint32_t rank, uint32_t tick, uint32_t change)
{
    uint32_t *retained_at = fold->retained_at + (uint64_t)rank * fold->tick_count;

    for (; fold->known[rank] <= tick; fold->known[rank]++) {
        retained_at[fold->known[rank]] = fold->retained[rank];
    }
    for (uint32_t later = tick; later < fold->known[rank]; later++) {
        retained_at[later] += change;
    }
    fold->retained[rank] += change;
}

/* The earliest tick >= `earliest` to which a forward may move from `tick` within its rank's limit.
 */
static uint32_t hold_back(const struct fold *fold, uint32_t rank, uint32_t earliest, uint32_t tick)
{
    const uint32_t *retained_at = fold->retained_at + (uint64_t)rank * fold->tick_count;
    const uint32_t limit = fold->limit[rank];

    /* Nothing changes from known on, so these ticks are passed in one step. */
    if (tick > fold->known[rank]) {
        if (fold->retained[rank] >= limit) {
            return tick;
        }
        tick = fold->known[rank] > earliest ? fold->known[rank] : earliest;
    }
    while (tick > earliest && retained_at[tick - 1] < limit) {
        tick--;
    }
    return tick;
}

/* Moves one action of the steady state, begun at `tick`, to its place. */
static void place(struct fold *fold, uint32_t visit, uint32_t tick)
{
    const uint32_t rank = rank_at(visit, fold->rank_count);
    const uint32_t pass = pass_of(visit, fold->rank_count);
    const uint32_t microbatch = (tick - fold->start[visit]) / PERIOD;
    uint32_t *placed = fold->placed + (uint64_t)visit * fold->microbatch_count + microbatch;
    uint8_t *occupant = fold->occupant + (uint64_t)rank * fold->tick_count;
    uint32_t target = microbatch > 0 ? placed[-1] + 1 : 0;

    if (visit > 0) {
        const uint32_t arrival =
            *(placed - fold->microbatch_count) + ticks_of(pass_of(visit - 1, fold->rank_count));
        target = arrival > target ? arrival : target;
    }
    assert(target <= tick);
    if (pass < HIGH_BACKWARD) {
        target = hold_back(fold, rank, target, tick);
        while (occupant[target] != 0) {
            target++;
        }
        retain(fold, rank, target, 1);
    } else {
        while (occupant[target] != 0 || occupant[target + 1] != 0) {
            target++;
        }
        occupant[target + 1] = CONTINUED;
        retain(fold, rank, target + 1, UINT32_MAX);
    }
    assert(target <= tick);
    occupant[target] = (uint8_t)(pass + 1);
    *placed = target;
}

static void push_rank(const struct fold *fold, uint32_t rank, struct hd_plan *plan)
{
    static const uint8_t kinds[PASS_COUNT] = {HD_FORWARD, HD_FORWARD, HD_BACKWARD, HD_BACKWARD};
    const uint8_t *occupant = fold->occupant + (uint64_t)rank * fold->tick_count;
    const uint32_t stages[PASS_COUNT] = {rank, 2 * fold->rank_count - 1 - rank,
                                         2 * fold->rank_count - 1 - rank, rank};
    uint32_t next[PASS_COUNT] = {0, 0, 0, 0};

    for (uint32_t tick = 0; tick < fold->tick_count; tick++) {
        if (occupant[tick] != 0 && occupant[tick] != CONTINUED) {
            const uint32_t pass = occupant[tick] - 1u;
            hd_plan_push(plan, stages[pass], (enum hd_action_kind)kinds[pass], next[pass]);
            next[pass]++;
        }
    }
}

/* Without backwards the V fills a period of two: stages r and 2P - 1 - r fall on odd and even. */
static void plan_forwards(const struct hd_shape *shape, uint32_t rank, struct hd_plan *plan)
{
    const uint32_t total = shape->microbatch_count;
    const uint32_t high = shape->stage_count - 1 - rank;
    const uint32_t away = shape->rank_count - rank;
    const uint32_t lead = away < total ? away : total;

    for (uint32_t microbatch = 0; microbatch < lead; microbatch++) {
        hd_plan_push(plan, rank, HD_FORWARD, microbatch);
    }
    for (uint32_t microbatch = 0; microbatch < total; microbatch++) {
        hd_plan_push(plan, high, HD_FORWARD, microbatch);
        if (microbatch + lead < total) {
            hd_plan_push(plan, rank, HD_FORWARD, microbatch + lead);
        }
    }
    assert(plan->count == 2 * (uint64_t)total);
}

static void plan_fold(const struct hd_shape *shape, void *scratch, struct hd_plan *const *plans)
{
    struct fold fold;
    const uint64_t used = fold_lay_out(&fold, shape, scratch);
    memset(scratch, 0, used);

    plan_steady(&fold);
    const uint32_t peak = peak_of_steady(&fold);
    const uint32_t count = read_pull_ahead(pull_ahead_of(shape), fold.limit, shape->rank_count);
    for (uint32_t rank = shape->rank_count; rank-- > 0;) {
        fold.limit[rank] = peak + fold.limit[count == 1 ? 0 : rank];
    }

    for (uint32_t tick = 0; tick < fold.tick_count; tick++) {
        for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
            const uint32_t visit = visit_at(&fold, rank, tick);
            if (visit != NO_VISIT) {
                place(&fold, visit, tick);
            }
        }
    }
    for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
        push_rank(&fold, rank, plans[rank]);
        assert(plans[rank]->count == PASS_COUNT * (uint64_t)shape->microbatch_count);
    }
}

static void plan(const struct hd_shape *shape, void *scratch, struct hd_plan *const *plans)
{
    if (!(shape->flags & HD_FORWARD_ONLY)) {
        plan_fold(shape, scratch, plans);
        return;
    }
    for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
        plan_forwards(shape, rank, plans[rank]);
    }
}

static const struct hd_option options[] = {
    {"pull_ahead", "0", NULL,
     "copies that a rank may retain beyond the steady state: one number, or one a rank (1,0,1,1)",
     HD_OPTION_TEXT, 0},
};

static const struct hd_schedule_ops ops = {
    .size = sizeof ops,
    .stages_per_rank = 2,
    .refuse = refuse,
    .rank_of = rank_of,
    .scratch_bytes = scratch_bytes,
    .plan = plan,
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_SCHEDULE),
    .option_count = sizeof options / sizeof *options,
    .options = options,
    .name = "1f1b_v",
    .summary = "1F1B folded into a V, two stages per rank: equal copies on all, a wider bubble",
    .source = "Qi et al. 2024 (pipeline parallelism with controllable memory)",
    .ops = &ops,
};
