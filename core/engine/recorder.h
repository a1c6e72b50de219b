/*
 * engine/recorder.h - when each action of a step waited, ran and sent; sized before the first step.
 *
 * One row an action, in the order of the program; a ring of the last steps.  All times are of the
 * one clock (base/clock.h), which the ranks of a node share.
 *
 * What a transport says of a transfer (struct hd_transfer) has its place in the row of the action
 * that sends it, or of the one that first reads it, so no buffer can run full; a report that has
 * no place is counted.  A transport reports from any thread that is in one of its data calls, and
 * also of a step that this rank has not begun: the passages have a lock of their own.
 */
#ifndef HEDDLE_ENGINE_RECORDER_H
#define HEDDLE_ENGINE_RECORDER_H

#include "base/problem.h"

#include <pthread.h>
#include <stdint.h>

/* One transfer, as this end of it knows it; a time that nobody has said is 0. */
struct hd_passage {
    uint64_t begin_ns;    /* from here on it could move */
    uint64_t end_ns;      /* all of it was there */
    uint64_t resident_ns; /* it held this rank's device before its peer was there */
    uint32_t step;        /* that all this is of; another one than the row's: nothing was said */
    uint32_t reserved;
};

struct hd_record {
    uint64_t begin_ns;     /* the engine turned to the action */
    uint64_t ready_ns;     /* its input was there */
    uint64_t claim_ns;     /* its output slot was free */
    uint64_t run_ns;       /* the pass began */
    uint64_t end_ns;       /* the pass ended */
    uint64_t sent_ns;      /* its output was handed to the transport; end_ns if it has none */
    struct hd_passage out; /* of its output, at this end, the source */
    struct hd_passage in;  /* of its input, at this end, the target */
};

/* A step's sums, in nanoseconds. */
struct hd_step_times {
    uint64_t begin_ns, end_ns; /* of the actions */
    uint64_t compute_ns;       /* in passes */
    uint64_t wait_ns;          /* for inputs: exposed */
    uint64_t credit_ns;        /* for output slots */
    uint64_t launch_ns;        /* all else between begin and end */
    uint64_t wait_cpu_ns; /* CPU time of the thread in waits for others; 0 unless it is counted */
};

struct hd_recorder {
    uint32_t action_count;      /* of a step */
    uint32_t step_max;          /* rows kept, in steps; 0: none, but the sums are */
    uint32_t step;              /* the last, from 1 */
    struct hd_record *records;  /* [step_max, action_count] */
    struct hd_record scratch;   /* where a row goes when none are kept */
    struct hd_step_times times; /* of the last step */
    uint32_t alternates;        /* 1: keeps rows of odd steps only (bench) */
    pthread_mutex_t lock;       /* of what follows, of all passages, and of step */
    uint64_t resident_ns;       /* of all passages so far, kept or not */
    uint64_t lost_count;        /* reports that had no place */
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

/* Of one message of `step`, from the rows of its producer and of its consumer: it could move once
   both ends were ready, and it was there when its target says so, or else its source.  A time that
   neither says is 0. */
struct hd_passage hd_record_transfer(const struct hd_record *producer,
                                     const struct hd_record *consumer, uint32_t step);
/* Moves all times of a row to another clock; one that is not known stays 0. */
void hd_record_shift(struct hd_record *record, int64_t offset_ns);

void hd_recorder_begin(struct hd_recorder *recorder, uint32_t step);
/* The row of one action of this step. */
struct hd_record *hd_recorder_row(struct hd_recorder *recorder, uint32_t action);
/* Adds a whole row to the sums. */
void hd_recorder_add(struct hd_recorder *recorder, const struct hd_record *record);
void hd_recorder_end(struct hd_recorder *recorder, uint64_t end_ns);

/* Joins a report to what its end has said of the message before: a hook and its inner both know a
   part, so the earliest begin and the latest end count. [any-thread] */
void hd_recorder_note(struct hd_recorder *recorder, const struct hd_recorder_report *report);
/* A report of no message of this rank. [any-thread] */
void hd_recorder_lose(struct hd_recorder *recorder);

/* The rows of `step`, or NULL if they are kept no more (or not at all). */
const struct hd_record *hd_recorder_step(const struct hd_recorder *recorder, uint32_t step);
/* Copies them to out [action_count], passages and all; 0 if they are kept no more. [any-thread] */
uint32_t hd_recorder_copy(struct hd_recorder *recorder, uint32_t step, struct hd_record *out);
/* What all passages so far were resident; reports that had no place. [any-thread] */
uint64_t hd_recorder_resident_ns(struct hd_recorder *recorder);
uint64_t hd_recorder_lost_count(struct hd_recorder *recorder);

#endif /* HEDDLE_ENGINE_RECORDER_H */
