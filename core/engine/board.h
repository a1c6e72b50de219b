/*
 * engine/board.h - what every rank says of itself, and the one word that ends the run.
 *
 * The board lies in memory that all ranks and the parent share (launch/launch.h).  Each rank
 * writes its own row; everybody reads all.  A row is a few relaxed stores around a sequence
 * number, so publishing costs nothing and a reader sees one whole state.  Nothing here waits.
 *
 *   heartbeat   moved every 10 ms by the rank's watchdog thread: a slow stage moves it, a
 *               stopped or dead process does not
 *   cause       why the run ends: the first one written stays, and its exit code is everybody's
 *   abort       set with the cause; every rank's watchdog sees it within 10 ms
 *
 * The hang report is made from the rows, in the words of the schedule: "rank 2 waits 2B2 from
 * rank 3, which is at 3F5 since 8.2 s".
 */
#ifndef HEDDLE_ENGINE_BOARD_H
#define HEDDLE_ENGINE_BOARD_H

#include "base/problem.h"

#include <stdatomic.h>
#include <stdint.h>

#define HD_BOARD_REPORT_BYTES 32768u

/* What a rank is doing. */
enum hd_phase {
    HD_PHASE_NONE = 0,     /* not started */
    HD_PHASE_OPEN = 1,     /* opening devices and transports */
    HD_PHASE_RUN = 2,      /* inside a plugin's pass, or between actions */
    HD_PHASE_RECEIVE = 3,  /* waits for the message that its action consumes */
    HD_PHASE_CREDIT = 4,   /* waits for a free slot to write to */
    HD_PHASE_TOGETHER = 5, /* at the end of the step, waits for the other ranks */
    HD_PHASE_UPDATE = 6,   /* runs the optimizer */
    HD_PHASE_DONE = 7,     /* has left its last step */
    HD_PHASE_SAVE = 8,     /* writes or reads a checkpoint */
    HD_PHASE_DEVICE = 9,   /* its device is inside a pass: no heartbeat vouches for that */
    HD_PHASE_TURN = 10,    /* waits until a transfer that stands before its own has moved (law 7) */
};

/* One state, plain: what board_read gives. */
struct hd_rank_state {
    uint32_t phase;                   /* enum hd_phase */
    uint32_t step;                    /* from 1; 0 before the first */
    uint32_t action_count;            /* finished in this step */
    uint32_t stage, microbatch, kind; /* the current action; kind 0: none */
    uint32_t peer;                    /* UINT32_MAX: none */
    uint32_t channel;                 /* the transport's; UINT32_MAX: none */
    uint64_t sequence;                /* on that channel */
    uint64_t message_bytes;           /* of what it waits for */
    uint64_t since_ns;                /* of this phase */
};

#define HD_STATE_WORDS (sizeof(struct hd_rank_state) / sizeof(uint64_t))

struct hd_rank_row {
    _Alignas(64) atomic_uint version;    /* odd while it is written */
    atomic_ullong state[HD_STATE_WORDS]; /* a struct hd_rank_state, word by word */
    _Alignas(64) atomic_ullong heartbeat_ns;
    atomic_uint is_dead;    /* set by the parent */
    atomic_uint is_stopped; /* set and cleared by the parent; 2: it is silent, over a network */
    atomic_ullong stopped_ns;
    atomic_ullong resumed_ns; /* the rank was stopped until then: its deadlines start anew */
};

struct hd_board {
    uint32_t rank_count;
    atomic_uint abort;      /* 1: leave */
    atomic_uint is_caused;  /* 0 free, 1 being written, 2 written */
    atomic_int stop_signal; /* a signal asked to finish the step */
    struct hd_problem cause;
    uint64_t timeout_ns, first_step_timeout_ns;
    uint32_t steps_before; /* of a run that goes on: its first step is the one after them */
    char report[HD_BOARD_REPORT_BYTES]; /* of the moment when the cause was written */
    struct hd_rank_row rows[];
};

uint64_t hd_board_bytes(uint32_t rank_count);
void hd_board_init(struct hd_board *board, uint32_t rank_count); /* over zeroed memory */

/* By the rank itself: publish by the thread that runs the step, beat by its watchdog. */
void hd_board_publish(struct hd_board *board, uint32_t rank, const struct hd_rank_state *state);
void hd_board_beat(struct hd_board *board, uint32_t rank);

/* By anybody: one whole state. */
void hd_board_read(const struct hd_board *board, uint32_t rank, struct hd_rank_state *state);

/* The first cause stays; abort is set once it is written, whoever asks.  1 if this call's problem
   is the cause. [any-thread] */
uint32_t hd_board_abort(struct hd_board *board, const struct hd_problem *problem);

/* The cause of an aborted run, whole.  Its writer may have died in the middle of it: then, after
   half a second, a sentence that says so (HD_EXIT_FAILED), and 0. [any-thread] */
uint32_t hd_board_cause(const struct hd_board *board, struct hd_problem *cause);
uint32_t hd_board_is_aborted(const struct hd_board *board);

/*
 * Is it time for `rank`, which has waited since since_ns, to give up?  Follows who waits for whom:
 * while somebody on the chain runs and its heartbeat moves, the wait is no failure (a slow stage).
 * A device has no heartbeat but its marks: one that is in a pass for as long as the deadline hangs.
 * A dead or stopped rank ends the patience after the deadline; so does a cycle, or a peer that has
 * left, once nobody on the chain has moved for as long (a message may have come a moment ago,
 * and its reader not be awake yet). Fills `culprit` with the rank that the chain ends at.
 */
uint32_t hd_board_is_overdue(const struct hd_board *board, uint32_t rank, uint64_t now_ns,
                             uint32_t *culprit);

/* The deadline of the step that the rank is in, in ns. */
uint64_t hd_board_timeout_ns(const struct hd_board *board, uint32_t step);
/* The step that the first rank has come to: of one that is silent the last word may be old. */
uint32_t hd_board_newest_step(const struct hd_board *board);

/*
 * 1 when nobody moves any more: every rank has waited for another one for a little while, has not
 * begun, has finished, or is gone.  What the parent waits for after a death, so that the report
 * says who waits for whom.
 */
uint32_t hd_board_is_at_rest(const struct hd_board *board, uint64_t now_ns);

/* One line a rank, dead and stopped ones first; as snprintf. */
uint32_t hd_board_report(const struct hd_board *board, char *text, uint32_t capacity);

/* "rank 2 waits 2B2 from rank 3, which is at 3F5 since 8.2 s": one rank's line. As snprintf. */
uint32_t hd_board_line(const struct hd_board *board, uint32_t rank, uint64_t now_ns, char *text,
                       uint32_t capacity);

#endif /* HEDDLE_ENGINE_BOARD_H */
