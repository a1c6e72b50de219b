/*
 * standin/nccl/state.h - what the files of the NCCL stand-in share.
 *
 * libheddle_standin_nccl.so stands in for libnccl.so.2 where there is no GPU: the calls that our
 * transports make, between processes of one host, over the CUDA stand-in's streams and memory.
 * Nothing is reduced and nothing is fast; it keeps the rules, and is stricter than NCCL where one
 * can be broken unseen:
 *
 *   - A send and its receive are a strict rendezvous: nothing moves before both are at the head of
 *     their streams, and no byte is buffered.
 *   - On a communicator that does not block, work is enqueued only once it has been asked after
 *     (ncclCommGetAsyncError): an event that is recorded too early stands before the work.
 *   - There is one counter of signals for each sender of a communicator, without numbers.
 *   - Sources and targets of a put must lie in symmetric windows of ncclMemAlloc's memory.
 *   - Two ranks on one GPU are refused.
 *
 * Its environment, STANDIN_NCCL, holds words KEY=VALUE, separated by spaces:
 *
 *   version=22809     what ncclGetVersion says (23007)
 *   serial=on         one group of sends and receives at a time holds the GPU of a process, in the
 *                     order in which they were issued (off): law 7 at its strictest
 *   windows=off       ncclCommWindowRegister makes no symmetric window (on)
 *   breaks=torn       a message is there before its last byte, which never comes (nothing)
 *   breaks=stray      one signal too many, as a second channel on the communicator would send
 *
 * and STANDIN_NCCL_FAULT rows "CALL:NTH:FATE" as STANDIN_CUDA_FAULT has: `ncclSend:3:hang` (never
 * ends, but by an abort), `ncclRecv:2:6` (returns that error), `ncclSend:2:async:6`.
 *
 *   comm.c     communicators: ids, meeting, errors, groups, the end
 *   move.c     sends, receives, and the order in which they hold the GPU
 *   signal.c   windows, puts, signals
 *   fault.c    what a test wants to go wrong
 */
#ifndef STANDIN_NCCL_STATE_H
#define STANDIN_NCCL_STATE_H

#include "standin/standin.h"

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum { RANKS = 2, GROUP_MAX = 256 };

/* One direction's rendezvous: at most one message stands here. */
struct meeting {
    _Atomic uint64_t posted, taken; /* messages; equal: nothing stands here */
    _Atomic uint64_t address, bytes;
};

/* Of both processes of a communicator, in a memfd. */
struct region {
    _Atomic uint32_t attached[RANKS];
    _Atomic int32_t pid[RANKS];
    _Atomic int32_t device[RANKS];
    _Atomic uint32_t gone[RANKS]; /* aborted, or destroyed */
    struct meeting sent[RANKS];   /* by each rank */
    _Atomic uint64_t signals[RANKS];
    _Atomic uint64_t window[RANKS], window_bytes[RANKS];
    _Atomic uint32_t finalized[RANKS];
};

struct ncclComm {
    struct region *region;
    int rank, device;
    int is_blocking;
    atomic_uint reference_count; /* the caller's, and one for each work in a stream */
    atomic_int is_over;          /* aborted or revoked: its work ends at once */
    atomic_int error;            /* asynchronous, which sticks */
    int has_met;                 /* both ranks have come */
    int own_descriptor;          /* of the region, in the process that made the id; else -1 */
    int is_finalizing, is_registering;
    ncclWindow_t *window_out; /* where a registration under way will answer */
    unsigned char *window_base;
    uint64_t window_bytes;
    uint64_t sent_count, received_count; /* enqueued */
    uint64_t expected_signals;           /* of the peer */
    struct deferred *deferred;           /* not asked after yet, oldest first */
    struct deferred **deferred_tail;
};

/* A call whose work waits until its communicator has been asked after. */
struct deferred {
    struct deferred *next;
    cudaStream_t stream;
    struct standin_work work;
};

/* One issue of sends and receives: what holds the GPU together. */
struct holding {
    uint64_t ticket;
    atomic_uint left_count; /* of its work */
};

/* comm.c */
void keep_comm(struct ncclComm *comm);
void drop_comm(struct ncclComm *comm);
/* Enqueues now, or once asked after; takes a reference until the work is finished. */
ncclResult_t submit(struct ncclComm *comm, cudaStream_t stream, const struct standin_work *work);
/* Is the library broken in this way? */
int is_broken(const char *way);
const char *environment(const char *key, const char *initial, char value[32]);
ncclResult_t refuse(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* move.c: posts of a group are gathered by its thread, and issued together at its end. */
int is_group_open(void);
ncclResult_t issue_group(void);

/* signal.c: the memory that NCCL gave out; a registration that waits for its peer. */
ncclResult_t look_at_window(struct ncclComm *comm);

/* fault.c: how the call that is being made fares. */
enum fate { FATE_NONE, FATE_RETURN, FATE_ASYNC, FATE_HANG };
enum fate fate_of(const char *call, int *error);

#endif /* STANDIN_NCCL_STATE_H */
