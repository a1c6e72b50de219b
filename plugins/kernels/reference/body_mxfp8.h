/*
 * plugins/kernels/reference/body_mxfp8.h - blocks of 32 elements with one scale (see body.h).
 *
 *   element  E4M3: sign, 4 bits of exponent (bias 7), 3 of fraction; 7F and FF are NaN
 *   scale    E8M0: 2^(byte - 127), FF is NaN; there is no zero
 *   value    scale x element
 *
 * The scale of a block: let its largest magnitude be 1.f x 2^e.  Divided by 448 = 1.75 x 2^8, the
 * largest element, and rounded up to a power of two, it is 2^(e - 8), or twice that if 1.f is above
 * 1.75.  So the fields of the float give the scale exactly.  Rounded down (scale rule 1, of the
 * sample of OCP) it is always 2^(e - 8), and elements may saturate.
 *
 * Sources: OCP Microscaling Formats 1.0, sections 5.3, 5.4 and 6.3; Mishra et al. 2025
 * (arXiv:2506.08027) for rounding up.
 */

enum { SCALE_NAN = 0xFF, ELEMENT_NAN = 0x7F };

#define INFINITE_BITS 0x7f800000u
#define LARGEST_BITS  0x43e00000u /* 448 */
#define NORMAL_BITS   0x3c800000u /* 2^-6, the least element with a leading one */

static uint32_t mxfp8_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float mxfp8_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint8_t mxfp8_scale_of(const float block[HD_ROW_BLOCK], uint32_t rounds_down)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < HD_ROW_BLOCK; i++) {
        const uint32_t magnitude = mxfp8_bits_of(block[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest >= INFINITE_BITS) {
        return SCALE_NAN;
    }
    const uint32_t is_above = !rounds_down && (largest & 0x7fffffu) > 0x600000u;
    const uint32_t exponent = (largest >> 23) + is_above;
    return (uint8_t)(exponent > 8 ? exponent - 8 : 0);
}

/* To nearest even, saturating.  The product is exact, or far below the least element. */
static uint8_t mxfp8_element_of(float value, uint8_t scale)
{
    const float scaled = value * mxfp8_float_of((254u - scale) << 23);
    const uint32_t sign = mxfp8_bits_of(scaled) >> 24 & 0x80u;
    uint32_t magnitude = mxfp8_bits_of(scaled) & 0x7fffffffu;
    magnitude = magnitude > LARGEST_BITS ? LARGEST_BITS : magnitude;
    if (magnitude < NORMAL_BITS) {
        /* One unit in the last place of 2^14 is 2^-9, the least element: the sum rounds to it. */
        const float sum = mxfp8_float_of(magnitude) + 16384.0f;
        return (uint8_t)(sign | (mxfp8_bits_of(sum) - mxfp8_bits_of(16384.0f)));
    }
    const uint32_t rounded = (magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20;
    return (uint8_t)(sign | (rounded - (120u << 3)));
}

static float mxfp8_scale_value(uint8_t scale)
{
    if (scale == SCALE_NAN) {
        return mxfp8_float_of(0x7fc00000u);
    }
    return mxfp8_float_of(scale == 0 ? 0x00400000u : (uint32_t)scale << 23);
}

static float mxfp8_element_value(uint8_t element)
{
    const uint32_t magnitude = element & 0x7fu;
    float value = (float)(magnitude & 7u) / 512;
    if (magnitude == ELEMENT_NAN) {
        value = mxfp8_float_of(0x7fc00000u);
    } else if (magnitude >= 8) {
        value = mxfp8_float_of((magnitude << 20) + (120u << 23));
    }
    return element & 0x80u ? -value : value;
}

/* One block: `step` elements from one to the next. */
struct block {
    size_t first, step;
};

static uint8_t mxfp8_quantise_block(const struct hd_quantise_args *args, struct block block,
                                    uint8_t *elements)
{
    const act *source = (const act *)args->source + block.first;
    float values[HD_ROW_BLOCK];
    for (size_t i = 0; i < HD_ROW_BLOCK; i++) {
        values[i] = (float)load(source[i * block.step]);
    }
    const uint8_t scale = mxfp8_scale_of(values, args->scale_rule);
    for (size_t i = 0; i < HD_ROW_BLOCK; i++) {
        elements[block.first + i * block.step] =
            scale == SCALE_NAN ? (uint8_t)ELEMENT_NAN : mxfp8_element_of(values[i], scale);
    }
    return scale;
}

static hd_status reference_quantise(struct hd_ops_device *device,
                                    const struct hd_quantise_args *args)
{
    const size_t columns = args->columns, wide = columns / HD_ROW_BLOCK;
    (void)device;
    assert(columns % HD_ROW_BLOCK == 0);
    for (size_t i = 0; args->rowwise.data != NULL && i < args->rows * wide; i++) {
        const struct block block = {i * HD_ROW_BLOCK, 1};
        args->rowwise.scales[i] = mxfp8_quantise_block(args, block, args->rowwise.data);
    }
    assert(args->columnwise.data == NULL || args->rows % HD_ROW_BLOCK == 0);
    for (size_t i = 0; args->columnwise.data != NULL && i < args->rows / HD_ROW_BLOCK * columns;
         i++) {
        const struct block block = {i / columns * HD_ROW_BLOCK * columns + i % columns, columns};
        args->columnwise.scales[i] = mxfp8_quantise_block(args, block, args->columnwise.data);
    }
    return HD_OK;
}

static hd_status reference_dequantise(struct hd_ops_device *device,
                                      const struct hd_quantise_args *args)
{
    const bool is_rowwise = args->rowwise.data != NULL;
    const struct hd_matrix *from = is_rowwise ? &args->rowwise : &args->columnwise;
    const size_t columns = args->columns, count = args->rows * columns;
    (void)device;
    assert(columns % HD_ROW_BLOCK == 0);
    for (size_t i = 0; i < count; i++) {
        const size_t down = i / columns / HD_ROW_BLOCK * columns + i % columns;
        const size_t scale = is_rowwise ? i / HD_ROW_BLOCK : down;
        const float value = mxfp8_element_value(((const uint8_t *)from->data)[i]);
        ((act *)args->target)[i] = store(value * mxfp8_scale_value(from->scales[scale]));
    }
    return HD_OK;
}
