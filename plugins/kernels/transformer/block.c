/*
 * plugins/kernels/transformer/block.c - the arguments that both directions share.
 *
 * One struct per op family: forward and backward fill the same addresses from the
 * same lines, so that what was saved is what is read.
 */
#include "mxfp8.h"
#include "stage.h"

hd_status hd_norm_rows(const struct hd_frame *frame, enum hd_weight weight, const void *x, void *y,
                       void *rstd)
{
    const struct hd_stage *stage = frame->stage;
    const struct hd_norm_args args = {.x = x,
                                      .weight = hd_master_at(stage, weight, frame->block),
                                      .y = y,
                                      .rstd = rstd,
                                      .row_count = (uint32_t)stage->layout.tokens,
                                      .width = (uint32_t)stage->layout.weights[weight].columns,
                                      .epsilon = stage->spec.norm_epsilon};
    return stage->ops->rms_norm(stage->kernel->device, &args);
}

struct hd_rope_args hd_rope_of(const struct hd_stage *stage, void *x, uint32_t heads,
                               uint32_t inverse)
{
    return (struct hd_rope_args){.x = x,
                                 .y = x,
                                 .cosine = stage->cosine,
                                 .sine = stage->sine,
                                 .batch = stage->spec.batch,
                                 .sequence = stage->spec.sequence,
                                 .heads = heads,
                                 .head_width = stage->spec.width / stage->spec.heads,
                                 .inverse = inverse};
}

/* A backward computes the statistics again, into the lines they came from: the same bits. */
hd_status hd_rotate(const struct hd_frame *frame)
{
    const struct hd_stage *stage = frame->stage;
    void *qn = hd_work_at(stage, HD_WORK_QN), *kn = hd_work_at(stage, HD_WORK_KN);
    const struct hd_rope_args q = hd_rope_of(stage, qn, stage->spec.heads, 0);
    const struct hd_rope_args k = hd_rope_of(stage, kn, stage->spec.key_value_heads, 0);
    hd_status status = hd_norm_rows(frame, HD_WEIGHT_QNORM, hd_line_at(frame, HD_LINE_Q), qn,
                                    hd_line_at(frame, HD_LINE_RQ));
    if (status == HD_OK) {
        status = hd_norm_rows(frame, HD_WEIGHT_KNORM, hd_line_at(frame, HD_LINE_K), kn,
                              hd_line_at(frame, HD_LINE_RK));
    }
    if (status == HD_OK) {
        status = stage->ops->rope(stage->kernel->device, &q);
    }
    return status == HD_OK ? stage->ops->rope(stage->kernel->device, &k) : status;
}

struct hd_attention_args hd_attention_of(const struct hd_frame *frame)
{
    const struct hd_stage *stage = frame->stage;
    return (struct hd_attention_args){.q = hd_work_at(stage, HD_WORK_QN),
                                      .k = hd_work_at(stage, HD_WORK_KN),
                                      .v = hd_line_at(frame, HD_LINE_V),
                                      .out = hd_line_at(frame, HD_LINE_O),
                                      .lse = hd_line_at(frame, HD_LINE_LSE),
                                      .batch = stage->spec.batch,
                                      .sequence = stage->spec.sequence,
                                      .heads = stage->spec.heads,
                                      .key_value_heads = stage->spec.key_value_heads,
                                      .head_width = stage->spec.width / stage->spec.heads};
}

struct hd_route_args hd_route_of(const struct hd_frame *frame)
{
    const struct hd_stage *stage = frame->stage;
    const struct hd_stage_spec *spec = &stage->spec;
    const double share = frame->pass->auxiliary_scale / spec->layers;
    return (struct hd_route_args){.x = hd_work_at(stage, HD_WORK_XN),
                                  .weight = hd_master_at(stage, HD_WEIGHT_ROUTER, frame->block),
                                  .probability = hd_line_at(frame, HD_LINE_P),
                                  .lse = hd_line_at(frame, HD_LINE_Z),
                                  .selected = hd_line_at(frame, HD_LINE_SELECTED),
                                  .gates = hd_line_at(frame, HD_LINE_GATES),
                                  .counts = hd_line_at(frame, HD_LINE_COUNTS),
                                  .token_count = (uint32_t)stage->layout.tokens,
                                  .width = spec->width,
                                  .experts = spec->experts,
                                  .experts_per_token = spec->experts_per_token,
                                  .normalize = spec->normalize_gates,
                                  .balance_scale = spec->balance_weight * share,
                                  .z_scale = spec->z_weight * share};
}

struct hd_rows_args hd_rows_of(const struct hd_frame *frame)
{
    const struct hd_stage *stage = frame->stage;
    return (struct hd_rows_args){.selected = hd_line_at(frame, HD_LINE_SELECTED),
                                 .offsets = hd_line_at(frame, HD_LINE_OFFSETS),
                                 .row_of = hd_line_at(frame, HD_LINE_ROW_OF),
                                 .source = hd_line_at(frame, HD_LINE_SOURCE),
                                 .gates = hd_line_at(frame, HD_LINE_GATES),
                                 .token_count = (uint32_t)stage->layout.tokens,
                                 .width = stage->spec.width,
                                 .experts = stage->spec.experts,
                                 .experts_per_token = stage->spec.experts_per_token};
}

struct hd_swiglu_args hd_swiglu_of(const struct hd_frame *frame)
{
    const struct hd_stage *stage = frame->stage;
    struct hd_swiglu_args args = {.gate_up = hd_line_at(frame, HD_LINE_GATE_UP),
                                  .experts = stage->spec.experts,
                                  .expert_width = stage->spec.expert_width,
                                  .row_count = (uint32_t)stage->layout.row_max};
    if (stage->spec.experts) {
        args.gates = hd_line_at(frame, HD_LINE_GATES);
        args.source = hd_line_at(frame, HD_LINE_SOURCE);
        args.offsets = hd_line_at(frame, HD_LINE_OFFSETS);
    }
    return args;
}

hd_status hd_gemm_experts(const struct hd_frame *frame, struct hd_gemm_args *args)
{
    const struct hd_stage *stage = frame->stage;
    if (stage->spec.experts == 0) {
        return stage->layout.is_mxfp8_dense ? hd_gemm_mxfp8(stage, args)
                                            : stage->ops->gemm(stage->kernel->device, args);
    }
    args->expert_count = stage->spec.experts;
    args->offsets = hd_line_at(frame, HD_LINE_OFFSETS);
    return stage->ops->expert_gemm(stage->kernel->device, args);
}
