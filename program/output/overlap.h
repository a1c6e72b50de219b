/*
 * output/overlap.h - how much of the transfers' time was hidden, measured and in the costed plan
 *
 *   transfer   from when both ends were ready to move it until it was there (engine/recorder.h)
 *   exposed    the part of it in which the receiver waited for it: had turned to the action that
 *              reads it, and had nothing else to do
 *   hidden     the rest
 *
 * The classes (local, hidden, exposed) are those of the plan; the times are of the steps that the
 * trace keeps.  No option is looked at: with `pipeline.overlap = off` the numbers say so
 * themselves.
 */
#ifndef HEDDLE_OUTPUT_OVERLAP_H
#define HEDDLE_OUTPUT_OVERLAP_H

#include "report/run_json.h"
#include "run/session.h"

/* Of a run that has ended; before the run only the costed half is filled.  Returns the bubble of
   the costed plan; NaN if [cost] does not fit the plan. */
double hd_overlap_measure(const struct hd_session *session, struct hd_run_overlap *overlap);

/* The steps whose records the ranks have left: the last `count` up to `last`.  count 0: none, as
   after a failure or with output.trace off. */
struct hd_kept_steps {
    uint32_t last, count;
};
struct hd_kept_steps hd_kept_steps(const struct hd_session *session);
/* One of these steps: the records of `rank`, in the order of its actions; or of one action. */
const struct hd_record *hd_kept_records(const struct hd_session *session, uint32_t rank,
                                        uint32_t step);
const struct hd_record *hd_kept_record(const struct hd_session *session, uint32_t action,
                                       uint32_t step);

#endif /* HEDDLE_OUTPUT_OVERLAP_H */
