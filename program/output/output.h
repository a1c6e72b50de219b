/*
 * output/output.h - what a run leaves in its directory, written by the parent process.
 *
 *   begin   config.ini, and run.json with "exit": null
 *   end     run.json, trace.json, report.html, and hang.json after a hang
 *
 * A session's listener (run/session.h) calls both; the session must have a directory.
 */
#ifndef HEDDLE_OUTPUT_OUTPUT_H
#define HEDDLE_OUTPUT_OUTPUT_H

#include "run/session.h"

/* For hd_session_listener.on_begin, whatever its context. */
hd_status hd_output_begin(void *context, const struct hd_session *session,
                          struct hd_problem *problem);
/* HD_EXIT_OUTPUT, HD_EXIT_FAILED. */
hd_status hd_output_end(const struct hd_session *session, int32_t exit_code,
                        struct hd_problem *problem);
/* Writes trace.json, the recorded steps for Perfetto, with output.trace on.  HD_EXIT_OUTPUT,
   HD_EXIT_FAILED. */
hd_status hd_output_write_trace(const struct hd_session *session, struct hd_problem *problem);

#endif /* HEDDLE_OUTPUT_OUTPUT_H */
