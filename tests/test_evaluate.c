/*
 * tests/test_evaluate.c - `heddle run --evaluate`: forwards alone give the loss of training, change
 * nothing and leave nothing.
 *
 * Sources: the issue ("V m + P - 1 ticks for loop placement with P dividing m ... parameters
 * bit-unchanged; equal to the training-mode loss of the same batch").
 */
#include "support/check.h"
#include "support/command.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORDS_BYTES = 2048, TEXT_BYTES = 1000, SEQUENCE = 16 };

#define MODEL                                                                            \
    "model.layers=8 model.width=32 model.heads=2 model.experts=4 model.expert_width=32 " \
    "model.sequence=16 train.warmup_steps=0 output.trace=off --quiet "

/* What one evaluation printed with --json. */
struct numbers {
    double loss, bits_per_token, bits_per_byte, samples, labels, ticks;
    char hash[80];
};

static double number_of(const cJSON *json, const char *key)
{
    const cJSON *const item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static struct numbers evaluate(const char *more)
{
    struct command command = {0};
    struct numbers numbers = {0};
    char words[WORDS_BYTES];

    snprintf(words, sizeof words, "run --evaluate --json %s", more);
    const int code = command_run(&command, words);
    if (code != 0) {
        char *const error = command_text(command.out);
        printf("\n%s: exit %d: %s\n", words, code, error);
        free(error);
        CU_FAIL("an evaluation did not end well");
        return numbers;
    }
    cJSON *const json = command_json(command.out);
    numbers = (struct numbers){number_of(json, "loss"),
                               number_of(json, "bits_per_token"),
                               number_of(json, "bits_per_byte"),
                               number_of(json, "samples"),
                               number_of(json, "labels"),
                               number_of(json, "ticks"),
                               ""};
    const char *const hash =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "parameters_hash"));
    snprintf(numbers.hash, sizeof numbers.hash, "%s", hash != NULL ? hash : "");
    cJSON_Delete(json);
    return numbers;
}

static void train(const char *more)
{
    struct command command = {0};
    char words[WORDS_BYTES];

    snprintf(words, sizeof words, "run " MODEL "%s", more);
    CU_ASSERT_EQUAL_FATAL(command_run(&command, words), 0);
}

/* The loss of the last step, and the hash of the parameters after it. */
static double read_run(const char *path, char hash[80])
{
    cJSON *const json = command_json(path);
    const cJSON *const losses = cJSON_GetObjectItemCaseSensitive(json, "losses");
    const cJSON *const last = cJSON_GetArrayItem(losses, cJSON_GetArraySize(losses) - 1);
    const double loss = cJSON_IsNumber(last) ? last->valuedouble : NAN;

    snprintf(hash, 80, "%s",
             cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "parameters_hash")));
    cJSON_Delete(json);
    return loss;
}

/* One batch, by training's first step and by an evaluation of the initial values. */
static const struct {
    const char *name, *words;
    double ticks; /* V m + P - 1 */
} batches[] = {
    {"P=4 V=1", "pipeline.ranks=4 pipeline.microbatches=8 pipeline.schedule=1f1b", 8 + 3},
    {"P=2 V=2, a loop",
     "pipeline.ranks=2 pipeline.microbatches=4 pipeline.stages_per_rank=2 "
     "pipeline.schedule=interleaved_1f1b",
     2 * 4 + 1},
    {"P=4 V=2, a loop",
     "pipeline.ranks=4 pipeline.microbatches=8 pipeline.stages_per_rank=2 "
     "pipeline.schedule=interleaved_1f1b",
     2 * 8 + 3},
    {"P=2 V=4, lean",
     "pipeline.ranks=2 pipeline.microbatches=4 pipeline.stages_per_rank=4 "
     "pipeline.schedule=interleaved_lean",
     4 * 4 + 1},
    {"one rank", "pipeline.ranks=1 pipeline.microbatches=4 pipeline.schedule=gpipe", 4},
    {"float32", "pipeline.ranks=2 pipeline.microbatches=4 kernels.precision=f32", 4 + 1},
    {"the reference", "pipeline.ranks=2 pipeline.microbatches=4 kernels.name=reference", 4 + 1},
};

static void check_same_loss(void)
{
    char words[WORDS_BYTES], hash[80];

    for (unsigned i = 0; i < HD_CHECK_COUNT(batches); i++) {
        snprintf(words, sizeof words, "train.steps=1 output.directory=one --overwrite %s",
                 batches[i].words);
        train(words);
        snprintf(words, sizeof words, MODEL "--steps 1 %s", batches[i].words);
        const struct numbers numbers = evaluate(words);
        const double wanted = read_run("one/run.json", hash);
        if (numbers.loss != wanted || numbers.ticks != batches[i].ticks) {
            printf("\n%s: loss %.17g, not %.17g; %g ticks, not %g\n", batches[i].name, numbers.loss,
                   wanted, numbers.ticks, batches[i].ticks);
            CU_FAIL("an evaluation is not the forward of training");
        }
    }
}

/* The folded placement is no loop; its loss is the same all the same. */
static void check_resumed(void)
{
    char hash[80], words[WORDS_BYTES];

    train("train.steps=3 output.directory=three pipeline.ranks=2 pipeline.microbatches=4");
    read_run("three/run.json", hash);
    const struct numbers first = evaluate("--resume three --steps 2");
    CU_ASSERT_STRING_EQUAL(first.hash, hash); /* not a bit changed */
    CU_ASSERT_EQUAL(first.samples, 2 * 4 * 4);
    static const char *const others[] = {"pipeline.ranks=4",
                                         "pipeline.schedule=1f1b_v pipeline.stages_per_rank=2",
                                         "pipeline.schedule=gpipe pipeline.overlap=off"};
    for (unsigned i = 0; i < HD_CHECK_COUNT(others); i++) {
        snprintf(words, sizeof words, "--resume three --steps 2 %s", others[i]);
        const struct numbers other = evaluate(words);
        CU_ASSERT_EQUAL(other.loss, first.loss);
        CU_ASSERT_STRING_EQUAL(other.hash, hash);
    }
    /* The checkpoint stays what it was. */
    struct command command = {0};
    CU_ASSERT_EQUAL(command_run(&command, "run --resume three --quiet train.steps=3"), 0);
    CU_ASSERT(command_says("three/run.json", hash));
}

static void put_text(void)
{
    FILE *const stream = fopen("text.txt", "w");

    CU_ASSERT_FATAL(stream != NULL);
    for (unsigned i = 0; i < TEXT_BYTES; i++) {
        fputc("abcde fgh\n"[i * i % 10], stream);
    }
    CU_ASSERT_FATAL(fclose(stream) == 0);
}

/* 999 labels are 62 samples of 16 and one of 7.  A step of 8 leaves 7 and one of 3 none: each is
   read once, the last in part. */
static void check_whole_corpus(void)
{
    const char *const words[] = {
        MODEL "kernels.precision=f32 data.corpus=text.txt pipeline.ranks=2 pipeline.microbatches=4 "
              "data.microbatch_size=2",
        MODEL "kernels.precision=f32 data.corpus=text.txt pipeline.ranks=2 pipeline.microbatches=3 "
              "data.microbatch_size=1",
        MODEL "kernels.precision=f32 data.corpus=text.txt pipeline.ranks=1 "
              "pipeline.microbatches=80 data.microbatch_size=1",
    };
    struct numbers numbers[3];

    put_text();
    for (unsigned i = 0; i < 3; i++) {
        numbers[i] = evaluate(words[i]);
        CU_ASSERT_EQUAL(numbers[i].samples, (TEXT_BYTES - 1 + SEQUENCE - 1) / SEQUENCE);
        CU_ASSERT_EQUAL(numbers[i].labels, TEXT_BYTES - 1);
        CU_ASSERT(fabs(numbers[i].loss - numbers[0].loss) < 1e-6 * numbers[0].loss);
        CU_ASSERT(fabs(numbers[i].bits_per_byte * log(2) - numbers[i].loss) < 1e-9);
    }
    /* Initial values know nothing: near ln 256. */
    CU_ASSERT(fabs(numbers[0].loss - log(256)) < 0.2);
}

/* Of token files no number of bytes is known. */
static void check_tokens(void)
{
    put_text();
    const struct numbers numbers =
        evaluate(MODEL "data.corpus=text.txt data.format=tokens data.token_bytes=1 "
                       "pipeline.ranks=2 pipeline.microbatches=2");
    CU_ASSERT(isnan(numbers.bits_per_byte));
    CU_ASSERT(fabs(numbers.bits_per_token * log(2) - numbers.loss) < 1e-9);
}

static void check_leaves_nothing(void)
{
    struct command command = {0};

    CU_ASSERT_EQUAL(command_run(&command, "run --evaluate --steps 1 output.directory=left " MODEL
                                          "pipeline.ranks=2 pipeline.microbatches=2"),
                    0);
    CU_ASSERT(access("left", F_OK) != 0);
    CU_ASSERT(access("runs", F_OK) != 0);
    CU_ASSERT(command_says(command.out, "bits a byte"));
    CU_ASSERT(command_says(command.out, "unchanged"));
}

static void check_refused(void)
{
    struct command command = {0};
    FILE *const stream = fopen("loop.csv", "w");

    CU_ASSERT_FATAL(stream != NULL && fputs("0F0,0B0\n", stream) >= 0 && fclose(stream) == 0);
    CU_ASSERT_EQUAL(command_run(&command, "run --evaluate pipeline.schedule=loop.csv " MODEL), 4);
    CU_ASSERT(command_says(command.err, "has backwards"));
    CU_ASSERT_EQUAL(command_run(&command, "run --evaluate kernels.name=synthetic " MODEL), 2);
    CU_ASSERT(command_says(command.err, "computes no loss"));
    CU_ASSERT_EQUAL(command_run(&command, "run --evaluate --steps 0 " MODEL), 2);
    CU_ASSERT_EQUAL(command_run(&command, "run --steps 4 " MODEL), 2);
}

/* 9 ids are 8 labels: a sample of 6, and one of 2.  The loss of all is the mean over the 8. */
static void check_last_part(void)
{
    struct numbers numbers[2];
    FILE *const stream = fopen("nine.txt", "w");

    CU_ASSERT_FATAL(stream != NULL && fputs("abcdefghi", stream) >= 0 && fclose(stream) == 0);
    for (unsigned i = 0; i < 2; i++) {
        char words[WORDS_BYTES];
        snprintf(words, sizeof words,
                 "--quiet data.corpus=nine.txt kernels.precision=f32 model.layers=2 model.width=32 "
                 "model.heads=2 model.experts=0 model.sequence=6 pipeline.ranks=2 "
                 "data.microbatch_size=1 pipeline.microbatches=%u",
                 i == 0 ? 1 : 2);
        numbers[i] = evaluate(words);
        CU_ASSERT_EQUAL(numbers[i].samples, 2);
        CU_ASSERT_EQUAL(numbers[i].labels, 8);
    }
    CU_ASSERT_DOUBLE_EQUAL(numbers[0].loss, numbers[1].loss, 1e-6); /* in two steps, and in one */
}

/* The plan of an evaluation has no backwards and no payloads. */
static void check_planned(void)
{
    static const char *const commands[] = {"plan --evaluate ", "run --evaluate --dry-run "};

    for (unsigned i = 0; i < 2; i++) {
        struct command command = {0};
        char words[WORDS_BYTES];
        snprintf(words, sizeof words, "%s" MODEL "pipeline.ranks=2 pipeline.microbatches=4",
                 commands[i]);
        CU_ASSERT_EQUAL(command_run(&command, words), 0);
        CU_ASSERT(command_says(command.out, ", forward only\n"));
        CU_ASSERT(command_says(command.out, "asap: 5 ticks"));
        snprintf(words, sizeof words, "%s--json " MODEL "pipeline.ranks=2 pipeline.microbatches=4",
                 commands[i]);
        CU_ASSERT_EQUAL(command_run(&command, words), 0);
        CU_ASSERT(command_says(command.out, "\"payload_bytes\": 0,"));
    }
    struct command command = {0};
    CU_ASSERT_EQUAL(command_run(&command, "plan --evaluate kernels.name=synthetic " MODEL), 2);
    CU_ASSERT(command_says(command.err, "computes no loss"));
}

static void check_singular(void)
{
    struct command command = {0};

    CU_ASSERT_EQUAL(command_run(&command, "run --evaluate --steps 1 model.layers=1 model.width=32 "
                                          "model.heads=2 model.sequence=16 pipeline.ranks=1 "
                                          "pipeline.microbatches=1"),
                    0);
    CU_ASSERT(command_says(command.err, " on 1 rank, 1 stage, 1 microbatch, 1 tick a step; "));
    CU_ASSERT(command_says(command.err, " in 1 step; "));
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"the loss is that of training, in V m + P - 1 ticks", check_same_loss},
        {"of a checkpoint, under other plans, not a bit changes", check_resumed},
        {"a text is read once, whatever a step takes", check_whole_corpus},
        {"the last labels are a part of a sample, and count", check_last_part},
        {"plan --evaluate and --dry-run show the evaluation", check_planned},
        {"of tokens no bits per byte are claimed", check_tokens},
        {"nothing is left behind", check_leaves_nothing},
        {"one of a kind is said as one", check_singular},
        {"plans with backwards and kernels without a loss are refused", check_refused},
    };

    command_work("evaluate");
    return hd_check_main("evaluate", checks, HD_CHECK_COUNT(checks));
}
