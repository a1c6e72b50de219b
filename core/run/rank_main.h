/* run/rank_main.h - the main function of a rank's process. */
#ifndef HEDDLE_RUN_RANK_MAIN_H
#define HEDDLE_RUN_RANK_MAIN_H

#include "launch/launch.h"

/* For struct hd_launch: `context` is the struct hd_session, `region` is mapped in it already.
   Returns the exit code. */
int32_t hd_rank_main(void *context, struct hd_bootstrap *bootstrap, void *region);

#endif /* HEDDLE_RUN_RANK_MAIN_H */
