/*
 * standin/nccl/comm.c - communicators of two ranks: they meet in a memfd.
 *
 * An id names the process that made it and a descriptor of its; the other end opens that through
 * /proc, so nothing is left in any name space.  The maker closes its own once both have come.
 */
#include "standin/nccl/state.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT STANDIN_EXPORT

enum { MAGIC = 0x5ca1ab1e, WORD_BYTES = 32, TEXT_BYTES = 256 };

struct identity {
    uint32_t magic;
    int32_t pid, descriptor;
};

static _Thread_local char last_error[TEXT_BYTES];

ncclResult_t refuse(ncclResult_t result, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return result;
}

const char *environment(const char *key, const char *initial, char value[WORD_BYTES])
{
    const char *words = getenv("STANDIN_NCCL");
    const size_t length = strlen(key);

    snprintf(value, WORD_BYTES, "%s", initial);
    while (words != NULL && *words != '\0') {
        if (strncmp(words, key, length) == 0 && words[length] == '=') {
            const size_t count = strcspn(words + length + 1, " ");
            snprintf(value, WORD_BYTES, "%.*s", (int)count, words + length + 1);
        }
        words += strcspn(words, " ");
        words += strspn(words, " ");
    }
    return value;
}

int is_broken(const char *way)
{
    char value[WORD_BYTES];
    return strcmp(environment("breaks", "nothing", value), way) == 0;
}

void keep_comm(struct ncclComm *comm)
{
    atomic_fetch_add(&comm->reference_count, 1u);
}

void drop_comm(struct ncclComm *comm)
{
    if (atomic_fetch_sub(&comm->reference_count, 1u) == 1) {
        munmap(comm->region, sizeof *comm->region);
        free(comm);
    }
}

/* --- meeting ----------------------------------------------------------------------------- */

EXPORT ncclResult_t ncclGetVersion(int *version)
{
    char value[WORD_BYTES];

    *version = atoi(environment("version", "23007", value));
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    struct identity identity = {
        .magic = MAGIC, .pid = getpid(), .descriptor = memfd_create("standin nccl", MFD_CLOEXEC)};

    if (identity.descriptor < 0 || ftruncate(identity.descriptor, sizeof(struct region)) != 0) {
        return refuse(ncclSystemError, "stand-in: no memory for an id");
    }
    memset(id, 0, sizeof *id);
    memcpy(id, &identity, sizeof identity);
    return ncclSuccess;
}

static struct region *attach(const struct identity *identity)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", identity->pid, identity->descriptor);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        return NULL;
    }
    void *memory = mmap(NULL, sizeof(struct region), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return memory != MAP_FAILED ? memory : NULL;
}

/* Not over until the other rank has come; then both see whether they share a GPU. */
static ncclResult_t meet(struct ncclComm *comm)
{
    struct region *region = comm->region;
    const int peer = 1 - comm->rank;

    if (comm->has_met) {
        return ncclSuccess;
    }
    if (!atomic_load(&region->attached[peer])) {
        return ncclInProgress;
    }
    if (atomic_load(&region->device[peer]) == comm->device) {
        return refuse(ncclInvalidUsage,
                      "stand-in: Duplicate GPU detected: ranks 0 and 1 both on "
                      "device %d",
                      comm->device);
    }
    comm->has_met = 1;
    if (comm->own_descriptor >= 0) {
        close(comm->own_descriptor); /* both have it mapped now */
    }
    return ncclSuccess;
}

static ncclResult_t wait_to_meet(struct ncclComm *comm)
{
    ncclResult_t result = meet(comm);

    while (result == ncclInProgress) {
        usleep(200);
        result = meet(comm);
    }
    return result;
}

EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int rank_count, ncclUniqueId id,
                                           int rank, ncclConfig_t *config)
{
    struct ncclComm *comm = calloc(1, sizeof *comm);
    struct identity identity;
    int error = 0;

    memcpy(&identity, &id, sizeof identity);
    if (comm == NULL || rank_count != RANKS || rank < 0 || rank >= RANKS ||
        identity.magic != MAGIC) {
        free(comm);
        return refuse(ncclInvalidArgument, "stand-in: it serves communicators of two ranks");
    }
    comm->region = attach(&identity);
    if (comm->region == NULL || fate_of("ncclCommInitRankConfig", &error) == FATE_RETURN) {
        free(comm);
        return refuse(error != 0 ? (ncclResult_t)error : ncclSystemError,
                      "stand-in: the maker of this id has ended");
    }
    comm->rank = rank;
    comm->own_descriptor = identity.pid == getpid() ? identity.descriptor : -1;
    comm->is_blocking = config == NULL || config->blocking != 0;
    comm->deferred_tail = &comm->deferred;
    atomic_store(&comm->reference_count, 1u);
    cudaGetDevice(&comm->device);
    atomic_store(&comm->region->pid[rank], getpid());
    atomic_store(&comm->region->device[rank], comm->device);
    atomic_store(&comm->region->attached[rank], 1u);
    *out = comm;
    return comm->is_blocking ? wait_to_meet(comm) : ncclInProgress;
}

/* --- work, once asked after -------------------------------------------------------------- */

static ncclResult_t enqueue(cudaStream_t stream, const struct standin_work *work)
{
    if (standin_enqueue(stream, work) != 0) {
        work->finish(work->argument);
        return refuse(ncclUnhandledCudaError, "stand-in: the stream takes no work");
    }
    return ncclSuccess;
}

ncclResult_t submit(struct ncclComm *comm, cudaStream_t stream, const struct standin_work *work)
{
    if (comm->is_blocking) {
        return enqueue(stream, work);
    }
    struct deferred *row = calloc(1, sizeof *row);
    if (row == NULL) {
        return refuse(ncclSystemError, "stand-in: no memory");
    }
    row->stream = stream;
    row->work = *work;
    *comm->deferred_tail = row;
    comm->deferred_tail = &row->next;
    return ncclInProgress;
}

static ncclResult_t flush(struct ncclComm *comm)
{
    ncclResult_t result = ncclSuccess;

    while (comm->deferred != NULL) {
        struct deferred *row = comm->deferred;
        comm->deferred = row->next;
        if (result == ncclSuccess) {
            result = enqueue(row->stream, &row->work);
        } else {
            row->work.finish(row->work.argument);
        }
        free(row);
    }
    comm->deferred_tail = &comm->deferred;
    return result;
}

static ncclResult_t look_at_finalize(struct ncclComm *comm)
{
    if (!comm->is_finalizing) {
        return ncclSuccess;
    }
    return atomic_load(&comm->region->finalized[1 - comm->rank]) ? ncclSuccess : ncclInProgress;
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    *error = (ncclResult_t)atomic_load(&comm->error);
    if (*error == ncclSuccess) {
        *error = meet(comm);
    }
    if (*error == ncclSuccess) {
        *error = flush(comm);
    }
    if (*error == ncclSuccess) {
        *error = look_at_window(comm);
    }
    if (*error == ncclSuccess) {
        *error = look_at_finalize(comm);
    }
    return ncclSuccess;
}

/* --- the end ----------------------------------------------------------------------------- */

EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    comm->is_finalizing = 1;
    atomic_store(&comm->region->finalized[comm->rank], 1u);
    return ncclInProgress;
}

static void leave(ncclComm_t comm)
{
    atomic_store(&comm->is_over, 1);
    atomic_store(&comm->region->gone[comm->rank], 1u);
    flush(comm);
    standin_poke();
    drop_comm(comm);
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    leave(comm);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    int error = 0;

    if (fate_of("ncclCommAbort", &error) == FATE_HANG) {
        pause();
    }
    leave(comm);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    (void)flags;
    atomic_store(&comm->is_over, 1);
    standin_poke();
    return ncclSuccess;
}

EXPORT const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const names[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return (unsigned)result < sizeof names / sizeof names[0] ? names[result] : "unknown result";
}

EXPORT const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return last_error;
}
