/*
 * plugins/kernels/transformer/mxfp8.c - the feed-forward's products in MXFP8, emulated in BF16.
 *
 * An E4M3 element times a power of two is a BF16 number, so the product of two quantised operands
 * is the BF16 product of their values.  Blocks run along the contraction, and an operand that is
 * contracted in two ways has two images of the same BF16 source:
 *
 *   FPROP  gate_up = rows W^T       rows along d     W_gate_up along d
 *          y = h W_down^T           h along f        W_down along f
 *   DGRAD  e = dz W_down            dz along d       W_down down d
 *          drows = dgate_up W       dgate_up along f W_gate_up down f
 *   WGRAD  dW_down += dz^T h        dz down rows     weighted down rows
 *          dW += dgate_up^T rows    dgate_up down    rows (of the payload, exact) down rows
 *
 * This table is for experts.  In a dense block x takes the place of rows, and every product gets
 * its operands unquantised: the device quantises and multiplies them, or their images (those of
 * the weights too) are made here for each product.
 *
 * Everything else keeps its type.  Sources: the report, section 6.4; OCP Microscaling 1.0.
 */
#include "mxfp8.h"

#include "remote_stage.h"

#include <assert.h>

uint64_t hd_row_count(const struct hd_block *block)
{
    const int32_t *offsets = block->saved.offsets;
    return hd_is_remote() ? block->stage->layout.row_max
                          : (uint64_t)offsets[block->stage->spec.experts];
}

static const int32_t *mxfp8_row_limit(const struct hd_block *block)
{
    const int32_t *offsets = block->saved.offsets;
    return hd_is_remote() ? offsets + block->stage->spec.experts : NULL;
}

static struct hd_matrix mxfp8_matrix(void *data, void *scales, uint64_t rows, uint64_t columns)
{
    struct hd_matrix matrix = hd_matrix_of(data, HD_E4M3, rows, columns);
    matrix.scales = scales;
    return matrix;
}

static hd_status mxfp8_dequantise(const struct hd_stage *stage, struct hd_quantise_args args,
                                  void *target)
{
    args.target = target;
    return target == NULL ? HD_OK : stage->ops->dequantise(stage->kernel->device, &args);
}

/* 32 rows: both images are made before either is written, because one may overwrite the source. */
static hd_status mxfp8_round_slab(const struct hd_stage *stage, const struct hd_rounding *slab)
{
    uint8_t *const quantised = stage->work.slab;
    const uint64_t columns = slab->columns, count = HD_ROW_BLOCK * columns;
    const struct hd_quantise_args args = {
        .source = slab->source,
        .rowwise = mxfp8_matrix(slab->rowwise ? quantised : NULL, quantised + 2 * count,
                                HD_ROW_BLOCK, columns),
        .columnwise = mxfp8_matrix(slab->columnwise ? quantised + count : NULL,
                                   quantised + 2 * count + columns, HD_ROW_BLOCK, columns),
        .rows = HD_ROW_BLOCK,
        .columns = (uint32_t)columns,
        .scale_rule = stage->spec.scale_rule};
    struct hd_quantise_args rowwise = args, columnwise = args;
    rowwise.columnwise.data = NULL;
    columnwise.rowwise.data = NULL;
    HD_TRY(stage->ops->quantise(stage->kernel->device, &args));
    HD_TRY(mxfp8_dequantise(stage, rowwise, slab->rowwise));
    return mxfp8_dequantise(stage, columnwise, slab->columnwise);
}

static void *mxfp8_advance(void *data, uint64_t bytes)
{
    return data == NULL ? NULL : (char *)data + bytes;
}

/* Both images at once, by an op of its own. */
static hd_status mxfp8_make_images(const struct hd_stage *stage, const struct hd_rounding *rounding)
{
    const struct hd_image_args args = {.source = rounding->source,
                                       .rowwise = rounding->rowwise,
                                       .columnwise = rounding->columnwise,
                                       .rows = rounding->rows,
                                       .columns = rounding->columns,
                                       .scale_rule = stage->spec.scale_rule,
                                       .row_limit = rounding->row_limit};
    return stage->ops->image(stage->kernel->device, &args);
}

hd_status hd_round(const struct hd_stage *stage, const struct hd_rounding *rounding)
{
    if (stage->ops->image != NULL) {
        return mxfp8_make_images(stage, rounding);
    }
    const uint64_t slab_bytes = HD_ROW_BLOCK * rounding->columns * stage->layout.activation_bytes;
    struct hd_rounding slab = *rounding;
    assert(rounding->rows % HD_ROW_BLOCK == 0 && rounding->columns % HD_ROW_BLOCK == 0);
    for (uint64_t row = 0; row < rounding->rows; row += HD_ROW_BLOCK) {
        HD_TRY(mxfp8_round_slab(stage, &slab));
        slab.source = mxfp8_advance(slab.source, slab_bytes);
        slab.rowwise = mxfp8_advance(slab.rowwise, slab_bytes);
        slab.columnwise = mxfp8_advance(slab.columnwise, slab_bytes);
    }
    return HD_OK;
}

/* --- rows of experts -------------------------------------------------------------------------- */

hd_status hd_round_rows(const struct hd_block *block, struct hd_rounding rounding)
{
    rounding.rows = hd_row_count(block);
    rounding.row_limit = mxfp8_row_limit(block);
    return hd_round(block->stage, &rounding);
}

static struct hd_quantise_args mxfp8_saved_rows(const struct hd_block *block)
{
    const struct hd_stage *stage = block->stage;
    const uint64_t rows = hd_row_count(block), width = stage->spec.width;
    assert(rows <= stage->layout.row_max);
    return (struct hd_quantise_args){
        .rowwise = mxfp8_matrix(block->saved.rows, block->saved.scales, rows, width),
        .rows = (uint32_t)rows,
        .columns = (uint32_t)width,
        .scale_rule = stage->spec.scale_rule,
        .row_limit = mxfp8_row_limit(block)};
}

hd_status hd_store_rows(const struct hd_block *block, const void *source)
{
    struct hd_quantise_args args = mxfp8_saved_rows(block);
    args.source = source;
    return block->stage->ops->quantise(block->stage->kernel->device, &args);
}

hd_status hd_load_rows(const struct hd_block *block, void *target)
{
    return mxfp8_dequantise(block->stage, mxfp8_saved_rows(block), target);
}

/* --- a dense product -------------------------------------------------------------------------- */

/* Replaces `matrix` by its image along the rows or down the columns, made in scratch. */
static hd_status mxfp8_take_image(const struct hd_stage *stage, struct hd_matrix *matrix,
                                  void *image, bool is_columnwise)
{
    const struct hd_rounding rounding = {.source = matrix->data,
                                         .rowwise = is_columnwise ? NULL : image,
                                         .columnwise = is_columnwise ? image : NULL,
                                         .rows = matrix->rows,
                                         .columns = matrix->columns};
    matrix->data = image;
    return hd_round(stage, &rounding);
}

hd_status hd_gemm_mxfp8(const struct hd_stage *stage, const struct hd_gemm_args *args)
{
    struct hd_gemm_args product = *args;
    hd_status status = HD_BUSY;
    if (stage->ops->native_mxfp8) {
        product.is_mxfp8 = 1;
        product.scale_rule = stage->spec.scale_rule;
        status = stage->ops->gemm(stage->kernel->device, &product);
    }
    if (status != HD_BUSY) {
        return status;
    }
    product.is_mxfp8 = 0;
    HD_TRY(mxfp8_take_image(stage, &product.a, stage->work.image_a, args->form == HD_WGRAD));
    HD_TRY(mxfp8_take_image(stage, &product.b, stage->work.image_b, args->form != HD_FPROP));
    return stage->ops->gemm(stage->kernel->device, &product);
}
