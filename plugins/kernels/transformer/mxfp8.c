/*
 * plugins/kernels/transformer/mxfp8.c - the feed-forward's products in MXFP8, emulated in BF16.
 *
 * An E4M3 element times a power of two is a BF16 number, so a product of two quantised operands is
 * the BF16 product of what they mean.  Blocks run along the contraction, and an operand that is
 * contracted in two ways has two images of the same BF16 source:
 *
 *   FPROP  gate_up = rows W^T       rows along d     W_gate_up along d
 *          y = h W_down^T           h along f        W_down along f
 *   DGRAD  e = dz W_down            dz along d       W_down down d
 *          drows = dgate_up W       dgate_up along f W_gate_up down f
 *   WGRAD  dW_down += dz^T h        dz down rows     weighted down rows
 *          dW += dgate_up^T rows    dgate_up down    rows (of the payload, exact) down rows
 *
 * So it is with experts.  In a dense block x takes the place of rows, from which both its images
 * are made, and every product has its operands as they are: the device quantises them and
 * multiplies, or their images are made here, the weights' too, for each product anew.
 *
 * Everything else keeps its type.  Sources: the report, section 6.4; OCP Microscaling 1.0.
 */
#include "mxfp8.h"
#include "remote_stage.h"

#include <assert.h>

int hd_is_mxfp8(const struct hd_stage *stage)
{
    return stage->layout.is_mxfp8 != 0;
}

uint64_t hd_row_count(const struct hd_frame *frame)
{
    const int32_t *offsets = hd_line_at(frame, HD_LINE_OFFSETS);
    return hd_is_remote() ? frame->stage->layout.row_max
                          : (uint64_t)offsets[frame->stage->spec.experts];
}

const int32_t *hd_row_limit(const struct hd_frame *frame)
{
    const int32_t *offsets = hd_line_at(frame, HD_LINE_OFFSETS);
    return hd_is_remote() ? offsets + frame->stage->spec.experts : NULL;
}

static struct hd_matrix transformer_quantised(void *data, void *scales, uint64_t rows,
                                              uint64_t columns)
{
    assert(rows <= UINT32_MAX && columns <= UINT32_MAX);
    return (struct hd_matrix){.data = data,
                              .scales = scales,
                              .dtype = HD_E4M3,
                              .rows = (uint32_t)rows,
                              .columns = (uint32_t)columns};
}

static hd_status transformer_dequantise(const struct hd_stage *stage, struct hd_quantise_args args,
                                        void *target)
{
    if (target == NULL) {
        return HD_OK;
    }
    args.target = target;
    return stage->ops->dequantise(stage->kernel->device, &args);
}

/* 32 rows: both images are made before either is written, since one may lie over the source. */
static hd_status transformer_round_slab(const struct hd_stage *stage,
                                        const struct hd_rounding *slab)
{
    uint8_t *const lines = hd_work_at(stage, HD_WORK_SLAB);
    const uint64_t columns = slab->columns, count = HD_ROW_BLOCK * columns;
    const struct hd_quantise_args args = {
        .source = slab->source,
        .rowwise = transformer_quantised(slab->rowwise ? lines : NULL, lines + 2 * count,
                                         HD_ROW_BLOCK, columns),
        .columnwise = transformer_quantised(slab->columnwise ? lines + count : NULL,
                                            lines + 2 * count + columns, HD_ROW_BLOCK, columns),
        .rows = HD_ROW_BLOCK,
        .columns = (uint32_t)columns,
        .scale_rule = stage->spec.scale_rule};
    struct hd_quantise_args rowwise = args, columnwise = args;
    rowwise.columnwise.data = NULL;
    columnwise.rowwise.data = NULL;
    hd_status status = stage->ops->quantise(stage->kernel->device, &args);
    if (status == HD_OK) {
        status = transformer_dequantise(stage, rowwise, slab->rowwise);
    }
    return status == HD_OK ? transformer_dequantise(stage, columnwise, slab->columnwise) : status;
}

static void *transformer_advance(void *data, uint64_t bytes)
{
    return data == NULL ? NULL : (char *)data + bytes;
}

/* Both images at once, by an op of its own. */
static hd_status transformer_make_images(const struct hd_stage *stage,
                                         const struct hd_rounding *rounding)
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
        return transformer_make_images(stage, rounding);
    }
    const uint64_t slab_bytes = HD_ROW_BLOCK * rounding->columns * stage->layout.activation_bytes;
    struct hd_rounding slab = *rounding;
    hd_status status = HD_OK;
    assert(rounding->rows % HD_ROW_BLOCK == 0 && rounding->columns % HD_ROW_BLOCK == 0);
    for (uint64_t row = 0; status == HD_OK && row < rounding->rows; row += HD_ROW_BLOCK) {
        status = transformer_round_slab(stage, &slab);
        slab.source = transformer_advance(slab.source, slab_bytes);
        slab.rowwise = transformer_advance(slab.rowwise, slab_bytes);
        slab.columnwise = transformer_advance(slab.columnwise, slab_bytes);
    }
    return status;
}

/* --- the dispatch payload --------------------------------------------------------------------- */

static struct hd_quantise_args transformer_rows_of(const struct hd_frame *frame)
{
    const struct hd_stage *stage = frame->stage;
    const uint64_t rows = hd_row_count(frame), width = stage->spec.width;
    assert(rows <= stage->layout.row_max);
    return (struct hd_quantise_args){
        .rowwise = transformer_quantised(hd_line_at(frame, HD_LINE_ROWS),
                                         hd_line_at(frame, HD_LINE_SCALES), rows, width),
        .rows = (uint32_t)rows,
        .columns = (uint32_t)width,
        .scale_rule = stage->spec.scale_rule,
        .row_limit = hd_row_limit(frame)};
}

hd_status hd_store_rows(const struct hd_frame *frame, const void *source)
{
    struct hd_quantise_args args = transformer_rows_of(frame);
    args.source = source;
    return frame->stage->ops->quantise(frame->stage->kernel->device, &args);
}

hd_status hd_load_rows(const struct hd_frame *frame, void *target)
{
    return transformer_dequantise(frame->stage, transformer_rows_of(frame), target);
}

/* --- a dense product -------------------------------------------------------------------------- */

/* Makes `matrix` its image along the rows or down the columns, in a line of scratch. */
static hd_status transformer_take_image(const struct hd_stage *stage, struct hd_matrix *matrix,
                                        enum hd_work line, int is_columnwise)
{
    void *const image = hd_work_at(stage, line);
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
    status = transformer_take_image(stage, &product.a, HD_WORK_IMAGE_A, args->form == HD_WGRAD);
    if (status == HD_OK) {
        status = transformer_take_image(stage, &product.b, HD_WORK_IMAGE_B, args->form != HD_FPROP);
    }
    return status == HD_OK ? stage->ops->gemm(stage->kernel->device, &product) : status;
}
