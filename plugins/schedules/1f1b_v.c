/*
 * plugins/schedules/1f1b_v.c - 1F1B folded into a V, two stages per rank.
 *
 * Interleaving gives rank 0 the stages that retain payloads longest, and the last rank
 * those that retain them shortest.  Folded, rank r holds stages r and 2P - 1 - r: a
 * long-lived stage and a short-lived one, so all ranks retain about as much.  Rank 0
 * computes the loss, and the last rank holds both stages of the fold: no transfer.
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
 * six ticks, so that a rank's four actions, 1 + 1 + 2 + 2 ticks, never collide.
 * Microbatch i runs 6 i ticks after microbatch 0.  That is the steady state, in which
 * no rank is ever idle.  Then each action, in order of time, moves to the earliest free
 * tick after its predecessors.  A forward is held back where its rank would retain more
 * copies than the steady state has on any rank.
 *
 *   copies     2 ceil((2P + 1) / 3)     on every rank, once m is large enough
 *   length     about 6 m + 5 P ticks    the bubble is wider than interleaved_1f1b's
 *
 * `pull_ahead` lets a rank retain that many more copies, so that its forwards run
 * earlier and fewer tensors are consumed in the tick after they were made.
 * tests/test_schedules.c checks this file against the picture and the golden tables.
 *
 * Source: Qi et al. 2024 (pipeline parallelism with controllable memory); the report,
 * sections 6.2 and 6.3.  The beat and the moves are those of OLMo-core's 1F1B-V
 * (pipeline_schedule.py: generic_symbol_pattern, whose six symbols are F f B W b w, and
 * forward_pull_ahead_extra_activations); the tables are equal, cell by cell.
 */
#include <heddle/schedule.h>

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PERIOD         6u
#define PULL_AHEAD_MAX 65536u

/* The passes of a microbatch over all ranks, in order; low is stage r, high is 2P - 1 - r. */
enum pass { LOW_FORWARD, HIGH_FORWARD, HIGH_BACKWARD, LOW_BACKWARD, PASS_COUNT };

/*
 * The plan being made.  Visit v = 0 .. 4P-1 is one pass on one rank; its input comes
 * from visit v - 1.  The visits of one beat form a list, in the order of their start.
 */
struct fold {
    uint32_t rank_count, microbatch_count, tick_count;
    uint32_t first_on_beat[PERIOD]; /* or NO_VISIT */
    uint32_t *next_on_beat;         /* [4P], or NO_VISIT */
    uint32_t *start;                /* [4P], its tick for microbatch 0 in the steady state */
    uint32_t *placed;               /* [4P, m], the tick after all moves */
    uint32_t *count;                /* [4P], how many of the visit's actions are placed */
    uint32_t *limit;                /* [P], copies that a forward must not exceed by moving */
    uint32_t *ended;                /* [2P, 2], of forward visits: see count_ending_later */
    uint8_t *work;                  /* [P, tick_count], enum work */
};

#define NO_VISIT UINT32_MAX

/* A tick of a rank: free, a forward, or the first or second tick of a backward. */
enum work { FREE, FORWARD, BACKWARD, BACKWARD_END };

static uint32_t one_f1b_v_pass_of(uint32_t visit, uint32_t rank_count)
{
    return visit / rank_count;
}

/* Low forwards and high backwards go up the ranks from 0; the two others come back down. */
static uint32_t one_f1b_v_rank_at(uint32_t visit, uint32_t rank_count)
{
    const uint32_t step = visit % rank_count;
    return one_f1b_v_pass_of(visit, rank_count) % 2 == 0 ? step : rank_count - 1 - step;
}

static uint32_t one_f1b_v_visit_of(uint32_t pass, uint32_t rank, uint32_t rank_count)
{
    return pass * rank_count + (pass % 2 == 0 ? rank : rank_count - 1 - rank);
}

static uint32_t one_f1b_v_ticks_of(uint32_t pass)
{
    return pass < HIGH_BACKWARD ? 1 : 2;
}

/* The tick of `visit` within the period.  Forwards follow each other.  Backwards take two ticks
   each, and after every third they leave three ticks for forwards, in a phase that depends on P. */
static uint32_t one_f1b_v_beat_of(uint32_t visit, uint32_t rank_count)
{
    if (visit < 2 * rank_count) {
        return (visit + 1) % PERIOD;
    }
    const uint32_t backward = visit - 2 * rank_count;
    const uint32_t phase = (3 - (rank_count + 2) % 3) % 3;
    const uint32_t first = 2 * rank_count + 1 + (rank_count % 3 == 0 ? 3 : 0);
    return (first + 2 * backward + 3 * ((backward + phase) / 3)) % PERIOD;
}

/* The first tick on the visit's beat that is not before `earliest`. */
static uint32_t one_f1b_v_steady_tick(uint32_t visit, uint32_t rank_count, uint32_t earliest)
{
    return earliest + (one_f1b_v_beat_of(visit, rank_count) + PERIOD - earliest % PERIOD) % PERIOD;
}

/* Ticks of the steady state from its first action to its last. */
static uint32_t one_f1b_v_count_ticks(const struct hd_shape *shape)
{
    uint32_t next = PERIOD;
    for (uint32_t visit = 0; visit < PASS_COUNT * shape->rank_count; visit++) {
        next = one_f1b_v_steady_tick(visit, shape->rank_count, next) + 1;
    }
    return next + PERIOD * shape->microbatch_count;
}

/* Reads "1" or "1,0,1,1" into extra[capacity]; returns how many numbers it has, 0 if it cannot be
   read. */
static uint32_t one_f1b_v_read_pull_ahead(const char *text, uint32_t *extra, uint32_t capacity)
{
    for (uint32_t count = 0;; text++) {
        char *end = NULL;
        text += strspn(text, " ");
        const unsigned long value = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;
        if (end == NULL || value > PULL_AHEAD_MAX) {
            return 0;
        }
        if (count < capacity) {
            extra[count] = (uint32_t)value;
        }
        count++;
        text = end + strspn(end, " ");
        if (*text != ',') {
            return *text == '\0' ? count : 0;
        }
    }
}

static const char *one_f1b_v_pull_ahead_of(const struct hd_shape *shape)
{
    return shape->option_count > 0 && shape->options ? shape->options[0].text : "0";
}

static uint32_t one_f1b_v_refuse(const struct hd_shape *shape, char *reason, uint32_t capacity)
{
    if (shape->stage_count != 2 * shape->rank_count) {
        return (uint32_t)snprintf(
            reason, capacity,
            "1f1b_v holds two stages per rank, not %u stages on %u ranks; set "
            "stages_per_rank to 2 or use interleaved_1f1b",
            shape->stage_count, shape->rank_count);
    }
    const uint32_t count = one_f1b_v_read_pull_ahead(one_f1b_v_pull_ahead_of(shape), NULL, 0);
    if (count == 0) {
        return (uint32_t)snprintf(reason, capacity,
                                  "pull_ahead \"%s\" must be a number from 0 to %u, or a list of "
                                  "them; write 1, or one number for each rank as 1,0,1,1",
                                  one_f1b_v_pull_ahead_of(shape), PULL_AHEAD_MAX);
    }
    if (count != 1 && count != shape->rank_count) {
        return (uint32_t)snprintf(reason, capacity,
                                  "pull_ahead has %u numbers, but the pipeline has %u ranks; give "
                                  "one number for all, or one for each rank",
                                  count, shape->rank_count);
    }
    return 0;
}

static uint32_t one_f1b_v_rank_of(const struct hd_shape *shape, uint32_t stage, uint32_t replica)
{
    assert(stage < shape->stage_count);
    assert(replica == 0);

    return stage < shape->rank_count ? stage : shape->stage_count - 1 - stage;
}

/* The next `bytes` of `memory`, aligned to 64. */
static void *one_f1b_v_carve(char *memory, uint64_t *used, uint64_t bytes)
{
    void *part = memory ? memory + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return part;
}

/* Places the fold's arrays in `memory`; returns their bytes.  NULL: only counts them. */
static uint64_t one_f1b_v_fold_lay_out(struct fold *fold, const struct hd_shape *shape,
                                       char *memory)
{
    const uint64_t ranks = shape->rank_count;
    const uint64_t ticks = one_f1b_v_count_ticks(shape);
    uint64_t used = 0;

    *fold = (struct fold){.rank_count = shape->rank_count,
                          .microbatch_count = shape->microbatch_count,
                          .tick_count = (uint32_t)ticks};
    fold->next_on_beat =
        one_f1b_v_carve(memory, &used, PASS_COUNT * ranks * sizeof *fold->next_on_beat);
    fold->start = one_f1b_v_carve(memory, &used, PASS_COUNT * ranks * sizeof *fold->start);
    fold->placed = one_f1b_v_carve(
        memory, &used, PASS_COUNT * ranks * shape->microbatch_count * sizeof *fold->placed);
    fold->limit = one_f1b_v_carve(memory, &used, ranks * sizeof *fold->limit);
    fold->count = one_f1b_v_carve(memory, &used, PASS_COUNT * ranks * sizeof *fold->count);
    fold->ended = one_f1b_v_carve(memory, &used, 4 * ranks * sizeof *fold->ended);
    fold->work = one_f1b_v_carve(memory, &used, ranks * ticks);
    return used;
}

static uint64_t one_f1b_v_scratch_bytes(const struct hd_shape *shape)
{
    struct fold fold;
    return shape->flags & HD_FORWARD_ONLY ? 0 : one_f1b_v_fold_lay_out(&fold, shape, NULL);
}

static void one_f1b_v_plan_steady(struct fold *fold)
{
    uint32_t *last[PERIOD];
    uint32_t next = PERIOD;

    for (uint32_t beat = 0; beat < PERIOD; beat++) {
        fold->first_on_beat[beat] = NO_VISIT;
        last[beat] = &fold->first_on_beat[beat];
    }
    for (uint32_t visit = 0; visit < PASS_COUNT * fold->rank_count; visit++) {
        const uint32_t tick = one_f1b_v_steady_tick(visit, fold->rank_count, next);
        next = tick + 1;
        fold->start[visit] = tick;
        fold->next_on_beat[visit] = NO_VISIT;
        *last[tick % PERIOD] = visit;
        last[tick % PERIOD] = &fold->next_on_beat[visit];
    }
}

/* Calls `act` for every action of the steady state, in the order of ticks. */
static void one_f1b_v_each_action(struct fold *fold, void (*act)(struct fold *fold, uint32_t visit,
                                                                 uint32_t microbatch))
{
    uint32_t oldest[PERIOD];

    memcpy(oldest, fold->first_on_beat, sizeof oldest);
    for (uint32_t tick = 0; tick < fold->tick_count; tick++) {
        uint32_t visit = oldest[tick % PERIOD];
        while (visit != NO_VISIT && fold->start[visit] <= tick) {
            const uint32_t microbatch = (tick - fold->start[visit]) / PERIOD;
            if (microbatch < fold->microbatch_count) {
                act(fold, visit, microbatch);
            } else {
                oldest[tick % PERIOD] = fold->next_on_beat[visit]; /* this visit is over */
            }
            visit = fold->next_on_beat[visit];
        }
    }
}

/* Copies that the rank retains once all that is placed so far has run. */
static uint32_t one_f1b_v_retained_on(const struct fold *fold, uint32_t rank)
{
    const uint32_t ranks = fold->rank_count;
    return fold->count[one_f1b_v_visit_of(LOW_FORWARD, rank, ranks)] +
           fold->count[one_f1b_v_visit_of(HIGH_FORWARD, rank, ranks)] -
           fold->count[one_f1b_v_visit_of(HIGH_BACKWARD, rank, ranks)] -
           fold->count[one_f1b_v_visit_of(LOW_BACKWARD, rank, ranks)];
}

/* Writes to limit[0] the most copies that any rank retains in the steady state. */
static void one_f1b_v_count_copies(struct fold *fold, uint32_t visit, uint32_t microbatch)
{
    fold->count[visit] = microbatch + 1;
    const uint32_t retained =
        one_f1b_v_retained_on(fold, one_f1b_v_rank_at(visit, fold->rank_count));
    fold->limit[0] = retained > fold->limit[0] ? retained : fold->limit[0];
}

/* The rank's backwards that end after `earliest`.  For each visit `earliest` ascends, so `ended`
   passes a backward once. */
static uint32_t one_f1b_v_count_ending_later(struct fold *fold, uint32_t visit, uint32_t earliest)
{
    const uint32_t rank = one_f1b_v_rank_at(visit, fold->rank_count);
    uint32_t later = 0;

    for (uint32_t pass = HIGH_BACKWARD; pass < PASS_COUNT; pass++) {
        const uint32_t backward = one_f1b_v_visit_of(pass, rank, fold->rank_count);
        const uint32_t *placed = fold->placed + (uint64_t)backward * fold->microbatch_count;
        uint32_t *ended = &fold->ended[2 * visit + pass - HIGH_BACKWARD];
        while (*ended < fold->count[backward] && placed[*ended] < earliest) {
            (*ended)++;
        }
        later += fold->count[backward] - *ended;
    }
    return later;
}

/*
 * The earliest tick >= `earliest` to which the forward x may move back from `tick`.  It adds a copy
 * from its own tick on, so it stops after the last tick at which its rank retains `limit` copies.
 * With limit 4:
 *
 *   work      F  F  F  F  B  -- F  .  B  -- .  .  x
 *   retained  1  2  3  4  4  3  4  4  4  3  3  3
 *                                        ^
 */
static uint32_t one_f1b_v_hold_back(struct fold *fold, uint32_t visit, uint32_t earliest,
                                    uint32_t tick)
{
    const uint32_t rank = one_f1b_v_rank_at(visit, fold->rank_count);
    const uint32_t limit = fold->limit[rank];
    const uint8_t *work = fold->work + (uint64_t)rank * fold->tick_count;
    uint32_t retained = one_f1b_v_retained_on(fold, rank);

    /* At most this many copies are retained at any tick from `earliest` on. */
    if (retained + one_f1b_v_count_ending_later(fold, visit, earliest) < limit) {
        return earliest;
    }
    for (; tick > earliest && retained < limit; tick--) {
        retained += work[tick - 1] == BACKWARD_END;
        retained -= work[tick - 1] == FORWARD;
    }
    return tick;
}

/* Moves one action from its tick in the steady state to its final tick. */
static void one_f1b_v_place(struct fold *fold, uint32_t visit, uint32_t microbatch)
{
    const uint32_t rank = one_f1b_v_rank_at(visit, fold->rank_count);
    const uint32_t pass = one_f1b_v_pass_of(visit, fold->rank_count);
    const uint32_t tick = fold->start[visit] + microbatch * PERIOD;
    uint32_t *placed = fold->placed + (uint64_t)visit * fold->microbatch_count + microbatch;
    uint8_t *work = fold->work + (uint64_t)rank * fold->tick_count;
    uint32_t target = microbatch > 0 ? placed[-1] + 1 : 0;

    if (visit > 0) {
        const uint32_t arrival = *(placed - fold->microbatch_count) +
                                 one_f1b_v_ticks_of(one_f1b_v_pass_of(visit - 1, fold->rank_count));
        target = arrival > target ? arrival : target;
    }
    if (pass < HIGH_BACKWARD) {
        target = one_f1b_v_hold_back(fold, visit, target, tick);
        while (work[target] != FREE) {
            target++;
        }
        work[target] = FORWARD;
    } else {
        while (work[target] != FREE || work[target + 1] != FREE) {
            target++;
        }
        work[target] = BACKWARD;
        work[target + 1] = BACKWARD_END;
    }
    assert(target <= tick);
    *placed = target;
    fold->count[visit] = microbatch + 1;
}

/* Merges the rank's four visits by their ticks. */
static void one_f1b_v_push_rank(const struct fold *fold, uint32_t rank, struct hd_plan *plan)
{
    static const uint8_t kinds[PASS_COUNT] = {HD_FORWARD, HD_FORWARD, HD_BACKWARD, HD_BACKWARD};
    const uint32_t high = 2 * fold->rank_count - 1 - rank;
    const uint32_t stages[PASS_COUNT] = {rank, high, high, rank};
    const uint32_t *placed[PASS_COUNT];
    uint32_t next[PASS_COUNT] = {0, 0, 0, 0};

    for (uint32_t pass = 0; pass < PASS_COUNT; pass++) {
        const uint32_t visit = one_f1b_v_visit_of(pass, rank, fold->rank_count);
        placed[pass] = fold->placed + (uint64_t)visit * fold->microbatch_count;
    }
    for (uint64_t left = PASS_COUNT * (uint64_t)fold->microbatch_count; left > 0; left--) {
        uint32_t first = PASS_COUNT;
        for (uint32_t pass = 0; pass < PASS_COUNT; pass++) {
            if (next[pass] < fold->microbatch_count &&
                (first == PASS_COUNT || placed[pass][next[pass]] < placed[first][next[first]])) {
                first = pass;
            }
        }
        assert(first < PASS_COUNT);
        hd_plan_push(plan, stages[first], (enum hd_action_kind)kinds[first], next[first]);
        next[first]++;
    }
}

/* Without backwards the period is two ticks: one for stage r, one for stage 2P - 1 - r. */
static void one_f1b_v_plan_forwards(const struct hd_shape *shape, uint32_t rank,
                                    struct hd_plan *plan)
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

static void one_f1b_v_plan_fold(const struct hd_shape *shape, void *scratch,
                                struct hd_plan *const *plans)
{
    struct fold fold;
    const uint64_t used = one_f1b_v_fold_lay_out(&fold, shape, scratch);
    memset(scratch, 0, used);

    one_f1b_v_plan_steady(&fold);
    one_f1b_v_each_action(&fold, one_f1b_v_count_copies);
    const uint32_t peak = fold.limit[0];
    memset(fold.count, 0, PASS_COUNT * (uint64_t)shape->rank_count * sizeof *fold.count);

    const uint32_t named =
        one_f1b_v_read_pull_ahead(one_f1b_v_pull_ahead_of(shape), fold.limit, shape->rank_count);
    for (uint32_t rank = shape->rank_count; rank-- > 0;) {
        fold.limit[rank] = peak + fold.limit[named == 1 ? 0 : rank];
    }
    one_f1b_v_each_action(&fold, one_f1b_v_place);
    for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
        one_f1b_v_push_rank(&fold, rank, plans[rank]);
        assert(plans[rank]->count == PASS_COUNT * (uint64_t)shape->microbatch_count);
    }
}

static void one_f1b_v_plan(const struct hd_shape *shape, void *scratch,
                           struct hd_plan *const *plans)
{
    if (!(shape->flags & HD_FORWARD_ONLY)) {
        one_f1b_v_plan_fold(shape, scratch, plans);
        return;
    }
    for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
        one_f1b_v_plan_forwards(shape, rank, plans[rank]);
    }
}

static const struct hd_option one_f1b_v_options[] = {
    {"pull_ahead", "0", NULL,
     "copies that a rank may retain beyond the steady state: one number, or one for each rank "
     "(1,0,1,1)",
     HD_OPTION_TEXT, 0},
};

static const struct hd_schedule_ops one_f1b_v_ops = {
    .size = sizeof one_f1b_v_ops,
    .stages_per_rank = 2,
    .refuse = one_f1b_v_refuse,
    .rank_of = one_f1b_v_rank_of,
    .scratch_bytes = one_f1b_v_scratch_bytes,
    .plan = one_f1b_v_plan,
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_SCHEDULE),
    .option_count = sizeof one_f1b_v_options / sizeof *one_f1b_v_options,
    .options = one_f1b_v_options,
    .name = "1f1b_v",
    .summary = "1F1B folded into a V, two stages per rank: equal copies on all, a wider bubble",
    .source = "Qi et al. 2024 (pipeline parallelism with controllable memory)",
    .ops = &one_f1b_v_ops,
};
