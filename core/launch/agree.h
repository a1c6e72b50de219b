/* launch/agree.h - compares what two ranks must agree on. */
#ifndef HEDDLE_LAUNCH_AGREE_H
#define HEDDLE_LAUNCH_AGREE_H

#include "base/problem.h"

struct hd_agreement {
    uint32_t rank;
    const char *host;
    const char *ours, *theirs; /* lines "key = value": of rank 0, and of `rank` */
};

/* HD_EXIT_USAGE for the first line that differs, with its key, and the values of both ranks. */
hd_status hd_agree_check(const struct hd_agreement *agreement, struct hd_problem *problem);

#endif /* HEDDLE_LAUNCH_AGREE_H */
