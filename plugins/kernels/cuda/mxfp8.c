/*
 * plugins/kernels/cuda/mxfp8.c - dense products of MXFP8 operands by the device's own instruction.
 *
 *              a of ours      b of ours      packed, contraction contiguous
 *   FPROP      [m, k] rows    [n, k] rows    [m, k]  [n, k]
 *   DGRAD      [m, n] rows    [n, k] down    [m, n]  [k, n]
 *   WGRAD      [m, n] down    [m, k] down    [n, m]  [k, m]
 *
 * Once packed, all three are the product A B^T that cuBLASLt computes, so there is one kind of
 * plan.  Blocks along a column cannot be derived from blocks along a row, so a transposed operand
 * is quantised from its source.
 *
 * An operand is in scratch from its packing to its product.  So are weights, which costs a pass
 * over them for each product, but no memory.
 */
#include "device.h"

#include <assert.h>

/* --- native or emulated ----------------------------------------------------------------------- */

const char *hd_cuda_mxfp8_missing(const struct hd_cuda_mxfp8_facts *facts)
{
    if (facts->experts > 0) {
        return "only the device knows the row counts of experts, and cuBLASLt reads them on the "
               "host";
    }
    if (!facts->has_cublaslt) {
        return "kernel.cuda.products is own, and our own kernels do not support MXFP8";
    }
    if (facts->capability < HD_CUDA_MXFP8_CAPABILITY_MIN) {
        return "the device does not support products in MXFP8: they need compute capability 10.0";
    }
    if (facts->algorithm_count < HD_CUDA_FORM_COUNT) {
        return "cuBLASLt does not have an MXFP8 algorithm for each of the three products of a "
               "weight";
    }
    return NULL;
}

enum hd_cuda_way hd_cuda_mxfp8_way(enum hd_cuda_wish wish, const char *missing)
{
    if (missing != NULL) {
        return wish == HD_CUDA_WISH_NATIVE ? HD_CUDA_WAY_REFUSED : HD_CUDA_WAY_EMULATED;
    }
    return wish == HD_CUDA_WISH_EMULATED ? HD_CUDA_WAY_EMULATED : HD_CUDA_WAY_NATIVE;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Parts start on 256 bytes; cuBLASLt needs 16 for data and scales. */
static uint64_t cuda_packed_bytes(uint64_t outer, uint64_t depth)
{
    return hd_cuda_part_bytes(outer * depth) +
           hd_cuda_part_bytes(hd_scale_bytes(outer, depth / HD_ROW_BLOCK));
}

static uint64_t cuda_product_bytes(uint64_t rows, uint64_t columns, uint64_t depth)
{
    return cuda_packed_bytes(rows, depth) + cuda_packed_bytes(columns, depth);
}

static uint64_t cuda_larger(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

/* The three products of y = x W^T, with W [rows, columns]. */
static uint64_t cuda_weight_bytes(uint64_t tokens, uint64_t rows, uint64_t columns)
{
    return cuda_larger(cuda_larger(cuda_product_bytes(tokens, rows, columns),
                                   cuda_product_bytes(tokens, columns, rows)),
                       cuda_product_bytes(rows, columns, tokens));
}

uint64_t hd_cuda_mxfp8_bytes(const struct hd_stage_spec *spec)
{
    const uint64_t tokens = (uint64_t)spec->batch * spec->sequence;
    if (spec->precision != HD_PRECISION_MXFP8 || spec->experts > 0) {
        return 0;
    }
    return cuda_larger(cuda_weight_bytes(tokens, 2ull * spec->expert_width, spec->width),
                       cuda_weight_bytes(tokens, spec->width, spec->expert_width));
}

/* --- a product -------------------------------------------------------------------------------- */

/* Replaces `matrix` by its packed form: [rows, columns], or transposed [columns, rows]. */
static hd_status cuda_pack(struct hd_ops_device *device, struct hd_cuda_arena *arena,
                           struct hd_matrix *matrix, const struct hd_pack *how, bool is_transposed)
{
    const uint32_t outer = is_transposed ? matrix->columns : matrix->rows;
    const uint32_t depth = is_transposed ? matrix->rows : matrix->columns;
    const uint32_t inner = depth / HD_ROW_BLOCK;
    const uint32_t padded_outer = hd_cuda_blocks(outer, HD_SCALE_OUTER) * HD_SCALE_OUTER;
    const uint32_t across = hd_cuda_blocks(inner, HD_SCALE_INNER);
    struct hd_pack args = *how;
    assert(matrix->rows % HD_ROW_BLOCK == 0 && matrix->columns % HD_ROW_BLOCK == 0);
    args.source = matrix->data;
    args.rows = matrix->rows;
    args.columns = matrix->columns;
    args.data = hd_cuda_take(arena, (uint64_t)outer * depth);
    args.scales = hd_cuda_take(arena, hd_scale_bytes(outer, inner));
    *matrix = (struct hd_matrix){args.data, args.scales, HD_E4M3, outer, depth};
    return is_transposed
               ? device->launch(device, HD_CUDA_pack_columns,
                                (struct hd_cuda_grid){padded_outer / HD_SCALE_OUTER,
                                                      across * HD_SCALE_INNER, 1},
                                &args)
               : device->launch(device, HD_CUDA_pack_rows,
                                (struct hd_cuda_grid){across, padded_outer / HD_PACK_ROWS, 1},
                                &args);
}

hd_status hd_cuda_gemm_mxfp8(struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    struct hd_cuda_arena arena = device->scratch;
    const struct hd_pack how = {.scale_rule = args->scale_rule};
    struct hd_gemm_args product = *args;
    if (device->has_mxfp8 == NULL || !device->has_mxfp8(device, args)) {
        return HD_BUSY;
    }
    HD_TRY(cuda_pack(device, &arena, &product.a, &how, args->form == HD_WGRAD));
    HD_TRY(cuda_pack(device, &arena, &product.b, &how, args->form != HD_FPROP));
    product.form = HD_FPROP;
    if (args->form == HD_WGRAD) {
        product.add = args->c;
    }
    return device->multiply(device, &product);
}
