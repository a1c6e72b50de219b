/*
 * bench/program.h - runs programs that measure libraries which heddle itself does not link.
 *
 * They are in libexec/heddle, in a build tree and in an installation.  Each runs as a child that
 * dies with its parent, and prints its results as lines of text.
 */
#ifndef HEDDLE_BENCH_PROGRAM_H
#define HEDDLE_BENCH_PROGRAM_H

#include "base/child.h"

#include <limits.h>
#include <stdbool.h>

#define HD_BENCH_LINE_BYTES 1024u
#define HD_BENCH_NOT_RUN    127 /* the exit code of a child that cannot execute its program */

/* false: the program is missing, or this user may not execute it. */
bool hd_bench_program_find(const char *name, char path[PATH_MAX]);

/* Runs the program with its stdout in child->output.  `words` ends with NULL and begins with the
   program's name.  HD_SYSTEM, with errno. */
hd_status hd_bench_program_start(struct hd_child *child, const char *path, char *const *words);
/* Calls `take` with every line, without its newline, until the program ends; the exit code. */
int hd_bench_program_read(struct hd_child *child, void (*take)(void *context, const char *line),
                          void *context);

#endif /* HEDDLE_BENCH_PROGRAM_H */
