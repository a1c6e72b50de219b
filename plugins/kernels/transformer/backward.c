/*
 * plugins/kernels/transformer/backward.c - B: both halves of the backward, unsplit.
 *
 * Last block first; g is the gradient of the residual stream, rounded to the
 * boundary's dtype after every block, as the forward rounds the activation.
 *
 *   g -> W_down, swiglu, W_gate, W_up, router -> + g -> dx1 -> W_o, attention,
 *   rope, W_q, W_k, W_v -> + dx1 -> g of the block before
 *
 * What the payload does not hold is computed again from it: the normed inputs, the
 * rotated q and k, and what recomputation dropped.  Nothing of the payload is used up.
 */
#include "mxfp8.h"
#include "stage.h"

#define TRY(step)                       \
    do {                                \
        const hd_status tried = (step); \
        if (tried != HD_OK) {           \
            return tried;               \
        }                               \
    } while (0)

/* The weight gradient of y = x W^T: W += dy^T x. */
static hd_status transformer_add_weight_gradient(const struct hd_frame *frame,
                                                 enum hd_weight weight, const void *dy,
                                                 const void *x)
{
    const struct hd_stage *stage = frame->stage;
    const struct hd_weight_place *place = &stage->layout.weights[weight];
    const struct hd_gemm_args args = {
        .a = hd_activation(stage, dy, stage->layout.tokens, place->rows),
        .b = hd_activation(stage, x, stage->layout.tokens, place->columns),
        .c = hd_gradient_matrix(frame, weight),
        .form = HD_WGRAD};
    return stage->ops->gemm(stage->kernel->device, &args);
}

static hd_status transformer_norm_backward(const struct hd_frame *frame, enum hd_weight weight,
                                           struct hd_norm_args args)
{
    const struct hd_stage *stage = frame->stage;
    args.weight = hd_master_at(stage, weight, frame->block);
    args.dweight = hd_gradient_at(stage, weight, frame->block);
    args.row_count = (uint32_t)stage->layout.tokens;
    args.width = (uint32_t)stage->layout.weights[weight].columns;
    args.epsilon = stage->spec.norm_epsilon;
    return stage->ops->rms_norm_backward(stage->kernel->device, &args);
}

/* Step 0: the loss -> [g]. */
static hd_status backward_head(const struct hd_frame *frame)
{
    const struct hd_stage *stage = frame->stage;
    const struct hd_pass *pass = frame->pass;
    void *xn = hd_work_at(stage, HD_WORK_XN), *dxn = hd_work_at(stage, HD_WORK_DXN);
    const void *x = hd_head_at(stage, pass, HD_HEAD_X);
    void *rstd = hd_head_at(stage, pass, HD_HEAD_RSTD);
    const struct hd_head_args head = {.x = xn,
                                      .weight = hd_copy_at(stage, HD_WEIGHT_HEAD, 0),
                                      .targets = pass->targets,
                                      .lse = hd_head_at(stage, pass, HD_HEAD_LSE),
                                      .dx = dxn,
                                      .dweight = hd_gradient_at(stage, HD_WEIGHT_HEAD, 0),
                                      .token_count = (uint32_t)stage->layout.tokens,
                                      .width = stage->spec.width,
                                      .vocabulary = stage->spec.vocabulary,
                                      .label_scale = pass->label_scale};
    TRY(hd_norm_rows(frame, HD_WEIGHT_NORM, x, xn, rstd));
    TRY(stage->ops->head_loss_backward(stage->kernel->device, &head));
    return transformer_norm_backward(
        frame, HD_WEIGHT_NORM,
        (struct hd_norm_args){.x = x, .rstd = rstd, .dy = dxn, .dx = hd_work_at(stage, HD_WORK_G)});
}

/* Step 2, first half: g -> [dz], and where experts are quantised its image down the rows. */
static hd_status transformer_permute_gradient(const struct hd_frame *frame, const void *g)
{
    const struct hd_stage *stage = frame->stage;
    struct hd_rows_args permute = hd_rows_of(frame);
    void *dz = hd_work_at(stage, HD_WORK_WIDE);
    permute.x = g;
    permute.rows = hd_activation(stage, dz, stage->layout.row_max, stage->spec.width);
    TRY(stage->ops->permute(stage->kernel->device, &permute));
    if (!hd_is_mxfp8(stage)) {
        return HD_OK;
    }
    const struct hd_rounding rounding = {.source = dz,
                                         .rowwise = dz,
                                         .columnwise = hd_work_at(stage, HD_WORK_WIDE_COLUMNS),
                                         .rows = hd_row_count(frame),
                                         .columns = stage->spec.width,
                                         .row_limit = hd_row_limit(frame)};
    return hd_round(stage, &rounding);
}

/* Step 2: g, permuted where there are experts -> [e]. */
static hd_status transformer_open_down(const struct hd_frame *frame, const void *g)
{
    const struct hd_stage *stage = frame->stage;
    const uint64_t rows = stage->layout.row_max;
    const void *dz = g;
    if (stage->spec.experts) {
        TRY(transformer_permute_gradient(frame, g));
        dz = hd_work_at(stage, HD_WORK_WIDE);
    }
    struct hd_gemm_args args = {
        .a = hd_activation(stage, dz, rows, stage->spec.width),
        .b = hd_dgrad_matrix(frame, HD_WEIGHT_DOWN),
        .c = hd_activation(stage, hd_work_at(stage, HD_WORK_E), rows, stage->spec.expert_width),
        .form = HD_DGRAD};
    return hd_gemm_experts(frame, &args);
}

/* Step 3: [e] -> [dgates], [dgate_up], [weighted]. */
static hd_status transformer_through_swiglu(const struct hd_frame *frame)
{
    const struct hd_stage *stage = frame->stage;
    struct hd_swiglu_args swiglu = hd_swiglu_of(frame);
    swiglu.e = hd_work_at(stage, HD_WORK_E);
    swiglu.dgates = stage->spec.experts ? hd_work_at(stage, HD_WORK_DGATES) : NULL;
    swiglu.dgate_up = hd_work_at(stage, HD_WORK_DGATE_UP);
    swiglu.weighted = hd_work_at(stage, HD_WORK_WEIGHTED);
    return stage->ops->swiglu_backward(stage->kernel->device, &swiglu);
}

/* MXFP8, before step 4: [weighted] down its rows, [dgate_up] in both ways. */
static hd_status transformer_round_inner(const struct hd_frame *frame)
{
    const struct hd_stage *stage = frame->stage;
    void *weighted = hd_work_at(stage, HD_WORK_WEIGHTED);
    void *dgate_up = hd_work_at(stage, HD_WORK_DGATE_UP);
    const uint64_t rows = hd_row_count(frame), inner = stage->spec.expert_width;
    const int32_t *limit = hd_row_limit(frame);
    const struct hd_rounding down = {.source = weighted,
                                     .columnwise = weighted,
                                     .rows = rows,
                                     .columns = inner,
                                     .row_limit = limit};
    const struct hd_rounding up = {.source = dgate_up,
                                   .rowwise = dgate_up,
                                   .columnwise = hd_work_at(stage, HD_WORK_DGATE_UP_COLUMNS),
                                   .rows = rows,
                                   .columns = 2 * inner,
                                   .row_limit = limit};
    TRY(hd_round(stage, &down));
    return hd_round(stage, &up);
}

/* A weight gradient of the experts, over their rows: W += dy^T x. */
static hd_status transformer_add_expert_gradient(const struct hd_frame *frame,
                                                 enum hd_weight weight, const void *dy,
                                                 const void *x)
{
    const struct hd_stage *stage = frame->stage;
    const struct hd_weight_place *place = &stage->layout.weights[weight];
    struct hd_gemm_args args = {.a = hd_activation(stage, dy, stage->layout.row_max, place->rows),
                                .b = hd_activation(stage, x, stage->layout.row_max, place->columns),
                                .c = hd_gradient_matrix(frame, weight),
                                .form = HD_WGRAD};
    return hd_gemm_experts(frame, &args);
}

/* Step 4, second third: [dgate_up] -> the rows' gradient (over dz; dense: [dxn]). */
static hd_status transformer_through_up(const struct hd_frame *frame)
{
    const struct hd_stage *stage = frame->stage;
    const uint64_t rows = stage->layout.row_max, inner = stage->spec.expert_width;
    void *drows = hd_work_at(stage, stage->spec.experts ? HD_WORK_WIDE : HD_WORK_DXN);
    struct hd_gemm_args args = {
        .a = hd_activation(stage, hd_work_at(stage, HD_WORK_DGATE_UP), rows, 2 * inner),
        .b = hd_dgrad_matrix(frame, HD_WEIGHT_GATE_UP),
        .c = hd_activation(stage, drows, rows, stage->spec.width),
        .form = HD_DGRAD};
    return hd_gemm_experts(frame, &args);
}

/* Step 4: W_down +=, the rows' gradient, W_gate and W_up +=. */
static hd_status transformer_expert_gradients(const struct hd_frame *frame, const void *g)
{
    const struct hd_stage *stage = frame->stage;
    const int has_experts = stage->spec.experts > 0;
    const void *dz = has_experts ? hd_work_at(stage, HD_WORK_WIDE) : g;
    const void *rows =
        has_experts ? hd_line_at(frame, HD_LINE_ROWS) : hd_work_at(stage, HD_WORK_XN);
    TRY(transformer_add_expert_gradient(frame, HD_WEIGHT_DOWN, dz,
                                        hd_work_at(stage, HD_WORK_WEIGHTED)));
    TRY(transformer_through_up(frame));
    return transformer_add_expert_gradient(frame, HD_WEIGHT_GATE_UP,
                                           hd_work_at(stage, HD_WORK_DGATE_UP), rows);
}

/* The same in MXFP8: the rows come back from the payload exactly, and go down the columns. */
static hd_status transformer_expert_gradients_mxfp8(const struct hd_frame *frame)
{
    const struct hd_stage *stage = frame->stage;
    void *const columns = hd_work_at(stage, HD_WORK_WIDE_COLUMNS);
    const struct hd_rounding rows = {.source = columns,
                                     .columnwise = columns,
                                     .rows = hd_row_count(frame),
                                     .columns = stage->spec.width,
                                     .row_limit = hd_row_limit(frame)};
    TRY(transformer_round_inner(frame));
    TRY(transformer_add_expert_gradient(frame, HD_WEIGHT_DOWN, columns,
                                        hd_work_at(stage, HD_WORK_WEIGHTED)));
    TRY(transformer_through_up(frame));
    TRY(hd_load_rows(frame, columns));
    TRY(hd_round(stage, &rows));
    return transformer_add_expert_gradient(frame, HD_WEIGHT_GATE_UP,
                                           hd_work_at(stage, HD_WORK_DGATE_UP_COLUMNS), columns);
}

/* Steps 5 and 6, first half: the router, and every row back to its token -> [dxn]. */
static hd_status transformer_gather_rows(const struct hd_frame *frame)
{
    const struct hd_stage *stage = frame->stage;
    void *dxr = hd_work_at(stage, HD_WORK_DXR);
    struct hd_route_args route = hd_route_of(frame);
    struct hd_rows_args rows = hd_rows_of(frame);
    route.dgates = hd_work_at(stage, HD_WORK_DGATES);
    route.dx = dxr;
    route.dweight = hd_gradient_at(stage, HD_WEIGHT_ROUTER, frame->block);
    rows.rows = hd_activation(stage, hd_work_at(stage, HD_WORK_WIDE), stage->layout.row_max,
                              stage->spec.width);
    rows.add = dxr;
    rows.dx = hd_work_at(stage, HD_WORK_DXN);
    TRY(stage->ops->route_backward(stage->kernel->device, &route));
    return stage->ops->permute_backward(stage->kernel->device, &rows);
}

/* Steps 1 to 6: g -> [dx1]. */
static hd_status backward_experts(const struct hd_frame *frame, const void *x, const void *g)
{
    const struct hd_stage *stage = frame->stage;
    TRY(hd_recompute_block(frame, x));
    const void *x1 = hd_line_at(frame, HD_LINE_X1);
    void *r2 = hd_line_at(frame, HD_LINE_R2);
    TRY(transformer_open_down(frame, g));
    TRY(transformer_through_swiglu(frame));
    TRY(hd_is_mxfp8(stage) ? transformer_expert_gradients_mxfp8(frame)
                           : transformer_expert_gradients(frame, g));
    if (stage->spec.experts) {
        TRY(transformer_gather_rows(frame));
    }
    return transformer_norm_backward(frame, HD_WEIGHT_NORM2,
                                     (struct hd_norm_args){.x = x1,
                                                           .rstd = r2,
                                                           .dy = hd_work_at(stage, HD_WORK_DXN),
                                                           .add = g,
                                                           .dx = hd_work_at(stage, HD_WORK_DX1)});
}

/* Steps 7 and 8: [dx1] -> [dq], [dk], [dv], before the inverse of rope and norm. */
static hd_status transformer_through_attention(const struct hd_frame *frame)
{
    const struct hd_stage *stage = frame->stage;
    const uint64_t tokens = stage->layout.tokens, width = stage->spec.width;
    const void *dx1 = hd_work_at(stage, HD_WORK_DX1);
    void *dout = hd_work_at(stage, HD_WORK_DO);
    const struct hd_gemm_args through = {.a = hd_activation(stage, dx1, tokens, width),
                                         .b = hd_weight_matrix(frame, HD_WEIGHT_O),
                                         .c = hd_activation(stage, dout, tokens, width),
                                         .form = HD_DGRAD};
    TRY(stage->ops->gemm(stage->kernel->device, &through));
    TRY(transformer_add_weight_gradient(frame, HD_WEIGHT_O, dx1, hd_line_at(frame, HD_LINE_O)));
    TRY(hd_rotate(frame));
    struct hd_attention_args attention = hd_attention_of(frame);
    attention.dout = dout;
    attention.dq = hd_work_at(stage, HD_WORK_DQ);
    attention.dk = hd_work_at(stage, HD_WORK_DK);
    attention.dv = hd_work_at(stage, HD_WORK_DV);
    return stage->ops->attention_backward(stage->kernel->device, &attention);
}

/* Step 9, for q or k: the inverse rotation, then the norm's backward, in place. */
static hd_status transformer_unrotate(const struct hd_frame *frame, enum hd_weight weight,
                                      void *gradient)
{
    const struct hd_stage *stage = frame->stage;
    const int is_q = weight == HD_WEIGHT_QNORM;
    const struct hd_rope_args rope =
        hd_rope_of(stage, gradient, is_q ? stage->spec.heads : stage->spec.key_value_heads, 1);
    TRY(stage->ops->rope(stage->kernel->device, &rope));
    return transformer_norm_backward(
        frame, weight,
        (struct hd_norm_args){.x = hd_line_at(frame, is_q ? HD_LINE_Q : HD_LINE_K),
                              .rstd = hd_line_at(frame, is_q ? HD_LINE_RQ : HD_LINE_RK),
                              .dy = gradient,
                              .dx = gradient});
}

/* Step 10, second half: three input gradients, summed in S, rounded once -> dxn (over [do]). */
static hd_status transformer_sum_projections(const struct hd_frame *frame, void *dxn)
{
    static const struct {
        enum hd_weight weight;
        enum hd_work gradient;
    } parts[] = {{HD_WEIGHT_Q, HD_WORK_DQ}, {HD_WEIGHT_K, HD_WORK_DK}, {HD_WEIGHT_V, HD_WORK_DV}};
    const struct hd_stage *stage = frame->stage;
    const uint64_t tokens = stage->layout.tokens, width = stage->spec.width;
    const struct hd_matrix sum = hd_statistic(stage, hd_work_at(stage, HD_WORK_SUM), tokens, width);
    for (uint32_t part = 0; part < 3; part++) {
        const void *gradient = hd_work_at(stage, parts[part].gradient);
        struct hd_gemm_args args = {
            .a = hd_activation(stage, gradient, tokens,
                               stage->layout.weights[parts[part].weight].rows),
            .b = hd_weight_matrix(frame, parts[part].weight),
            .c = part < 2 ? sum : hd_activation(stage, dxn, tokens, width),
            .form = HD_DGRAD};
        if (part > 0) {
            args.add = sum;
        }
        TRY(stage->ops->gemm(stage->kernel->device, &args));
    }
    return HD_OK;
}

/* Steps 7 to 11: [dx1] -> dx. */
static hd_status backward_attention(const struct hd_frame *frame, const void *x, void *dx)
{
    const struct hd_stage *stage = frame->stage;
    void *xn = hd_work_at(stage, HD_WORK_XN), *r1 = hd_line_at(frame, HD_LINE_R1);
    void *dxn = hd_work_at(stage, HD_WORK_DO);
    TRY(transformer_through_attention(frame));
    TRY(transformer_unrotate(frame, HD_WEIGHT_QNORM, hd_work_at(stage, HD_WORK_DQ)));
    TRY(transformer_unrotate(frame, HD_WEIGHT_KNORM, hd_work_at(stage, HD_WORK_DK)));
    TRY(hd_norm_rows(frame, HD_WEIGHT_NORM1, x, xn, r1));
    TRY(transformer_add_weight_gradient(frame, HD_WEIGHT_Q, hd_work_at(stage, HD_WORK_DQ), xn));
    TRY(transformer_add_weight_gradient(frame, HD_WEIGHT_K, hd_work_at(stage, HD_WORK_DK), xn));
    TRY(transformer_add_weight_gradient(frame, HD_WEIGHT_V, hd_work_at(stage, HD_WORK_DV), xn));
    TRY(transformer_sum_projections(frame, dxn));
    return transformer_norm_backward(
        frame, HD_WEIGHT_NORM1,
        (struct hd_norm_args){
            .x = x, .rstd = r1, .dy = dxn, .add = hd_work_at(stage, HD_WORK_DX1), .dx = dx});
}

/* --- the pass -------------------------------------------------------------------------------- */

static struct hd_embed_args transformer_embed_of(const struct hd_stage *stage,
                                                 const struct hd_pass *pass)
{
    return (struct hd_embed_args){.tokens = pass->tokens,
                                  .table = hd_copy_at(stage, HD_WEIGHT_EMBED, 0),
                                  .x = stage->memory.scratch,
                                  .token_count = (uint32_t)stage->layout.tokens,
                                  .width = stage->spec.width,
                                  .vocabulary = stage->spec.vocabulary};
}

/* The input of block 0, which the payload does not hold. */
static hd_status transformer_first_input(const struct hd_stage *stage, const struct hd_pass *pass,
                                         const void **x)
{
    *x = pass->input;
    if (!stage->spec.has_embedding) {
        return HD_OK;
    }
    const struct hd_embed_args args = transformer_embed_of(stage, pass);
    *x = args.x;
    return stage->ops->embed(stage->kernel->device, &args);
}

static hd_status backward_embedding(const struct hd_stage *stage, const struct hd_pass *pass)
{
    struct hd_embed_args args = transformer_embed_of(stage, pass);
    args.dx = hd_work_at(stage, HD_WORK_G);
    args.dtable = hd_gradient_at(stage, HD_WEIGHT_EMBED, 0);
    return stage->ops->embed_backward(stage->kernel->device, &args);
}

static hd_status backward_block(const struct hd_frame *frame, const void *g)
{
    const struct hd_stage *stage = frame->stage;
    const int is_boundary = frame->block == 0 && !stage->spec.has_embedding;
    void *dx = is_boundary ? frame->pass->input_gradient : hd_work_at(stage, HD_WORK_G);
    const void *x = hd_line_at(frame, HD_LINE_X);
    if (frame->block == 0) {
        TRY(transformer_first_input(stage, frame->pass, &x));
    }
    TRY(backward_experts(frame, x, g));
    return backward_attention(frame, x, dx);
}

hd_status hd_backward_half(struct hd_stage *stage, const struct hd_pass *pass)
{
    const void *g = pass->output_gradient;
    if (stage->spec.has_head) {
        const struct hd_frame frame = hd_frame_at(stage, pass, stage->spec.block_count - 1);
        TRY(backward_head(&frame));
        g = hd_work_at(stage, HD_WORK_G);
    }
    for (uint32_t block = stage->spec.block_count; block-- > 0;) {
        const struct hd_frame frame = hd_frame_at(stage, pass, block);
        TRY(backward_block(&frame, g));
        g = hd_work_at(stage, HD_WORK_G);
    }
    return stage->spec.has_embedding ? backward_embedding(stage, pass) : HD_OK;
}
