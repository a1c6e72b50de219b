/*
 * engine/recorder.h - when each action of a step waited, ran and sent; sized before the first step.
 *
 * One row an action, in the order of the program; a ring of the last steps.  All times are of the
 * one clock (base/clock.h), which the ranks of a node share.
 */
#ifndef HEDDLE_ENGINE_RECORDER_H
#define HEDDLE_ENGINE_RECORDER_H

#include "base/problem.h"

#include <stdint.h>

struct hd_record {
    uint64_t begin_ns; /* the engine turned to the action */
    uint64_t ready_ns; /* its input was there */
    uint64_t claim_ns; /* its output slot was free */
    uint64_t run_ns;   /* the pass began */
    uint64_t end_ns;   /* the pass ended */
    uint64_t sent_ns;  /* its output was handed to the transport; end_ns if it has none */
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
};

hd_status hd_recorder_create(struct hd_recorder *recorder, uint32_t action_count, uint32_t step_max,
                             struct hd_problem *problem);
void hd_recorder_finish(struct hd_recorder *recorder);

void hd_recorder_begin(struct hd_recorder *recorder, uint32_t step);
/* The row of one action of this step. */
struct hd_record *hd_recorder_row(struct hd_recorder *recorder, uint32_t action);
/* Adds a whole row to the sums. */
void hd_recorder_add(struct hd_recorder *recorder, const struct hd_record *record);
void hd_recorder_end(struct hd_recorder *recorder);

/* The rows of `step`, or NULL if they are kept no more (or not at all). */
const struct hd_record *hd_recorder_step(const struct hd_recorder *recorder, uint32_t step);

#endif /* HEDDLE_ENGINE_RECORDER_H */
