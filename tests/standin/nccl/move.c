/*
 * standin/nccl/move.c - sends and receives: a strict rendezvous, and who holds the GPU when.
 *
 *   sender    waits until nothing stands in its direction, posts address and bytes, waits until
 *             they are taken
 *   receiver  waits until something stands there, copies it, says taken
 *
 * With serial=on every issue (a call, or a group) takes a ticket, and only the oldest unfinished
 * one of the process may meet its peers: what an exhausted GPU would do.
 */
#include "standin/nccl/state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#define EXPORT STANDIN_EXPORT

struct move {
    struct ncclComm *comm;
    struct holding *holding;
    cudaStream_t stream;
    int is_send, is_hung, is_posted;
    int failure; /* asynchronous */
    unsigned char *memory;
    uint64_t bytes, number; /* of the message in its direction */
};

/* Of this thread's open group. */
static _Thread_local struct move *group[GROUP_MAX];
static _Thread_local unsigned group_count, group_depth;

static _Atomic uint64_t next_ticket, serving; /* serial=on */

static int is_serial(void)
{
    char value[32];
    return strcmp(environment("serial", "off", value), "on") == 0;
}

/* --- on the stream's thread -------------------------------------------------------------- */

static int has_the_device(const struct move *move)
{
    return move->holding->ticket == UINT64_MAX || atomic_load(&serving) == move->holding->ticket;
}

static int step_send(struct move *move, struct meeting *meeting)
{
    if (!move->is_posted) {
        if (atomic_load(&meeting->posted) != move->number) {
            return 0; /* an older message of this direction is still there */
        }
        atomic_store(&meeting->address, (uint64_t)(uintptr_t)move->memory);
        atomic_store(&meeting->bytes, move->bytes);
        atomic_store(&meeting->posted, move->number + 1);
        move->is_posted = 1;
        standin_poke();
    }
    return atomic_load(&meeting->taken) > move->number;
}

static int copy_from(const struct ncclComm *comm, unsigned char *to, uint64_t address,
                     uint64_t bytes)
{
    const struct iovec local = {to, bytes};
    const struct iovec remote = {(void *)(uintptr_t)address, bytes};
    const pid_t pid = atomic_load(&comm->region->pid[1 - comm->rank]);

    return process_vm_readv(pid, &local, 1, &remote, 1, 0) == (ssize_t)bytes;
}

static int step_receive(struct move *move, struct meeting *meeting)
{
    if (atomic_load(&meeting->posted) != move->number + 1) {
        return 0;
    }
    if (atomic_load(&meeting->bytes) != move->bytes) {
        return 0; /* NCCL hangs on a larger receive; a smaller one loses bytes: never here */
    }
    const uint64_t bytes = is_broken("torn") ? move->bytes - 1 : move->bytes;
    if (!copy_from(move->comm, move->memory, atomic_load(&meeting->address), bytes)) {
        return 0; /* the peer has died: its receivers hang */
    }
    atomic_store(&meeting->taken, move->number + 1);
    standin_poke();
    return 1;
}

static int step(void *argument)
{
    struct move *move = argument;
    struct ncclComm *comm = move->comm;
    const int sender = move->is_send ? comm->rank : 1 - comm->rank;

    if (atomic_load(&comm->is_over)) {
        return 1;
    }
    if (move->failure != 0) {
        atomic_store(&comm->error, move->failure);
        return 0;
    }
    if (move->is_hung || !has_the_device(move)) {
        return 0;
    }
    struct meeting *meeting = &comm->region->sent[sender];
    return move->is_send ? step_send(move, meeting) : step_receive(move, meeting);
}

static void finish(void *argument)
{
    struct move *move = argument;
    struct holding *holding = move->holding;

    if (atomic_fetch_sub(&holding->left_count, 1u) == 1) {
        if (holding->ticket != UINT64_MAX) {
            atomic_store(&serving, holding->ticket + 1);
            standin_poke();
        }
        free(holding);
    }
    drop_comm(move->comm);
    free(move);
}

/* --- calls ------------------------------------------------------------------------------- */

static ncclResult_t issue(struct move *const *moves, unsigned count)
{
    struct holding *holding = calloc(1, sizeof *holding);
    ncclResult_t result = ncclSuccess;

    if (holding == NULL) {
        return refuse(ncclSystemError, "stand-in: no memory");
    }
    holding->ticket = is_serial() ? atomic_fetch_add(&next_ticket, 1u) : UINT64_MAX;
    atomic_store(&holding->left_count, count);
    for (unsigned i = 0; i < count; i++) {
        moves[i]->holding = holding;
        const struct standin_work work = {.step = step, .finish = finish, .argument = moves[i]};
        const ncclResult_t submitted = submit(moves[i]->comm, moves[i]->stream, &work);
        result = submitted != ncclSuccess ? submitted : result;
    }
    return result;
}

int is_group_open(void)
{
    return group_depth > 0;
}

EXPORT ncclResult_t ncclGroupStart(void)
{
    group_depth++;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
    if (group_depth == 0) {
        return refuse(ncclInvalidUsage, "stand-in: ncclGroupEnd without a start");
    }
    group_depth--;
    return group_depth == 0 ? issue_group() : ncclSuccess;
}

ncclResult_t issue_group(void)
{
    const unsigned count = group_count;

    group_count = 0;
    return count > 0 ? issue(group, count) : ncclSuccess;
}

static ncclResult_t post(const char *call, const struct move *wanted)
{
    struct move *move = NULL;
    int error = 0;
    const enum fate fate = fate_of(call, &error);

    if (fate == FATE_RETURN) {
        return refuse((ncclResult_t)error, "stand-in: as STANDIN_NCCL_FAULT says");
    }
    if (wanted->memory == NULL) {
        return refuse(ncclInvalidArgument, "stand-in: %s: not memory of the device", call);
    }
    if (!wanted->comm->has_met) {
        return refuse(ncclInvalidUsage, "stand-in: %s before the communicator was ready", call);
    }
    move = malloc(sizeof *move);
    if (move == NULL || group_count == GROUP_MAX) {
        free(move);
        return refuse(ncclSystemError, "stand-in: no room for %s", call);
    }
    *move = *wanted;
    move->is_hung = fate == FATE_HANG;
    move->failure = fate == FATE_ASYNC ? error : 0;
    move->number = move->is_send ? move->comm->sent_count++ : move->comm->received_count++;
    keep_comm(move->comm);
    if (is_group_open()) {
        group[group_count++] = move;
        return ncclSuccess;
    }
    return issue(&move, 1);
}

EXPORT ncclResult_t ncclSend(const void *memory, size_t count, ncclDataType_t type, int peer,
                             ncclComm_t comm, cudaStream_t stream)
{
    const struct move move = {.comm = comm,
                              .stream = stream,
                              .is_send = 1,
                              .memory = standin_view(memory, count),
                              .bytes = count};

    if (type != ncclUint8 || peer != 1 - comm->rank) {
        return refuse(ncclInvalidArgument, "stand-in: bytes (ncclUint8), to the other rank");
    }
    return post("ncclSend", &move);
}

EXPORT ncclResult_t ncclRecv(void *memory, size_t count, ncclDataType_t type, int peer,
                             ncclComm_t comm, cudaStream_t stream)
{
    const struct move move = {
        .comm = comm, .stream = stream, .memory = standin_view(memory, count), .bytes = count};

    if (type != ncclUint8 || peer != 1 - comm->rank) {
        return refuse(ncclInvalidArgument, "stand-in: bytes (ncclUint8), from the other rank");
    }
    return post("ncclRecv", &move);
}
