/*
 * tests/test_checkpoint.c - a run that stops and goes on is the run that never stopped: to the last
 * bit, under another plan, after a signal, and after a kill at any moment.
 *
 * Two files are compared as bytes: model.safetensors and optimizer.safetensors lie in global order,
 * so equal parameters and moments are equal files whatever P and V were.
 *
 * Sources: the issue ("--resume under another P, V, schedule, transport, kernel plugin or
 * microbatch count"); cases.md C71 (the position is counted in samples) and C73 (no layer keeps its
 * initial values).  HD_KILL_COUNT=200 in the environment makes the kills many.
 */
#include "support/check.h"
#include "support/command.h"

#include "base/clock.h"
#include "train/checkpoint.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WORDS_BYTES = 4096, STEPS = 6, RANKS = 2 };

#define MODEL                                                                            \
    "kernels.precision=f32 model.layers=8 model.width=32 model.heads=2 model.experts=4 " \
    "model.expert_width=32 model.sequence=16 model.vocabulary=64 train.warmup_steps=2 "  \
    "output.trace=off --quiet "
#define SHAPE "pipeline.ranks=2 pipeline.microbatches=4 data.microbatch_size=2 "

static int run(const char *words)
{
    struct command command = {0};
    const int code = command_run(&command, words);

    if (code != 0) {
        char *error = command_text(command.err);
        fprintf(stderr, "heddle %s: exit %d: %s\n", words, code, error);
        free(error);
    }
    return code;
}

static void run_well(const char *format, const char *word)
{
    char words[WORDS_BYTES];

    snprintf(words, sizeof words, format, word);
    CU_ASSERT_EQUAL_FATAL(run(words), 0);
}

/* --- comparing -------------------------------------------------------------------------------- */

static int is_same_file(const char *one, const char *other)
{
    FILE *const first = fopen(one, "rb"), *const second = fopen(other, "rb");
    int same = first != NULL && second != NULL, letter;

    do {
        letter = same ? getc(first) : EOF;
        same = same && letter == getc(second);
    } while (same && letter != EOF);
    if (first != NULL) {
        fclose(first);
    }
    if (second != NULL) {
        fclose(second);
    }
    return same;
}

static int has_same_losses(const char *one, const char *other)
{
    char path[2][256];
    int same = 1;

    snprintf(path[0], sizeof path[0], "%s/run.json", one);
    snprintf(path[1], sizeof path[1], "%s/run.json", other);
    cJSON *const first = command_json(path[0]), *const second = command_json(path[1]);
    static const char *const keys[] = {"losses", "grad_norms"};
    for (unsigned key = 0; key < 2; key++) {
        const cJSON *const a = cJSON_GetObjectItemCaseSensitive(first, keys[key]);
        const cJSON *const b = cJSON_GetObjectItemCaseSensitive(second, keys[key]);
        same = same && cJSON_GetArraySize(a) == STEPS && cJSON_Compare(a, b, 1);
    }
    cJSON_Delete(first);
    cJSON_Delete(second);
    return same;
}

/* Parameters, moments and every loss of the two directories are the same bits. */
static int is_same_run(const char *one, const char *other)
{
    char path[2][256];
    int same = has_same_losses(one, other);

    for (uint32_t i = 0; i < HD_CHECKPOINT_FILE_COUNT; i++) {
        snprintf(path[0], sizeof path[0], "%s/checkpoint/%s", one, hd_checkpoint_files[i]);
        snprintf(path[1], sizeof path[1], "%s/checkpoint/%s", other, hd_checkpoint_files[i]);
        same = same && is_same_file(path[0], path[1]);
    }
    return same;
}

static uint32_t line_count(const char *path)
{
    char *const text = command_text(path);
    uint32_t count = 0;

    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++) {
        count++;
    }
    free(text);
    return count;
}

static double loss_of(const char *path, uint32_t step)
{
    cJSON *const json = command_json(path);
    const cJSON *const item =
        cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(json, "losses"), (int)step - 1);
    const double loss = cJSON_IsNumber(item) ? item->valuedouble : NAN;

    cJSON_Delete(json);
    return loss;
}

/* --- going on under another plan -------------------------------------------------------------- */

static const struct {
    const char *name, *words;
} plans[] = {
    {"as it was", ""},
    {"one rank", "pipeline.ranks=1"},
    {"P=4 V=1 (C73)", "pipeline.ranks=4"},
    {"P=2 V=2 (C73)", "pipeline.schedule=interleaved_1f1b pipeline.stages_per_rank=2"},
    {"P=4 V=2, folded", "pipeline.ranks=4 pipeline.schedule=1f1b_v"},
    {"P=2 V=4, lean", "pipeline.schedule=interleaved_lean pipeline.stages_per_rank=4"},
    {"gpipe, overlap off", "pipeline.schedule=gpipe pipeline.overlap=off"},
    {"a split of its own", "model.split=5,3"},
    {"one rank without a transport", "pipeline.ranks=1 transport.name=null"},
};

static void check_plans(void)
{
    char words[WORDS_BYTES];

    run_well("run " MODEL SHAPE "train.steps=6 output.directory=whole %s", "");
    run_well("run " MODEL SHAPE "train.steps=3 output.directory=half %s", "");
    for (unsigned i = 0; i < HD_CHECK_COUNT(plans); i++) {
        snprintf(words, sizeof words,
                 "run --resume half --quiet train.steps=6 output.directory=more --overwrite %s",
                 plans[i].words);
        CU_ASSERT_EQUAL(run(words), 0);
        if (!is_same_run("whole", "more")) {
            printf("\n%s: not the run that never stopped\n", plans[i].name);
            CU_FAIL("the bits differ after --resume");
        }
        CU_ASSERT_EQUAL(line_count("more/metrics.jsonl"), STEPS);
    }
    CU_ASSERT_EQUAL(line_count("half/metrics.jsonl"), 3); /* untouched */
}

/* Steps that another process ran have no times here. */
static void check_trace(void)
{
    run_well("run --resume half --quiet train.steps=4 output.directory=more --overwrite %s",
             "output.trace=on output.trace_steps=3");
    CU_ASSERT(command_says("more/trace.json", "\"step\": 4"));
    CU_ASSERT_FALSE(command_says("more/trace.json", "\"step\": 3"));
    CU_ASSERT_FALSE(command_says("more/trace.json", "\"step\": 2"));
}

/* In its own directory, and once more when nothing is left to do. */
static void check_in_place(void)
{
    run_well("run --resume half/ --quiet train.steps=%s", "6");
    CU_ASSERT(is_same_run("whole", "half"));
    CU_ASSERT_EQUAL(line_count("half/metrics.jsonl"), STEPS);
    run_well("run --resume half --quiet %s", "train.steps=6");
    CU_ASSERT(is_same_run("whole", "half"));
    CU_ASSERT(access("half/checkpoint.tmp", F_OK) != 0);
    CU_ASSERT(access("half/checkpoint.old", F_OK) != 0);
}

/* The oracle holds over a restart in every precision, with another plan and recomputation on the
 * way. */
static void check_precisions(void)
{
    static const char *const words[] = {
        "kernels.name=cpu kernels.precision=bf16",
        "kernels.name=cpu kernels.precision=mxfp8",
        "kernels.name=reference kernels.precision=bf16",
        "kernels.name=reference kernels.precision=mxfp8",
    };

    for (unsigned i = 0; i < HD_CHECK_COUNT(words); i++) {
        run_well("run " MODEL SHAPE "train.steps=6 output.directory=straight --overwrite %s",
                 words[i]);
        run_well("run " MODEL SHAPE "train.steps=3 output.directory=part --overwrite %s", words[i]);
        run_well("run --resume part --quiet train.steps=6 output.directory=more --overwrite %s",
                 "pipeline.ranks=4 pipeline.schedule=1f1b_v kernels.recompute=full");
        if (!is_same_run("straight", "more")) {
            printf("\n%s: not the run that never stopped\n", words[i]);
            CU_FAIL("the bits differ after --resume");
        }
    }
}

/* Other kernels have other bits, but they read the same files and go on from the same sample. */
static void check_kernels(void)
{
    static const char *const words[] = {"kernels.name=reference", "kernels.precision=bf16",
                                        "kernels.name=reference kernel.reference.float64=on"};

    for (unsigned i = 0; i < HD_CHECK_COUNT(words); i++) {
        run_well("run --resume half --quiet train.steps=7 output.directory=more --overwrite %s",
                 words[i]);
        run_well("run --resume whole --quiet train.steps=7 output.directory=most --overwrite %s",
                 "");
        const double loss = loss_of("more/run.json", 7), wanted = loss_of("most/run.json", 7);
        CU_ASSERT(fabs(loss - wanted) < 0.02);
        CU_ASSERT_EQUAL(loss_of("more/run.json", 6), loss_of("whole/run.json", 6));
    }
}

static uint64_t samples_of(const char *run_directory)
{
    struct hd_checkpoint_state state;
    struct hd_problem problem = {0};

    CU_ASSERT_FATAL(hd_checkpoint_read_state(run_directory, &state, &problem) == HD_OK);
    return state.samples;
}

/* C71: save after 3 steps of m=4 b=2, go on with m=8 b=1 and with m=4 b=4. */
static void check_position(void)
{
    run_well("run " MODEL SHAPE "train.steps=3 output.directory=half --overwrite %s", "");
    CU_ASSERT_EQUAL(samples_of("half"), 24);
    run_well("run --resume half --quiet train.steps=4 output.directory=more --overwrite %s",
             "pipeline.microbatches=8 data.microbatch_size=1");
    CU_ASSERT_EQUAL(samples_of("more"), 32);
    const double loss = loss_of("more/run.json", 4), wanted = loss_of("whole/run.json", 4);
    CU_ASSERT(fabs(loss - wanted) < 1e-5 * wanted);
    run_well("run --resume half --quiet train.steps=4 output.directory=more --overwrite %s",
             "data.microbatch_size=4");
    CU_ASSERT_EQUAL(samples_of("more"), 40);
    CU_ASSERT(fabs(loss_of("more/run.json", 4) - wanted) > 1e-5 * wanted); /* other samples */
}

/* --- ends ------------------------------------------------------------------------------------- */

#define ENDLESS "run " MODEL SHAPE "train.steps=1000000 output.directory=%s"

static void check_signal(int signal_number)
{
    struct command command = {0};
    struct hd_checkpoint_state state;
    struct hd_problem problem = {0};
    char words[WORDS_BYTES];

    snprintf(words, sizeof words, ENDLESS " --overwrite", "ended");
    unlink("ended/metrics.jsonl");
    command_begin(&command, words);
    CU_ASSERT_FATAL(command_await(command.pid, "ended/metrics.jsonl", "\"step\": 2,"));
    kill(command.pid, signal_number);
    CU_ASSERT_EQUAL(command_end(&command, COMMAND_WAIT_S), 128 + signal_number);
    CU_ASSERT_FATAL(hd_checkpoint_read_state("ended", &state, &problem) == HD_OK);
    CU_ASSERT(state.step >= 2 && state.samples == 8ull * state.step);
    CU_ASSERT_EQUAL(line_count("ended/metrics.jsonl"), state.step);
    /* One step more, in one go and after the stop. */
    snprintf(words, sizeof words,
             "run --resume ended --quiet train.steps=%u output.directory=more --overwrite",
             state.step + 1);
    CU_ASSERT_EQUAL(run(words), 0);
    CU_ASSERT_EQUAL(loss_of("more/run.json", 2), loss_of("whole/run.json", 2));
}

/* What a requeueing scheduler does: the run has ended, and is resumed again. */
static void check_finished_run_is_untouched(void)
{
    static const char *const files[] = {
        "run.json",   "trace.json",        "report.html",           "metrics.jsonl",
        "config.ini", "log/rank-0000.log", "checkpoint/state.json", "checkpoint/model.safetensors"};
    struct stat before[HD_CHECK_COUNT(files)], after;
    char path[128], copy[128];

    CU_ASSERT_EQUAL_FATAL(
        run("run " MODEL SHAPE
            "train.steps=4 output.directory=finished output.trace=on --overwrite"),
        0);
    mkdir("finished/before", 0777);
    for (unsigned i = 0; i < HD_CHECK_COUNT(files); i++) {
        snprintf(path, sizeof path, "finished/%s", files[i]);
        CU_ASSERT_EQUAL_FATAL(stat(path, &before[i]), 0);
        snprintf(copy, sizeof copy, "finished/before/%u", i);
        CU_ASSERT_EQUAL(link(path, copy), 0); /* a renamed file no longer is this one */
    }
    CU_ASSERT_EQUAL(run("run --resume finished"), 0);
    CU_ASSERT_EQUAL(run("run --resume finished --json train.steps=4"), 0);
    for (unsigned i = 0; i < HD_CHECK_COUNT(files); i++) {
        snprintf(path, sizeof path, "finished/%s", files[i]);
        snprintf(copy, sizeof copy, "finished/before/%u", i);
        CU_ASSERT_EQUAL_FATAL(stat(path, &after), 0);
        CU_ASSERT(after.st_ino == before[i].st_ino && after.st_size == before[i].st_size &&
                  after.st_mtim.tv_sec == before[i].st_mtim.tv_sec &&
                  after.st_mtim.tv_nsec == before[i].st_mtim.tv_nsec);
        CU_ASSERT(is_same_file(path, copy));
    }
}

static void check_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};

    for (unsigned i = 0; i < HD_CHECK_COUNT(signals); i++) {
        check_signal(signals[i]);
    }
}

static void check_never(void)
{
    struct command command = {0};

    run_well("run " MODEL SHAPE "train.steps=2 output.directory=never "
             "output.checkpoint_every=never %s",
             "");
    CU_ASSERT(access("never/checkpoint", F_OK) != 0);
    CU_ASSERT_EQUAL(command_run(&command, "run --resume never"), 2);
    CU_ASSERT(command_says(command.err, "never/checkpoint/state.json: there is no checkpoint"));
}

/* --- kills ------------------------------------------------------------------------------------ */

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* How long a whole run with a checkpoint a step takes here, so that kills fall into all of it. */
static uint64_t run_ns;

/* Kills parent and ranks somewhere within the run; 0: it had ended by then. */
static uint32_t kill_somewhere(const char *words, uint64_t *random)
{
    struct command command = {0};
    pid_t ranks[COMMAND_RANK_MAX] = {0};

    command_begin(&command, words);
    const uint32_t count = command_ranks(command.pid, RANKS, ranks);
    const uint64_t moment_ns = next_random(random) % (run_ns + run_ns / 8);
    const struct timespec while_it_runs = {(time_t)(moment_ns / HD_S_NS),
                                           (long)(moment_ns % HD_S_NS)};
    nanosleep(&while_it_runs, NULL); /* what is tested: any moment will do */
    kill(command.pid, SIGKILL);
    const int code = command_end(&command, COMMAND_WAIT_S);
    CU_ASSERT(code == 128 + SIGKILL || code == 0);
    for (uint32_t i = 0; i < count; i++) {
        CU_ASSERT(command_is_gone(ranks[i], 10));
    }
    return code != 0;
}

/* Goes on where there is something to go on from, and else begins anew. */
static const char *next_words(void)
{
    struct hd_checkpoint_state state;
    struct hd_problem problem = {0};

    CU_ASSERT_FATAL(hd_checkpoint_recover("killed", &problem) == HD_OK);
    if (hd_checkpoint_read_state("killed", &state, &problem) == HD_OK && state.step < STEPS) {
        return "run --resume killed --quiet";
    }
    return "run " MODEL SHAPE
           "train.steps=6 output.checkpoint_every=1 output.directory=killed --overwrite";
}

static void check_kills(void)
{
    const char *const asked = getenv("HD_KILL_COUNT");
    const long count = asked != NULL ? atol(asked) : 12;
    uint64_t random = 0x2545f4914f6cdd1dull;
    uint32_t hit_count = 0, writing_count = 0;

    run_ns = hd_now_ns();
    run_well("%s", next_words());
    run_ns = hd_now_ns() - run_ns;
    for (long i = 0; i < count; i++) {
        hit_count += kill_somewhere(next_words(), &random);
        writing_count += access("killed/checkpoint.tmp", F_OK) == 0;
        if (access("killed/checkpoint/state.json", F_OK) == 0) {
            /* Whatever stands there can be gone on from, and ends as the run that never stopped. */
            run_well("run --resume killed --quiet train.steps=6 output.directory=more "
                     "--overwrite %s",
                     "");
            CU_ASSERT(is_same_run("whole", "more"));
        }
    }
    printf("%u of %ld killed, %u while writing ...", hit_count, count, writing_count);
    CU_ASSERT(hit_count > 0);
}

/* A kill between two renames, where names cannot be exchanged. */
static void check_recovered(void)
{
    CU_ASSERT_FATAL(rename("whole/checkpoint", "whole/checkpoint.old") == 0);
    CU_ASSERT_FATAL(mkdir("whole/checkpoint.tmp", 0777) == 0);
    run_well("run --resume whole --quiet %s", "train.steps=6");
    CU_ASSERT(access("whole/checkpoint/state.json", F_OK) == 0);
    CU_ASSERT(access("whole/checkpoint.old", F_OK) != 0);
}

/* A disk that is full at the checkpoint: exit 7, and the one before stays whole. */
static void check_full_disk(void)
{
    struct command command = {.file_max_bytes = 100000};

    run_well("run " MODEL SHAPE "train.steps=3 output.directory=full %s", "");
    CU_ASSERT_EQUAL(command_run(&command, "run --resume full --quiet train.steps=6"), 7);
    CU_ASSERT(command_says(command.err, "full/checkpoint.tmp"));
    CU_ASSERT(command_says(command.err, "output.checkpoint_every: cannot be"));
    CU_ASSERT(command_says("full/run.json", "\"exit\": 7"));
    CU_ASSERT(access("full/checkpoint.tmp", F_OK) != 0);
    run_well("run --resume full --quiet %s", "train.steps=6");
    CU_ASSERT(is_same_run("whole", "full"));
}

/* C88: parameters that lead to no finite loss are no checkpoint; the last good one stays. */
static void check_nonfinite(void)
{
    struct command command = {0};
    struct hd_checkpoint_state state;
    struct hd_problem problem = {0};
    cJSON *json;

    CU_ASSERT_EQUAL(command_run(&command, "run " MODEL SHAPE "train.steps=30 output.directory=wild "
                                          "output.checkpoint_every=1 train.learning_rate=1000 "
                                          "train.weight_decay=1000 train.clip_norm=0"),
                    6);
    json = command_json("wild/run.json");
    const int steps = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(json, "losses"));
    cJSON_Delete(json);
    CU_ASSERT_FATAL(hd_checkpoint_read_state("wild", &state, &problem) == HD_OK);
    CU_ASSERT_EQUAL((int)state.step, steps - 1);
    /* Gone on from with a gentle rate, it is refused or finite: never a silent NaN. */
    const int code = command_run(&command, "run --resume wild --quiet train.steps=30 "
                                           "train.learning_rate=0 train.skip_max=0");
    CU_ASSERT(code == 6 || code == 0);
    CU_ASSERT(code != 0 || isfinite(loss_of("wild/run.json", 30)));
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"--resume under another plan is the run that never stopped", check_plans},
        {"--resume in bf16 and mxfp8, recomputing, is the run that never stopped",
         check_precisions},
        {"a finished run that is resumed stays as it is", check_finished_run_is_untouched},
        {"the trace holds the steps that were run", check_trace},
        {"--resume goes on in the run's directory, and again", check_in_place},
        {"another kernel or precision goes on from the same files", check_kernels},
        {"the position is counted in samples (C71)", check_position},
        {"SIGINT, SIGTERM and SIGUSR1 leave a checkpoint", check_signals},
        {"checkpoint_every=never leaves none", check_never},
        {"a kill at any moment leaves a whole checkpoint or none", check_kills},
        {"a kill between two renames is put right", check_recovered},
        {"a full disk leaves the checkpoint before", check_full_disk},
        {"a step that is not finite is no checkpoint (C88)", check_nonfinite},
    };

    command_work("checkpoint");
    return hd_check_main("checkpoint", checks, HD_CHECK_COUNT(checks));
}
