/*
 * train/rundir.h - the directory of a run, once output/rundir_create.h has made it.
 *
 * A file is written to NAME.tmp and renamed.  If the disk is full or the directory cannot be
 * written, the error is HD_EXIT_OUTPUT with the path and the remedy.  Rank 0 and the parent
 * process write here; the other ranks write only their logs.
 *
 * One run at a time: the process that creates or opens the directory holds a lock (fcntl) on its
 * file .lock.  The lock ends with that process, and forked processes do not share it; the empty
 * file stays.  On a file system without locks a warning is logged, and the directory is not
 * guarded.
 */
#ifndef HEDDLE_TRAIN_RUNDIR_H
#define HEDDLE_TRAIN_RUNDIR_H

#include "base/problem.h"
#include "train/metrics.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define HD_RUNDIR_PATH_BYTES 4096

struct hd_rundir {
    char path[HD_RUNDIR_PATH_BYTES];
    int metrics; /* descriptor of metrics.jsonl, -1 until opened */
    int lock;    /* descriptor of .lock, if is_locked */
    bool is_locked;
};

/* True if another process holds the run's directory.  The process that holds it must not call this:
   closing the file would end its lock. */
bool hd_rundir_is_busy(const char *path);

/* Writes `text` to path/NAME.tmp, syncs and renames it.  On HD_EXIT_OUTPUT NAME has not changed. */
hd_status hd_rundir_write(const struct hd_rundir *rundir, const char *name, const char *text,
                          uint64_t bytes, struct hd_problem *problem);

/* The same in pieces: opens a stream to path/NAME.tmp, which `commit` flushes, syncs, renames and
   closes.  If any write to it has failed, `commit` removes it: HD_EXIT_OUTPUT. */
hd_status hd_rundir_open(const struct hd_rundir *rundir, const char *name, FILE **stream,
                         struct hd_problem *problem);
hd_status hd_rundir_commit(const struct hd_rundir *rundir, const char *name, FILE *stream,
                           struct hd_problem *problem);

/* Appends one line to metrics.jsonl, which it opens on first use, in one write, so that a kill
   leaves whole lines.  What a full disk cuts short is removed again. */
hd_status hd_rundir_metrics(struct hd_rundir *rundir, const struct hd_metrics *metrics,
                            struct hd_problem *problem);
/* Gives the lock back. */
void hd_rundir_unlock(struct hd_rundir *rundir);
/* Ends the lock too. */
void hd_rundir_close(struct hd_rundir *rundir);

/* HD_EXIT_OUTPUT: `path` cannot be `verb` ("made"), because of `error`.  Returns HD_SYSTEM. */
hd_status hd_rundir_fail(struct hd_problem *problem, const char *path, const char *verb, int error);
/* path/NAMEend in `out`; 0, or ENAMETOOLONG. */
int hd_rundir_join(char out[HD_RUNDIR_PATH_BYTES], const char *path, const char *name,
                   const char *end);

/* The first remedy for a write that failed with `error`: free space, or raise the limit. */
const char *hd_output_remedy(int error);

#endif /* HEDDLE_TRAIN_RUNDIR_H */
