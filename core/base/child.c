#include "base/child.h"

#include "base/clock.h"
#include "base/number.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

_Noreturn static void child_main(const struct hd_child *child,
                                 const struct hd_child_request *request, pid_t parent, int output)
{
    const struct rlimit no_core = {0, 0};

    if (child->has_group) {
        setpgid(0, 0);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CORE, &no_core);
    if (getppid() != parent) { /* the parent died before prctl took effect */
        _exit(1);
    }
    if (output >= 0) {
        dup2(output, STDOUT_FILENO);
    }
    request->work(request->context, child->answer);
    _exit(0);
}

static void child_close(int *descriptor)
{
    if (*descriptor >= 0) {
        close(*descriptor);
    }
    *descriptor = -1;
}

hd_status hd_child_start(struct hd_child *child, const struct hd_child_request *request)
{
    const pid_t parent = getpid();
    int ends[2] = {-1, -1};

    *child = (struct hd_child){.answer_bytes = request->answer_bytes,
                               .output = -1,
                               .pid = -1,
                               .pidfd = -1,
                               .has_group = request->has_group};
    if (request->answer_bytes > 0) {
        void *const answer = mmap(NULL, request->answer_bytes, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (answer == MAP_FAILED) {
            return HD_SYSTEM;
        }
        child->answer = answer;
    }
    if (!request->has_output || pipe2(ends, O_CLOEXEC) == 0) {
        fflush(NULL); /* or the child would write the parent's buffers as well */
        child->pid = fork();
    }
    if (child->pid == 0) {
        child_main(child, request, parent, ends[1]);
    }
    const int error = errno;
    child_close(&ends[1]);
    child->output = ends[0];
    if (child->pid < 0) {
        child_close(&child->output);
        hd_child_free(child);
        errno = error;
        return HD_SYSTEM;
    }
    if (child->has_group) {
        setpgid(child->pid, child->pid); /* whichever of the two processes runs first */
    }
    child->pidfd = (int)syscall(SYS_pidfd_open, child->pid, 0);
    return HD_OK;
}

bool hd_child_wait(const struct hd_child *child, uint64_t deadline_ns)
{
    struct pollfd ended = {.fd = child->pidfd, .events = POLLIN};

    for (;;) {
        siginfo_t info = {.si_pid = 0};
        if (waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid != 0) {
            return true;
        }
        const uint64_t now_ns = hd_now_ns();
        if (now_ns >= deadline_ns) {
            return false;
        }
        const uint64_t left_ms = (deadline_ns - now_ns) / HD_MS_NS + 1;
        poll(&ended, 1, child->pidfd >= 0 ? (int)hd_min_u64(left_ms, INT_MAX) : 1);
    }
}

int hd_child_stop(struct hd_child *child)
{
    int status = 0;

    kill(child->has_group ? -child->pid : child->pid, SIGKILL);
    while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR) {
    }
    child_close(&child->pidfd);
    child_close(&child->output);
    return status;
}

void hd_child_free(struct hd_child *child)
{
    if (child->answer != NULL) {
        munmap(child->answer, child->answer_bytes);
        child->answer = NULL;
    }
}
