/* plugins/kernels/transformer/block.c - see block.h. */
#include "block.h"

#include "mxfp8.h"

/* --- embedding and norm ----------------------------------------------------------------------- */

static struct hd_embed_args block_embed(const struct hd_stage *stage, const struct hd_pass *pass)
{
    return (struct hd_embed_args){.tokens = pass->tokens,
                                  .table = hd_copy_at(stage, HD_WEIGHT_EMBED, 0),
                                  .token_count = (uint32_t)stage->layout.tokens,
                                  .width = stage->spec.width,
                                  .vocabulary = stage->spec.vocabulary};
}

hd_status hd_embed(const struct hd_stage *stage, const struct hd_pass *pass, void *x)
{
    struct hd_embed_args args = block_embed(stage, pass);
    args.x = x;
    return stage->ops->embed(stage->kernel->device, &args);
}

hd_status hd_embed_backward(const struct hd_stage *stage, const struct hd_pass *pass,
                            const void *dx)
{
    struct hd_embed_args args = block_embed(stage, pass);
    args.dx = dx;
    args.dtable = hd_gradient_at(stage, HD_WEIGHT_EMBED, 0);
    return stage->ops->embed_backward(stage->kernel->device, &args);
}

static void block_norm(const struct hd_block *block, enum hd_weight weight,
                       struct hd_norm_args *args)
{
    const struct hd_stage *stage = block->stage;
    args->weight = hd_master_at(stage, weight, block->index);
    args->row_count = (uint32_t)stage->layout.tokens;
    args->width = (uint32_t)stage->layout.weights[weight].columns;
    args->epsilon = stage->spec.norm_epsilon;
}

hd_status hd_norm(const struct hd_block *block, enum hd_weight weight, const void *x, void *y,
                  void *r)
{
    struct hd_norm_args args = {.x = x, .y = y, .rstd = r};
    block_norm(block, weight, &args);
    return block->stage->ops->rms_norm(block->stage->kernel->device, &args);
}

hd_status hd_norm_backward(const struct hd_block *block, enum hd_weight weight,
                           struct hd_norm_args tensors)
{
    block_norm(block, weight, &tensors);
    tensors.dweight = hd_gradient_at(block->stage, weight, block->index);
    return block->stage->ops->rms_norm_backward(block->stage->kernel->device, &tensors);
}

/* --- products --------------------------------------------------------------------------------- */

static bool block_is_expert(enum hd_weight weight)
{
    return weight == HD_WEIGHT_GATE_UP || weight == HD_WEIGHT_DOWN;
}

static struct hd_matrix block_activation(const struct hd_block *block, enum hd_weight weight,
                                         const void *data, uint64_t columns)
{
    const struct hd_stage *stage = block->stage;
    const struct hd_layout *layout = &stage->layout;
    return hd_matrix_of(data, stage->ops->activation,
                        block_is_expert(weight) ? layout->row_max : layout->tokens, columns);
}

/* The copy that a forward contracts over; a DGRAD has one of its own in MXFP8. */
static struct hd_matrix block_weight(const struct hd_block *block, enum hd_weight weight,
                                     bool is_dgrad)
{
    const struct hd_stage *stage = block->stage;
    const struct hd_weight_place *place = &stage->layout.weights[weight];
    const char *copy = hd_copy_at(stage, weight, block->index);
    return hd_matrix_of(copy + (is_dgrad ? place->dgrad_copy - place->copy : 0),
                        stage->ops->activation, place->rows, place->columns);
}

static hd_status block_multiply(const struct hd_block *block, enum hd_weight weight,
                                struct hd_gemm_args *args)
{
    const struct hd_stage *stage = block->stage;
    if (block_is_expert(weight) && stage->spec.experts > 0) {
        args->expert_count = stage->spec.experts;
        args->offsets = block->saved.offsets;
        return stage->ops->expert_gemm(stage->kernel->device, args);
    }
    return block_is_expert(weight) && stage->layout.is_mxfp8_dense
               ? hd_gemm_mxfp8(stage, args)
               : stage->ops->gemm(stage->kernel->device, args);
}

hd_status hd_project(const struct hd_block *block, enum hd_weight weight, const void *x,
                     const void *add, void *y)
{
    const struct hd_weight_place *place = &block->stage->layout.weights[weight];
    struct hd_gemm_args args = {.a = block_activation(block, weight, x, place->columns),
                                .b = block_weight(block, weight, false),
                                .c = block_activation(block, weight, y, place->rows),
                                .form = HD_FPROP};
    if (add != NULL) {
        args.add = block_activation(block, weight, add, place->rows);
    }
    return block_multiply(block, weight, &args);
}

hd_status hd_input_gradient(const struct hd_block *block, enum hd_weight weight, const void *dy,
                            void *dx)
{
    const struct hd_weight_place *place = &block->stage->layout.weights[weight];
    struct hd_gemm_args args = {.a = block_activation(block, weight, dy, place->rows),
                                .b = block_weight(block, weight, true),
                                .c = block_activation(block, weight, dx, place->columns),
                                .form = HD_DGRAD};
    return block_multiply(block, weight, &args);
}

hd_status hd_input_gradient_of_attention(const struct hd_block *block, const struct hd_work *from,
                                         void *dx)
{
    const struct {
        enum hd_weight weight;
        const void *dy;
    } parts[] = {{HD_WEIGHT_Q, from->dq}, {HD_WEIGHT_K, from->dk}, {HD_WEIGHT_V, from->dv}};
    const struct hd_stage *stage = block->stage;
    const uint64_t tokens = stage->layout.tokens, width = stage->spec.width;
    const struct hd_matrix sum = hd_matrix_of(from->sum, stage->ops->statistic, tokens, width);
    for (uint32_t part = 0; part < 3; part++) {
        const enum hd_weight weight = parts[part].weight;
        struct hd_gemm_args args = {
            .a =
                block_activation(block, weight, parts[part].dy, stage->layout.weights[weight].rows),
            .b = block_weight(block, weight, true),
            .c = part < 2 ? sum : block_activation(block, weight, dx, width),
            .form = HD_DGRAD};
        if (part > 0) {
            args.add = sum;
        }
        HD_TRY(stage->ops->gemm(stage->kernel->device, &args));
    }
    return HD_OK;
}

hd_status hd_weight_gradient(const struct hd_block *block, enum hd_weight weight, const void *dy,
                             const void *x)
{
    const struct hd_stage *stage = block->stage;
    const struct hd_weight_place *place = &stage->layout.weights[weight];
    struct hd_gemm_args args = {.a = block_activation(block, weight, dy, place->rows),
                                .b = block_activation(block, weight, x, place->columns),
                                .c = hd_matrix_of(hd_gradient_at(stage, weight, block->index),
                                                  stage->ops->statistic, place->rows,
                                                  place->columns),
                                .form = HD_WGRAD};
    return block_multiply(block, weight, &args);
}

/* --- attention -------------------------------------------------------------------------------- */

hd_status hd_rope(const struct hd_stage *stage, void *x, uint32_t heads, bool is_backward)
{
    const struct hd_rope_args args = {.x = x,
                                      .y = x,
                                      .cosine = stage->cosine,
                                      .sine = stage->sine,
                                      .batch = stage->spec.batch,
                                      .sequence = stage->spec.sequence,
                                      .heads = heads,
                                      .head_width = stage->spec.width / stage->spec.heads,
                                      .inverse = is_backward};
    return stage->ops->rope(stage->kernel->device, &args);
}

hd_status hd_rotate(const struct hd_block *block, void *qn, void *kn)
{
    const struct hd_stage *stage = block->stage;
    const struct hd_saved *saved = &block->saved;
    HD_TRY(hd_norm(block, HD_WEIGHT_QNORM, saved->q, qn, saved->rq));
    HD_TRY(hd_norm(block, HD_WEIGHT_KNORM, saved->k, kn, saved->rk));
    HD_TRY(hd_rope(stage, qn, stage->spec.heads, false));
    return hd_rope(stage, kn, stage->spec.key_value_heads, false);
}

static void block_attention(const struct hd_stage_spec *spec, struct hd_attention_args *args)
{
    args->batch = spec->batch;
    args->sequence = spec->sequence;
    args->heads = spec->heads;
    args->key_value_heads = spec->key_value_heads;
    args->head_width = spec->width / spec->heads;
}

hd_status hd_attention(const struct hd_stage *stage, struct hd_attention_args tensors)
{
    block_attention(&stage->spec, &tensors);
    return stage->ops->attention(stage->kernel->device, &tensors);
}

hd_status hd_attention_backward(const struct hd_stage *stage, struct hd_attention_args tensors)
{
    block_attention(&stage->spec, &tensors);
    return stage->ops->attention_backward(stage->kernel->device, &tensors);
}

/* --- experts ---------------------------------------------------------------------------------- */

static struct hd_route_args block_route(const struct hd_block *block, const void *xn)
{
    const struct hd_stage *stage = block->stage;
    const struct hd_stage_spec *spec = &stage->spec;
    const struct hd_saved *saved = &block->saved;
    const double share = block->pass->auxiliary_scale / spec->layers;
    return (struct hd_route_args){.x = xn,
                                  .weight = hd_master_at(stage, HD_WEIGHT_ROUTER, block->index),
                                  .probability = saved->p,
                                  .lse = saved->z,
                                  .selected = saved->selected,
                                  .gates = saved->gates,
                                  .counts = saved->counts,
                                  .token_count = (uint32_t)stage->layout.tokens,
                                  .width = spec->width,
                                  .experts = spec->experts,
                                  .experts_per_token = spec->experts_per_token,
                                  .normalize = spec->normalize_gates,
                                  .balance_scale = spec->balance_weight * share,
                                  .z_scale = spec->z_weight * share};
}

hd_status hd_route(const struct hd_block *block, const void *xn, double *terms)
{
    struct hd_route_args args = block_route(block, xn);
    args.balance = &terms[0];
    args.z = &terms[1];
    return block->stage->ops->route(block->stage->kernel->device, &args);
}

hd_status hd_route_backward(const struct hd_block *block, const void *xn, const void *dgates,
                            void *dx)
{
    struct hd_route_args args = block_route(block, xn);
    args.dgates = dgates;
    args.dx = dx;
    args.dweight = hd_gradient_at(block->stage, HD_WEIGHT_ROUTER, block->index);
    return block->stage->ops->route_backward(block->stage->kernel->device, &args);
}

static struct hd_rows_args block_rows(const struct hd_block *block, const void *rows)
{
    const struct hd_stage *stage = block->stage;
    const struct hd_saved *saved = &block->saved;
    return (struct hd_rows_args){.selected = saved->selected,
                                 .offsets = saved->offsets,
                                 .row_of = saved->row_of,
                                 .source = saved->source,
                                 .gates = saved->gates,
                                 .rows = hd_matrix_of(rows, stage->ops->activation,
                                                      stage->layout.row_max, stage->spec.width),
                                 .token_count = (uint32_t)stage->layout.tokens,
                                 .width = stage->spec.width,
                                 .experts = stage->spec.experts,
                                 .experts_per_token = stage->spec.experts_per_token};
}

hd_status hd_assign(const struct hd_block *block)
{
    const struct hd_rows_args args = block_rows(block, NULL);
    return block->stage->ops->assign(block->stage->kernel->device, &args);
}

hd_status hd_permute(const struct hd_block *block, const void *x, void *rows)
{
    struct hd_rows_args args = block_rows(block, rows);
    args.x = x;
    return block->stage->ops->permute(block->stage->kernel->device, &args);
}

hd_status hd_permute_backward(const struct hd_block *block, const void *rows, const void *add,
                              void *dx)
{
    struct hd_rows_args args = block_rows(block, rows);
    args.add = add;
    args.dx = dx;
    return block->stage->ops->permute_backward(block->stage->kernel->device, &args);
}

hd_status hd_combine(const struct hd_block *block, const void *rows, const void *residual,
                     void *out)
{
    struct hd_rows_args args = block_rows(block, rows);
    args.residual = residual;
    args.out = out;
    return block->stage->ops->combine(block->stage->kernel->device, &args);
}

static void block_swiglu(const struct hd_block *block, struct hd_swiglu_args *args)
{
    const struct hd_stage *stage = block->stage;
    args->experts = stage->spec.experts;
    args->expert_width = stage->spec.expert_width;
    args->row_count = (uint32_t)stage->layout.row_max;
    if (stage->spec.experts > 0) {
        args->gates = block->saved.gates;
        args->source = block->saved.source;
        args->offsets = block->saved.offsets;
    }
}

hd_status hd_swiglu(const struct hd_block *block, const void *gate_up, void *h)
{
    struct hd_swiglu_args args = {.gate_up = gate_up, .h = h};
    block_swiglu(block, &args);
    return block->stage->ops->swiglu(block->stage->kernel->device, &args);
}

hd_status hd_swiglu_backward(const struct hd_block *block, struct hd_swiglu_args tensors)
{
    block_swiglu(block, &tensors);
    return block->stage->ops->swiglu_backward(block->stage->kernel->device, &tensors);
}

/* --- head ------------------------------------------------------------------------------------- */

static void block_head(const struct hd_stage *stage, const struct hd_pass *pass,
                       struct hd_head_args *args)
{
    args->weight = hd_copy_at(stage, HD_WEIGHT_HEAD, 0);
    args->targets = pass->targets;
    args->token_count = (uint32_t)stage->layout.tokens;
    args->width = stage->spec.width;
    args->vocabulary = stage->spec.vocabulary;
    args->label_scale = pass->label_scale;
}

hd_status hd_head_loss(const struct hd_stage *stage, const struct hd_pass *pass,
                       struct hd_head_args tensors)
{
    block_head(stage, pass, &tensors);
    return stage->ops->head_loss(stage->kernel->device, &tensors);
}

hd_status hd_head_loss_backward(const struct hd_stage *stage, const struct hd_pass *pass,
                                struct hd_head_args tensors)
{
    block_head(stage, pass, &tensors);
    tensors.dweight = hd_gradient_at(stage, HD_WEIGHT_HEAD, 0);
    return stage->ops->head_loss_backward(stage->kernel->device, &tensors);
}
