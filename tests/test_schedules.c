/*
 * tests/test_schedules.c - the schedule plugins: laws over a sweep, closed forms, pictures.
 */
#include "support/check.h"
#include "support/schedule_harness.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MOST = 9, STAGES_MOST = 4, MICROBATCHES_MOST = 20, LINE_BYTES = 512 };

static uint32_t min_of(uint32_t one, uint32_t other)
{
    return one < other ? one : other;
}

/* The first group of an interleaved schedule. */
static uint32_t first_group(const struct hd_schedule_case *shape)
{
    const uint32_t groups = shape->microbatch_count / shape->rank_count;
    return groups > 1 ? (shape->microbatch_count + groups - 1) / groups : shape->microbatch_count;
}

static uint32_t copies_of_gpipe(const struct hd_schedule_case *shape, uint32_t rank)
{
    (void)rank;
    return shape->microbatch_count;
}

static uint32_t copies_of_1f1b(const struct hd_schedule_case *shape, uint32_t rank)
{
    return min_of(shape->microbatch_count, shape->rank_count - rank);
}

static uint32_t copies_of_interleaved(const struct hd_schedule_case *shape, uint32_t rank)
{
    return min_of(shape->stages_per_rank * shape->microbatch_count,
                  (shape->stages_per_rank - 1) * first_group(shape) +
                      2 * (shape->rank_count - 1 - rank) + 1);
}

static uint32_t copies_of_lean(const struct hd_schedule_case *shape, uint32_t rank)
{
    return min_of(shape->stages_per_rank * shape->microbatch_count,
                  (shape->stages_per_rank - 1) * first_group(shape) +
                      (shape->rank_count - 1 - rank) + 1);
}

/* Every schedule, the stages per rank that it accepts, and its copies; NULL: a bound, see below. */
static const struct row {
    const char *schedule;
    uint32_t least, most;
    uint32_t (*copies)(const struct hd_schedule_case *shape, uint32_t rank);
    const char *refusal; /* of other stages per rank: the remedy that it names */
} rows[] = {
    {"gpipe", 1, 1, copies_of_gpipe, "interleaved_1f1b"},
    {"1f1b", 1, 1, copies_of_1f1b, "interleaved_1f1b"},
    {"interleaved_1f1b", 1, STAGES_MOST, copies_of_interleaved, NULL},
    {"interleaved_lean", 1, STAGES_MOST, copies_of_lean, NULL},
    {"1f1b_v", 2, 2, NULL, "stages_per_rank to 2"},
};

/* H_s and the copies again, counted from the actions alone; how many of both differ. */
static uint32_t recount(const struct hd_pipeline *pipeline)
{
    uint32_t wrong = 0;
    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        uint32_t live[RANKS_MOST * STAGES_MOST] = {0};
        uint32_t most[RANKS_MOST * STAGES_MOST] = {0};
        uint32_t copies = 0;
        uint32_t copies_most = 0;
        for (uint64_t i = pipeline->rank_begin[rank]; i < pipeline->rank_begin[rank + 1]; i++) {
            const struct hd_action *action = &pipeline->actions[i];
            const uint32_t change = action->kind == HD_FORWARD ? 1 : UINT32_MAX;
            live[action->stage] += change;
            copies += change;
            if (live[action->stage] > most[action->stage]) {
                most[action->stage] = live[action->stage];
            }
            copies_most = copies > copies_most ? copies : copies_most;
        }
        wrong += pipeline->peak_copies[rank] != copies_most;
        for (uint32_t stage = 0; stage < pipeline->stage_count; stage++) {
            wrong +=
                pipeline->stage_rank[stage] == rank && pipeline->retention[stage] != most[stage];
        }
    }
    return wrong;
}

/* On every rank the same, 2 ceil((2P + 1) / 3) once m is large enough, never more. */
static uint32_t wrong_copies_of_v(const struct hd_pipeline *pipeline)
{
    const uint32_t most = 2 * ((2 * pipeline->rank_count + 1 + 2) / 3);
    const int is_steady = pipeline->microbatch_count >= 2 * pipeline->rank_count;
    uint32_t wrong = 0;
    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        wrong += pipeline->peak_copies[rank] > most;
        wrong += is_steady && pipeline->peak_copies[rank] != most;
    }
    return wrong;
}

/* The laws are judged by must_plan; what remains are the closed forms of one shape. */
static uint32_t wrong_forms(const struct row *row, const struct hd_schedule_case *shape)
{
    struct hd_pipeline *pipeline = hd_schedule_must_plan(shape);
    const uint32_t passes = shape->stages_per_rank * shape->microbatch_count;
    const uint32_t straight = 3 * passes + 3 * (shape->rank_count - 1);
    uint32_t wrong = recount(pipeline);

    wrong += !pipeline->is_ascending;
    wrong += pipeline->action_count != 2 * (uint64_t)passes * shape->rank_count;
    wrong += pipeline->asap_ticks < straight;
    for (uint32_t rank = 0; row->copies != NULL && rank < shape->rank_count; rank++) {
        wrong += pipeline->peak_copies[rank] != row->copies(shape, rank);
    }
    if (row->copies == NULL) {
        wrong += wrong_copies_of_v(pipeline);
    } else if (row->most == 1 || shape->microbatch_count >= shape->rank_count) {
        wrong += pipeline->asap_ticks != straight;
    }
    if (wrong > 0) {
        printf("%s P=%u V=%u m=%u: %u wrong ", row->schedule, shape->rank_count,
               shape->stages_per_rank, shape->microbatch_count, wrong);
    }
    hd_pipeline_destroy(pipeline);
    return wrong;
}

static void test_sweep(void)
{
    uint32_t wrong = 0;
    uint32_t shapes = 0;
    for (uint32_t i = 0; i < HD_CHECK_COUNT(rows); i++) {
        struct hd_schedule_case shape = {.schedule = rows[i].schedule};
        for (shape.rank_count = 1; shape.rank_count <= RANKS_MOST; shape.rank_count++) {
            for (shape.stages_per_rank = rows[i].least; shape.stages_per_rank <= rows[i].most;
                 shape.stages_per_rank++) {
                for (shape.microbatch_count = 1; shape.microbatch_count <= MICROBATCHES_MOST;
                     shape.microbatch_count++, shapes++) {
                    wrong += wrong_forms(&rows[i], &shape) > 0;
                }
            }
        }
    }
    CU_ASSERT_EQUAL(shapes, 3 * 180 + 2 * 720);
    CU_ASSERT_EQUAL(wrong, 0);
}

/* A forward-only plan has every forward once, and takes V m + P - 1 ticks where m >= P. */
static void test_forward_only(void)
{
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < HD_CHECK_COUNT(rows); i++) {
        struct hd_schedule_case shape = {.schedule = rows[i].schedule,
                                         .stages_per_rank = rows[i].most == 1 ? 1 : 2,
                                         .flags = HD_FORWARD_ONLY};
        for (shape.rank_count = 1; shape.rank_count <= 5; shape.rank_count++) {
            for (shape.microbatch_count = 1; shape.microbatch_count <= 11;
                 shape.microbatch_count++) {
                struct hd_pipeline *pipeline = hd_schedule_must_plan(&shape);
                const uint32_t passes = shape.stages_per_rank * shape.microbatch_count;
                wrong += pipeline->action_count != (uint64_t)passes * shape.rank_count;
                if (shape.microbatch_count >= shape.rank_count && rows[i].copies != NULL) {
                    wrong += pipeline->asap_ticks != passes + shape.rank_count - 1;
                }
                /* The V's last stage is on rank 0: its first output comes after 2P ticks. */
                if (rows[i].copies == NULL) {
                    wrong += pipeline->asap_ticks !=
                             2 * shape.rank_count + 2 * (shape.microbatch_count - 1);
                }
                hd_pipeline_destroy(pipeline);
            }
        }
    }
    CU_ASSERT_EQUAL(wrong, 0);
}

static void test_refusals(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(rows); i++) {
        for (uint32_t stages = 1; stages <= STAGES_MOST; stages++) {
            const struct hd_schedule_case shape = {rows[i].schedule, 4, stages, 8, 0, NULL};
            struct hd_pipeline *pipeline = NULL;
            struct hd_problem problem = {0};
            const hd_status status = hd_schedule_plan(&shape, &pipeline, &problem);
            const int is_served = stages >= rows[i].least && stages <= rows[i].most;
            CU_ASSERT_EQUAL(status == HD_OK, is_served);
            if (!is_served) {
                char numbers[64];
                snprintf(numbers, sizeof numbers, "not %u stages on 4 ranks", 4 * stages);
                CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_PLAN);
                CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, numbers));
                CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, rows[i].refusal));
            }
            hd_pipeline_destroy(pipeline);
        }
    }
}

static const struct {
    const char *options;
    uint32_t copies[4]; /* 0: refused */
    uint32_t ticks;
    const char *words; /* of the refusal */
} pulls[] = {
    {"pull_ahead=0", {6, 6, 6, 6}, 111, NULL},
    {"pull_ahead=1", {7, 7, 7, 7}, 111, NULL},
    {"pull_ahead=1,0,1,1", {7, 6, 7, 7}, 111, NULL},
    {"pull_ahead=2", {8, 8, 8, 8}, 109, NULL},
    {"pull_ahead=1,0", {0}, 0, "has 2 numbers, but the pipeline has 4 ranks"},
    {"pull_ahead=-1", {0}, 0, "\"-1\" must be a number from 0"},
    {"pull_ahead=1,,1,1", {0}, 0, "or a list of them"},
    {"pull_ahead=1x", {0}, 0, "or a list of them"},
    {"pull_ahead=", {0}, 0, "or a list of them"},
    {"pull_ahead=99999999999", {0}, 0, "or a list of them"},
};

static void test_pull_ahead(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(pulls); i++) {
        const struct hd_schedule_case shape = {"1f1b_v", 4, 2, 16, 0, pulls[i].options};
        struct hd_pipeline *pipeline = NULL;
        struct hd_problem problem = {0};
        const hd_status status = hd_schedule_plan(&shape, &pipeline, &problem);
        CU_ASSERT_EQUAL(status == HD_OK, pulls[i].words == NULL);
        if (status == HD_OK) {
            CU_ASSERT_EQUAL(pipeline->asap_ticks, pulls[i].ticks);
            CU_ASSERT_EQUAL(memcmp(pipeline->peak_copies, pulls[i].copies, sizeof pulls[i].copies),
                            0);
        } else {
            CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, pulls[i].words));
        }
        hd_pipeline_destroy(pipeline);
    }
}

/* The cell of `rank` at `tick` as the pictures write it: "0F1", "--" or "."; a picture without
   stages ("F1") leaves the number of the stage out. */
static void draw_cell(const struct hd_pipeline *pipeline, uint32_t rank, uint32_t tick,
                      uint32_t has_stages, char cell[32])
{
    snprintf(cell, 32, ".");
    for (uint64_t i = pipeline->rank_begin[rank]; i < pipeline->rank_begin[rank + 1]; i++) {
        const struct hd_action *action = &pipeline->actions[i];
        if (pipeline->asap_start[i] == tick) {
            hd_action_text(action, cell);
            if (!has_stages) {
                snprintf(cell, 32, "%c%u", action->kind, action->microbatch);
            }
        } else if (action->kind == HD_BACKWARD && pipeline->asap_start[i] + 1 == tick) {
            snprintf(cell, 32, "--");
        }
    }
}

/* Compares the lines " *   rank 0  0F0 ..." of a source file with the plan; folded parts go on. */
static void check_picture(const char *file, const struct hd_schedule_case *shape)
{
    struct hd_pipeline *pipeline = hd_schedule_must_plan(shape);
    uint32_t ticks[RANKS_MOST] = {0};
    char line[LINE_BYTES];
    uint32_t wrong = 0;

    FILE *stream = fopen(hd_check_source(file), "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    while (fgets(line, sizeof line, stream) != NULL && strncmp(line, " */", 3) != 0) {
        uint32_t rank = 0;
        int begin = 0;
        if (sscanf(line, " *   rank %u %n", &rank, &begin) != 1 || rank >= shape->rank_count ||
            strncmp(line, " *   rank ", 10) != 0) {
            continue;
        }
        char *rest = NULL;
        for (char *cell = strtok_r(line + begin, " \n", &rest); cell != NULL;
             cell = strtok_r(NULL, " \n", &rest)) {
            char expected[32];
            draw_cell(pipeline, rank, ticks[rank]++, shape->stages_per_rank > 1, expected);
            wrong += strcmp(cell, expected) != 0;
        }
    }
    fclose(stream);
    for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
        CU_ASSERT_EQUAL(ticks[rank], pipeline->asap_ticks);
    }
    CU_ASSERT_EQUAL(wrong, 0);
    hd_pipeline_destroy(pipeline);
}

static void test_pictures(void)
{
    static const struct hd_schedule_case shapes[] = {
        {"gpipe", 4, 1, 5, 0, NULL},
        {"1f1b", 4, 1, 5, 0, NULL},
        {"interleaved_1f1b", 2, 2, 4, 0, NULL},
        {"interleaved_lean", 2, 2, 4, 0, NULL},
        {"1f1b_v", 3, 2, 4, 0, NULL},
    };
    for (uint32_t i = 0; i < HD_CHECK_COUNT(shapes); i++) {
        char file[LINE_BYTES];
        snprintf(file, sizeof file, "plugins/schedules/%s.c", shapes[i].schedule);
        check_picture(file, &shapes[i]);
    }
}

/* Asked with no room, a plan counts and writes nothing; asked twice, it answers the same. */
static void test_counting(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(rows); i++) {
        const struct hd_schedule_ops *ops = hd_schedule_load(rows[i].schedule)->ops;
        const struct hd_shape shape = {.size = sizeof shape,
                                       .rank_count = 1,
                                       .stage_count = rows[i].least,
                                       .microbatch_count = 3};
        struct hd_action actions[16] = {{0}};
        struct hd_plan plan = {.size = sizeof plan};
        struct hd_plan *plans[] = {&plan};
        void *scratch = calloc(1, ops->scratch_bytes ? ops->scratch_bytes(&shape) : 1);

        CU_ASSERT_PTR_NOT_NULL_FATAL(scratch);
        ops->plan(&shape, scratch, plans);
        CU_ASSERT_EQUAL(plan.count, 6 * (uint64_t)rows[i].least);
        plan = (struct hd_plan){.size = sizeof plan, .capacity = 4, .actions = actions};
        ops->plan(&shape, scratch, plans);
        CU_ASSERT_EQUAL(plan.count, 6 * (uint64_t)rows[i].least);
        CU_ASSERT_EQUAL(actions[0].kind, HD_FORWARD);
        CU_ASSERT_EQUAL(actions[4].kind, 0);
        free(scratch);
    }
}

static const struct hd_check checks[] = {
    {"P <= 9, V <= 4, m <= 20: laws, lengths and copies of every schedule", test_sweep},
    {"forward-only plans are whole and as short as they can be", test_forward_only},
    {"a wrong number of stages is refused with numbers and remedy", test_refusals},
    {"1f1b_v pulls ahead as the golden tables say, and refuses nonsense", test_pull_ahead},
    {"the picture in each source file is the asap timeline", test_pictures},
    {"a plan past its capacity counts and writes nothing", test_counting},
};

int main(void)
{
    return hd_check_main("schedules", checks, HD_CHECK_COUNT(checks));
}
