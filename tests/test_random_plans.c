/*
 * tests/test_random_plans.c - any legal plan needs H_s payload slots at every stage, and not one
 * less.
 *
 * The plans are nobody's schedule: a seed draws shape, placement, which backwards are split, and
 * then, again and again, one of the actions that could run now.  What comes out keeps the laws,
 * because it was run once while it was written.  The engine's own pools then walk it.
 *
 * Sources: the report, section 6.4, H_s = max over t of F_s(t) - B_s(t); schedule.h, laws 2, 5, 6.
 */
#include "base/memory.h"
#include "engine/lease.h"
#include "plan/csv.h"
#include "plan/pipeline.h"
#include "support/check.h"
#include "support/command.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANK_LIMIT = 5, STAGE_LIMIT = 15, MICROBATCH_LIMIT = 10, REPLICA_LIMIT = 2 };
enum { ROW_LIMIT = REPLICA_LIMIT * STAGE_LIMIT * MICROBATCH_LIMIT * 3, PLAN_COUNT = 400 };
enum { SLOT_BYTES = 64, RUN_COUNT = 4 };

static uint64_t random_state;

/* Below `limit`. */
static uint32_t draw(uint32_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 11) % limit);
}

/* --- a plan, drawn -----------------------------------------------------------------------------
 */

/* Messages of one boundary and direction, in the order in which they were sent. */
struct channel {
    uint32_t microbatches[MICROBATCH_LIMIT];
    uint32_t sent_count, consumed_count;
};

struct drawing {
    uint32_t rank_count, stage_count, microbatch_count, replica_count;
    uint32_t is_forward_only;
    uint32_t percent_forward; /* how eagerly forwards run ahead */
    uint32_t home[REPLICA_LIMIT][STAGE_LIMIT];
    uint8_t replica_of[MICROBATCH_LIMIT];
    uint32_t is_split[MICROBATCH_LIMIT];
    uint8_t is_done[HD_PASS_COUNT][STAGE_LIMIT][MICROBATCH_LIMIT];
    struct channel channels[2][REPLICA_LIMIT][STAGE_LIMIT]; /* forward, backward; by boundary */
    struct hd_action rows[RANK_LIMIT][ROW_LIMIT];
    uint32_t row_length[RANK_LIMIT];
};

static uint32_t home_of(const struct drawing *drawing, uint32_t stage, uint32_t microbatch)
{
    return drawing->home[drawing->replica_of[microbatch]][stage];
}

/* A random rank for every stage, as many stages on each. */
static void draw_placement(struct drawing *drawing, uint32_t replica)
{
    uint32_t *const home = drawing->home[replica];

    for (uint32_t stage = 0; stage < drawing->stage_count; stage++) {
        const uint32_t place = draw(stage + 1);
        home[stage] = home[place];
        home[place] = stage % drawing->rank_count;
    }
}

static void draw_shape(struct drawing *drawing)
{
    const uint32_t splits = draw(3); /* none, all, some */

    memset(drawing, 0, sizeof *drawing);
    drawing->rank_count = 1 + draw(RANK_LIMIT);
    drawing->stage_count = drawing->rank_count * (1 + draw(STAGE_LIMIT / RANK_LIMIT));
    drawing->microbatch_count = 1 + draw(MICROBATCH_LIMIT);
    drawing->replica_count = drawing->microbatch_count > 1 && draw(4) == 0 ? 2 : 1;
    drawing->is_forward_only = draw(12) == 0;
    drawing->percent_forward = draw(101);
    for (uint32_t replica = 0; replica < drawing->replica_count; replica++) {
        draw_placement(drawing, replica);
    }
    for (uint32_t i = 0; i < drawing->microbatch_count; i++) {
        drawing->replica_of[i] = (uint8_t)(i < drawing->replica_count ? i : draw(2));
        drawing->replica_of[i] %= (uint8_t)drawing->replica_count;
        drawing->is_split[i] = splits == 1 || (splits == 2 && draw(2));
    }
}

/* The channel on which `stage` receives: from the stage before, or from the one after. */
static struct channel *channel_into(struct drawing *drawing, enum hd_pass_kind pass, uint32_t stage,
                                    uint32_t microbatch)
{
    const uint32_t replica = drawing->replica_of[microbatch];

    if (pass == HD_PASS_FORWARD) {
        return stage == 0 ? NULL : &drawing->channels[0][replica][stage - 1];
    }
    const uint32_t is_last = stage + 1 == drawing->stage_count;
    return is_last || pass == HD_PASS_WEIGHT ? NULL : &drawing->channels[1][replica][stage];
}

/* Laws 2 and 5: between ranks, messages are met in the order in which they were sent. */
static int has_input(struct drawing *drawing, enum hd_pass_kind pass, uint32_t stage,
                     uint32_t microbatch)
{
    const struct channel *const channel = channel_into(drawing, pass, stage, microbatch);

    if (channel == NULL) {
        return 1;
    }
    const uint32_t source = pass == HD_PASS_FORWARD ? stage - 1 : stage + 1;
    if (home_of(drawing, source, microbatch) == home_of(drawing, stage, microbatch)) {
        return drawing->is_done[pass][source][microbatch];
    }
    return channel->consumed_count < channel->sent_count &&
           channel->microbatches[channel->consumed_count] == microbatch;
}

static int can_run(struct drawing *drawing, enum hd_pass_kind pass, uint32_t stage,
                   uint32_t microbatch)
{
    if (drawing->is_done[pass][stage][microbatch] ||
        (pass == HD_PASS_WEIGHT && !drawing->is_split[microbatch]) ||
        (pass != HD_PASS_FORWARD && drawing->is_forward_only)) {
        return 0;
    }
    if (pass != HD_PASS_FORWARD && !drawing->is_done[pass - 1][stage][microbatch]) {
        return 0;
    }
    return has_input(drawing, pass, stage, microbatch);
}

static void run_action(struct drawing *drawing, enum hd_pass_kind pass, uint32_t stage,
                       uint32_t microbatch)
{
    static const uint8_t kinds[2][HD_PASS_COUNT] = {
        {HD_FORWARD, HD_BACKWARD, 0}, {HD_FORWARD, HD_BACKWARD_INPUT, HD_BACKWARD_WEIGHT}};
    const uint32_t rank = home_of(drawing, stage, microbatch);
    struct channel *const in = channel_into(drawing, pass, stage, microbatch);
    struct channel *out = NULL;

    if (pass == HD_PASS_FORWARD && stage + 1 < drawing->stage_count) {
        out = channel_into(drawing, pass, stage + 1, microbatch);
    } else if (pass == HD_PASS_BACKWARD && stage > 0) {
        out = channel_into(drawing, pass, stage - 1, microbatch);
    }
    if (in != NULL) {
        in->consumed_count++;
    }
    if (out != NULL) {
        out->microbatches[out->sent_count++] = microbatch;
    }
    drawing->is_done[pass][stage][microbatch] = 1;
    drawing->rows[rank][drawing->row_length[rank]++] = (struct hd_action){
        .stage = stage,
        .microbatch = microbatch,
        .kind = kinds[drawing->is_split[microbatch]][pass],
        .replica = drawing->replica_of[microbatch],
    };
}

/* One of the actions that could run now, forwards or others first; 0: there is none. */
static int run_one(struct drawing *drawing)
{
    struct {
        enum hd_pass_kind pass;
        uint32_t stage, microbatch;
    } chosen[2] = {0};
    uint32_t counts[2] = {0, 0};

    for (enum hd_pass_kind pass = 0; pass < HD_PASS_COUNT; pass++) {
        const uint32_t side = pass != HD_PASS_FORWARD;
        for (uint32_t stage = 0; stage < drawing->stage_count; stage++) {
            for (uint32_t i = 0; i < drawing->microbatch_count; i++) {
                if (can_run(drawing, pass, stage, i) && draw(++counts[side]) == 0) {
                    chosen[side].pass = pass;
                    chosen[side].stage = stage;
                    chosen[side].microbatch = i;
                }
            }
        }
    }
    if (counts[0] + counts[1] == 0) {
        return 0;
    }
    const uint32_t wanted = draw(100) >= drawing->percent_forward;
    const uint32_t side = counts[wanted] > 0 ? wanted : 1 - wanted;
    run_action(drawing, chosen[side].pass, chosen[side].stage, chosen[side].microbatch);
    return 1;
}

static void *take(uint64_t bytes)
{
    void *const memory = hd_memory_take(bytes, 64, "test");
    assert(memory != NULL);
    return memory;
}

static struct hd_pipeline *draw_plan(struct drawing *drawing)
{
    struct hd_pipeline_source source = {.name = "drawn"};
    struct hd_problem problem = {0};
    struct hd_pipeline *pipeline = NULL;
    uint64_t count = 0;

    draw_shape(drawing);
    while (run_one(drawing)) {
        count++;
    }
    source.rank_count = drawing->rank_count;
    source.stage_count = drawing->stage_count;
    source.microbatch_count = drawing->microbatch_count;
    source.replica_count = drawing->replica_count;
    source.is_forward_only = drawing->is_forward_only;
    source.stage_rank = take(REPLICA_LIMIT * sizeof drawing->home[0]);
    source.replica_of = take(MICROBATCH_LIMIT);
    source.rank_begin = take((RANK_LIMIT + 1) * sizeof(uint64_t));
    source.actions = take(count * sizeof(struct hd_action));
    for (uint32_t i = 0; i < drawing->replica_count * drawing->stage_count; i++) {
        source.stage_rank[i] = drawing->home[i / drawing->stage_count][i % drawing->stage_count];
    }
    memcpy(source.replica_of, drawing->replica_of, drawing->microbatch_count);
    for (uint32_t rank = 0; rank < drawing->rank_count; rank++) {
        const uint64_t begin = source.rank_begin[rank];
        memcpy(&source.actions[begin], drawing->rows[rank],
               drawing->row_length[rank] * sizeof(struct hd_action));
        source.rank_begin[rank + 1] = begin + drawing->row_length[rank];
    }
    if (hd_pipeline_from_actions(&source, &pipeline, &problem) != HD_OK) {
        fprintf(stderr, "P %u S %u m %u replicas %u: %s\n", drawing->rank_count,
                drawing->stage_count, drawing->microbatch_count, drawing->replica_count,
                problem.message);
        CU_FAIL_FATAL("a plan that was run while it was drawn is refused");
    }
    return pipeline;
}

/* --- leases ------------------------------------------------------------------------------------
 */

/* The engine's pool of one stage on one rank, led through that rank's actions.  HD_OK, or what the
   pool says; `peak` is the most leases at once, `most` a count beside it that knows no pool. */
struct walk {
    uint32_t rank, replica, stage, slot_count;
    uint32_t peak, most;
    struct hd_problem problem;
};

static int ends_payload(const struct drawing *drawing, const struct hd_action *action)
{
    if (drawing->is_forward_only) {
        return 1;
    }
    return action->kind == HD_BACKWARD || action->kind == HD_BACKWARD_WEIGHT;
}

static hd_status walk_pool(const struct drawing *drawing, struct walk *walk)
{
    const struct hd_regions regions = {.alignment = 64};
    struct hd_lease_pool pool = {
        .regions = &regions, .stage = walk->stage, .microbatch_count = MICROBATCH_LIMIT};
    hd_status status = hd_lease_pool_create(&pool, walk->slot_count, SLOT_BYTES, &walk->problem);
    uint32_t live = 0;

    for (uint32_t i = 0; status == HD_OK && i < drawing->row_length[walk->rank]; i++) {
        const struct hd_action *const action = &drawing->rows[walk->rank][i];
        if (action->stage != walk->stage || action->replica != walk->replica) {
            continue;
        }
        if (action->kind == HD_FORWARD) {
            live++;
            walk->most = live > walk->most ? live : walk->most;
            status = hd_lease_acquire(&pool, action->microbatch, &walk->problem);
        }
        if (status == HD_OK && ends_payload(drawing, action)) {
            live--;
            status = hd_lease_release(&pool, action->microbatch, &walk->problem);
        }
    }
    CU_ASSERT(status != HD_OK || pool.held_count == 0);
    walk->peak = pool.peak_count;
    hd_lease_pool_finish(&pool);
    return status;
}

/* Over all replicas of a stage, with `slot_count` slots each; the number of walks that fail. */
static uint32_t walk_stage(const struct drawing *drawing, uint32_t stage, struct walk *worst)
{
    uint32_t failed = 0;

    for (uint32_t replica = 0; replica < drawing->replica_count; replica++) {
        struct walk walk = {.rank = drawing->home[replica][stage],
                            .replica = replica,
                            .stage = stage,
                            .slot_count = worst->slot_count};
        const hd_status status = walk_pool(drawing, &walk);
        CU_ASSERT(status != HD_OK || walk.peak == walk.most);
        if (status != HD_OK) {
            failed++;
            worst->problem = walk.problem;
        }
        worst->peak = walk.peak > worst->peak ? walk.peak : worst->peak;
    }
    return failed;
}

static void one_slot_fewer(const struct drawing *drawing, struct hd_pipeline *pipeline,
                           uint32_t stage)
{
    const uint32_t needed = pipeline->retention[stage];
    struct walk worst = {.slot_count = needed - 1};
    struct hd_problem problem = {0};
    uint32_t given[STAGE_LIMIT];
    char wanted[80];

    memcpy(given, pipeline->retention, pipeline->stage_count * sizeof given[0]);
    given[stage]--;
    const struct hd_slot_request request = {.payload_count = pipeline->stage_count,
                                            .payload = given};
    CU_ASSERT_NOT_EQUAL(hd_pipeline_give_slots(pipeline, &request, &problem), HD_OK);
    CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_PLAN);
    CU_ASSERT_EQUAL(problem.law, 6);
    snprintf(wanted, sizeof wanted, "stage %u needs %u slots, has %u", stage, needed, needed - 1);
    CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, wanted));
    CU_ASSERT_EQUAL(pipeline->payload_slots[stage], needed);
    CU_ASSERT(walk_stage(drawing, stage, &worst) > 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(worst.problem.message, "no payload slot for microbatch"));
}

static void exactly_h_slots(void)
{
    static struct drawing drawing;
    uint32_t largest = 0, split = 0, replicas = 0, fewer = 0;

    random_state = 0x9e3779b97f4a7c15ull;
    for (uint32_t i = 0; i < PLAN_COUNT; i++) {
        struct hd_pipeline *const pipeline = draw_plan(&drawing);
        struct hd_problem problem = {0};
        const struct hd_slot_request request = {.payload_count = pipeline->stage_count,
                                                .payload = pipeline->retention};
        CU_ASSERT_EQUAL(hd_pipeline_give_slots(pipeline, &request, &problem), HD_OK);
        for (uint32_t stage = 0; stage < pipeline->stage_count; stage++) {
            struct walk worst = {.slot_count = pipeline->retention[stage]};
            CU_ASSERT_EQUAL(walk_stage(&drawing, stage, &worst), 0);
            CU_ASSERT_EQUAL(worst.peak, pipeline->retention[stage]);
            largest = worst.peak > largest ? worst.peak : largest;
            if (pipeline->retention[stage] > 1) {
                one_slot_fewer(&drawing, pipeline, stage);
                fewer++;
            }
        }
        split += pipeline->is_split;
        replicas += pipeline->replica_count > 1;
        hd_pipeline_destroy(pipeline);
    }
    printf("%d plans, %u split, %u of two replicas, up to %u slots, %u one fewer ...", PLAN_COUNT,
           split, replicas, largest, fewer);
    CU_ASSERT(largest == MICROBATCH_LIMIT && split > 0 && replicas > 0 && fewer > PLAN_COUNT);
}

/* --- the engine itself --------------------------------------------------------------------------
 */

static void write_table(const struct hd_pipeline *pipeline)
{
    struct hd_problem problem = {0};
    FILE *const stream = fopen("drawn.csv", "we");

    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    CU_ASSERT_EQUAL(hd_csv_write(pipeline, stream, &problem), HD_OK);
    fclose(stream);
}

/* The reader gives a stage the rank with most of its actions and numbers ranks by rows, so what a
   drawn plan says of a rank holds for the run of its table. */
static void run_holds_as_many(const struct hd_pipeline *pipeline)
{
    struct command command = {0};
    char words[256];

    write_table(pipeline);
    snprintf(words, sizeof words,
             "run pipeline.schedule=drawn.csv pipeline.ranks=%u pipeline.stages_per_rank=%u "
             "pipeline.microbatches=%u kernels.name=synthetic cost.tick_us=0 train.steps=2 "
             "debug.poison=on output.directory=run --overwrite --quiet",
             pipeline->rank_count, pipeline->stage_count / pipeline->rank_count,
             pipeline->microbatch_count);
    CU_ASSERT_EQUAL_FATAL(command_run(&command, words), 0);
    cJSON *const json = command_json("run/run.json");
    const cJSON *const ranks = cJSON_GetObjectItemCaseSensitive(json, "ranks");
    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        const cJSON *const peak = cJSON_GetObjectItemCaseSensitive(
            cJSON_GetArrayItem(ranks, (int)rank), "peak_payload_slots");
        CU_ASSERT_PTR_NOT_NULL_FATAL(peak);
        CU_ASSERT_EQUAL(peak->valueint, (int)pipeline->peak_copies[rank]);
    }
    cJSON_Delete(json);
}

static void a_run_holds_as_many(void)
{
    static struct drawing drawing;
    uint32_t run_count = 0;

    random_state = 0x2545f4914f6cdd1dull;
    for (uint32_t i = 0; run_count < RUN_COUNT && i < PLAN_COUNT; i++) {
        struct hd_pipeline *const pipeline = draw_plan(&drawing);
        if (pipeline->replica_count == 1 && pipeline->rank_count > 1 && pipeline->rank_count <= 4 &&
            pipeline->microbatch_count > 3 && !pipeline->is_forward_only) {
            run_holds_as_many(pipeline);
            run_count++;
        }
        hd_pipeline_destroy(pipeline);
    }
    CU_ASSERT_EQUAL(run_count, RUN_COUNT);
}

static const struct hd_check checks[] = {
    {"the most live leases are H_s, and one slot fewer is refused", exactly_h_slots},
    {"a run of such a plan holds as many as the plan says", a_run_holds_as_many},
};

int main(void)
{
    command_work("random_plans");
    return hd_check_main("random_plans", checks, HD_CHECK_COUNT(checks));
}
