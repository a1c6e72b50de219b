/*
 * report/trace_json.h - trace.json in the Trace Event Format, for Perfetto and chrome://tracing.
 *
 * Each rank is a process, with one track for the rank's thread and one for each channel and
 * direction.  Complete events ("X") of one track never overlap: transfers of a channel that move at
 * the same time take further rows of the track, "boundary 3 forward (2)".  Times are microseconds,
 * to the nanosecond, after the earliest record.
 *
 * Flow events ("s", "t", "f") join the producer's pass, the transfer and the consumer's pass if the
 * trace has all three.  Counters ("C") show how many payload slots each stage has leased, and how
 * many copies the rank holds.
 *
 * Source: "Trace Event Format", Google, the sections on complete, flow, counter and metadata
 * events.
 */
#ifndef HEDDLE_REPORT_TRACE_JSON_H
#define HEDDLE_REPORT_TRACE_JSON_H

#include "plan/pipeline.h"
#include "train/rundir.h"

#include <stdint.h>

#define HD_TRACE_NO_CHANNEL UINT32_MAX

/* Transfers and resident waits are on the track of their channel, all others on the rank's own. */
enum hd_trace_kind {
    HD_TRACE_COMPUTE = 0,      /* "4B2" */
    HD_TRACE_EXPOSED_WAIT = 1, /* "wait 4B2": waits for the input of 4B2 */
    HD_TRACE_CREDIT_WAIT = 2,  /* "credit 4B2": waits for the slot that 4B2 writes */
    HD_TRACE_TRANSFER = 3,     /* "4B2": the message that 4B2 has written */
    HD_TRACE_COLLECTIVE = 4,   /* "collective": the end of a step; no action */
    HD_TRACE_OPTIMIZER = 5,    /* "optimizer"; no action */
    HD_TRACE_LAUNCH = 6,       /* "launch 4B2": the engine's own time before and after the pass */
    HD_TRACE_RESIDENT = 7, /* "resident 4B2": occupied this rank's device while a peer was late */
};

/* Which times of a transfer were not reported. */
enum hd_trace_unknown { HD_TRACE_BEGIN_UNKNOWN = 1, HD_TRACE_END_UNKNOWN = 2 };

struct hd_trace_record {
    uint32_t rank; /* on which it is shown; of a transfer, the one that measured it */
    uint32_t kind; /* enum hd_trace_kind */
    uint32_t step; /* from 1 */
    uint32_t stage, microbatch;
    uint8_t action;   /* enum hd_action_kind; collective and optimizer: not read */
    uint32_t channel; /* of a transfer or resident wait: index into channels; else not read */
    uint64_t bytes;   /* of a transfer; else 0 */
    uint64_t begin_ns, end_ns; /* on one clock for all ranks; end before begin counts as begin */
    uint32_t unknown;          /* of a transfer: enum hd_trace_unknown; if not 0, its span shows the
                         call of its source instead, and says so */
};

struct hd_trace {
    uint32_t rank_count, channel_count, record_count;
    const struct hd_pipeline_channel *channels; /* [channel_count], borrowed */
    const struct hd_trace_record *records;      /* [record_count], borrowed, in any order */
};

/* Writes trace.json into the directory.  HD_EXIT_OUTPUT; HD_EXIT_FAILED if it cannot allocate an
   index of the records. */
hd_status hd_trace_json_write(const struct hd_rundir *rundir, const struct hd_trace *trace,
                              struct hd_problem *problem);

#endif /* HEDDLE_REPORT_TRACE_JSON_H */
