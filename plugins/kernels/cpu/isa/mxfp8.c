/*
 * isa/mxfp8.c - blocks of 32 elements with one scale, and back.
 *
 * It works on the bits of floats, so that every instruction set gives the same bytes.  The scale
 * follows from the exponent (448, the largest element, is 1.75 x 2^8); an element is rounded to
 * three bits of fraction.  A columnwise block is one lane of 32 vectors.  A rowwise block is two
 * vectors, and needs the largest magnitude across them.
 *
 * Source: OCP Microscaling Formats 1.0; ops.h has the rules.
 */
#include "isa.h"

#include <assert.h>

typedef uint8_t vb __attribute__((vector_size(16)));

#define SCALE_NAN     0xFFu
#define ELEMENT_NAN   0x7Fu
#define INFINITE_BITS 0x7f800000u
#define LARGEST_BITS  0x43e00000u /* 448 */
#define NORMAL_BITS   0x3c800000u /* 2^-6, the least element with a leading one */
#define QUIET_BITS    0x7fc00000u
#define SUM_BITS      0x46800000u /* 2^14: its unit in the last place is 2^-9, the least element */

INLINE vu isa_splat_bits(uint32_t bits)
{
    return bits + (vu){0};
}

INLINE vu isa_choose_bits(vu mask, vu yes, vu no)
{
    return (yes & mask) | (no & ~mask);
}

/* For numbers below 2^31, as all here are: few processors have an unsigned comparison. */
INLINE vu isa_is_larger(vu one, vu other)
{
    return (vu)((vi)one > (vi)other);
}

INLINE vu isa_larger_bits(vu one, vu other)
{
    return isa_choose_bits(isa_is_larger(one, other), one, other);
}

INLINE vu isa_magnitude_of(vf value)
{
    return (vu)value & 0x7fffffffu;
}

INLINE uint32_t isa_largest_of(vu value)
{
#ifdef __AVX512F__
    return _mm512_reduce_max_epu32((__m512i)value);
#else
    uint32_t part[LANES];
    memcpy(part, &value, sizeof part);
    for (uint32_t half = LANES / 2; half > 0; half /= 2) {
        for (uint32_t lane = 0; lane < half; lane++) {
            part[lane] = part[lane + half] > part[lane] ? part[lane + half] : part[lane];
        }
    }
    return part[0];
#endif
}

INLINE void isa_store_bytes(uint8_t *to, vu value)
{
#ifdef __AVX512F__
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtepi32_epi8((__m512i)value));
#else
    const vb bytes = __builtin_convertvector(__builtin_convertvector(value, vh), vb);
    memcpy(to, &bytes, sizeof bytes);
#endif
}

INLINE vu isa_load_bytes(const uint8_t *from)
{
    vb bytes;
    memcpy(&bytes, from, sizeof bytes);
#ifdef __AVX512F__
    return (vu)_mm512_cvtepu8_epi32((__m128i)bytes);
#else
    return __builtin_convertvector(__builtin_convertvector(bytes, vh), vu);
#endif
}

/* The scales of 16 blocks, by their largest magnitudes. */
INLINE vu isa_scales_of(vu largest, uint32_t rounds_down)
{
    const vu limit = isa_splat_bits(rounds_down ? 0x7fffffu : 0x600000u);
    const vu exponent = (largest >> 23) + (isa_is_larger(largest & 0x7fffffu, limit) & 1u);
    const vu scale = (exponent - 8u) & isa_is_larger(exponent, isa_splat_bits(8));
    return isa_choose_bits(isa_is_larger(largest, isa_splat_bits(INFINITE_BITS - 1)),
                           isa_splat_bits(SCALE_NAN), scale);
}

INLINE vu isa_elements_of(vf value, vu scale)
{
    const vu is_nan = (vu)(scale == SCALE_NAN);
    const vf scaled = value * (vf)((254u - (scale & ~is_nan)) << 23);
    const vu sign = (vu)scaled >> 24 & 0x80u;
    const vu whole = isa_magnitude_of(scaled);
    const vu limit = isa_splat_bits(LARGEST_BITS);
    const vu magnitude = isa_choose_bits(isa_is_larger(whole, limit), limit, whole);
    const vu small = (vu)((vf)magnitude + (vf)isa_splat_bits(SUM_BITS)) - SUM_BITS;
    const vu normal = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
    const vu is_small = isa_is_larger(isa_splat_bits(NORMAL_BITS), magnitude);
    const vu element = sign | isa_choose_bits(is_small, small, normal);
    return isa_choose_bits(is_nan, isa_splat_bits(ELEMENT_NAN), element);
}

INLINE vf isa_scale_values(vu scale)
{
    const vu bits = isa_choose_bits((vu)(scale == 0u), isa_splat_bits(0x00400000u), scale << 23);
    return (vf)isa_choose_bits((vu)(scale == SCALE_NAN), isa_splat_bits(QUIET_BITS), bits);
}

INLINE vf isa_element_values(vu element)
{
    const vu magnitude = element & 0x7fu, sign = (element & 0x80u) << 24;
    const vf small = __builtin_convertvector((vi)magnitude, vf) * splat(1.0f / 512);
    const vu normal = (magnitude << 20) + (120u << 23);
    vu bits = isa_choose_bits(isa_is_larger(isa_splat_bits(8), magnitude), (vu)small, normal);
    bits = isa_choose_bits((vu)(magnitude == ELEMENT_NAN), isa_splat_bits(QUIET_BITS), bits);
    return (vf)(bits | sign);
}

INLINE void isa_quantise_rows(const struct hd_quantise_args *args, struct view source)
{
    uint8_t *elements = args->rowwise.data;
    const uint64_t count = (uint64_t)args->rows * args->columns;
    for (uint64_t at = 0; at < count; at += HD_ROW_BLOCK) {
        const vf low = load(source, at, LANES), high = load(source, at + LANES, LANES);
        const uint32_t largest =
            isa_largest_of(isa_larger_bits(isa_magnitude_of(low), isa_magnitude_of(high)));
        const vu scale = isa_scales_of(isa_splat_bits(largest), args->scale_rule);
        args->rowwise.scales[at / HD_ROW_BLOCK] = (uint8_t)scale[0];
        isa_store_bytes(elements + at, isa_elements_of(low, scale));
        isa_store_bytes(elements + at + LANES, isa_elements_of(high, scale));
    }
}

/* 16 blocks; their first elements are `first` .. `first` + 15 of the source. */
INLINE void isa_quantise_column(const struct hd_quantise_args *args, struct view source,
                                uint64_t first, uint8_t *scales)
{
    uint8_t *elements = args->columnwise.data;
    vu largest = {0};
    for (uint64_t row = 0; row < HD_ROW_BLOCK; row++) {
        const vf value = load(source, first + row * args->columns, LANES);
        largest = isa_larger_bits(largest, isa_magnitude_of(value));
    }
    const vu scale = isa_scales_of(largest, args->scale_rule);
    isa_store_bytes(scales, scale);
    for (uint64_t row = 0; row < HD_ROW_BLOCK; row++) {
        const uint64_t at = first + row * args->columns;
        isa_store_bytes(elements + at, isa_elements_of(load(source, at, LANES), scale));
    }
}

INLINE hd_status isa_quantise(struct hd_ops_device *device, const struct hd_quantise_args *args,
                              bool bf16)
{
    const struct view source = view_of(args->source, bf16);
    (void)device;
    assert(args->columns % HD_ROW_BLOCK == 0);
    if (args->rowwise.data != NULL) {
        isa_quantise_rows(args, source);
    }
    assert(args->columnwise.data == NULL || args->rows % HD_ROW_BLOCK == 0);
    for (uint64_t row = 0; args->columnwise.data != NULL && row < args->rows; row += HD_ROW_BLOCK) {
        uint8_t *scales = args->columnwise.scales + row / HD_ROW_BLOCK * args->columns;
        for (uint32_t column = 0; column < args->columns; column += LANES) {
            isa_quantise_column(args, source, row * args->columns + column, scales + column);
        }
    }
    return HD_OK;
}

INLINE hd_status isa_dequantise(struct hd_ops_device *device, const struct hd_quantise_args *args,
                                bool bf16)
{
    const bool is_rowwise = args->rowwise.data != NULL;
    const struct hd_matrix *from = is_rowwise ? &args->rowwise : &args->columnwise;
    const struct view target = view_of(args->target, bf16);
    (void)device;
    assert(args->columns % HD_ROW_BLOCK == 0);
    for (uint64_t row = 0; row < args->rows; row++) {
        const uint8_t *scales = from->scales + (is_rowwise ? row * (args->columns / HD_ROW_BLOCK)
                                                           : row / HD_ROW_BLOCK * args->columns);
        for (uint32_t column = 0; column < args->columns; column += LANES) {
            const uint64_t at = row * args->columns + column;
            const vu scale = is_rowwise ? isa_splat_bits(scales[column / HD_ROW_BLOCK])
                                        : isa_load_bytes(scales + column);
            const vf value = isa_element_values(isa_load_bytes((const uint8_t *)from->data + at));
            store(target, at, LANES, value * isa_scale_values(scale));
        }
    }
    return HD_OK;
}

ISA_OP(quantise, hd_quantise_args)
ISA_OP(dequantise, hd_quantise_args)
