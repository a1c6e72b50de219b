/*
 * output/overlap.h - how much of the transfers' time was hidden, measured and in the costed plan.
 *
 *   transfer   from when both ends are ready until the data has arrived (engine/recorder.h)
 *   exposed    the part in which the receiver waits for it: it has reached the action that reads
 *              the data, and has nothing else to do
 *   hidden     the other part
 *
 * The classes (local, hidden, exposed) are the plan's; the times are of the steps that the trace
 * keeps.  With `pipeline.overlap = off` the numbers are computed in the same way.
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
