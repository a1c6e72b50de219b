#include "base/clock.h"
#include "conform/check.h"
#include "conform/suites.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const run_level_names[] = {"load", "api", "semantics", "fault", "speed"};
static const char *const run_verdict_names[] = {"pass", "fail", "skip"};

const char *hd_conform_level_name(uint32_t level)
{
    assert(level < HD_CONFORM_LEVEL_COUNT);
    return run_level_names[level];
}

int hd_conform_level_of(const char *name, uint32_t *level)
{
    for (uint32_t i = 0; i < HD_CONFORM_LEVEL_COUNT; i++) {
        if (strcmp(run_level_names[i], name) == 0) {
            *level = i;
            return 1;
        }
    }
    return 0;
}

const char *hd_conform_verdict_name(uint32_t verdict)
{
    assert(verdict <= HD_CONFORM_SKIPPED);
    return run_verdict_names[verdict];
}

const struct hd_conform_check *hd_conform_suite(uint32_t kind, uint32_t *count)
{
    assert(kind >= HD_KIND_SCHEDULE && kind <= HD_KIND_KERNEL);
    *count = 0;
    const struct hd_conform_check *suite = kind == HD_KIND_SCHEDULE    ? hd_conform_schedules
                                           : kind == HD_KIND_TRANSPORT ? hd_conform_transports
                                                                       : hd_conform_kernels;
    while (suite[*count].name != NULL) {
        (*count)++;
    }
    return suite;
}

const struct hd_conform_check *hd_conform_find(uint32_t kind, const char *name)
{
    uint32_t count;
    const struct hd_conform_check *suite = hd_conform_suite(kind, &count);

    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(suite[i].name, name) == 0) {
            return &suite[i];
        }
    }
    return NULL;
}

/* --- a child ------------------------------------------------------------------------------- */

/* How a child ended. */
struct ending {
    int status; /* of waitpid */
    int is_overdue;
    uint64_t took_ns;
};

/* In the child: its own group, no core file, and no longer than its parent. */
static void run_become_child(pid_t parent)
{
    const struct rlimit none = {0, 0};

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CORE, &none);
    if (getppid() != parent) {
        _exit(1);
    }
}

/* Waits for the end of a child; at the deadline, and at its end, nothing of its group is left.  A
   deadline before which something has moved is put off by as much again. */
static struct ending run_await(pid_t pid, struct hd_conform_verdict_page *page, uint32_t limit_s)
{
    struct pollfd entry = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    const uint64_t begin_ns = hd_now_ns();
    uint64_t deadline_ns = begin_ns + limit_s * HD_S_NS;
    struct ending ending = {0};
    uint32_t moved = 0;
    int ready = 0;

    setpgid(pid, pid);
    while (ready <= 0 && !ending.is_overdue) {
        const uint64_t now_ns = hd_now_ns();
        const uint64_t left_ms = now_ns < deadline_ns ? (deadline_ns - now_ns) / HD_MS_NS + 1 : 0;
        ready = poll(&entry, 1, (int)left_ms);
        if (ready <= 0 && hd_now_ns() >= deadline_ns) {
            const uint32_t before = moved;
            moved = atomic_load(&page->moved);
            ending.is_overdue = moved == before;
            deadline_ns = hd_now_ns() + limit_s * HD_S_NS;
        }
    }
    close(entry.fd);
    kill(-pid, SIGKILL);
    while (waitpid(pid, &ending.status, 0) < 0 && errno == EINTR) {
    }
    ending.took_ns = hd_now_ns() - begin_ns;
    return ending;
}

/* What a child died of, where it did not end by itself; 0: it did. */
static int run_describe_death(const struct ending *ending, uint32_t limit_s, char *text,
                              uint32_t capacity)
{
    if (ending->is_overdue) {
        snprintf(text, capacity, "not over after %u s, and killed", limit_s);
    } else if (WIFSIGNALED(ending->status)) {
        const int signal_number = WTERMSIG(ending->status);
        snprintf(text, capacity, "died of SIG%s", sigabbrev_np(signal_number));
    } else if (WEXITSTATUS(ending->status) != 0) {
        snprintf(text, capacity, "left the process with exit code %d", WEXITSTATUS(ending->status));
    } else {
        return 0;
    }
    return 1;
}

static void run_perform(const struct hd_conform_subject *subject,
                        const struct hd_conform_check *row, struct hd_conform_verdict_page *page)
{
    static struct hd_conform_case check;

    check.subject = subject;
    check.plugin = subject->plugin;
    check.page = page;
    check.random = subject->seed;
    hd_conform_host_init(&check);
    row->run(&check);
    atomic_store(&page->is_over, 1);
}

static void run_conclude(struct hd_conform_verdict_page *page, const struct ending *ending,
                         uint32_t limit_s, struct hd_conform_result *result)
{
    char death[256];

    result->seconds = (double)ending->took_ns / 1e9;
    if (atomic_load(&page->written) != 0) {
        result->verdict = page->verdict;
        snprintf(result->text, sizeof result->text, "%s", page->text);
    } else if (run_describe_death(ending, limit_s, death, sizeof death)) {
        result->verdict = HD_CONFORM_FAILED;
        snprintf(result->text, sizeof result->text, "%s%s%s", page->place,
                 page->place[0] != '\0' ? ": " : "", death);
    } else if (atomic_load(&page->is_over) == 0) {
        result->verdict = HD_CONFORM_FAILED;
        snprintf(result->text, sizeof result->text, "%s%sleft the process", page->place,
                 page->place[0] != '\0' ? ": " : "");
    } else {
        result->verdict = HD_CONFORM_PASSED;
        snprintf(result->text, sizeof result->text, "%s", page->remark);
    }
}

hd_status hd_conform_run(const struct hd_conform_subject *subject,
                         const struct hd_conform_check *check, struct hd_conform_result *result,
                         struct hd_problem *problem)
{
    const pid_t parent = getpid();
    struct hd_conform_verdict_page *page =
        mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    *result = (struct hd_conform_result){.check = check};
    if (page == MAP_FAILED) {
        return hd_problem_set(problem, HD_NO_MEMORY, HD_EXIT_FAILED, "out of memory");
    }
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        run_become_child(parent);
        run_perform(subject, check, page);
        fflush(NULL);
        _exit(0);
    }
    hd_status status = HD_OK;
    if (pid < 0) {
        status = hd_problem_set(problem, HD_SYSTEM, HD_EXIT_FAILED, "no child can be had: %s",
                                strerror(errno));
    } else {
        const uint32_t limit_s = subject->limit_s > 0 ? subject->limit_s : check->limit_s;
        const struct ending ending = run_await(pid, page, limit_s);
        run_conclude(page, &ending, limit_s, result);
    }
    munmap(page, sizeof *page);
    return status;
}
