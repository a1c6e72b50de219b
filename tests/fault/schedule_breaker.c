/*
 * A schedule for P stages on P ranks that breaks what it is told, for heddle conform: a law in one
 * shape, the promise to be pure, the room that it is given.
 */
#include "fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int does(const struct hd_shape *shape, const char *what)
{
    return strcmp(shape->options[0].text, what) == 0;
}

/* Shapes past the usual ones: a law is broken on many ranks, or a count that has 16 bits. */
static void break_large(const struct hd_shape *shape, struct hd_plan *first)
{
    if (does(shape, "tires") && shape->rank_count > 8 && first->count > 0) {
        first->count--;
    } else if (does(shape, "narrow")) {
        first->count = first->count / shape->microbatch_count * (uint16_t)shape->microbatch_count;
    }
}

/* One shape out of many, as mistakes are. */
static int is_the_shape(const struct hd_shape *shape)
{
    return shape->rank_count == 5 && shape->microbatch_count == 7;
}

static uint32_t refuse(const struct hd_shape *shape, char *reason, uint32_t capacity)
{
    int length = 0;

    if (shape->stage_count == shape->rank_count) {
        return 0;
    }
    if (does(shape, "mute")) {
        length = snprintf(reason, capacity, "not with this many stages");
    } else if (does(shape, "long")) {
        length = sprintf(reason != NULL ? reason : (char[64]){0}, "%u stages on %u ranks",
                         shape->stage_count, shape->rank_count);
    } else {
        length = snprintf(reason, capacity, "serves one stage a rank, not %u stages on %u ranks",
                          shape->stage_count, shape->rank_count);
    }
    return (uint32_t)length;
}

static uint32_t place(const struct hd_shape *shape, uint32_t stage, uint32_t replica)
{
    if (does(shape, "crowd") && is_the_shape(shape)) {
        return 0;
    }
    return does(shape, "nowhere") && is_the_shape(shape) ? stage + 1
                                                         : rank_of(shape, stage, replica);
}

static uint64_t scratch_bytes(const struct hd_shape *shape)
{
    return shape->microbatch_count * sizeof(uint32_t);
}

/* The last action of rank 0 is out of its place: a backward before its forward, or missing. */
static void break_law(const struct hd_shape *shape, struct hd_plan *first)
{
    if (does(shape, "causal") && first->capacity >= first->count) {
        const struct hd_action moved = first->actions[first->count - 1];
        memmove(first->actions + 1, first->actions, (first->count - 1) * sizeof *first->actions);
        first->actions[0] = moved;
    } else if (does(shape, "incomplete")) {
        first->count--;
    }
}

/* Work that grows with the square of the microbatches and leaves no trace but time. */
static void waste(const struct hd_shape *shape, uint32_t *scratch)
{
    for (uint32_t i = 0; i < shape->microbatch_count; i++) {
        for (uint32_t k = 0; k < shape->microbatch_count; k++) {
            scratch[k] = scratch[k] * 5u + i;
        }
    }
}

static uint32_t previous_count; /* the state that a schedule must not have */

static void break_purity(const struct hd_shape *shape, uint32_t *scratch, struct hd_plan *first)
{
    const uint32_t last = first->count > 0 && first->count <= first->capacity;

    if (does(shape, "static") && previous_count > shape->microbatch_count && last) {
        first->actions[first->count - 1].flags = HD_PAIRED;
    } else if (does(shape, "rubbish") && last) {
        first->actions[first->count - 1].flags = (uint16_t)(scratch[0] & HD_PAIRED);
    } else if (does(shape, "speaks")) {
        const ssize_t written = write(STDERR_FILENO, "", 0);
        first->count += written != 0;
    }
    previous_count = shape->microbatch_count;
}

static void break_plan(const struct hd_shape *shape, void *scratch, struct hd_plan *const *plans)
{
    uint32_t *words = scratch;

    break_purity(shape, words, plans[0]);
    if (does(shape, "quadratic")) {
        waste(shape, words);
    } else if (does(shape, "overrun") && plans[0]->capacity > 0) {
        plans[0]->actions[plans[0]->count] = plans[0]->actions[0];
    } else if (does(shape, "greedy")) {
        words[shape->microbatch_count] = 1;
    } else if (does(shape, "uncounted") && plans[0]->capacity == 0) {
        plans[0]->count++;
    }
    break_large(shape, plans[0]);
    if (is_the_shape(shape)) {
        break_law(shape, plans[0]);
        if (does(shape, "crash")) {
            abort();
        }
        while (does(shape, "hang")) {
            pause();
        }
    }
}

static void plan_and_break(const struct hd_shape *shape, void *scratch,
                           struct hd_plan *const *plans)
{
    plan(shape, scratch, plans);
    for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
        /* The forwards stand first. */
        plans[rank]->count /= shape->flags & HD_FORWARD_ONLY ? 2 : 1;
    }
    break_plan(shape, scratch, plans);
}

static const struct hd_option options[] = {
    {"does", "nothing",
     "nothing | mute | long | crowd | nowhere | causal | incomplete | static | rubbish | speaks | "
     "quadratic | overrun | greedy | uncounted | crash | hang | "
     "tires | narrow",
     "what it breaks", HD_OPTION_TEXT, 0},
};

static const struct hd_schedule_ops ops = {.size = sizeof ops,
                                           .refuse = refuse,
                                           .rank_of = place,
                                           .scratch_bytes = scratch_bytes,
                                           .plan = plan_and_break};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_SCHEDULE),
    .name = "breaker",
    .summary = "breaks what it is told",
    .option_count = sizeof options / sizeof options[0],
    .options = options,
    .ops = &ops,
};
