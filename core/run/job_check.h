/* run/job_check.h - whether a job can run, rather than only be planned. */
#ifndef HEDDLE_RUN_JOB_CHECK_H
#define HEDDLE_RUN_JOB_CHECK_H

#include "run/job.h"

/*
 * HD_EXIT_PLAN: the plan splits backwards and the kernel does not, or the plan has two replicas.
 * HD_EXIT_USAGE: fewer layers than stages, memory that the transport cannot move, or an option of
 * [transport] or [debug] that has no effect with these plugins.
 */
hd_status hd_job_check(const struct hd_job *job, struct hd_problem *problem);

#endif /* HEDDLE_RUN_JOB_CHECK_H */
