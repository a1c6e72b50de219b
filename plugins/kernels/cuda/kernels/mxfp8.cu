/*
 * plugins/kernels/cuda/kernels/mxfp8.cu - blocks of 32 elements with one scale.
 *
 *   element  E4M3: sign, 4 bits of exponent (bias 7), 3 of fraction; 7F and FF are NaN
 *   scale    E8M0: 2^(byte - 127), FF is NaN; there is no zero
 *
 * The fields of the largest magnitude 1.f x 2^e give the exact scale: 2^(e - 8), or twice that if
 * it rounds up and 1.f is above 1.75 (448 = 1.75 x 2^8 is the largest element).  A block with a
 * NaN or an infinity gets scale FF and elements 7F, so that it shows (kernel.h, K8).
 *
 * Sources: OCP Microscaling Formats 1.0, sections 5.3, 5.4 and 6.3; Mishra et al. 2025
 * (arXiv:2506.08027) for rounding up.
 */
#include "arguments.h"
#include "language.cuh"
#include "places.h"
#include "shared.h"

#define HD_SCALE_NAN   0xffu
#define HD_ELEMENT_NAN 0x7fu

/* `largest`: the bits of the largest magnitude of the block. */
HD_INLINE uint32_t scale_of(uint32_t largest, uint32_t rounds_down)
{
    if (largest >= 0x7f800000u) {
        return HD_SCALE_NAN;
    }
    const uint32_t is_above = !rounds_down && (largest & 0x7fffffu) > 0x600000u;
    const uint32_t exponent = (largest >> 23) + is_above;
    return exponent > 8 ? exponent - 8 : 0;
}

/* To nearest even, saturating.  The product is exact, or far below the least element. */
HD_INLINE uint32_t element_of(float value, uint32_t scale)
{
    if (scale == HD_SCALE_NAN) {
        return HD_ELEMENT_NAN;
    }
    const uint32_t bits = hd_bits_of(value * hd_float_of((254u - scale) << 23));
    const uint32_t sign = bits >> 24 & 0x80u;
    uint32_t magnitude = bits & 0x7fffffffu;
    magnitude = magnitude > 0x43e00000u ? 0x43e00000u : magnitude; /* 448 */
    if (magnitude < 0x3c800000u) {                                 /* 2^-6 */
        /* One unit in the last place of 2^14 is 2^-9, the least element: the sum rounds to it. */
        const float sum = hd_float_of(magnitude) + 16384.0f;
        return sign | (hd_bits_of(sum) - hd_bits_of(16384.0f));
    }
    return sign | (((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3));
}

HD_INLINE float scale_value(uint32_t scale)
{
    return hd_float_of(scale == HD_SCALE_NAN ? 0x7fc00000u
                                             : (scale == 0 ? 0x00400000u : scale << 23));
}

HD_INLINE float element_value(uint32_t element)
{
    const uint32_t magnitude = element & 0x7fu;
    float value = (float)(magnitude & 7u) / 512;
    if (magnitude == HD_ELEMENT_NAN) {
        value = hd_float_of(0x7fc00000u);
    } else if (magnitude >= 8) {
        value = hd_float_of((magnitude << 20) + (120u << 23));
    }
    return element & 0x80u ? -value : value;
}

HD_INLINE uint32_t magnitude_of(uint16_t bits)
{
    return (bits & 0x7fffu) << 16;
}

HD_INLINE uint64_t rows_there(const int32_t *row_limit, uint64_t rows)
{
    return row_limit == NULL || (uint64_t)*row_limit > rows ? rows : (uint64_t)*row_limit;
}

/* Four threads quantise a block of 32, each 8 contiguous elements, to `to`; returns the scale.  All
   threads of the warp must call it; those that are not live have no elements. */
HD_INLINE uint32_t quantise_vector(const uint16_t *from, uint8_t *to, uint32_t rule,
                                   const int is_live)
{
    float value[HD_VECTOR] = {0, 0, 0, 0, 0, 0, 0, 0};
    uint32_t largest = 0, low = 0, high = 0;
    if (is_live) {
        hd_load(from, value, HD_VECTOR);
    }
    for (uint32_t i = 0; i < HD_VECTOR; i++) {
        const uint32_t magnitude = hd_bits_of(value[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    for (uint32_t mask = 1; mask <= 2; mask *= 2) {
        const uint32_t other = hd_xor_u32(largest, mask);
        largest = other > largest ? other : largest;
    }
    const uint32_t scale = scale_of(largest, rule);
    for (uint32_t i = 0; i < 4; i++) {
        low |= element_of(value[i], scale) << (8 * i);
        high |= element_of(value[4 + i], scale) << (8 * i);
    }
    if (is_live) {
        ((uint32_t *)(void *)to)[0] = low;
        ((uint32_t *)(void *)to)[1] = high;
    }
    return scale;
}

HD_KERNEL(quantise_rows, 256, hd_quantise_args)
{
    const uint64_t vector = (uint64_t)hd_block_x() * hd_threads() + hd_thread();
    const uint64_t count = rows_there(args.row_limit, args.rows) * args.columns / HD_VECTOR;
    const int is_live = vector < count;
    const uint64_t at = is_live ? vector * HD_VECTOR : 0;
    const uint32_t scale =
        quantise_vector((const uint16_t *)args.source + at, (uint8_t *)args.rowwise.data + at,
                        args.scale_rule, is_live);
    if (is_live && vector % 4 == 0) {
        args.rowwise.scales[vector / 4] = (uint8_t)scale;
    }
}

/* One thread per block of 32 down a column. */
HD_KERNEL(quantise_columns, 256, hd_quantise_args)
{
    const uint64_t block = (uint64_t)hd_block_x() * hd_threads() + hd_thread();
    const uint64_t columns = args.columns;
    if (block >= rows_there(args.row_limit, args.rows) / HD_ROW_BLOCK * columns) {
        return;
    }
    const uint64_t first = block / columns * HD_ROW_BLOCK * columns + block % columns;
    const uint16_t *from = (const uint16_t *)args.source + first;
    uint32_t largest = 0;
    for (uint32_t i = 0; i < HD_ROW_BLOCK; i++) {
        const uint32_t magnitude = magnitude_of(from[i * columns]);
        largest = magnitude > largest ? magnitude : largest;
    }
    const uint32_t scale = scale_of(largest, args.scale_rule);
    for (uint32_t i = 0; i < HD_ROW_BLOCK; i++) {
        ((uint8_t *)args.columnwise.data)[first + i * columns] =
            (uint8_t)element_of(hd_f32_of(from[i * columns]), scale);
    }
    args.columnwise.scales[block] = (uint8_t)scale;
}

HD_KERNEL(dequantise, 256, hd_quantise_args)
{
    const uint64_t at = (uint64_t)hd_block_x() * hd_threads() + hd_thread();
    const int is_rowwise = args.rowwise.data != NULL;
    const uint64_t columns = args.columns;
    if (at >= rows_there(args.row_limit, args.rows) * columns) {
        return;
    }
    const uint64_t down = at / columns / HD_ROW_BLOCK * columns + at % columns;
    const uint8_t *data = (const uint8_t *)(is_rowwise ? args.rowwise.data : args.columnwise.data);
    const uint8_t *scales = is_rowwise ? args.rowwise.scales : args.columnwise.scales;
    const float scale = scale_value(scales[is_rowwise ? at / HD_ROW_BLOCK : down]);
    ((uint16_t *)args.target)[at] = hd_bf16_of(element_value(data[at]) * scale);
}

/* --- operands of a block-scaled product ------------------------------------------------------- */

/* A block of threads has 16 rows and 4 blocks of 32 of each.  Past the end it writes zeros, which
   pad the scales. */
HD_KERNEL(pack_rows, 256, hd_pack)
{
    const uint64_t row = (uint64_t)hd_block_y() * HD_PACK_ROWS + hd_thread() / 16;
    const uint64_t column =
        (uint64_t)hd_block_x() * 4 * HD_ROW_BLOCK + hd_thread() % 16 * HD_VECTOR;
    const int is_live = row < args.rows && column < args.columns;
    const uint64_t at = is_live ? row * args.columns + column : 0;
    const uint32_t scale =
        quantise_vector(args.source + at, args.data + at, args.scale_rule, is_live);
    if (hd_thread() % 4 == 0) {
        args.scales[hd_scale_at(row, column / HD_ROW_BLOCK, args.columns / HD_ROW_BLOCK)] =
            (uint8_t)(is_live ? scale : 0);
    }
}

/* One thread per block of 32 down a column, contiguous in the transposed matrix. */
HD_KERNEL(pack_columns, 128, hd_pack)
{
    const uint64_t column = (uint64_t)hd_block_x() * hd_threads() + hd_thread();
    const uint64_t row = (uint64_t)hd_block_y() * HD_ROW_BLOCK, columns = args.columns;
    uint32_t scale = 0;
    if (column < columns && row < args.rows) {
        const uint16_t *from = args.source + row * columns + column;
        struct hd_words *to = (struct hd_words *)(void *)(args.data + column * args.rows + row);
        uint16_t value[HD_ROW_BLOCK];
        uint32_t largest = 0;
        HD_UNROLL
        for (uint32_t i = 0; i < HD_ROW_BLOCK; i++) {
            value[i] = from[i * columns];
            const uint32_t magnitude = magnitude_of(value[i]);
            largest = magnitude > largest ? magnitude : largest;
        }
        scale = scale_of(largest, args.scale_rule);
        HD_UNROLL
        for (uint32_t half = 0; half < 2; half++) {
            struct hd_words words = {{0, 0, 0, 0}};
            HD_UNROLL
            for (uint32_t i = 0; i < 16; i++) {
                words.word[i / 4] |= element_of(hd_f32_of(value[16 * half + i]), scale)
                                     << (8 * (i % 4));
            }
            to[half] = words;
        }
    }
    args.scales[hd_scale_at(column, hd_block_y(), args.rows / HD_ROW_BLOCK)] = (uint8_t)scale;
}

/* --- both images of a source, for the emulated GEMMs ------------------------------------------ */

HD_INLINE uint16_t image_of(uint16_t bits, uint32_t scale)
{
    return hd_bf16_of(element_value(element_of(hd_f32_of(bits), scale)) * scale_value(scale));
}

/* One thread per column of the tile; the image is in the other half of shared memory. */
HD_INLINE void image_down(struct hd_image_shared *shared, uint32_t rounds_down)
{
    uint32_t largest = 0;
    for (uint32_t row = 0; row < HD_ROW_BLOCK; row++) {
        const uint32_t magnitude = magnitude_of(shared->source[row][hd_thread()]);
        largest = magnitude > largest ? magnitude : largest;
    }
    const uint32_t scale = scale_of(largest, rounds_down);
    for (uint32_t row = 0; row < HD_ROW_BLOCK; row++) {
        shared->image[row][hd_thread()] = image_of(shared->source[row][hd_thread()], scale);
    }
}

/* One thread per block along a row. */
HD_INLINE void image_along(struct hd_image_shared *shared, uint32_t rounds_down)
{
    const uint32_t row = hd_thread() % HD_ROW_BLOCK;
    const uint32_t first = hd_thread() / HD_ROW_BLOCK * HD_ROW_BLOCK;
    uint32_t largest = 0;
    for (uint32_t i = 0; i < HD_ROW_BLOCK; i++) {
        const uint32_t magnitude = magnitude_of(shared->source[row][first + i]);
        largest = magnitude > largest ? magnitude : largest;
    }
    const uint32_t scale = scale_of(largest, rounds_down);
    for (uint32_t i = 0; i < HD_ROW_BLOCK; i++) {
        shared->image[row][first + i] = image_of(shared->source[row][first + i], scale);
    }
}

HD_INLINE void store_image(const struct hd_image_shared *shared, uint16_t *to, uint64_t columns,
                           uint32_t live_columns)
{
    for (uint32_t row = 0; row < HD_ROW_BLOCK && hd_thread() < live_columns; row++) {
        to[row * columns + hd_thread()] = shared->image[row][hd_thread()];
    }
}

/* A tile of 32 rows and 128 columns.  It is read as a whole before an image is written, because an
   image may overwrite the source. */
HD_KERNEL(image, 128, hd_image_args)
{
    HD_SHARED(hd_image_shared, shared);
    const uint64_t row = (uint64_t)hd_block_y() * HD_ROW_BLOCK, columns = args.columns;
    const uint64_t column = (uint64_t)hd_block_x() * HD_IMAGE_COLUMNS;
    const uint64_t first = row * columns + column;
    const uint32_t left = (uint32_t)(columns - column);
    const uint32_t live = left < HD_IMAGE_COLUMNS ? left : HD_IMAGE_COLUMNS;
    if (row >= rows_there(args.row_limit, args.rows)) {
        return;
    }
    for (uint32_t i = 0; i < HD_ROW_BLOCK; i++) {
        const uint16_t *from = (const uint16_t *)args.source + first + i * columns;
        shared->source[i][hd_thread()] = hd_thread() < live ? from[hd_thread()] : (uint16_t)0;
    }
    hd_sync();
    if (args.rowwise != NULL) {
        image_along(shared, args.scale_rule);
        hd_sync();
        store_image(shared, (uint16_t *)args.rowwise + first, columns, live);
        hd_sync();
    }
    if (args.columnwise != NULL) {
        image_down(shared, args.scale_rule);
        hd_sync();
        store_image(shared, (uint16_t *)args.columnwise + first, columns, live);
    }
}
