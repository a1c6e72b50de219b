/*
 * engine/flight.h - what the device has been given, and the host has not yet seen the end of.
 *
 * A kernel with a stream takes a pass and returns before it has run, so the host walks its program
 * ahead of the device.  Each action that it hands over is a flight, with a mark behind the wait
 * for its input and one behind its pass:
 *
 *   stream    .. | wait for 1F2 | mark | pass 1F2 | mark | wait for 2B0 | mark | pass 2B0 | mark
 *   flights      |<------------- 1F2 ----------->|<------------- 2B0 ------------>|
 *
 * The times of the marks are the action's times in the trace, and the first flight is what the
 * board says of the rank: for whom the device waits, or in which pass it is.  Flights end in their
 * order.  At most HD_FLIGHT_MAX are under way, so the host is never further ahead than that.
 */
#ifndef HEDDLE_ENGINE_FLIGHT_H
#define HEDDLE_ENGINE_FLIGHT_H

#include "engine/recorder.h"

/* Two marks each must stay below HD_MARK_MAX, with the few that begin and end a step. */
#define HD_FLIGHT_MAX     512u
#define HD_FLIGHT_OF_STEP UINT32_MAX /* what begins or ends a step: of no action */

struct hd_flight {
    uint32_t instruction;          /* HD_FLIGHT_OF_STEP */
    uint32_t is_ready;             /* ready_mark is passed, and times.ready_ns the device's */
    uint64_t ready_mark, end_mark; /* ready_mark 0: nothing to wait for on the device */
    struct hd_record times;        /* the host's, until the marks are passed */
};

struct hd_flights {
    struct hd_flight *rows; /* [HD_FLIGHT_MAX]; NULL: the kernel has no stream */
    uint32_t first, count;
    uint64_t free_ns; /* since when the device had nothing before the first flight */
};

#endif /* HEDDLE_ENGINE_FLIGHT_H */
