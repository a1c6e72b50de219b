/* report/csv_write.h - writes PyTorch's compute-only CSV (plan/csv.h reads it). */
#ifndef HEDDLE_REPORT_CSV_WRITE_H
#define HEDDLE_REPORT_CSV_WRITE_H

#include "plan/pipeline.h"

#include <stdio.h>

/* Writes a table that hd_csv_read (plan/csv.h) reads: one cell for every action, an empty one for
   every idle tick that the schedule draws, CRLF line ends, no blanks at a row's end.  Its bytes
   equal those of PyTorch's _dump_csv for the same table. */
hd_status hd_csv_write(const struct hd_pipeline *pipeline, FILE *stream,
                       struct hd_problem *problem);

#endif /* HEDDLE_REPORT_CSV_WRITE_H */
