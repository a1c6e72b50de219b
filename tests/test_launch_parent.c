/* The launcher: signals to the parent, and parents that fail. */
#include "support/check.h"
#include "support/story.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- signals to the parent ------------------------------------------------------------------ */

static bool let_ranks_go_on(void *context, void *shared, const struct hd_launch_event *event)
{
    if (event->kind == HD_LAUNCH_SIGNALLED) {
        atomic_store(&((struct story_board *)shared)->go_on, (uint32_t)event->signal);
    }
    return story_end_on_failure(context, shared, event);
}

static int32_t finish_when_signalled(void *context, struct hd_bootstrap *bootstrap, void *shared)
{
    struct story_board *const board = shared;
    uint32_t all[STORY_RANK_MAX];
    int32_t seen = 0;

    (void)context;
    if (hd_bootstrap_rank(bootstrap) == 0) {
        kill(getppid(), SIGTERM);
    }
    while (!seen) { /* as steps: all see it in the same one */
        const uint32_t mine = atomic_load(&board->go_on);
        if (hd_bootstrap_gather(bootstrap, &mine, sizeof mine, all, story_far_ns()) != HD_OK) {
            return 1;
        }
        seen = all[0] == SIGTERM;
    }
    return 0;
}

static void the_first_signal_is_told_once_and_the_ranks_finish(void)
{
    struct story story = {
        .rank_main = finish_when_signalled, .on_event = let_ranks_go_on, .rank_count = 3};

    CU_ASSERT_EQUAL(story_play(&story), HD_OK);
    CU_ASSERT_EQUAL(story.outcome.signal, SIGTERM);
    CU_ASSERT_EQUAL(story.events[HD_LAUNCH_SIGNALLED], 1);
    for (uint32_t rank = 0; rank < 3; rank++) {
        CU_ASSERT_EQUAL(story.outcome.exit_codes[rank], 0);
    }
}

static int32_t signal_twice_and_stay(void *context, struct hd_bootstrap *bootstrap, void *shared)
{
    struct story_board *const board = shared;

    (void)context;
    if (hd_bootstrap_rank(bootstrap) == 0) {
        kill(getppid(), SIGUSR1);
        while (atomic_load(&board->go_on) == 0) {
            poll(NULL, 0, 1);
        }
        kill(getppid(), SIGINT);
    }
    story_stay();
    return 0;
}

static void the_second_signal_ends_at_once(void)
{
    struct story story = {
        .rank_main = signal_twice_and_stay, .on_event = let_ranks_go_on, .rank_count = 3};

    CU_ASSERT_EQUAL(story_play(&story), HD_OK); /* the grace is an hour */
    CU_ASSERT_EQUAL(story.outcome.signal, SIGUSR1);
    CU_ASSERT_EQUAL(story.events[HD_LAUNCH_SIGNALLED], 1);
    CU_ASSERT_EQUAL(story.outcome.killed_count, 3);
}

/* --- parents that fail ---------------------------------------------------------------------- */

static int
    alive_fds[2]; /* every rank holds the end to write: end of file means that all are gone */

static int32_t say_hello_and_stay(void *context, struct hd_bootstrap *bootstrap, void *shared)
{
    (void)context;
    (void)shared;
    const char hello = (char)hd_bootstrap_rank(bootstrap);
    if (write(alive_fds[1], &hello, 1) == 1 && hello == 2) {
        raise(SIGSTOP);
    }
    story_stay();
    return 0;
}

static void ranks_die_with_their_parent(void)
{
    struct story story = {
        .rank_main = say_hello_and_stay, .on_event = story_never_end, .rank_count = 4};
    struct pollfd ends = {.events = POLLIN};
    char hello;

    CU_ASSERT_EQUAL_FATAL(pipe(alive_fds), 0);
    const pid_t parent = fork();
    if (parent == 0) {
        story_play(&story);
        _exit(1);
    }
    close(alive_fds[1]);
    for (unsigned i = 0; i < 4; i++) {
        CU_ASSERT_EQUAL(read(alive_fds[0], &hello, 1), 1);
    }
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    ends.fd = alive_fds[0];
    CU_ASSERT_EQUAL(poll(&ends, 1, STORY_FAR_S * 1000), 1);
    CU_ASSERT_EQUAL(read(alive_fds[0], &hello, 1), 0);
    close(alive_fds[0]);
}

/* In a process of its own that may have two children more: 0 if the launch failed as it should. */
static int launch_with_few_processes(void)
{
    struct story story = {
        .rank_main = say_hello_and_stay, .on_event = story_never_end, .rank_count = STORY_RANK_MAX};
    const struct rlimit few = {.rlim_cur = 3, .rlim_max = 3};
    const uid_t nobody_else = 2000000 + (uid_t)getpid() % 1000000;

    if (getuid() == 0 && setresuid(nobody_else, nobody_else, nobody_else) != 0) {
        return 1;
    }
    setrlimit(RLIMIT_NPROC, &few);
    const hd_status status = story_play(&story);
    return !(status == HD_SYSTEM && story.problem.exit_code == HD_EXIT_FAILED &&
             strstr(story.problem.message, "cannot start rank") != NULL &&
             CU_get_number_of_failures() == 0);
}

static void a_fork_that_fails_leaves_nobody(void)
{
    int status = 0;
    char hello;

    CU_ASSERT_EQUAL_FATAL(pipe(alive_fds), 0);
    const pid_t parent = fork();
    if (parent == 0) {
        _exit(launch_with_few_processes());
    }
    close(alive_fds[1]);
    waitpid(parent, &status, 0);
    CU_ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    while (read(alive_fds[0], &hello, 1) == 1) {
    }
    close(alive_fds[0]);
}

/* --- what a killed rank leaves ---------------------------------------------------------------- */

static int segment_fds[2];

/* Before it could mark its segment for removal. */
static int32_t make_segment_and_die(void *context, struct hd_bootstrap *bootstrap, void *shared)
{
    (void)context;
    (void)shared;
    if (hd_bootstrap_rank(bootstrap) == 1) {
        const int segment = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
        const ssize_t written = write(segment_fds[1], &segment, sizeof segment);
        kill(getpid(), written == sizeof segment ? SIGKILL : SIGTERM);
    }
    return 0;
}

static void segments_of_a_killed_rank_are_removed(void)
{
    struct story story = {
        .rank_main = make_segment_and_die, .on_event = story_end_on_failure, .rank_count = 2};
    const int own = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
    struct shmid_ds state;
    int segment = -1;

    CU_ASSERT_EQUAL_FATAL(pipe(segment_fds), 0);
    CU_ASSERT_EQUAL(story_play(&story), HD_OK);
    CU_ASSERT_EQUAL(story.outcome.exit_codes[1], 128 + SIGKILL);
    CU_ASSERT_EQUAL(read(segment_fds[0], &segment, sizeof segment), sizeof segment);
    CU_ASSERT_EQUAL(shmctl(segment, IPC_STAT, &state), -1);
    CU_ASSERT(errno == EINVAL || errno == EIDRM);
    close(segment_fds[0]);
    close(segment_fds[1]);
    CU_ASSERT_EQUAL(shmctl(own, IPC_RMID, NULL), 0); /* of somebody else: still there */
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"the first signal is told once, and the ranks finish",
         the_first_signal_is_told_once_and_the_ranks_finish},
        {"the second signal ends at once", the_second_signal_ends_at_once},
        {"ranks die with their parent", ranks_die_with_their_parent},
        {"what a killed rank has not marked for removal is removed",
         segments_of_a_killed_rank_are_removed},
        {"a fork that fails leaves nobody", a_fork_that_fails_leaves_nobody},
    };
    return hd_check_main("launch, parent", checks, HD_CHECK_COUNT(checks));
}
