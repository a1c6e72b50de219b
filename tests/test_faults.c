/*
 * tests/test_faults.c - runs in which one part breaks its word, and runs that cannot begin or end.
 *
 * A transport that loses, repeats, cuts or corrupts one message, a kernel that fails in one action:
 * the run must end with the code of the cause, and the first line must name place and numbers.
 */
#include "support/check.h"
#include "support/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LIMIT_S = 60, WORDS_BYTES = 4096, PART_MAX = 8 };

static char lossy[WORDS_BYTES], faulty[WORDS_BYTES];

#define RUN "run output.directory=run output.checkpoint_every=never --overwrite --quiet "
#define SMALL                                                                         \
    RUN "kernels.name=reference model.layers=4 model.width=32 model.heads=2 "         \
        "model.sequence=8 model.vocabulary=64 model.expert_width=32 model.experts=0 " \
        "data.microbatch_size=1 pipeline.microbatches=4 train.steps=3 train.warmup_steps=0 "

static void make_words(void)
{
    const char *plugins = hd_check_build("tests/fault");

    /* A boundary of 1 x 128 x 64 BF16, as in the cases: 16384 bytes. */
    snprintf(lossy, sizeof lossy,
             RUN "--plugin-dir %s transport.name=lossy kernels.name=synthetic cost.tick_us=1 "
                 "pipeline.ranks=4 pipeline.schedule=1f1b pipeline.microbatches=8 train.steps=2 "
                 "model.width=64 model.sequence=128 data.microbatch_size=1 debug.checksum=on "
                 "transport.timeout_s=1 transport.first_step_timeout_s=1",
             plugins);
    snprintf(faulty, sizeof faulty,
             RUN "--plugin-dir %s kernels.name=faulty pipeline.ranks=4 pipeline.schedule=1f1b "
                 "pipeline.microbatches=8 train.steps=2",
             plugins);
}

/* What a run must give: its exit code, and texts on stderr, the first at its beginning. */
struct row {
    const char *words;
    int code;
    const char *parts[PART_MAX];
};

static int has_parts(const char *text, const struct row *row)
{
    int has = row->parts[0] == NULL || strncmp(text, row->parts[0], strlen(row->parts[0])) == 0;

    for (unsigned i = 1; i < PART_MAX && row->parts[i] != NULL; i++) {
        has = has && strstr(text, row->parts[i]) != NULL;
    }
    return has;
}

static void expect(const char *words, const struct row *row)
{
    char line[2 * WORDS_BYTES];
    struct command command = {0};

    snprintf(line, sizeof line, "%s %s", words, row->words);
    command_begin(&command, line);
    const int code = command_end(&command, LIMIT_S);
    char *text = command_text(command.err);
    if (code != row->code || !has_parts(text, row)) {
        fprintf(stderr, "\nheddle %s\nexit %d, not %d; stderr:\n%s\n", line, code, row->code, text);
        CU_FAIL("a run did not end as it must");
    }
    free(text);
}

static int run_exit(void)
{
    cJSON *json = command_json("run/run.json");
    const cJSON *code = cJSON_GetObjectItemCaseSensitive(json, "exit");
    const int value = cJSON_IsNumber(code) ? code->valueint : -1;

    cJSON_Delete(json);
    return value;
}

/* --- transports ------------------------------------------------------------------------------ */

#define ON_1 "transport.lossy.channel=1 transport.lossy.sequence=5 transport.lossy.does="
#define ON_4 "transport.lossy.channel=4 transport.lossy.sequence=9 transport.lossy.does="

static void test_seal(void)
{
    static const struct row rows[] = {
        {ON_1 "nothing", 0, {NULL}},
        {ON_1 "lose",
         1,
         {"rank 2, receiving for 2F5 of step 1: boundary 1 to 2, activation: expected step 1, "
          "microbatch 5, sequence 5, 16384 bytes",
          "; got step 1, microbatch 6, sequence 6, 16384 bytes"}},
        {ON_1 "repeat",
         1,
         {"rank 2, receiving for 2F6 of step 1: boundary 1 to 2, activation: expected step 1, "
          "microbatch 6, sequence 6,",
          "; got step 1, microbatch 5, sequence 5,"}},
        {ON_1 "cut",
         1,
         {"rank 2, receiving for 2F5 of step 1: boundary 1 to 2,", "sequence 5, 16384 bytes",
          "; got step 1, microbatch 5, sequence 5, 8192 bytes"}},
        {ON_1 "grow", 1, {"rank 2, receiving for 2F5 of step 1:", "sequence 5, 32768 bytes"}},
        {ON_1 "empty", 1, {"rank 2, receiving for 2F5 of step 1:", "sequence 5, 0 bytes"}},
        {ON_1 "corrupt", 1, {"rank 2, receiving for 2F5 of step 1: boundary 1 to 2,", "checksum"}},
        {ON_1 "unseal", 1, {"rank 2, receiving for 2F5 of step 1:", "this is not a seal"}},
        /* Channel 4 brings gradients from rank 2 to rank 1; message 9 is step 2, microbatch 1. */
        {ON_4 "lose",
         1,
         {"rank 1, receiving for 1B1 of step 2: boundary 1 to 2, gradient: expected step 2, "
          "microbatch 1, sequence 9,",
          "; got step 2, microbatch 2, sequence 10,"}},
    };

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        expect(lossy, &rows[i]);
        CU_ASSERT_EQUAL(run_exit(), rows[i].code);
    }
}

/* Without a checksum the seal says nothing of the bytes: the kernel's pattern does. */
static void test_corrupt_without_checksum(void)
{
    static const struct row row = {
        "debug.checksum=off " ON_1 "corrupt", 1, {"rank 2, running 2F5 of step 1: synthetic: "}};

    expect(lossy, &row);
}

/* C76: 0F0 never comes to rank 1. */
static void test_never_completed(void)
{
    static const struct row row = {
        "transport.lossy.does=never",
        5,
        {"", "no rank moved for 1.0 s", "rank 1 is waiting for 1F0 from rank 0, which ",
         "(channel 0, sequence 0, 16384 bytes, waiting ", "rank 0 is waiting for 0B0 from rank 1"}};

    expect(lossy, &row);
    CU_ASSERT_EQUAL(run_exit(), 5);
}

/* C13, C14, C47: messages come late, some before others of other channels; slots exactly at the
   depth, so sources wait for credits.  Every word is checked by the kernel and the checksum. */
static void test_late_messages(void)
{
    static const struct row rows[] = {
        {"transport.lossy.late_us=20000", 0, {NULL}},
        {"transport.lossy.late_us=20000 pipeline.overlap=off debug.poison=on", 0, {NULL}},
        {"transport.lossy.late_us=5000 debug.poison=on pipeline.schedule=interleaved_1f1b",
         0,
         {NULL}},
        {"transport.lossy.late_us=5000 pipeline.schedule=1f1b_v pipeline.overlap=off", 0, {NULL}},
        {"transport.lossy.late_us=9000 pipeline.ranks=2 pipeline.transfer_slots=2,1", 0, {NULL}},
        {"transport.lossy.late_us=9000 pipeline.ranks=2 pipeline.transfer_slots=4,4", 0, {NULL}},
    };

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        expect(lossy, &rows[i]);
    }
}

/* C46: what the numbers are does not depend on when messages come. */
static void test_late_bits(void)
{
    static const char *const words[] = {
        SMALL "pipeline.ranks=2 pipeline.stages_per_rank=2 pipeline.schedule=interleaved_1f1b",
        SMALL "pipeline.ranks=2 pipeline.stages_per_rank=2 pipeline.schedule=interleaved_1f1b "
              "transport.name=lossy transport.lossy.late_us=5000 debug.poison=on",
    };
    char hashes[2][80], line[WORDS_BYTES];

    for (unsigned i = 0; i < 2; i++) {
        struct command command = {0};
        snprintf(line, sizeof line, "%s --plugin-dir %s", words[i], hd_check_build("tests/fault"));
        CU_ASSERT_EQUAL_FATAL(command_run(&command, line), 0);
        cJSON *json = command_json("run/run.json");
        snprintf(hashes[i], sizeof hashes[i], "%s",
                 cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "parameters_hash")));
        cJSON_Delete(json);
    }
    CU_ASSERT_STRING_EQUAL(hashes[0], hashes[1]);
}

/* --- kernels --------------------------------------------------------------------------------- */

static void test_kernel_faults(void)
{
    static const struct row rows[] = {
        {"", 0, {NULL}},
        {"kernel.faulty.action=1F2 kernel.faulty.does=fail",
         3,
         {"rank 1, running 1F2 of step 1: faulty: thrown on purpose in 1F2", "rank 0 ", "rank 2 ",
          "rank 3 ", "rank 1 has been at 1F2"}},
        {"kernel.faulty.action=1B2 kernel.faulty.step=2 kernel.faulty.does=silent",
         3,
         {"rank 1, running 1B2 of step 2: faulty returned HD_DEVICE"}},
        {"kernel.faulty.action=2F3 kernel.faulty.does=leave",
         1,
         {"rank 2 died at 2F3 (5 actions done in step 1), with exit code 0"}},
        {"kernel.faulty.other_boundary=1",
         3,
         {"", "boundary 0 to 1: stage 0 sends 16384 bytes of type 2, stage 1 expects 32768 of "
              "type 0"}},
    };

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        expect(faulty, &rows[i]);
        CU_ASSERT_EQUAL(run_exit(), rows[i].code);
    }
}

/* A kernel that computes nothing: all that is measured is waiting. */
static void test_gap(void)
{
    struct command command = {0};
    char line[2 * WORDS_BYTES];

    snprintf(line, sizeof line, "%s", faulty);
    CU_ASSERT_EQUAL_FATAL(command_run(&command, line), 0);
    CU_ASSERT(command_says(command.out, "bubble planned 27.3 % (symbolic), measured "));
    CU_ASSERT(command_says(command.out, "points above the plan"));
}

/* Each device once, in order of the first rank that has it. */
static void test_devices(void)
{
    static const struct row row = {"", 0, {NULL}};

    expect(faulty, &row);
    CU_ASSERT(command_says("run/run.json", "\"devices\": [\"nothing, with faults\", \"nothing, "
                                           "with faults, on rank 3\"]"));
}

static void test_rounding(void)
{
#if defined(__x86_64__)
    static const struct row row = {
        "kernel.faulty.action=2F3 kernel.faulty.does=flush",
        3,
        {"rank 2, running 2F3 of step 1: kernel faulty changed the processor's rounding"}};

    expect(faulty, &row);
#endif
}

/* C77: every rank leaves a log that says why.  At 1B2 every rank has opened its channels, because
   the gradient comes from the last rank. */
static void test_every_rank_says_why(void)
{
    static const struct row row = {"kernel.faulty.action=1B2 kernel.faulty.does=fail", 3, {NULL}};

    expect(faulty, &row);
    for (unsigned rank = 0; rank < 4; rank++) {
        char path[64];
        snprintf(path, sizeof path, "run/log/rank-%04u.log", rank);
        CU_ASSERT(command_says(path, "thrown on purpose in 1B2"));
        CU_ASSERT(command_says(path, ": forward over boundary "));
    }
    CU_ASSERT(command_says("run/log/rank-0003.log",
                           "channel 2: forward over boundary 2, rank 2 to rank 3, by shm"));
    CU_ASSERT(command_says("run/hang.json", "rank 1 has been at 1B2"));
}

/* --- numbers ---------------------------------------------------------------------------------- */

/* Weights grow a millionfold in each step. */
#define WILD                                                                             \
    "train.learning_rate=1000 train.weight_decay=1000 train.clip_norm=0 train.steps=30 " \
    "pipeline.ranks=4 "

static void test_nonfinite(void)
{
    static const struct row rows[] = {
        {WILD,
         6,
         {"step ", ": the loss is ", "parameters are those of step ", "train.skip_max is 0"}},
        {WILD "train.skip_max=1", 6, {"step ", "train.skip_max is 1"}},
    };

    /* Several times: once, who was quick to end the run kept rank 0 from writing the step. */
    for (unsigned i = 0; i < 8; i++) {
        expect(SMALL, &rows[i % 2]);
        CU_ASSERT_EQUAL(run_exit(), 6);
        CU_ASSERT(command_says("run/metrics.jsonl", ": null,"));
        CU_ASSERT(command_says("run/metrics.jsonl", "\"skipped\": 1"));
    }
}

/* C44: what is leased at once is what the plan counts, and not a copy a microbatch. */
static void test_peak_copies(void)
{
    static const struct {
        const char *words;
        int copies[4];
    } rows[] = {
        {"pipeline.schedule=1f1b pipeline.microbatches=8", {4, 3, 2, 1}},
        {"pipeline.schedule=gpipe pipeline.microbatches=8", {8, 8, 8, 8}},
        {"pipeline.schedule=interleaved_1f1b pipeline.microbatches=8", {11, 9, 7, 5}},
        {"pipeline.schedule=1f1b_v pipeline.microbatches=8", {6, 6, 6, 6}},
        {"pipeline.schedule=1f1b pipeline.microbatches=2", {2, 2, 2, 1}},
    };

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char line[WORDS_BYTES];
        struct command command = {0};
        snprintf(line, sizeof line,
                 RUN "kernels.name=synthetic cost.tick_us=0 pipeline.ranks=4 train.steps=3 %s",
                 rows[i].words);
        CU_ASSERT_EQUAL_FATAL(command_run(&command, line), 0);
        cJSON *json = command_json("run/run.json");
        const cJSON *ranks = cJSON_GetObjectItemCaseSensitive(json, "ranks");
        for (int rank = 0; rank < 4; rank++) {
            const cJSON *peak = cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(ranks, rank),
                                                                 "peak_payload_slots");
            CU_ASSERT_EQUAL(peak->valueint, rows[i].copies[rank]);
        }
        cJSON_Delete(json);
    }
}

/* --- before and after ------------------------------------------------------------------------- */

static void write_file(const char *path, const char *bytes, size_t count)
{
    FILE *stream = fopen(path, "we");

    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    fwrite(bytes, 1, count, stream);
    fclose(stream);
}

static void test_refused_before(void)
{
    static const struct row rows[] = {
        {"data.corpus=empty.txt", 2, {"empty.txt: data.corpus: is empty"}},
        {"model.width=1048576 model.sequence=1048576",
         1,
         {"rank ", ", allocating: cannot allocate ", "`heddle plan` prints"}},
        {"data.corpus=nothere", 2, {"nothere: data.corpus: cannot be opened"}},
        {"data.corpus=short.txt model.vocabulary=256", 2, {"short.txt: data.corpus: "}},
        {"data.corpus=short.txt", 2, {"short.txt: data.corpus: token 0 (at byte 0) is 97"}},
        {"data.corpus=odd.bin data.token_bytes=2", 2, {"odd.bin: data.corpus: "}},
        {"transport.progress_thread=on",
         2,
         {"command line: transport.progress_thread: transport shm needs no progress thread"}},
        {"model.layers=3 pipeline.ranks=4", 2, {"command line: model.layers: 3 layers cannot"}},
        {"model.split=1,1 model.layers=2",
         2,
         {"command line: model.split: 2 entries for 4 stages"}},
        {"model.split=1,1,1,2",
         2,
         {"command line: model.split: the numbers add up to 5, not to 4 layers"}},
    };

    write_file("empty.txt", "", 0);
    write_file("short.txt", "abc", 3);
    write_file("odd.bin", "\1\0\2", 3);
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct command command = {0};
        char line[2 * WORDS_BYTES];
        expect(SMALL, &rows[i]);
        snprintf(line, sizeof line, "%s %s", SMALL, rows[i].words);
        CU_ASSERT_EQUAL(command_run(&command, line), rows[i].code);
        char *text = command_text(command.err);
        CU_ASSERT_PTR_EQUAL(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
        free(text);
    }
}

/* C80: a launcher that starts the command several times. */
static void test_launchers(void)
{
    static const char *const names[] = {"SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};

    for (unsigned i = 0; i < 3; i++) {
        char first[64];
        snprintf(first, sizeof first, "environment: %s: it is 4", names[i]);
        const struct row row = {"", 2, {first}};
        setenv(names[i], "4", 1);
        expect(SMALL, &row);
        setenv(names[i], "1", 1);
        expect(SMALL, &(struct row){"train.steps=1 pipeline.ranks=1", 0, {NULL}});
        unsetenv(names[i]);
    }
}

static void test_directories(void)
{
    static const char *words = "run pipeline.ranks=2 pipeline.microbatches=2 train.steps=1 "
                               "kernels.name=synthetic cost.tick_us=0 --quiet";

    expect(words, &(struct row){"output.directory=once", 0, {NULL}});
    expect(words, &(struct row){
                      "output.directory=once", 2, {"once: output.directory: already holds a run"}});
    expect(words, &(struct row){"output.directory=once --overwrite", 0, {NULL}});
    write_file("file", "x", 1);
    expect(words, &(struct row){"output.directory=file/run", 7, {"file/run: output.directory: "}});
}

/* The disk is full after 4 KiB: metrics.jsonl, which rank 0 writes, and run.json, which the parent
   writes, are longer. */
static void test_full_disk(void)
{
    struct command command = {.file_max_bytes = 4096};
    char line[WORDS_BYTES];

    snprintf(line, sizeof line, "%s", SMALL "train.steps=200 output.directory=full");
    command_begin(&command, line);
    CU_ASSERT_EQUAL(command_end(&command, LIMIT_S), 7);
    CU_ASSERT(command_says(command.err, "full/"));
    CU_ASSERT(command_says(command.err, "raise the limit on the size of a file (ulimit -f)"));
    char *metrics = command_text("full/metrics.jsonl");
    const size_t length = strlen(metrics);
    CU_ASSERT(length == 0 || metrics[length - 1] == '\n');
    free(metrics);
}

/* --json: one object, with error where there is one, whatever happened. */
static void test_json(void)
{
    static const struct {
        const char *words;
        int code;
    } rows[] = {
        {"", 0},
        {"pipeline.rank=3", 2},
        {"kernels.name=nothere", 3},
        {"pipeline.payload_slots=1", 4},
        {"kernels.name=faulty kernel.faulty.action=2F3 kernel.faulty.does=kill", 5},
        {WILD, 6},
        {"output.directory=file/run", 7},
    };

    write_file("file", "x", 1);
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char line[2 * WORDS_BYTES];
        struct command command = {0};
        snprintf(line, sizeof line, "%s --plugin-dir %s --json %s", SMALL "pipeline.ranks=4",
                 hd_check_build("tests/fault"), rows[i].words);
        const int code = command_run(&command, line);
        char *text = command_text(command.out);
        cJSON *json = cJSON_ParseWithOpts(text, NULL, 1);
        const cJSON *error = cJSON_GetObjectItemCaseSensitive(json, "error");
        if (code != rows[i].code || json == NULL || strchr(text, '\n')[1] != '\0') {
            fprintf(stderr, "\n%s: exit %d: %s\n", line, code, text);
            CU_FAIL("--json is not one object with the cause");
        }
        CU_ASSERT_EQUAL(code == 0, error == NULL);
        CU_ASSERT(error == NULL ||
                  cJSON_GetObjectItemCaseSensitive(error, "code")->valueint == rows[i].code);
        cJSON_Delete(json);
        free(text);
    }
}

static const struct hd_check checks[] = {
    {"the seal names boundary, step, microbatch, expected and got (C17, C56, C58)", test_seal},
    {"corrupt bytes without a checksum are seen by the kernel that checks them",
     test_corrupt_without_checksum},
    {"a receive that never completes is a timeout with channel and sequence (C76)",
     test_never_completed},
    {"late messages, slots at the depth: every word arrives (C13, C14, C47)", test_late_messages},
    {"late messages change no bit (C46)", test_late_bits},
    {"a kernel that fails is named with rank and action (C56, C77)", test_kernel_faults},
    {"a gap between plan and measurement is said (C97)", test_gap},
    {"run.json has the devices of all ranks", test_devices},
    {"a kernel that sets flush-to-zero ends with 3", test_rounding},
    {"every rank's log says why it left (C77)", test_every_rank_says_why},
    {"a loss that is not finite: 6, the step, null in the metrics", test_nonfinite},
    {"payload slots in use at once are the plan's copies (C43, C44)", test_peak_copies},
    {"what cannot run is refused in one line before a rank starts", test_refused_before},
    {"a launcher that starts the command several times is refused (C80)", test_launchers},
    {"output directories: taken, replaced, not to be made", test_directories},
    {"a full disk: 7, and whole lines", test_full_disk},
    {"--json is one object for every outcome", test_json},
};

int main(void)
{
    command_work("faults");
    make_words();
    return hd_check_main("faults", checks, HD_CHECK_COUNT(checks));
}
