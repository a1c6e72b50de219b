/* The three timelines of a plan, against the report, the public cases and the facts. */
#include "plan/flow.h"
#include "report/timeline.h"
#include "support/check.h"
#include "support/schedule_harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { VALUE_MAX = 16, TABLE_MAX = 64 };

struct drawn_row {
    const char *source;
    struct hd_schedule_case wanted;
    double ticks, total, empty, bubble, over_ideal;
    uint64_t local, hidden, exposed;
};

static const struct drawn_row drawn_rows[] = {
    {"report, Table 10; cases, C89",
     {"interleaved_1f1b", 4, 2, 8, 0, NULL},
     57,
     228,
     36,
     36.0 / 228,
     3.0 / 16,
     0,
     59,
     53},
    {"report, Table 10",
     {"1f1b_v", 4, 2, 8, 0, NULL},
     63,
     252,
     60,
     60.0 / 252,
     60.0 / 192,
     16,
     18,
     78},
    {"cases, C89", {"1f1b", 4, 1, 8, 0, NULL}, 33, 132, 36, 3.0 / 11, 3.0 / 8, 0, 3, 45},
};

static void draws_the_figures_of_the_report(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(drawn_rows); i++) {
        const struct drawn_row *const row = &drawn_rows[i];
        struct hd_pipeline *const pipeline = hd_schedule_must_plan(&row->wanted);
        struct hd_problem problem = {0};
        struct hd_timeline *drawn = NULL;
        CU_ASSERT_EQUAL_FATAL(
            hd_timeline_create(pipeline, HD_TIMELINE_DRAWN, NULL, &drawn, &problem), HD_OK);
        CU_ASSERT_EQUAL(drawn->kind, pipeline->has_idle ? HD_TIMELINE_DRAWN : HD_TIMELINE_ASAP);
        CU_ASSERT_EQUAL(drawn->length, row->ticks);
        CU_ASSERT_EQUAL(drawn->total, row->total);
        CU_ASSERT_EQUAL(drawn->empty, row->empty);
        CU_ASSERT_DOUBLE_EQUAL(drawn->bubble, row->bubble, 1e-12);
        CU_ASSERT_DOUBLE_EQUAL(drawn->bubble_over_ideal, row->over_ideal, 1e-12);
        CU_ASSERT_EQUAL(drawn->handoffs.local, row->local);
        CU_ASSERT_EQUAL(drawn->handoffs.hidden, row->hidden);
        CU_ASSERT_EQUAL(drawn->handoffs.exposed, row->exposed);
        hd_timeline_destroy(drawn);
        hd_pipeline_destroy(pipeline);
    }
}

static void refuses_a_drawing_that_breaks_a_dependency(void)
{
    /* The forward of rank 1 is drawn at tick 0, while 0F0 ends at tick 1. */
    static const uint32_t homes[] = {0, 1};
    struct hd_pipeline_source source;
    struct hd_pipeline *pipeline = NULL;
    struct hd_timeline *timeline = NULL;
    struct hd_problem problem = {0};

    hd_schedule_parse("0F0 . . . 0B0; 1F0 1B0", 2, 1, homes, &source);
    CU_ASSERT_EQUAL_FATAL(hd_pipeline_from_actions(&source, &pipeline, &problem), HD_OK);
    CU_ASSERT_EQUAL(pipeline->asap_ticks, 6);
    CU_ASSERT_TRUE(hd_timeline_create(pipeline, HD_TIMELINE_DRAWN, NULL, &timeline, &problem) < 0);
    CU_ASSERT_PTR_NULL(timeline);
    CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_PLAN);
    CU_ASSERT_STRING_EQUAL(problem.place, "rank 1");
    CU_ASSERT_STRING_EQUAL(problem.message,
                           "1F0 is drawn at tick 0, but needs 0F0 of rank 0, which ends at tick 1");
    hd_pipeline_destroy(pipeline);
}

/* Olmo-core's drawn tables for m = P break a dependency; the order itself is legal. */
static void refuses_the_drawing_of_as_many_microbatches_as_ranks(void)
{
    const struct hd_schedule_case wanted = {"interleaved_1f1b", 4, 2, 4, 0, NULL};
    struct hd_pipeline *const pipeline = hd_schedule_must_plan(&wanted);
    struct hd_timeline *timeline = NULL;
    struct hd_problem problem = {0};

    CU_ASSERT_EQUAL(pipeline->asap_ticks, 33);
    CU_ASSERT_TRUE(hd_timeline_create(pipeline, HD_TIMELINE_DRAWN, NULL, &timeline, &problem) < 0);
    CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_PLAN);
    CU_ASSERT_STRING_EQUAL(problem.place, "rank 0");
    CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, "4B0 is drawn at tick 15"));
    hd_pipeline_destroy(pipeline);
}

/* --- costs ----------------------------------------------------------------------------------- */

struct cost_row {
    const char *source;
    struct hd_schedule_case wanted;
    double forward[VALUE_MAX]; /* by stage; all 0: 1 everywhere, and the backward twice that */
    double backward;           /* per forward */
    double transfer;
    uint32_t mode;
    double length;
    double exposed; /* below 0: not said */
    double bubble;  /* below 0: not said */
    int straggler;  /* below 0: not said */
};

#define ALIKE \
    {         \
        0     \
    }
#define OVERLAPPED HD_TRANSFER_OVERLAPPED
#define BLOCKING   HD_TRANSFER_BLOCKING
#define SERIAL     HD_TRANSFER_SERIAL
#define GPIPE                     \
    {                             \
        "gpipe", 4, 1, 8, 0, NULL \
    }
#define ONE                      \
    {                            \
        "1f1b", 4, 1, 8, 0, NULL \
    }
#define LOOP                                 \
    {                                        \
        "interleaved_1f1b", 4, 2, 8, 0, NULL \
    }
#define LEAN                                 \
    {                                        \
        "interleaved_lean", 4, 2, 8, 0, NULL \
    }
#define VEE                        \
    {                              \
        "1f1b_v", 4, 2, 8, 0, NULL \
    }

static const struct cost_row costs[] = {
    {"cases, C53", GPIPE, ALIKE, 2, 0, OVERLAPPED, 33, 0, -1, -1},
    {"cases, C53", GPIPE, ALIKE, 2, 0.25, OVERLAPPED, 34.5, 1.5, -1, -1},
    {"cases, C53", GPIPE, ALIKE, 2, 0.5, OVERLAPPED, 36, 3, -1, -1},
    {"cases, C53", GPIPE, ALIKE, 2, 1, OVERLAPPED, 39, 6, -1, -1},
    {"cases, C53", ONE, ALIKE, 2, 0.25, OVERLAPPED, 37, 6.75, -1, -1},
    {"cases, C53", ONE, ALIKE, 2, 0.5, OVERLAPPED, 41, 13.5, -1, -1},
    {"cases, C53", ONE, ALIKE, 2, 1, OVERLAPPED, 49, 27, -1, -1},
    {"cases, C53, C11", LOOP, ALIKE, 2, 0, OVERLAPPED, 57, 0, 36.0 / 228, -1},
    {"cases, C53, C11", LOOP, ALIKE, 2, 0.25, OVERLAPPED, 60.5, 6.75, -1, -1},
    {"cases, C53, C11", LOOP, ALIKE, 2, 0.5, OVERLAPPED, 64, 15, -1, -1},
    {"cases, C53, C11", LOOP, ALIKE, 2, 1, OVERLAPPED, 71, 38, -1, -1},
    {"cases, C11", LEAN, ALIKE, 2, 0.25, OVERLAPPED, 64.5, 11.75, -1, -1},
    {"cases, C11", LEAN, ALIKE, 2, 0.5, OVERLAPPED, 72, 23.5, -1, -1},
    {"cases, C11", LEAN, ALIKE, 2, 1, OVERLAPPED, 87, 51, -1, -1},
    {"facts, Timelines", VEE, ALIKE, 2, 0.25, OVERLAPPED, -1, 12, -1, -1},
    {"facts, Timelines", VEE, ALIKE, 2, 0.5, OVERLAPPED, -1, 24, -1, -1},
    {"facts, Timelines", VEE, ALIKE, 2, 1, OVERLAPPED, -1, 49, -1, -1},
    {"facts, blocking: both pay", LOOP, ALIKE, 2, 0.5, BLOCKING, 87, -1, -1, -1},
    {"docs/architecture.md, Law 7", LOOP, ALIKE, 2, 1, SERIAL, 110, -1, -1, -1},
    {"cases, C91", {"gpipe", 8, 1, 32, 0, NULL}, ALIKE, 1, 0, OVERLAPPED, 78, 0, 14.0 / 78, -1},
    {"cases, C91", {"1f1b", 8, 1, 32, 0, NULL}, ALIKE, 1, 0, OVERLAPPED, 78, 0, 14.0 / 78, -1},
    {"cases, C95", ONE, {1, 1, 1, 1.25}, 2, 0, OVERLAPPED, 39, 0, 0.346, 3},
    {"cases, C95", ONE, {1.25, 1, 1, 1}, 2, 0, OVERLAPPED, 36.75, 0, 0.306, 0},
    {"cases, C95", ONE, {1, 1, 2, 1}, 2, 0, OVERLAPPED, 55, 0, 0.455, 2},
    {"cases, C94",
     {"1f1b", 4, 1, 4, 0, NULL},
     {1.8, 1.8, 1.8, 1.8},
     2,
     0,
     OVERLAPPED,
     37.8,
     0,
     0.429,
     -1},
    {"cases, C94", ONE, {1, 1, 1, 1}, 2, 0, OVERLAPPED, 33, 0, 0.273, -1},
    {"cases, C94",
     {"1f1b", 4, 1, 16, 0, NULL},
     {0.6, 0.6, 0.6, 0.6},
     2,
     0,
     OVERLAPPED,
     34.2,
     0,
     0.158,
     -1},
    {"cases, C94",
     {"1f1b", 4, 1, 32, 0, NULL},
     {0.4, 0.4, 0.4, 0.4},
     2,
     0,
     OVERLAPPED,
     42,
     0,
     0.086,
     -1},
    {"cases, C97", {"1f1b", 2, 1, 16, 0, NULL}, ALIKE, 2, 0, OVERLAPPED, 51, 0, 1.0 / 17, -1},
};

/* The costs of a row, in arrays that last as long as `tables`. */
static struct hd_timeline_costs fill_costs(const struct cost_row *row, uint32_t stage_count,
                                           double tables_of[3][TABLE_MAX])
{
    for (uint32_t stage = 0; stage < stage_count; stage++) {
        const double forward = row->forward[0] > 0 ? row->forward[stage] : 1;
        tables_of[0][stage] = forward;
        tables_of[1][stage] = forward * row->backward;
        tables_of[2][stage] = row->transfer;
    }
    return (struct hd_timeline_costs){.forward = tables_of[0],
                                      .backward = tables_of[1],
                                      .transfer = tables_of[2],
                                      .mode = row->mode};
}

static void check_cost(const struct cost_row *row)
{
    double tables_of[3][TABLE_MAX];
    struct hd_pipeline *const pipeline = hd_schedule_must_plan(&row->wanted);
    const struct hd_timeline_costs all = fill_costs(row, pipeline->stage_count, tables_of);
    struct hd_problem problem = {0};
    struct hd_timeline *timeline = NULL;

    CU_ASSERT_EQUAL_FATAL(
        hd_timeline_create(pipeline, HD_TIMELINE_COSTED, &all, &timeline, &problem), HD_OK);
    const double found[3] = {timeline->length, timeline->exposed_ticks, timeline->bubble};
    const double wanted[3] = {row->length, row->exposed, row->bubble};
    const double tolerances[3] = {1e-9, 1e-9, 6e-4};
    for (uint32_t i = 0; i < 3; i++) {
        if (wanted[i] >= 0 && fabs(found[i] - wanted[i]) > tolerances[i]) {
            printf("\n    %s: %s at transfer %g: value %u is %g, not %g ", row->source,
                   row->wanted.schedule, row->transfer, i, found[i], wanted[i]);
            CU_FAIL("a costed value differs");
        }
    }
    if (row->straggler >= 0) {
        CU_ASSERT_EQUAL(timeline->straggler, (uint32_t)row->straggler);
    }
    hd_timeline_destroy(timeline);
    hd_pipeline_destroy(pipeline);
}

/* Each transfer takes its cost, from its producer's end on; its consumer starts no sooner; and the
   parts add up: to all transfers, and to what was waited for them.  A blocking transfer is
   waited for whole. */
static void check_split(const struct cost_row *row)
{
    double tables_of[3][TABLE_MAX];
    struct hd_pipeline *const pipeline = hd_schedule_must_plan(&row->wanted);
    const struct hd_timeline_costs all = fill_costs(row, pipeline->stage_count, tables_of);
    struct hd_problem problem = {0};
    struct hd_timeline *timeline = NULL;
    double transfer = 0, exposed = 0;

    CU_ASSERT_EQUAL_FATAL(
        hd_timeline_create(pipeline, HD_TIMELINE_COSTED, &all, &timeline, &problem), HD_OK);
    for (uint32_t i = 0; i < pipeline->action_count; i++) {
        const uint32_t consumer = hd_flow_consumer(pipeline, &pipeline->actions[i]);
        const struct hd_transfer_ticks ticks = hd_timeline_transfer(pipeline, timeline, i);
        transfer += ticks.transfer;
        exposed += ticks.exposed;
        CU_ASSERT(ticks.exposed >= 0 && ticks.exposed <= ticks.transfer + 1e-9);
        if (ticks.transfer > 0) {
            CU_ASSERT_DOUBLE_EQUAL(ticks.transfer, row->transfer, 1e-9);
            CU_ASSERT(timeline->depart[i] >= timeline->end[i] - 1e-9);
            CU_ASSERT(timeline->start[consumer] >= timeline->arrive[i] - 1e-9);
        }
    }
    CU_ASSERT_DOUBLE_EQUAL(transfer, timeline->transfer_ticks, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(exposed, timeline->exposed_ticks, 1e-6);
    if (row->mode == BLOCKING) {
        CU_ASSERT_DOUBLE_EQUAL(exposed, transfer, 1e-6);
    }
    hd_timeline_destroy(timeline);
    hd_pipeline_destroy(pipeline);
}

static void splits_transfers(void)
{
    static const struct cost_row rows[] = {
        {"facts, Timelines", LOOP, ALIKE, 2, 0.5, OVERLAPPED, 64, 15, -1, -1},
        {"facts, Timelines", VEE, ALIKE, 2, 1, OVERLAPPED, -1, 49, -1, -1},
        {"facts, blocking: both pay", LOOP, ALIKE, 2, 0.5, BLOCKING, 87, -1, -1, -1},
    };

    for (uint32_t i = 0; i < HD_CHECK_COUNT(rows); i++) {
        check_split(&rows[i]);
    }
}

/* Random costs in every mode: what is exposed is a part of the transfers. */
static void exposes_no_more_than_the_transfers(void)
{
    static const struct hd_schedule_case plans[] = {
        GPIPE, ONE, LOOP, VEE, {"1f1b", 2, 1, 4, 0, NULL}};
    uint64_t seed = 12;

    for (uint32_t i = 0; i < 300; i++) {
        struct cost_row row = {.source = "random",
                               .wanted = plans[i % HD_CHECK_COUNT(plans)],
                               .mode = i / HD_CHECK_COUNT(plans) % 3};
        double tables_of[3][TABLE_MAX];
        struct hd_pipeline *const pipeline = hd_schedule_must_plan(&row.wanted);
        const struct hd_timeline_costs all = fill_costs(&row, pipeline->stage_count, tables_of);
        struct hd_problem problem = {0};
        struct hd_timeline *timeline = NULL;

        for (uint32_t j = 0; j < 3 * pipeline->stage_count; j++) {
            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            tables_of[j % 3][j / 3] = (double)(seed >> 33) * 0x1p-31 * (j % 3 == 2 ? 3 : 2);
        }
        CU_ASSERT_EQUAL_FATAL(
            hd_timeline_create(pipeline, HD_TIMELINE_COSTED, &all, &timeline, &problem), HD_OK);
        CU_ASSERT(timeline->exposed_ticks >= 0);
        CU_ASSERT(timeline->exposed_ticks <= timeline->transfer_ticks * (1 + 1e-9));
        hd_timeline_destroy(timeline);
        hd_pipeline_destroy(pipeline);
    }
}

static void costs_what_the_cases_say(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(costs); i++) {
        check_cost(&costs[i]);
    }
}

/* Length with the slots given, and as if they never ran out. */
static void time_with_slots(const struct cost_row *row, uint32_t slots, double lengths[2])
{
    double tables_of[3][TABLE_MAX];
    struct hd_pipeline *const pipeline = hd_schedule_must_plan(&row->wanted);
    struct hd_timeline_costs all = fill_costs(row, pipeline->stage_count, tables_of);
    uint32_t depths[TABLE_MAX];
    uint32_t count = 0;
    struct hd_problem problem = {0};

    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        if (pipeline->channels[i].source != pipeline->channels[i].target) {
            depths[count++] = pipeline->channels[i].depth + slots;
        }
    }
    const struct hd_slot_request request = {.transfer_count = count, .transfer = depths};
    CU_ASSERT_EQUAL_FATAL(hd_pipeline_give_slots(pipeline, &request, &problem), HD_OK);
    for (uint32_t i = 0; i < 2; i++) {
        struct hd_timeline *timeline = NULL;
        all.is_unlimited = i;
        CU_ASSERT_EQUAL_FATAL(
            hd_timeline_create(pipeline, HD_TIMELINE_COSTED, &all, &timeline, &problem), HD_OK);
        lengths[i] = timeline->length;
        hd_timeline_destroy(timeline);
    }
    hd_pipeline_destroy(pipeline);
}

static void counts_credits_in_costed_plans(void)
{
    /* facts, "Costs": with the depth alone gpipe P4 takes 42 against 39, 1f1b_v P8 146.25 against
       146; depth + 1 is never slower than unlimited. */
    static const struct cost_row rows[] = {
        {"gpipe", GPIPE, ALIKE, 2, 1, OVERLAPPED, 42, 39, -1, -1},
        {"1f1b_v", {"1f1b_v", 8, 2, 16, 0, NULL}, ALIKE, 2, 0.25, OVERLAPPED, 146.25, 146, -1, -1},
    };
    for (uint32_t i = 0; i < HD_CHECK_COUNT(rows); i++) {
        double lengths[2];
        time_with_slots(&rows[i], 0, lengths);
        CU_ASSERT_DOUBLE_EQUAL(lengths[0], rows[i].length, 1e-9);
        CU_ASSERT_DOUBLE_EQUAL(lengths[1], rows[i].exposed, 1e-9);
        time_with_slots(&rows[i], 1, lengths);
        CU_ASSERT_DOUBLE_EQUAL(lengths[0], lengths[1], 1e-9);
    }
}

static void one_slot_more_than_the_depth_never_delays(void)
{
    static const char *const names[] = {"gpipe", "1f1b", "interleaved_1f1b", "interleaved_lean",
                                        "1f1b_v"};
    for (uint32_t i = 0; i < HD_CHECK_COUNT(names); i++) {
        for (uint32_t ranks = 2; ranks <= 8; ranks *= 2) {
            for (uint32_t quarter = 1; quarter <= 4; quarter *= 2) {
                const struct cost_row row = {
                    .wanted = {names[i], ranks, i < 2 ? 1 : 2, 2 * ranks, 0, NULL},
                    .backward = 2,
                    .transfer = 0.25 * quarter};
                double lengths[2];
                time_with_slots(&row, 1, lengths);
                CU_ASSERT_DOUBLE_EQUAL(lengths[0], lengths[1], 1e-9);
            }
        }
    }
}

static const struct hd_check checks[] = {
    {"draws the figures of the report", draws_the_figures_of_the_report},
    {"refuses a drawing that breaks a dependency", refuses_a_drawing_that_breaks_a_dependency},
    {"refuses the drawing of as many microbatches as ranks",
     refuses_the_drawing_of_as_many_microbatches_as_ranks},
    {"costs what the cases say", costs_what_the_cases_say},
    {"knows of each transfer when it moves, and what of it is waited for", splits_transfers},
    {"exposes no more than the transfers, under random costs", exposes_no_more_than_the_transfers},
    {"counts credits in costed plans", counts_credits_in_costed_plans},
    {"one slot more than the depth never delays", one_slot_more_than_the_depth_never_delays},
};

int main(void)
{
    return hd_check_main("timeline", checks, HD_CHECK_COUNT(checks));
}
