/*
 * output/page.h - report.html of a run: the plan, the run's own files, and the recorded steps.
 */
#ifndef HEDDLE_OUTPUT_PAGE_H
#define HEDDLE_OUTPUT_PAGE_H

#include "output/planning.h"
#include "run/session.h"

/* After run.json: writes report.html into the run's directory.  Steps are in it where the ranks
   have left them: at a good end, with output.trace on.  HD_EXIT_OUTPUT, HD_EXIT_FAILED. */
hd_status hd_output_write_page(const struct hd_session *session, struct hd_problem *problem);

/* The item (report/page.h) of a directory that has a run.json but no page: its plan, made anew from
   its config.ini, and its files; no recorded steps. `item` is owned by the caller. */
hd_status hd_page_of_directory(const char *directory, const struct hd_planning *planning,
                               char **item, struct hd_problem *problem);

#endif /* HEDDLE_OUTPUT_PAGE_H */
