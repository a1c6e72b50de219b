/* bench/program.c - a child, and its lines. */
#include "bench/program.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

int hd_bench_program_find(const char *name, char path[PATH_MAX])
{
    char exe[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", exe, sizeof exe - 1);

    if (length <= 0) {
        return 0;
    }
    exe[length] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash == NULL) {
        return 0;
    }
    *slash = '\0';
    const int written = snprintf(path, PATH_MAX, "%s/../libexec/heddle/%s", exe, name);
    return written > 0 && written < PATH_MAX && access(path, X_OK) == 0;
}

/* What a child does after fork: exec, or leave. */
static void program_become(const char *path, char *const *words, int output)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("OMP_NUM_THREADS", "1", 1);
    dup2(output, STDOUT_FILENO);
    execv(path, words);
    _exit(HD_BENCH_NOT_RUN);
}

hd_status hd_bench_child_start(struct hd_bench_child *child, const char *path, char *const *words)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0) {
        return HD_SYSTEM;
    }
    child->pid = fork();
    if (child->pid == 0) {
        program_become(path, words, ends[1]);
    }
    close(ends[1]);
    if (child->pid < 0) {
        close(ends[0]);
        return HD_SYSTEM;
    }
    child->output = ends[0];
    return HD_OK;
}

void hd_bench_child_read(struct hd_bench_child *child,
                         void (*take)(void *context, const char *line), void *context)
{
    char line[HD_BENCH_LINE_BYTES];
    FILE *const stream = fdopen(child->output, "r");
    int state = 0;

    while (stream != NULL && fgets(line, sizeof line, stream) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        take(context, line);
    }
    if (stream != NULL) {
        fclose(stream);
    } else {
        close(child->output);
    }
    while (waitpid(child->pid, &state, 0) < 0 && errno == EINTR) {
    }
    child->exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : HD_BENCH_NOT_RUN;
}
