/*
 * tests/test_plan_command.c - `heddle plan` as a user runs it: the report's numbers, the public
 * cases of planning (tests/cases.md), its tables, sweeps and refusals.
 *
 * An expectation is a list of words KEY=VALUE over the JSON object: a path with dots, a list joined
 * by commas, "#" for the length of a list, "~" for a text that holds the words (blanks are _).
 */
#include "support/check.h"

#include <cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TEXT_BYTES = 1 << 20, WORD_BYTES = 512, COMMAND_BYTES = 8192 };

static char output[TEXT_BYTES];

/* Runs heddle with `words`; its stdout is in `output`; returns the exit code. */
static int run(const char *environment, const char *words)
{
    char command[2 * COMMAND_BYTES];

    snprintf(command, sizeof command, "%s '%s' %s", environment, hd_check_build("bin/heddle"),
             words);
    FILE *stream = popen(command, "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    const size_t bytes = fread(output, 1, sizeof output - 1, stream);
    output[bytes] = '\0';
    const int status = pclose(stream);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const cJSON *find(const cJSON *root, char *path)
{
    char *rest = NULL;
    for (char *name = strtok_r(path, ".", &rest); name != NULL && root != NULL;
         name = strtok_r(NULL, ".", &rest)) {
        root = name[0] >= '0' && name[0] <= '9' ? cJSON_GetArrayItem(root, atoi(name))
                                                : cJSON_GetObjectItem(root, name);
    }
    return root;
}

static int is_value(const cJSON *item, const char *text)
{
    if (cJSON_IsNumber(item)) {
        const double wanted = strtod(text, NULL);
        return fabs(item->valuedouble - wanted) <= 1e-9 * fmax(1, fabs(wanted));
    }
    if (cJSON_IsBool(item)) {
        return strcmp(text, cJSON_IsTrue(item) ? "true" : "false") == 0;
    }
    return cJSON_IsNull(item) ? strcmp(text, "null") == 0
                              : cJSON_IsString(item) && strcmp(item->valuestring, text) == 0;
}

static int is_list(const cJSON *list, char *text)
{
    char *rest = NULL;
    int index = 0;
    for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (!is_value(cJSON_GetArrayItem(list, index++), word)) {
            return 0;
        }
    }
    return cJSON_GetArraySize(list) == index;
}

/* One expectation: "ticks=57", "peak_copies=11,9,7,5", "channels#14", "error.message~not_8". */
static int holds(const cJSON *root, const char *expectation)
{
    char word[WORD_BYTES];
    snprintf(word, sizeof word, "%s", expectation);
    const size_t length = strcspn(word, "=#~");
    const char sign = word[length];
    char *value = word + length + 1;
    word[length] = '\0';

    const cJSON *item = find(root, word);
    if (item == NULL || sign == '\0') {
        return 0;
    }
    if (sign == '#') {
        return cJSON_GetArraySize(item) == atoi(value);
    }
    if (sign == '~') {
        for (char *blank = value; (blank = strchr(blank, '_')) != NULL;) {
            *blank = ' ';
        }
        return cJSON_IsString(item) && strstr(item->valuestring, value) != NULL;
    }
    return cJSON_IsArray(item) ? is_list(item, value) : is_value(item, value);
}

/* Runs `heddle plan WORDS --json` and checks exit code and expectations. */
static void check_plan(const char *name, const char *words, int exit_code, const char *expected)
{
    char command[COMMAND_BYTES];
    char expectations[COMMAND_BYTES];
    char *rest = NULL;

    snprintf(command, sizeof command, "plan %s --json 2>&1", words);
    const int code = run("", command);
    cJSON *root = cJSON_Parse(output);
    if (code != exit_code || root == NULL) {
        printf("%s: exit %d: %.300s ", name, code, output);
    }
    CU_ASSERT_EQUAL(code, exit_code);
    CU_ASSERT_PTR_NOT_NULL(root);
    snprintf(expectations, sizeof expectations, "%s", expected);
    for (char *word = strtok_r(expectations, " ", &rest); word && root;
         word = strtok_r(NULL, " ", &rest)) {
        const int is_right = holds(root, word);
        if (!is_right) {
            printf("%s: not %s ", name, word);
        }
        CU_ASSERT(is_right);
    }
    cJSON_Delete(root);
}

struct row {
    const char *name, *words;
    int exit_code;
    const char *expected;
};

static void check_rows(const struct row *rows, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        check_plan(rows[i].name, rows[i].words, rows[i].exit_code, rows[i].expected);
    }
}

#define INTERLEAVED "pipeline.schedule=interleaved_1f1b "
#define LEAN        "pipeline.schedule=interleaved_lean "
#define FOLDED      "pipeline.schedule=1f1b_v "
#define GPIPE       "pipeline.schedule=gpipe "

static const struct row report_rows[] = {
    {"docs/interface.md: interleaved, drawn", INTERLEAVED "--timeline drawn", 0,
     "ticks=57 total_ticks=228 empty_ticks=36 bubble=0.15789473684210525 peak_copies=11,9,7,5 "
     "retention=8,8,7,5,4,4,3,1 loss_rank=3 handoffs.local=0 handoffs.hidden=59 "
     "handoffs.exposed=53 timeline=drawn placement=loop ascending=true"},
    {"docs/interface.md: interleaved, asap", INTERLEAVED, 0,
     "ticks=57 total_ticks=228 handoffs.local=0 handoffs.hidden=37 handoffs.exposed=75 "
     "timeline=asap stage_rank=0,1,2,3,0,1,2,3"},
    {"docs/interface.md: 1f1b_v", FOLDED, 0,
     "ticks=63 total_ticks=252 empty_ticks=60 bubble=0.23809523809523808 peak_copies=6,6,6,6 "
     "retention=5,5,5,3,3,3,2,1 loss_rank=0 handoffs.local=16 handoffs.hidden=18 "
     "handoffs.exposed=78 placement=v stage_rank=0,1,2,3,3,2,1,0"},
    {"docs/architecture.md: depths of 1f1b_v", FOLDED, 0,
     "channels#12 channels.0.depth=5 channels.1.depth=5 channels.2.depth=5 channels.3.depth=3 "
     "channels.4.depth=3 channels.5.depth=2 channels.6.depth=1 channels.7.depth=2 "
     "channels.8.depth=1 channels.9.depth=2 channels.10.depth=2 channels.11.depth=2 "
     "channels.0.slots=6 channels.0.direction=forward channels.6.direction=backward"},
    {"a plan without idle ticks is drawn as asap", FOLDED "--timeline drawn", 0, "timeline=asap"},
};

static const struct row case_rows[] = {
    {"C01: m below P", INTERLEAVED "pipeline.ranks=6 pipeline.microbatches=3 model.layers=12", 0,
     "ticks=42 total_ticks=252 empty_ticks=144 peak_copies=6,6,6,6,6,4"},
    {"C04: m a multiple of P, not of P V", INTERLEAVED "pipeline.microbatches=12", 0,
     "ticks=81 total_ticks=324 empty_ticks=36 peak_copies=11,9,7,5"},
    {"C05: one microbatch, gpipe", GPIPE "pipeline.microbatches=1", 0,
     "ticks=12 total_ticks=48 empty_ticks=36 bubble=0.75 peak_copies=1,1,1,1"},
    {"C05: one microbatch, 1f1b", "pipeline.microbatches=1", 0,
     "ticks=12 total_ticks=48 empty_ticks=36 bubble=0.75 peak_copies=1,1,1,1"},
    {"C07: ten microbatches on four ranks", INTERLEAVED "pipeline.microbatches=10 --ticks", 0,
     "ticks=69 total_ticks=276 empty_ticks=36 peak_copies=12,10,8,6 actions#160"},
    {"C08: as many microbatches as stages, 1f1b", "pipeline.microbatches=4", 0,
     "ticks=21 total_ticks=84 empty_ticks=36 peak_copies=4,3,2,1"},
    {"C08: the same, interleaved", INTERLEAVED "pipeline.microbatches=4", 0,
     "ticks=33 total_ticks=132 empty_ticks=36 peak_copies=8,8,7,5"},
    {"C10: six microbatches in one group", INTERLEAVED "pipeline.microbatches=6 --ticks", 0,
     "ticks=45 total_ticks=180 empty_ticks=36 peak_copies=12,11,9,7 actions#96"},
    {"C11: warmup and copies of table 10", INTERLEAVED, 0,
     "ticks=57 peak_copies=11,9,7,5 retention=8,8,7,5,4,4,3,1"},
    {"C11: the smaller warmup is legal", LEAN, 0, "ticks=57 peak_copies=8,7,6,5 ascending=true"},
    {"C13: two ranks, four microbatches", "pipeline.ranks=2 pipeline.microbatches=4", 0,
     "ticks=15 empty_ticks=6"},
    {"C41: skewed memory",
     "pipeline.ranks=8 pipeline.microbatches=32 memory.copy_gb=1 memory.state_gb=2 "
     "memory.budget_gb=8",
     0,
     "peak_copies=8,7,6,5,4,3,2,1 memory.0.total_bytes=10e9 memory.1.total_bytes=9e9 "
     "memory.2.total_bytes=8e9 memory.7.total_bytes=3e9 memory.0.fits=false memory.1.fits=false "
     "memory.2.fits=true memory.7.fits=true"},
    {"C41: the report's table, loop",
     INTERLEAVED "memory.copy_gb=10 memory.state_gb=12 memory.budget_gb=80", 0,
     "memory.0.total_bytes=122e9 memory.1.total_bytes=102e9 memory.2.total_bytes=82e9 "
     "memory.3.total_bytes=62e9 memory.2.fits=false memory.3.fits=true"},
    {"C41: the report's table, v",
     FOLDED "memory.copy_gb=10 memory.state_gb=12 memory.budget_gb=80", 0,
     "memory.0.total_bytes=72e9 memory.3.total_bytes=72e9 memory.0.fits=true"},
    {"C43: copies of 1f1b are steady from P on", "pipeline.microbatches=64", 0,
     "peak_copies=4,3,2,1 copies_steady_from=4"},
    {"C43: copies of gpipe are not", GPIPE "pipeline.microbatches=64", 0,
     "peak_copies=64,64,64,64 copies_steady_from=null"},
    {"C49: one slot too few, for all", INTERLEAVED "pipeline.payload_slots=7", 4,
     "error.law=6 error.code=4 error.message~stage_0_needs_8_slots,_but_has_7"},
    {"C49: one slot too few, of a list", INTERLEAVED "pipeline.payload_slots=7,8,7,5,4,4,3,1", 4,
     "error.law=6 error.message~stage_0_needs_8_slots,_but_has_7"},
    {"C49: as many as it needs", INTERLEAVED "pipeline.payload_slots=8,8,7,5,4,4,3,1", 0,
     "ticks=57"},
    {"C55: loop", INTERLEAVED "data.microbatch_size=1 model.sequence=128 model.width=64", 0,
     "transfers=112 bytes_per_step=1835008 handoffs.local=0 channels#14 local_channels#0"},
    {"C55: v", FOLDED "data.microbatch_size=1 model.sequence=128 model.width=64", 0,
     "transfers=96 bytes_per_step=1572864 handoffs.local=16 channels#12 local_channels#2 "
     "local_channels.0.source=3 local_channels.0.target=3"},
    {"C89: both bubbles of 1f1b", "", 0, "bubble=0.27272727272727271 bubble_over_ideal=0.375"},
    {"C89: both bubbles of interleaved", INTERLEAVED, 0,
     "bubble=0.15789473684210525 bubble_over_ideal=0.1875 empty_ticks=36 total_ticks=228"},
    {"C91: equal lengths, gpipe",
     GPIPE "pipeline.ranks=8 pipeline.microbatches=32 cost.backward=1 --timeline costed", 0,
     "ticks=78 bubble=0.17948717948717949 peak_copies=32,32,32,32,32,32,32,32"},
    {"C91: equal lengths, 1f1b",
     "pipeline.ranks=8 pipeline.microbatches=32 cost.backward=1 --timeline costed", 0,
     "ticks=78 bubble=0.17948717948717949 peak_copies=8,7,6,5,4,3,2,1"},
    {"C94: 4 of 8", "pipeline.microbatches=4 cost.forward=1.8 cost.backward=3.6 --timeline costed",
     0, "ticks=37.8 bubble=0.42857142857142855"},
    {"C94: 8 of 4", "pipeline.microbatches=8 cost.forward=1 cost.backward=2 --timeline costed", 0,
     "ticks=33 bubble=0.27272727272727271"},
    {"C94: 16 of 2", "pipeline.microbatches=16 cost.forward=.6 cost.backward=1.2 --timeline costed",
     0, "ticks=34.2 bubble=0.15789473684210525"},
    {"C94: 32 of 1", "pipeline.microbatches=32 cost.forward=.4 cost.backward=.8 --timeline costed",
     0, "ticks=42 bubble=0.085714285714285715"},
    {"C95: the last stage is slow",
     "cost.forward=1,1,1,1.25 cost.backward=2,2,2,2.5 --timeline costed", 0,
     "ticks=39 straggler=3 bubble=0.34615384615384615"},
    {"C95: the first stage is slow",
     "cost.forward=1.25,1,1,1 cost.backward=2.5,2,2,2 --timeline costed", 0,
     "ticks=36.75 straggler=0 bubble=0.30612244897959184"},
    {"C95: a stage in the middle is slow",
     "cost.forward=1,1,2,1 cost.backward=2,2,4,2 --timeline costed", 0,
     "ticks=55 straggler=2 bubble=0.45454545454545453"},
};

/* C53, C11 and the help of interleaved_lean: the length where a transfer takes 0, .25, .5 and 1. */
static const struct {
    const char *schedule;
    double ticks[4];
} transfer_rows[] = {
    {"gpipe", {33, 34.5, 36, 39}},
    {"1f1b", {33, 37, 41, 49}},
    {"interleaved_1f1b", {57, 60.5, 64, 71}},
    {"interleaved_lean", {57, 64.5, 72, 87}},
};

static void test_transfers(void)
{
    static const char *const transfers[] = {"0", ".25", ".5", "1"};
    char words[COMMAND_BYTES];
    char expected[WORD_BYTES];

    for (unsigned i = 0; i < HD_CHECK_COUNT(transfer_rows); i++) {
        for (unsigned column = 0; column < 4; column++) {
            snprintf(words, sizeof words, "pipeline.schedule=%s cost.transfer=%s --timeline costed",
                     transfer_rows[i].schedule, transfers[column]);
            snprintf(expected, sizeof expected, "ticks=%.17g", transfer_rows[i].ticks[column]);
            check_plan(transfer_rows[i].schedule, words, 0, expected);
        }
    }
}

static const struct row refusal_rows[] = {
    {"a schedule's own refusal", "pipeline.stages_per_rank=2", 4,
     "error.code=4 error.key=pipeline.schedule "
     "error.message~not_8_stages_on_4_ranks;_use_interleaved"},
    {"an option of a schedule", FOLDED "schedule.1f1b_v.pull_ahead=1,0", 4,
     "error.message~has_2_numbers,_but_the_pipeline_has_4_ranks"},
    {"a timeline that is none", "--timeline soon", 2, "error.message~asap,_drawn_or_costed"},
    {"costs of a wrong length", "cost.forward=1,2 --timeline costed", 2,
     "error.key=cost.forward error.message~2_numbers"},
    {"transfers of a wrong length", "cost.transfer=1,2 --timeline costed", 2,
     "error.key=cost.transfer"},
    {"slots of a wrong length", "pipeline.transfer_slots=4,3", 2,
     "error.key=pipeline.transfer_slots"},
    {"a figure that breaks a dependency (m = P)",
     INTERLEAVED "pipeline.microbatches=4 --timeline drawn", 4, "error.code=4"},
    {"a figure wider than any paper", "--svg out.svg --width 9999", 2, "error.message~2000"},
    {"a page into a folder that is not there", "--html /nowhere/plan.html", 7,
     "error.place=/nowhere/plan.html"},
    {"a kernel that the user names", "kernels.name=none_such", 3, "error.key=kernels.name"},
    {"a sweep without values", "--sweep pipeline.ranks", 2, "error.message~KEY=V1"},
    {"a sweep with a value that is none", "--sweep pipeline.ranks=1:x", 2,
     "error.key=pipeline.ranks error.message~x_is_not_a_whole_number"},
    {"a sweep of which nothing can be planned", "--sweep pipeline.stages_per_rank=2:3", 4,
     "error.code=4"},
    {"a table into a folder that is not there", "--csv /nowhere/plan.csv", 7,
     "error.place=/nowhere/plan.csv"},
    {"a full disk", "--csv /dev/full", 7, "error.code=7"},
};

static void test_report(void)
{
    check_rows(report_rows, HD_CHECK_COUNT(report_rows));
}

static void test_cases(void)
{
    check_rows(case_rows, HD_CHECK_COUNT(case_rows));
}

static void test_refusals(void)
{
    check_rows(refusal_rows, HD_CHECK_COUNT(refusal_rows));
}

static const struct hd_check checks[] = {
    {"the report's numbers", test_report},
    {"public cases of planning", test_cases},
    {"C53: what transfers cost each schedule", test_transfers},
    {"refusals have their exit code and name the key", test_refusals},
};

int main(void)
{
    return hd_check_main("plan command", checks, HD_CHECK_COUNT(checks));
}
