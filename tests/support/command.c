#include "support/command.h"

#include "base/clock.h"
#include "support/check.h"

#include <assert.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORD_MAX = 96, LINE_BYTES = 8192, POLL_NS = 2000000 };

static void nap(void)
{
    const struct timespec pause = {0, POLL_NS};
    nanosleep(&pause, NULL);
}

static uint64_t until(uint32_t limit_s)
{
    return hd_now_ns() + limit_s * HD_S_NS;
}

const char *command_work(const char *name)
{
    static char path[COMMAND_PATH_BYTES];
    char remove[2 * COMMAND_PATH_BYTES + 64];

    snprintf(path, sizeof path, "%s/%s_work", hd_check_build("tests"), name);
    snprintf(remove, sizeof remove, "rm -rf '%s' && mkdir -p '%s'", path, path);
    const int status = system(remove);
    assert(status == 0);
    const int moved = chdir(path);
    assert(moved == 0);
    return path;
}

/* In the child: no return. */
static void execute(const struct command *command, const char *words)
{
    static char line[LINE_BYTES];
    char *list[WORD_MAX + 2];
    unsigned count = 0;
    const int out = open(command->out, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    const int err = open(command->err, O_WRONLY | O_CREAT | O_TRUNC, 0644);

    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    if (command->own_group) {
        setpgid(0, 0);
    }
    snprintf(line, sizeof line, "%s", words);
    list[count++] = (char *)(uintptr_t)hd_check_build("bin/heddle");
    for (char *word = strtok(line, " "); word != NULL; word = strtok(NULL, " ")) {
        assert(count <= WORD_MAX);
        list[count++] = word;
    }
    list[count] = NULL;
    if (command->file_max_bytes > 0) {
        const struct rlimit limit = {command->file_max_bytes, command->file_max_bytes};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    execv(list[0], list);
    _exit(127);
}

void command_begin(struct command *command, const char *words)
{
    static unsigned number;

    snprintf(command->out, sizeof command->out, "out%u", number);
    snprintf(command->err, sizeof command->err, "err%u", number++);
    fflush(NULL);
    command->pid = fork();
    assert(command->pid >= 0);
    if (command->pid == 0) {
        execute(command, words);
    }
    if (command->own_group) {
        setpgid(command->pid, command->pid); /* whoever comes first */
    }
}

int command_end(struct command *command, uint32_t limit_s)
{
    const uint64_t deadline_ns = until(limit_s);
    int state;

    while (waitpid(command->pid, &state, WNOHANG) == 0) {
        if (hd_now_ns() > deadline_ns) {
            kill(command->pid, SIGKILL); /* its ranks die with it */
            waitpid(command->pid, &state, 0);
            return COMMAND_HUNG;
        }
        nap();
    }
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

int command_run(struct command *command, const char *words)
{
    command_begin(command, words);
    return command_end(command, COMMAND_WAIT_S);
}

uint32_t command_ranks(pid_t pid, uint32_t count, pid_t ranks[])
{
    char path[64];
    uint32_t found = 0;

    assert(count <= COMMAND_RANK_MAX);
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    while (found < count && !command_is_gone(pid, 0)) {
        char *text = command_text(path);
        char *at = text;
        for (found = 0; found < count && *at != '\0'; found++) {
            ranks[found] = (pid_t)strtol(at, &at, 10);
            at += strspn(at, " \n");
        }
        free(text);
        if (found < count) {
            nap();
        }
    }
    return found;
}

static int is_gone(pid_t pid)
{
    char path[64], state = 'Z';

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    char *text = command_text(path);
    const char *end = strrchr(text, ')');
    if (end != NULL) {
        state = end[2];
    }
    free(text);
    return state == 'Z' || state == 'X';
}

int command_is_gone(pid_t pid, uint32_t limit_s)
{
    const uint64_t deadline_ns = until(limit_s);
    int gone = is_gone(pid);

    while (!gone && hd_now_ns() < deadline_ns) {
        nap();
        gone = is_gone(pid);
    }
    return gone;
}

char *command_text(const char *path)
{
    FILE *stream = fopen(path, "re");
    size_t length = 0, capacity = 4096;
    char *text = malloc(capacity);

    assert(text != NULL);
    while (stream != NULL) {
        length += fread(text + length, 1, capacity - length - 1, stream);
        if (length + 1 < capacity) {
            fclose(stream);
            break;
        }
        capacity *= 2;
        text = realloc(text, capacity);
        assert(text != NULL);
    }
    text[length] = '\0';
    return text;
}

cJSON *command_json(const char *path)
{
    char *text = command_text(path);
    cJSON *json = cJSON_Parse(text);

    free(text);
    return json;
}

int command_says(const char *path, const char *text)
{
    char *whole = command_text(path);
    const int says = strstr(whole, text) != NULL;

    free(whole);
    return says;
}

int command_await(pid_t pid, const char *path, const char *text)
{
    int says = command_says(path, text);

    while (!says && !command_is_gone(pid, 0)) {
        nap();
        says = command_says(path, text);
    }
    return says;
}
