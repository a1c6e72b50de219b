/*
 * tests/test_mxfp8.c - blocks of 32, byte for byte, by every op table that this machine can run.
 *
 * The vectors (tests/golden/mxfp8_vectors.csv) were computed in exact fractions, apart from any
 * code here, and agree with NVIDIA's conversions.  What the bytes mean is held against arithmetic
 * on the format's definition (OCP Microscaling Formats 1.0).
 */
#include "base/bf16.h"
#include "base/memory.h"
#include "plugins/kernels/transformer/transformer.h"
#include "support/check.h"
#include "support/mxfp8_vectors.h"
#include "tests/standin/device/launch.h"
#ifdef HD_WITH_CPU
#include "plugins/kernels/cpu/device.h"
#endif

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 32, RULE_COUNT = 2, TABLE_MAX = 4 };

struct table {
    const char *name;
    const struct hd_ops *bf16, *f32; /* f32: NULL where it is not served */
};

extern const struct hd_ops reference_ops_bf16, reference_ops_f32, hd_cuda_ops;

static const struct hd_mxfp8_vector *vectors;
static unsigned vector_count;

static struct table tables[TABLE_MAX];
static unsigned table_count;

static void add_table(const char *name, const struct hd_ops *bf16, const struct hd_ops *f32)
{
    tables[table_count++] = (struct table){name, bf16, f32};
}

#ifdef HD_WITH_CPU
static void add_lanes(void)
{
    static const char *const names[] = {"plain", "avx512"};
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct hd_cpu_isa *isa = hd_cpu_isa(names[i]);
        if (isa != NULL) { /* what this processor has */
            add_table(isa->name, &isa->bf16, &isa->f32);
        }
    }
}
#endif

/* The op of a host needs no device; that of cuda an emulated one. */
static struct hd_ops_device *device_of(const struct hd_ops *ops)
{
    return ops == &hd_cuda_ops ? hd_emulated_bare() : NULL;
}

/* --- matrices --------------------------------------------------------------------------------- */

/* A source in the dtype of a table, and both copies of it. */
struct sheet {
    const struct hd_ops *ops;
    struct hd_quantise_args args;
    uint64_t count;
};

static struct sheet open_sheet(const struct hd_ops *ops, uint32_t rows, uint32_t columns)
{
    const uint64_t count = (uint64_t)rows * columns;
    const uint32_t down = (rows + BLOCK - 1) / BLOCK;
    struct sheet sheet = {.ops = ops, .count = count};
    sheet.args.rows = rows;
    sheet.args.columns = columns;
    sheet.args.source = hd_memory_take(count * sizeof(float), 64, "test");
    sheet.args.target = hd_memory_take(count * sizeof(float), 64, "test");
    sheet.args.rowwise = (struct hd_matrix){.data = hd_memory_take(count, 64, "test"),
                                            .scales = hd_memory_take(count / BLOCK, 64, "test"),
                                            .dtype = HD_E4M3,
                                            .rows = rows,
                                            .columns = columns};
    sheet.args.columnwise = sheet.args.rowwise;
    sheet.args.columnwise.data = hd_memory_take(count, 64, "test");
    sheet.args.columnwise.scales = hd_memory_take((uint64_t)down * columns, 64, "test");
    return sheet;
}

static void close_sheet(struct sheet *sheet)
{
    hd_memory_give((void *)(uintptr_t)sheet->args.source);
    hd_memory_give(sheet->args.target);
    hd_memory_give(sheet->args.rowwise.data);
    hd_memory_give(sheet->args.rowwise.scales);
    hd_memory_give(sheet->args.columnwise.data);
    hd_memory_give(sheet->args.columnwise.scales);
}

static void put(struct sheet *sheet, uint64_t at, float value)
{
    void *source = (void *)(uintptr_t)sheet->args.source;
    if (sheet->ops->activation == HD_BF16) {
        ((uint16_t *)source)[at] = hd_bf16_from_float(value);
    } else {
        ((float *)source)[at] = value;
    }
}

static float target_at(const struct sheet *sheet, uint64_t at)
{
    return sheet->ops->activation == HD_BF16
               ? hd_bf16_to_float(((const uint16_t *)sheet->args.target)[at])
               : ((const float *)sheet->args.target)[at];
}

static void quantise(struct sheet *sheet, uint32_t wants_columnwise, uint32_t rule)
{
    struct hd_quantise_args args = sheet->args;
    args.scale_rule = rule;
    if (!wants_columnwise) {
        args.columnwise.data = NULL;
    }
    CU_ASSERT_EQUAL(sheet->ops->quantise(device_of(sheet->ops), &args), HD_OK);
}

static uint8_t element_at(const struct hd_matrix *matrix, uint64_t at)
{
    return ((const uint8_t *)matrix->data)[at];
}

/* --- the vectors, by rows and by columns ------------------------------------------------------ */

static void check_rows(const struct table *table, const struct hd_ops *ops, uint32_t rule)
{
    if (ops == NULL) {
        return;
    }
    struct sheet sheet = open_sheet(ops, vector_count, BLOCK);
    unsigned compared = 0;
    for (unsigned i = 0; i < vector_count * BLOCK; i++) {
        put(&sheet, i, vectors[i / BLOCK].values[i % BLOCK]);
    }
    quantise(&sheet, 0, rule);
    for (unsigned i = 0; i < vector_count; i++) {
        const struct hd_mxfp8_vector *vector = &vectors[i];
        if (ops->activation == HD_BF16 && !vector->is_bf16) {
            continue;
        }
        const uint8_t *elements = (const uint8_t *)sheet.args.rowwise.data + (size_t)i * BLOCK;
        const int is_equal = sheet.args.rowwise.scales[i] == vector->scale[rule] &&
                             memcmp(elements, vector->elements[rule], BLOCK) == 0;
        if (!is_equal) {
            printf("\n    %s, rule %u: %s differs\n", table->name, rule, vector->name);
        }
        CU_ASSERT(is_equal);
        compared++;
    }
    CU_ASSERT(ops->activation == HD_BF16 ? compared > 100 : compared == 377);
    close_sheet(&sheet);
}

static void test_vectors_by_rows(void)
{
    for (unsigned i = 0; i < table_count * RULE_COUNT; i++) {
        check_rows(&tables[i / 2], tables[i / 2].f32, i % 2);
        check_rows(&tables[i / 2], tables[i / 2].bf16, i % 2);
    }
}

static void check_columns(const struct hd_ops *ops, uint32_t rule)
{
    if (ops == NULL) {
        return;
    }
    struct sheet sheet = open_sheet(ops, BLOCK, HD_MXFP8_VECTOR_MAX);
    for (uint64_t i = 0; i < BLOCK * HD_MXFP8_VECTOR_MAX; i++) {
        put(&sheet, i, vectors[i % HD_MXFP8_VECTOR_MAX].values[i / HD_MXFP8_VECTOR_MAX]);
    }
    quantise(&sheet, 1, rule);
    for (unsigned i = 0; i < vector_count; i++) {
        if (ops->activation == HD_BF16 && !vectors[i].is_bf16) {
            continue;
        }
        CU_ASSERT_EQUAL(sheet.args.columnwise.scales[i], vectors[i].scale[rule]);
        for (unsigned row = 0; row < BLOCK; row++) {
            const uint64_t at = (uint64_t)row * HD_MXFP8_VECTOR_MAX + i;
            CU_ASSERT_EQUAL(element_at(&sheet.args.columnwise, at), vectors[i].elements[rule][row]);
        }
    }
    close_sheet(&sheet);
}

static void test_vectors_by_columns(void)
{
    for (unsigned i = 0; i < table_count * RULE_COUNT; i++) {
        check_columns(tables[i / 2].f32, i % 2);
        check_columns(tables[i / 2].bf16, i % 2);
    }
}

/* --- any matrix: columns are rows of the transpose, all tables agree -------------------------- */

static uint64_t draw(uint64_t value)
{
    value = (value + 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
    return (value ^ (value >> 29)) * 0x94d049bb133111ebull;
}

/* From 2^-140 to 2^120, and now and then what is not finite. */
static float drawn(uint64_t index)
{
    const uint64_t bits = draw(index);
    const uint64_t odd = bits >> 54;
    if (odd < 2) {
        return odd ? INFINITY : NAN;
    }
    const float value = (float)((int64_t)(bits >> 24 & 0xffff) - 0x8000) / 0x8000;
    return ldexpf(value, (int)(draw(index / 64) % 260) - 140 + (int)(bits % 9));
}

enum { SIDE = 96, HEIGHT = 64 };

static void check_transpose(const struct hd_ops *ops, uint32_t rule)
{
    if (ops == NULL) {
        return;
    }
    struct sheet sheet = open_sheet(ops, HEIGHT, SIDE), turned = open_sheet(ops, SIDE, HEIGHT);
    for (uint64_t i = 0; i < sheet.count; i++) {
        put(&sheet, i, drawn(i));
        put(&turned, i % SIDE * HEIGHT + i / SIDE, drawn(i));
    }
    quantise(&sheet, 1, rule);
    quantise(&turned, 1, rule);
    for (uint64_t i = 0; i < sheet.count; i++) {
        const uint64_t row = i / SIDE, column = i % SIDE;
        CU_ASSERT_EQUAL(element_at(&sheet.args.columnwise, i),
                        element_at(&turned.args.rowwise, column * HEIGHT + row));
        CU_ASSERT_EQUAL(sheet.args.columnwise.scales[row / BLOCK * SIDE + column],
                        turned.args.rowwise.scales[column * (HEIGHT / BLOCK) + row / BLOCK]);
    }
    close_sheet(&sheet);
    close_sheet(&turned);
}

static void test_columns_are_rows_of_the_transpose(void)
{
    for (unsigned i = 0; i < table_count * RULE_COUNT; i++) {
        check_transpose(tables[i / 2].f32, i % 2);
        check_transpose(tables[i / 2].bf16, i % 2);
    }
}

/* Rows need no multiple of 32 where only they are blocks: 7 of them, by every table. */
static void check_agreement(const struct hd_ops *ops, const struct hd_ops *specification)
{
    if (ops == NULL) {
        return;
    }
    struct sheet sheet = open_sheet(ops, 7, SIDE), wanted = open_sheet(specification, 7, SIDE);
    for (uint64_t i = 0; i < sheet.count; i++) {
        put(&sheet, i, drawn(i + 5000));
        put(&wanted, i, drawn(i + 5000));
    }
    quantise(&sheet, 0, 0);
    quantise(&wanted, 0, 0);
    CU_ASSERT_EQUAL(memcmp(sheet.args.rowwise.data, wanted.args.rowwise.data, sheet.count), 0);
    CU_ASSERT_EQUAL(
        memcmp(sheet.args.rowwise.scales, wanted.args.rowwise.scales, sheet.count / BLOCK), 0);
    close_sheet(&sheet);
    close_sheet(&wanted);
}

static void test_tables_agree(void)
{
    CU_ASSERT_FATAL(table_count >= 1);
    for (unsigned i = 1; i < table_count; i++) {
        check_agreement(tables[i].f32, tables[0].f32);
        check_agreement(tables[i].bf16, tables[0].bf16);
    }
}

/* --- what the bytes mean ---------------------------------------------------------------------- */

/* By the definition, in double: sign, exponent of bias 7, three bits; no infinity. */
static double meaning_of(uint8_t element)
{
    const int exponent = element >> 3 & 15, fraction = element & 7;
    const double magnitude =
        exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10);
    return (element & 0x7f) == 0x7f ? NAN : element & 0x80 ? -magnitude : magnitude;
}

/* Every element under every scale, 8 rows of blocks a scale; `is_columnwise`: one down each
   column. */
static struct sheet decode_all(const struct hd_ops *ops, int is_columnwise)
{
    struct sheet sheet =
        is_columnwise ? open_sheet(ops, 256, 256) : open_sheet(ops, 256, 8 * BLOCK);
    struct hd_matrix *from = is_columnwise ? &sheet.args.columnwise : &sheet.args.rowwise;
    for (uint64_t i = 0; i < sheet.count; i++) {
        /* Rowwise: the row is the scale.  Columnwise: the column is. */
        ((uint8_t *)from->data)[i] = (uint8_t)(is_columnwise ? i / 256 : i % 256);
    }
    for (uint64_t i = 0; i < sheet.count / BLOCK; i++) {
        from->scales[i] = (uint8_t)(is_columnwise ? i % 256 : i / 8);
    }
    struct hd_quantise_args args = sheet.args;
    if (is_columnwise) {
        args.rowwise.data = NULL;
    } else {
        args.columnwise.data = NULL;
    }
    CU_ASSERT_EQUAL(ops->dequantise(device_of(ops), &args), HD_OK);
    return sheet;
}

static void check_decoded(const struct hd_ops *ops, int is_columnwise)
{
    if (ops == NULL) {
        return;
    }
    struct sheet sheet = decode_all(ops, is_columnwise);
    for (uint64_t i = 0; i < sheet.count; i++) {
        const int scale = (int)(is_columnwise ? i % 256 : i / 256);
        const uint8_t element = (uint8_t)(is_columnwise ? i / 256 : i % 256);
        const float wanted = scale == 255 ? NAN : (float)ldexp(meaning_of(element), scale - 127);
        const float got = target_at(&sheet, i);
        /* BF16 ends at 2^-133, so only there is an element rounded. */
        const int is_exact = ops->activation != HD_BF16 || scale >= 127 - 117;
        if (isnan(wanted)) {
            CU_ASSERT(isnan(got));
        } else if (is_exact) {
            CU_ASSERT_EQUAL(got, wanted);
            CU_ASSERT_EQUAL(signbit(got), signbit(wanted));
        }
    }
    close_sheet(&sheet);
}

static void test_every_byte_is_decoded(void)
{
    for (unsigned i = 0; i < table_count; i++) {
        check_decoded(tables[i].f32, 0);
        check_decoded(tables[i].f32, 1);
        check_decoded(tables[i].bf16, 0);
        check_decoded(tables[i].bf16, 1);
    }
}

/* A block of 32 ones under every scale byte: no zero, no infinity, one NaN. */
static void test_scales(void)
{
    for (unsigned i = 0; i < table_count; i++) {
        if (tables[i].f32 == NULL) {
            continue;
        }
        struct sheet sheet = decode_all(tables[i].f32, 0);
        unsigned nan_count = 0;
        for (unsigned scale = 0; scale < 256; scale++) {
            const float one = target_at(&sheet, scale * 256u + 0x38u);
            CU_ASSERT(scale == 255 || one == ldexpf(1, (int)scale - 127));
            CU_ASSERT_FALSE(isinf(one));
            CU_ASSERT_NOT_EQUAL(one, 0);
            nan_count += isnan(one) != 0;
        }
        CU_ASSERT_EQUAL(nan_count, 1);
        CU_ASSERT_EQUAL(target_at(&sheet, 134 * 256 + 0x38), 128.0f);
        CU_ASSERT_EQUAL(target_at(&sheet, 0x38), 0x1p-127f);
        CU_ASSERT(isinf(target_at(&sheet, 254 * 256 + 0x7e)));
        CU_ASSERT_EQUAL(target_at(&sheet, 254 * 256 + 0x38), 0x1p127f);
        close_sheet(&sheet);
    }
}

/* E4M3 keeps 1.125 beside 1.75, which two bits of fraction would not. */
static void test_three_bits_of_fraction(void)
{
    for (unsigned i = 0; i < table_count; i++) {
        if (tables[i].f32 == NULL) {
            continue;
        }
        struct sheet sheet = open_sheet(tables[i].f32, 1, BLOCK);
        for (unsigned at = 0; at < BLOCK; at++) {
            put(&sheet, at, at ? 1.125f : 1.75f);
        }
        quantise(&sheet, 0, 0);
        struct hd_quantise_args args = sheet.args;
        args.columnwise.data = NULL;
        CU_ASSERT_EQUAL(tables[i].f32->dequantise(NULL, &args), HD_OK);
        CU_ASSERT_EQUAL(target_at(&sheet, 0), 1.75f);
        CU_ASSERT_EQUAL(target_at(&sheet, 7), 1.125f);
        close_sheet(&sheet);
    }
}

static const struct hd_check checks[] = {
    {"the vectors, by rows, both scale rules", test_vectors_by_rows},
    {"the vectors, by columns, both scale rules", test_vectors_by_columns},
    {"columns are the rows of the transpose", test_columns_are_rows_of_the_transpose},
    {"every table gives the bytes of the specification", test_tables_agree},
    {"every element under every scale means what the format says", test_every_byte_is_decoded},
    {"C82, C83: scales 0, 254 and 255 are 2^-127, 2^127 and NaN", test_scales},
    {"C86: E4M3 keeps 1.125 beside 1.75", test_three_bits_of_fraction},
};

int main(void)
{
    add_table("reference", &reference_ops_bf16, &reference_ops_f32);
#ifdef HD_WITH_CPU
    add_lanes();
#endif
    add_table("cuda, emulated", &hd_cuda_ops, NULL);
    vectors = hd_mxfp8_vectors()->rows;
    vector_count = hd_mxfp8_vectors()->count;
    return hd_check_main("mxfp8", checks, HD_CHECK_COUNT(checks));
}
