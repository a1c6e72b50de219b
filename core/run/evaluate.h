/*
 * run/evaluate.h - the loss of the parameters as they are: forwards alone, over the corpus.
 *
 * The corpus is read once, from its first sample; the last step may be shorter, its other samples
 * then have no label.  request.evaluation_steps limits it; the builtin corpus has no end, so
 * train.steps does there, where nothing else is said.
 */
#ifndef HEDDLE_RUN_EVALUATE_H
#define HEDDLE_RUN_EVALUATE_H

#include "run/rank.h"

/* Steps, and samples in all, of an evaluation. */
struct hd_evaluation_extent {
    uint32_t step_count;
    uint64_t sample_count;
};
void hd_evaluation_extent(const struct hd_session *session, struct hd_evaluation_extent *extent);

/* In place of hd_rank_train; rank 0 leaves hd_results.evaluation. */
hd_status hd_rank_evaluate(struct hd_rank *rank, struct hd_problem *problem);

#endif /* HEDDLE_RUN_EVALUATE_H */
