/*
 * train/rundir.h - the directory that a run leaves (docs/interface.md, "What a run leaves").
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

/* What hd_rundir_create does in a directory that already has a run.json. */
enum hd_rundir_mode {
    HD_RUNDIR_NEW = 0,       /* refuses it */
    HD_RUNDIR_OVERWRITE = 1, /* removes the files of a run and nothing else, run.json last */
    HD_RUNDIR_RESUME = 2,    /* leaves it as it is */
};

struct hd_rundir {
    char path[4096];
    int metrics; /* descriptor of metrics.jsonl, -1 until opened */
    int lock;    /* descriptor of .lock, if is_locked */
    bool is_locked;
};

/*
 * Makes `directory` and log/ in it.  Empty or NULL: runs/NAME-YYYYMMDD-HHMMSS in local time, with
 * -2, -3 .. appended if it exists.  Then points the link `latest` beside it (runs/latest) to it,
 * atomically; if `latest` is not a link, it stays as it is, and a warning is logged.  A
 * directory that another run holds is refused in every mode.  HD_EXIT_USAGE if it is refused,
 * HD_EXIT_OUTPUT for other errors; after an error nothing is locked.
 */
hd_status hd_rundir_create(struct hd_rundir *rundir, const char *directory, const char *name,
                           uint32_t mode, struct hd_problem *problem);

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
/* Ends the lock too. */
void hd_rundir_close(struct hd_rundir *rundir);

/* The first remedy for a write that failed with `error`: free space, or raise the limit. */
const char *hd_output_remedy(int error);

#endif /* HEDDLE_TRAIN_RUNDIR_H */
