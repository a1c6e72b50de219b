/*
 * tests/test_base_child.c - a child returns, crashes, hangs or prints, and its parent knows which.
 *
 * Source: base/child.h.
 */
#include "base/child.h"
#include "base/clock.h"
#include "support/check.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void write_answer(void *context, void *answer)
{
    *(int *)answer = *(const int *)context + 1;
}

static void crash(void *context, void *answer)
{
    write_answer(context, answer);
    abort();
}

static void hang(void *context, void *answer)
{
    write_answer(context, answer);
    if (fork() >= 0) { /* a grandchild keeps the group alive */
        pause();
    }
}

static void print(void *context, void *answer)
{
    (void)answer;
    if (write(STDOUT_FILENO, context, strlen(context)) < 0) {
        _exit(1);
    }
    _exit(3);
}

static void check_endings(void)
{
    const struct {
        const char *name;
        void (*work)(void *context, void *answer);
        uint64_t limit_ns;
        bool has_group, ends;
        int signal; /* 0: exit code 0 */
    } rows[] = {
        {"it returns", write_answer, 60 * HD_S_NS, false, true, 0},
        {"it crashes", crash, 60 * HD_S_NS, false, true, SIGABRT},
        {"it hangs", hang, 100 * HD_MS_NS, true, false, SIGKILL},
    };
    int given = 41;

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        const struct hd_child_request request = {.work = rows[i].work,
                                                 .context = &given,
                                                 .answer_bytes = sizeof given,
                                                 .has_group = rows[i].has_group};
        struct hd_child child;
        CU_ASSERT_EQUAL_FATAL(hd_child_start(&child, &request), HD_OK);
        CU_ASSERT_EQUAL(hd_child_wait(&child, hd_now_ns() + rows[i].limit_ns), rows[i].ends);
        const pid_t pid = child.pid;
        const int status = hd_child_stop(&child);
        CU_ASSERT_EQUAL(*(int *)child.answer, 42);
        CU_ASSERT_EQUAL(WIFSIGNALED(status) ? WTERMSIG(status) : 0, rows[i].signal);
        CU_ASSERT_EQUAL(kill(pid, 0), -1);
        hd_child_free(&child);
    }
}

static void check_output(void)
{
    const char text[] = "a line\n";
    char read_text[64] = "";
    struct hd_child child;
    const struct hd_child_request request = {
        .work = print, .context = (void *)text, .has_output = true};

    CU_ASSERT_EQUAL_FATAL(hd_child_start(&child, &request), HD_OK);
    CU_ASSERT_EQUAL(read(child.output, read_text, sizeof read_text - 1), (ssize_t)strlen(text));
    CU_ASSERT_STRING_EQUAL(read_text, text);
    CU_ASSERT_EQUAL(read(child.output, read_text, 1), 0); /* the parent holds no writing end */
    CU_ASSERT_TRUE(hd_child_wait(&child, UINT64_MAX));
    CU_ASSERT_EQUAL(WEXITSTATUS(hd_child_stop(&child)), 3);
    CU_ASSERT_EQUAL(child.output, -1);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"the parent knows how a child ends, and reads its answer", check_endings},
        {"the parent reads what a child prints", check_output},
    };
    return hd_check_main("base_child", checks, HD_CHECK_COUNT(checks));
}
