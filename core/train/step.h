/*
 * train/step.h - what the ranks exchange at the end of a step, and the result that each computes.
 *
 * core/train has the parts of training: corpus, initial values, sums of a step, checkpoints, the
 * run directory.  The loop that runs the steps is core/run/steps.c.
 *
 * Each rank gives one block and gets the blocks of all (the launcher's gather).  Every rank
 * computes the same loss, norm and verdict from the same numbers in the same order.  The block has
 * the vote of docs/architecture.md, "When things fail": a step becomes visible only if every rank's
 * streams were drained and its abort word was clear.
 *
 * The order of sums does not depend on P, V or placement: each term (a layer's balance, a layer's
 * z, the cross-entropy) over its microbatches, ascending; then the terms over layers, ascending.
 * Squared norms per tensor come from the kernel; they are added in global order (stage, then index)
 * in double.
 */
#ifndef HEDDLE_TRAIN_STEP_H
#define HEDDLE_TRAIN_STEP_H

#include "base/problem.h"

#include <heddle/kernel.h>

#include <stdbool.h>

/* The place of each stage's numbers in the blocks; equal on all ranks. */
struct hd_exchange_stage {
    uint32_t rank;         /* that runs the stage */
    uint32_t tensor_count; /* squared norms */
    uint32_t term_count;   /* doubles: balance and z of each routed block, then the cross-entropy if
                              the stage has the head */
    bool has_head;
    uint32_t term_offset;   /* into the block's values; hd_exchange_layout fills it */
    uint32_t square_offset; /* the same for the squared norms */
};

struct hd_exchange {
    uint32_t rank_count, stage_count;
    struct hd_exchange_stage *stages; /* [stage_count], owned */
    uint32_t value_count;             /* doubles of each block: as many as the largest needs */
    uint64_t block_bytes;             /* header and values */
};

struct hd_exchange_header {
    uint64_t vote; /* 1 if this rank's part of the step is sound */
    uint64_t step;
    double compute_seconds, exposed_wait_seconds, launch_seconds; /* of this rank in the step */
    double credit_wait_seconds, local_seconds;
    uint64_t peak_payload_slots;
    uint64_t begin_ns, end_ns; /* of this rank's actions, on the one clock of a node */
    int64_t stop_signal;       /* that this rank has received; only rank 0's is used */
};

/* Computes offsets and sizes; `stages`, in global order, are copied.  HD_NO_MEMORY. */
hd_status hd_exchange_layout(struct hd_exchange *exchange, uint32_t rank_count,
                             uint32_t stage_count, const struct hd_exchange_stage *stages);
void hd_exchange_finish(struct hd_exchange *exchange);

static inline double *hd_exchange_values(void *block)
{
    return (double *)((unsigned char *)block + sizeof(struct hd_exchange_header));
}

/* Sums terms [microbatch_count, term_count] over microbatches, ascending, into out [term_count]. */
void hd_exchange_sum_terms(const double *terms, uint32_t microbatch_count, uint32_t term_count,
                           double *out);

struct hd_step_result {
    bool is_sound; /* every rank voted for it */
    bool is_finite;
    double loss, balance_loss,
        z_loss;            /* cross-entropy in nats per label; the weighted auxiliary terms */
    double grad_norm;      /* before clipping */
    double gradient_scale; /* min(1, clip_norm / grad_norm); clip_norm 0: 1; not finite: 0 */
};

/*
 * Computes the result from all blocks [rank_count, block_bytes].  A step is sound if every rank
 * gives vote 1 for the same step, whatever clip_norm is.  If it is not sound, all numbers are NaN
 * and is_finite is false, so check is_sound first.  A non-finite term or square makes is_finite
 * false (K8).
 */
void hd_step_judge(const struct hd_exchange *exchange, const void *blocks, double clip_norm,
                   struct hd_step_result *result);

struct hd_rate {
    double learning_rate, final_rate; /* final_rate: the fraction left at the end, for cosine */
    uint32_t warmup_steps, steps;
    bool is_cosine;
};

/* The rate of `step` (from 1): learning_rate * step / warmup_steps up to step warmup_steps; then
   flat, or a cosine down to final_rate * learning_rate at step `steps`. */
double hd_rate_at(const struct hd_rate *rate, uint32_t step);

#endif /* HEDDLE_TRAIN_STEP_H */
