/*
 * tests/test_serial_run.c - law 7 as a user meets it: orders that are refused, what the order
 * costs, and runs over a transport that is strictly rendezvous (tests/fault/transport_rendezvous).
 *
 * That the transport would stand still in a wrong order is shown by a run without law 7.
 */
#include "support/check.h"
#include "support/command.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIMIT_S = 60, WORDS_BYTES = 4096, EXIT_USAGE = 2, EXIT_PLAN = 4, EXIT_PEER = 5 };
enum { PART_MAX = 6, RANK_COUNT = 4 };

static char over_rendezvous[WORDS_BYTES];

#define SMALL                                                                             \
    "output.directory=run output.checkpoint_every=never --overwrite --quiet "             \
    "kernels.name=synthetic cost.tick_us=1 model.width=64 model.layers=8 train.steps=2 "  \
    "model.sequence=16 data.microbatch_size=1 debug.checksum=on transport.timeout_s=0.7 " \
    "transport.first_step_timeout_s=0.7 "

/* What a command must give: its exit code, and texts on stderr. */
struct row {
    const char *verb;
    const char *words;
    int code;
    const char *parts[PART_MAX];
};

static void expect(const struct row *row)
{
    char line[2 * WORDS_BYTES];
    struct command command = {0};
    int has = 1;

    snprintf(line, sizeof line, "%s %s%s %s", row->verb, strcmp(row->verb, "run") == 0 ? SMALL : "",
             over_rendezvous, row->words);
    command_begin(&command, line);
    const int code = command_end(&command, LIMIT_S);
    char *text = command_text(command.err);
    for (unsigned i = 0; i < PART_MAX && row->parts[i] != NULL; i++) {
        has = has && strstr(text, row->parts[i]) != NULL;
    }
    if (code != row->code || !has) {
        fprintf(stderr, "\nheddle %s\nexit %d, not %d; stderr:\n%s\n", line, code, row->code, text);
        CU_FAIL("a command did not end as it must");
    }
    free(text);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fputs(text, file);
    fclose(file);
}

/* One forward, one backward, of two ranks: in the order of the programs both send first. */
#define NAIVE "pipeline.schedule=naive.csv transport.issue_order=program "
#define CYCLE                                                            \
    "rank 0 at the transfer of 0F1 waits for the transfer of 1B0; "      \
    "rank 1 at the transfer of 1B0 waits for the transfer of 0F1: give " \
    "canonical, in which all ranks issue in one order"

static void test_naive_order(void)
{
    static const char *const refusal =
        "rank 0: transport.issue_order: with one transfer at a time in the order of the programs, "
        "the transfer of 0F1 can never start: " CYCLE;
    const struct row rows[] = {
        {"plan", NAIVE, EXIT_PLAN, {refusal}},
        {"run", NAIVE, EXIT_PLAN, {refusal}},
        {"run", NAIVE "--dry-run", EXIT_PLAN, {refusal}},
        {"plan", "pipeline.schedule=naive.csv", 0, {NULL}},
        {"run", "pipeline.schedule=naive.csv", 0, {NULL}},
        {"plan", "pipeline.schedule=gpipe transport.issue_order=program", 0, {NULL}},
        {"run", "pipeline.schedule=gpipe transport.issue_order=program", 0, {NULL}},
        {"run", "transport.name=hook_fault transport.inner=rendezvous", 0, {NULL}},
        {"run",
         "transport.name=hook_fault transport.inner=rendezvous transport.hook_fault.delay_us=9",
         3,
         {"inner is serial and needs its messages in one order"}},
        {"run",
         "transport.issue_order=grouped transport.name=shm",
         EXIT_USAGE,
         {"transport.issue_order: transport shm is not serial"}},
    };

    write_file("naive.csv", "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n");
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        expect(&rows[i]);
    }
}

/* The cycle that the cases name (C13): every rank of the pipeline sends first. */
static void test_wrong_order_stands_still(void)
{
    static const struct row rows[] = {
        {"run",
         NAIVE "debug.fault=unproven_order",
         EXIT_PEER,
         {"rank 0 is waiting at 0B0 behind a transfer with rank 1, which has itself been waiting "
          "at 1F1",
          "(channel 0, sequence 1,",
          "rank 1 is waiting at 1F1 behind a transfer with rank 0, which has itself been waiting "
          "at 0B0",
          "(channel 1, sequence 0,", "no rank moved for 0.7 s"}},
        {"run",
         "pipeline.schedule=1f1b transport.issue_order=program debug.fault=unproven_order",
         EXIT_PEER,
         {"(channel 0, sequence 3,", "(channel 1, sequence 2,", "(channel 2, sequence 1,",
          "(channel 5, sequence 0,", "no rank moved for 0.7 s"}},
    };

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        expect(&rows[i]);
    }
}

static double number_at(const cJSON *object, const char *key)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(value) ? value->valuedouble : NAN;
}

/* docs/architecture.md, "The plan": interleaved P = 4, transfer 1, costs 110 ticks against 71. */
static void test_price(void)
{
    static const struct {
        const char *words;
        const char *order;
        double ticks, side_by_side;
    } rows[] = {
        {"", "canonical", 110, 71},
        {"transport.issue_order=grouped", "grouped", 83, 71},
        {"cost.mode=serial transport.name=shm", "canonical", 110, 71},
    };

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        char line[2 * WORDS_BYTES];
        struct command command = {0};
        snprintf(line, sizeof line,
                 "plan --json %s pipeline.schedule=interleaved_1f1b --timeline costed "
                 "cost.transfer=1 %s",
                 over_rendezvous, rows[i].words);
        CU_ASSERT_EQUAL(command_run(&command, line), 0);
        cJSON *json = command_json(command.out);
        const cJSON *serial = cJSON_GetObjectItemCaseSensitive(json, "serial");
        const char *order =
            cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(serial, "issue_order"));
        CU_ASSERT_PTR_NOT_NULL_FATAL(order);
        CU_ASSERT_STRING_EQUAL(order, rows[i].order);
        CU_ASSERT_DOUBLE_EQUAL(number_at(serial, "ticks"), rows[i].ticks, 1e-9);
        CU_ASSERT_DOUBLE_EQUAL(number_at(json, "ticks"), rows[i].ticks, 1e-9);
        CU_ASSERT_DOUBLE_EQUAL(number_at(serial, "side_by_side_ticks"), rows[i].side_by_side, 1e-9);
        cJSON_Delete(json);
    }
}

/* In one order ranks wait behind each other's transfers, in circles where all but one wait: while
   that one runs, it is no hang. */
static void test_slow_stage(void)
{
#define SLOW                                                      \
    "cost.tick_us=600000 pipeline.microbatches=4 train.steps=1 "  \
    "transport.timeout_s=0.5 transport.first_step_timeout_s=0.5 " \
    "cost.forward=0,0,0,0,0,0,1,0 cost.backward=0,0,0,0,0,0,0,0 "
    static const struct row rows[] = {
        {"run", SLOW "pipeline.schedule=interleaved_1f1b", 0, {NULL}},
        {"run", SLOW "pipeline.schedule=1f1b_v pipeline.overlap=off", 0, {NULL}},
    };

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        expect(&rows[i]);
    }
}

static void test_stopped_rank(void)
{
    for (uint32_t rank = 0; rank < RANK_COUNT; rank += 3) {
        char line[2 * WORDS_BYTES], culprit[64];
        struct command command = {0};
        pid_t ranks[RANK_COUNT];
        snprintf(line, sizeof line,
                 "run " SMALL "%s pipeline.schedule=interleaved_1f1b train.steps=1000000",
                 over_rendezvous);
        command_begin(&command, line);
        CU_ASSERT_EQUAL_FATAL(command_ranks(command.pid, RANK_COUNT, ranks), RANK_COUNT);
        CU_ASSERT_FATAL(command_await(command.pid, "run/metrics.jsonl", "\"step\": 2,"));
        CU_ASSERT_EQUAL(kill(ranks[rank], SIGSTOP), 0);
        CU_ASSERT_EQUAL(command_end(&command, LIMIT_S), EXIT_PEER);
        snprintf(culprit, sizeof culprit, "rank %u has been stopped at ", rank);
        CU_ASSERT_TRUE(command_says(command.err, culprit));
        for (uint32_t i = 0; i < RANK_COUNT; i++) {
            CU_ASSERT_TRUE(command_is_gone(ranks[i], LIMIT_S));
        }
    }
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"a naive order is refused with its cycle, by plan and run", test_naive_order},
        {"without law 7 it stands still, and the report says where", test_wrong_order_stands_still},
        {"the price is shown: 110 ticks against 71", test_price},
        {"a stage slower than the deadline is no hang", test_slow_stage},
        {"a stopped rank is named", test_stopped_rank},
    };
    command_work("serial_run");
    snprintf(over_rendezvous, sizeof over_rendezvous, "--plugin-dir %s transport.name=rendezvous ",
             hd_check_build("tests/fault"));
    return hd_check_main("serial_run", checks, HD_CHECK_COUNT(checks));
}
