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
 * How often a transport of these capabilities (of what carries, under a hook) has to be moved;
 * 0: it moves by itself, or while somebody waits, and no thread is asked for.
 */
struct hd_pulse_need {
    const struct hd_transport_ops *ops;
    uint64_t capabilities;
    uint32_t is_hooked; /* a hook may hold messages back */
    uint32_t is_asked;  /* transport.progress_thread = on */
    uint32_t is_device; /* a stream goes on while the host launches, or meets the others; and when
                           it has ended, its last messages may still wait for a credit */
};
uint64_t hd_pulse_period_ns(const struct hd_pulse_need *need);

/*
 * Wraps `*transport`, whose progress is not NULL.  On success `*transport` is the wrapper, goes
 * with the table `*ops`, and its close closes both.  Else nothing is changed; 0, or an errno.
 */
int hd_pulse_start(const struct hd_transport_ops *inner_ops, uint64_t period_ns,
                   const struct hd_transport_ops **ops, struct hd_transport **transport);

#endif /* HEDDLE_ENGINE_PULSE_H */
