/*
 * tests/support/command.h - the heddle binary of this build as a child process, and what it left.
 *
 * A run is one line of words, as a user types them.  Its stdout and stderr go to files; every wait
 * has a deadline, after which the child and its ranks are killed and the test is told so.
 */
#ifndef HD_TESTS_SUPPORT_COMMAND_H
#define HD_TESTS_SUPPORT_COMMAND_H

#include <cjson/cJSON.h>

#include <stdint.h>
#include <sys/types.h>

enum { COMMAND_RANK_MAX = 16, COMMAND_PATH_BYTES = 1024, COMMAND_HUNG = -1, COMMAND_WAIT_S = 120 };

struct command {
    pid_t pid;
    char out[COMMAND_PATH_BYTES], err[COMMAND_PATH_BYTES]; /* files */
    uint32_t file_max_bytes; /* 0: none; else the child may write no longer file */
    uint32_t own_group;      /* 1: the child leads a process group */
};

/* An empty directory for this test program under the build tree, made anew; static. */
const char *command_work(const char *name);

/* Starts "heddle WORDS"; `command` holds flags, and comes back with the pid and the two paths.
   Words are parted by blanks.  A nonzero COMMAND ends in an assertion if fork fails. */
void command_begin(struct command *command, const char *words);
/* The exit code, 128 + n for a death by signal n, or COMMAND_HUNG. */
int command_end(struct command *command, uint32_t limit_s);
/* Both; the whole of stderr or stdout is read with command_text. */
int command_run(struct command *command, const char *words);

/* The ranks that `pid` has forked and that still run or are stopped, in order of rank; waits until
   `count` are there.  0: the parent ended first. */
uint32_t command_ranks(pid_t pid, uint32_t count, pid_t ranks[]);
/* 1 once the process is gone or a zombie; waits for it up to limit_s. */
int command_is_gone(pid_t pid, uint32_t limit_s);

/* A whole file as text, "" if it is not there; owned.  A JSON file; NULL if it is none. */
char *command_text(const char *path);
cJSON *command_json(const char *path);
/* stdout or stderr holds this text. */
int command_says(const char *path, const char *text);

/* Waits until the file at `path` holds `text`; 0 when the process ended before. */
int command_await(pid_t pid, const char *path, const char *text);

#endif /* HD_TESTS_SUPPORT_COMMAND_H */
