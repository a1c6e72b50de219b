/* conform/transport_checks.h - the checks of the transport suite, by the file that has them. */
#ifndef HEDDLE_CONFORM_TRANSPORT_CHECKS_H
#define HEDDLE_CONFORM_TRANSPORT_CHECKS_H

#include "conform/suites.h"

/* transport_api.c */
void hd_conform_transport_promises(struct hd_conform_case *check);
void hd_conform_transport_slots(struct hd_conform_case *check);
void hd_conform_transport_reopen(struct hd_conform_case *check);
void hd_conform_transport_stats(struct hd_conform_case *check);

/* transport_messages.c */
void hd_conform_transport_order(struct hd_conform_case *check);
void hd_conform_transport_once(struct hd_conform_case *check);
void hd_conform_transport_sizes(struct hd_conform_case *check);
void hd_conform_transport_large(struct hd_conform_case *check);
void hd_conform_transport_pair(struct hd_conform_case *check);
void hd_conform_transport_ring(struct hd_conform_case *check);
void hd_conform_transport_group(struct hd_conform_case *check);
void hd_conform_transport_two(struct hd_conform_case *check);
void hd_conform_transport_latency(struct hd_conform_case *check);
void hd_conform_transport_bandwidth(struct hd_conform_case *check);

/* transport_leases.c */
void hd_conform_transport_arrival(struct hd_conform_case *check);
void hd_conform_transport_visible(struct hd_conform_case *check);
void hd_conform_transport_lease(struct hd_conform_case *check);
void hd_conform_transport_busy(struct hd_conform_case *check);
void hd_conform_transport_prompt(struct hd_conform_case *check);
void hd_conform_transport_seal(struct hd_conform_case *check);

/* transport_faults.c */
void hd_conform_transport_turn(struct hd_conform_case *check);
void hd_conform_transport_unleased(struct hd_conform_case *check);
void hd_conform_transport_abort(struct hd_conform_case *check);
void hd_conform_transport_quiesce(struct hd_conform_case *check);
void hd_conform_transport_dead(struct hd_conform_case *check);
void hd_conform_transport_stopped(struct hd_conform_case *check);
void hd_conform_transport_alone(struct hd_conform_case *check);
void hd_conform_transport_refused(struct hd_conform_case *check);

#endif /* HEDDLE_CONFORM_TRANSPORT_CHECKS_H */
