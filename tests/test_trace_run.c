/*
 * tests/test_trace_run.c - the trace of a real run: what it says is possible, and adds up to what
 * run.json says.
 *
 * A run of five steps keeps the last three, which are the ones that run.json's means are over.  A
 * second one goes over a slow line: every transfer then takes as long as the line needs, at least.
 *
 * Sources: issue "See it"; docs/architecture.md.
 */
#include "support/check.h"
#include "support/command.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, STAGES = 8, MICROBATCHES = 8, STEPS = 3, MESSAGES = 2 * 7 * MICROBATCHES };

static const char words[] =
    "run pipeline.schedule=interleaved_1f1b pipeline.ranks=4 pipeline.microbatches=8 "
    "kernels.name=synthetic cost.tick_us=100 train.steps=5 train.warmup_steps=0 "
    "output.directory=traced --quiet";

enum { LINE_NS = 400000 }; /* 400 bytes at 1 MB/s */

static const char slow_words[] =
    "run pipeline.schedule=interleaved_1f1b pipeline.ranks=4 pipeline.microbatches=8 "
    "kernels.name=synthetic kernel.synthetic.boundary_bytes=400 cost.tick_us=800 cost.transfer=0.5 "
    "transport.name=hook_fault transport.inner=shm transport.hook_fault.bandwidth_mb=1 "
    "train.steps=5 train.warmup_steps=0 output.directory=slow --quiet";

static cJSON *trace, *run, *slow_trace, *slow_run;

static const cJSON *events(void)
{
    return cJSON_GetObjectItem(trace, "traceEvents")->child;
}

static const char *text_of(const cJSON *event, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(event, key));
    return text != NULL ? text : "";
}

static double number_of(const cJSON *event, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(event, key);
    CU_ASSERT_FATAL(cJSON_IsNumber(item));
    return item->valuedouble;
}

static int is(const cJSON *event, const char *phase, const char *category)
{
    return strcmp(text_of(event, "ph"), phase) == 0 &&
           (category == NULL || strcmp(text_of(event, "cat"), category) == 0);
}

/* In file order a rank's passes stand by their begin. */
static void test_no_overlap(void)
{
    double end[RANKS] = {0};
    unsigned count = 0;

    for (const cJSON *event = events(); event != NULL; event = event->next) {
        if (is(event, "X", "compute")) {
            double *own = &end[(unsigned)number_of(event, "pid")];
            CU_ASSERT(number_of(event, "ts") >= *own - 1e-6);
            *own = number_of(event, "ts") + number_of(event, "dur");
            count++;
        }
    }
    CU_ASSERT_EQUAL(count, STEPS * 2 * STAGES * MICROBATCHES);
}

/* One arrow a message and step; it begins at the producer's end and ends at the consumer's
   begin. */
static void test_arrows(void)
{
    static double sent[STEPS * MESSAGES];
    unsigned counts[3] = {0};

    for (unsigned i = 0; i < STEPS * MESSAGES; i++) {
        sent[i] = INFINITY;
    }
    for (const cJSON *event = events(); event != NULL; event = event->next) {
        if (is(event, "s", "handoff")) {
            const unsigned id = (unsigned)number_of(event, "id");
            CU_ASSERT_FATAL(id < STEPS * MESSAGES && isinf(sent[id]));
            sent[id] = number_of(event, "ts");
            counts[0]++;
        }
        counts[1] += is(event, "t", "handoff") ? 1u : 0u;
    }
    for (const cJSON *event = events(); event != NULL; event = event->next) {
        if (is(event, "f", "handoff")) {
            const unsigned id = (unsigned)number_of(event, "id");
            CU_ASSERT_FATAL(id < STEPS * MESSAGES);
            CU_ASSERT(number_of(event, "ts") >= sent[id]);
            counts[2]++;
        }
    }
    for (unsigned i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(counts[i], STEPS * MESSAGES);
    }
}

/* The most that a stage ever leases is H_s, and of a rank its copies: order fixes both, no clock
   does. */
static void test_leases(void)
{
    static const double retention[STAGES] = {8, 8, 7, 5, 4, 4, 3, 1}; /* the report, Table 10 */
    static const double copies[RANKS] = {11, 9, 7, 5};
    double stage_most[STAGES] = {0}, rank_most[RANKS] = {0};
    unsigned stage;

    for (const cJSON *event = events(); event != NULL; event = event->next) {
        if (!is(event, "C", NULL)) {
            continue;
        }
        const double held = number_of(cJSON_GetObjectItem(event, "args"), "held");
        if (sscanf(text_of(event, "name"), "leases of stage %u", &stage) == 1) {
            CU_ASSERT_FATAL(stage < STAGES);
            stage_most[stage] = fmax(stage_most[stage], held);
        } else {
            double *most = &rank_most[(unsigned)number_of(event, "pid")];
            *most = fmax(*most, held);
        }
    }
    for (unsigned i = 0; i < STAGES; i++) {
        CU_ASSERT_EQUAL(stage_most[i], retention[i]);
    }
    for (unsigned i = 0; i < RANKS; i++) {
        CU_ASSERT_EQUAL(rank_most[i], copies[i]);
    }
}

static double sum_of(const char *category, unsigned rank)
{
    double sum = 0;

    for (const cJSON *event = events(); event != NULL; event = event->next) {
        if (is(event, "X", category) && (unsigned)number_of(event, "pid") == rank) {
            sum += number_of(event, "dur") * 1e-6;
        }
    }
    return sum / STEPS;
}

static void test_sums(void)
{
    for (unsigned rank = 0; rank < RANKS; rank++) {
        const cJSON *row = cJSON_GetArrayItem(cJSON_GetObjectItem(run, "ranks"), (int)rank);
        CU_ASSERT_DOUBLE_EQUAL(sum_of("compute", rank), number_of(row, "compute_seconds"), 1e-8);
        CU_ASSERT_DOUBLE_EQUAL(sum_of("exposed_wait", rank), number_of(row, "exposed_wait_seconds"),
                               1e-8);
        /* The rest also has what comes before the first action and after the last. */
        CU_ASSERT(sum_of("launch", rank) <= number_of(row, "launch_seconds") + 1e-8);
    }
}

/* Over the slow line: how long each transfer took, and that run.json adds up to the trace. */
static void test_slow_line(void)
{
    const cJSON *handoffs = cJSON_GetObjectItem(slow_run, "handoffs");
    const cJSON *transfers = cJSON_GetObjectItem(slow_run, "transfers");
    static const char *const classes[] = {"local", "hidden", "exposed"};
    static const double counts[] = {0, 37, 75}; /* of the plan, asap */
    const double tick_s = 800e-6;
    double sum = 0, hidden = 0, costed = 0, traced = 0;
    unsigned count = 0;

    for (const cJSON *event = cJSON_GetObjectItem(slow_trace, "traceEvents")->child; event != NULL;
         event = event->next) {
        if (is(event, "X", "transfer")) {
            CU_ASSERT(number_of(event, "dur") * 1e3 >= LINE_NS - 1);
            CU_ASSERT(!cJSON_HasObjectItem(cJSON_GetObjectItem(event, "args"), "unknown"));
            traced += number_of(event, "dur") * 1e-6 / STEPS;
            count++;
        }
    }
    CU_ASSERT_EQUAL(count, STEPS * MESSAGES);
    for (unsigned i = 0; i < 3; i++) {
        const cJSON *row = cJSON_GetObjectItem(handoffs, classes[i]);
        const cJSON *measured = cJSON_GetObjectItem(row, "measured");
        const cJSON *planned = cJSON_GetObjectItem(row, "costed");
        const double transfer = number_of(measured, "transfer_seconds");
        CU_ASSERT_EQUAL(number_of(row, "count"), counts[i]);
        CU_ASSERT_DOUBLE_EQUAL(number_of(planned, "transfer_seconds"), counts[i] * 0.5 * tick_s,
                               1e-9);
        CU_ASSERT_DOUBLE_EQUAL(number_of(measured, "hidden_seconds") +
                                   number_of(measured, "exposed_seconds"),
                               transfer, 1e-9);
        sum += transfer;
        hidden += number_of(measured, "hidden_seconds");
        costed += number_of(planned, "exposed_seconds");
    }
    CU_ASSERT_DOUBLE_EQUAL(sum, traced, 1e-8);
    CU_ASSERT_DOUBLE_EQUAL(costed, 15 * tick_s, 1e-9); /* cases, C53 */
    CU_ASSERT_EQUAL(number_of(transfers, "steps"), STEPS);
    CU_ASSERT_EQUAL(number_of(transfers, "unknown"), 0);
    CU_ASSERT_EQUAL(number_of(transfers, "lost_reports"), 0);
    const cJSON *efficiency = cJSON_GetObjectItem(slow_run, "overlap_efficiency");
    CU_ASSERT_DOUBLE_EQUAL(number_of(efficiency, "measured"), hidden / sum, 1e-9);
    CU_ASSERT_DOUBLE_EQUAL(number_of(efficiency, "costed"), 1 - 15 / 56.0, 1e-9);
}

static int run_both(void)
{
    static const char *const lines[] = {words, slow_words};

    command_work("test_trace_run");
    for (unsigned i = 0; i < 2; i++) {
        struct command command = {0};
        if (command_run(&command, lines[i]) != 0) {
            char *text = command_text(command.err);
            printf("the run failed: %s\n", text);
            free(text);
            return 0;
        }
    }
    trace = command_json("traced/trace.json");
    run = command_json("traced/run.json");
    slow_trace = command_json("slow/trace.json");
    slow_run = command_json("slow/run.json");
    return trace != NULL && run != NULL && slow_trace != NULL && slow_run != NULL;
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"passes of a rank never overlap, and none is missing", test_no_overlap},
        {"each consumer begins after its producer's end", test_arrows},
        {"leases reach H_s, ranks their copies", test_leases},
        {"its sums are run.json's", test_sums},
        {"transfers over a slow line take their time, hidden or exposed", test_slow_line},
    };
    const int failed = !run_both() || hd_check_main("trace_run", checks, HD_CHECK_COUNT(checks));

    cJSON_Delete(trace);
    cJSON_Delete(run);
    cJSON_Delete(slow_trace);
    cJSON_Delete(slow_run);
    return failed;
}
