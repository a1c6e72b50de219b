/*
 * engine/pulse.h - moves a transport that moves only while its progress is called.
 *
 * It wraps an open transport.  Its table has the same calls, each behind a lock, and a thread calls
 * progress each period when no other call is inside.  So a long action, or a rank that waits for
 * the others between two steps, does not block a peer (HD_TRANSPORT_TARGET_PROGRESS).  slot, abort
 * and stats take no lock, as their contract demands.
 */
#ifndef HEDDLE_ENGINE_PULSE_H
#define HEDDLE_ENGINE_PULSE_H

#include <heddle/transport.h>

#include <stdbool.h>

#define HD_PULSE_PERIOD_NS 1000000u /* the contract asks for it in long actions */
#define HD_PULSE_QUICK_NS  100000u  /* transport.progress_thread = on */

struct hd_pulse_need {
    const struct hd_transport_ops *ops;
    uint64_t capabilities; /* of the transport that carries: under a hook, the inner one */
    bool is_hooked;        /* a hook may hold messages back */
    bool is_asked;         /* transport.progress_thread = on */
    bool is_device; /* a stream runs while the host launches or waits for the other ranks, and
                              its last messages may wait for a credit after it has ended */
};

/* How often such a transport must be moved.  0: it needs no thread, for it moves by itself or while
   the host waits, and none is asked for. */
uint64_t hd_pulse_period_ns(const struct hd_pulse_need *need);

/*
 * Wraps `*transport`, whose progress is not NULL.  On success it returns 0, `*transport` is the
 * wrapper, `*ops` is its table, and its close closes both.  Else it returns an errno and changes
 * nothing.
 */
int hd_pulse_start(const struct hd_transport_ops *inner_ops, uint64_t period_ns,
                   const struct hd_transport_ops **ops, struct hd_transport **transport);

#endif /* HEDDLE_ENGINE_PULSE_H */
