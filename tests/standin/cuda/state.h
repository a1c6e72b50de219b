/*
 * standin/cuda/state.h - what the files of the CUDA stand-in share; see ../standin.h.
 *
 * One lock guards everything; no step of a stream runs under it.
 *
 *   memory.c   allocations, with the two addresses of each
 *   stream.c   streams, hardware queues and their threads
 *   event.c    events, private or shared between processes
 *   copy.c     copies, fills, host functions
 *   ipc.c      memory and events of other processes
 *   module.c   kernels, which the emulated device runs
 *   driver.c   stream memory operations, and the way to the driver's calls
 *   device.c   devices, versions, errors
 *   fault.c    what a test wants to go wrong
 */
#ifndef STANDIN_STATE_H
#define STANDIN_STATE_H

#include "standin/standin.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum {
    DEVICE_MAX = 16,
    QUEUE_MAX = 32, /* what CUDA_DEVICE_MAX_CONNECTIONS can say */
    EVENT_BUCKET_COUNT = 4096,
};

enum block_kind { BLOCK_DEVICE, BLOCK_IMPORTED, BLOCK_PINNED, BLOCK_REGISTERED };

/* One allocation.  `address` is what CUDA's callers see, `view` what can be touched. */
struct block {
    struct block *next;
    unsigned char *address;
    unsigned char *view;
    uint64_t bytes;
    uint64_t mapped_bytes;
    enum block_kind kind;
    int device;
    int descriptor; /* device: its memfd */
    int64_t pid;    /* imported: of the exporter */
    uint64_t serial;
    uint32_t open_count; /* imported */
};

struct work {
    struct work *next;
    struct stream *stream;
    struct standin_work call;
    int is_hung;
    cudaError_t failure; /* asynchronous, instead of the step */
};

/* Work of all streams of a queue runs in the order in which it was enqueued. */
struct queue {
    struct work *head;
    struct work **tail;
    pthread_cond_t filled;
    int is_started;
};

struct stream {
    struct stream *next;
    int device;
    unsigned flags;
    int priority;
    struct queue *queue;
    uint64_t enqueued_count;
    uint64_t done_count;
    uint32_t holder_count; /* its handle, its work, waits of other streams for it */
    int is_closed;         /* the handle is gone */
};

/* The part of an event that another process may share. */
struct event_words {
    _Atomic uint64_t recorded;
    _Atomic uint64_t completed;
};

struct event {
    struct event *next;
    struct event_words *words;
    unsigned flags;
    int device;
    int descriptor; /* of a shared one; -1 */
    int is_imported;
    int64_t completed_ns;
    uint32_t holder_count; /* its handle, and work that names it */
    int is_closed;
};

struct settings {
    int device_count;
    int has_peers;
    int driver_version;
    int runtime_version;
    int has_mem_ops;
    int compute_capability;
    uint64_t memory_bytes;
    uint32_t queue_count;
};

struct device {
    struct queue queues[QUEUE_MAX + 1]; /* the last is the legacy stream's */
    struct stream *legacy;
    uint64_t used_bytes;
    uint32_t stream_serial;
    uint32_t peers; /* bits of devices that this one may reach */
};

struct standin {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* some work is done, or somebody poked */
    uint32_t waiter_count;
    int64_t pid; /* of the process that has CUDA; 0: nobody yet */
    _Atomic int sticky;
    uint64_t serial;
    struct settings settings;
    struct device devices[DEVICE_MAX];
    struct block *blocks;
    struct stream *streams;
    struct event *events[EVENT_BUCKET_COUNT]; /* by the address of the handle */
};

extern struct standin standin;

/* --- every call of CUDA begins and ends with these --- */

/* Counts the call, starts CUDA, and says what the call must return at once. */
cudaError_t standin_enter(const char *call);
/* The same of calls that need no device: versions, counts. */
cudaError_t standin_enter_bare(const char *call);
/* Keeps the last error of this thread. */
cudaError_t standin_leave(cudaError_t error);
int standin_current_device(void);
/* The thread of a queue may not call CUDA from a step. */
void standin_forbid_calls(int is_forbidden);

/* --- fault.c --- */

/* The fate of this call; what becomes of its work is kept for the next enqueue of the thread. */
cudaError_t standin_fault_of(const char *call);
void standin_take_fate(struct work *work);

/* --- memory.c, with the lock held --- */

struct block *standin_block_of(const void *memory, uint64_t bytes);
cudaError_t standin_map_device(struct block *block);
void standin_unmap(struct block *block);
void standin_add_block(struct block *block);
void standin_remove_block(struct block *block);

/* --- stream.c --- */

void standin_lock(void);
void standin_unlock(void);
void standin_init_queues(struct device *device);
/* Sleeps until something changes, at most `duration_ns`; the lock is held. */
void standin_sleep(int64_t duration_ns);
/* The stream of a handle, NULL if there is none; the lock is held. */
struct stream *standin_stream_of(cudaStream_t handle);
/* Appends; the lock is held. */
cudaError_t standin_append(struct stream *stream, const struct standin_work *call);
/* Waits for everything in this process; the lock is held. */
cudaError_t standin_drain(void);
int64_t standin_now_ns(void);

/* --- event.c --- */

struct event *standin_event_of(cudaEvent_t handle);
void standin_add_event(struct event *event);

#define STANDIN_ENTER(call)                            \
    do {                                               \
        const cudaError_t fate_ = standin_enter(call); \
        if (fate_ != cudaSuccess) {                    \
            return standin_leave(fate_);               \
        }                                              \
    } while (0)

#define STANDIN_ENTER_DRIVER(call)                     \
    do {                                               \
        const cudaError_t fate_ = standin_enter(call); \
        if (fate_ != cudaSuccess) {                    \
            return (CUresult)fate_;                    \
        }                                              \
    } while (0)

#endif /* STANDIN_STATE_H */
