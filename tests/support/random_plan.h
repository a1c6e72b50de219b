/*
 * tests/support/random_plan.h - plans that are nobody's schedule, and legal.
 *
 * A seed draws shape, placement, which backwards are split, and then, again and again, one of the
 * actions that could run now.  What comes out keeps laws 1 to 5, because it was run once while it
 * was written; and law 8 where that is asked.
 */
#ifndef HD_TESTS_SUPPORT_RANDOM_PLAN_H
#define HD_TESTS_SUPPORT_RANDOM_PLAN_H

#include "plan/pipeline.h"

#define HD_RANDOM_RANK_MAX       5u
#define HD_RANDOM_STAGE_MAX      15u
#define HD_RANDOM_MICROBATCH_MAX 10u
#define HD_RANDOM_REPLICA_MAX    2u
#define HD_RANDOM_ROW_MAX \
    (HD_RANDOM_REPLICA_MAX * HD_RANDOM_STAGE_MAX * HD_RANDOM_MICROBATCH_MAX * 3u)

/* Splits of the backwards. */
enum hd_random_split { HD_RANDOM_ANY, HD_RANDOM_UNSPLIT, HD_RANDOM_SPLIT };

/* What may be drawn: all counts from least to most, below the limits above. */
struct hd_random_limits {
    uint32_t rank_least, rank_most;
    uint32_t per_rank_most; /* stages */
    uint32_t microbatch_least, microbatch_most;
    uint32_t split;          /* enum hd_random_split */
    uint32_t may_replicate;  /* two replicas, now and then */
    uint32_t may_be_forward; /* an evaluation, now and then */
    uint32_t is_ascending;   /* law 8 is kept */
};

/* Messages of one boundary and direction, in the order in which they were sent. */
struct hd_random_channel {
    uint32_t microbatches[HD_RANDOM_MICROBATCH_MAX];
    uint32_t sent_count, consumed_count;
};

struct hd_random_plan {
    uint64_t random; /* the state that hd_random_draw goes on from */
    uint32_t rank_count, stage_count, microbatch_count, replica_count;
    uint32_t is_forward_only, is_ascending;
    uint32_t percent_forward; /* how eagerly forwards run ahead */
    uint32_t home[HD_RANDOM_REPLICA_MAX][HD_RANDOM_STAGE_MAX];
    uint8_t replica_of[HD_RANDOM_MICROBATCH_MAX];
    uint32_t is_split[HD_RANDOM_MICROBATCH_MAX];
    uint8_t is_done[HD_PASS_COUNT][HD_RANDOM_STAGE_MAX][HD_RANDOM_MICROBATCH_MAX];
    /* forward, backward; by boundary */
    struct hd_random_channel channels[2][HD_RANDOM_REPLICA_MAX][HD_RANDOM_STAGE_MAX];
    struct hd_action rows[HD_RANDOM_RANK_MAX][HD_RANDOM_ROW_MAX];
    uint32_t row_length[HD_RANDOM_RANK_MAX];
};

/* Below `limit`; `state` is not 0. */
uint32_t hd_random_draw(uint64_t *state, uint32_t limit);

/* Draws the next plan from plan->random; NULL, with a line on stderr, if the core refuses it. */
struct hd_pipeline *hd_random_plan_draw(struct hd_random_plan *plan,
                                        const struct hd_random_limits *limits);

#endif /* HD_TESTS_SUPPORT_RANDOM_PLAN_H */
