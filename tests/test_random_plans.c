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
#include "report/csv_write.h"
#include "plan/pipeline.h"
#include "support/check.h"
#include "support/command.h"
#include "support/random_plan.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLAN_COUNT = 400, SLOT_BYTES = 64, RUN_COUNT = 4 };

static const struct hd_random_limits limits = {.rank_least = 1,
                                               .rank_most = HD_RANDOM_RANK_MAX,
                                               .per_rank_most =
                                                   HD_RANDOM_STAGE_MAX / HD_RANDOM_RANK_MAX,
                                               .microbatch_least = 1,
                                               .microbatch_most = HD_RANDOM_MICROBATCH_MAX,
                                               .may_replicate = 1,
                                               .may_be_forward = 1};

static struct hd_pipeline *draw_plan(struct hd_random_plan *plan)
{
    struct hd_pipeline *const pipeline = hd_random_plan_draw(plan, &limits);

    CU_ASSERT_PTR_NOT_NULL_FATAL(pipeline);
    return pipeline;
}

/* --- leases ----------------------------------------------------------------------------------- */

/* The engine's pool of one stage on one rank, led through that rank's actions.  HD_OK, or what the
   pool says; `peak` is the most leases at once, `most` a count beside it that knows no pool. */
struct walk {
    uint32_t rank, replica, stage, slot_count;
    uint32_t peak, most;
    struct hd_problem problem;
};

static int ends_payload(const struct hd_random_plan *plan, const struct hd_action *action)
{
    if (plan->is_forward_only) {
        return 1;
    }
    return action->kind == HD_BACKWARD || action->kind == HD_BACKWARD_WEIGHT;
}

static hd_status walk_pool(const struct hd_random_plan *plan, struct walk *walk)
{
    const struct hd_regions regions = {.alignment = 64};
    struct hd_lease_pool pool = {
        .regions = &regions, .stage = walk->stage, .microbatch_count = HD_RANDOM_MICROBATCH_MAX};
    hd_status status = hd_lease_pool_create(&pool, walk->slot_count, SLOT_BYTES, &walk->problem);
    uint32_t live = 0;

    for (uint32_t i = 0; status == HD_OK && i < plan->row_length[walk->rank]; i++) {
        const struct hd_action *const action = &plan->rows[walk->rank][i];
        if (action->stage != walk->stage || action->replica != walk->replica) {
            continue;
        }
        if (action->kind == HD_FORWARD) {
            live++;
            walk->most = live > walk->most ? live : walk->most;
            status = hd_lease_acquire(&pool, action->microbatch, &walk->problem);
        }
        if (status == HD_OK && ends_payload(plan, action)) {
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
static uint32_t walk_stage(const struct hd_random_plan *plan, uint32_t stage, struct walk *worst)
{
    uint32_t failed = 0;

    for (uint32_t replica = 0; replica < plan->replica_count; replica++) {
        struct walk walk = {.rank = plan->home[replica][stage],
                            .replica = replica,
                            .stage = stage,
                            .slot_count = worst->slot_count};
        const hd_status status = walk_pool(plan, &walk);
        CU_ASSERT(status != HD_OK || walk.peak == walk.most);
        if (status != HD_OK) {
            failed++;
            worst->problem = walk.problem;
        }
        worst->peak = walk.peak > worst->peak ? walk.peak : worst->peak;
    }
    return failed;
}

static void one_slot_fewer(const struct hd_random_plan *plan, struct hd_pipeline *pipeline,
                           uint32_t stage)
{
    const uint32_t needed = pipeline->retention[stage];
    struct walk worst = {.slot_count = needed - 1};
    struct hd_problem problem = {0};
    uint32_t given[HD_RANDOM_STAGE_MAX];
    char wanted[80];

    memcpy(given, pipeline->retention, pipeline->stage_count * sizeof given[0]);
    given[stage]--;
    const struct hd_slot_request request = {.payload_count = pipeline->stage_count,
                                            .payload = given};
    CU_ASSERT_NOT_EQUAL(hd_pipeline_give_slots(pipeline, &request, &problem), HD_OK);
    CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_PLAN);
    CU_ASSERT_EQUAL(problem.law, 6);
    snprintf(wanted, sizeof wanted, "stage %u needs %u slots, but has %u", stage, needed,
             needed - 1);
    CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, wanted));
    CU_ASSERT_EQUAL(pipeline->payload_slots[stage], needed);
    CU_ASSERT(walk_stage(plan, stage, &worst) > 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(worst.problem.message, "no payload slot is free for microbatch"));
}

static void exactly_h_slots(void)
{
    static struct hd_random_plan plan;
    uint32_t largest = 0, split = 0, replicas = 0, fewer = 0;

    plan.random = 0x9e3779b97f4a7c15ull;
    for (uint32_t i = 0; i < PLAN_COUNT; i++) {
        struct hd_pipeline *const pipeline = draw_plan(&plan);
        struct hd_problem problem = {0};
        const struct hd_slot_request request = {.payload_count = pipeline->stage_count,
                                                .payload = pipeline->retention};
        CU_ASSERT_EQUAL(hd_pipeline_give_slots(pipeline, &request, &problem), HD_OK);
        for (uint32_t stage = 0; stage < pipeline->stage_count; stage++) {
            struct walk worst = {.slot_count = pipeline->retention[stage]};
            CU_ASSERT_EQUAL(walk_stage(&plan, stage, &worst), 0);
            CU_ASSERT_EQUAL(worst.peak, pipeline->retention[stage]);
            largest = worst.peak > largest ? worst.peak : largest;
            if (pipeline->retention[stage] > 1) {
                one_slot_fewer(&plan, pipeline, stage);
                fewer++;
            }
        }
        split += pipeline->is_split;
        replicas += pipeline->replica_count > 1;
        hd_pipeline_destroy(pipeline);
    }
    printf("%d plans, %u split, %u of two replicas, up to %u slots, %u one fewer ...", PLAN_COUNT,
           split, replicas, largest, fewer);
    CU_ASSERT(largest == HD_RANDOM_MICROBATCH_MAX && split > 0 && replicas > 0 &&
              fewer > PLAN_COUNT);
}

/* --- the engine itself ------------------------------------------------------------------------ */

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
    static struct hd_random_plan plan;
    uint32_t run_count = 0;

    plan.random = 0x2545f4914f6cdd1dull;
    for (uint32_t i = 0; run_count < RUN_COUNT && i < PLAN_COUNT; i++) {
        struct hd_pipeline *const pipeline = draw_plan(&plan);
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
