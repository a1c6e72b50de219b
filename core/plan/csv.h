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

/* Unreadable cells: HD_EXIT_USAGE with "FILE: row R, column C";
   SEND/RECV/UNSHARD/RESHARD/REDUCE_GRAD/OVERLAP cells are refused by name.  Laws are
   hd_pipeline_from_actions' to judge. */
hd_status hd_csv_read(const char *path, struct hd_pipeline_source *source,
                      struct hd_problem *problem);

/* Writes the timeline's grid: a cell a tick for asap and drawn (a B's second tick is no cell of its
   own: PyTorch's B is one cell), else the bare order.  Bytes equal those of PyTorch's _dump_csv
   where it has the same table (CRLF line ends). */
hd_status hd_csv_write(const struct hd_pipeline *pipeline, FILE *stream,
                       struct hd_problem *problem);

#endif /* HEDDLE_PLAN_CSV_H */
