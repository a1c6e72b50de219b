/*
 * plan/serial.h - the canonical order of all transfers, run together with the actions.
 *
 * What a transport with HD_TRANSPORT_SERIAL does: each rank moves one transfer at a time, and all
 * ranks issue in one order (producer's end in asap, then boundary, backward before forward,
 * sequence).  Law 7 asks whether that ends; the costed timeline asks what it costs.
 *
 * Source: DESIGN.md, section 4, "Law 7"; facts/plan_numbers.md.
 */
#ifndef HEDDLE_PLAN_SERIAL_H
#define HEDDLE_PLAN_SERIAL_H

#include "plan/pipeline.h"

#define HD_SERIAL_TRANSFER 0x80000000u /* an entry is the transfer of what that action sends */

/* An order of all actions, and of all remote transfers among them, in which each comes after all
   that it waits for; `order` [action_count + remote messages], or NULL.  A rank's transfers stand
   in it as the rank issues them.  A cycle is refused by law
   7. Linear in the actions. */
hd_status hd_serial_order(const struct hd_pipeline *pipeline, uint32_t is_bounded, uint32_t *order,
                          struct hd_problem *problem);

#endif /* HEDDLE_PLAN_SERIAL_H */
