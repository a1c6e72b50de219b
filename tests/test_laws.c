/*
 * Laws 1 to 5 and 8.  Plans of the schedules are mutated one action at a time; where the verdict is
 * not plain from the mutation, an executor that knows nothing of the core's gives it.
 */
#include "plan/pipeline.h"
#include "support/check.h"
#include "support/naive_executor.h"
#include "support/schedule_harness.h"

#include <stdio.h>
#include <string.h>

enum { STAGE_MAX = 32, LINE_BYTES = 4096 };

/* --- mutations ------------------------------------------------------------------------------- */

struct mutated_row {
    const char *source;
    struct hd_schedule_case wanted;
    uint32_t swap_count, legal_count; /* of adjacent actions; P = 4, m = 8 as the facts count */
};

static const struct mutated_row mutated[] = {
    {"facts, Mutations", {"1f1b", 4, 1, 8, 0, NULL}, 60, 40},
    {"facts, Mutations", {"gpipe", 4, 1, 8, 0, NULL}, 60, 1},
    {"facts, Mutations", {"interleaved_1f1b", 4, 2, 8, 0, NULL}, 124, 72},
    {"facts, Mutations", {"interleaved_lean", 4, 2, 8, 0, NULL}, 124, 80},
    {"facts, Mutations", {"1f1b_v", 4, 2, 8, 0, NULL}, 124, 80},
};

/* Takes `source` over; the law that is reported, 0: none. */
static uint32_t verdict(struct hd_pipeline_source *source, struct hd_problem *problem)
{
    struct hd_pipeline *pipeline = NULL;

    *problem = (struct hd_problem){0};
    const hd_status status = hd_pipeline_from_actions(source, &pipeline, problem);
    CU_ASSERT_EQUAL(status == HD_OK, pipeline != NULL);
    CU_ASSERT_EQUAL(problem->exit_code, status == HD_OK ? 0 : HD_EXIT_PLAN);
    CU_ASSERT_EQUAL(problem->law == 4, problem->cycle[0] != '\0');
    if (status != HD_OK) {
        CU_ASSERT_PTR_NOT_NULL(strstr(problem->place, "rank "));
        CU_ASSERT_TRUE(problem->message[0] != '\0');
    }
    hd_pipeline_destroy(pipeline);
    return problem->law;
}

static void names(const struct hd_problem *problem, const struct hd_action *action, uint32_t rank)
{
    char text[32];
    char place[32];

    snprintf(place, sizeof place, "rank %u", rank);
    CU_ASSERT_PTR_NOT_NULL(strstr(problem->message, hd_action_text(action, text)));
    CU_ASSERT_STRING_EQUAL(problem->place, place);
}

static void mutate_one(const struct hd_pipeline *pipeline, uint32_t rank, uint64_t place)
{
    const struct hd_action action = pipeline->actions[pipeline->rank_begin[rank] + place];
    const uint32_t other = (rank + 1) % pipeline->rank_count;
    struct hd_pipeline_source source;
    struct hd_problem problem;

    hd_schedule_copy(pipeline, &source);
    hd_schedule_remove(&source, rank, place);
    CU_ASSERT_EQUAL(verdict(&source, &problem), 1);
    names(&problem, &action, rank);

    hd_schedule_copy(pipeline, &source);
    hd_schedule_insert(&source, rank, place, action);
    CU_ASSERT_EQUAL(verdict(&source, &problem), 1);
    names(&problem, &action, rank);

    hd_schedule_copy(pipeline, &source);
    hd_schedule_remove(&source, rank, place);
    hd_schedule_insert(&source, other, 0, action);
    CU_ASSERT_EQUAL(verdict(&source, &problem), 3);
    names(&problem, &action, other);
}

static void a_dropped_doubled_or_moved_action_breaks_its_law(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(mutated); i++) {
        struct hd_pipeline *const pipeline = hd_schedule_must_plan(&mutated[i].wanted);
        for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
            const uint64_t count = pipeline->rank_begin[rank + 1] - pipeline->rank_begin[rank];
            for (uint64_t place = 0; place < count; place++) {
                mutate_one(pipeline, rank, place);
            }
        }
        hd_pipeline_destroy(pipeline);
    }
}

static void swap_at(struct hd_pipeline_source *source, uint64_t index)
{
    const struct hd_action kept = source->actions[index];
    source->actions[index] = source->actions[index + 1];
    source->actions[index + 1] = kept;
}

static void an_adjacent_swap_gets_the_verdict_of_the_executor(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(mutated); i++) {
        struct hd_pipeline *const pipeline = hd_schedule_must_plan(&mutated[i].wanted);
        uint32_t swap_count = 0;
        uint32_t legal_count = 0;
        for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
            const uint64_t end = pipeline->rank_begin[rank + 1] - 1;
            for (uint64_t index = pipeline->rank_begin[rank]; index < end; index++) {
                struct hd_pipeline_source source;
                struct hd_problem problem;
                hd_schedule_copy(pipeline, &source);
                swap_at(&source, index);
                const uint32_t expected = hd_naive_judge(&source);
                CU_ASSERT_EQUAL(verdict(&source, &problem), expected);
                swap_count++;
                legal_count += expected == 0;
            }
        }
        CU_ASSERT_EQUAL(swap_count, mutated[i].swap_count);
        if (legal_count != mutated[i].legal_count) {
            printf("\n    %s: %u swaps are legal, not %u ", mutated[i].wanted.schedule, legal_count,
                   mutated[i].legal_count);
            CU_FAIL("the number of legal swaps differs");
        }
        hd_pipeline_destroy(pipeline);
    }
}

/* --- verdicts by hand ------------------------------------------------------------------------ */

struct hand_row {
    const char *name, *source, *text;
    uint32_t stage_count, microbatch_count;
    uint32_t homes[4];
    uint32_t law;
    const char *place, *words; /* of the whole line */
};

static const struct hand_row hands[] = {
    {"two ranks wait for each other",
     "docs/architecture.md, The plan",
     "0F0 0B0 0F1 0B1; 1F0 1F1 1B0 1B1",
     2,
     2,
     {0, 1},
     4,
     "rank 0",
     "rank 0 at 0B0 waits for 1B0; rank 1 at 1F1 waits for 0F1"},
    {"a rank waits for itself",
     "law 4",
     "1F0 0F0 1B0 0B0",
     2,
     1,
     {0, 0},
     4,
     "rank 0",
     "rank 0 at 1F0 waits for 0F0"},
    {"a backward without a consumer",
     "cases, C17",
     "0F0 0F1 0B0 0F2 0B1 0F3 0B2; 1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3",
     2,
     4,
     {0, 1},
     1,
     "rank 0",
     "0B3 is missing: stage 0 has 3 of 4 backwards"},
    {"a backward before its forward",
     "law 2",
     "0F0 0B0; 1B0 1F0",
     2,
     1,
     {0, 1},
     2,
     "rank 1",
     "1B0 (action 1) comes before 1F0 (action 2)"},
    {"a weight pass before its input pass",
     "law 2",
     "0F0 0W0 0I0",
     1,
     1,
     {0},
     2,
     "rank 0",
     "0W0 (action 2) comes before 0I0 (action 3)"},
    {"another order at the target",
     "law 5",
     "0F0 0F1 0B0 0B1; 1F1 1F0 1B0 1B1",
     2,
     2,
     {0, 1},
     5,
     "rank 1",
     "1F1 (action 1) takes 0F1 as message 0 of boundary 0, but rank 0 sends 0F0"},
    {"a stage that does not exist", "law 3", "0F0 0B0 7F0", 1, 1, {0}, 3, "rank 0", "stage 7"},
    {"a microbatch that does not exist",
     "law 1",
     "0F0 0B0 0F9",
     1,
     1,
     {0},
     1,
     "rank 0",
     "microbatch 9"},
    {"an unknown kind", "law 1", "0F0 0B0 0X0", 1, 1, {0}, 1, "rank 0", "kind 88"},
    {"an I without its W", "law 1", "0F0 0I0", 1, 1, {0}, 1, "rank 0", "0W0 is missing"},
    {"a W beside a B", "law 1", "0F0 0B0 0W0", 1, 1, {0}, 1, "rank 0", "do the same work"},
    {"a B beside an I", "law 1", "0F0 0B0 0I0 0W0", 1, 1, {0}, 1, "rank 0", "do the same work"},
    {"a W alone", "law 1", "0F0 0W0", 1, 1, {0}, 1, "rank 0", "0B0 is missing"},
    {"away from home is told before what is missing",
     "schedule.h: 3 1 2 5 4",
     "0F0 0B0 1F0; 1B0",
     2,
     1,
     {0, 1},
     3,
     "rank 0",
     "move it to rank 1"},
    {"an empty rank", "law 1", "0F0 0B0; ", 2, 1, {0, 1}, 1, "rank 1", "1F0 is missing"},
    {"halves and whole side by side", "law 1", "0F0 0F1 0I0 0W0 0B1", 1, 2, {0}, 0, "", ""},
    {"locally any order",
     "law 5 is of two ranks",
     "0F0 0F1 1F1 1F0 1B0 1B1 0B0 0B1",
     2,
     2,
     {0, 0},
     0,
     "",
     ""},
};

static void verdicts_name_law_place_and_action(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(hands); i++) {
        const struct hand_row *const row = &hands[i];
        struct hd_pipeline_source source;
        struct hd_problem problem;
        char line[LINE_BYTES];
        hd_schedule_parse(row->text, row->stage_count, row->microbatch_count, row->homes, &source);
        const uint32_t law = verdict(&source, &problem);
        hd_problem_line(&problem, line, sizeof line);
        if (law != row->law || strstr(line, row->words) == NULL ||
            strcmp(problem.place, row->place) != 0) {
            printf("\n    %s (%s): law %u: %s ", row->name, row->source, law, line);
            CU_FAIL("the verdict differs");
        }
    }
}

/* Rewrites a row of forwards and backwards: `lead` forwards, then one of each, then the rest. */
static void warm_up(struct hd_pipeline_source *source, uint32_t rank, uint32_t lead)
{
    struct hd_action passes[2][STAGE_MAX];
    uint32_t counts[2] = {0, 0};
    uint64_t at = source->rank_begin[rank];

    for (uint64_t i = at; i < source->rank_begin[rank + 1]; i++) {
        const uint32_t is_backward = source->actions[i].kind == HD_BACKWARD;
        passes[is_backward][counts[is_backward]++] = source->actions[i];
    }
    for (uint32_t i = 0; i < counts[0] + lead; i++) {
        if (i < counts[0]) {
            source->actions[at++] = passes[0][i];
        }
        if (i >= lead) {
            source->actions[at++] = passes[1][i - lead];
        }
    }
}

/* cases, C11: warm-up (P - 1 - r) V is too short (fault A).  Rank 2 would run 6B0 before 6F0, and
   law 2 is told before the cycle.  Warm-up (P - 1 - r) + (V - 1) P is legal (fault B). */
static void a_warm_up_may_be_too_short(void)
{
    static const uint32_t copies[] = {8, 7, 6, 5};
    const struct hd_schedule_case wanted = {"interleaved_1f1b", 4, 2, 8, 0, NULL};
    struct hd_pipeline *pipeline = hd_schedule_must_plan(&wanted);
    struct hd_pipeline_source source;
    struct hd_problem problem = {0};

    hd_schedule_copy(pipeline, &source);
    for (uint32_t rank = 0; rank < 4; rank++) {
        warm_up(&source, rank, (3 - rank) * 2);
    }
    CU_ASSERT_EQUAL(hd_naive_ends(&source, NULL), 0);
    CU_ASSERT_EQUAL(verdict(&source, &problem), 2);
    CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, "6B0 (action 4) comes before 6F0"));

    problem = (struct hd_problem){0};
    hd_schedule_copy(pipeline, &source);
    hd_pipeline_destroy(pipeline);
    for (uint32_t rank = 0; rank < 4; rank++) {
        warm_up(&source, rank, 3 - rank + 4);
    }
    CU_ASSERT_EQUAL_FATAL(hd_pipeline_from_actions(&source, &pipeline, &problem), HD_OK);
    CU_ASSERT_EQUAL(pipeline->asap_ticks, 57);
    CU_ASSERT_EQUAL(memcmp(pipeline->peak_copies, copies, sizeof copies), 0);
    hd_pipeline_destroy(pipeline);
}

static void law_8_only_marks(void)
{
    static const uint32_t homes[] = {0};
    static const struct {
        const char *text;
        uint32_t is_ascending;
    } rows[] = {
        {"0F0 0F1 0B0 0B1", 1},         {"0F0 0F1 0B1 0B0", 0},
        {"0F0 0F1 0I0 0I1 0W0 0W1", 1}, {"0F0 0F1 0I0 0I1 0W1 0W0", 0},
        {"0F0 0F1 0I1 0I0 0W0 0W1", 0}, {"0F0 0F1 0I0 0B1 0W0", 0},
        {"0F1 0F0 0B0 0B1", 1},
    };
    for (uint32_t i = 0; i < HD_CHECK_COUNT(rows); i++) {
        struct hd_pipeline_source source;
        struct hd_pipeline *pipeline = NULL;
        struct hd_problem problem = {0};
        hd_schedule_parse(rows[i].text, 1, 2, homes, &source);
        CU_ASSERT_EQUAL_FATAL(hd_pipeline_from_actions(&source, &pipeline, &problem), HD_OK);
        CU_ASSERT_EQUAL(pipeline->is_ascending, rows[i].is_ascending);
        hd_pipeline_destroy(pipeline);
    }
}

static const struct hd_check checks[] = {
    {"a dropped, doubled or moved action breaks its law",
     a_dropped_doubled_or_moved_action_breaks_its_law},
    {"an adjacent swap gets the verdict of the executor",
     an_adjacent_swap_gets_the_verdict_of_the_executor},
    {"verdicts name law, place and action", verdicts_name_law_place_and_action},
    {"a warm-up may be too short", a_warm_up_may_be_too_short},
    {"law 8 only marks", law_8_only_marks},
};

int main(void)
{
    return hd_check_main("laws", checks, HD_CHECK_COUNT(checks));
}
