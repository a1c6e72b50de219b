/*
 * nccl_link/nccl_library.h - NCCL, found by name when a transport is opened.
 *
 *   option library -> dlopen -> ncclGetVersion -> every call below
 *
 * As with CUDA nothing is linked, so a machine without NCCL still lists the plugins, and two
 * versions can be tried by one build.  What NCCL learnt later than 2.28 is declared here: the
 * header that this was built with may be older than the library that it meets.
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
    int signal_index; /* 0: another is refused by NCCL */
    int context;      /* 0, likewise */
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
    char reason[NCCL_REASON_BYTES]; /* why there is none: a sentence with its remedy */
    int version;                    /* 22809 is 2.28.9 */
#define NCCL_MEMBER(name) __typeof__(name) *name;
    NCCL_CALLS(NCCL_MEMBER)
#undef NCCL_MEMBER
    nccl_revoke revoke; /* these four may be NULL: an older library has none */
    nccl_put_signal put_signal;
    nccl_signal signal;
    nccl_wait_for_signal wait_signal;
};

/* Fills `library`; HD_UNSUPPORTED with `reason` set.  The library stays loaded.  [setup] */
hd_status nccl_load(struct nccl_library *library, const char *path);

/* "2.28.9", in `text`. */
const char *nccl_version_text(int version, char text[16]);

#endif /* NCCL_LIBRARY_H */
