/*
 * tests/test_csv.c - tables in PyTorch's compute-only form: what is read, what is refused and
 * where, and that what was read is written again byte for byte.
 */
#include "base/memory.h"
#include "plan/csv.h"
#include "report/csv_write.h"
#include "support/check.h"
#include "support/schedule_harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, TABLE_BYTES_MAX = 1 << 20 };

/* Reads `text` from a file of its own; NULL with the problem filled. */
static struct hd_pipeline *read_text(const char *text, uint64_t bytes, struct hd_problem *problem)
{
    char path[] = "/tmp/heddle-csv-XXXXXX";
    struct hd_pipeline_source source = {0};
    struct hd_pipeline *pipeline = NULL;

    const int file = mkstemp(path);
    CU_ASSERT_FATAL(file >= 0 && write(file, text, bytes) == (ssize_t)bytes);
    close(file);
    if (hd_csv_read(path, &source, problem) == HD_OK) {
        hd_pipeline_from_actions(&source, &pipeline, problem);
    }
    unlink(path);
    return pipeline;
}

static uint64_t write_text(const struct hd_pipeline *pipeline, char *text, uint64_t capacity)
{
    struct hd_problem problem = {0};
    FILE *stream = fmemopen(text, capacity, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    CU_ASSERT_EQUAL(hd_csv_write(pipeline, stream, &problem), HD_OK);
    const long bytes = ftell(stream);
    fclose(stream);
    return (uint64_t)bytes;
}

static const struct {
    const char *name, *text;
    uint32_t ranks, stages, microbatches;
    const char *written; /* NULL: as it stands */
} read_rows[] = {
    {"CRLF, as csv.writer ends lines", "0F0,0B0\r\n1F0,1B0\r\n", 2, 2, 1, NULL},
    {"LF, and no end of line at the end", "0F0,0B0\n1F0,1B0", 2, 2, 1, "0F0,0B0\r\n1F0,1B0\r\n"},
    {"a byte order mark, spaces, blank lines at the end", "\xef\xbb\xbf 0F0 ,\t0B0\n1F0,1B0\n\n\n",
     2, 2, 1, "0F0,0B0\r\n1F0,1B0\r\n"},
    {"blank cells are idle ticks, rows are ragged", "0F0,,,,0B0\r\n,1F0,1B0\r\n", 2, 2, 1, NULL},
    {"quoted blanks are idle ticks", "0F0,\"\",\"\",\"\",0B0\r\n\"\",1F0,1B0\r\n", 2, 2, 1,
     "0F0,,,,0B0\r\n,1F0,1B0\r\n"},
    {"blanks at a row's end are left out", "0F0,0B0,,\r\n,1F0,1B0,\r\n", 2, 2, 1,
     "0F0,0B0\r\n,1F0,1B0\r\n"},
    {"split backwards", "0F0,0I0,0W0\r\n1F0,1I0,1W0\r\n", 2, 2, 1, NULL},
    {"forward-only", "0F0,0F1\r\n1F0,1F1\r\n", 2, 2, 2, NULL},
    {"a pair", "0F0,0F1,0B0,0B1\r\n1F0,1B0,(1F1;1B1)OVERLAP_F_B\r\n", 2, 2, 2, NULL},
    {"a V: a stage's home is its row", "0F0,3F0,3B0,0B0\r\n1F0,2F0,2B0,1B0\r\n", 2, 4, 1, NULL},
};

static void test_read(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(read_rows); i++) {
        struct hd_problem problem = {0};
        char written[256] = "";
        struct hd_pipeline *pipeline =
            read_text(read_rows[i].text, strlen(read_rows[i].text), &problem);
        if (pipeline == NULL) {
            printf("%s: %s: %s ", read_rows[i].name, problem.place, problem.message);
        }
        CU_ASSERT_PTR_NOT_NULL_FATAL(pipeline);
        CU_ASSERT_EQUAL(pipeline->rank_count, read_rows[i].ranks);
        CU_ASSERT_EQUAL(pipeline->stage_count, read_rows[i].stages);
        CU_ASSERT_EQUAL(pipeline->microbatch_count, read_rows[i].microbatches);
        CU_ASSERT_EQUAL(pipeline->is_forward_only, i == 7);
        write_text(pipeline, written, sizeof written);
        CU_ASSERT_STRING_EQUAL(written,
                               read_rows[i].written ? read_rows[i].written : read_rows[i].text);
        hd_pipeline_destroy(pipeline);
    }
}

static const struct {
    const char *name, *text;
    int32_t exit_code;
    uint32_t law;
    const char *place; /* its end */
    const char *words;
} refused[] = {
    {"peers.md 4.5: a junk suffix", "0F0xyz,0B0\r\n1F0,1B0\r\n", HD_EXIT_USAGE, 0,
     "row 1, column 1", "\"0F0xyz\" is not an action"},
    {"peers.md 4.5: forward listed twice", "0F0,0F0,0B0\r\n1F0,1B0\r\n", HD_EXIT_PLAN, 1, "", ""},
    {"peers.md 4.5: backward listed twice", "0F0,0B0,0B0\r\n1F0,1B0\r\n", HD_EXIT_PLAN, 1, "", ""},
    {"peers.md 4.5: microbatch 77 of 4", "0F0,0F77,0B0\r\n1F0,1B0\r\n", HD_EXIT_PLAN, 1, "", ""},
    {"peers.md 4.5: a missing backward behind another's I and W",
     "0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1I0,1W0\r\n", HD_EXIT_PLAN, 1, "", ""},
    {"C17: the cell 0B3 deleted",
     "0F0,0F1,0B0,0F2,0B1,0F3,0B2\r\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\r\n", HD_EXIT_PLAN, 1, "",
     "0"},
    {"SEND", "0F0,0SEND_F0,0B0\r\n1F0,1B0\r\n", HD_EXIT_USAGE, 0, "row 1, column 2", "0SEND_F0"},
    {"RECV", "0F0,0B0\r\n1RECV_B0,1F0,1B0\r\n", HD_EXIT_USAGE, 0, "row 2, column 1", "1RECV_B0"},
    {"UNSHARD", "0UNSHARD,0F0,0B0\r\n", HD_EXIT_USAGE, 0, "row 1, column 1", "0UNSHARD"},
    {"REDUCE_GRAD", "0F0,0B0,0REDUCE_GRAD\r\n", HD_EXIT_USAGE, 0, "row 1, column 3", "REDUCE_GRAD"},
    {"the old dialect", "0F0,0BW0\r\n", HD_EXIT_USAGE, 0, "row 1, column 2", "before 2.6"},
    {"no microbatch", "0F,0B0\r\n", HD_EXIT_USAGE, 0, "row 1, column 1", "\"0F\""},
    {"no stage", "0F0,B0\r\n", HD_EXIT_USAGE, 0, "row 1, column 2", "\"B0\""},
    {"a small letter", "0f0,0B0\r\n", HD_EXIT_USAGE, 0, "row 1, column 1", "\"0f0\""},
    {"a sign", "-1F0,0B0\r\n", HD_EXIT_USAGE, 0, "row 1, column 1", "\"-1F0\""},
    {"a half pair", "(0F0;0B0)OVERLAP\r\n", HD_EXIT_USAGE, 0, "row 1, column 1", "not a pair"},
    {"a pair of junk", "(0F0;0B0x)OVERLAP_F_B\r\n", HD_EXIT_USAGE, 0, "row 1, column 1",
     "not an action"},
    {"stage 16384", "16384F0\r\n", HD_EXIT_USAGE, 0, "row 1, column 1", "beyond stage 16383"},
    {"a stage of 30 digits", "999999999999999999999999999999F0\r\n", HD_EXIT_USAGE, 0,
     "row 1, column 1", "beyond stage"},
    {"microbatch 65536", "0F65536\r\n", HD_EXIT_USAGE, 0, "row 1, column 1", "beyond"},
    {"two cells that ask for 2^30 actions", "16383F65535\r\n", HD_EXIT_USAGE, 0, "", "67108864"},
    {"one cell that asks for an index of 800 MB", "4095F16382\r\n", HD_EXIT_PLAN, 1, "rank 0",
     "the plan has 1 actions, but needs 67104768 forwards"},
    {"a line end too early", "0F0,0B0\r\n\r\n1F0,1B0\r\n", HD_EXIT_USAGE, 0, "row 2", "no action"},
    {"a lone quoted blank", "0F0,0B0\r\n\"\"\r\n1F0,1B0\r\n", HD_EXIT_USAGE, 0, "row 2",
     "no action"},
    {"an empty file", "", HD_EXIT_USAGE, 0, "", "empty"},
    {"a stage on two rows", "0F0,0B1,1F0,1B0\r\n1F1,1B1,0F1,0B0\r\n", HD_EXIT_PLAN, 3, "", ""},
};

static void test_refused(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(refused); i++) {
        struct hd_problem problem = {0};
        struct hd_pipeline *pipeline =
            read_text(refused[i].text, strlen(refused[i].text), &problem);
        const uint64_t place = strlen(problem.place);
        const uint64_t wanted = strlen(refused[i].place);
        const int is_right = pipeline == NULL && problem.exit_code == refused[i].exit_code &&
                             problem.law == refused[i].law && place >= wanted &&
                             strcmp(problem.place + place - wanted, refused[i].place) == 0 &&
                             strstr(problem.message, refused[i].words) != NULL;
        if (!is_right) {
            printf("%s: %d law %u at %s: %s ", refused[i].name, problem.exit_code, problem.law,
                   problem.place, problem.message);
        }
        CU_ASSERT(is_right);
        hd_pipeline_destroy(pipeline);
    }
}

/* A zero byte is no end of a cell: what follows it is not silently dropped. */
static void test_zero_byte(void)
{
    static const char text[] = "0F0\0,0B0\r\n";
    struct hd_problem problem = {0};
    CU_ASSERT_PTR_NULL(read_text(text, sizeof text - 1, &problem));
    CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, "not an action"));
}

static void test_no_file(void)
{
    struct hd_pipeline_source source;
    struct hd_problem problem = {0};
    CU_ASSERT_NOT_EQUAL(hd_csv_read("/nowhere/plan.csv", &source, &problem), HD_OK);
    CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_USAGE);
    CU_ASSERT_STRING_EQUAL(problem.place, "/nowhere/plan.csv");

    problem = (struct hd_problem){0};
    CU_ASSERT_NOT_EQUAL(hd_csv_read("/tmp", &source, &problem), HD_OK);
    CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_USAGE);
}

static uint64_t load(const char *path, char *text)
{
    FILE *stream = fopen(path, "rb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    const uint64_t bytes = fread(text, 1, TABLE_BYTES_MAX - 1, stream);
    fclose(stream);
    text[bytes] = '\0';
    return bytes;
}

/* Drops blank cells at the ends of rows, which a plan does not keep. */
static void drop_trailing(char *text)
{
    char *to = text;
    for (char *from = text; *from != '\0'; from++) {
        while (*from == '\r' && to > text && to[-1] == ',') {
            to--;
        }
        *to++ = *from;
    }
    *to = '\0';
}

/* Every compute-only table of the folder, read and written; how many, and how many changed. */
static uint32_t round_trip(const char *folder, uint32_t *changed)
{
    char *theirs = hd_memory_take(TABLE_BYTES_MAX, 64, "test");
    char *ours = hd_memory_take(TABLE_BYTES_MAX, 64, "test");
    uint32_t count = 0;
    DIR *directory = opendir(folder);

    CU_ASSERT_FATAL(theirs != NULL && ours != NULL && directory != NULL);
    for (const struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        struct hd_pipeline_source source = {0};
        struct hd_pipeline *pipeline = NULL;
        struct hd_problem problem = {0};
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (strstr(entry->d_name, ".csv") == NULL ||
            hd_csv_read(path, &source, &problem) != HD_OK ||
            hd_pipeline_from_actions(&source, &pipeline, &problem) != HD_OK) {
            continue;
        }
        load(path, theirs);
        drop_trailing(theirs);
        memset(ours, 0, TABLE_BYTES_MAX);
        write_text(pipeline, ours, TABLE_BYTES_MAX);
        const uint32_t is_changed = strcmp(ours, theirs) != 0;
        if (is_changed) {
            printf("%s changed ", entry->d_name);
        }
        *changed += is_changed;
        count++;
        hd_pipeline_destroy(pipeline);
    }
    closedir(directory);
    hd_memory_give(theirs);
    hd_memory_give(ours);
    return count;
}

static void test_round_trip(void)
{
    uint32_t changed = 0;
    CU_ASSERT_EQUAL(round_trip(hd_check_source("tests/golden/schedules/peers"), &changed), 9);
    if (access(hd_check_source("../shared/golden/peers"), R_OK) == 0) {
        CU_ASSERT(round_trip(hd_check_source("../shared/golden/peers"), &changed) > 400);
    } else {
        printf("(../shared/golden is not here: only tests/golden) ");
    }
    CU_ASSERT_EQUAL(changed, 0);
}

/* The drawn ticks of interleaved_1f1b survive the file. */
static void test_drawn_ticks(void)
{
    const struct hd_schedule_case shape = {"interleaved_1f1b", 4, 2, 8, 0, NULL};
    struct hd_pipeline *pipeline = hd_schedule_must_plan(&shape);
    struct hd_problem problem = {0};
    char text[4096] = "";
    const uint64_t bytes = write_text(pipeline, text, sizeof text);
    struct hd_pipeline *again = read_text(text, bytes, &problem);

    CU_ASSERT_PTR_NOT_NULL_FATAL(again);
    CU_ASSERT_EQUAL_FATAL(again->action_count, pipeline->action_count);
    CU_ASSERT_EQUAL(memcmp(again->idle_before, pipeline->idle_before,
                           pipeline->action_count * sizeof *pipeline->idle_before),
                    0);
    hd_pipeline_destroy(again);
    hd_pipeline_destroy(pipeline);
}

static const struct hd_check checks[] = {
    {"tables are read, and written as PyTorch writes them", test_read},
    {"what cannot be read is refused with row and column, what breaks a law by its law",
     test_refused},
    {"a zero byte in a cell is refused", test_zero_byte},
    {"a file that is not there, or is a folder, is refused by its path", test_no_file},
    {"the peers' tables survive byte for byte", test_round_trip},
    {"idle ticks survive", test_drawn_ticks},
};

int main(void)
{
    return hd_check_main("csv", checks, HD_CHECK_COUNT(checks));
}
