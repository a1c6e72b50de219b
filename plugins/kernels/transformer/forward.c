/*
 * plugins/kernels/transformer/forward.c - F, and the same eight steps as evaluation.
 *
 *   x -> norm -> q k v -> norm, rope -> attention -> W_o, + x -> x1
 *   x1 -> norm -> route -> permute -> gate_up -> swiglu -> W_down -> combine, + x1
 *
 * Where a payload is given the lines that it keeps are filled; the others, and in an
 * evaluation all, lie in one section in scratch for block after block, and so have the
 * same bits.  What a recomputation makes again it makes by the same functions.
 */
#include "mxfp8.h"
#include "stage.h"

/* One step: leaves the function with the first status that is not OK. */
#define TRY(step)                       \
    do {                                \
        const hd_status tried = (step); \
        if (tried != HD_OK) {           \
            return tried;               \
        }                               \
    } while (0)

/* [xn] W^T -> one of q, k, v. */
static hd_status transformer_project(const struct hd_frame *frame, enum hd_weight weight,
                                     enum hd_line line)
{
    const struct hd_stage *stage = frame->stage;
    const uint64_t tokens = stage->layout.tokens;
    const struct hd_gemm_args args = {
        .a = hd_activation(stage, hd_work_at(stage, HD_WORK_XN), tokens, stage->spec.width),
        .b = hd_weight_matrix(frame, weight),
        .c = hd_activation(stage, hd_line_at(frame, line), tokens,
                           stage->layout.weights[weight].rows),
        .form = HD_FPROP};
    return stage->ops->gemm(stage->kernel->device, &args);
}

/* Steps 1 to 3: x -> x1. */
static hd_status transformer_attend(const struct hd_frame *frame, const void *x)
{
    const struct hd_stage *stage = frame->stage;
    const uint64_t tokens = stage->layout.tokens, width = stage->spec.width;
    TRY(hd_norm_rows(frame, HD_WEIGHT_NORM1, x, hd_work_at(stage, HD_WORK_XN),
                     hd_line_at(frame, HD_LINE_R1)));
    TRY(transformer_project(frame, HD_WEIGHT_Q, HD_LINE_Q));
    TRY(transformer_project(frame, HD_WEIGHT_K, HD_LINE_K));
    TRY(transformer_project(frame, HD_WEIGHT_V, HD_LINE_V));
    TRY(hd_rotate(frame));
    const struct hd_attention_args attention = hd_attention_of(frame);
    TRY(stage->ops->attention(stage->kernel->device, &attention));
    const struct hd_gemm_args output = {
        .a = hd_activation(stage, hd_line_at(frame, HD_LINE_O), tokens, width),
        .b = hd_weight_matrix(frame, HD_WEIGHT_O),
        .c = hd_activation(stage, hd_line_at(frame, HD_LINE_X1), tokens, width),
        .add = hd_activation(stage, x, tokens, width),
        .form = HD_FPROP};
    return stage->ops->gemm(stage->kernel->device, &output);
}

/* Steps 4 and 5, first half: which token goes where, and the rows that go.  In MXFP8 they are
   quantised on their way into the payload. */
static hd_status transformer_dispatch(const struct hd_frame *frame, double *terms)
{
    const struct hd_stage *stage = frame->stage;
    struct hd_route_args route = hd_route_of(frame);
    struct hd_rows_args rows = hd_rows_of(frame);
    route.balance = &terms[0];
    route.z = &terms[1];
    rows.x = hd_work_at(stage, HD_WORK_XN);
    void *target =
        hd_is_mxfp8(stage) ? hd_work_at(stage, HD_WORK_WIDE) : hd_line_at(frame, HD_LINE_ROWS);
    rows.rows = hd_activation(stage, target, stage->layout.row_max, stage->spec.width);
    TRY(stage->ops->route(stage->kernel->device, &route));
    TRY(stage->ops->assign(stage->kernel->device, &rows));
    TRY(stage->ops->permute(stage->kernel->device, &rows));
    return hd_is_mxfp8(stage) ? hd_store_rows(frame, target) : HD_OK;
}

/* Step 5, second half: rows (dense: [xn]) -> gate_up. */
static hd_status transformer_open_experts(const struct hd_frame *frame)
{
    const struct hd_stage *stage = frame->stage;
    const struct hd_stage_spec *spec = &stage->spec;
    const uint64_t rows = stage->layout.row_max;
    const void *input =
        spec->experts ? hd_line_at(frame, HD_LINE_ROWS) : hd_work_at(stage, HD_WORK_XN);
    if (hd_is_mxfp8(stage)) {
        void *wide = hd_work_at(stage, HD_WORK_WIDE);
        TRY(hd_load_rows(frame, wide));
        input = wide;
    }
    struct hd_gemm_args up = {.a = hd_activation(stage, input, rows, spec->width),
                              .b = hd_weight_matrix(frame, HD_WEIGHT_GATE_UP),
                              .c = hd_activation(stage, hd_line_at(frame, HD_LINE_GATE_UP), rows,
                                                 2ull * spec->expert_width),
                              .form = HD_FPROP};
    return hd_gemm_experts(frame, &up);
}

/* Step 6, first half: gate_up -> [h], as the next product reads it. */
static hd_status transformer_activate(const struct hd_frame *frame, void *h)
{
    const struct hd_stage *stage = frame->stage;
    struct hd_swiglu_args swiglu = hd_swiglu_of(frame);
    swiglu.h = h;
    TRY(stage->ops->swiglu(stage->kernel->device, &swiglu));
    if (!hd_is_mxfp8(stage)) {
        return HD_OK;
    }
    const struct hd_rounding rounding = {.source = h,
                                         .rowwise = h,
                                         .rows = hd_row_count(frame),
                                         .columns = stage->spec.expert_width,
                                         .row_limit = hd_row_limit(frame)};
    return hd_round(stage, &rounding);
}

/* Steps 5 to 7 of the experts: rows -> gate_up -> [h] -> [y] -> out.  Dense: the sum with x1 is in
   the last GEMM. */
static hd_status transformer_run_experts(const struct hd_frame *frame, void *out)
{
    const struct hd_stage *stage = frame->stage;
    const struct hd_stage_spec *spec = &stage->spec;
    const uint64_t rows = stage->layout.row_max, inner = spec->expert_width;
    const void *x1 = hd_line_at(frame, HD_LINE_X1);
    void *h = hd_work_at(stage, HD_WORK_E), *y = hd_work_at(stage, HD_WORK_WIDE);
    struct hd_gemm_args down = {
        .a = hd_activation(stage, h, rows, inner),
        .b = hd_weight_matrix(frame, HD_WEIGHT_DOWN),
        .c = hd_activation(stage, spec->experts ? y : out, rows, spec->width),
        .form = HD_FPROP};
    if (spec->experts == 0) {
        down.add = hd_activation(stage, x1, rows, spec->width);
    }
    TRY(transformer_open_experts(frame));
    TRY(transformer_activate(frame, h));
    TRY(hd_gemm_experts(frame, &down));
    if (spec->experts == 0) {
        return HD_OK;
    }
    struct hd_rows_args combine = hd_rows_of(frame);
    combine.rows = hd_activation(stage, y, rows, spec->width);
    combine.residual = x1;
    combine.out = out;
    return stage->ops->combine(stage->kernel->device, &combine);
}

/* x1 -> [xn]; the statistic is written again where it was kept, with the same bits. */
static hd_status transformer_norm_experts(const struct hd_frame *frame)
{
    return hd_norm_rows(frame, HD_WEIGHT_NORM2, hd_line_at(frame, HD_LINE_X1),
                        hd_work_at(frame->stage, HD_WORK_XN), hd_line_at(frame, HD_LINE_R2));
}

static hd_status forward_block(const struct hd_frame *frame, const void *x, void *out)
{
    TRY(transformer_attend(frame, x));
    TRY(transformer_norm_experts(frame));
    if (frame->stage->spec.experts) {
        TRY(transformer_dispatch(frame, &frame->pass->terms[2 * (size_t)frame->block]));
    }
    return transformer_run_experts(frame, out);
}

hd_status hd_recompute_block(const struct hd_frame *frame, const void *x)
{
    const uint32_t recompute = frame->stage->spec.recompute;
    if (recompute == HD_RECOMPUTE_FULL) {
        TRY(transformer_attend(frame, x));
    }
    TRY(transformer_norm_experts(frame));
    if (recompute == HD_RECOMPUTE_FULL && frame->stage->spec.experts) {
        /* The forward has reported these terms. */
        TRY(transformer_dispatch(frame, hd_work_at(frame->stage, HD_WORK_TERMS)));
    }
    return recompute == HD_RECOMPUTE_NONE ? HD_OK : transformer_open_experts(frame);
}

/* Step 8. */
static hd_status forward_head(const struct hd_frame *frame)
{
    const struct hd_stage *stage = frame->stage;
    const struct hd_pass *pass = frame->pass;
    const struct hd_stage_spec *spec = &stage->spec;
    void *xn = hd_work_at(stage, HD_WORK_XN);
    const size_t before = spec->experts ? 2 * (size_t)spec->block_count : 0;
    const struct hd_head_args head = {.x = xn,
                                      .weight = hd_copy_at(stage, HD_WEIGHT_HEAD, 0),
                                      .targets = pass->targets,
                                      .lse = hd_head_at(stage, pass, HD_HEAD_LSE),
                                      .loss = &pass->terms[before],
                                      .token_count = (uint32_t)stage->layout.tokens,
                                      .width = spec->width,
                                      .vocabulary = spec->vocabulary,
                                      .label_scale = pass->label_scale};
    TRY(hd_norm_rows(frame, HD_WEIGHT_NORM, hd_head_at(stage, pass, HD_HEAD_X), xn,
                     hd_head_at(stage, pass, HD_HEAD_RSTD)));
    return stage->ops->head_loss(stage->kernel->device, &head);
}

static hd_status transformer_embed(const struct hd_stage *stage, const struct hd_pass *pass,
                                   void *x)
{
    const struct hd_embed_args args = {.tokens = pass->tokens,
                                       .table = hd_copy_at(stage, HD_WEIGHT_EMBED, 0),
                                       .x = x,
                                       .token_count = (uint32_t)stage->layout.tokens,
                                       .width = stage->spec.width,
                                       .vocabulary = stage->spec.vocabulary};
    return stage->ops->embed(stage->kernel->device, &args);
}

/* Where a block's output goes: the next one's x, the boundary, or what the head keeps. */
static void *transformer_output_of(const struct hd_frame *frame)
{
    const struct hd_stage *stage = frame->stage;
    if (frame->block + 1 < stage->spec.block_count) {
        const struct hd_frame next = hd_frame_at(stage, frame->pass, frame->block + 1);
        return hd_line_at(&next, HD_LINE_X);
    }
    return stage->spec.has_head ? hd_head_at(stage, frame->pass, HD_HEAD_X) : frame->pass->output;
}

hd_status hd_forward_half(struct hd_stage *stage, const struct hd_pass *pass, uint64_t *row_count)
{
    const void *x = pass->input;
    if (stage->spec.has_embedding) {
        x = stage->memory.scratch; /* the x line of the section in scratch */
        TRY(transformer_embed(stage, pass, stage->memory.scratch));
    }
    for (uint32_t block = 0; block < stage->spec.block_count; block++) {
        const struct hd_frame frame = hd_frame_at(stage, pass, block);
        void *out = transformer_output_of(&frame);
        TRY(forward_block(&frame, x, out));
        *row_count += stage->spec.experts ? hd_row_count(&frame) : stage->layout.tokens;
        x = out;
    }
    if (stage->spec.has_head) {
        const struct hd_frame frame = hd_frame_at(stage, pass, stage->spec.block_count - 1);
        TRY(forward_head(&frame));
    }
    return HD_OK;
}
