/*
 * test_mxfp8_packed.c - operands of block-scaled products, byte for byte, by the plugin cuda's
 * kernels, emulated.
 *
 * A product is asked for in each form, and what reaches cuBLASLt is looked at: the elements are
 * those of the reference's quantiser (test_mxfp8.c holds it against the vectors), along the
 * contraction, which is contiguous; scales lie in their tiles, padding is zero, and nothing is
 * written behind either.
 */
#include "base/bf16.h"
#include "base/memory.h"
#include "support/check.h"
#include "tests/standin/device/emulated.h"

#include <math.h>
#include <string.h>

extern const struct hd_ops reference_ops_bf16;

enum { SCRATCH_BYTES = 4 << 20, UNSET = 0xA5 };

static uint64_t draw(uint64_t value)
{
    value = (value + 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
    return (value ^ (value >> 29)) * 0x94d049bb133111ebull;
}

/* From 2^-140 to 2^120, and now and then what is not finite. */
static uint16_t drawn(uint64_t index)
{
    const uint64_t bits = draw(index);
    const uint64_t odd = bits >> 52;
    const float value = (float)((int64_t)(bits >> 24 & 0xffff) - 0x8000) / 0x8000;
    if (odd < 2) {
        return hd_bf16_from_float(odd ? INFINITY : NAN);
    }
    return hd_bf16_from_float(ldexpf(value, (int)(draw(index / 64) % 260) - 140));
}

static struct hd_matrix drawn_matrix(uint32_t rows, uint32_t columns, uint64_t seed)
{
    const uint64_t count = (uint64_t)rows * columns;
    uint16_t *data = hd_memory_take(count * sizeof *data, 256, "test");
    for (uint64_t i = 0; i < count; i++) {
        data[i] = drawn(seed + i);
    }
    return (struct hd_matrix){.data = data, .dtype = HD_BF16, .rows = rows, .columns = columns};
}

/* --- what there should be --------------------------------------------------------------------- */

/* The operand as it is contracted: [outer, depth]. */
static uint16_t *contracted(const struct hd_matrix *matrix, int is_turned)
{
    const uint64_t rows = matrix->rows, columns = matrix->columns;
    uint16_t *to = hd_memory_take(rows * columns * sizeof *to, 64, "test");
    const uint16_t *from = matrix->data;
    for (uint64_t i = 0; i < rows * columns; i++) {
        to[is_turned ? i % columns * rows + i / columns : i] = from[i];
    }
    return to;
}

struct packed {
    uint8_t *data, *scales; /* [outer, depth] and [outer, depth / 32] */
    uint32_t outer, depth;
};

static struct packed expected(const struct hd_matrix *matrix, int is_turned, uint32_t rule)
{
    const uint32_t outer = is_turned ? matrix->columns : matrix->rows;
    const uint32_t depth = is_turned ? matrix->rows : matrix->columns;
    const uint64_t count = (uint64_t)outer * depth;
    const struct packed packed = {hd_memory_take(count, 64, "test"),
                                  hd_memory_take(count / 32, 64, "test"), outer, depth};
    uint16_t *source = contracted(matrix, is_turned);
    const struct hd_quantise_args args = {
        .source = source,
        .rowwise = {packed.data, packed.scales, HD_E4M3, outer, depth},
        .rows = outer,
        .columns = depth,
        .scale_rule = rule};
    CU_ASSERT_EQUAL(reference_ops_bf16.quantise(NULL, &args), HD_OK);
    hd_memory_give(source);
    return packed;
}

/* Every byte of the tiles, in the order in which they lie: tiles along the contraction, then down;
   within a tile 32 lines of four quarters of four blocks. */
static void expect_scales(const uint8_t *made, const struct packed *right)
{
    const uint32_t inner_count = right->depth / 32;
    for (uint32_t down = 0; down < right->outer; down += 128) {
        for (uint32_t across = 0; across < inner_count; across += 4) {
            for (uint32_t byte = 0; byte < 512; byte++, made++) {
                const uint32_t outer = down + byte / 16 + byte / 4 % 4 * 32;
                const uint32_t inner = across + byte % 4;
                const int is_there = outer < right->outer && inner < inner_count;
                CU_ASSERT_EQUAL(*made, is_there ? right->scales[outer * inner_count + inner] : 0);
            }
        }
    }
}

static void expect_packed(const struct hd_matrix *made, const struct packed *right)
{
    const uint64_t count = (uint64_t)right->outer * right->depth;
    CU_ASSERT_EQUAL(made->dtype, HD_E4M3);
    CU_ASSERT_EQUAL(made->rows, right->outer);
    CU_ASSERT_EQUAL_FATAL(made->columns, right->depth);
    CU_ASSERT_EQUAL(memcmp(made->data, right->data, count), 0);
    CU_ASSERT_EQUAL((uintptr_t)made->data % 16, 0);
    CU_ASSERT_EQUAL((uintptr_t)made->scales % 16, 0);
    expect_scales(made->scales, right);
}

/* --- products --------------------------------------------------------------------------------- */

static struct hd_gemm_args given, asked;
static unsigned asked_count;

static bool serves(const struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    (void)device, (void)args;
    return 1;
}

static bool serves_not(const struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    (void)device, (void)args;
    return 0;
}

/* In place of cuBLASLt. */
static hd_status look(struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    struct packed a = expected(&given.a, given.form == HD_WGRAD, given.scale_rule);
    struct packed b = expected(&given.b, given.form != HD_FPROP, given.scale_rule);
    (void)device;
    expect_packed(&args->a, &a);
    expect_packed(&args->b, &b);
    CU_ASSERT_EQUAL(args->b.scales[hd_scale_bytes(b.outer, b.depth / 32)], UNSET);
    hd_memory_give(a.data);
    hd_memory_give(a.scales);
    hd_memory_give(b.data);
    hd_memory_give(b.scales);
    asked = *args;
    asked_count++;
    return HD_OK;
}

struct size {
    const char *name;
    uint32_t rows, columns, tokens; /* of the weight, and of x */
};

static const struct size sizes[] = {
    {"one block each way", 32, 32, 32},
    {"tiles that are full", 128, 256, 128},
    {"tiles with a rest of each kind", 160, 96, 288},
};

static void pack_form(const struct size *size, uint32_t form, uint32_t rule)
{
    static float result[1];
    const uint32_t depth = form == HD_DGRAD ? size->rows : size->columns;
    char *scratch = hd_memory_take(SCRATCH_BYTES, 256, "scratch");
    struct hd_ops_device device = hd_emulated_device(scratch, SCRATCH_BYTES);
    memset(scratch, UNSET, SCRATCH_BYTES);
    device.multiply = look;
    device.has_mxfp8 = serves;
    given = (struct hd_gemm_args){
        .a = drawn_matrix(size->tokens, form == HD_WGRAD ? size->rows : depth, 100),
        .b = form == HD_WGRAD ? drawn_matrix(size->tokens, size->columns, 900000)
                              : drawn_matrix(size->rows, size->columns, 900000),
        .c = {.data = result, .dtype = form == HD_WGRAD ? HD_F32 : HD_BF16},
        .form = form,
        .is_mxfp8 = 1,
        .scale_rule = rule};
    asked_count = 0;
    CU_ASSERT_EQUAL(hd_cuda_ops.gemm(&device, &given), HD_OK);
    CU_ASSERT_EQUAL_FATAL(asked_count, 1);
    CU_ASSERT_EQUAL(asked.form, HD_FPROP);
    CU_ASSERT_EQUAL(asked.c.data, result);
    CU_ASSERT_EQUAL(asked.add.data, form == HD_WGRAD ? (void *)result : NULL);
    hd_memory_give(given.a.data);
    hd_memory_give(given.b.data);
    hd_memory_give(scratch);
}

static void test_packed(void)
{
    for (unsigned i = 0; i < HD_CHECK_COUNT(sizes); i++) {
        for (uint32_t form = HD_FPROP; form <= HD_WGRAD; form++) {
            pack_form(&sizes[i], form, i % 2);
        }
    }
}

/* What is not served is not packed: the stage program emulates it. */
static void test_not_served(void)
{
    struct hd_ops_device device = hd_emulated_device(NULL, 0);
    const struct hd_gemm_args args = {.is_mxfp8 = 1};
    device.multiply = look;
    asked_count = 0;
    CU_ASSERT_EQUAL(hd_cuda_ops.gemm(&device, &args), HD_BUSY);
    device.has_mxfp8 = serves_not;
    CU_ASSERT_EQUAL(hd_cuda_ops.gemm(&device, &args), HD_BUSY);
    CU_ASSERT_EQUAL(asked_count, 0);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"emulated: packed operands have the quantiser's bytes, in every form", test_packed},
        {"what is not served is left to the stage program", test_not_served},
    };
    return hd_check_main("mxfp8_packed", checks, HD_CHECK_COUNT(checks));
}
