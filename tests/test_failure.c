/*
 * tests/test_failure.c - what a run does when something ends (docs/architecture.md).
 *
 * Real runs of four ranks are killed, stopped, interrupted and starved, at every action and between
 * them.  Each must end by itself with the exit code of the cause, name the culprit first, say who
 * waited for whom in the words of the schedule, and leave no process.  No time is measured: a run
 * that does not end within LIMIT_S is killed by the test and has failed.
 */
#include "support/check.h"
#include "support/command.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT_S = 30, WORDS_BYTES = 4096, RANK_COUNT = 4, EXIT_PEER = 5 };

static char faulty[WORDS_BYTES], synthetic[WORDS_BYTES];

/* Deadlines are short, so that a test of one does not take long; the first has the start in it. */
#define RUN                                                                     \
    "run pipeline.ranks=4 pipeline.schedule=1f1b output.directory=run --quiet " \
    "--overwrite "
#define SHORT "transport.timeout_s=0.5 transport.first_step_timeout_s=3 "

/* Whatever carries the tensors, a failure looks the same. */
#define SLOWLY "transport.first_step_timeout_s=25 " /* UCX opens in its time */
#define TAG    "transport.name=ucx_tag " SLOWLY
#define PUT    "transport.name=ucx_put " SLOWLY
#define LATE(inner) \
    "transport.name=hook_fault transport.hook_fault.delay_us=200 transport.inner=" inner " "

static const char *const lanes[] = {
    "",
    TAG,
    PUT "transport.ucx_put.tls=tcp,self",
    LATE("shm"),
    TAG "transport.ucx_tag.tls=tcp,self",
    PUT,
    LATE("ucx_put") SLOWLY "transport.ucx_put.tls=tcp,self",
};

/* The words of one after the other; where UCX is not installed, shm stands in. */
static const char *lane_of(unsigned number)
{
    const char *words = lanes[number % HD_CHECK_COUNT(lanes)];
    const int has_ucx = access(hd_check_plugin("heddle_transport_ucx_tag.so"), R_OK) == 0;

    return has_ucx || strstr(words, "ucx") == NULL ? words : "";
}

static void make_words(void)
{
    snprintf(faulty, sizeof faulty,
             RUN SHORT "--plugin-dir %s kernels.name=faulty pipeline.microbatches=8 train.steps=3",
             hd_check_build("tests/fault"));
    /* A step of 36 ms, and more steps than anybody waits for. */
    snprintf(synthetic, sizeof synthetic,
             RUN SHORT "kernels.name=synthetic pipeline.microbatches=4 cost.tick_us=2000 "
                       "train.steps=100000");
}

static int run_exit(void)
{
    cJSON *json = command_json("run/run.json");
    const cJSON *code = cJSON_GetObjectItemCaseSensitive(json, "exit");
    const int value = cJSON_IsNumber(code) ? code->valueint : -1;

    cJSON_Delete(json);
    return value;
}

/* stderr, for whoever reads the failed test. */
static void complain(const struct command *command, const char *words, int code)
{
    char *text = command_text(command->err);
    fprintf(stderr, "\nheddle %s\nexit %d, stderr:\n%s\n", words, code, text);
    free(text);
}

static void expect_says(const struct command *command, const char *text)
{
    if (!command_says(command->err, text)) {
        fprintf(stderr, "\nstderr lacks '%s'", text);
        complain(command, "", -1);
        CU_FAIL("stderr does not say it");
    }
}

/* "run WORDS MORE" ends with `code`, and run.json says so. */
static struct command expect(const char *words, const char *more, int code)
{
    char line[2 * WORDS_BYTES];
    struct command command = {0};

    snprintf(line, sizeof line, "%s %s", words, more);
    command_begin(&command, line);
    const int got = command_end(&command, LIMIT_S);
    if (got != code) {
        complain(&command, line, got);
    }
    CU_ASSERT_EQUAL(got, code);
    return command;
}

/* Behind what UCX itself says with its dying breath: it asserts in a rank whose peer dies while the
   two connect over tcp (docs/transports.md). */
static void expect_first(const struct command *command, const char *text)
{
    char *whole = command_text(command->err);
    const char *line = whole;

    while (line[0] == '[' && strchr(line, '\n') != NULL) {
        line = strchr(line, '\n') + 1;
    }
    if (strncmp(line, text, strlen(text)) != 0) {
        complain(command, text, -1);
        CU_FAIL("the first line does not name the culprit");
    }
    free(whole);
}

static void expect_all_gone(const pid_t ranks[], uint32_t count)
{
    for (uint32_t rank = 0; rank < count; rank++) {
        CU_ASSERT(command_is_gone(ranks[rank], LIMIT_S));
    }
}

/* Nothing of ours may have a name that outlives a run. */
static void expect_no_names(void)
{
    DIR *directory = opendir("/dev/shm");

    for (const struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        CU_ASSERT_PTR_NULL(strstr(entry->d_name, "heddle"));
    }
    if (directory != NULL) {
        closedir(directory);
    }
}

/* --- at every action ------------------------------------------------------------------------- */

static void die_at(uint32_t stage, char kind, uint32_t microbatch, const char *lane)
{
    char more[512], first[128];

    snprintf(more, sizeof more,
             "pipeline.microbatches=3 kernel.faulty.action=%u%c%u kernel.faulty.step=2 "
             "kernel.faulty.does=kill %s",
             stage, kind, microbatch, lane);
    const struct command command = expect(faulty, more, EXIT_PEER);
    snprintf(first, sizeof first, "rank %u died at %u%c%u (", stage, stage, kind, microbatch);
    expect_first(&command, first);
    CU_ASSERT(command_says(command.err, " is waiting ") ||
              command_says(command.err, "has finished"));
    CU_ASSERT_EQUAL(run_exit(), EXIT_PEER);
}

static void test_killed_at_every_action(void)
{
    for (uint32_t stage = 0; stage < RANK_COUNT; stage++) {
        for (uint32_t microbatch = 0; microbatch < 3; microbatch++) {
            die_at(stage, 'F', microbatch, "");
            die_at(stage, 'B', microbatch, "");
        }
    }
    expect_no_names();
}

static void test_killed_over_every_lane(void)
{
    for (unsigned number = 1; number < HD_CHECK_COUNT(lanes); number++) {
        die_at(number % RANK_COUNT, number % 2 == 0 ? 'B' : 'F', 1, lane_of(number));
    }
    expect_no_names();
}

/* C74 to the word: who had done what, and who waits for what. */
static void test_progress_of_the_others(void)
{
    const struct command command =
        expect(faulty, "kernel.faulty.action=2F3 kernel.faulty.does=kill", EXIT_PEER);

    expect_first(&command, "rank 2 died at 2F3 (5 actions done in step 1), killed by signal 9 "
                           "(Killed)\nrank 2 died at 2F3 (5 actions done in step 1)\n");
    expect_says(&command, "rank 0 is waiting for 0B2 from rank 1, which ");
    expect_says(&command, " 8 actions done in step 1)");
    expect_says(&command, "rank 1 is waiting for 1B2 from rank 2, which died at 2F3 (");
    expect_says(&command, " 7 actions done in step 1)");
    expect_says(&command, "rank 3 is waiting for 3F3 from rank 2, which died at 2F3 (");
    expect_says(&command, " 6 actions done in step 1)");
    cJSON *hang = command_json("run/hang.json");
    const cJSON *ranks = cJSON_GetObjectItemCaseSensitive(hang, "ranks");
    CU_ASSERT_EQUAL(cJSON_GetArraySize(ranks), RANK_COUNT);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(cJSON_GetStringValue(cJSON_GetArrayItem(ranks, 0)), "rank 2 died at 2F3"));
    cJSON_Delete(hang);
}

static void test_stopped_at_actions(void)
{
    static const struct {
        const char *action, *first;
        uint32_t rank;
    } rows[] = {
        {"0F0", "rank 0 has been stopped at 0F0", 0},
        {"2F3", "rank 2 has been stopped at 2F3", 2},
        {"3B7", "rank 3 has been stopped at 3B7", 3},
        {"1B2", "rank 1 has been stopped at 1B2", 1},
    };

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char more[256];
        snprintf(more, sizeof more,
                 "kernel.faulty.action=%s kernel.faulty.does=stop kernel.faulty.step=%u %s",
                 rows[i].action, i == 0 ? 1 : 2, lane_of(i));
        const struct command command = expect(faulty, more, EXIT_PEER);
        expect_says(&command, "was stopped by signal 19");
        expect_says(&command, rows[i].first);
        expect_says(&command, " is waiting ");
        CU_ASSERT_EQUAL(run_exit(), EXIT_PEER);
    }
}

/* --- at any moment --------------------------------------------------------------------------- */

static void wait_us(uint32_t duration_us)
{
    const struct timespec pause = {duration_us / 1000000, (long)(duration_us % 1000000) * 1000};
    nanosleep(&pause, NULL);
}

/* Starts a run that would last for an hour. */
static void begin(struct command *command, const char *more, pid_t ranks[RANK_COUNT])
{
    char line[2 * WORDS_BYTES];

    unlink("run/metrics.jsonl");
    snprintf(line, sizeof line, "%s %s", synthetic, more);
    command_begin(command, line);
    CU_ASSERT_EQUAL_FATAL(command_ranks(command->pid, RANK_COUNT, ranks), RANK_COUNT);
}

/* Until `steps` steps are done. */
static void await_step(const struct command *command, uint32_t step)
{
    char text[32];

    snprintf(text, sizeof text, "\"step\": %u,", step);
    CU_ASSERT_FATAL(command_await(command->pid, "run/metrics.jsonl", text));
}

/* Any moment is right: while they open, in a step, between steps; which one is luck. */
static void test_killed_at_any_moment(void)
{
    static const uint32_t moments_us[] = {0, 2000, 5000, 9000, 20000, 41000, 77000, 150000};

    for (unsigned i = 0; i < sizeof moments_us / sizeof moments_us[0]; i++) {
        const uint32_t rank = (i * 7 + 1) % RANK_COUNT;
        struct command command = {0};
        pid_t ranks[RANK_COUNT];
        char first[64];
        begin(&command, lane_of(i), ranks);
        wait_us(moments_us[i]);
        CU_ASSERT_EQUAL(kill(ranks[rank], SIGKILL), 0);
        const int code = command_end(&command, LIMIT_S);
        CU_ASSERT_EQUAL(code, EXIT_PEER);
        snprintf(first, sizeof first, "rank %u died at ", rank);
        expect_first(&command, first);
        CU_ASSERT_EQUAL(run_exit(), EXIT_PEER);
        expect_all_gone(ranks, RANK_COUNT);
    }
    expect_no_names();
}

static void test_stopped_at_any_moment(void)
{
    static const uint32_t moments_us[] = {0, 7000, 90000, 200000};

    for (unsigned i = 0; i < sizeof moments_us / sizeof moments_us[0]; i++) {
        const uint32_t rank = (i + 1) % RANK_COUNT;
        struct command command = {0};
        pid_t ranks[RANK_COUNT];
        char culprit[64];
        begin(&command, lane_of(i + 3), ranks);
        if (strstr(lane_of(i + 3), SLOWLY) != NULL) {
            await_step(&command, 1);
        }
        wait_us(moments_us[i]);
        CU_ASSERT_EQUAL(kill(ranks[rank], SIGSTOP), 0);
        CU_ASSERT_EQUAL(command_end(&command, LIMIT_S), EXIT_PEER);
        snprintf(culprit, sizeof culprit, "\nrank %u has been stopped at ", rank);
        expect_says(&command, culprit);
        CU_ASSERT_EQUAL(run_exit(), EXIT_PEER);
        expect_all_gone(ranks, RANK_COUNT);
    }
}

static void test_all_ranks_killed(void)
{
    struct command command = {0};
    pid_t ranks[RANK_COUNT];

    begin(&command, "", ranks);
    await_step(&command, 1);
    for (uint32_t rank = 0; rank < RANK_COUNT; rank++) {
        kill(ranks[rank], SIGKILL);
    }
    CU_ASSERT_EQUAL(command_end(&command, LIMIT_S), EXIT_PEER);
    CU_ASSERT(command_says(command.err, " died at "));
}

/* --- what is no failure ----------------------------------------------------------------------- */

/* Every pass takes longer than the deadline; its rank's heart beats. */
static void test_slow_stage(void)
{
    static const char *words = RUN "kernels.name=synthetic pipeline.microbatches=2 train.steps=1 "
                                   "transport.timeout_s=0.5 transport.first_step_timeout_s=0.5 "
                                   "cost.tick_us=600000 cost.forward=0,1,0,0 "
                                   "cost.backward=0,1,0,0";

    expect(words, "", 0);
    CU_ASSERT_EQUAL(run_exit(), 0);
}

/* Goes on before the deadline, which is far away here. */
static void test_stopped_and_continued(void)
{
    static const char *far = "transport.timeout_s=60 transport.first_step_timeout_s=60 "
                             "train.steps=12";
    struct command command = {0};
    pid_t ranks[RANK_COUNT];

    begin(&command, far, ranks);
    await_step(&command, 1);
    kill(ranks[2], SIGSTOP);
    CU_ASSERT_FATAL(command_await(command.pid, command.err, "was stopped by signal 19"));
    kill(ranks[2], SIGCONT);
    CU_ASSERT_EQUAL(command_end(&command, LIMIT_S), 0);
    CU_ASSERT_EQUAL(run_exit(), 0);
}

/* Ctrl-Z and fg: parent and ranks rest longer than the deadline, and go on. */
static void test_whole_group_stopped(void)
{
    struct command command = {.own_group = 1};
    pid_t ranks[RANK_COUNT];

    begin(&command, "train.steps=6", ranks);
    await_step(&command, 1);
    kill(-command.pid, SIGTSTP);
    wait_us(2500000); /* longer than the deadline, and than a late turn of a watchdog */
    kill(-command.pid, SIGCONT);
    const int code = command_end(&command, LIMIT_S);
    if (code != 0) {
        complain(&command, "after Ctrl-Z", code);
    }
    CU_ASSERT_EQUAL(code, 0);
}

/* --- signals ---------------------------------------------------------------------------------- */

static void test_signals_finish_the_step(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};

    for (unsigned i = 0; i < 4; i++) {
        struct command command = {0};
        pid_t ranks[RANK_COUNT];
        begin(&command, "transport.timeout_s=30", ranks);
        await_step(&command, 2);
        kill(command.pid, signals[i]);
        CU_ASSERT_EQUAL(command_end(&command, LIMIT_S), 128 + signals[i]);
        CU_ASSERT_EQUAL(run_exit(), 128 + signals[i]);
        expect_first(&command, "ended by signal ");
        expect_all_gone(ranks, RANK_COUNT);
        cJSON *json = command_json("run/run.json");
        CU_ASSERT(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(json, "losses")) >= 2);
        cJSON_Delete(json);
    }
}

/* A signal to one forked rank alone ends the run as one to the parent does, and is named. */
static void test_signal_to_a_rank(void)
{
    struct command command = {0};
    pid_t ranks[RANK_COUNT];

    begin(&command, "transport.timeout_s=30", ranks);
    await_step(&command, 2);
    kill(ranks[1], SIGTERM);
    CU_ASSERT_EQUAL(command_end(&command, LIMIT_S), 128 + SIGTERM);
    CU_ASSERT_EQUAL(run_exit(), 128 + SIGTERM);
    expect_says(&command, ": ended by signal 15 (");
    expect_says(&command, " got signal 15 (");
    expect_all_gone(ranks, RANK_COUNT);
}

/* A step of minutes: the first signal waits for its end, the second does not. */
static void test_second_signal(void)
{
    struct command command = {0};
    pid_t ranks[RANK_COUNT];

    begin(&command, "cost.tick_us=60000000 transport.timeout_s=600", ranks);
    CU_ASSERT_FATAL(command_await(command.pid, "run/run.json", "\"exit\": null"));
    kill(command.pid, SIGINT); /* the lower number: read first, whatever the moment */
    kill(command.pid, SIGTERM);
    const int code = command_end(&command, LIMIT_S);
    if (code != 128 + SIGINT) {
        complain(&command, "SIGINT, SIGTERM", code);
    }
    CU_ASSERT_EQUAL(code, 128 + SIGINT);
    CU_ASSERT_EQUAL(run_exit(), 128 + SIGINT);
    expect_all_gone(ranks, RANK_COUNT);
}

/* The first signal, and a step that does not end within timeout_s. */
static void test_signal_and_endless_step(void)
{
    struct command command = {0};
    pid_t ranks[RANK_COUNT];

    begin(&command, "cost.tick_us=60000000", ranks);
    CU_ASSERT_FATAL(command_await(command.pid, "run/run.json", "\"exit\": null"));
    kill(command.pid, SIGTERM);
    CU_ASSERT_EQUAL(command_end(&command, LIMIT_S), 128 + SIGTERM);
    expect_says(&command, "the step did not end within 0.5 s");
    expect_all_gone(ranks, RANK_COUNT);
}

static void test_parent_killed(void)
{
    struct command command = {0};
    pid_t ranks[RANK_COUNT];

    begin(&command, "", ranks);
    await_step(&command, 1);
    kill(command.pid, SIGKILL);
    CU_ASSERT_EQUAL(command_end(&command, LIMIT_S), 128 + SIGKILL);
    expect_all_gone(ranks, RANK_COUNT);
    CU_ASSERT(command_says("run/run.json", "\"exit\": null"));
}

static const struct hd_check checks[] = {
    {"a rank killed at every action: exit 5, named, and who waits (issue 2, 9)",
     test_killed_at_every_action},
    {"a rank killed, whatever carries the tensors: the same", test_killed_over_every_lane},
    {"progress of all ranks when rank 2 dies at 2F3 (C74)", test_progress_of_the_others},
    {"a rank stopped at an action: exit 5 at the deadline", test_stopped_at_actions},
    {"a rank killed at any moment: exit 5, nobody left", test_killed_at_any_moment},
    {"a rank stopped at any moment: exit 5, nobody left", test_stopped_at_any_moment},
    {"all ranks killed at once: exit 5", test_all_ranks_killed},
    {"a stage slower than the deadline is no failure", test_slow_stage},
    {"a rank stopped and continued in time goes on", test_stopped_and_continued},
    {"a whole group stopped for longer than the deadline goes on", test_whole_group_stopped},
    {"a signal finishes the step: exit 128 + n", test_signals_finish_the_step},
    {"a signal to one rank alone ends the run", test_signal_to_a_rank},
    {"a second signal ends at once", test_second_signal},
    {"a signal during a step that does not end: 128 + n after timeout_s",
     test_signal_and_endless_step},
    {"the parent killed: the ranks vanish", test_parent_killed},
};

int main(void)
{
    command_work("failure");
    make_words();
    return hd_check_main("failures", checks, HD_CHECK_COUNT(checks));
}
