#include "support/random_plan.h"

#include "base/memory.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

uint32_t hd_random_draw(uint64_t *state, uint32_t limit)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)((*state >> 11) % limit);
}

static uint32_t draw(struct hd_random_plan *plan, uint32_t limit)
{
    return hd_random_draw(&plan->random, limit);
}

static uint32_t home_of(const struct hd_random_plan *plan, uint32_t stage, uint32_t microbatch)
{
    return plan->home[plan->replica_of[microbatch]][stage];
}

/* A random rank for every stage, as many stages on each. */
static void draw_placement(struct hd_random_plan *plan, uint32_t replica)
{
    uint32_t *const home = plan->home[replica];

    for (uint32_t stage = 0; stage < plan->stage_count; stage++) {
        const uint32_t place = draw(plan, stage + 1);
        home[stage] = home[place];
        home[place] = stage % plan->rank_count;
    }
}

static uint32_t draw_between(struct hd_random_plan *plan, uint32_t least, uint32_t most)
{
    assert(least > 0 && least <= most);
    return least + draw(plan, most - least + 1);
}

/* Replica and split of each; splits are none, all or some. */
static void draw_microbatches(struct hd_random_plan *plan, const struct hd_random_limits *limits)
{
    const uint32_t chance = draw(plan, 3);
    const uint32_t splits = limits->split == HD_RANDOM_ANY       ? chance
                            : limits->split == HD_RANDOM_UNSPLIT ? 0
                                                                 : 1 + chance % 2;

    for (uint32_t i = 0; i < plan->microbatch_count; i++) {
        plan->replica_of[i] = (uint8_t)(i < plan->replica_count ? i : draw(plan, 2));
        plan->replica_of[i] %= (uint8_t)plan->replica_count;
        plan->is_split[i] = splits == 1 || (splits == 2 && draw(plan, 2));
    }
}

static void draw_shape(struct hd_random_plan *plan, const struct hd_random_limits *limits)
{
    const uint64_t random = plan->random;

    memset(plan, 0, sizeof *plan);
    plan->random = random;
    plan->is_ascending = limits->is_ascending;
    plan->rank_count = draw_between(plan, limits->rank_least, limits->rank_most);
    plan->stage_count = plan->rank_count * draw_between(plan, 1, limits->per_rank_most);
    plan->microbatch_count = draw_between(plan, limits->microbatch_least, limits->microbatch_most);
    plan->replica_count =
        limits->may_replicate && plan->microbatch_count > 1 && draw(plan, 4) == 0 ? 2 : 1;
    plan->is_forward_only = limits->may_be_forward && draw(plan, 12) == 0;
    plan->percent_forward = draw(plan, 101);
    for (uint32_t replica = 0; replica < plan->replica_count; replica++) {
        draw_placement(plan, replica);
    }
    draw_microbatches(plan, limits);
}

/* The channel on which `stage` receives: from the stage before, or from the one after. */
static struct hd_random_channel *channel_into(struct hd_random_plan *plan, enum hd_pass_kind pass,
                                              uint32_t stage, uint32_t microbatch)
{
    const uint32_t replica = plan->replica_of[microbatch];

    if (pass == HD_PASS_FORWARD) {
        return stage == 0 ? NULL : &plan->channels[0][replica][stage - 1];
    }
    const uint32_t is_last = stage + 1 == plan->stage_count;
    return is_last || pass == HD_PASS_WEIGHT ? NULL : &plan->channels[1][replica][stage];
}

/* Laws 2 and 5: between ranks, messages are met in the order in which they were sent. */
static int has_input(struct hd_random_plan *plan, enum hd_pass_kind pass, uint32_t stage,
                     uint32_t microbatch)
{
    const struct hd_random_channel *const channel = channel_into(plan, pass, stage, microbatch);

    if (channel == NULL) {
        return 1;
    }
    const uint32_t source = pass == HD_PASS_FORWARD ? stage - 1 : stage + 1;
    if (home_of(plan, source, microbatch) == home_of(plan, stage, microbatch)) {
        return plan->is_done[pass][source][microbatch];
    }
    return channel->consumed_count < channel->sent_count &&
           channel->microbatches[channel->consumed_count] == microbatch;
}

/* Law 8: of the same stage, and of the smaller microbatches of its replica, all are over. */
static int is_next(const struct hd_random_plan *plan, enum hd_pass_kind pass, uint32_t stage,
                   uint32_t microbatch)
{
    const uint32_t is_whole = pass == HD_PASS_BACKWARD && !plan->is_split[microbatch];

    for (uint32_t i = 0; plan->is_ascending && i < microbatch; i++) {
        const uint32_t has_weights =
            plan->is_split[i] ? plan->is_done[HD_PASS_WEIGHT][stage][i] : 1;
        if (plan->replica_of[i] == plan->replica_of[microbatch] &&
            (!plan->is_done[HD_PASS_BACKWARD][stage][i] ||
             ((is_whole || pass == HD_PASS_WEIGHT) && !has_weights))) {
            return 0;
        }
    }
    return 1;
}

static int can_run(struct hd_random_plan *plan, enum hd_pass_kind pass, uint32_t stage,
                   uint32_t microbatch)
{
    if (plan->is_done[pass][stage][microbatch] ||
        (pass == HD_PASS_WEIGHT && !plan->is_split[microbatch]) ||
        (pass != HD_PASS_FORWARD && plan->is_forward_only)) {
        return 0;
    }
    if (pass != HD_PASS_FORWARD && !plan->is_done[pass - 1][stage][microbatch]) {
        return 0;
    }
    return has_input(plan, pass, stage, microbatch) &&
           (pass == HD_PASS_FORWARD || is_next(plan, pass, stage, microbatch));
}

static void run_action(struct hd_random_plan *plan, enum hd_pass_kind pass, uint32_t stage,
                       uint32_t microbatch)
{
    static const uint8_t kinds[2][HD_PASS_COUNT] = {
        {HD_FORWARD, HD_BACKWARD, 0}, {HD_FORWARD, HD_BACKWARD_INPUT, HD_BACKWARD_WEIGHT}};
    const uint32_t rank = home_of(plan, stage, microbatch);
    struct hd_random_channel *const in = channel_into(plan, pass, stage, microbatch);
    struct hd_random_channel *out = NULL;

    if (pass == HD_PASS_FORWARD && stage + 1 < plan->stage_count) {
        out = channel_into(plan, pass, stage + 1, microbatch);
    } else if (pass == HD_PASS_BACKWARD && stage > 0) {
        out = channel_into(plan, pass, stage - 1, microbatch);
    }
    if (in != NULL) {
        in->consumed_count++;
    }
    if (out != NULL) {
        out->microbatches[out->sent_count++] = microbatch;
    }
    plan->is_done[pass][stage][microbatch] = 1;
    plan->rows[rank][plan->row_length[rank]++] = (struct hd_action){
        .stage = stage,
        .microbatch = microbatch,
        .kind = kinds[plan->is_split[microbatch]][pass],
        .replica = plan->replica_of[microbatch],
    };
}

/* One of the actions that could run now, forwards or others first; 0: there is none. */
static int run_one(struct hd_random_plan *plan)
{
    struct {
        enum hd_pass_kind pass;
        uint32_t stage, microbatch;
    } chosen[2] = {0};
    uint32_t counts[2] = {0, 0};

    for (enum hd_pass_kind pass = 0; pass < HD_PASS_COUNT; pass++) {
        const uint32_t side = pass != HD_PASS_FORWARD;
        for (uint32_t stage = 0; stage < plan->stage_count; stage++) {
            for (uint32_t i = 0; i < plan->microbatch_count; i++) {
                if (can_run(plan, pass, stage, i) && draw(plan, ++counts[side]) == 0) {
                    chosen[side].pass = pass;
                    chosen[side].stage = stage;
                    chosen[side].microbatch = i;
                }
            }
        }
    }
    if (counts[0] + counts[1] == 0) {
        return 0;
    }
    const uint32_t wanted = draw(plan, 100) >= plan->percent_forward;
    const uint32_t side = counts[wanted] > 0 ? wanted : 1 - wanted;
    run_action(plan, chosen[side].pass, chosen[side].stage, chosen[side].microbatch);
    return 1;
}

static void *take(uint64_t bytes)
{
    void *const memory = hd_memory_take(bytes, 64, "test");
    assert(memory != NULL);
    return memory;
}

struct hd_pipeline *hd_random_plan_draw(struct hd_random_plan *plan,
                                        const struct hd_random_limits *limits)
{
    struct hd_pipeline_source source = {.name = "drawn"};
    struct hd_problem problem = {0};
    struct hd_pipeline *pipeline = NULL;
    uint64_t count = 0;

    draw_shape(plan, limits);
    while (run_one(plan)) {
        count++;
    }
    source.rank_count = plan->rank_count;
    source.stage_count = plan->stage_count;
    source.microbatch_count = plan->microbatch_count;
    source.replica_count = plan->replica_count;
    source.is_forward_only = plan->is_forward_only;
    source.stage_rank = take(HD_RANDOM_REPLICA_MAX * sizeof plan->home[0]);
    source.replica_of = take(HD_RANDOM_MICROBATCH_MAX);
    source.rank_begin = take((HD_RANDOM_RANK_MAX + 1) * sizeof(uint64_t));
    source.actions = take(count * sizeof(struct hd_action));
    for (uint32_t i = 0; i < plan->replica_count * plan->stage_count; i++) {
        source.stage_rank[i] = plan->home[i / plan->stage_count][i % plan->stage_count];
    }
    memcpy(source.replica_of, plan->replica_of, plan->microbatch_count);
    for (uint32_t rank = 0; rank < plan->rank_count; rank++) {
        const uint64_t begin = source.rank_begin[rank];
        memcpy(&source.actions[begin], plan->rows[rank],
               plan->row_length[rank] * sizeof(struct hd_action));
        source.rank_begin[rank + 1] = begin + plan->row_length[rank];
    }
    if (hd_pipeline_from_actions(&source, &pipeline, &problem) != HD_OK) {
        fprintf(stderr, "a drawn plan, P %u S %u m %u replicas %u, is refused: %s\n",
                plan->rank_count, plan->stage_count, plan->microbatch_count, plan->replica_count,
                problem.message);
        return NULL;
    }
    return pipeline;
}
