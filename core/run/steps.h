/* run/steps.h - the steps of one rank. */
#ifndef HEDDLE_RUN_STEPS_H
#define HEDDLE_RUN_STEPS_H

#include "run/rank.h"

/* What one step reads. */
struct hd_batch {
    uint32_t step;
    uint64_t first;  /* sample, counted over the whole job */
    uint64_t labels; /* of the step; tokens after them have none */
};

/* Runs the actions of the step. */
hd_status hd_rank_compute(struct hd_rank *rank, const struct hd_batch *batch,
                          struct hd_problem *problem);
/* Exchanges the step's numbers with the other ranks: fills rank->result. */
hd_status hd_rank_meet(struct hd_rank *rank, uint32_t step, struct hd_problem *problem);

/* All steps of the run, up to a signal or an error. */
hd_status hd_rank_train(struct hd_rank *rank, struct hd_problem *problem);

#endif /* HEDDLE_RUN_STEPS_H */
