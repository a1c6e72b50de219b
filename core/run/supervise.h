/* run/supervise.h - the parent of a session's ranks. */
#ifndef HEDDLE_RUN_SUPERVISE_H
#define HEDDLE_RUN_SUPERVISE_H

#include "run/session.h"

/* Forks the ranks, supervises them until all have ended, and calls the listener.  HD_OK: every step
   was done; else the problem is the cause. */
hd_status hd_supervise(struct hd_session *session, struct hd_problem *problem);

#endif /* HEDDLE_RUN_SUPERVISE_H */
