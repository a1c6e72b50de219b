/*
 * engine/turn.h - one action on its way through the engine; what step.c and pass.c share.
 *
 *   step.c   receive -> claim ->           -> send -> give back
 *   pass.c                      run a pass
 */
#ifndef HEDDLE_ENGINE_TURN_H
#define HEDDLE_ENGINE_TURN_H

#include "engine/internal.h"

#include <assert.h>

/* What the functions of one action hand on. */
struct hd_turn {
    struct hd_engine *engine;
    const struct hd_step_input *input;
    const struct hd_instruction *instruction;
    struct hd_record *record; /* of a flight: its own times */
    struct hd_problem *problem;
    struct hd_flight flight; /* of a kernel with a stream */
};

/* "running 4B2 of step 7", in text, which it returns. */
const char *hd_turn_name(const struct hd_turn *turn, const char *verb, char text[96]);

static inline struct hd_lane *hd_turn_lane(const struct hd_turn *turn,
                                           struct hd_program_message message)
{
    assert(message.lane < turn->engine->lane_count);
    return &turn->engine->lanes[message.lane];
}

static inline uint64_t hd_turn_sequence(const struct hd_turn *turn,
                                        struct hd_program_message message)
{
    return hd_turn_lane(turn, message)->base + message.sequence;
}

/* The host is ahead of a device: the kernel has a stream. */
static inline uint32_t hd_turn_is_ahead(const struct hd_turn *turn)
{
    return turn->engine->flights.rows != NULL;
}

/* Binds payload and tensors, and calls the kernel. */
hd_status hd_turn_pass(struct hd_turn *turn);

#endif /* HEDDLE_ENGINE_TURN_H */
