/*
 * engine/board.h - what every rank says of itself, and the one word that ends the run.
 *
 * The board is in memory that all ranks and the parent process share (launch/launch.h).  Each rank
 * writes its own row and may read all rows.  A row is a few relaxed stores around a version number,
 * so publishing costs nothing and a reader gets one whole state.  Nothing here blocks.
 *
 *   heartbeat   moved every 10 ms by the rank's watchdog thread: a slow stage moves it, a
 *               stopped or dead process does not
 *   cause       why the run ends: the first one written stays, and every rank exits with its code
 *   abort       set with the cause; every rank's watchdog sees it within 10 ms
 *
 * The hang report is made from the rows, in the terms of the schedule: "rank 2 is waiting for 2B2
 * from rank 3, which has been at 3F5 for 8.2 s".
 */
#ifndef HEDDLE_ENGINE_BOARD_H
#define HEDDLE_ENGINE_BOARD_H

#include "base/problem.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define HD_BOARD_REPORT_BYTES 32768u

/* What a rank is doing. */
enum hd_phase {
    HD_PHASE_NONE = 0,     /* has not started */
    HD_PHASE_OPEN = 1,     /* opens devices and transports */
    HD_PHASE_RUN = 2,      /* is inside a plugin's pass, or between actions */
    HD_PHASE_RECEIVE = 3,  /* waits for the message that its action consumes */
    HD_PHASE_CREDIT = 4,   /* waits for a free slot to write to */
    HD_PHASE_TOGETHER = 5, /* waits for the other ranks at the end of the step */
    HD_PHASE_UPDATE = 6,   /* runs the optimizer */
    HD_PHASE_DONE = 7,     /* has left its last step */
    HD_PHASE_SAVE = 8,     /* writes or reads a checkpoint */
    HD_PHASE_DEVICE = 9,   /* its device is inside a pass, which moves no heartbeat */
    HD_PHASE_ORDER = 10,   /* waits for a transfer that must move before its own (law 7) */
};

/* One state of one rank. */
struct hd_rank_state {
    uint32_t phase;                   /* enum hd_phase */
    uint32_t step;                    /* from 1; 0 before the first */
    uint32_t action_count;            /* finished in this step */
    uint32_t stage, microbatch, kind; /* of the current action; kind 0: none */
    uint32_t peer;                    /* UINT32_MAX: none */
    uint32_t channel;                 /* the transport's; UINT32_MAX: none */
    uint64_t sequence;                /* on that channel */
    uint64_t message_bytes;           /* of the message that it waits for */
    uint64_t since_ns;                /* when this phase began */
};

#define HD_STATE_WORDS (sizeof(struct hd_rank_state) / sizeof(uint64_t))

struct hd_rank_row {
    _Alignas(64) atomic_uint version;    /* odd while it is written */
    atomic_ullong state[HD_STATE_WORDS]; /* a struct hd_rank_state, word by word */
    _Alignas(64) atomic_ullong heartbeat_ns;
    atomic_uint is_dead;    /* set by the parent */
    atomic_uint is_stopped; /* set and cleared by the parent; 2: nothing is heard from its host */
    atomic_ullong stopped_ns;
    atomic_int signal; /* that this rank itself got, and not its parent alone; 0: none */
    atomic_ullong signalled_ns;
    atomic_ullong resumed_ns; /* when the rank ran again after a stop: its deadlines restart */
};

struct hd_board {
    uint32_t rank_count;
    atomic_uint abort;      /* 1: every rank leaves */
    atomic_uint is_caused;  /* 0 free, 1 being written, 2 written */
    atomic_int stop_signal; /* this signal asks the ranks to end after the step */
    struct hd_problem cause;
    uint64_t timeout_ns, first_step_timeout_ns;
    uint32_t steps_before;              /* of a resumed run: its first step is the one after them */
    char report[HD_BOARD_REPORT_BYTES]; /* made when the cause was written */
    struct hd_rank_row rows[];
};

uint64_t hd_board_bytes(uint32_t rank_count);
void hd_board_init(struct hd_board *board, uint32_t rank_count); /* over zeroed memory */

/* The rank itself calls these: publish from the thread that runs the step, beat from its
   watchdog. */
void hd_board_publish(struct hd_board *board, uint32_t rank, const struct hd_rank_state *state);
void hd_board_beat(struct hd_board *board, uint32_t rank);

/* Reads one whole state.  Any process may call it. */
void hd_board_read(const struct hd_board *board, uint32_t rank, struct hd_rank_state *state);

/* Ends the run.  The first cause stays; abort is set once that cause is written.  True if this
   problem is the cause. [any-thread] */
bool hd_board_abort(struct hd_board *board, const struct hd_problem *problem);

/* Reads the cause of an aborted run.  False, with a problem that says so (HD_EXIT_FAILED), if its
   writer has died in the middle of it and half a second has passed. [any-thread] */
bool hd_board_cause(const struct hd_board *board, struct hd_problem *cause);
bool hd_board_is_aborted(const struct hd_board *board);

/*
 * Has `rank` waited too long?  Follows on the board which rank waits for which.  While a rank on
 * the chain runs and its heartbeat moves, the wait is no failure (a slow stage).  A device has no
 * heartbeat, only its marks: a pass on a device that lasts as long as the deadline hangs.  A dead
 * or stopped rank ends the wait at the deadline.  So does a cycle, a peer that has left, or a
 * meeting that other ranks have passed or left, once no rank on the chain has moved for as long as
 * the deadline (a message may have just come, and its reader may not have woken yet).  Sets
 * `culprit` to the rank at the end of the chain.
 */
bool hd_board_is_overdue(const struct hd_board *board, uint32_t rank, uint64_t now_ns,
                         uint32_t *culprit);

/* How long a wait in this step may last, in ns. */
uint64_t hd_board_timeout_ns(const struct hd_board *board, uint32_t step);
/* The latest step that any rank has begun.  The row of a silent rank may be old. */
uint32_t hd_board_newest_step(const struct hd_board *board);

/*
 * True when no rank moves any more: every rank has waited for another one for a short while, has
 * not begun, has finished, or is gone.  The parent waits for it after a death, so that the report
 * shows which rank waits for which.
 */
bool hd_board_is_at_rest(const struct hd_board *board, uint64_t now_ns);

/* One line for each rank, dead and stopped ranks first; as snprintf. */
uint32_t hd_board_report(const struct hd_board *board, char *text, uint32_t capacity);

/* The line of one rank.  As snprintf. */
uint32_t hd_board_line(const struct hd_board *board, uint32_t rank, uint64_t now_ns, char *text,
                       uint32_t capacity);

#endif /* HEDDLE_ENGINE_BOARD_H */
