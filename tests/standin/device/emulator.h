/*
 * tests/standin/device/emulator.h - a stand-in for a device: kernels run on the host, emulated.
 *
 * Defines, for C, the names that plugins/kernels/cuda/kernels/language.cuh defines for CUDA; a file
 * that includes this first and then the kernels has them as functions of the host.  It proves a
 * kernel's logic and says nothing of its speed, its registers or its order of memory accesses.
 *
 * A block runs at a time, each of its threads as a fiber, on the calling thread.  What it is strict
 * in:
 *
 *   - a barrier or a warp's exchange that not all threads reach ends the program with a sentence
 *   - shared memory is exactly as large as launched, and full of NaN when a block begins
 *   - an asynchronous copy is made when it is waited for and not before
 *   - threads run in ascending or in descending order (hd_standin_descending): what differs between
 *     the two has a race
 *
 * tensor-core products and 8 x 8 loads are exchanged within the warp, as the instruction set says.
 */
#ifndef HD_TESTS_STANDIN_EMULATOR_H
#define HD_TESTS_STANDIN_EMULATOR_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HD_DEVICE_EMULATED 1

/* Where the running thread is. */
struct hd_standin_place {
    uint32_t thread, threads, block[3], blocks;
};
extern _Thread_local struct hd_standin_place hd_standin_now;

#define HD_STANDIN_SLOT_BYTES 48u

void hd_standin_sync(void);      /* waits for the block */
void hd_standin_sync_warp(void); /* waits for the warp */
/* Where a thread puts what it gives to the next exchange of its warp; and that exchange, which
   answers the 32 slots of HD_STANDIN_SLOT_BYTES, good until the next but one. */
char *hd_standin_slot(void);
const char *hd_standin_slots(void);
void *hd_standin_shared(size_t bytes);
void hd_standin_copy(void *to, const void *from, uint32_t bytes);
void hd_standin_commit(void);
void hd_standin_copy_wait(uint32_t left);
void hd_standin_load(uint32_t *out, const uint16_t *row, int is_turned);
void hd_standin_multiply(float *sum, const uint32_t *a, const uint32_t *b);

static inline const char *hd_standin_exchange(const void *value, size_t bytes)
{
    memcpy(hd_standin_slot(), value, bytes);
    return hd_standin_slots();
}

/* --- the language ----------------------------------------------------------------------------- */

#define HD_INLINE static inline
#define HD_UNROLL

#define HD_KERNEL(name, threads, type) HD_KERNEL_NAMED(name, threads, type)
#define HD_KERNEL_NAMED(name, threads, type)         \
    static void hd_##name##_body(const struct type); \
    void hd_##name(const void *args);                \
    void hd_##name(const void *args)                 \
    {                                                \
        struct type own;                             \
        memcpy(&own, args, sizeof own);              \
        hd_##name##_body(own);                       \
    }                                                \
    static void hd_##name##_body(const struct type args)

#define HD_SHARED(type, name) struct type *const name = hd_standin_shared(sizeof(struct type))

HD_INLINE uint32_t hd_thread(void)
{
    return hd_standin_now.thread;
}

HD_INLINE uint32_t hd_threads(void)
{
    return hd_standin_now.threads;
}

HD_INLINE uint32_t hd_block_x(void)
{
    return hd_standin_now.block[0];
}

HD_INLINE uint32_t hd_block_y(void)
{
    return hd_standin_now.block[1];
}

HD_INLINE uint32_t hd_block_z(void)
{
    return hd_standin_now.block[2];
}

HD_INLINE uint32_t hd_blocks(void)
{
    return hd_standin_now.blocks;
}

HD_INLINE void hd_sync(void)
{
    hd_standin_sync();
}

HD_INLINE void hd_sync_warp(void)
{
    hd_standin_sync_warp();
}

HD_INLINE void hd_fence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

#define HD_STANDIN_XOR(name, type)                                                                \
    HD_INLINE type name(type value, uint32_t mask)                                                \
    {                                                                                             \
        const char *slots = hd_standin_exchange(&value, sizeof value);                            \
        type other;                                                                               \
        memcpy(&other, slots + (hd_thread() % 32u ^ mask) * HD_STANDIN_SLOT_BYTES, sizeof other); \
        return other;                                                                             \
    }
HD_STANDIN_XOR(hd_xor_f32, float)
HD_STANDIN_XOR(hd_xor_f64, double)
HD_STANDIN_XOR(hd_xor_u32, uint32_t)

HD_INLINE uint32_t hd_ballot(int predicate)
{
    const char *slots = hd_standin_exchange(&predicate, sizeof predicate);
    uint32_t bits = 0;
    for (uint32_t lane = 0; lane < 32; lane++) {
        int said;
        memcpy(&said, slots + lane * HD_STANDIN_SLOT_BYTES, sizeof said);
        bits |= (uint32_t)(said != 0) << lane;
    }
    return bits;
}

HD_INLINE uint32_t hd_bit_count(uint32_t bits)
{
    return (uint32_t)__builtin_popcount(bits);
}

HD_INLINE uint32_t hd_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

HD_INLINE float hd_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* As cvt.rn.bf16.f32: to nearest even; every NaN becomes 7FFF. */
HD_INLINE uint16_t hd_bf16_of(float value)
{
    const uint32_t word = hd_bits_of(value);
    const uint32_t rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
    return (uint16_t)((word & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
}

HD_INLINE uint32_t hd_bf16_pair(float low, float high)
{
    return hd_bf16_of(low) | (uint32_t)hd_bf16_of(high) << 16;
}

HD_INLINE void hd_copy_async(void *shared, const void *from, uint32_t bytes)
{
    hd_standin_copy(shared, from, bytes);
}

HD_INLINE void hd_copy_commit(void)
{
    hd_standin_commit();
}

#define hd_copy_wait(left) hd_standin_copy_wait(left)

HD_INLINE void hd_load_matrices(uint32_t *out, const uint16_t *shared)
{
    hd_standin_load(out, shared, 0);
}

HD_INLINE void hd_load_transposed(uint32_t *out, const uint16_t *shared)
{
    hd_standin_load(out, shared, 1);
}

HD_INLINE void hd_multiply(float *sum, const uint32_t *a, const uint32_t *b)
{
    hd_standin_multiply(sum, a, b);
}

#endif /* HD_TESTS_STANDIN_EMULATOR_H */
