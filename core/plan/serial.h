/*
 * plan/serial.h - all transfers of a serial transport, run together with the actions.
 *
 * What a transport with HD_TRANSPORT_SERIAL does: each rank moves the transfers of its list one
 * group after another (plan/issue.h).  Law 7 asks whether that ends; the costed timeline asks what
 * it costs.
 *
 * Source: DESIGN.md, section 4, "Law 7"; facts/plan_numbers.md.
 */
#ifndef HEDDLE_PLAN_SERIAL_H
#define HEDDLE_PLAN_SERIAL_H

#include "plan/issue.h"

#define HD_SERIAL_TRANSFER 0x80000000u /* an entry is the transfer of what that action sends */

/* An order of all actions, and of all remote transfers among them, in which each comes after all
   that it waits for; `order` [action_count + remote messages], or NULL.  A cycle is refused by law
   7.  Linear in the actions. */
hd_status hd_serial_order(const struct hd_pipeline *pipeline, const struct hd_issue *issue,
                          uint32_t is_bounded, uint32_t *order, struct hd_problem *problem);

#endif /* HEDDLE_PLAN_SERIAL_H */
