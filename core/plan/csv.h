/*
 * plan/csv.h - PyTorch's compute-only CSV, in and out (INTERFACE.md, "CSV"; facts/peers.md, section
 * 3).
 *
 * One row a rank, no header, one cell an action, an empty cell one idle tick.  P, S and m come from
 * the file.  A stage's home is the row with most of its actions (a tie: the lower row).
 */
#ifndef HEDDLE_PLAN_CSV_H
#define HEDDLE_PLAN_CSV_H

#include "plan/pipeline.h"

#include <stdio.h>

/* Fills what hd_pipeline_from_actions takes.  Unreadable cells: HD_EXIT_USAGE with "FILE: row R,
   column C", both from 1; SEND, RECV, UNSHARD, RESHARD and REDUCE_GRAD cells are refused by name, a
   row without any action too.  "(7F4;0B0)OVERLAP_F_B" is two actions, the first HD_PAIRED.  LF and
   CRLF end lines; a lone "" is csv.writer's blank cell.  Laws are hd_pipeline_from_actions' to
   judge. */
hd_status hd_csv_read(const char *path, struct hd_pipeline_source *source,
                      struct hd_problem *problem);

/* Writes the plan as hd_csv_read reads it: every action one cell (PyTorch's B is one cell too),
   every idle tick that the schedule draws an empty one, CRLF line ends.  Bytes equal those of
   PyTorch's _dump_csv where it has the same table; blanks at a row's end are left out. */
hd_status hd_csv_write(const struct hd_pipeline *pipeline, FILE *stream,
                       struct hd_problem *problem);

#endif /* HEDDLE_PLAN_CSV_H */
