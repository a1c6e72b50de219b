/*
 * tests/test_nvtx.c - the ranges that a profiler hears over NVTX: named as in the trace, nested.
 *
 * A run of two ranks has the listener of tests/nvtx injected.  Each rank leaves one file.
 *
 * Source: issue "See it", 2: NVTX ranges with the same names where the CUDA toolkit is present.
 */
#include "support/check.h"
#include "support/command.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 2, MICROBATCHES = 3, STEPS = 2, DEPTH_MAX = 8 };

static const char words[] =
    "run pipeline.schedule=1f1b pipeline.ranks=2 pipeline.microbatches=3 kernels.name=synthetic "
    "cost.tick_us=2000 train.steps=2 train.warmup_steps=0 output.trace_steps=2 "
    "output.directory=ranged --quiet";

static cJSON *trace;
static char *texts[RANKS]; /* what each rank's listener heard */

/* A span of this name on this rank's own track; a pass, or a wait that was long enough to sleep. */
static int is_in_trace(const char *name, double rank)
{
    for (const cJSON *event = cJSON_GetObjectItem(trace, "traceEvents")->child; event != NULL;
         event = event->next) {
        const char *phase = cJSON_GetStringValue(cJSON_GetObjectItem(event, "ph"));
        const char *other = cJSON_GetStringValue(cJSON_GetObjectItem(event, "name"));
        if (strcmp(phase, "X") == 0 && strcmp(other, name) == 0 &&
            cJSON_GetNumberValue(cJSON_GetObjectItem(event, "pid")) == rank) {
            return 1;
        }
    }
    return 0;
}

/* The rank of a file is the stage whose passes are in it: one stage a rank. */
static double rank_of(const char *text)
{
    return strstr(text, "+0F0\n") != NULL ? 0 : 1;
}

struct heard {
    uint32_t depth, pass_count, wait_count, step_count;
};

static void hear(struct heard *heard, const char *line, double rank)
{
    if (strcmp(line, "-") == 0) {
        CU_ASSERT_FATAL(heard->depth > 0);
        heard->depth--;
        return;
    }
    CU_ASSERT_FATAL(line[0] == '+' && heard->depth < DEPTH_MAX);
    const int is_step = strncmp(line, "+step ", 6) == 0;
    const int is_wait = strncmp(line, "+wait ", 6) == 0 || strncmp(line, "+credit ", 8) == 0;
    CU_ASSERT_EQUAL(heard->depth,
                    is_step ? 0 : 1); /* passes and waits lie in a step, side by side */
    heard->depth++;
    heard->step_count += is_step ? 1u : 0u;
    heard->wait_count += is_wait ? 1u : 0u;
    if (!is_step) {
        CU_ASSERT(is_in_trace(line + 1, rank));
        heard->pass_count += is_wait ? 0u : 1u;
    }
}

static void test_ranges(void)
{
    CU_ASSERT(rank_of(texts[0]) != rank_of(texts[1]));
    for (unsigned i = 0; i < RANKS; i++) {
        struct heard heard = {0};
        const double rank = rank_of(texts[i]);
        char *rest = NULL;
        for (char *line = strtok_r(texts[i], "\n", &rest); line != NULL;
             line = strtok_r(NULL, "\n", &rest)) {
            hear(&heard, line, rank);
        }
        CU_ASSERT_EQUAL(heard.depth, 0);
        CU_ASSERT_EQUAL(heard.step_count, STEPS);
        CU_ASSERT_EQUAL(heard.pass_count, STEPS * 2 * MICROBATCHES);
        CU_ASSERT(heard.wait_count > 0); /* the last rank cannot begin at once */
    }
}

/* 0, with a reason said, if the run or a file of a rank is not there. */
static int make_run(const char *listener)
{
    struct command command = {0};
    glob_t files;

    setenv("NVTX_INJECTION64_PATH", listener, 1);
    setenv("HD_NVTX_LOG", "heard", 1);
    const int code = command_run(&command, words);
    unsetenv("NVTX_INJECTION64_PATH");
    if (code != 0) {
        char *text = command_text(command.err);
        printf("the run failed: %s\n", text);
        free(text);
        return 0;
    }
    trace = command_json("ranged/trace.json");
    const int found = glob("heard.*", 0, NULL, &files) == 0 && files.gl_pathc == RANKS;
    for (unsigned i = 0; found && i < RANKS; i++) {
        texts[i] = command_text(files.gl_pathv[i]);
    }
    globfree(&files);
    if (!found) {
        printf("not every rank was heard\n");
    }
    return found && trace != NULL;
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"ranges are named as the trace's spans, and nested in their step", test_ranges},
    };
    char listener[COMMAND_PATH_BYTES];

    snprintf(listener, sizeof listener, "%s", hd_check_build("tests/nvtx_listener.so"));
    if (access(listener, R_OK) != 0) {
        return hd_check_skip("no NVTX: nvtx3/nvToolsExt.h of the CUDA toolkit is not installed");
    }
    command_work("test_nvtx");
    const int failed = !make_run(listener) || hd_check_main("nvtx", checks, HD_CHECK_COUNT(checks));
    cJSON_Delete(trace);
    for (unsigned i = 0; i < RANKS; i++) {
        free(texts[i]);
    }
    return failed;
}
