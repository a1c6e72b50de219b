/* output/rundir_create.h - makes the directory that a run leaves (docs/interface.md, "What a run
   leaves"). */
#ifndef HEDDLE_OUTPUT_RUNDIR_CREATE_H
#define HEDDLE_OUTPUT_RUNDIR_CREATE_H

#include "run/resume.h"
#include "train/rundir.h"

/* What hd_rundir_create does in a directory that already has a run.json. */
enum hd_rundir_mode {
    HD_RUNDIR_NEW = 0,       /* refuses it */
    HD_RUNDIR_OVERWRITE = 1, /* removes the files of a run and nothing else, run.json last */
    HD_RUNDIR_RESUME = 2,    /* leaves it as it is */
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

/* Makes output.directory, or continues in it where `resume` (NULL: none) is of that directory.
   HD_EXIT_USAGE where --overwrite would remove what is resumed; else as above. */
hd_status hd_output_make_directory(struct hd_rundir *rundir, const struct hd_config *config,
                                   const struct hd_resume *resume, bool overwrites,
                                   struct hd_problem *problem);

#endif /* HEDDLE_OUTPUT_RUNDIR_CREATE_H */
