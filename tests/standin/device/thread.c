/*
 * tests/standin/device/thread.c - what a thread of an emulated block does with the others of it.
 */
#include "tests/standin/device/state.h"

#include <assert.h>

void hd_standin_sync(void)
{
    hd_standin_leave(WAITS_BLOCK);
}

void hd_standin_sync_warp(void)
{
    hd_standin_leave(WAITS_WARP);
}

char *hd_standin_slot(void)
{
    const uint32_t thread = hd_standin_now.thread;
    return hd_standin_device->slots[hd_standin_device->fibers[thread].exchanges % 2][thread];
}

const char *hd_standin_slots(void)
{
    const uint32_t thread = hd_standin_now.thread;
    const uint32_t phase = hd_standin_device->fibers[thread].exchanges++ % 2;
    hd_standin_leave(WAITS_WARP);
    return hd_standin_device->slots[phase][thread / LANES * LANES];
}

void *hd_standin_shared(size_t bytes)
{
    if (bytes > hd_standin_device->shared_bytes) {
        hd_standin_stop("launched with less shared memory than it has");
    }
    return hd_standin_device->shared;
}

void hd_standin_copy(void *to, const void *from, uint32_t bytes)
{
    struct fiber *fiber = &hd_standin_device->fibers[hd_standin_now.thread];
    if (fiber->copy_count == COPY_MAX || (uintptr_t)to % 16 != 0 || (uintptr_t)from % 16 != 0) {
        hd_standin_stop("an asynchronous copy that is not aligned to 16 bytes, or one too many");
    }
    fiber->copies[fiber->copy_count++] = (struct copy){to, from, bytes, fiber->groups};
}

void hd_standin_commit(void)
{
    hd_standin_device->fibers[hd_standin_now.thread].groups++;
}

static void make_copy(const struct copy *copy)
{
    memset(copy->to, 0, 16);
    memcpy(copy->to, copy->from, copy->bytes);
}

void hd_standin_copy_wait(uint32_t left)
{
    struct fiber *fiber = &hd_standin_device->fibers[hd_standin_now.thread];
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

/* What thread `lane` of the warp gave, of an exchange of addresses. */
static const uint16_t *row_of(const char *slots, uint32_t lane)
{
    const uint16_t *row;
    memcpy(&row, slots + (size_t)lane * HD_STANDIN_SLOT_BYTES, sizeof row);
    return row;
}

/* Register i of a lane: of matrix i, row lane / 4, columns lane % 4 x 2 and the next; turned, the
   other way round. */
void hd_standin_load(uint32_t *out, const uint16_t *row, int is_turned)
{
    const uint32_t lane = hd_standin_now.thread % LANES, line = lane / 4, column = lane % 4 * 2;
    if ((uintptr_t)row % 16 != 0) {
        hd_standin_stop("a row of an 8 x 8 matrix that is not aligned to 16 bytes");
    }
    const char *slots = hd_standin_exchange(&row, sizeof row);
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t first = i * 8;
        const uint32_t low =
            is_turned ? row_of(slots, first + column)[line] : row_of(slots, first + line)[column];
        const uint32_t high = is_turned ? row_of(slots, first + column + 1)[line]
                                        : row_of(slots, first + line)[column + 1];
        out[i] = low | high << 16;
    }
}

/* --- products of fragments -------------------------------------------------------------------- */

/* What a thread gives of A, B and the sums: as many registers as the instruction takes. */
struct given {
    uint32_t a[4], b[2];
    float sums[4];
};
_Static_assert(sizeof(struct given) <= HD_STANDIN_SLOT_BYTES, "a slot holds a fragment");

static float half_of(uint32_t word, uint32_t half)
{
    return hd_float_of(half ? word & 0xffff0000u : word << 16);
}

/* Registers of a lane: A has rows lane / 4 (and 8 on), depths lane % 4 x 2 (and 8 on); B columns
   lane / 4 and the same depths; the sums rows as A and columns lane % 4 x 2. */
static void unpack(const char *slots, float (*a)[16], float (*b)[8], float (*sums)[8])
{
    for (uint32_t lane = 0; lane < LANES; lane++) {
        const uint32_t line = lane / 4, pair = lane % 4 * 2;
        struct given given;
        memcpy(&given, slots + (size_t)lane * HD_STANDIN_SLOT_BYTES, sizeof given);
        for (uint32_t i = 0; i < 8; i++) {
            a[line + i / 2 % 2 * 8][pair + i / 4 * 8 + i % 2] = half_of(given.a[i / 2], i % 2);
        }
        for (uint32_t i = 0; i < 4; i++) {
            b[pair + i / 2 * 8 + i % 2][line] = half_of(given.b[i / 2], i % 2);
            sums[line + i / 2 * 8][pair + i % 2] = given.sums[i];
        }
    }
}

/* Each sum in ascending order of the depth. */
static void multiply_warp(const char *slots, float (*sums)[8])
{
    float a[16][16], b[16][8];
    unpack(slots, a, b, sums);
    for (uint32_t row = 0; row < 16; row++) {
        for (uint32_t k = 0; k < 16; k++) {
            for (uint32_t column = 0; column < 8; column++) {
                sums[row][column] += a[row][k] * b[k][column];
            }
        }
    }
}

void hd_standin_multiply(float *sum, const uint32_t *a, const uint32_t *b)
{
    const uint32_t thread = hd_standin_now.thread, lane = thread % LANES;
    struct fragment *product = &hd_standin_device->products[thread / LANES];
    struct given given;
    memcpy(given.a, a, sizeof given.a);
    memcpy(given.b, b, sizeof given.b);
    memcpy(given.sums, sum, sizeof given.sums);
    const char *slots = hd_standin_exchange(&given, sizeof given);
    if (product->exchange != hd_standin_device->fibers[thread].exchanges) {
        multiply_warp(slots, product->sums);
        product->exchange = hd_standin_device->fibers[thread].exchanges;
    }
    for (uint32_t i = 0; i < 4; i++) {
        sum[i] = product->sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
}
