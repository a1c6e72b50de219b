/*
 * plan/csv.h - reads and writes PyTorch's compute-only CSV (docs/interface.md, "CSV").
 *
 * One row for each rank, no header, one cell for each action, an empty cell for an idle tick.  P, S
 * and m come from the file.  A stage's home is the row with most of its actions; of equals the
 * first.
 */
#ifndef HEDDLE_PLAN_CSV_H
#define HEDDLE_PLAN_CSV_H

#include "plan/pipeline.h"

#include <stdio.h>

/* Fills what hd_pipeline_from_actions takes, which then checks the laws.  "(7F4;0B0)OVERLAP_F_B" is
   two actions, the first HD_PAIRED.  Lines end with LF or CRLF; "" is csv.writer's blank cell.
   HD_EXIT_USAGE with "FILE: row R, column C", both from 1, for cells that it cannot read, for SEND,
   RECV, UNSHARD, RESHARD and REDUCE_GRAD, and for a row without any action. */
hd_status hd_csv_read(const char *path, struct hd_pipeline_source *source,
                      struct hd_problem *problem);

/* Writes a table that hd_csv_read reads: one cell for every action, an empty one for every idle
   tick that the schedule draws, CRLF line ends, no blanks at a row's end.  Its bytes equal those of
   PyTorch's _dump_csv for the same table. */
hd_status hd_csv_write(const struct hd_pipeline *pipeline, FILE *stream,
                       struct hd_problem *problem);

#endif /* HEDDLE_PLAN_CSV_H */
