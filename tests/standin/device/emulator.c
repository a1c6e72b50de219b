/*
 * tests/standin/device/emulator.c - the emulated device: one block at a time, its threads as
 * fibers.
 *
 *   scheduler --> thread 0 of a warp runs until it waits --> thread 1 --> .. --> thread 31
 *       ^            ^                       all of them wait for the warp: they go on |
 *       |            +------------------------------------------------------------------+
 *       +--- some wait for the block, or are done: the next warp; all of them wait: they go on
 */
#include "tests/standin/device/state.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

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

_Thread_local struct hd_standin_place hd_standin_now;
_Thread_local int hd_standin_descending;
_Thread_local struct hd_standin_device *hd_standin_device;

_Noreturn void hd_standin_stop(const char *why)
{
    fprintf(stderr, "emulated device: %s, block (%u, %u, %u), thread %u: %s\n",
            hd_standin_device->kernel->name, hd_standin_now.block[0], hd_standin_now.block[1],
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
    return hd_standin_device->stacks + (size_t)thread * STACK_STRIDE_BYTES;
}

static void run_fiber(uint32_t thread)
{
    struct fiber *fiber = &hd_standin_device->fibers[thread];
    hd_standin_now.thread = thread;
    hd_standin_device->is_from_scheduler = 1;
    begin_switch(&hd_standin_device->scheduler_fake_stack, stack_of(thread), STACK_BYTES);
    hd_standin_switch(&hd_standin_device->scheduler, &fiber->context);
    end_switch(hd_standin_device->scheduler_fake_stack, NULL, NULL);
}

/* In a fiber that goes on, or begins. */
static void arrive(void *fake_stack)
{
    struct hd_standin_device *own = hd_standin_device->is_from_scheduler ? hd_standin_device : NULL;
    end_switch(fake_stack, own != NULL ? &own->scheduler_stack : NULL,
               own != NULL ? &own->scheduler_stack_bytes : NULL);
}

static void wake_warp(uint32_t warp)
{
    uint32_t *counts = hd_standin_device->counts[warp];
    memset(counts, 0, STATE_COUNT * sizeof counts[0]);
    counts[READY] = LANES;
    memset(&hd_standin_device->states[warp * LANES], READY, LANES);
}

static uint32_t lane_at(uint32_t place)
{
    return hd_standin_descending ? LANES - 1 - place : place;
}

/* The first of a warp that is ready, from a place in their order on; THREAD_MAX: none is. */
static uint32_t ready_from(uint32_t warp, uint32_t place)
{
    for (uint32_t i = place; i < LANES; i++) {
        const uint32_t thread = warp * LANES + lane_at(i);
        if (hd_standin_device->states[thread] == READY) {
            return thread;
        }
    }
    return THREAD_MAX;
}

/* Who goes on after `thread`: one of its warp, which goes on as a whole when all of it waits for
   it; THREAD_MAX: that is for the scheduler to say. */
static uint32_t next_of(uint32_t thread)
{
    const uint32_t warp = thread / LANES;
    const uint32_t *counts = hd_standin_device->counts[warp];
    if (counts[READY] > 0) {
        return ready_from(warp, lane_at(thread % LANES) + 1);
    }
    if (counts[WAITS_WARP] < LANES) {
        return THREAD_MAX;
    }
    wake_warp(warp);
    return ready_from(warp, 0);
}

/* Has others go on, until it is this thread's turn again. */
void hd_standin_leave(enum state state)
{
    const uint32_t thread = hd_standin_now.thread;
    struct fiber *fiber = &hd_standin_device->fibers[thread];
    uint32_t *counts = hd_standin_device->counts[thread / LANES];
    void **fake_stack = state == DONE ? NULL : &fiber->fake_stack;
    counts[READY]--;
    counts[state]++;
    hd_standin_device->states[thread] = (uint8_t)state;
    const uint32_t next = next_of(thread);
    if (next == THREAD_MAX) {
        begin_switch(fake_stack, hd_standin_device->scheduler_stack,
                     hd_standin_device->scheduler_stack_bytes);
        hd_standin_switch(&fiber->context, &hd_standin_device->scheduler);
    } else {
        hd_standin_now.thread = next;
        hd_standin_device->is_from_scheduler = 0;
        begin_switch(fake_stack, stack_of(next), STACK_BYTES);
        hd_standin_switch(&fiber->context, &hd_standin_device->fibers[next].context);
    }
    arrive(fiber->fake_stack);
}

static void run_thread(void)
{
    arrive(NULL);
    hd_standin_device->kernel->run(hd_standin_device->args);
    hd_standin_leave(DONE);
}

static void make_fiber(uint32_t thread)
{
    struct fiber *fiber = &hd_standin_device->fibers[thread];
    make_context(&fiber->context, stack_of(thread));
    fiber->groups = fiber->copy_count = fiber->exchanges = 0;
}

/* --- the scheduler ---------------------------------------------------------------------------- */

/* Runs a warp until all of it waits for the block or is done. */
static void run_warp(uint32_t warp)
{
    const uint32_t first = ready_from(warp, 0);
    if (first != THREAD_MAX) {
        run_fiber(first);
    }
    if (hd_standin_device->counts[warp][WAITS_WARP] > 0) {
        hd_standin_stop("a warp's exchange that not all of its threads reach");
    }
}

static uint32_t count_of(uint32_t warps, enum state state)
{
    uint32_t count = 0;
    for (uint32_t warp = 0; warp < warps; warp++) {
        count += hd_standin_device->counts[warp][state];
    }
    return count;
}

static void begin_block(uint32_t warps)
{
    memset(hd_standin_device->shared, 0xFF, hd_standin_device->shared_bytes);
    for (uint32_t thread = 0; thread < warps * LANES; thread++) {
        make_fiber(thread);
    }
    for (uint32_t warp = 0; warp < warps; warp++) {
        hd_standin_device->products[warp].exchange = 0;
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
            hd_standin_stop("a barrier that not all threads of the block reach");
        }
    }
}

static void close_device(void *own)
{
    struct hd_standin_device *closed = own;
    munmap(closed->stacks, (size_t)THREAD_MAX * STACK_STRIDE_BYTES);
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
    if (hd_standin_device != NULL) {
        return;
    }
    pthread_once(&once, make_key);
    hd_standin_device = calloc(1, sizeof *hd_standin_device);
    assert(hd_standin_device != NULL);
    hd_standin_device->stacks =
        mmap(NULL, (size_t)THREAD_MAX * STACK_STRIDE_BYTES, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert(hd_standin_device->stacks != MAP_FAILED);
    pthread_setspecific(key, hd_standin_device);
}

void hd_standin_launch(const struct hd_standin_kernel *kernel, const struct hd_standin_grid *grid,
                       const void *args)
{
    open_device();
    hd_standin_device->kernel = kernel;
    hd_standin_device->args = args;
    assert(grid->threads > 0 && grid->threads <= kernel->threads_max && grid->threads % LANES == 0);
    hd_standin_device->shared = malloc(grid->shared_bytes > 0 ? grid->shared_bytes : 1);
    hd_standin_device->shared_bytes = grid->shared_bytes;
    assert(hd_standin_device->shared != NULL);
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
    free(hd_standin_device->shared);
}
