/*
 * tests/standin/device/emulator.c - the emulated device: one block at a time, its threads as
 * fibers.
 *
 *   scheduler --> thread 0 .. runs until it waits --> thread 1 .. --> .. --> the last
 *       ^             all of a warp wait for the warp: they go on;  all wait for the block: they go
 * on
 *       +---------------------------------------------------------------------------------+
 */
#include "tests/standin/device/emulator.h"
#include "tests/standin/device/launch.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ADDRESS_SANITIZER 1
#endif
#endif
#ifdef WITH_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif

enum { THREAD_MAX = 1024, LANES = 32, STACK_BYTES = 64 << 10, COPY_MAX = 128 };

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
    enum state state;
    uint32_t groups, copy_count, exchanges;
    struct copy copies[COPY_MAX];
};

/* One per thread of the host that launches; kept until that thread ends. */
struct device {
    struct fiber fibers[THREAD_MAX];
    struct context scheduler;
    void *scheduler_fake_stack;
    const void *scheduler_stack;
    size_t scheduler_stack_bytes;
    char *stacks; /* [THREAD_MAX][STACK_BYTES] */
    char slots[2][THREAD_MAX][HD_STANDIN_SLOT_BYTES];
    uint32_t counts[THREAD_MAX / LANES][STATE_COUNT]; /* threads of a warp by state */
    char *shared;
    size_t shared_bytes;
    const struct hd_standin_kernel *kernel;
    const void *args;
};

_Thread_local struct hd_standin_place hd_standin_now;
_Thread_local int hd_standin_descending;
static _Thread_local struct device *device;

static _Noreturn void stop(const char *why)
{
    fprintf(stderr, "emulated device: %s, block (%u, %u, %u), thread %u: %s\n",
            device->kernel->name, hd_standin_now.block[0], hd_standin_now.block[1],
            hd_standin_now.block[2], hd_standin_now.thread, why);
    abort();
}

/* --- fibers ----------------------------------------------------------------------------------- */

static void run_thread(void);

#ifdef __x86_64__
/* Saves what a call must keep, and goes on from `to`: without the two system calls that swapcontext
   makes, which would be most of the time. */
void hd_standin_switch(struct context *from, const struct context *to)
    __attribute__((visibility("hidden")));
__asm__(".text\n"
        ".hidden hd_standin_switch\n"
        ".globl hd_standin_switch\n"
        ".type hd_standin_switch, @function\n"
        "hd_standin_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq (%rsi), %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size hd_standin_switch, . - hd_standin_switch\n");

static void make_context(struct context *context, char *stack)
{
    /* Six registers, the address of run_thread, and no address that it returns to. */
    void **top = (void **)(void *)(stack + STACK_BYTES) - 8;
    memset(top, 0, 8 * sizeof *top);
    memcpy(&top[6], &(void (*)(void)){run_thread}, sizeof top[6]);
    context->stack = top;
}
#else
static void hd_standin_switch(struct context *from, const struct context *to)
{
    swapcontext(&from->saved, &to->saved);
}

static void make_context(struct context *context, char *stack)
{
    getcontext(&context->saved);
    context->saved.uc_stack.ss_sp = stack;
    context->saved.uc_stack.ss_size = STACK_BYTES;
    context->saved.uc_link = NULL;
    makecontext(&context->saved, run_thread, 0);
}
#endif

static void begin_switch(void **fake_stack, const void *stack, size_t bytes)
{
#ifdef WITH_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
#else
    (void)fake_stack, (void)stack, (void)bytes;
#endif
}

static void end_switch(void *fake_stack, const void **stack, size_t *bytes)
{
#ifdef WITH_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(fake_stack, stack, bytes);
#else
    (void)fake_stack, (void)stack, (void)bytes;
#endif
}

static char *stack_of(uint32_t thread)
{
    return device->stacks + (size_t)thread * STACK_BYTES;
}

static void run_fiber(uint32_t thread)
{
    struct fiber *fiber = &device->fibers[thread];
    hd_standin_now.thread = thread;
    begin_switch(&device->scheduler_fake_stack, stack_of(thread), STACK_BYTES);
    hd_standin_switch(&device->scheduler, &fiber->context);
    end_switch(device->scheduler_fake_stack, NULL, NULL);
}

static void set_state(uint32_t thread, enum state state)
{
    uint32_t *counts = device->counts[thread / LANES];
    counts[device->fibers[thread].state]--;
    counts[state]++;
    device->fibers[thread].state = state;
}

/* Back to the scheduler, until it has the thread go on. */
static void leave(enum state state)
{
    struct fiber *fiber = &device->fibers[hd_standin_now.thread];
    set_state(hd_standin_now.thread, state);
    begin_switch(state == DONE ? NULL : &fiber->fake_stack, device->scheduler_stack,
                 device->scheduler_stack_bytes);
    hd_standin_switch(&fiber->context, &device->scheduler);
    end_switch(fiber->fake_stack, &device->scheduler_stack, &device->scheduler_stack_bytes);
}

static void run_thread(void)
{
    end_switch(NULL, &device->scheduler_stack, &device->scheduler_stack_bytes);
    device->kernel->run(device->args);
    leave(DONE);
}

static void make_fiber(uint32_t thread)
{
    struct fiber *fiber = &device->fibers[thread];
    make_context(&fiber->context, stack_of(thread));
    fiber->groups = fiber->copy_count = fiber->exchanges = 0;
}

/* --- the scheduler ---------------------------------------------------------------------------- */

static void wake_warp(uint32_t warp)
{
    uint32_t *counts = device->counts[warp];
    memset(counts, 0, STATE_COUNT * sizeof counts[0]);
    counts[READY] = LANES;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        device->fibers[warp * LANES + lane].state = READY;
    }
}

/* Runs a warp until all of it waits for the block or is done. */
static void run_warp(uint32_t warp)
{
    const uint32_t *counts = device->counts[warp];
    while (counts[READY] > 0) {
        for (uint32_t i = 0; i < LANES; i++) {
            const uint32_t thread = warp * LANES + (hd_standin_descending ? LANES - 1 - i : i);
            if (device->fibers[thread].state == READY) {
                run_fiber(thread);
            }
        }
        if (counts[WAITS_WARP] == LANES) {
            wake_warp(warp);
        } else if (counts[WAITS_WARP] > 0) {
            stop("a warp's exchange that not all of its threads reach");
        }
    }
}

static uint32_t count_of(uint32_t warps, enum state state)
{
    uint32_t count = 0;
    for (uint32_t warp = 0; warp < warps; warp++) {
        count += device->counts[warp][state];
    }
    return count;
}

static void begin_block(uint32_t warps)
{
    memset(device->shared, 0xFF, device->shared_bytes);
    for (uint32_t thread = 0; thread < warps * LANES; thread++) {
        make_fiber(thread);
    }
    for (uint32_t warp = 0; warp < warps; warp++) {
        wake_warp(warp);
    }
}

static void run_block(void)
{
    const uint32_t threads = hd_standin_now.threads, warps = threads / LANES;
    begin_block(warps);
    while (count_of(warps, DONE) < threads) {
        for (uint32_t i = 0; i < warps; i++) {
            run_warp(hd_standin_descending ? warps - 1 - i : i);
        }
        const uint32_t waiting = count_of(warps, WAITS_BLOCK);
        if (waiting == threads) {
            for (uint32_t warp = 0; warp < warps; warp++) {
                wake_warp(warp);
            }
        } else if (waiting > 0) {
            stop("a barrier that not all threads of the block reach");
        }
    }
}

static void close_device(void *own)
{
    struct device *closed = own;
    munmap(closed->stacks, (size_t)THREAD_MAX * STACK_BYTES);
    free(closed);
}

static pthread_key_t key;

static void make_key(void)
{
    const int status = pthread_key_create(&key, close_device);
    assert(status == 0);
}

static void open_device(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (device != NULL) {
        return;
    }
    pthread_once(&once, make_key);
    device = calloc(1, sizeof *device);
    assert(device != NULL);
    device->stacks = mmap(NULL, (size_t)THREAD_MAX * STACK_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert(device->stacks != MAP_FAILED);
    pthread_setspecific(key, device);
}

void hd_standin_launch(const struct hd_standin_kernel *kernel, const struct hd_standin_grid *grid,
                       const void *args)
{
    open_device();
    device->kernel = kernel;
    device->args = args;
    assert(grid->threads > 0 && grid->threads <= kernel->threads_max && grid->threads % LANES == 0);
    device->shared = malloc(grid->shared_bytes > 0 ? grid->shared_bytes : 1);
    device->shared_bytes = grid->shared_bytes;
    assert(device->shared != NULL);
    hd_standin_now.threads = grid->threads;
    hd_standin_now.blocks = grid->blocks[0];
    for (uint32_t z = 0; z < grid->blocks[2]; z++) {
        for (uint32_t y = 0; y < grid->blocks[1]; y++) {
            for (uint32_t x = 0; x < grid->blocks[0]; x++) {
                hd_standin_now.block[0] = x;
                hd_standin_now.block[1] = y;
                hd_standin_now.block[2] = z;
                run_block();
            }
        }
    }
    free(device->shared);
}

/* --- what a thread does ----------------------------------------------------------------------- */

/* The fiber's own thread: the scheduler sets it whenever it has one go on. */
void hd_standin_sync(void)
{
    leave(WAITS_BLOCK);
}

void hd_standin_sync_warp(void)
{
    leave(WAITS_WARP);
}

const char *hd_standin_exchange(const void *value, size_t bytes)
{
    const uint32_t thread = hd_standin_now.thread;
    const uint32_t phase = device->fibers[thread].exchanges++ % 2;
    assert(bytes <= HD_STANDIN_SLOT_BYTES);
    memcpy(device->slots[phase][thread], value, bytes);
    leave(WAITS_WARP);
    return device->slots[phase][thread / LANES * LANES];
}

void *hd_standin_shared(size_t bytes)
{
    if (bytes > device->shared_bytes) {
        stop("launched with less shared memory than it has");
    }
    return device->shared;
}

void hd_standin_copy(void *to, const void *from, uint32_t bytes)
{
    struct fiber *fiber = &device->fibers[hd_standin_now.thread];
    if (fiber->copy_count == COPY_MAX || (uintptr_t)to % 16 != 0 || (uintptr_t)from % 16 != 0) {
        stop("an asynchronous copy that is not aligned to 16 bytes, or one too many");
    }
    fiber->copies[fiber->copy_count++] = (struct copy){to, from, bytes, fiber->groups};
}

void hd_standin_commit(void)
{
    device->fibers[hd_standin_now.thread].groups++;
}

static void make_copy(const struct copy *copy)
{
    memset(copy->to, 0, 16);
    memcpy(copy->to, copy->from, copy->bytes);
}

void hd_standin_copy_wait(uint32_t left)
{
    struct fiber *fiber = &device->fibers[hd_standin_now.thread];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < fiber->copy_count; i++) {
        if (fiber->copies[i].group + left < fiber->groups) {
            make_copy(&fiber->copies[i]);
        } else {
            fiber->copies[kept++] = fiber->copies[i];
        }
    }
    fiber->copy_count = kept;
}

/* Register i of a lane: of matrix i, row lane / 4, columns lane % 4 x 2 and the next; turned, the
   other way round. */
void hd_standin_load(uint32_t *out, const uint16_t *row, int is_turned)
{
    const uint32_t lane = hd_standin_now.thread % LANES, line = lane / 4, column = lane % 4 * 2;
    const char *slots = hd_standin_exchange(&row, sizeof row);
    const uint16_t *rows[LANES];
    if ((uintptr_t)row % 16 != 0) {
        stop("a row of an 8 x 8 matrix that is not aligned to 16 bytes");
    }
    for (uint32_t other = 0; other < LANES; other++) {
        memcpy(&rows[other], slots + (size_t)other * HD_STANDIN_SLOT_BYTES, sizeof rows[other]);
    }
    for (uint32_t i = 0; i < 4; i++) {
        const uint16_t *const *matrix = &rows[(size_t)i * 8];
        const uint32_t low = is_turned ? matrix[column][line] : matrix[line][column];
        const uint32_t high = is_turned ? matrix[column + 1][line] : matrix[line][column + 1];
        out[i] = low | high << 16;
    }
}

/* Element `half` of a register of a lane, as the exchange has it: a[4], then b[2]. */
static float element(const char *slots, uint32_t lane, uint32_t slot, uint32_t half)
{
    uint32_t word;
    memcpy(&word, slots + (size_t)lane * HD_STANDIN_SLOT_BYTES + (size_t)4 * slot, sizeof word);
    return hd_float_of(half ? word & 0xffff0000u : word << 16);
}

void hd_standin_multiply(float *sum, const uint32_t *a, const uint32_t *b)
{
    const uint32_t lane = hd_standin_now.thread % LANES;
    uint32_t given[6];
    memcpy(given, a, 4 * sizeof *a);
    memcpy(given + 4, b, 2 * sizeof *b);
    const char *slots = hd_standin_exchange(given, sizeof given);
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t row = lane / 4, column = lane % 4 * 2 + i % 2;
        for (uint32_t k = 0; k < 16; k++) {
            const uint32_t pair = k % 8 / 2;
            const float left = element(slots, row * 4 + pair, i / 2 + k / 8 * 2, k % 2);
            const float right = element(slots, column * 4 + pair, 4 + k / 8, k % 2);
            sum[i] += left * right;
        }
    }
}
