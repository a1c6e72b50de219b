/*
 * bench/program.h - programs beside this one that measure what the core cannot link.
 *
 * They lie in libexec/heddle, in a build tree and in a prefix; each is run as a child that dies
 * with its parent, and says what it found in lines.
 */
#ifndef HEDDLE_BENCH_PROGRAM_H
#define HEDDLE_BENCH_PROGRAM_H

#include <heddle/plugin.h>

#include <limits.h>
#include <sys/types.h>

#define HD_BENCH_LINE_BYTES 1024u
#define HD_BENCH_NOT_RUN    127 /* the exit code of a child that could not become its program */

/* 0: it is not there, or not for this user. */
int hd_bench_program_find(const char *name, char path[PATH_MAX]);

struct hd_bench_child {
    pid_t pid;
    int output; /* -1: none */
    int exit_code;
};

/* `words` ends with NULL and begins with the program's name.  HD_SYSTEM, with errno. */
hd_status hd_bench_child_start(struct hd_bench_child *child, const char *path, char *const *words);
/* Hands over every line, without its end, as it comes; then reaps. */
void hd_bench_child_read(struct hd_bench_child *child,
                         void (*take)(void *context, const char *line), void *context);

#endif /* HEDDLE_BENCH_PROGRAM_H */
