/*
 * engine/recorder.h - when each action of a step waited, ran and sent; sized before the first step.
 *
 * One row for each action, in the order of the program; a ring of the last steps.  All times are of
 * one clock (base/clock.h), which the ranks of a node share.
 *
 * What a transport reports of a transfer (struct hd_transfer) goes to the row of the action that
 * sends it, or of the action that first reads it, so no buffer can run full.  A report without a
 * row is counted.  A transport reports from any thread that is in one of its data calls, and also
 * for a step that this rank has not begun; so the passages have a lock of their own.
 */
#ifndef HEDDLE_ENGINE_RECORDER_H
#define HEDDLE_ENGINE_RECORDER_H

#include "base/problem.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* One transfer, as this end knows it; a time that was not reported is 0. */
struct hd_passage {
    uint64_t begin_ns;    /* when it could begin to move */
    uint64_t end_ns;      /* when all of it had arrived */
    uint64_t resident_ns; /* how long it held this rank's device before its peer was ready */
    uint32_t step;        /* of these times; if it is not the row's step, nothing was reported */
    uint32_t reserved;
};

struct hd_record {
    uint64_t begin_ns;     /* the action began */
    uint64_t ready_ns;     /* its input had arrived */
    uint64_t claim_ns;     /* its output slot was free */
    uint64_t run_ns;       /* the pass began */
    uint64_t end_ns;       /* the pass ended */
    uint64_t sent_ns;      /* its output was handed to the transport; end_ns if it has none */
    struct hd_passage out; /* of its output, at this end: the source */
    struct hd_passage in;  /* of its input, at this end: the target */
};

/* A step's sums, in nanoseconds. */
struct hd_step_times {
    uint64_t begin_ns, end_ns; /* of the actions */
    uint64_t compute_ns;       /* in passes */
    uint64_t wait_ns;          /* for inputs: exposed */
    uint64_t credit_ns;        /* for output slots */
    uint64_t launch_ns;        /* everything else between begin and end */
    uint64_t wait_cpu_ns;      /* CPU time of the thread in waits; 0 unless it is counted */
};

struct hd_recorder {
    uint32_t action_count;      /* of a step */
    uint32_t step_max;          /* steps whose rows are kept; 0: only the sums are kept */
    uint32_t step;              /* the last, from 1 */
    struct hd_record *records;  /* [step_max, action_count] */
    struct hd_record scratch;   /* where a row goes when none are kept */
    struct hd_step_times times; /* of the last step */
    bool alternates;            /* keeps the rows of odd steps only (bench) */
    pthread_mutex_t lock;       /* of the next members, of all passages, and of step */
    uint64_t resident_ns;       /* of all passages so far, kept or not */
    uint64_t lost_count;        /* reports that had no row */
};

/* A report of a transport, of the message that `action` sends (or first reads, is_in). */
struct hd_recorder_report {
    uint64_t step; /* from 1 */
    uint32_t action, is_in;
    uint64_t begin_ns, end_ns, resident_ns;
};

hd_status hd_recorder_create(struct hd_recorder *recorder, uint32_t action_count, uint32_t step_max,
                             struct hd_problem *problem);
void hd_recorder_finish(struct hd_recorder *recorder);

/* The transfer of one message of `step`, from the rows of its producer and its consumer.  It could
   move once both ends were ready.  It had arrived when its target says so, or else its source.  A
   time that neither reports is 0. */
struct hd_passage hd_record_transfer(const struct hd_record *producer,
                                     const struct hd_record *consumer, uint32_t step);
/* Moves all times of a row to another clock; a time that is not known stays 0. */
void hd_record_shift(struct hd_record *record, int64_t offset_ns);

void hd_recorder_begin(struct hd_recorder *recorder, uint32_t step);
/* The row of one action of this step. */
struct hd_record *hd_recorder_row(struct hd_recorder *recorder, uint32_t action);
/* Adds a whole row to the sums. */
void hd_recorder_add(struct hd_recorder *recorder, const struct hd_record *record);
void hd_recorder_end(struct hd_recorder *recorder, uint64_t end_ns);

/* Adds a report to what this end has reported of the message before.  A hook and its inner
   transport each know a part, so the earliest begin and the latest end count. [any-thread] */
void hd_recorder_note(struct hd_recorder *recorder, const struct hd_recorder_report *report);
/* Counts a report of a message that is not this rank's. [any-thread] */
void hd_recorder_lose(struct hd_recorder *recorder);

/* The rows of `step`; NULL if they are not kept, or not any more. */
const struct hd_record *hd_recorder_step(const struct hd_recorder *recorder, uint32_t step);
/* Copies them to out [action_count], with their passages; false if they are not kept.
   [any-thread] */
bool hd_recorder_copy(struct hd_recorder *recorder, uint32_t step, struct hd_record *out);
/* Sums so far: the resident times of all passages, and reports without a row. [any-thread] */
uint64_t hd_recorder_resident_ns(struct hd_recorder *recorder);
uint64_t hd_recorder_lost_count(struct hd_recorder *recorder);

#endif /* HEDDLE_ENGINE_RECORDER_H */
