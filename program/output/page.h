/*
 * output/page.h - report.html of a run: the plan, the run's own files, and the recorded steps.
 */
#ifndef HEDDLE_OUTPUT_PAGE_H
#define HEDDLE_OUTPUT_PAGE_H

#include "output/planning.h"
#include "run/session.h"

/* Writes report.html into the run's directory; run.json must be there.  The page shows the recorded
   steps if the run ended well and output.trace is on.  HD_EXIT_OUTPUT, HD_EXIT_FAILED. */
hd_status hd_output_write_page(const struct hd_session *session, struct hd_problem *problem);

/* The item (report/page.h) of a directory that has a run.json but no page: the plan of its
   config.ini, and its files, without recorded steps.  `item` is owned by the caller. */
hd_status hd_page_of_directory(const char *directory, const struct hd_planning *planning,
                               char **item, struct hd_problem *problem);

#endif /* HEDDLE_OUTPUT_PAGE_H */
