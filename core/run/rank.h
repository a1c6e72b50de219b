/* run/rank.h - one rank of a run, in its own process. */
#ifndef HEDDLE_RUN_RANK_H
#define HEDDLE_RUN_RANK_H

#include "engine/engine.h"
#include "run/session.h"

/* For the collective calls of a rank: its watchdog ends them (engine/watchdog.h). */
#define HD_RANK_FAR_NS (UINT64_MAX / 2)

struct hd_ledger; /* run/ledger.h */

struct hd_rank {
    struct hd_session *session;
    const struct hd_shared *shared; /* the session's */
    struct hd_bootstrap *bootstrap;
    struct hd_engine *engine;
    uint32_t rank;

    int32_t *tokens, *targets; /* [microbatches, batch, sequence]; NULL: not read here */
    const int32_t **token_list, **target_list; /* [microbatches] */
    unsigned char *block, *blocks; /* of the exchange: this rank's, and those of all ranks */
    struct hd_step_result result;
    struct hd_ledger *ledger;     /* owned; NULL: nothing is saved or loaded */
    double learning_rate;         /* of the last step */
    double span_sum, compute_sum; /* rank 0: over the counted steps and all ranks */
    uint32_t span_count;
    uint64_t resident_before_ns;      /* of steps that are counted already, or not at all */
    int32_t signal;                   /* that ends the run after this step */
    uint32_t skipped, skipped_in_row; /* steps that were not finite */
};

static inline const struct hd_config *hd_rank_config(const struct hd_rank *rank)
{
    return rank->session->job->config;
}

static inline struct hd_rank_result *hd_rank_result(const struct hd_rank *rank)
{
    return &rank->shared->ranks[rank->rank];
}

/* This rank cannot continue: makes `problem` the cause, unless the board has one already; then that
   is the problem.  Returns `status`. */
hd_status hd_rank_leave(struct hd_rank *rank, hd_status status, const char *what,
                        struct hd_problem *problem);
hd_status hd_rank_no_memory(struct hd_rank *rank, struct hd_problem *problem);
/* The same with a problem that is complete: all ranks end with it. */
hd_status hd_rank_blame(struct hd_rank *rank, hd_status status, const struct hd_problem *problem);

/* A meeting of all ranks: `all` [rank_count, bytes] gets the block `mine` of each; bytes 0: the
   ranks only wait for each other.  The phase is HD_PHASE_TOGETHER afterwards, too. */
struct hd_meeting {
    const char *what; /* for the message: "hashing the parameters" */
    const void *mine;
    uint64_t bytes;
    void *all;
};
hd_status hd_rank_gather(struct hd_rank *rank, const struct hd_meeting *meeting,
                         struct hd_problem *problem);

/* The bytes that this rank holds now, as base/memory.h counts them. */
uint64_t hd_rank_held_bytes(void);

#endif /* HEDDLE_RUN_RANK_H */
