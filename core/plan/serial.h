/*
 * plan/serial.h - the transfers of a serial transport, run together with the actions.
 *
 * On a transport with HD_TRANSPORT_SERIAL each rank moves the transfers of its list one group after
 * another (plan/issue.h).  Law 7 asks whether that ends; the costed timeline asks how long it
 * takes.
 *
 * Source: docs/architecture.md, "Law 7"; docs/sources.md.
 */
#ifndef HEDDLE_PLAN_SERIAL_H
#define HEDDLE_PLAN_SERIAL_H

#include "plan/issue.h"

#define HD_SERIAL_TRANSFER 0x80000000u /* the entry is the transfer of what that action sends */

/* Writes an order of all actions and remote transfers in which each comes after all that it waits
   for.  `order` is [action_count + remote messages] or NULL.  Law 7 refuses a plan with a cycle.
   Linear in the actions. */
hd_status hd_serial_order(const struct hd_pipeline *pipeline, const struct hd_issue *issue,
                          bool is_bounded, uint32_t *order, struct hd_problem *problem);

#endif /* HEDDLE_PLAN_SERIAL_H */
