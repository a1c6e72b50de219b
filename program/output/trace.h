/* output/trace.h - trace.json of a run: the recorded steps, for Perfetto. */
#ifndef HEDDLE_OUTPUT_TRACE_H
#define HEDDLE_OUTPUT_TRACE_H

#include "run/session.h"

/* After a run has ended, with output.trace on.  HD_EXIT_OUTPUT, HD_EXIT_FAILED. */
hd_status hd_output_write_trace(const struct hd_session *session, struct hd_problem *problem);

#endif /* HEDDLE_OUTPUT_TRACE_H */
