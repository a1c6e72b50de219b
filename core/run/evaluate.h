/*
 * run/evaluate.h - the loss of the parameters as they are: forwards alone, over the corpus.
 *
 * The corpus is read once, from its first sample; the last step may have fewer samples, and the
 * rest of it has no labels.  request.evaluation_steps limits the steps; the builtin corpus has no
 * end, so there the limit is train.steps if the request has none.
 */
#ifndef HEDDLE_RUN_EVALUATE_H
#define HEDDLE_RUN_EVALUATE_H

#include "run/rank.h"

/* Steps and samples of an evaluation. */
struct hd_evaluation_extent {
    uint32_t step_count;
    uint64_t sample_count;
};
void hd_evaluation_extent(const struct hd_session *session, struct hd_evaluation_extent *extent);

/* Instead of hd_rank_train; rank 0 fills hd_results.evaluation. */
hd_status hd_rank_evaluate(struct hd_rank *rank, struct hd_problem *problem);

#endif /* HEDDLE_RUN_EVALUATE_H */
