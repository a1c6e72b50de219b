/*
 * tests/test_golden.c - plans against tables that other systems made.
 *
 * A few tables lie in tests/golden/schedules; where ../shared/golden stands beside the source
 * tree, everything in it is compared as well.
 */
#include "base/memory.h"
#include "plan/csv.h"
#include "report/timeline.h"
#include "support/check.h"
#include "support/schedule_harness.h"

#include <cJSON.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 1024, COLUMN_MAX = 32 };

/* The columns of olmo/summary.csv. */
enum {
    SCHEDULE,
    RANKS,
    STAGES_PER_RANK,
    MICROBATCHES,
    TICKS,
    TOTAL_TICKS,
    EMPTY_TICKS,
    BUBBLE,
    COPIES,
    RETENTION,
    LOSS_RANK,
    LOCAL,
    HIDDEN,
    EXPOSED,
    VALID = 18,
    ASAP_TICKS = 20,
    SUPPORTED = 21,
    FILE_NAME = 22,
    SUMMARY_COLUMNS
};

struct row {
    char line[LINE_BYTES];
    char *cells[COLUMN_MAX];
    uint32_t count;
};

static int has_shared(void)
{
    const int has = access(hd_check_source("../shared/golden/olmo/summary.csv"), R_OK) == 0;
    if (!has) {
        printf("(../shared/golden is not here: only tests/golden) ");
    }
    return has;
}

static int read_row(FILE *stream, struct row *row)
{
    row->count = 0;
    if (fgets(row->line, sizeof row->line, stream) == NULL) {
        return 0;
    }
    row->line[strcspn(row->line, "\r\n")] = '\0';
    for (char *rest = row->line; rest != NULL && row->count < COLUMN_MAX;) {
        row->cells[row->count++] = strsep(&rest, ",");
    }
    return 1;
}

static uint32_t number(const char *text)
{
    return (uint32_t)strtoul(text, NULL, 10);
}

/* How many entries of "8;8;7" differ from `values`, a wrong length included. */
static uint32_t differences(const char *list, const uint32_t *values, uint32_t count)
{
    uint32_t wrong = 0;
    const char *at = list;
    for (uint32_t i = 0; i < count; i++) {
        char *end = NULL;
        wrong += strtoul(at, &end, 10) != values[i] || end == at;
        at = *end == ';' ? end + 1 : end;
    }
    return wrong + (*at != '\0');
}

/* What our schedule is called, and how much it pulls ahead. */
static struct hd_schedule_case case_of(const struct row *row)
{
    static const struct {
        const char *theirs, *ours, *options;
    } names[] = {
        {"interleaved_1f1b", "interleaved_1f1b", NULL},
        {"1f1b_v", "1f1b_v", NULL},
        {"1f1b_v_pull1", "1f1b_v", "pull_ahead=1"},
        {"1f1b_v_pull2", "1f1b_v", "pull_ahead=2"},
        {"1f1b_v_pull_r0_r2_r3", "1f1b_v", "pull_ahead=1,0,1,1"},
    };
    struct hd_schedule_case wanted = {
        .rank_count = number(row->cells[RANKS]),
        .stages_per_rank = number(row->cells[STAGES_PER_RANK]),
        .microbatch_count = number(row->cells[MICROBATCHES]),
    };
    for (uint32_t i = 0; i < HD_CHECK_COUNT(names); i++) {
        if (strcmp(names[i].theirs, row->cells[SCHEDULE]) == 0) {
            wanted.schedule = names[i].ours;
            wanted.options = names[i].options;
        }
    }
    return wanted;
}

/* Lines "rank,slot,kind,stage,microbatch" that are not the next action of their rank, at its
   tick. */
static uint32_t count_strangers(const struct hd_pipeline *pipeline, const double *start,
                                const char *path)
{
    FILE *stream = fopen(path, "r");
    struct row row;
    uint64_t index = 0;
    uint32_t wrong = 0;

    if (stream == NULL || !read_row(stream, &row)) {
        printf("%s is not readable ", path);
        return 1;
    }
    for (; read_row(stream, &row); index++) {
        if (index >= pipeline->action_count) {
            wrong++;
            continue;
        }
        const struct hd_action *action = &pipeline->actions[index];
        wrong += hd_pipeline_rank_of(pipeline, index) != number(row.cells[0]) ||
                 (uint32_t)start[index] != number(row.cells[1]) || action->kind != *row.cells[2] ||
                 action->stage != number(row.cells[3]) ||
                 action->microbatch != number(row.cells[4]);
    }
    fclose(stream);
    return wrong + (index != pipeline->action_count);
}

/* One row of the summary against our plan; 0: equal in all. */
static uint32_t compare_olmo(const struct row *row, const char *folder)
{
    const struct hd_schedule_case wanted = case_of(row);
    struct hd_pipeline *pipeline = hd_schedule_must_plan(&wanted);
    struct hd_timeline *drawn = NULL;
    struct hd_problem problem = {0};
    char path[LINE_BYTES];
    uint32_t wrong = 0;

    if (hd_timeline_create(pipeline, HD_TIMELINE_DRAWN, NULL, &drawn, &problem) != HD_OK) {
        printf("%s: %s ", row->cells[FILE_NAME], problem.message);
        hd_pipeline_destroy(pipeline);
        return 1;
    }
    snprintf(path, sizeof path, "%s/%s", folder, row->cells[FILE_NAME]);
    wrong += count_strangers(pipeline, drawn->start, path);
    wrong += (uint32_t)drawn->length != number(row->cells[TICKS]);
    wrong += (uint32_t)drawn->total != number(row->cells[TOTAL_TICKS]);
    wrong += (uint32_t)drawn->empty != number(row->cells[EMPTY_TICKS]);
    wrong += drawn->bubble - strtod(row->cells[BUBBLE], NULL) > 1e-9;
    wrong += strtod(row->cells[BUBBLE], NULL) - drawn->bubble > 1e-9;
    wrong += differences(row->cells[COPIES], pipeline->peak_copies, pipeline->rank_count);
    wrong += differences(row->cells[RETENTION], pipeline->retention, pipeline->stage_count);
    wrong += pipeline->loss_ranks[0] != number(row->cells[LOSS_RANK]);
    wrong += drawn->handoffs.local != number(row->cells[LOCAL]);
    wrong += drawn->handoffs.hidden != number(row->cells[HIDDEN]);
    wrong += drawn->handoffs.exposed != number(row->cells[EXPOSED]);
    wrong += pipeline->asap_ticks != number(row->cells[ASAP_TICKS]);
    if (wrong > 0) {
        printf("%s: %u differences ", row->cells[FILE_NAME], wrong);
    }
    hd_timeline_destroy(drawn);
    hd_pipeline_destroy(pipeline);
    return wrong;
}

/* All rows of summary.csv in the folder `name` that are legal; how many, and how many differ. */
static uint32_t compare_summary(const char *name, uint32_t *different)
{
    char folder[LINE_BYTES / 2];
    char path[LINE_BYTES];
    struct row row;
    uint32_t compared = 0;

    snprintf(folder, sizeof folder, "%s", hd_check_source(name));
    snprintf(path, sizeof path, "%s/summary.csv", folder);
    FILE *stream = fopen(path, "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    CU_ASSERT_FATAL(read_row(stream, &row) && row.count == SUMMARY_COLUMNS);
    while (read_row(stream, &row)) {
        if (number(row.cells[VALID]) == 1) {
            *different += compare_olmo(&row, folder) > 0;
            compared++;
        }
    }
    fclose(stream);
    return compared;
}

static void test_olmo_few(void)
{
    uint32_t different = 0;
    CU_ASSERT_EQUAL(compare_summary("tests/golden/schedules/olmo", &different), 12);
    CU_ASSERT_EQUAL(different, 0);
}

static void test_olmo_all(void)
{
    uint32_t different = 0;
    if (has_shared()) {
        CU_ASSERT_EQUAL(compare_summary("../shared/golden/olmo", &different), 315);
        CU_ASSERT_EQUAL(different, 0);
    }
}

/* errors.csv: shapes that the origin refuses, or gives a table that breaks a dependency. */
static void test_olmo_refused(void)
{
    struct row row;
    uint32_t planned = 0;

    if (!has_shared()) {
        return;
    }
    FILE *stream = fopen(hd_check_source("../shared/golden/olmo/errors.csv"), "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    CU_ASSERT_FATAL(read_row(stream, &row));
    while (read_row(stream, &row)) {
        const struct hd_schedule_case wanted = case_of(&row);
        if (wanted.schedule == NULL || strcmp(wanted.schedule, "1f1b_v") == 0) {
            continue;
        }
        struct hd_pipeline *pipeline = hd_schedule_must_plan(&wanted);
        if (wanted.microbatch_count >= wanted.rank_count) {
            CU_ASSERT_EQUAL(pipeline->asap_ticks,
                            3 * wanted.stages_per_rank * wanted.microbatch_count +
                                3 * (wanted.rank_count - 1));
        }
        hd_pipeline_destroy(pipeline);
        planned++;
    }
    fclose(stream);
    CU_ASSERT(planned > 80);
}

/* Reads a table; NULL with the problem filled. */
static struct hd_pipeline *read_table(const char *path, struct hd_problem *problem)
{
    struct hd_pipeline_source source = {0};
    struct hd_pipeline *pipeline = NULL;

    if (hd_csv_read(path, &source, problem) != HD_OK ||
        hd_pipeline_from_actions(&source, &pipeline, problem) != HD_OK) {
        return NULL;
    }
    return pipeline;
}

/* The peers' names for what we have too. */
static const struct {
    const char *theirs, *ours;
    uint32_t whole_rounds_only; /* equal where P divides m */
} counterparts[] = {
    {"GPipe", "gpipe", 0},
    {"1F1B", "1f1b", 0},
    {"DeepSpeed1F1B", "1f1b", 0},
    {"Sail1F1B", "1f1b", 0},
    {"Interleaved1F1B", "interleaved_1f1b", 0},
    {"MegatronInterleaved", "interleaved_1f1b", 1},
    {"SailGroupInterleavedMerged", "interleaved_lean", 1},
    {"Sail1F1BV", "1f1b_v", 0},
};

/* "GPipe_P4_V1_m5.csv", "MegatronInterleaved_P4_V2_m8_G4.csv": name and shape; 0: no such name. */
static int parse_name(const char *file, char name[64], struct hd_schedule_case *shape)
{
    uint32_t group = 0;
    int length = 0;
    const char *rest = strstr(file, "_P");

    *shape = (struct hd_schedule_case){0};
    if (rest == NULL || rest - file > 63 ||
        sscanf(rest, "_P%u_V%u_m%u%n", &shape->rank_count, &shape->stages_per_rank,
               &shape->microbatch_count, &length) != 3) {
        return 0;
    }
    snprintf(name, 64, "%.*s", (int)(rest - file), file);
    rest += length;
    if (sscanf(rest, "_G%u%n", &group, &length) == 1) {
        rest += length;
        if (group != shape->rank_count) {
            return 0;
        }
    }
    for (uint32_t i = 0; i < HD_CHECK_COUNT(counterparts); i++) {
        if (strcmp(name, counterparts[i].theirs) == 0) {
            shape->schedule = counterparts[i].ours;
            if (counterparts[i].whole_rounds_only &&
                shape->microbatch_count % shape->rank_count != 0) {
                shape->schedule = NULL;
            }
        }
    }
    return strcmp(rest, ".csv") == 0;
}

static uint32_t is_same_order(const struct hd_pipeline *left, const struct hd_pipeline *right)
{
    if (left->action_count != right->action_count || left->rank_count != right->rank_count ||
        memcmp(left->stage_rank, right->stage_rank, left->stage_count * sizeof(uint32_t)) != 0) {
        return 0;
    }
    for (uint64_t i = 0; i < left->action_count; i++) {
        const struct hd_action *one = &left->actions[i];
        const struct hd_action *other = &right->actions[i];
        if (one->kind != other->kind || one->stage != other->stage ||
            one->microbatch != other->microbatch) {
            return 0;
        }
    }
    return 1;
}

struct tally {
    uint32_t read, equal, different, descending;
};

static void compare_peer(const char *folder, const char *file, struct tally *tally)
{
    struct hd_schedule_case shape;
    struct hd_problem problem = {0};
    char name[64];
    char path[LINE_BYTES];

    if (!parse_name(file, name, &shape)) {
        return;
    }
    snprintf(path, sizeof path, "%s/%s", folder, file);
    struct hd_pipeline *theirs = read_table(path, &problem);
    if (theirs == NULL) {
        printf("%s: %s ", file, problem.message);
        tally->different++;
        return;
    }
    tally->read++;
    tally->descending += strcmp(name, "LoopedBFS") == 0 && !theirs->is_ascending;
    if (shape.schedule != NULL) {
        struct hd_pipeline *ours = hd_schedule_must_plan(&shape);
        const uint32_t is_equal = is_same_order(ours, theirs);
        tally->equal += is_equal;
        tally->different += !is_equal;
        if (!is_equal) {
            printf("%s differs ", file);
        }
        hd_pipeline_destroy(ours);
    }
    hd_pipeline_destroy(theirs);
}

static struct tally compare_peers(const char *name)
{
    struct tally tally = {0};
    char folder[LINE_BYTES / 2];

    snprintf(folder, sizeof folder, "%s", hd_check_source(name));
    DIR *directory = opendir(folder);

    CU_ASSERT_PTR_NOT_NULL_FATAL(directory);
    for (const struct dirent *entry = readdir(directory); entry != NULL;
         entry = readdir(directory)) {
        compare_peer(folder, entry->d_name, &tally);
    }
    closedir(directory);
    return tally;
}

static void test_peers_few(void)
{
    const struct tally tally = compare_peers("tests/golden/schedules/peers");
    CU_ASSERT_EQUAL(tally.read, 9);
    CU_ASSERT_EQUAL(tally.equal, 6);
    CU_ASSERT_EQUAL(tally.different, 0);
    CU_ASSERT_EQUAL(tally.descending, 1);
}

static void test_peers_all(void)
{
    if (has_shared()) {
        const struct tally tally = compare_peers("../shared/golden/peers");
        CU_ASSERT_EQUAL(tally.equal, 180);
        CU_ASSERT_EQUAL(tally.different, 0);
        CU_ASSERT_EQUAL(tally.descending, 63);
    }
}

/* The peers' length and copies, as an independent simulation wrote them down, whatever the
 * schedule. */
static void test_peers_numbers(void)
{
    char path[LINE_BYTES];
    uint32_t compared = 0;

    if (!has_shared()) {
        return;
    }
    FILE *stream = fopen(hd_check_source("../shared/golden/peers/MANIFEST.json"), "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    char *text = hd_memory_take(1u << 22, 64, "test");
    CU_ASSERT_FATAL(fread(text, 1, (1u << 22) - 1, stream) > 0);
    fclose(stream);
    cJSON *manifest = cJSON_Parse(text);
    const cJSON *entry = NULL;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(manifest, "schedules"))
    {
        const char *file = cJSON_GetObjectItem(entry, "file")->valuestring;
        const cJSON *peaks = cJSON_GetObjectItem(entry, "peak_until_W");
        struct hd_problem problem = {0};
        if (strstr(file, "bidir") != NULL || peaks == NULL) {
            continue;
        }
        snprintf(path, sizeof path, "../shared/golden/peers/%s", file);
        struct hd_pipeline *pipeline = read_table(hd_check_source(path), &problem);
        CU_ASSERT_PTR_NOT_NULL_FATAL(pipeline);
        /* There a pair starts once both of its inputs are there; here its halves are two
           actions. */
        const uint32_t ticks = (uint32_t)cJSON_GetObjectItem(entry, "makespan")->valueint;
        CU_ASSERT(pipeline->asap_ticks <= ticks);
        CU_ASSERT(pipeline->asap_ticks == ticks || strstr(file, "DualPipeV") != NULL);
        for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
            const int copies = cJSON_GetArrayItem(peaks, (int)rank)->valueint;
            CU_ASSERT_EQUAL((int)pipeline->peak_copies[rank], copies);
        }
        hd_pipeline_destroy(pipeline);
        compared++;
    }
    cJSON_Delete(manifest);
    hd_memory_give(text);
    CU_ASSERT(compared > 200);
}

static const struct {
    const char *file, *why;
    uint32_t law;
    int32_t exit_code;
    const char *words;
} refused[] = {
    {"raw_torch_bug_1F1B_P2_V1_m2.csv", "the last rank never runs F0", 1, HD_EXIT_PLAN, ""},
    {"DeepSeekDualPipe_P2_bidir_m4.csv", "two chains of stages, which a table cannot say", 4,
     HD_EXIT_PLAN, ""},
    {"GPipe_P2_V1_m2_comms.csv", "SEND and RECV cells", 0, HD_EXIT_USAGE, "SEND_F"},
};

static void test_refused(void)
{
    char path[LINE_BYTES];
    for (uint32_t i = 0; i < HD_CHECK_COUNT(refused); i++) {
        struct hd_problem problem = {0};
        snprintf(path, sizeof path, "tests/golden/schedules/refused/%s", refused[i].file);
        struct hd_pipeline *pipeline = read_table(hd_check_source(path), &problem);
        CU_ASSERT_PTR_NULL(pipeline);
        CU_ASSERT_EQUAL(problem.law, refused[i].law);
        CU_ASSERT_EQUAL(problem.exit_code, refused[i].exit_code);
        CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, refused[i].words));
        hd_pipeline_destroy(pipeline);
    }
}

static const struct hd_check checks[] = {
    {"twelve tables of the origin system: order, ticks, copies, retention, handoffs",
     test_olmo_few},
    {"all 315 legal tables of the origin system", test_olmo_all},
    {"what the origin system refuses or gets wrong is planned legally", test_olmo_refused},
    {"six tables of peers are ours, three more are accepted", test_peers_few},
    {"all tables of peers: 180 are ours, the others are accepted by the laws", test_peers_all},
    {"lengths and copies of all tables of peers", test_peers_numbers},
    {"a broken, an inexpressible and a lowered table are refused", test_refused},
};

int main(void)
{
    return hd_check_main("golden", checks, HD_CHECK_COUNT(checks));
}
