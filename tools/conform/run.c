#include "base/child.h"
#include "base/clock.h"
#include "conform/check.h"
#include "conform/suites.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const run_level_names[] = {"load", "api", "semantics", "fault", "speed"};
static const char *const run_verdict_names[] = {"pass", "fail", "skip"};

const char *hd_conform_level_name(uint32_t level)
{
    assert(level < HD_CONFORM_LEVEL_COUNT);
    return run_level_names[level];
}

bool hd_conform_level_of(const char *name, uint32_t *level)
{
    for (uint32_t i = 0; i < HD_CONFORM_LEVEL_COUNT; i++) {
        if (strcmp(run_level_names[i], name) == 0) {
            *level = i;
            return true;
        }
    }
    return false;
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
    bool is_overdue;
    uint64_t took_ns;
};

/* Waits for the end of a child and kills its whole group.  If a pass was made before the deadline,
   the child gets as much time again. */
static struct ending run_await(struct hd_child *child, uint32_t limit_s)
{
    struct hd_conform_verdict_page *const page = child->answer;
    const uint64_t begin_ns = hd_now_ns();
    struct ending ending = {0};
    uint32_t moved = 0;

    while (!ending.is_overdue && !hd_child_wait(child, hd_now_ns() + limit_s * HD_S_NS)) {
        const uint32_t before = moved;
        moved = atomic_load(&page->moved);
        ending.is_overdue = moved == before;
    }
    ending.status = hd_child_stop(child);
    ending.took_ns = hd_now_ns() - begin_ns;
    return ending;
}

/* Describes how a child died; false: it ended with exit code 0. */
static bool run_describe_death(const struct ending *ending, uint32_t limit_s, char *text,
                               uint32_t capacity)
{
    if (ending->is_overdue) {
        snprintf(text, capacity, "killed, because it did not end within %u s", limit_s);
    } else if (WIFSIGNALED(ending->status)) {
        const int signal_number = WTERMSIG(ending->status);
        snprintf(text, capacity, "killed by SIG%s", sigabbrev_np(signal_number));
    } else if (WEXITSTATUS(ending->status) != 0) {
        snprintf(text, capacity, "the process ended with exit code %d",
                 WEXITSTATUS(ending->status));
    } else {
        return false;
    }
    return true;
}

/* What the child runs. */
struct job {
    const struct hd_conform_subject *subject;
    const struct hd_conform_check *row;
};

static void run_perform(void *context, void *answer)
{
    static struct hd_conform_case check;
    const struct job *const job = context;

    check.subject = job->subject;
    check.plugin = job->subject->plugin;
    check.page = answer;
    check.row = job->row;
    check.random = job->subject->seed;
    hd_conform_host_init(&check);
    job->row->run(&check);
    atomic_store(&check.page->is_over, 1);
    fflush(NULL);
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
        snprintf(result->text, sizeof result->text, "%s%sthe process ended", page->place,
                 page->place[0] != '\0' ? ": " : "");
    } else {
        result->verdict = HD_CONFORM_PASSED;
        snprintf(result->text, sizeof result->text, "%s", page->remark);
    }
}

static hd_status run_in_process(struct job *job, struct hd_conform_result *result,
                                struct hd_problem *problem)
{
    struct hd_conform_verdict_page *page =
        mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const uint64_t begin_ns = hd_now_ns();

    if (page == MAP_FAILED) {
        return hd_problem_set(problem, HD_NO_MEMORY, HD_EXIT_FAILED,
                              "cannot allocate memory for the verdict: %s", strerror(errno));
    }
    run_perform(job, page);
    const struct ending ending = {.took_ns = hd_now_ns() - begin_ns};
    run_conclude(page, &ending, 0, result);
    munmap(page, sizeof *page);
    return HD_OK;
}

hd_status hd_conform_run(const struct hd_conform_subject *subject,
                         const struct hd_conform_check *check, struct hd_conform_result *result,
                         struct hd_problem *problem)
{
    struct job job = {subject, check};
    const struct hd_child_request request = {.work = run_perform,
                                             .context = &job,
                                             .answer_bytes = sizeof(struct hd_conform_verdict_page),
                                             .has_group = true};
    struct hd_child child;

    *result = (struct hd_conform_result){.check = check};
    if (subject->is_in_process) {
        return run_in_process(&job, result, problem);
    }
    if (hd_child_start(&child, &request) != HD_OK) {
        return hd_problem_set(problem, HD_SYSTEM, HD_EXIT_FAILED,
                              "cannot start a child process: %s", strerror(errno));
    }
    const uint32_t limit_s = subject->limit_s > 0 ? subject->limit_s : check->limit_s;
    const struct ending ending = run_await(&child, limit_s);
    run_conclude(child.answer, &ending, limit_s, result);
    hd_child_free(&child);
    return HD_OK;
}
