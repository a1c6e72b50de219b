/*
 * Laws 6 and 7: the vector of depths ends, fewer slots end or not as an independent executor says,
 * and what is refused is named.
 */
#include "base/memory.h"
#include "plan/pipeline.h"
#include "report/timeline.h"
#include "support/check.h"
#include "support/naive_executor.h"
#include "support/schedule_harness.h"

#include <stdio.h>
#include <string.h>

enum { CHANNEL_MAX = 64, DRAW_COUNT = 400 };

static void give_source(struct hd_pipeline_source *source)
{
    hd_memory_give(source->stage_rank);
    hd_memory_give(source->replica_of);
    hd_memory_give(source->rank_begin);
    hd_memory_give(source->actions);
}

/* A small generator of our own, so that a failure can be repeated. */
static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % below;
}

/* Gives each remote channel depth + `more` (at least 1); returns how many there are. */
static uint32_t list_depths(const struct hd_pipeline *pipeline, int more, uint32_t *slots)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *const channel = &pipeline->channels[i];
        if (channel->source != channel->target) {
            const int wanted = (int)channel->depth + more;
            slots[count++] = (uint32_t)(wanted > 1 ? wanted : 1);
        }
    }
    return count;
}

static hd_status give(struct hd_pipeline *pipeline, uint32_t count, const uint32_t *slots,
                      struct hd_problem *problem)
{
    const struct hd_slot_request request = {.transfer_count = count, .transfer = slots};

    *problem = (struct hd_problem){0};
    return hd_pipeline_give_slots(pipeline, &request, problem);
}

static const char *const schedules[] = {"gpipe", "1f1b", "interleaved_1f1b", "interleaved_lean",
                                        "1f1b_v"};

static struct hd_pipeline *plan_of(uint32_t schedule, uint32_t ranks, uint32_t microbatches)
{
    const struct hd_schedule_case wanted = {schedules[schedule], ranks, schedule < 2 ? 1 : 2,
                                            microbatches,        0,     NULL};
    return hd_schedule_must_plan(&wanted);
}

/* All channels as the executor counts them: by boundary, forward then backward. */
static void slots_of(const struct hd_pipeline *pipeline, uint32_t *slots)
{
    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        slots[i] = pipeline->channels[i].slots;
    }
}

static void the_depths_of_every_plan_end(void)
{
    for (uint32_t schedule = 0; schedule < HD_CHECK_COUNT(schedules); schedule++) {
        for (uint32_t ranks = 2; ranks <= 8; ranks *= 2) {
            struct hd_pipeline *const pipeline = plan_of(schedule, ranks, 2 * ranks);
            struct hd_pipeline_source source;
            struct hd_problem problem;
            uint32_t slots[CHANNEL_MAX];
            const uint32_t count = list_depths(pipeline, 0, slots);
            CU_ASSERT_EQUAL(give(pipeline, count, slots, &problem), HD_OK);
            CU_ASSERT_EQUAL(hd_pipeline_verify_serial(pipeline, &problem), HD_OK);
            slots_of(pipeline, slots);
            hd_schedule_copy(pipeline, &source);
            CU_ASSERT_EQUAL(hd_naive_ends(&source, slots), 1);
            give_source(&source);
            hd_pipeline_destroy(pipeline);
        }
    }
}

/* One slot fewer everywhere: some plans end, some do not, and the executor agrees on each. */
static void one_slot_fewer_does_not_always_end(void)
{
    uint32_t ended = 0;
    uint32_t refused = 0;

    for (uint32_t schedule = 0; schedule < HD_CHECK_COUNT(schedules); schedule++) {
        for (uint32_t ranks = 2; ranks <= 8; ranks *= 2) {
            struct hd_pipeline *const pipeline = plan_of(schedule, ranks, 2 * ranks);
            struct hd_problem problem;
            uint32_t slots[CHANNEL_MAX];
            const uint32_t count = list_depths(pipeline, -1, slots);
            const uint32_t before = pipeline->channels[0].slots;
            if (give(pipeline, count, slots, &problem) == HD_OK) {
                ended++;
            } else {
                refused++;
                CU_ASSERT_EQUAL(problem.law, 6);
                CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_PLAN);
                CU_ASSERT_STRING_EQUAL(problem.key, "pipeline.transfer_slots");
                CU_ASSERT_PTR_NOT_NULL(strstr(problem.cycle, " waits for "));
                CU_ASSERT_EQUAL(pipeline->channels[0].slots, before);
            }
            hd_pipeline_destroy(pipeline);
        }
    }
    CU_ASSERT_TRUE(ended > 0);
    CU_ASSERT_TRUE(refused > 0);
}

static void strict_slots_get_the_verdict_of_the_executor(void)
{
    uint64_t state = 6;
    uint32_t verdicts[2] = {0, 0};

    for (uint32_t i = 0; i < DRAW_COUNT; i++) {
        const uint32_t schedule = draw(&state, HD_CHECK_COUNT(schedules));
        const uint32_t ranks = 2 + draw(&state, 4);
        struct hd_pipeline *const pipeline = plan_of(schedule, ranks, ranks + draw(&state, ranks));
        struct hd_pipeline_source source;
        struct hd_problem problem;
        uint32_t slots[CHANNEL_MAX];
        uint32_t all[CHANNEL_MAX];
        const uint32_t count = list_depths(pipeline, 0, slots);
        for (uint32_t j = 0; j < count; j++) {
            slots[j] = slots[j] > 1 && draw(&state, 3) == 0 ? slots[j] - 1 : slots[j];
        }
        for (uint32_t j = 0, remote = 0; j < pipeline->channel_count; j++) {
            const struct hd_pipeline_channel *const channel = &pipeline->channels[j];
            all[j] = channel->source != channel->target ? slots[remote++] : channel->depth;
        }
        hd_schedule_copy(pipeline, &source);
        const int expected = hd_naive_ends(&source, all);
        const hd_status status = give(pipeline, count, slots, &problem);
        CU_ASSERT_EQUAL(status == HD_OK, expected);
        verdicts[status == HD_OK]++;
        give_source(&source);
        hd_pipeline_destroy(pipeline);
    }
    CU_ASSERT_TRUE(verdicts[0] > DRAW_COUNT / 10);
    CU_ASSERT_TRUE(verdicts[1] > DRAW_COUNT / 10);
}

/* facts, Law 6: for interleaved P4 m8 the least of each forward channel alone add up to 32 (the
   depths to 38); all the least together deadlock. */
static void depths_are_only_jointly_sufficient(void)
{
    static const uint32_t least[14] = {8, 7, 5, 4, 4, 3, 1, 1, 1, 1, 1, 1, 1, 1};
    struct hd_pipeline *const pipeline = plan_of(2, 4, 8);
    struct hd_problem problem;
    uint32_t slots[CHANNEL_MAX];
    uint32_t sum = 0;

    CU_ASSERT_EQUAL_FATAL(list_depths(pipeline, 0, slots), 14);
    for (uint32_t i = 0; i < 14; i++) {
        const uint32_t depth = slots[i];
        slots[i] = least[i];
        CU_ASSERT_EQUAL(give(pipeline, 14, slots, &problem), HD_OK);
        slots[i] = least[i] > 1 ? least[i] - 1 : 1;
        CU_ASSERT_EQUAL(give(pipeline, 14, slots, &problem) < 0, least[i] > 1);
        slots[i] = depth;
        sum += i < 7 ? least[i] : 0;
    }
    CU_ASSERT_EQUAL(sum, 32);
    CU_ASSERT_TRUE(give(pipeline, 14, least, &problem) < 0);
    CU_ASSERT_STRING_EQUAL(problem.remedy, "give auto, or the depths by boundary, forward 8 8 7 4 "
                                           "4 4 3 backward 2 2 2 3 2 2 2");
    hd_pipeline_destroy(pipeline);
}

static void a_slot_cycle_is_printed(void)
{
    /* gpipe, two ranks: the second forward finds the only slot taken until 1B0. */
    struct hd_pipeline *const pipeline = plan_of(0, 2, 2);
    struct hd_problem problem;
    const uint32_t slots = 1;

    CU_ASSERT_TRUE(give(pipeline, 1, &slots, &problem) < 0);
    CU_ASSERT_EQUAL(problem.law, 6);
    CU_ASSERT_STRING_EQUAL(problem.place, "rank 0");
    CU_ASSERT_STRING_EQUAL(problem.cycle,
                           "rank 0 at 0F1 waits for 1B0 (a forward slot of boundary 0); "
                           "rank 1 at 1F1 waits for 0F1");
    hd_pipeline_destroy(pipeline);
}

static void a_list_must_fit(void)
{
    static const uint32_t slots[3] = {9, 9, 0};
    struct hd_pipeline *const pipeline = plan_of(1, 4, 8);
    struct hd_problem problem;

    CU_ASSERT_TRUE(give(pipeline, 3, slots, &problem) < 0);
    CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_USAGE);
    CU_ASSERT_STRING_EQUAL(problem.message, "3 numbers for 6 remote channels");
    CU_ASSERT_TRUE(give(pipeline, 1, &slots[2], &problem) < 0);
    CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_USAGE);
    CU_ASSERT_EQUAL(give(pipeline, 1, slots, &problem), HD_OK);
    CU_ASSERT_EQUAL(pipeline->channels[5].slots, 9);
    CU_ASSERT_EQUAL(give(pipeline, 0, NULL, &problem), HD_OK);
    CU_ASSERT_EQUAL(pipeline->channels[5].slots, pipeline->channels[5].depth + 1);
    hd_pipeline_destroy(pipeline);
}

/* cases, C49. */
static void a_pool_below_its_retention_is_refused(void)
{
    uint32_t slots[8] = {7, 8, 7, 5, 4, 4, 3, 1};
    struct hd_pipeline *const pipeline = plan_of(2, 4, 8);
    const struct hd_slot_request request = {.payload_count = 8, .payload = slots};
    struct hd_problem problem = {0};

    CU_ASSERT_TRUE(hd_pipeline_give_slots(pipeline, &request, &problem) < 0);
    CU_ASSERT_EQUAL(problem.law, 6);
    CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_PLAN);
    CU_ASSERT_STRING_EQUAL(problem.message, "stage 0 needs 8 slots, but has 7");
    CU_ASSERT_STRING_EQUAL(problem.cycle, "rank 0 at 0F7 (action 13) waits for 0B0 (action 20)");
    CU_ASSERT_EQUAL(pipeline->payload_slots[0], 8);
    slots[0] = 8;
    slots[7] = 2;
    problem = (struct hd_problem){0};
    CU_ASSERT_EQUAL(hd_pipeline_give_slots(pipeline, &request, &problem), HD_OK);
    CU_ASSERT_EQUAL(pipeline->payload_slots[7], 2);
    hd_pipeline_destroy(pipeline);
}

/* Law 7 can only break where law 6 leaves less than the depth; such vectors are found by
   drawing. */
static void one_transfer_at_a_time_needs_more_slots(void)
{
    uint64_t state = 7;
    uint32_t refused = 0;

    for (uint32_t i = 0; i < DRAW_COUNT; i++) {
        const uint32_t ranks = 2 + draw(&state, 4);
        struct hd_pipeline *const pipeline =
            plan_of(draw(&state, HD_CHECK_COUNT(schedules)), ranks, 2 * ranks);
        struct hd_problem problem;
        uint32_t slots[CHANNEL_MAX];
        const uint32_t count = list_depths(pipeline, 0, slots);
        for (uint32_t j = 0; j < count; j++) {
            slots[j] -= slots[j] > 1 && draw(&state, 2) == 0;
        }
        if (give(pipeline, count, slots, &problem) == HD_OK &&
            hd_pipeline_verify_serial(pipeline, &problem) != HD_OK) {
            CU_ASSERT_EQUAL(problem.law, 7);
            CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_PLAN);
            CU_ASSERT_PTR_NOT_NULL(strstr(problem.cycle, "the transfer of "));
            refused++;
        }
        hd_pipeline_destroy(pipeline);
    }
    CU_ASSERT_TRUE(refused > 0);
    printf("(%u of %u) ", refused, (unsigned)DRAW_COUNT);
}

static const struct hd_check checks[] = {
    {"the depths of every plan end", the_depths_of_every_plan_end},
    {"one slot fewer does not always end", one_slot_fewer_does_not_always_end},
    {"strict slots get the verdict of the executor", strict_slots_get_the_verdict_of_the_executor},
    {"depths are only jointly sufficient", depths_are_only_jointly_sufficient},
    {"a slot cycle is printed", a_slot_cycle_is_printed},
    {"a list must fit", a_list_must_fit},
    {"a pool below its retention is refused", a_pool_below_its_retention_is_refused},
    {"one transfer at a time needs more slots", one_transfer_at_a_time_needs_more_slots},
};

int main(void)
{
    return hd_check_main("slots", checks, HD_CHECK_COUNT(checks));
}
