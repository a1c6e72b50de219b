/*
 * tests/standin/device/state.h - what the two halves of the emulated device share.
 *
 *   emulator.c   fibers, and who goes on when
 *   thread.c     what a thread does with others: barriers, exchanges, copies, products
 */
#ifndef HD_TESTS_STANDIN_DEVICE_STATE_H
#define HD_TESTS_STANDIN_DEVICE_STATE_H

#include "tests/standin/device/emulator.h"
#include "tests/standin/device/launch.h"

#ifndef __x86_64__
#include <ucontext.h>
#endif

/* Stacks lie by a little more than a power of two apart, or all of a block would meet in the same
   few lines of the cache. */
enum {
    THREAD_MAX = 1024,
    LANES = 32,
    STACK_BYTES = 64 << 10,
    STACK_STRIDE_BYTES = STACK_BYTES + 13 * 64,
    COPY_MAX = 128,
};

enum state { READY, WAITS_WARP, WAITS_BLOCK, DONE, STATE_COUNT };

struct copy {
    void *to;
    const void *from;
    uint32_t bytes, group;
};

/* Where a fiber, or the scheduler, goes on. */
#ifdef __x86_64__
struct context {
    void *stack;
};
#else
struct context {
    ucontext_t saved;
};
#endif

struct fiber {
    struct context context;
    void *fake_stack; /* of the address sanitizer */
    uint32_t groups, copy_count, exchanges;
    struct copy copies[COPY_MAX];
};

/* What a warp's product came to, in the order of its rows: made by whichever of its threads goes on
   first, read by all. */
struct fragment {
    uint32_t exchange; /* the number of its exchange in each thread; 0: of none yet */
    float sums[16][8];
};

/* One per thread of the host that launches; kept until that thread ends. */
struct hd_standin_device {
    struct fiber fibers[THREAD_MAX];
    uint8_t states[THREAD_MAX]; /* enum state */
    struct context scheduler;
    int is_from_scheduler; /* the last switch */
    void *scheduler_fake_stack;
    const void *scheduler_stack;
    size_t scheduler_stack_bytes;
    char *stacks; /* [THREAD_MAX][STACK_STRIDE_BYTES] */
    char slots[2][THREAD_MAX][HD_STANDIN_SLOT_BYTES];
    uint32_t counts[THREAD_MAX / LANES][STATE_COUNT]; /* threads of a warp by state */
    struct fragment products[THREAD_MAX / LANES];
    char *shared;
    size_t shared_bytes;
    const struct hd_standin_kernel *kernel;
    const void *args;
};

extern _Thread_local struct hd_standin_device *hd_standin_device; /* of the launching thread */

/* Has others go on, until it is this thread's turn again. */
void hd_standin_leave(enum state state);
/* Ends the program: the kernel has broken a rule. */
_Noreturn void hd_standin_stop(const char *why);

#endif /* HD_TESTS_STANDIN_DEVICE_STATE_H */
