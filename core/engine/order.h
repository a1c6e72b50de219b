/*
 * engine/order.h - when a rank posts its receives and sends, and what it waits for first.
 *
 * Most transports take the posts of each channel by themselves: with overlap a receive is posted as
 * soon as it has a slot, without overlap just before its wait; a send when it is written.
 *
 * A serial transport (law 7) moves the transfers of a rank one after another, in the order of their
 * posts.  So the rank posts all of them in the order that the plan has proved (plan/issue.h),
 * whatever it reaches first: a receive that is before a send in that order is posted before it,
 * although its consumer runs later, and a send waits for the receives before it.
 *
 *   eager (overlap on)   posts the next transfer as soon as it can: a send once it is written, a
 *                        receive once its slot is free
 *   lazy (overlap off)   posts only up to what the rank needs now: the message that it waits for,
 *                        or the one that it has just written
 *
 * A group (law 7) is posted at once, when all of it can be.  A step posts all its transfers.
 */
#ifndef HEDDLE_ENGINE_ORDER_H
#define HEDDLE_ENGINE_ORDER_H

#include "engine/action.h"

/* Of `program`'s rank; empty where the pipeline is not serial. [setup] */
hd_status hd_order_create(const struct hd_pipeline *pipeline, const struct hd_program *program,
                          struct hd_order *order, struct hd_problem *problem);
void hd_order_finish(struct hd_order *order);

/* A step begins: the lanes begin it, and what may be posted now is posted. */
hd_status hd_order_begin(const struct hd_act *act);
/* The receive of this message is posted when it returns. */
hd_status hd_order_receive(const struct hd_act *act, struct hd_program_message message);
/* The slot of this message is written: seals it, and sends it or leaves it to the order. */
hd_status hd_order_send(const struct hd_act *act, struct hd_program_message message);
/* All use of this message is over: gives its slot back, and posts what can use it. */
hd_status hd_order_release(const struct hd_act *act, struct hd_program_message message);
/* Waits for the message (phase HD_PHASE_RECEIVE) or for its slot (HD_PHASE_CREDIT); in order, first
   for all that has to move before it. */
hd_status hd_order_wait(const struct hd_act *act, uint32_t phase,
                        struct hd_program_message message);
/* A step ends: in order, waits until all its transfers have moved. */
hd_status hd_order_end(const struct hd_act *act);

#endif /* HEDDLE_ENGINE_ORDER_H */
