/*
 * plugins/kernels/cuda/kernels/language.cuh - the language of the kernels.
 *
 * The kernels use only what CUDA C++ and C17 have in common, and the names below for everything
 * that only a device has.  nvcc compiles them for the device.  The tests compile the same files
 * as C for the host, after tests/standin/device/emulator.h has defined these names (and
 * HD_DEVICE_EMULATED), and so compare every kernel with the reference on machines without a
 * device.
 *
 * A kernel has a one-dimensional block, one argument struct, and one struct of shared memory, which
 * the launch sizes.  It does not use floating-point atomics: every sum has a fixed tree.
 */
#ifndef HD_CUDA_LANGUAGE_CUH
#define HD_CUDA_LANGUAGE_CUH

#include <stddef.h>
#include <stdint.h>

/* 16 bytes, moved at once. */
struct hd_words {
    uint32_t word[4];
} __attribute__((aligned(16)));

#ifndef HD_DEVICE_EMULATED

#define HD_INLINE static __device__ __forceinline__

/* hd_NAME is the symbol in the module; `threads` is the largest block. */
#define HD_KERNEL(name, threads, type) HD_KERNEL_NAMED(name, threads, type)
#define HD_KERNEL_NAMED(name, threads, type)              \
    extern "C" __global__ void __launch_bounds__(threads) \
        hd_##name(const __grid_constant__ struct type args)

#define HD_SHARED(type, name)                                        \
    extern __shared__ __align__(16) unsigned char hd_shared_bytes[]; \
    struct type *const name = (struct type *)(void *)hd_shared_bytes

#define HD_UNROLL _Pragma("unroll")

#define HD_INDEX(name, index)     \
    HD_INLINE uint32_t name(void) \
    {                             \
        return index;             \
    }

HD_INDEX(hd_thread, threadIdx.x)
HD_INDEX(hd_threads, blockDim.x)
HD_INDEX(hd_block_x, blockIdx.x)
HD_INDEX(hd_block_y, blockIdx.y)
HD_INDEX(hd_block_z, blockIdx.z)
HD_INDEX(hd_blocks, gridDim.x)

HD_INLINE void hd_sync(void)
{
    __syncthreads();
}

HD_INLINE void hd_sync_warp(void)
{
    __syncwarp();
}

/* The host sees the writes of this thread before it sees later ones. */
HD_INLINE void hd_fence(void)
{
    __threadfence_system();
}

#define HD_XOR(name, type)                                     \
    HD_INLINE type name(type value, uint32_t mask)             \
    {                                                          \
        return __shfl_xor_sync(0xffffffffu, value, (int)mask); \
    }

HD_XOR(hd_xor_f32, float)
HD_XOR(hd_xor_f64, double)
HD_XOR(hd_xor_u32, uint32_t)

HD_INLINE uint32_t hd_ballot(int predicate)
{
    return __ballot_sync(0xffffffffu, predicate);
}

HD_INLINE uint32_t hd_bit_count(uint32_t bits)
{
    return (uint32_t)__popc(bits);
}

HD_INLINE uint32_t hd_bits_of(float value)
{
    return __float_as_uint(value);
}

HD_INLINE float hd_float_of(uint32_t bits)
{
    return __uint_as_float(bits);
}

/* To nearest even; NaN stays NaN. */
HD_INLINE uint16_t hd_bf16_of(float value)
{
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

/* Two at once: `low` in the low half. */
HD_INLINE uint32_t hd_bf16_pair(float low, float high)
{
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

/* Begins to copy 16 bytes into shared memory, or to zero them if `bytes` is 0. */
HD_INLINE void hd_copy_async(void *shared, const void *from, uint32_t bytes)
{
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

HD_INLINE void hd_copy_commit(void)
{
    asm volatile("cp.async.commit_group;");
}

/* Waits until at most `left` (a constant) of this thread's groups are under way. */
#define hd_copy_wait(left) asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory")

/* Four 8 x 8 matrices of BF16; lane i gives the address of row i % 8 of matrix i / 8. */
#define HD_LOAD_MATRICES(name, modifier)                                      \
    HD_INLINE void name(uint32_t *out, const uint16_t *shared)                \
    {                                                                         \
        const uint32_t from = (uint32_t)__cvta_generic_to_shared(shared);     \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" modifier                 \
                     ".shared.b16 {%0, %1, %2, %3}, [%4];"                    \
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) \
                     : "r"(from)                                              \
                     : "memory");                                             \
    }

HD_LOAD_MATRICES(hd_load_matrices, "")
HD_LOAD_MATRICES(hd_load_transposed, ".trans")

/* sum[16, 8] += a[16, 16] b[16, 8], in the fragments of mma.m16n8k16. */
HD_INLINE void hd_multiply(float *sum, const uint32_t *a, const uint32_t *b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif /* HD_DEVICE_EMULATED */

/* --- for the device and the emulator ---------------------------------------------------------- */

#define HD_WARP   32u
#define HD_VECTOR 8u /* elements that a thread moves at once, if rows are multiples of it */

/* Calls function(..., step): step is HD_VECTOR if `width` is a multiple of it, otherwise 1. */
#define HD_BY_VECTOR(function, width, ...) \
    if ((width) % HD_VECTOR == 0) {        \
        function(__VA_ARGS__, HD_VECTOR);  \
    } else {                               \
        function(__VA_ARGS__, 1);          \
    }

HD_INLINE float hd_f32_of(uint16_t bits)
{
    return hd_float_of((uint32_t)bits << 16);
}

/* `step` is HD_VECTOR or 1, a constant in each call. */
HD_INLINE void hd_load(const uint16_t *from, float *to, const uint32_t step)
{
    if (step == HD_VECTOR) {
        const struct hd_words words = *(const struct hd_words *)(const void *)from;
        HD_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            to[2 * i] = hd_float_of(words.word[i] << 16);
            to[2 * i + 1] = hd_float_of(words.word[i] & 0xffff0000u);
        }
    } else {
        to[0] = hd_f32_of(from[0]);
    }
}

HD_INLINE void hd_store(const float *from, uint16_t *to, const uint32_t step)
{
    if (step == HD_VECTOR) {
        struct hd_words words;
        HD_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            words.word[i] = hd_bf16_pair(from[2 * i], from[2 * i + 1]);
        }
        *(struct hd_words *)(void *)to = words;
    } else {
        to[0] = hd_bf16_of(from[0]);
    }
}

HD_INLINE void hd_load_f32(const float *from, float *to, const uint32_t step)
{
    if (step == HD_VECTOR) {
        HD_UNROLL
        for (uint32_t half = 0; half < 2; half++) {
            const struct hd_words words =
                *(const struct hd_words *)(const void *)(from + (size_t)4 * half);
            HD_UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                to[4 * half + i] = hd_float_of(words.word[i]);
            }
        }
    } else {
        to[0] = from[0];
    }
}

HD_INLINE uint32_t hd_lane(void)
{
    return hd_thread() % HD_WARP;
}

HD_INLINE uint32_t hd_warp(void)
{
    return hd_thread() / HD_WARP;
}

#define HD_WARP_SUM(name, type, exchange)                        \
    HD_INLINE type name(type value)                              \
    {                                                            \
        HD_UNROLL                                                \
        for (uint32_t mask = HD_WARP / 2; mask > 0; mask /= 2) { \
            value += exchange(value, mask);                      \
        }                                                        \
        return value;                                            \
    }

HD_WARP_SUM(hd_warp_sum, float, hd_xor_f32)
HD_WARP_SUM(hd_warp_sum_f64, double, hd_xor_f64)
HD_WARP_SUM(hd_warp_sum_u32, uint32_t, hd_xor_u32)

HD_INLINE float hd_larger(float one, float other)
{
    return one > other ? one : other;
}

HD_INLINE float hd_warp_max(float value)
{
    HD_UNROLL
    for (uint32_t mask = HD_WARP / 2; mask > 0; mask /= 2) {
        value = hd_larger(value, hd_xor_f32(value, mask));
    }
    return value;
}

/* The sum of one value per thread; `slots` is [32] in shared memory, free after the call. */
#define HD_BLOCK_SUM(name, type, warp_sum)                               \
    HD_INLINE type name(type value, type *slots)                         \
    {                                                                    \
        const type own = warp_sum(value);                                \
        type total = 0;                                                  \
        if (hd_lane() == 0) {                                            \
            slots[hd_warp()] = own;                                      \
        }                                                                \
        hd_sync();                                                       \
        for (uint32_t warp = 0; warp < hd_threads() / HD_WARP; warp++) { \
            total += slots[warp];                                        \
        }                                                                \
        hd_sync();                                                       \
        return total;                                                    \
    }

HD_BLOCK_SUM(hd_block_sum, float, hd_warp_sum)
HD_BLOCK_SUM(hd_block_sum_f64, double, hd_warp_sum_f64)

HD_INLINE float hd_block_max(float value, float *slots)
{
    const float own = hd_warp_max(value);
    if (hd_lane() == 0) {
        slots[hd_warp()] = own;
    }
    hd_sync();
    float most = slots[0];
    for (uint32_t warp = 1; warp < hd_threads() / HD_WARP; warp++) {
        most = hd_larger(most, slots[warp]);
    }
    hd_sync();
    return most;
}

#endif /* HD_CUDA_LANGUAGE_CUH */
