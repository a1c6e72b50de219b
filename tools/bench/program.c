/* bench/program.c - a child process and the lines that it prints. */
#include "bench/program.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

bool hd_bench_program_find(const char *name, char path[PATH_MAX])
{
    char exe[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", exe, sizeof exe - 1);

    if (length <= 0) {
        return false;
    }
    exe[length] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash == NULL) {
        return false;
    }
    *slash = '\0';
    const int written = snprintf(path, PATH_MAX, "%s/../libexec/heddle/%s", exe, name);
    const bool is_found = written > 0 && written < PATH_MAX && access(path, X_OK) == 0;
    hd_log(HD_LOG_DEBUG, "bench: program %s %s", name, is_found ? path : "is missing");
    return is_found;
}

struct command {
    const char *path;
    char *const *words;
};

static void program_become(void *context, void *answer)
{
    const struct command *const command = context;

    (void)answer;
    setenv("OMP_NUM_THREADS", "1", 1);
    execv(command->path, command->words);
    _exit(HD_BENCH_NOT_RUN);
}

hd_status hd_bench_program_start(struct hd_child *child, const char *path, char *const *words)
{
    struct command command = {path, words};

    return hd_child_start(child, &(struct hd_child_request){.work = program_become,
                                                            .context = &command,
                                                            .has_output = true});
}

int hd_bench_program_read(struct hd_child *child, void (*take)(void *context, const char *line),
                          void *context)
{
    char line[HD_BENCH_LINE_BYTES];
    FILE *const stream = fdopen(dup(child->output), "r");

    while (stream != NULL && fgets(line, sizeof line, stream) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        take(context, line);
    }
    if (stream != NULL) {
        fclose(stream);
    }
    hd_child_wait(child, UINT64_MAX);
    const int state = hd_child_stop(child);
    return WIFEXITED(state) ? WEXITSTATUS(state) : HD_BENCH_NOT_RUN;
}
