/* plugins/kernels/synthetic/device.h - the device of device.c and device_pass.c; only with CUDA. */
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
    uint32_t kind;       /* enum hd_action_kind, or ORDER_NORMS, ORDER_UPDATE */
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
    bool is_pinned;                /* pinned host memory instead of device memory */
    atomic_int is_aborted, failed; /* failed: the first status below 0 of a pass */
    uint64_t order_count, mark_count;
    _Atomic uint64_t done_count; /* of the orders */
    struct order orders[ORDER_MAX];
    pthread_mutex_t lock; /* of the members below */
    pthread_cond_t passed;
    uint64_t passed_count;
    struct passed_mark marks[HD_MARK_MAX]; /* by number, modulo */
};

/* HD_OK, or reports the error of a call. */
hd_status synthetic_settle(const struct synthetic_device *device, const char *call,
                           cudaError_t error);
void synthetic_account(const struct synthetic_device *device, int64_t bytes, const char *tag);
/* Reports the error of the stream.  A stream with an error runs no more host functions. */
hd_status synthetic_check_stream(const struct synthetic_device *device);

#endif /* SYNTHETIC_DEVICE_H */
