/*
 * engine/order.h - one order for all posts of a rank, for transports that are serial (law 7).
 *
 * Such a transport moves a rank's transfers one after another, in the order in which they were
 * posted.  So a rank posts sends and receives in the order that the plan has proved (plan/issue.h),
 * whatever it meets first: a receive ahead of a send goes before it, though its consumer comes
 * later; a send waits for the receives ahead of it.
 *
 *   eager (overlap on)   whatever is next goes as soon as it can: a send once it is written, a
 *                        receive once its slot has been given back
 *   lazy (off)           only up to what the rank needs now: the message that it waits for, or
 *                        the one that it has just written.  "Just before its wait" can mean no
 *                        more than that, since the order is not the rank's to choose
 *
 * A group (law 7) goes at once, and only when all of it can.  A step's posts all go within it.
 */
#ifndef HEDDLE_ENGINE_ORDER_H
#define HEDDLE_ENGINE_ORDER_H

#include "engine/lane.h"
#include "engine/program.h"

struct hd_order_post {
    struct hd_program_message message;
    uint32_t is_send;
    uint32_t group_begin; /* the place of its group's first */
    uint32_t group_left;  /* of its group, after it */
};

struct hd_order {
    uint32_t post_count; /* of a step; 0: the transport is not serial, or nothing leaves the rank */
    struct hd_order_post *posts; /* [post_count] */
    uint32_t *first_place;       /* [lane_count]: of a lane's part of place_of */
    uint32_t *place_of;          /* [first_place + sequence] -> index into posts */

    /* Of this step: posts before these have gone; may go; are known to have moved. */
    uint32_t gone_count, wanted_count, moved_count; /* the last is counted by who asks them */
};

/* Of `program`'s rank; empty where the pipeline is not serial. */
hd_status hd_order_create(const struct hd_pipeline *pipeline, const struct hd_program *program,
                          struct hd_order *order, struct hd_problem *problem);
void hd_order_finish(struct hd_order *order);

/* A step begins. */
void hd_order_begin(struct hd_order *order, uint32_t is_eager);
/* The rank needs this message now: all up to it may go. */
void hd_order_want(struct hd_order *order, struct hd_program_message message);
/* Posts what may go and can.  A status of the transport's. */
hd_status hd_order_post(struct hd_order *order, struct hd_lane *lanes);

/* The place of the group that `message` goes in: all before it has to move first. */
uint32_t hd_order_group(const struct hd_order *order, struct hd_program_message message);

#endif /* HEDDLE_ENGINE_ORDER_H */
