/*
 * train/rundir.h - the directory that a run leaves (docs/interface.md, "What a run leaves").
 *
 * Files are written beside and renamed; a full disk or a directory that cannot be written is
 * HD_EXIT_OUTPUT with the path and what to do.  Rank 0 and the parent write here, nobody else but
 * each rank its own log.
 *
 * One run at a time: the process that made or opened the directory holds a lock (fcntl) on its file
 * .lock, which ends with that process, however it ends; forked ones do not share it.  The empty
 * file stays.  On a file system without locks a warning is logged, and nothing guards the
 * directory.
 */
#ifndef HEDDLE_TRAIN_RUNDIR_H
#define HEDDLE_TRAIN_RUNDIR_H

#include "base/problem.h"
#include "train/step.h"

#include <stdint.h>
#include <stdio.h>

/* What hd_rundir_create does in a directory that holds a run: refuse, remove it, go on in it. */
enum hd_rundir_mode { HD_RUNDIR_NEW = 0, HD_RUNDIR_OVERWRITE = 1, HD_RUNDIR_RESUME = 2 };

struct hd_rundir {
    char path[4096];
    int metrics; /* descriptor of metrics.jsonl, -1 until opened */
    int lock;    /* descriptor of .lock, if is_locked */
    uint32_t is_locked;
};

/*
 * Makes `directory` (empty or NULL: runs/NAME-YYYYMMDD-HHMMSS, local time, with -2, -3 .. if taken)
 * and log/ in it, and points runs/latest (beside the directory: in its parent) to it, atomically; a
 * `latest` that cannot be renamed over, as a directory of that name, stays and is warned about.  A
 * directory that has a run.json is refused, or emptied of what a run leaves and nothing else
 * (run.json last), or left as it is, as enum hd_rundir_mode says.  One in which another run lives
 * is refused in every mode.  HD_EXIT_USAGE for a refusal, HD_EXIT_OUTPUT else; nothing is then
 * locked.
 */
hd_status hd_rundir_create(struct hd_rundir *rundir, const char *directory, const char *name,
                           uint32_t mode, struct hd_problem *problem);

/* Does another process hold the run's directory?  Not to be asked by the one that does: closing the
   file would end its lock. */
uint32_t hd_rundir_is_busy(const char *path);

/* Writes `text` to path/NAME.tmp, syncs, renames.  HD_EXIT_OUTPUT; NAME is then what it was. */
hd_status hd_rundir_write(const struct hd_rundir *rundir, const char *name, const char *text,
                          uint64_t bytes, struct hd_problem *problem);

/* The same for what is too long to hold: a stream to path/NAME.tmp, which `commit` flushes, syncs,
   renames and closes, or removes when anything written to it has failed.  HD_EXIT_OUTPUT. */
hd_status hd_rundir_open(const struct hd_rundir *rundir, const char *name, FILE **stream,
                         struct hd_problem *problem);
hd_status hd_rundir_commit(const struct hd_rundir *rundir, const char *name, FILE *stream,
                           struct hd_problem *problem);

struct hd_metrics {
    uint32_t step;
    double time_s; /* seconds since the start of the run */
    struct hd_step_result result;
    double learning_rate;
    uint64_t tokens; /* of this step */
    double step_seconds, tokens_per_second;
    uint32_t skipped;
    uint32_t lacks_loss; /* the kernel has no terms: null in the file, nothing in the line */
};

#define HD_METRICS_LINE_BYTES 1024u

/* One object and its newline, as in metrics.jsonl; doubles read back to the same bits, a non-finite
   one is null.  Returns its length. */
uint32_t hd_metrics_line(const struct hd_metrics *metrics, char line[HD_METRICS_LINE_BYTES]);

/* Appends one object to metrics.jsonl (opened on first use), one write, so that a kill leaves whole
 * lines; what a full disk cut short is taken back. */
hd_status hd_rundir_metrics(struct hd_rundir *rundir, const struct hd_metrics *metrics,
                            struct hd_problem *problem);
/* Ends the lock, too. */
void hd_rundir_close(struct hd_rundir *rundir);

/* The progress line: rewritten on a terminal, one line per 10 steps (and the last) in a pipe; to
 * stderr. */
struct hd_progress {
    uint32_t is_quiet, is_terminal, steps;
    uint64_t begin_ns;
    uint32_t first_step; /* the last finished before this run; 0 */
};
void hd_progress_step(struct hd_progress *progress, const struct hd_metrics *metrics);
void hd_progress_end(struct hd_progress *progress);

#endif /* HEDDLE_TRAIN_RUNDIR_H */
