/*
 * bench/program.h - programs beside this one that measure what the core cannot link.
 *
 * They lie in libexec/heddle, in a build tree and in a prefix; each is run as a child that dies
 * with its parent, and says what it found in lines.
 */
#ifndef HEDDLE_BENCH_PROGRAM_H
#define HEDDLE_BENCH_PROGRAM_H

#include "base/child.h"

#include <limits.h>

#define HD_BENCH_LINE_BYTES 1024u
#define HD_BENCH_NOT_RUN    127 /* the exit code of a child that could not become its program */

/* 0: it is not there, or not for this user. */
int hd_bench_program_find(const char *name, char path[PATH_MAX]);

/* Runs the program with its stdout in child->output.  `words` ends with NULL and begins with the
   program's name.  HD_SYSTEM, with errno. */
hd_status hd_bench_program_start(struct hd_child *child, const char *path, char *const *words);
/* Hands over every line, without its end, until the program ends; returns its exit code. */
int hd_bench_program_read(struct hd_child *child, void (*take)(void *context, const char *line),
                          void *context);

#endif /* HEDDLE_BENCH_PROGRAM_H */
