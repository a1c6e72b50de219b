/*
 * run/evaluate.h - the loss of the parameters as they are: forwards alone, over the corpus.
 *
 * The corpus is read once, from its first sample to its last label; the rest of the last step has
 * no labels.  request.evaluation_steps limits the steps; the builtin corpus has no
 * end, so there the limit is train.steps if the request has none.
 */
#ifndef HEDDLE_RUN_EVALUATE_H
#define HEDDLE_RUN_EVALUATE_H

#include "run/rank.h"

/* Steps, samples and labels of an evaluation; the last sample may be a part. */
struct hd_evaluation_extent {
    uint32_t step_count;
    uint64_t sample_count, label_count;
};
void hd_evaluation_extent(const struct hd_session *session, struct hd_evaluation_extent *extent);

/* Instead of hd_rank_train; rank 0 fills hd_results.evaluation. */
hd_status hd_rank_evaluate(struct hd_rank *rank, struct hd_problem *problem);

#endif /* HEDDLE_RUN_EVALUATE_H */
