/*
 * train/step.h - what the ranks tell each other at the end of a step, and what follows from it.
 *
 * Each rank gives one block, all get all blocks (the launcher's gather), and every rank computes
 * the same loss, norm and verdict from the same numbers in the same order.  The block carries the
 * vote of docs/architecture.md, "When things fail": a step becomes visible only if every rank's
 * streams were drained and its abort word was clear.
 *
 * Order of all sums, so that they do not depend on P, V or placement: a term (layer's balance,
 * layer's z, the cross-entropy) over its microbatches, ascending; then terms over layers,
 * ascending.  Squared norms per tensor come from the kernel; they are added in global order (stage,
 * then index) in double.
 */
#ifndef HEDDLE_TRAIN_STEP_H
#define HEDDLE_TRAIN_STEP_H

#include "base/problem.h"

#include <heddle/kernel.h>

/* Where each stage's numbers lie in the blocks: equal on all ranks. */
struct hd_exchange_stage {
    uint32_t rank;         /* that holds it */
    uint32_t tensor_count; /* squared norms */
    uint32_t term_count;   /* doubles: per routed block balance and z, then the cross-entropy if it
                              has the head */
    uint32_t has_head;
    uint32_t term_offset;   /* into the block's values, filled by hd_exchange_layout */
    uint32_t square_offset; /* likewise */
};

struct hd_exchange {
    uint32_t rank_count, stage_count;
    struct hd_exchange_stage *stages; /* [stage_count], owned */
    uint32_t value_count;             /* doubles a block, the largest rank's */
    uint64_t block_bytes;             /* header and values */
};

struct hd_exchange_header {
    uint64_t vote; /* 1: this rank's share of the step is sound */
    uint64_t step;
    double compute_seconds, exposed_wait_seconds, launch_seconds; /* of the step, this rank's */
    double credit_wait_seconds, local_seconds;
    uint64_t peak_payload_slots;
    uint64_t begin_ns, end_ns; /* of this rank's actions, on the one clock of a node */
    int64_t stop_signal;       /* that this rank knows of: rank 0's word is the one that counts */
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
    uint32_t is_sound; /* every rank voted */
    uint32_t is_finite;
    double loss, balance_loss,
        z_loss;            /* cross-entropy in nats per label; the weighted auxiliary terms */
    double grad_norm;      /* before clipping */
    double gradient_scale; /* min(1, clip_norm / grad_norm); clip_norm 0: 1; not finite: 0 */
};

/*
 * From all blocks [rank_count, block_bytes].  Sound takes vote 1 of every rank, for the same step,
 * whatever clip_norm is; of a step that is not sound no number is worth reading: all are NaN and
 * is_finite is 0, so look at is_sound first.  A non-finite term or square makes is_finite 0 (K8).
 */
void hd_step_judge(const struct hd_exchange *exchange, const void *blocks, double clip_norm,
                   struct hd_step_result *result);

struct hd_rate {
    double learning_rate, final_rate; /* final_rate: the fraction left at the end, for cosine */
    uint32_t warmup_steps, steps, is_cosine;
};

/* The rate of `step` (from 1): linear warm-up learning_rate * step / warmup_steps, whole at step
   warmup_steps; then flat, or cosine down to final_rate * learning_rate at step `steps`. */
double hd_rate_at(const struct hd_rate *rate, uint32_t step);

#endif /* HEDDLE_TRAIN_STEP_H */
