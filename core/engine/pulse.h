/*
 * engine/pulse.h - moves a transport that moves only while somebody calls its progress.
 *
 * It wraps an open transport: its table has the same calls, each behind a lock, and a thread calls
 * progress each period when no other call is inside.  So a long action, or a rank that meets the
 * others between two steps, leaves no peer waiting for it (HD_TRANSPORT_TARGET_PROGRESS).  slot,
 * abort and stats take no lock, as their contract wants it.
 */
#ifndef HEDDLE_ENGINE_PULSE_H
#define HEDDLE_ENGINE_PULSE_H

#include <heddle/transport.h>

#define HD_PULSE_PERIOD_NS 1000000u /* what the contract says of long actions */
#define HD_PULSE_QUICK_NS  100000u  /* transport.progress_thread = on */

/*
 * Wraps `*transport`, whose progress is not NULL.  On success `*transport` is the wrapper, goes
 * with the table `*ops`, and its close closes both.  Else nothing is changed; 0, or an errno.
 */
int hd_pulse_start(const struct hd_transport_ops *inner_ops, uint64_t period_ns,
                   const struct hd_transport_ops **ops, struct hd_transport **transport);

#endif /* HEDDLE_ENGINE_PULSE_H */
