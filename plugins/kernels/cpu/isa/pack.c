/*
 * isa/pack.c - copies BF16 operands into the layout that oneDNN is fastest with.
 *
 *   weights   pairs of k side by side, 64 columns wide:  [n / 64][k / 32][16][64][2]
 *   source    rows of k without gaps; a transposed source is transposed back
 *
 * oneDNN can do this itself, but slower, and again for every piece of a large product.
 */
#include "isa.h"

#ifdef __AVX512F__

/* Transposes a 16 x 16 matrix of pairs. */
INLINE void pack_transpose(__m512i row[16])
{
    __m512i part[16];
    for (uint32_t at = 0; at < 16; at += 2) {
        part[at] = _mm512_unpacklo_epi32(row[at], row[at + 1]);
        part[at + 1] = _mm512_unpackhi_epi32(row[at], row[at + 1]);
    }
    for (uint32_t at = 0; at < 16; at += 4) {
        row[at] = _mm512_unpacklo_epi64(part[at], part[at + 2]);
        row[at + 1] = _mm512_unpackhi_epi64(part[at], part[at + 2]);
        row[at + 2] = _mm512_unpacklo_epi64(part[at + 1], part[at + 3]);
        row[at + 3] = _mm512_unpackhi_epi64(part[at + 1], part[at + 3]);
    }
    for (uint32_t at = 0; at < 4; at++) {
        part[at] = _mm512_shuffle_i32x4(row[at], row[at + 4], 0x88);
        part[at + 4] = _mm512_shuffle_i32x4(row[at], row[at + 4], 0xdd);
        part[at + 8] = _mm512_shuffle_i32x4(row[at + 8], row[at + 12], 0x88);
        part[at + 12] = _mm512_shuffle_i32x4(row[at + 8], row[at + 12], 0xdd);
    }
    for (uint32_t at = 0; at < 8; at++) {
        const uint32_t from = at % 4 + (at >= 4 ? 4 : 0);
        row[at] = _mm512_shuffle_i32x4(part[from], part[from + 8], 0x88);
        row[at + 8] = _mm512_shuffle_i32x4(part[from], part[from + 8], 0xdd);
    }
}

/* Sixteen columns of two rows, as pairs. */
INLINE __m512i pack_pair(const uint16_t *even, const uint16_t *odd)
{
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)even));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)odd));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* One block of 32 k by `count` columns, of weights stored as [k, n] ... */
INLINE void pack_rows(const uint16_t *from, uint32_t stride, uint32_t count, uint16_t *to)
{
    for (uint32_t k = 0; k < 32; k += 2) {
        const uint16_t *even = from + (uint64_t)k * stride;
        for (uint32_t column = 0; column < count; column += 16) {
            _mm512_storeu_si512(to + k * 64 + column * 2,
                                pack_pair(even + column, even + stride + column));
        }
    }
}

/* ... or as [n, k]. */
INLINE void pack_columns(const uint16_t *from, uint32_t stride, uint32_t count, uint16_t *to)
{
    for (uint32_t column = 0; column < count; column += 16) {
        __m512i row[16];
        for (uint32_t at = 0; at < 16; at++) {
            row[at] = _mm512_loadu_si512(from + (uint64_t)(column + at) * stride);
        }
        pack_transpose(row);
        for (uint32_t at = 0; at < 16; at++) {
            _mm512_storeu_si512(to + at * 128 + column * 2, row[at]);
        }
    }
}

void ISA(pack_weights)(struct hd_cpu_operand from, uint32_t k_count, uint32_t column_count,
                       bool is_transposed, uint16_t *to)
{
    const uint16_t *data = from.data;
    for (uint32_t column = 0; column < column_count; column += 64) {
        const uint32_t count = column_count - column < 64 ? column_count - column : 64;
        for (uint32_t k = 0; k < k_count; k += 32, to += 32 * 64) {
            if (count < 64) {
                memset(to, 0, 32 * 64 * sizeof to[0]); /* the last block is padded */
            }
            if (is_transposed) {
                pack_columns(data + (uint64_t)column * from.stride + k, from.stride, count, to);
            } else {
                pack_rows(data + (uint64_t)k * from.stride + column, from.stride, count, to);
            }
        }
    }
}

void ISA(pack_source)(struct hd_cpu_operand from, uint32_t row_count, uint32_t k_count,
                      bool is_transposed, uint16_t *to)
{
    const uint16_t *data = from.data;
    for (uint32_t row = 0; !is_transposed && row < row_count; row++) {
        memcpy(to + (uint64_t)row * k_count, data + (uint64_t)row * from.stride,
               k_count * sizeof(uint16_t));
    }
    for (uint32_t k = 0; is_transposed && k < k_count; k += 32) {
        for (uint32_t first = 0; first < row_count; first += 16) {
            __m512i row[16];
            for (uint32_t at = 0; at < 16; at++) {
                const uint16_t *even = data + (uint64_t)(k + 2 * at) * from.stride + first;
                row[at] = pack_pair(even, even + from.stride);
            }
            pack_transpose(row);
            for (uint32_t at = 0; at < 16; at++) {
                _mm512_storeu_si512(to + (uint64_t)(first + at) * k_count + k, row[at]);
            }
        }
    }
}

#endif
