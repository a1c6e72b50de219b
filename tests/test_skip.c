/*
 * tests/test_skip.c - a step whose loss or norm is not finite leaves nothing behind, on any rank.
 *
 * The kernel is the reference one, which spoils the steps that it is told to.  What a run has come
 * to is held against one that never took those steps: the files of a checkpoint lie in global order
 * and hold masters and moments of all ranks, so equal files are equal ranks.
 *
 * Sources: the issue ("train.skip_max ... the step is skipped on all; no checkpoint or metric of it
 * is written as good"); docs/interface.md, exit code 6; cases.md C88.
 */
#include "support/check.h"
#include "support/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_BYTES = 4096 };

#define MODEL                                                                                   \
    "run --overwrite --quiet kernels.name=spoiled model.layers=4 model.width=32 model.heads=2 " \
    "model.sequence=8 model.vocabulary=64 model.expert_width=32 model.experts=0 "               \
    "data.microbatch_size=1 pipeline.ranks=4 pipeline.microbatches=4 train.warmup_steps=0 "     \
    "output.trace=off output.checkpoint_every=1 "

static int run(const char *directory, const char *words)
{
    char line[WORDS_BYTES];
    struct command command = {0};

    snprintf(line, sizeof line, MODEL "--plugin-dir %s output.directory=%s %s",
             hd_check_build("tests/fault"), directory, words);
    const int code = command_run(&command, line);
    if (code != 0 && code != 6) {
        char *const text = command_text(command.err);
        fprintf(stderr, "\nheddle %s\nexit %d: %s\n", line, code, text);
        free(text);
    }
    return code;
}

/* A number of a JSON file, or of the member "state" where it has one; -1: none. */
static double number(const char *path, const char *key)
{
    cJSON *const json = command_json(path);
    const cJSON *const state = cJSON_GetObjectItemCaseSensitive(json, "state");
    const cJSON *const item = cJSON_GetObjectItemCaseSensitive(state != NULL ? state : json, key);
    const double value = cJSON_IsNumber(item) ? item->valuedouble : -1;

    cJSON_Delete(json);
    return value;
}

/* Masters and moments of all ranks, byte for byte; what the files say of them included. */
static int is_same(const char *one, const char *other)
{
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    int is_equal = 1;

    for (unsigned i = 0; i < 2; i++) {
        char words[2 * COMMAND_PATH_BYTES];
        snprintf(words, sizeof words, "cmp -s %s/checkpoint/%s %s/checkpoint/%s", one, files[i],
                 other, files[i]);
        is_equal = is_equal && system(words) == 0;
    }
    return is_equal;
}

/* Step `step` of a run's metrics; "" if there is none. */
static const char *metrics_line(const char *directory, unsigned step)
{
    static char line[1024];
    char path[COMMAND_PATH_BYTES];

    snprintf(path, sizeof path, "%s/metrics.jsonl", directory);
    FILE *const stream = fopen(path, "re");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    for (unsigned i = 0; i < step; i++) {
        if (fgets(line, sizeof line, stream) == NULL) {
            line[0] = '\0';
        }
    }
    fclose(stream);
    return line;
}

static void expect_skipped(const char *directory, unsigned step, const char *spoiled)
{
    char null[64];

    snprintf(null, sizeof null, "\"%s\": null", spoiled);
    CU_ASSERT_PTR_NOT_NULL(strstr(metrics_line(directory, step), "\"skipped\": 1"));
    CU_ASSERT_PTR_NOT_NULL(strstr(metrics_line(directory, step), null));
}

static void expect_good(const char *directory, unsigned step)
{
    CU_ASSERT_PTR_NOT_NULL(strstr(metrics_line(directory, step), "\"skipped\": 0"));
    CU_ASSERT_PTR_NULL(strstr(metrics_line(directory, step), "null"));
}

static const struct {
    const char *words, *spoiled;
} rows[] = {
    {"kernel.spoiled.does=loss", "loss"},
    {"kernel.spoiled.does=norm", "grad_norm"},
};

static void check_allowed(void)
{
    char words[256];

    CU_ASSERT_EQUAL_FATAL(run("two", "kernel.spoiled.count=0 train.steps=2"), 0);
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        snprintf(words, sizeof words, "%s kernel.spoiled.step=3 train.steps=3 train.skip_max=1",
                 rows[i].words);
        CU_ASSERT_EQUAL(run("skipped", words), 0);
        expect_good("skipped", 2);
        expect_skipped("skipped", 3, rows[i].spoiled);
        CU_ASSERT(is_same("two", "skipped"));
        CU_ASSERT_EQUAL(number("skipped/checkpoint/state.json", "skipped"), 1);

        /* The run goes on from the parameters that it had. */
        snprintf(words, sizeof words, "%s kernel.spoiled.step=3 train.steps=5 train.skip_max=1",
                 rows[i].words);
        CU_ASSERT_EQUAL(run("on", words), 0);
        expect_skipped("on", 3, rows[i].spoiled);
        expect_good("on", 4);
        expect_good("on", 5);
        CU_ASSERT(!is_same("two", "on"));
        CU_ASSERT_EQUAL(number("on/run.json", "exit"), 0);
    }
}

static void check_refused(void)
{
    char words[256];

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        snprintf(words, sizeof words, "%s kernel.spoiled.step=3 train.steps=5", rows[i].words);
        CU_ASSERT_EQUAL(run("ended", words), 6);
        expect_skipped("ended", 3, rows[i].spoiled);
        CU_ASSERT_EQUAL(number("ended/checkpoint/state.json", "step"), 2);
        CU_ASSERT_EQUAL(number("ended/run.json", "exit"), 6);
        CU_ASSERT(is_same("two", "ended"));
    }
}

static void check_in_a_row(void)
{
    CU_ASSERT_EQUAL(run("row", "kernel.spoiled.step=3 kernel.spoiled.count=2 train.steps=5 "
                               "train.skip_max=2"),
                    0);
    expect_skipped("row", 4, "loss");
    expect_good("row", 5);
    CU_ASSERT_EQUAL(run("row", "kernel.spoiled.step=3 kernel.spoiled.count=2 train.steps=5 "
                               "train.skip_max=1"),
                    6);
    CU_ASSERT(is_same("two", "row"));
}

static const struct hd_check checks[] = {
    {"a skipped step changes no rank, and is no good metric", check_allowed},
    {"where none is allowed the run ends with 6 and the checkpoint before", check_refused},
    {"skip_max counts steps in a row", check_in_a_row},
};

int main(void)
{
    command_work("skip");
    return hd_check_main("skip", checks, HD_CHECK_COUNT(checks));
}
