/*
 * nccl_link/nccl_library.h - NCCL, loaded by name when a transport is opened.
 *
 *   option library -> dlopen -> ncclGetVersion -> every call below
 *
 * As with CUDA nothing is linked, so a machine without NCCL can still list the plugins, and one
 * build can use two versions.  Calls that are newer than NCCL 2.28 are declared here, because the
 * header at build time may be older than the library that is loaded.
 */
#ifndef NCCL_LIBRARY_H
#define NCCL_LIBRARY_H

#include <heddle/plugin.h>

#include <nccl.h>

#define NCCL_CALLS(call)                                                                    \
    call(ncclGetUniqueId) call(ncclCommInitRankConfig) call(ncclCommGetAsyncError)          \
        call(ncclCommFinalize) call(ncclCommDestroy) call(ncclCommAbort) call(ncclSend)     \
            call(ncclRecv) call(ncclGroupStart) call(ncclGroupEnd) call(ncclGetErrorString) \
                call(ncclGetLastError) call(ncclMemAlloc) call(ncclMemFree)                 \
                    call(ncclCommWindowRegister) call(ncclCommWindowDeregister)

/* As NCCL 2.30 declares it: how many signals of which peer a stream waits for. */
struct nccl_wait_signal {
    int signal_count;
    int peer;
    int signal_index; /* must be 0 */
    int context;      /* must be 0 */
};

typedef ncclResult_t (*nccl_put_signal)(const void *source, size_t count, ncclDataType_t type,
                                        int peer, ncclWindow_t window, size_t offset,
                                        int signal_index, int context, unsigned int flags,
                                        ncclComm_t comm, cudaStream_t stream);
typedef ncclResult_t (*nccl_signal)(int peer, int signal_index, int context, unsigned int flags,
                                    ncclComm_t comm, cudaStream_t stream);
typedef ncclResult_t (*nccl_wait_for_signal)(int count, struct nccl_wait_signal *signals,
                                             ncclComm_t comm, cudaStream_t stream);
typedef ncclResult_t (*nccl_revoke)(ncclComm_t comm, int flags);

enum { NCCL_PATH_BYTES = 256, NCCL_REASON_BYTES = 512 };

struct nccl_library {
    char path[NCCL_PATH_BYTES];
    char reason[NCCL_REASON_BYTES]; /* why it cannot be used, with the remedy */
    int version;                    /* 22809 means 2.28.9 */
#define NCCL_MEMBER(name) __typeof__(name) *name;
    NCCL_CALLS(NCCL_MEMBER)
#undef NCCL_MEMBER
    nccl_revoke revoke; /* these four are NULL if the library is too old */
    nccl_put_signal put_signal;
    nccl_signal signal;
    nccl_wait_for_signal wait_signal;
};

/* Fills `library`, which stays loaded; HD_UNSUPPORTED with `reason` set. [setup] */
hd_status nccl_load(struct nccl_library *library, const char *path);

/* "2.28.9", in `text`. */
const char *nccl_version_text(int version, char text[16]);

#endif /* NCCL_LIBRARY_H */
