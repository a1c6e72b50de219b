/*
 * report/trace_leases.h - when payload slots were leased and given back; internal to trace_json.
 *
 * They are derived from the passes: a slot is leased when a forward begins, and released when the
 * last backward pass of that stage and microbatch ends (W if there is one).  Every step begins and
 * ends without leases.
 */
#ifndef HEDDLE_REPORT_TRACE_LEASES_H
#define HEDDLE_REPORT_TRACE_LEASES_H

#include "report/trace_json.h"

#include <stdbool.h>

struct hd_trace_lease {
    uint64_t at_ns;
    uint32_t rank, stage;
    bool is_release;
    uint32_t held, copies; /* after this event: of the stage, and of the rank */
};

struct hd_trace_leases {
    uint32_t count;
    struct hd_trace_lease *leases; /* [count], by rank, then time; owned */
};

/* On HD_NO_MEMORY nothing is set. */
hd_status hd_trace_leases_create(struct hd_trace_leases *leases, const struct hd_trace *trace);
void hd_trace_leases_finish(struct hd_trace_leases *leases);

#endif /* HEDDLE_REPORT_TRACE_LEASES_H */
