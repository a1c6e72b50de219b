/*
 * run/shared.h - the memory that the parent process and its ranks share (the launcher's region).
 *
 *   board | results | numbers of the steps | one result a rank | remote channels | records
 *
 * Rank 0 alone writes the results and the numbers of the steps; each rank writes its own result,
 * its own records, and its own end of a channel.  The parent maps the memory before it forks, so
 * the pointers hold in every rank.
 */
#ifndef HEDDLE_RUN_SHARED_H
#define HEDDLE_RUN_SHARED_H

#include "base/memory.h"
#include "engine/board.h"
#include "engine/recorder.h"
#include "launch/clock.h"
#include "run/job.h"

#define HD_RANK_TAG_MAX HD_MEMORY_TAG_MAX

/* What a rank has allocated under one tag of base/memory.h. */
struct hd_rank_tag {
    char tag[24];
    uint64_t bytes, peak_bytes;
};

/* What one rank leaves behind. */
struct hd_rank_result {
    double compute_seconds, exposed_wait_seconds, credit_wait_seconds, launch_seconds; /* sums */
    double resident_wait_seconds; /* a sum, too: as the transport reports it */
    uint64_t engine_cpu_ns;       /* CPU time of the step's thread inside hd_engine_step */
    uint64_t wait_cpu_ns;         /* the part of it in waits for other ranks; 0 unless requested */
    uint64_t action_count;        /* that ran in that time */
    uint64_t peak_payload_slots;
    uint64_t peak_bytes;
    uint64_t settled_bytes, held_bytes; /* after the second step, and at the end */
    uint64_t resident_peak_bytes;       /* of the process, libraries included */
    uint32_t counted_steps; /* the sums are over these: from step 3 on, or all if there are fewer */
    uint32_t tag_count;
    struct hd_rank_tag tags[HD_RANK_TAG_MAX];
    uint64_t lost_reports;           /* reports of transfers that did not fit in the trace */
    _Atomic int64_t clock_offset_ns; /* to add to this host's clock to get rank 0's */
    struct hd_clock_reading clock_first, clock_last; /* at the start and at the end; at_ns 0: the
                                                        rank is on rank 0's machine */
    char device[160];
};

/* What the two ends of a remote channel report about it. */
struct hd_channel_result {
    char carrier[36]; /* what carries the channel: "shm"; "": no end has reported */
    uint32_t reserved;
    uint64_t resident_ns[2]; /* at the source, at the target; of the whole run */
};

struct hd_results {
    uint32_t steps_done; /* losses and so on are valid up to this step */
    uint32_t skipped;
    uint32_t has_hash;
    char parameters_hash[HD_HASH_TEXT_BYTES];
    double measured_bubble;       /* mean over the counted steps; NaN: none */
    double measured_span_seconds; /* mean: from the begin of the first action to the last end */
    double balance_loss, z_loss;  /* of the last step */
    struct {
        uint32_t steps_done;
        uint64_t samples, labels; /* that were read, each once */
        double loss;              /* mean over the labels, in nats */
    } evaluation;
};

struct hd_shared {
    uint32_t rank_count, remote_count;
    uint64_t actions_max;  /* of a rank */
    uint64_t record_count; /* of one rank: trace_steps x actions_max */

    /* NULL while the memory is not mapped: before the run, and after it. */
    struct hd_board *board;
    struct hd_results *results;
    double *losses, *norms, *step_seconds; /* [train.steps] */
    struct hd_rank_result *ranks;          /* [rank_count] */
    struct hd_channel_result *channels;    /* [remote_count] */
    struct hd_record *records;             /* [rank_count, record_count] */
};

/* Counts what the job needs and sets the pointers into `memory`; NULL: to NULL.  Returns the bytes
   that the memory must have. */
uint64_t hd_shared_map(struct hd_shared *shared, const struct hd_job *job, void *memory);

static inline struct hd_record *hd_shared_records(const struct hd_shared *shared, uint32_t rank)
{
    return shared->records + rank * shared->record_count;
}

#endif /* HEDDLE_RUN_SHARED_H */
