/* The launcher: what ranks get and what the parent sees of them. */
#include "base/clock.h"
#include "support/check.h"
#include "support/story.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- a run that ends well ------------------------------------------------------------------- */

static int32_t gather_ten_thousand_times(void *context, struct hd_bootstrap *bootstrap,
                                         void *shared)
{
    struct story_board *const board = shared;
    const uint32_t rank = hd_bootstrap_rank(bootstrap);
    uint64_t mine[4], all[STORY_RANK_MAX * 4];

    (void)context;
    for (uint64_t round = 0; round < 10000; round++) {
        for (unsigned i = 0; i < 4; i++) {
            mine[i] = round * STORY_RANK_MAX + rank;
        }
        if (hd_bootstrap_gather(bootstrap, mine, sizeof mine, all, story_far_ns()) != HD_OK) {
            return 1;
        }
        for (uint32_t i = 0; i < 4 * hd_bootstrap_rank_count(bootstrap); i++) {
            atomic_fetch_add(&board->wrong_count, all[i] != round * STORY_RANK_MAX + i / 4);
        }
    }
    return 0;
}

static void four_processes_gather_ten_thousand_times(void)
{
    struct story story = {.rank_main = gather_ten_thousand_times, .rank_count = 4};

    CU_ASSERT_EQUAL(story_play(&story), HD_OK);
    CU_ASSERT_EQUAL(story.wrong_count, 0);
    for (uint32_t rank = 0; rank < 4; rank++) {
        CU_ASSERT_EQUAL(story.outcome.exit_codes[rank], 0);
    }
    CU_ASSERT_EQUAL(story.events[HD_LAUNCH_EXITED], 4);
    CU_ASSERT_EQUAL(story.events[HD_LAUNCH_ENDED], 1);
    CU_ASSERT_EQUAL(story.outcome.signal, 0);
}

static int32_t look_at_own_signals(void *context, struct hd_bootstrap *bootstrap, void *shared)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGUSR1, SIGPIPE};
    struct story_board *const board = shared;
    struct sigaction action;
    sigset_t mask;

    (void)context;
    for (unsigned i = 0; i < HD_CHECK_COUNT(ignored); i++) {
        sigaction(ignored[i], NULL, &action);
        atomic_fetch_add(&board->wrong_count, action.sa_handler != SIG_IGN);
    }
    sigaction(SIGCHLD, NULL, &action);
    atomic_fetch_add(&board->wrong_count, action.sa_handler != SIG_DFL);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    atomic_fetch_add(&board->wrong_count,
                     sigismember(&mask, SIGCHLD) || sigismember(&mask, SIGHUP));
    return (int32_t)(10 + hd_bootstrap_rank(bootstrap));
}

static void signals_are_as_promised_in_ranks_and_after_the_run(void)
{
    struct story story = {.rank_main = look_at_own_signals, .rank_count = 3};
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before, after;
    sigset_t hangup, mask_before, mask;

    sigemptyset(&hangup);
    sigaddset(&hangup, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &hangup, &mask_before);
    sigaction(SIGCHLD, &ignore, &before); /* as some launchers hand it down */
    CU_ASSERT_EQUAL(story_play(&story), HD_OK);
    sigaction(SIGCHLD, &before, &after);
    pthread_sigmask(SIG_SETMASK, &mask_before, &mask);
    CU_ASSERT_TRUE(after.sa_handler == SIG_IGN);
    CU_ASSERT_TRUE(sigismember(&mask, SIGHUP) && !sigismember(&mask, SIGINT));
    CU_ASSERT_EQUAL(story.wrong_count, 0);
    for (int32_t rank = 0; rank < 3; rank++) {
        CU_ASSERT_EQUAL(story.outcome.exit_codes[rank], 10 + rank);
    }
}

static FILE *printed;

static int32_t print_a_word(void *context, struct hd_bootstrap *bootstrap, void *shared)
{
    (void)context;
    (void)shared;
    fprintf(printed, "rank %u\n", hd_bootstrap_rank(bootstrap));
    return 0;
}

static void buffered_output_is_written_once(void)
{
    struct story story = {.rank_main = print_a_word, .rank_count = 2};
    char text[128] = "";

    printed = tmpfile();
    CU_ASSERT_PTR_NOT_NULL_FATAL(printed);
    fputs("parent\n", printed);
    CU_ASSERT_EQUAL(story_play(&story), HD_OK);
    rewind(printed);
    const size_t read_bytes = fread(text, 1, sizeof text - 1, printed);
    fclose(printed);
    CU_ASSERT_EQUAL(read_bytes, strlen("parent\nrank 0\nrank 1\n"));
    CU_ASSERT_PTR_EQUAL(strstr(text, "parent\n"), text);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "rank 0\n"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "rank 1\n"));
}

/* --- ranks that fail ------------------------------------------------------------------------ */

enum point { AT_START, AFTER_PUT, BEFORE_FENCE, IN_FENCE, BETWEEN_GATHERS, IN_GATHER, EXIT_3 };

static void *die_when_told(void *shared)
{
    struct story_board *const board = shared;

    /* Its main thread is in a wait that only the others could end. */
    while (atomic_load(&board->go_on) == 0) {
        poll(NULL, 0, 1);
    }
    raise(SIGKILL);
    return NULL;
}

static void fail_here(enum point wanted, enum point here, struct story_board *board)
{
    pthread_t thread;

    if (wanted != here) {
        return;
    }
    if (here == IN_FENCE || here == IN_GATHER) {
        pthread_create(&thread, NULL, die_when_told, board);
        atomic_store(&board->go_on, 1);
    } else {
        raise(SIGKILL);
    }
}

/* 5 (as the engine would say) when the run was aborted under it. */
static int32_t fail_at_a_point(void *context, struct hd_bootstrap *bootstrap, void *shared)
{
    struct story *const story = context;
    const uint32_t rank = hd_bootstrap_rank(bootstrap);
    const enum point point = rank == 1 ? *(const enum point *)story->context : EXIT_3 + 1;
    hd_status status = HD_OK;
    uint64_t mine = rank, all[STORY_RANK_MAX];

    fail_here(point, AT_START, shared);
    if (point == EXIT_3) {
        return 3;
    }
    char key[] = {'k', (char)('0' + rank), '\0'};
    hd_bootstrap_put(bootstrap, key, &mine, sizeof mine);
    fail_here(point, AFTER_PUT, shared);
    status = hd_bootstrap_get(bootstrap, "k1", &mine, sizeof mine, story_far_ns());
    fail_here(point, BEFORE_FENCE, shared);
    fail_here(point, IN_FENCE, shared);
    /* Rank 2 never fences or gathers, so nobody gets past. */
    for (unsigned i = 0; i < 100 && status == HD_OK && rank != 2; i++) {
        status = hd_bootstrap_gather(bootstrap, &mine, sizeof mine, all, hd_now_ns());
        fail_here(point, BETWEEN_GATHERS, shared);
        status = status == HD_TIMEOUT ? HD_OK : status;
    }
    fail_here(point, IN_GATHER, shared);
    if (status == HD_OK) {
        status = point == IN_FENCE || rank == 2
                     ? hd_bootstrap_fence(bootstrap, story_far_ns())
                     : hd_bootstrap_gather(bootstrap, &mine, sizeof mine, all, story_far_ns());
    }
    return status == HD_ABORTED ? 5 : 99;
}

static void one_failed_rank_ends_the_others(void)
{
    static const enum point points[] = {AT_START, AFTER_PUT,       BEFORE_FENCE,
                                        IN_FENCE, BETWEEN_GATHERS, IN_GATHER};

    for (unsigned i = 0; i < HD_CHECK_COUNT(points); i++) {
        enum point point = points[i];
        struct story story = {.rank_main = fail_at_a_point, .rank_count = 4, .context = &point};
        CU_ASSERT_EQUAL(story_play(&story), HD_OK);
        for (uint32_t rank = 0; rank < 4; rank++) {
            CU_ASSERT_EQUAL(story.outcome.exit_codes[rank], rank == 1 ? 128 + SIGKILL : 5);
        }
        CU_ASSERT_EQUAL(story.events[HD_LAUNCH_KILLED], 1);
        CU_ASSERT_EQUAL(story.events[HD_LAUNCH_EXITED], 3);
        CU_ASSERT_EQUAL(story.outcome.killed_count, 0); /* they left by themselves */
    }
}

static void an_exit_code_is_the_ranks_own(void)
{
    enum point point = EXIT_3;
    struct story story = {.rank_main = fail_at_a_point, .rank_count = 4, .context = &point};

    CU_ASSERT_EQUAL(story_play(&story), HD_OK);
    for (uint32_t rank = 0; rank < 4; rank++) {
        CU_ASSERT_EQUAL(story.outcome.exit_codes[rank], rank == 1 ? 3 : 5);
    }
    CU_ASSERT_EQUAL(story.events[HD_LAUNCH_KILLED], 0);
}

static int32_t sleep_or_abort(void *context, struct hd_bootstrap *bootstrap, void *shared)
{
    (void)context;
    (void)shared;
    if (hd_bootstrap_rank(bootstrap) == 1) {
        hd_bootstrap_abort(bootstrap);
        return 4;
    }
    story_stay();
    return 0;
}

static void who_does_not_hear_a_ranks_abort_is_killed(void)
{
    struct story story = {
        .rank_main = sleep_or_abort, .on_event = story_never_end, .rank_count = 3, .grace_ms = 50};

    CU_ASSERT_EQUAL(story_play(&story), HD_OK);
    CU_ASSERT_EQUAL(story.outcome.exit_codes[0], 128 + SIGKILL);
    CU_ASSERT_EQUAL(story.outcome.exit_codes[1], 4);
    CU_ASSERT_EQUAL(story.outcome.exit_codes[2], 128 + SIGKILL);
    CU_ASSERT_EQUAL(story.outcome.killed_count, 2);
}

/* --- who was first ---------------------------------------------------------------------------- */

static int32_t stay(void *context, struct hd_bootstrap *bootstrap, void *shared)
{
    (void)context;
    (void)bootstrap;
    (void)shared;
    story_stay();
    return 0;
}

static uint32_t first_killed;

/* Once all are there they die, one after the other, while nobody looks. */
static bool kill_in_turn(void *context, void *shared, const struct hd_launch_event *event)
{
    static const uint32_t order[] = {2, 0, 1};
    struct story_board *const board = shared;
    uint32_t here_count = 0;
    siginfo_t end;

    (void)context;
    for (uint32_t rank = 0; rank < HD_CHECK_COUNT(order); rank++) {
        here_count += atomic_load(&board->pids[rank]) != 0;
    }
    if (event->kind == HD_LAUNCH_TICK && here_count == HD_CHECK_COUNT(order) &&
        atomic_exchange(&board->go_on, 1) == 0) {
        for (uint32_t i = 0; i < HD_CHECK_COUNT(order); i++) {
            const pid_t pid = atomic_load(&board->pids[order[i]]);
            CU_ASSERT_EQUAL(kill(pid, SIGKILL), 0);
            CU_ASSERT_EQUAL(waitid(P_PID, (id_t)pid, &end, WEXITED | WNOWAIT), 0);
        }
    }
    if (event->kind == HD_LAUNCH_KILLED && first_killed == UINT32_MAX) {
        first_killed = event->rank;
    }
    return 0;
}

static void of_several_that_die_the_first_is_told_first(void)
{
    struct story story = {.rank_main = stay, .on_event = kill_in_turn, .rank_count = 3};

    first_killed = UINT32_MAX;
    CU_ASSERT_EQUAL(story_play(&story), HD_OK);
    CU_ASSERT_EQUAL(first_killed, 2);
    CU_ASSERT_EQUAL(story.events[HD_LAUNCH_KILLED], 3);
}

/* --- ranks that are stopped ----------------------------------------------------------------- */

static int32_t stop_rank_one(void *context, struct hd_bootstrap *bootstrap, void *shared)
{
    (void)context;
    (void)shared;
    if (hd_bootstrap_rank(bootstrap) == 1) {
        raise(SIGSTOP);
    }
    return hd_bootstrap_fence(bootstrap, story_far_ns()) == HD_OK ? 0 : 5;
}

static bool end_on_stop(void *context, void *shared, const struct hd_launch_event *event)
{
    (void)context;
    (void)shared;
    return event->kind == HD_LAUNCH_STOPPED && event->rank == 1 && event->signal == SIGSTOP;
}

static void a_stopped_rank_does_not_outlive_an_abort(void)
{
    struct story story = {
        .rank_main = stop_rank_one, .on_event = end_on_stop, .rank_count = 3, .grace_ms = 1000};

    CU_ASSERT_EQUAL(story_play(&story), HD_OK);
    CU_ASSERT_EQUAL(story.outcome.exit_codes[0], 5);
    CU_ASSERT_EQUAL(story.outcome.exit_codes[1], 128 + SIGKILL);
    CU_ASSERT_EQUAL(story.outcome.exit_codes[2], 5);
    CU_ASSERT_EQUAL(story.outcome.killed_count, 1);
}

static bool continue_the_stopped(void *context, void *shared, const struct hd_launch_event *event)
{
    if (event->kind == HD_LAUNCH_STOPPED) {
        kill(event->pid, SIGCONT);
    }
    return story_end_on_failure(context, shared, event);
}

static void a_rank_that_was_stopped_goes_on(void)
{
    struct story story = {
        .rank_main = stop_rank_one, .on_event = continue_the_stopped, .rank_count = 3};

    CU_ASSERT_EQUAL(story_play(&story), HD_OK);
    for (uint32_t rank = 0; rank < 3; rank++) {
        CU_ASSERT_EQUAL(story.outcome.exit_codes[rank], 0);
    }
    CU_ASSERT_EQUAL(story.events[HD_LAUNCH_STOPPED], 1);
}

/* --- the environment ------------------------------------------------------------------------ */

static void a_command_started_several_times_refuses_to_fork(void)
{
    static const struct {
        const char *variable, *value;
        hd_status status;
    } rows[] = {
        {"SLURM_STEP_NUM_TASKS", "4", HD_UNSUPPORTED},
        {"SLURM_STEP_NUM_TASKS", "1", HD_OK},
        {"OMPI_COMM_WORLD_SIZE", "2", HD_UNSUPPORTED},
        {"OMPI_COMM_WORLD_SIZE", "1", HD_OK},
        {"PMI_SIZE", "128", HD_UNSUPPORTED},
        {"PMI_SIZE", "", HD_OK},
        {"SLURM_NTASKS", "8", HD_OK}, /* an allocation, where nobody has started anything yet */
    };

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        struct hd_problem problem = {.exit_code = 0};
        char line[4096];
        setenv(rows[i].variable, rows[i].value, 1);
        CU_ASSERT_EQUAL(hd_launch_check_environment(&problem), rows[i].status);
        unsetenv(rows[i].variable);
        hd_problem_line(&problem, line, sizeof line);
        const int refused = rows[i].status != HD_OK;
        CU_ASSERT_EQUAL(problem.exit_code, refused ? HD_EXIT_USAGE : 0);
        CU_ASSERT_EQUAL(strstr(line, rows[i].variable) != NULL, refused);
        CU_ASSERT_TRUE(!refused || strstr(line, rows[i].value) != NULL);
        CU_ASSERT_TRUE(!refused || strstr(line, "start it once") != NULL);
    }
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"four processes gather ten thousand times", four_processes_gather_ten_thousand_times},
        {"signals are as promised, in ranks and after the run",
         signals_are_as_promised_in_ranks_and_after_the_run},
        {"buffered output is written once", buffered_output_is_written_once},
        {"one rank killed at any point ends the others", one_failed_rank_ends_the_others},
        {"an exit code is the rank's own", an_exit_code_is_the_ranks_own},
        {"who does not hear a rank's abort is killed", who_does_not_hear_a_ranks_abort_is_killed},
        {"of several that die the first is told first",
         of_several_that_die_the_first_is_told_first},
        {"a stopped rank does not outlive an abort", a_stopped_rank_does_not_outlive_an_abort},
        {"a rank that was stopped and continued goes on", a_rank_that_was_stopped_goes_on},
        {"a command started several times refuses to fork",
         a_command_started_several_times_refuses_to_fork},
    };
    return hd_check_main("launch", checks, HD_CHECK_COUNT(checks));
}
