/*
 * plugins/kernels/transformer/backward.c - B of one half batch, unsplit.
 *
 * The last block comes first.  g is the gradient of the residual stream, rounded to the boundary's
 * dtype after every block, as the forward rounds the activation.
 *
 *   g -> W_down, swiglu, W_gate_up, router -> + g -> dx1 -> W_o, attention, rope,
 *   W_q, W_k, W_v -> + dx1 -> g of the block before
 *
 * What the payload does not hold is computed again: the normed inputs, qn and kn, and what
 * recomputation dropped.  The payload is only read, except that r1, rq, rk and r2 are written
 * again with the same bits.
 */
#include "backward.h"

#include "block.h"
#include "forward.h"
#include "mxfp8.h"

/* The loss -> g. */
static hd_status backward_head(const struct hd_block *last, struct hd_head head, void *g)
{
    const struct hd_work *work = &last->stage->work;
    HD_TRY(hd_norm(last, HD_WEIGHT_NORM, head.x, work->xn, head.r));
    HD_TRY(hd_head_loss_backward(
        last->stage, last->pass,
        (struct hd_head_args){.x = work->xn, .lse = head.lse, .dx = work->dxn}));
    return hd_norm_backward(
        last, HD_WEIGHT_NORM,
        (struct hd_norm_args){.x = head.x, .rstd = head.r, .dy = work->dxn, .dx = g});
}

/* --- the feed-forward ------------------------------------------------------------------------- */

static hd_status backward_swiglu(const struct hd_block *block, const void *e, void *dgates)
{
    const struct hd_work *work = &block->stage->work;
    return hd_swiglu_backward(block, (struct hd_swiglu_args){.gate_up = block->saved.gate_up,
                                                             .e = e,
                                                             .dgates = dgates,
                                                             .dgate_up = work->dgate_up,
                                                             .weighted = work->weighted});
}

/* g, xn -> dxn. */
static hd_status backward_dense(const struct hd_block *block, const void *g, const void *xn)
{
    const struct hd_work *work = &block->stage->work;
    HD_TRY(hd_input_gradient(block, HD_WEIGHT_DOWN, g, work->inner));
    HD_TRY(backward_swiglu(block, work->inner, NULL));
    HD_TRY(hd_weight_gradient(block, HD_WEIGHT_DOWN, g, work->weighted));
    HD_TRY(hd_input_gradient(block, HD_WEIGHT_GATE_UP, work->dgate_up, work->dxn));
    return hd_weight_gradient(block, HD_WEIGHT_GATE_UP, work->dgate_up, xn);
}

/* dz -> dgates, and the gradient of the rows in place of dz. */
static hd_status backward_rows(const struct hd_block *block, const void *rows, void *dz)
{
    const struct hd_work *work = &block->stage->work;
    HD_TRY(hd_input_gradient(block, HD_WEIGHT_DOWN, dz, work->inner));
    HD_TRY(backward_swiglu(block, work->inner, work->dgates));
    HD_TRY(hd_weight_gradient(block, HD_WEIGHT_DOWN, dz, work->weighted));
    HD_TRY(hd_input_gradient(block, HD_WEIGHT_GATE_UP, work->dgate_up, dz));
    return hd_weight_gradient(block, HD_WEIGHT_GATE_UP, work->dgate_up, rows);
}

/* The same in MXFP8: every operand is quantised along its contraction first.  The rows come back
   from the payload exactly, and are quantised down their columns. */
static hd_status backward_rows_mxfp8(const struct hd_block *block, void *dz)
{
    const struct hd_work *work = &block->stage->work;
    void *const columns = work->wide_columns;
    const uint64_t width = block->stage->spec.width, inner = block->stage->spec.expert_width;
    const struct hd_rounding dz_images = {
        .source = dz, .rowwise = dz, .columnwise = columns, .columns = width};
    const struct hd_rounding weighted = {
        .source = work->weighted, .columnwise = work->weighted, .columns = inner};
    const struct hd_rounding dgate_up = {.source = work->dgate_up,
                                         .rowwise = work->dgate_up,
                                         .columnwise = work->dgate_up_columns,
                                         .columns = 2 * inner};
    const struct hd_rounding rows = {.source = columns, .columnwise = columns, .columns = width};
    HD_TRY(hd_round_rows(block, dz_images));
    HD_TRY(hd_input_gradient(block, HD_WEIGHT_DOWN, dz, work->inner));
    HD_TRY(backward_swiglu(block, work->inner, work->dgates));
    HD_TRY(hd_round_rows(block, weighted));
    HD_TRY(hd_round_rows(block, dgate_up));
    HD_TRY(hd_weight_gradient(block, HD_WEIGHT_DOWN, columns, work->weighted));
    HD_TRY(hd_input_gradient(block, HD_WEIGHT_GATE_UP, work->dgate_up, dz));
    HD_TRY(hd_load_rows(block, columns));
    HD_TRY(hd_round_rows(block, rows));
    return hd_weight_gradient(block, HD_WEIGHT_GATE_UP, work->dgate_up_columns, columns);
}

/* g, xn -> dxn: through the rows of the experts, and through the router. */
static hd_status backward_routed(const struct hd_block *block, const void *g, const void *xn)
{
    const struct hd_work *work = &block->stage->work;
    void *rows = work->wide;
    HD_TRY(hd_permute(block, g, rows));
    HD_TRY(block->stage->layout.is_mxfp8 ? backward_rows_mxfp8(block, rows)
                                         : backward_rows(block, block->saved.rows, rows));
    HD_TRY(hd_route_backward(block, xn, work->dgates, work->dxr));
    return hd_permute_backward(block, rows, work->dxr, work->dxn);
}

/* g -> dx1. */
static hd_status backward_experts(const struct hd_block *block, const void *x, const void *g,
                                  void *dx1)
{
    const struct hd_saved *saved = &block->saved;
    const struct hd_work *work = &block->stage->work;
    HD_TRY(hd_recompute_block(block, x, work->xn));
    HD_TRY(block->stage->spec.experts ? backward_routed(block, g, work->xn)
                                      : backward_dense(block, g, work->xn));
    return hd_norm_backward(
        block, HD_WEIGHT_NORM2,
        (struct hd_norm_args){
            .x = saved->x1, .rstd = saved->r2, .dy = work->dxn, .add = g, .dx = dx1});
}

/* --- attention -------------------------------------------------------------------------------- */

/* The gradient of qn or kn -> that of q or k, in place: the inverse rotation, then the norm's. */
static hd_status backward_rotate(const struct hd_block *block, enum hd_weight weight, void *d)
{
    const struct hd_stage_spec *spec = &block->stage->spec;
    const struct hd_saved *saved = &block->saved;
    const bool is_q = weight == HD_WEIGHT_QNORM;
    HD_TRY(hd_rope(block->stage, d, is_q ? spec->heads : spec->key_value_heads, true));
    return hd_norm_backward(block, weight,
                            (struct hd_norm_args){.x = is_q ? saved->q : saved->k,
                                                  .rstd = is_q ? saved->rq : saved->rk,
                                                  .dy = d,
                                                  .dx = d});
}

/* dx1 -> dq, dk, dv. */
static hd_status backward_scores(const struct hd_block *block, const void *dx1)
{
    const struct hd_saved *saved = &block->saved;
    const struct hd_work *work = &block->stage->work;
    HD_TRY(hd_input_gradient(block, HD_WEIGHT_O, dx1, work->dout));
    HD_TRY(hd_weight_gradient(block, HD_WEIGHT_O, dx1, saved->o));
    HD_TRY(hd_rotate(block, work->qn, work->kn));
    HD_TRY(hd_attention_backward(block->stage, (struct hd_attention_args){.q = work->qn,
                                                                          .k = work->kn,
                                                                          .v = saved->v,
                                                                          .out = saved->o,
                                                                          .lse = saved->lse,
                                                                          .dout = work->dout,
                                                                          .dq = work->dq,
                                                                          .dk = work->dk,
                                                                          .dv = work->dv}));
    HD_TRY(backward_rotate(block, HD_WEIGHT_QNORM, work->dq));
    return backward_rotate(block, HD_WEIGHT_KNORM, work->dk);
}

/* x, dx1 -> dx. */
static hd_status backward_attention(const struct hd_block *block, const void *x, const void *dx1,
                                    void *dx)
{
    void *r1 = block->saved.r1;
    const struct hd_work *work = &block->stage->work;
    void *dxn = work->dout;
    HD_TRY(backward_scores(block, dx1));
    HD_TRY(hd_norm(block, HD_WEIGHT_NORM1, x, work->xn, r1));
    HD_TRY(hd_weight_gradient(block, HD_WEIGHT_Q, work->dq, work->xn));
    HD_TRY(hd_weight_gradient(block, HD_WEIGHT_K, work->dk, work->xn));
    HD_TRY(hd_weight_gradient(block, HD_WEIGHT_V, work->dv, work->xn));
    HD_TRY(hd_input_gradient_of_attention(block, work, dxn));
    return hd_norm_backward(
        block, HD_WEIGHT_NORM1,
        (struct hd_norm_args){.x = x, .rstd = r1, .dy = dxn, .add = dx1, .dx = dx});
}

hd_status hd_backward_half(const struct hd_stage *stage, const struct hd_pass *pass)
{
    const struct hd_stage_spec *spec = &stage->spec;
    const struct hd_work *work = &stage->work;
    const void *g = pass->output_gradient;
    if (spec->has_head) {
        const struct hd_block last = hd_block_at(stage, pass, spec->block_count - 1);
        HD_TRY(backward_head(&last, hd_head_at(stage, pass), work->g));
        g = work->g;
    }
    for (uint32_t index = spec->block_count; index-- > 0;) {
        const struct hd_block block = hd_block_at(stage, pass, index);
        void *dx = index == 0 && !spec->has_embedding ? pass->input_gradient : work->g;
        const void *x = NULL;
        HD_TRY(hd_block_input(&block, &x));
        HD_TRY(backward_experts(&block, x, g, work->dx1));
        HD_TRY(backward_attention(&block, x, work->dx1, dx));
        g = work->g;
    }
    return spec->has_embedding ? hd_embed_backward(stage, pass, work->g) : HD_OK;
}
