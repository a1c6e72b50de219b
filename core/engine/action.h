/*
 * engine/action.h - one action while the engine runs it: what step.c, order.c and pass.c share.
 *
 *   step.c    receive -> claim -> pass -> send -> give back
 *   order.c   posts receives and sends, and waits for them
 *   pass.c    calls the kernel
 */
#ifndef HEDDLE_ENGINE_ACTION_H
#define HEDDLE_ENGINE_ACTION_H

#include "engine/internal.h"

#include <assert.h>

struct hd_act {
    struct hd_engine *engine;
    const struct hd_step_input *input;
    const struct hd_instruction *instruction;
    struct hd_record *record; /* with a stream: the times of `flight` */
    struct hd_problem *problem;
    struct hd_flight flight; /* of a kernel with a stream */
};

static inline struct hd_lane *hd_act_lane(const struct hd_act *act,
                                          struct hd_program_message message)
{
    assert(message.lane < act->engine->lane_count);
    return &act->engine->lanes[message.lane];
}

static inline uint64_t hd_act_sequence(const struct hd_act *act, struct hd_program_message message)
{
    return hd_act_lane(act, message)->base + message.sequence;
}

/* The kernel has a stream, so the host runs ahead of the device. */
static inline bool hd_act_is_ahead(const struct hd_act *act)
{
    return act->engine->flights.rows != NULL;
}

/* A negative status of the transport, returned while the rank did `verb` ("sending after") for this
   action, fills the problem.  HD_OK is passed on. */
hd_status hd_act_check_transport(const struct hd_act *act, hd_status status, const char *verb);

/* Publishes that the rank runs the action, or that it waits for a message. */
void hd_act_show_run(const struct hd_act *act);
void hd_act_show_wait(const struct hd_act *act, uint32_t phase, struct hd_program_message message);
/* Blocks until the message is readable (target) or its slot is free (source).  After a failure the
   board still says what the rank waited for. */
hd_status hd_act_wait(const struct hd_act *act, uint32_t phase, struct hd_program_message message);

/* pass.c: binds payload and tensors, and calls the kernel. */
hd_status hd_act_pass(struct hd_act *act);

#endif /* HEDDLE_ENGINE_ACTION_H */
