/* run/rank.h - what rank.c and steps.c share: one rank of a run, in its own process. */
#ifndef HEDDLE_RUN_RANK_H
#define HEDDLE_RUN_RANK_H

#include "engine/engine.h"
#include "run/session.h"

/* The watchdog ends waits for other ranks; see engine/watchdog.h. */
#define HD_RANK_FAR_NS (UINT64_MAX / 2)

struct hd_ledger; /* run/checkpoint.h */

struct hd_rank {
    struct hd_session *session;
    struct hd_bootstrap *bootstrap;
    void *region;
    struct hd_board *board;
    struct hd_engine *engine;
    uint32_t rank;

    int32_t *tokens, *targets; /* [microbatches, batch, sequence]; NULL: not read here */
    const int32_t **token_list, **target_list; /* [microbatches] */
    unsigned char *block, *blocks;             /* of the exchange: mine; everybody's */
    struct hd_step_result result;
    struct hd_ledger *ledger; /* owned; NULL: nothing is saved or loaded */
    double learning_rate;     /* of the last step */
    uint64_t step_begin_ns;
    double span_sum, compute_sum; /* rank 0: of the counted steps, all ranks */
    uint32_t span_count;
    uint64_t resident_before_ns;      /* of the steps that are counted already, or do not count */
    int32_t signal;                   /* that ends the run after this step */
    uint32_t skipped, skipped_in_row; /* steps that were not finite */
};

static inline const struct hd_config *hd_rank_config(const struct hd_rank *rank)
{
    return rank->session->job->config;
}

/* Nobody can go on: the cause is on the board, or is put there now.  Returns `status`. */
hd_status hd_rank_leave(struct hd_rank *rank, hd_status status, const char *what,
                        struct hd_problem *problem);

/* What one step reads. */
struct hd_batch {
    uint32_t step;
    uint64_t first; /* sample, counted over the whole job */
    uint64_t count; /* samples whose labels count; the rest of the step, if any, has none */
};

/* Runs the step's actions; meets the other ranks over what came out of it: rank->result. */
hd_status hd_rank_compute(struct hd_rank *rank, const struct hd_batch *batch,
                          struct hd_problem *problem);
hd_status hd_rank_meet(struct hd_rank *rank, uint32_t step, struct hd_problem *problem);

/* What this rank holds now, by its own account. */
uint64_t hd_rank_held_bytes(void);

/* All steps of the run, or up to a signal, or an error. */
hd_status hd_rank_train(struct hd_rank *rank, struct hd_problem *problem);

#endif /* HEDDLE_RUN_RANK_H */
