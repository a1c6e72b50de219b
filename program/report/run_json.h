/*
 * report/run_json.h - run.json: what was run, on which machine, and how it went (docs/interface.md,
 * "What a run leaves").
 *
 * It is written before step 1 with `"exit": null`, and replaced at the end.  A value that is
 * unknown or not finite is null.  The writer adds version, commit (of the checkout it was built
 * from), compiler, libraries and environment.  All pointers are borrowed for the call; [setup] and
 * after the last step, one thread.
 */
#ifndef HEDDLE_REPORT_RUN_JSON_H
#define HEDDLE_REPORT_RUN_JSON_H

#include "base/hash.h"
#include "plan/pipeline.h"
#include "run/shared.h"
#include "train/rundir.h"

#include <stdint.h>

#define HD_RUN_STEP_FIRST 3u /* times count from this step; steps 1 and 2 fill caches */

struct hd_run_library {
    const char *name, *version;
};

struct hd_run_plugin {
    const char *kind, *name, *path, *version;
};

struct hd_run_channel {
    uint32_t boundary, direction; /* HD_FORWARD or HD_BACKWARD */
    uint32_t source, target;      /* ranks */
    const char *lane;             /* what carries it, as the transport names it; or "local" */
    double resident_seconds;      /* at both ends, over the whole run, as the transport reports */
};

/* Bytes of one rank by purpose; `other` is memory that no plan counts. */
struct hd_run_memory {
    uint64_t state, payload, transfer, scratch, other;
};

/* One rank; seconds are means over steps. */
struct hd_run_rank {
    double compute_seconds, exposed_wait_seconds, launch_seconds, resident_wait_seconds;
    uint64_t peak_payload_slots, peak_bytes;
    struct hd_run_memory planned, measured; /* measured: peaks by tag */
    uint64_t settled_bytes, held_bytes;     /* after the second step, and at the end; 0: unknown */
    uint64_t resident_peak_bytes;           /* of the process, libraries included */
    uint32_t memory_count;
    const struct hd_rank_tag *memory; /* [memory_count], by tag */
};

/* The offset between the clock of a rank's host and rank 0's; the rank's times are converted. */
struct hd_run_clock {
    uint32_t rank;
    double first_seconds, last_seconds; /* to add, at the start and at the end */
    double error_seconds;               /* the larger bound of the two */
};

/* Transfers of one class of handoffs, in seconds of a step; hidden: while the receiver worked. */
struct hd_run_transfers {
    double transfer_seconds, hidden_seconds, exposed_seconds;
};

/* How much of the transfer time was hidden: measured over the steps in the trace, and in the costed
   plan.  NaN if it is unknown or there are no transfers. */
struct hd_run_overlap {
    uint32_t step_count;    /* in the trace; 0 if nothing is measured */
    uint64_t unknown_count; /* transfers without a reported begin or end; not in the sums */
    uint64_t lost_count;    /* reports of the transport for which the trace had no room */
    uint64_t counts[HD_HANDOFF_CLASS_COUNT];                  /* handoffs of a step, as planned */
    struct hd_run_transfers measured[HD_HANDOFF_CLASS_COUNT]; /* by enum hd_handoff_class */
    struct hd_run_transfers costed[HD_HANDOFF_CLASS_COUNT];
    double efficiency_measured, efficiency_costed; /* hidden over all transfer time */
    double kept; /* of the time hidden in the costed plan: the share that was hidden */
};

struct hd_run_record {
    const char *command_line; /* quoted for a shell */
    const char *started;      /* ISO 8601 */
    const char *cpu;
    const char *const *hosts; /* [host_count] */
    const char *const *devices;
    const struct hd_run_library *libraries; /* in addition to the core's */
    uint32_t host_count, device_count, library_count;

    const char *corpus_path;
    uint64_t corpus_bytes;
    const char *corpus_sha256; /* hex */

    uint32_t plugin_count, channel_count, rank_count;
    const struct hd_run_plugin *plugins;
    const struct hd_run_channel *channels;
    const struct hd_run_rank *ranks; /* [rank_count]; NULL before the run */
    const char *plan_hash;           /* hex */

    uint32_t step_count;                                   /* finished */
    const double *losses, *grad_norms, *step_seconds;      /* [step_count] */
    uint64_t step_tokens;                                  /* tokens of one step */
    const char *parameters_hash;                           /* hex; NULL before the end */
    double bubble_planned, bubble_costed, bubble_measured; /* of the total; NaN if unknown */

    struct hd_run_overlap overlap;
    const struct hd_run_clock
        *clocks; /* [clock_count]; of the ranks on other machines than rank 0 */
    uint32_t clock_count;

    bool is_finished; /* if not, "exit" is null */
    int32_t exit_code;
};

/* Writes run.json into the directory.  HD_EXIT_OUTPUT. */
hd_status hd_run_json_write(const struct hd_rundir *rundir, const struct hd_run_record *record,
                            struct hd_problem *problem);

/* Over steps HD_RUN_STEP_FIRST and later; NaN if there are none. */
struct hd_run_speed {
    double median, p90, min;  /* seconds; p90 by nearest rank */
    double tokens_per_second; /* all their tokens over all their seconds */
};
void hd_run_speed(const double *step_seconds, uint32_t step_count, uint64_t step_tokens,
                  struct hd_run_speed *speed);

/* For the record: the time now as ISO 8601 with its offset; the processor's name in /proc/cpuinfo,
   or "unknown"; argv quoted for a shell, cut at the capacity. */
#define HD_RUN_STARTED_BYTES 32u
void hd_run_started(char text[HD_RUN_STARTED_BYTES]);
void hd_run_cpu(char *text, uint32_t capacity);
void hd_run_command_line(int argc, const char *const *argv, char *text, uint32_t capacity);

#endif /* HEDDLE_REPORT_RUN_JSON_H */
