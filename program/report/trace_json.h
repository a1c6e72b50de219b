/*
 * report/trace_json.h - trace.json in the Trace Event Format, for Perfetto and chrome://tracing.
 *
 * One process per rank, in it one track for what the rank's thread does and one per channel and
 * direction.  Complete events ("X") of one track never overlap: transfers of a channel that are
 * under way together take further tracks of that channel, "boundary 3 forward (2)".  Times are
 * microseconds, to the nanosecond, since the earliest record.
 *
 * Flow events ("s", "t", "f") join the pass that produces, the transfer, and the pass that
 * consumes, where the trace holds all three.  Counters ("C") say how many payload slots each stage
 * has leased, and how many copies the rank holds.
 *
 * Source: "Trace Event Format", Google, the sections on complete, flow, counter and metadata
 * events.
 */
#ifndef HEDDLE_REPORT_TRACE_JSON_H
#define HEDDLE_REPORT_TRACE_JSON_H

#include "train/rundir.h"

#include <stdint.h>

#define HD_TRACE_NO_CHANNEL UINT32_MAX

/* All but what is of a channel (transfer, resident wait) lie on the rank's own track. */
enum hd_trace_kind {
    HD_TRACE_COMPUTE = 0,      /* "4B2" */
    HD_TRACE_EXPOSED_WAIT = 1, /* "wait 4B2": for what 4B2 reads */
    HD_TRACE_CREDIT_WAIT = 2,  /* "credit 4B2": for the slot that 4B2 writes */
    HD_TRACE_TRANSFER = 3,     /* "4B2": what 4B2 has written, on its channel's track */
    HD_TRACE_COLLECTIVE = 4,   /* "collective": the end of a step; no action */
    HD_TRACE_OPTIMIZER = 5,    /* "optimizer"; no action */
    HD_TRACE_LAUNCH = 6,       /* "launch 4B2": the engine's own time before and after the pass */
    HD_TRACE_RESIDENT = 7, /* "resident 4B2": held this rank's device for a peer that was late */
};

/* Times of a transfer that nobody has said. */
enum hd_trace_unknown { HD_TRACE_BEGIN_UNKNOWN = 1, HD_TRACE_END_UNKNOWN = 2 };

struct hd_trace_record {
    uint32_t rank; /* where it is shown; of a transfer, whoever measured it */
    uint32_t kind; /* enum hd_trace_kind */
    uint32_t step; /* from 1 */
    uint32_t stage, microbatch;
    uint8_t action;            /* enum hd_action_kind; collective and optimizer: not read */
    uint32_t channel;          /* of what is of a channel, an index into channels; else not read */
    uint64_t bytes;            /* of a transfer; else 0 */
    uint64_t begin_ns, end_ns; /* on one clock for all ranks; end before begin counts as begin */
    uint32_t unknown; /* of a transfer: enum hd_trace_unknown; then its span is what is known
                         instead, the handing over at its source, and says so */
};

struct hd_trace_channel {
    uint32_t boundary, direction; /* HD_FORWARD or HD_BACKWARD */
};

struct hd_trace {
    uint32_t rank_count, channel_count, record_count;
    const struct hd_trace_channel *channels; /* [channel_count], borrowed */
    const struct hd_trace_record *records;   /* [record_count], borrowed, in any order */
};

/* Streams trace.json into the directory, beside and renamed.  HD_EXIT_OUTPUT; HD_NO_MEMORY for an
   index of the records, HD_EXIT_FAILED. */
hd_status hd_trace_json_write(const struct hd_rundir *rundir, const struct hd_trace *trace,
                              struct hd_problem *problem);

#endif /* HEDDLE_REPORT_TRACE_JSON_H */
