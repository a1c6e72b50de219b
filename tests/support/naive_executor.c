#include "support/naive_executor.h"

#include <assert.h>
#include <string.h>

enum { STAGE_MAX = 32, MICRO_MAX = 32, RANK_MAX = 16, CHANNEL_MAX = 64 };

struct world {
    const struct hd_pipeline_source *source;
    uint8_t is_finished[128][STAGE_MAX][MICRO_MAX]; /* by kind */
    uint64_t next[RANK_MAX];
    const uint32_t *slots;      /* by channel of the core's numbering; NULL: no bound */
    uint32_t sent[CHANNEL_MAX]; /* messages that have taken a slot */
    uint8_t senders[CHANNEL_MAX][MICRO_MAX]; /* the microbatch of each message */
};

static int has_backward(const struct world *world, uint32_t stage, uint32_t microbatch)
{
    return world->is_finished['B'][stage][microbatch] || world->is_finished['I'][stage][microbatch];
}

static int input_is_there(const struct world *world, const struct hd_action *action)
{
    const uint32_t last = world->source->stage_count - 1;

    if (action->kind == 'F') {
        return action->stage == 0 || world->is_finished['F'][action->stage - 1][action->microbatch];
    }
    if (action->kind == 'W') {
        return world->is_finished['I'][action->stage][action->microbatch];
    }
    return world->is_finished['F'][action->stage][action->microbatch] &&
           (action->stage == last || has_backward(world, action->stage + 1, action->microbatch));
}

/* -1: the action sends nothing. */
static int channel_of(const struct world *world, const struct hd_action *action)
{
    const uint32_t boundaries = world->source->stage_count - 1;

    if (action->kind == 'F' && action->stage < boundaries) {
        return (int)action->stage;
    }
    if ((action->kind == 'B' || action->kind == 'I') && action->stage > 0) {
        return (int)(boundaries + action->stage - 1);
    }
    return -1;
}

/* Unsplit plans only: an activation lives until the target's B, a gradient likewise. */
static int slot_is_free(const struct world *world, const struct hd_action *action)
{
    const int channel = channel_of(world, action);

    if (channel < 0 || world->slots == NULL || world->sent[channel] < world->slots[channel]) {
        return 1;
    }
    const uint32_t earlier = world->senders[channel][world->sent[channel] - world->slots[channel]];
    const uint32_t target = action->kind == 'F' ? action->stage + 1 : action->stage - 1;
    return world->is_finished['B'][target][earlier];
}

static int try_one(struct world *world, uint32_t rank)
{
    const struct hd_pipeline_source *const source = world->source;

    if (source->rank_begin[rank] + world->next[rank] == source->rank_begin[rank + 1]) {
        return 0;
    }
    const struct hd_action *const action =
        &source->actions[source->rank_begin[rank] + world->next[rank]];
    if (!input_is_there(world, action) || !slot_is_free(world, action)) {
        return 0;
    }
    const int channel = channel_of(world, action);
    if (channel >= 0) {
        world->senders[channel][world->sent[channel]++] = (uint8_t)action->microbatch;
    }
    world->is_finished[action->kind][action->stage][action->microbatch] = 1;
    world->next[rank]++;
    return 1;
}

int hd_naive_ends(const struct hd_pipeline_source *source, const uint32_t *slots)
{
    static struct world world;
    int is_moving = 1;

    assert(source->stage_count <= STAGE_MAX && source->microbatch_count <= MICRO_MAX);
    assert(source->rank_count <= RANK_MAX && source->replica_count == 1);
    memset(&world, 0, sizeof world);
    world.source = source;
    world.slots = slots;
    while (is_moving) {
        is_moving = 0;
        for (uint32_t rank = 0; rank < source->rank_count; rank++) {
            is_moving |= try_one(&world, rank);
        }
    }
    for (uint32_t rank = 0; rank < source->rank_count; rank++) {
        if (source->rank_begin[rank] + world.next[rank] < source->rank_begin[rank + 1]) {
            return 0;
        }
    }
    return 1;
}

/* The place of an action in its rank's row; -1: there is none. */
static int64_t place_of(const struct hd_pipeline_source *source, uint8_t kind, uint32_t stage,
                        uint32_t microbatch)
{
    const uint32_t rank = source->stage_rank[stage];

    for (uint64_t i = source->rank_begin[rank]; i < source->rank_begin[rank + 1]; i++) {
        const struct hd_action *const action = &source->actions[i];
        if (action->kind == kind && action->stage == stage && action->microbatch == microbatch) {
            return (int64_t)i;
        }
    }
    return -1;
}

static int same_order(const struct hd_pipeline_source *source, uint8_t kind, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < source->microbatch_count; i++) {
        for (uint32_t j = i + 1; j < source->microbatch_count; j++) {
            if ((place_of(source, kind, a, i) < place_of(source, kind, a, j)) !=
                (place_of(source, kind, b, i) < place_of(source, kind, b, j))) {
                return 0;
            }
        }
    }
    return 1;
}

uint32_t hd_naive_judge(const struct hd_pipeline_source *source)
{
    for (uint32_t stage = 0; stage < source->stage_count; stage++) {
        for (uint32_t i = 0; i < source->microbatch_count; i++) {
            if (place_of(source, 'B', stage, i) < place_of(source, 'F', stage, i)) {
                return 2;
            }
        }
    }
    for (uint32_t stage = 0; stage + 1 < source->stage_count; stage++) {
        if (source->stage_rank[stage] != source->stage_rank[stage + 1] &&
            (!same_order(source, 'F', stage, stage + 1) ||
             !same_order(source, 'B', stage, stage + 1))) {
            return 5;
        }
    }
    return hd_naive_ends(source, NULL) ? 0 : 4;
}
