/*
 * plugins/kernels/cpu/isa/simd.h - sixteen floats at a time, in the compiler's own vectors.
 *
 * The files of this folder are compiled once per instruction set (plugin.cmake); open chooses one.
 * A vector is always 16 wide, so a row is summed in the same tree with every instruction set, and
 * on processors other than x86.  Longer rows are processed in steps of 16.  The last step may be
 * partial: its missing elements are loaded as zero and not stored.
 */
#ifndef HEDDLE_CPU_SIMD_H
#define HEDDLE_CPU_SIMD_H

#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define LANES 16u

/* Always inlined, so that `bf16` is a constant wherever it is tested. */
#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));
typedef double vd __attribute__((vector_size(64)));   /* eight of them, and ... */
typedef float vhalf __attribute__((vector_size(32))); /* ... the eight floats they come from */

/* A tensor of dtype A, read and written as float. */
struct view {
    void *data;
    bool bf16; /* else float32 */
};

INLINE struct view view_of(const void *data, bool bf16)
{
    return (struct view){.data = (void *)(uintptr_t)data, .bf16 = bf16};
}

INLINE uint32_t step_of(uint64_t at, uint64_t count)
{
    return count - at < LANES ? (uint32_t)(count - at) : LANES;
}

INLINE vf splat(float value)
{
    return value - (vf){0};
}

#ifdef __AVX512F__

INLINE __mmask16 mask_of(uint32_t count)
{
    return (__mmask16)((1u << count) - 1);
}

INLINE vf load_f32(const float *from, uint32_t count)
{
    return count == LANES ? (vf)_mm512_loadu_ps(from)
                          : (vf)_mm512_maskz_loadu_ps(mask_of(count), from);
}

INLINE void store_f32(float *to, uint32_t count, vf value)
{
    if (count == LANES) {
        _mm512_storeu_ps(to, (__m512)value);
    } else {
        _mm512_mask_storeu_ps(to, mask_of(count), (__m512)value);
    }
}

INLINE vh load_bits(const uint16_t *from, uint32_t count)
{
    return count == LANES ? (vh)_mm256_loadu_si256((const void *)from)
                          : (vh)_mm256_maskz_loadu_epi16(mask_of(count), from);
}

INLINE void store_bits(uint16_t *to, uint32_t count, vh bits)
{
    if (count == LANES) {
        _mm256_storeu_si256((void *)to, (__m256i)bits);
    } else {
        _mm256_mask_storeu_epi16(to, mask_of(count), (__m256i)bits);
    }
}

INLINE vh low_halves(vu words)
{
    return (vh)_mm512_cvtepi32_epi16((__m512i)words);
}

INLINE vu wide_halves(vh bits)
{
    return (vu)_mm512_cvtepu16_epi32((__m256i)bits);
}

#else

#define LOAD_AND_STORE(load_name, store_name, vector, element)        \
    INLINE vector load_name(const element *from, uint32_t count)      \
    {                                                                 \
        vector value = {0};                                           \
        if (count == LANES) {                                         \
            memcpy(&value, from, sizeof value);                       \
            return value;                                             \
        }                                                             \
        for (uint32_t lane = 0; lane < count; lane++) {               \
            value[lane] = from[lane];                                 \
        }                                                             \
        return value;                                                 \
    }                                                                 \
    INLINE void store_name(element *to, uint32_t count, vector value) \
    {                                                                 \
        if (count == LANES) {                                         \
            memcpy(to, &value, sizeof value);                         \
            return;                                                   \
        }                                                             \
        for (uint32_t lane = 0; lane < count; lane++) {               \
            to[lane] = value[lane];                                   \
        }                                                             \
    }

LOAD_AND_STORE(load_f32, store_f32, vf, float)
LOAD_AND_STORE(load_bits, store_bits, vh, uint16_t)

INLINE vh low_halves(vu words)
{
    return __builtin_convertvector(words, vh);
}

INLINE vu wide_halves(vh bits)
{
    return __builtin_convertvector(bits, vu);
}

#endif

/* Nearest even; a NaN stays one. */
INLINE vh narrow(vf value)
{
    const vu word = (vu)value;
    const vu rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
    const vu nan = (vu)(value != value);
    return low_halves((rounded & ~nan) | (((word >> 16) | 0x40u) & nan));
}

INLINE vf load(struct view view, uint64_t at, uint32_t count)
{
    if (!view.bf16) {
        return load_f32((const float *)view.data + at, count);
    }
    return (vf)(wide_halves(load_bits((const uint16_t *)view.data + at, count)) << 16);
}

INLINE void store(struct view view, uint64_t at, uint32_t count, vf value)
{
    if (!view.bf16) {
        store_f32((float *)view.data + at, count, value);
        return;
    }
    store_bits((uint16_t *)view.data + at, count, narrow(value));
}

/* a b + c: fused if the instruction set has that, otherwise with two roundings. */
INLINE vf multiply_add(vf a, vf b, vf c)
{
#ifdef __AVX512F__
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    return a * b + c;
#endif
}

INLINE vf choose(vi mask, vf yes, vf no)
{
    return (vf)(((vu)yes & (vu)mask) | ((vu)no & ~(vu)mask));
}

/* The larger; a NaN in `value` is ignored here, and reaches the sum that follows. */
INLINE vf larger(vf value, vf than)
{
    return choose(value > than, value, than);
}

#endif /* HEDDLE_CPU_SIMD_H */
