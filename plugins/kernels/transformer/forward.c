/*
 * plugins/kernels/transformer/forward.c - F of one half batch; an evaluation is the same.
 *
 * layout.h has the picture.  Where a payload is given, the tensors that it keeps are written
 * there.  The others (in an evaluation all of them) are written to one section in scratch, by
 * every block in turn, with the same bits.  A recomputation calls the same functions.
 */
#include "forward.h"

#include "block.h"
#include "mxfp8.h"

/* x -> x1. */
static hd_status forward_attention(const struct hd_block *block, const void *x, void *x1)
{
    const struct hd_saved *saved = &block->saved;
    const struct hd_work *work = &block->stage->work;
    HD_TRY(hd_norm(block, HD_WEIGHT_NORM1, x, work->xn, saved->r1));
    HD_TRY(hd_project(block, HD_WEIGHT_Q, work->xn, NULL, saved->q));
    HD_TRY(hd_project(block, HD_WEIGHT_K, work->xn, NULL, saved->k));
    HD_TRY(hd_project(block, HD_WEIGHT_V, work->xn, NULL, saved->v));
    HD_TRY(hd_rotate(block, work->qn, work->kn));
    HD_TRY(hd_attention(
        block->stage,
        (struct hd_attention_args){
            .q = work->qn, .k = work->kn, .v = saved->v, .out = saved->o, .lse = saved->lse}));
    return hd_project(block, HD_WEIGHT_O, saved->o, x, x1);
}

/* xn -> the routing, two terms, and the experts' rows.  In MXFP8 the rows are quantised on their
   way into the payload. */
static hd_status forward_dispatch(const struct hd_block *block, const void *xn, double *terms)
{
    const bool is_mxfp8 = block->stage->layout.is_mxfp8;
    void *rows = is_mxfp8 ? block->stage->work.wide : block->saved.rows;
    HD_TRY(hd_route(block, xn, terms));
    HD_TRY(hd_assign(block));
    HD_TRY(hd_permute(block, xn, rows));
    return is_mxfp8 ? hd_store_rows(block, rows) : HD_OK;
}

/* The experts' rows, or in a dense block xn -> gate_up. */
static hd_status forward_gate_up(const struct hd_block *block, const void *xn, void *gate_up)
{
    const struct hd_stage *stage = block->stage;
    const void *rows = stage->spec.experts ? block->saved.rows : xn;
    if (stage->layout.is_mxfp8) {
        HD_TRY(hd_load_rows(block, stage->work.wide));
        rows = stage->work.wide;
    }
    return hd_project(block, HD_WEIGHT_GATE_UP, rows, NULL, gate_up);
}

/* gate_up -> h -> y; y and x1 -> out.  In a dense block the last product adds x1. */
static hd_status forward_down(const struct hd_block *block, const void *x1, void *out)
{
    const struct hd_stage *stage = block->stage;
    void *h = stage->work.inner, *y = stage->work.wide;
    HD_TRY(hd_swiglu(block, block->saved.gate_up, h));
    if (stage->layout.is_mxfp8) {
        HD_TRY(hd_round_rows(
            block,
            (struct hd_rounding){.source = h, .rowwise = h, .columns = stage->spec.expert_width}));
    }
    if (stage->spec.experts == 0) {
        return hd_project(block, HD_WEIGHT_DOWN, h, x1, out);
    }
    HD_TRY(hd_project(block, HD_WEIGHT_DOWN, h, NULL, y));
    return hd_combine(block, y, x1, out);
}

static hd_status forward_block(const struct hd_block *block, const void *x, void *out)
{
    const struct hd_saved *saved = &block->saved;
    const struct hd_work *work = &block->stage->work;
    HD_TRY(forward_attention(block, x, saved->x1));
    HD_TRY(hd_norm(block, HD_WEIGHT_NORM2, saved->x1, work->xn, saved->r2));
    if (block->stage->spec.experts > 0) {
        HD_TRY(forward_dispatch(block, work->xn, &block->pass->terms[2 * (size_t)block->index]));
    }
    HD_TRY(forward_gate_up(block, work->xn, saved->gate_up));
    return forward_down(block, saved->x1, out);
}

hd_status hd_recompute_block(const struct hd_block *block, const void *x, void *xn)
{
    const uint32_t recompute = block->stage->spec.recompute;
    const struct hd_saved *saved = &block->saved;
    if (recompute == HD_RECOMPUTE_FULL) {
        HD_TRY(forward_attention(block, x, saved->x1));
    }
    HD_TRY(hd_norm(block, HD_WEIGHT_NORM2, saved->x1, xn, saved->r2));
    if (recompute == HD_RECOMPUTE_FULL && block->stage->spec.experts > 0) {
        /* The forward has reported these terms. */
        HD_TRY(forward_dispatch(block, xn, block->stage->work.terms));
    }
    return recompute == HD_RECOMPUTE_NONE ? HD_OK : forward_gate_up(block, xn, saved->gate_up);
}

/* head.x -> the loss. */
static hd_status forward_head(const struct hd_block *last, struct hd_head head)
{
    const struct hd_stage *stage = last->stage;
    const size_t before = stage->spec.experts ? 2 * (size_t)stage->spec.block_count : 0;
    void *xn = stage->work.xn;
    HD_TRY(hd_norm(last, HD_WEIGHT_NORM, head.x, xn, head.r));
    return hd_head_loss(
        stage, last->pass,
        (struct hd_head_args){.x = xn, .lse = head.lse, .loss = &last->pass->terms[before]});
}

hd_status hd_block_input(const struct hd_block *block, const void **x)
{
    const bool is_first = block->index == 0;
    *x = block->saved.x;
    if (is_first && block->stage->spec.has_embedding) {
        return hd_embed(block->stage, block->pass, block->saved.x);
    }
    if (is_first) {
        *x = block->pass->input;
    }
    return HD_OK;
}

/* Where a block's output goes: the next block's x, the boundary, or what the head saves. */
static void *forward_output(const struct hd_block *block)
{
    const struct hd_stage *stage = block->stage;
    if (block->index + 1 < stage->spec.block_count) {
        return hd_block_at(stage, block->pass, block->index + 1).saved.x;
    }
    return stage->spec.has_head ? hd_head_at(stage, block->pass).x : block->pass->output;
}

hd_status hd_forward_half(const struct hd_stage *stage, const struct hd_pass *pass,
                          uint64_t *row_count)
{
    struct hd_block block = {0};
    for (uint32_t index = 0; index < stage->spec.block_count; index++) {
        const void *x = NULL;
        block = hd_block_at(stage, pass, index);
        HD_TRY(hd_block_input(&block, &x));
        HD_TRY(forward_block(&block, x, forward_output(&block)));
        *row_count += stage->spec.experts ? hd_row_count(&block) : stage->layout.tokens;
    }
    return stage->spec.has_head ? forward_head(&block, hd_head_at(stage, pass)) : HD_OK;
}
