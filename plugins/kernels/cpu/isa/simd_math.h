/*
 * plugins/kernels/cpu/isa/simd_math.h - sums, maxima and exp of sixteen floats.
 *
 * The tree of a sum is the same on every instruction set; see simd.h.
 */
#ifndef HEDDLE_CPU_SIMD_MATH_H
#define HEDDLE_CPU_SIMD_MATH_H

#include "simd.h"

/* The first `count` elements, the rest zero. */
INLINE vf first_of(vf value, uint32_t count)
{
    const vi lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return (vf)((vi)value & (lane < (int32_t)count));
}

/* Adds halves: the same tree with every instruction set. */
INLINE float sum_of(vf value)
{
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)value); /* the same tree */
#else
    float part[LANES];
    memcpy(part, &value, sizeof part);
    for (uint32_t half = LANES / 2; half > 0; half /= 2) {
        for (uint32_t lane = 0; lane < half; lane++) {
            part[lane] += part[lane + half];
        }
    }
    return part[0];
#endif
}

INLINE float max_of(vf value)
{
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)value);
#else
    float part[LANES];
    memcpy(part, &value, sizeof part);
    for (uint32_t half = LANES / 2; half > 0; half /= 2) {
        for (uint32_t lane = 0; lane < half; lane++) {
            part[lane] = part[lane + half] > part[lane] ? part[lane + half] : part[lane];
        }
    }
    return part[0];
#endif
}

/*
 * exp to within 2 units in the last place: x = k ln 2 + r, |r| <= ln 2 / 2, and the series of
 * e^r to r^7.  Below -87.3 it is 0, above 88.3 infinite; NaN stays NaN.  Adding 1.5 x 2^23 rounds
 * to an integer, in the low bits.
 */
INLINE vf exp_of(vf x)
{
    const vf magic = splat(12582912.0f);
    const vf low = splat(-87.3f);
    const vf high = splat(88.7f);
    const vi vanish = x < low;
    x = choose(vanish, low, x);
    x = choose(x > high, high, x);
    const vf shifted = multiply_add(x, splat(1.44269504f), magic);
    const vf whole = shifted - magic;
    vf r = multiply_add(whole, splat(-0.693359375f), x);
    r = multiply_add(whole, splat(2.12194440e-4f), r);
    vf series = splat(1.0f / 5040.0f);
    series = multiply_add(series, r, splat(1.0f / 720.0f));
    series = multiply_add(series, r, splat(1.0f / 120.0f));
    series = multiply_add(series, r, splat(1.0f / 24.0f));
    series = multiply_add(series, r, splat(1.0f / 6.0f));
    series = multiply_add(series, r, splat(0.5f));
    series = multiply_add(series, r, splat(1.0f));
    series = multiply_add(series, r, splat(1.0f));
    const vf power = (vf)(((vu)shifted - (vu)magic + 127u) << 23);
    return (vf)((vu)(series * power) & ~(vu)vanish);
}

#endif /* HEDDLE_CPU_SIMD_MATH_H */
