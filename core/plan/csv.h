/*
 * plan/csv.h - reads PyTorch's compute-only CSV (docs/interface.md, "CSV").
 *
 * One row for each rank, no header, one cell for each action, an empty cell for an idle tick.  P, S
 * and m come from the file.  A stage's home is the row with most of its actions; of equals the
 * first.
 */
#ifndef HEDDLE_PLAN_CSV_H
#define HEDDLE_PLAN_CSV_H

#include "plan/pipeline.h"

/* Fills what hd_pipeline_from_actions takes, which then checks the laws.  "(7F4;0B0)OVERLAP_F_B" is
   two actions, the first HD_PAIRED.  Lines end with LF or CRLF; "" is csv.writer's blank cell.
   HD_EXIT_USAGE with "FILE: row R, column C", both from 1, for cells that it cannot read, for SEND,
   RECV, UNSHARD, RESHARD and REDUCE_GRAD, and for a row without any action. */
hd_status hd_csv_read(const char *path, struct hd_pipeline_source *source,
                      struct hd_problem *problem);

#endif /* HEDDLE_PLAN_CSV_H */
