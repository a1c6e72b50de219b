/* plugins/kernels/synthetic/device.h - what device.c and device_pass.c share; only with CUDA. */
#ifndef SYNTHETIC_DEVICE_H
#define SYNTHETIC_DEVICE_H

#include "cuda_library.h"
#include "synthetic.h"

#include <pthread.h>

enum { ORDER_MAX = 1024, DEVICE_ALIGNMENT = 256 };

/* One pass in the stream. */
struct order {
    struct synthetic_device *device;
    const struct hd_stage *stage;
    uint32_t kind;       /* enum hd_action_kind, or one of these below */
    struct hd_pass pass; /* with the addresses of the bounce */
    struct hd_update update;
};

enum { ORDER_NORMS = 'N', ORDER_UPDATE = 'U' };

struct passed_mark {
    uint64_t passed_ns;
    hd_status status; /* of the passes before it */
};

struct synthetic_device {
    struct cuda_library cuda;
    const struct hd_host *host;
    int index;
    cudaStream_t stream;
    uint32_t is_pinned;            /* memory of the host's, in a stream all the same */
    atomic_int is_aborted, failed; /* failed: the first status below 0 of a pass */
    uint64_t order_count, mark_count;
    _Atomic uint64_t done_count; /* of the orders */
    struct order orders[ORDER_MAX];
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t passed;
    uint64_t passed_count;
    struct passed_mark marks[HD_MARK_MAX]; /* by number, modulo */
};

/* Reports an error, or a call's that has failed; HD_OK of one that has not. */
hd_status synthetic_report(const struct hd_host *host, hd_status status, const char *text);
hd_status synthetic_settle(const struct synthetic_device *device, const char *call,
                           cudaError_t error);
void synthetic_account(const struct synthetic_device *device, int64_t bytes, const char *tag);
/* A stream that has failed runs no host function any more. */
hd_status synthetic_check_stream(const struct synthetic_device *device);

#endif /* SYNTHETIC_DEVICE_H */
