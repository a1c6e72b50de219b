/*
 * plugins/kernels/transformer/layout.c - offsets of all tensors: arithmetic on the spec.
 *
 * Nothing here depends on the routing: a payload is sized for the worst case, in which
 * every expert wastes 31 rows of padding.
 */
#include "layout.h"

#include "spec.h"

#include <assert.h>
#include <string.h>

static uint64_t layout_dtype_bytes(uint32_t dtype)
{
    return dtype == HD_F64 ? 8 : dtype == HD_BF16 ? 2 : 4;
}

/* Returns the cursor's offset, and moves the cursor past `bytes` to a multiple of `align`. */
static uint64_t layout_place(uint64_t *cursor, uint64_t bytes, uint64_t align)
{
    const uint64_t place = *cursor;
    *cursor = (place + bytes + align - 1) / align * align;
    return place;
}

static uint64_t layout_most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* --- weights ----------------------------------------------------------------------------- */

static void layout_shape_weights(const struct hd_stage_spec *spec, struct hd_layout *out)
{
    const uint64_t width = spec->width, shared = out->key_value_width;
    const uint64_t inner = spec->expert_width, experts = spec->experts ? spec->experts : 1;
    const uint64_t routers = spec->experts ? 1 : 0, tables = spec->has_embedding;
    const uint64_t heads = spec->has_head;
    const uint32_t group = spec->experts ? HD_EXPERT : HD_DENSE;
    const struct {
        uint64_t experts, rows, columns;
        uint32_t group;
        bool is_matrix, has_copy, in_block;
    } rows[HD_WEIGHT_COUNT] = {
        [HD_WEIGHT_EMBED] = {tables, spec->vocabulary, width, HD_DENSE, true, true, false},
        [HD_WEIGHT_NORM1] = {1, 1, width, HD_DENSE, false, false, true},
        [HD_WEIGHT_Q] = {1, width, width, HD_DENSE, true, true, true},
        [HD_WEIGHT_K] = {1, shared, width, HD_DENSE, true, true, true},
        [HD_WEIGHT_V] = {1, shared, width, HD_DENSE, true, true, true},
        [HD_WEIGHT_QNORM] = {1, 1, width, HD_DENSE, false, false, true},
        [HD_WEIGHT_KNORM] = {1, 1, shared, HD_DENSE, false, false, true},
        [HD_WEIGHT_O] = {1, width, width, HD_DENSE, true, true, true},
        [HD_WEIGHT_NORM2] = {1, 1, width, HD_DENSE, false, false, true},
        [HD_WEIGHT_ROUTER] = {routers, spec->experts, width, HD_DENSE, true, false, true},
        [HD_WEIGHT_GATE_UP] = {experts, 2 * inner, width, group, true, true, true},
        [HD_WEIGHT_DOWN] = {experts, width, inner, group, true, true, true},
        [HD_WEIGHT_NORM] = {heads, 1, width, HD_DENSE, false, false, false},
        [HD_WEIGHT_HEAD] = {heads, spec->vocabulary, width, HD_DENSE, true, true, false},
    };
    for (uint32_t i = 0; i < HD_WEIGHT_COUNT; i++) {
        out->weights[i] = (struct hd_weight_place){.experts = rows[i].experts,
                                                   .rows = rows[i].rows,
                                                   .columns = rows[i].columns,
                                                   .group = rows[i].group,
                                                   .is_matrix = rows[i].is_matrix,
                                                   .has_copy = rows[i].has_copy,
                                                   .in_block = rows[i].in_block};
    }
}

/* The end of what is placed so far, in each region. */
struct cursors {
    uint64_t parameters, optimizer, gradients[HD_GROUP_COUNT];
};

static void layout_place_weight(struct hd_layout *out, enum hd_weight weight, struct cursors *at)
{
    struct hd_weight_place *place = &out->weights[weight];
    place->count = place->experts * place->rows * place->columns;
    const uint64_t bytes = place->count * out->statistic_bytes;
    /* A copy in the master's own dtype would be the master. */
    place->has_copy = place->has_copy && out->activation_bytes != out->statistic_bytes;
    place->master = layout_place(&at->parameters, bytes, 64);
    place->copy = place->master;
    if (place->has_copy) {
        place->copy = layout_place(&at->parameters, place->count * out->activation_bytes, 64);
    }
    place->dgrad_copy = place->copy;
    if (out->is_mxfp8 && (weight == HD_WEIGHT_GATE_UP || weight == HD_WEIGHT_DOWN)) {
        place->dgrad_copy = layout_place(&at->parameters, place->count * out->activation_bytes, 64);
    }
    place->moment1 = layout_place(&at->optimizer, bytes, 64);
    place->moment2 = layout_place(&at->optimizer, bytes, 64);
    place->gradient = layout_place(&at->gradients[place->group], bytes, 64);
}

static void layout_place_weights(const struct hd_stage_spec *spec, struct hd_layout *out)
{
    struct cursors at = {0};
    layout_place_weight(out, HD_WEIGHT_EMBED, &at);
    const struct cursors begin = at;
    for (uint32_t weight = HD_WEIGHT_NORM1; weight <= HD_WEIGHT_DOWN; weight++) {
        layout_place_weight(out, weight, &at);
    }
    const uint64_t others = spec->block_count - 1;
    out->parameter_stride = at.parameters - begin.parameters;
    out->optimizer_stride = at.optimizer - begin.optimizer;
    at.parameters += others * out->parameter_stride;
    at.optimizer += others * out->optimizer_stride;
    for (uint32_t group = 0; group < HD_GROUP_COUNT; group++) {
        out->gradient_stride[group] = at.gradients[group] - begin.gradients[group];
        at.gradients[group] += others * out->gradient_stride[group];
    }
    layout_place_weight(out, HD_WEIGHT_NORM, &at);
    layout_place_weight(out, HD_WEIGHT_HEAD, &at);
    out->parameter_bytes = at.parameters;
    out->optimizer_bytes = at.optimizer;
    for (uint32_t group = 0; group < HD_GROUP_COUNT; group++) {
        out->gradient_bytes[group] = at.gradients[group];
    }
}

/* --- payload ----------------------------------------------------------------------------- */

/* Whether a forward keeps the tensor in the payload (otherwise it is computed again). */
static bool layout_is_kept(size_t index, uint32_t recompute)
{
    return index == HD_SAVED(x) || recompute == HD_RECOMPUTE_NONE ||
           (recompute == HD_RECOMPUTE_EXPERTS && index != HD_SAVED(gate_up));
}

static void layout_place_section(const struct hd_stage_spec *spec, struct hd_layout *out)
{
    const uint64_t a = out->activation_bytes, s = out->statistic_bytes, tokens = out->tokens;
    const uint64_t wide = tokens * spec->width * a, shared = tokens * out->key_value_width * a;
    const uint64_t routed = spec->experts ? 1 : 0, experts = spec->experts;
    const uint64_t chosen = routed * tokens * spec->experts_per_token;
    const uint64_t rows = routed * out->row_max * spec->width;
    const uint64_t bytes[HD_SAVED_COUNT] = {
        [HD_SAVED(x)] = wide,
        [HD_SAVED(r1)] = tokens * s,
        [HD_SAVED(rq)] = tokens * s,
        [HD_SAVED(rk)] = tokens * s,
        [HD_SAVED(r2)] = tokens * s,
        [HD_SAVED(q)] = wide,
        [HD_SAVED(k)] = shared,
        [HD_SAVED(v)] = shared,
        [HD_SAVED(o)] = wide,
        [HD_SAVED(lse)] = tokens * spec->heads * s,
        [HD_SAVED(x1)] = wide,
        [HD_SAVED(p)] = tokens * experts * s,
        [HD_SAVED(z)] = routed * tokens * s,
        [HD_SAVED(gates)] = chosen * s,
        [HD_SAVED(selected)] = chosen * sizeof(int32_t),
        [HD_SAVED(row_of)] = chosen * sizeof(int32_t),
        [HD_SAVED(counts)] = experts * sizeof(int32_t),
        [HD_SAVED(offsets)] = routed * (experts + 1) * sizeof(int32_t),
        [HD_SAVED(source)] = routed * out->row_max * sizeof(int32_t),
        [HD_SAVED(rows)] = out->is_mxfp8 ? rows : rows * a,
        [HD_SAVED(scales)] = out->is_mxfp8 ? rows / HD_ROW_BLOCK : 0,
        [HD_SAVED(gate_up)] = out->row_max * 2 * spec->expert_width * a,
    };
    for (size_t i = 0; i < HD_SAVED_COUNT; i++) {
        out->section[i] = layout_place(&out->section_bytes, bytes[i], HD_TENSOR_ALIGNMENT);
        out->kept[i] = layout_is_kept(i, spec->recompute)
                           ? layout_place(&out->kept_stride, bytes[i], HD_TENSOR_ALIGNMENT)
                           : HD_NOT_KEPT;
    }
    out->first_shift = out->section[HD_SAVED(r1)];
}

static void layout_place_payload(const struct hd_stage_spec *spec, struct hd_layout *out)
{
    uint64_t cursor = HD_STAMP_BYTES + spec->block_count * out->kept_stride - out->first_shift;
    if (spec->has_head) {
        const uint64_t wide = out->tokens * spec->width * out->activation_bytes;
        const uint64_t statistic = out->tokens * out->statistic_bytes;
        out->head[HD_HEAD(x)] = layout_place(&cursor, wide, HD_TENSOR_ALIGNMENT);
        out->head[HD_HEAD(r)] = layout_place(&cursor, statistic, HD_TENSOR_ALIGNMENT);
        out->head[HD_HEAD(lse)] = layout_place(&cursor, statistic, HD_TENSOR_ALIGNMENT);
    }
    out->payload_bytes = cursor;
}

/* --- scratch ----------------------------------------------------------------------------- */

/* Places the tensors first..last from `begin` on; returns their end. */
static uint64_t layout_place_phase(struct hd_layout *out, const uint64_t *bytes, size_t first,
                                   size_t last, uint64_t begin)
{
    for (size_t i = first; i <= last; i++) {
        out->work[i] = layout_place(&begin, bytes[i], HD_TENSOR_ALIGNMENT);
    }
    return begin;
}

static void layout_place_scratch(const struct hd_stage_spec *spec, const struct hd_ops *ops,
                                 struct hd_layout *out)
{
    const uint64_t a = out->activation_bytes, s = out->statistic_bytes, rows = out->row_max;
    const uint64_t wide = out->tokens * spec->width * a, inner = rows * spec->expert_width * a;
    const uint64_t shared = out->tokens * out->key_value_width * a;
    const uint64_t only_mxfp8 = out->is_mxfp8, only_dense = out->is_mxfp8_dense;
    const uint64_t widest = layout_most(spec->width, 2ull * spec->expert_width);
    const uint64_t weight = 2ull * spec->expert_width * spec->width;
    const uint64_t source = out->tokens * layout_most(spec->width, spec->expert_width);
    const uint64_t bytes[HD_WORK_COUNT] = {
        [HD_WORK(terms)] = out->term_count * sizeof(double),
        [HD_WORK(slab)] =
            ops->image ? 0 : (only_mxfp8 + only_dense) * 2 * (HD_ROW_BLOCK + 1) * widest,
        [HD_WORK(g)] = wide,
        [HD_WORK(dx1)] = wide,
        [HD_WORK(xn)] = wide,
        [HD_WORK(qn)] = wide,
        [HD_WORK(kn)] = shared,
        [HD_WORK(dout)] = wide,
        [HD_WORK(dq)] = wide,
        [HD_WORK(dk)] = shared,
        [HD_WORK(dv)] = shared,
        [HD_WORK(sum)] = wide / a * s,
        [HD_WORK(dxr)] = wide / a * s,
        [HD_WORK(dxn)] = wide,
        [HD_WORK(dgates)] = out->tokens * spec->experts_per_token * s,
        [HD_WORK(wide)] = rows * spec->width * a,
        [HD_WORK(inner)] = inner,
        [HD_WORK(weighted)] = inner,
        [HD_WORK(dgate_up)] = 2 * inner,
        [HD_WORK(wide_columns)] = only_mxfp8 * rows * spec->width * a,
        [HD_WORK(dgate_up_columns)] = only_mxfp8 * 2 * inner,
        [HD_WORK(image_a)] = only_dense * out->tokens * widest * a,
        [HD_WORK(image_b)] = only_dense * layout_most(weight, source) * a,
    };
    uint64_t begin = out->section_bytes;
    begin = layout_place_phase(out, bytes, HD_WORK(terms), HD_WORK(xn), begin);
    const uint64_t attention = layout_place_phase(out, bytes, HD_WORK(qn), HD_WORK(sum), begin);
    const uint64_t experts = layout_place_phase(out, bytes, HD_WORK(dxr), HD_WORK(image_b), begin);
    out->ops_scratch = layout_most(attention, experts);
    out->ops_scratch_bytes = ops->scratch_bytes(spec);
    out->scratch_bytes = out->ops_scratch + out->ops_scratch_bytes;
}

void hd_layout_make(const struct hd_stage_spec *spec, const struct hd_ops *ops,
                    struct hd_layout *out)
{
    const bool is_mxfp8 = spec->precision == HD_PRECISION_MXFP8;
    assert(spec->block_count > 0 && spec->heads > 0 && spec->key_value_heads > 0);
    *out = (struct hd_layout){.activation_bytes = layout_dtype_bytes(ops->activation),
                              .statistic_bytes = layout_dtype_bytes(ops->statistic),
                              .is_mxfp8 = is_mxfp8 && spec->experts > 0,
                              .is_mxfp8_dense = is_mxfp8 && spec->experts == 0,
                              .term_count = hd_term_count(spec),
                              .tokens = (uint64_t)spec->batch * spec->sequence};
    out->key_value_width = (uint64_t)spec->width / spec->heads * spec->key_value_heads;
    out->row_max = out->tokens;
    if (spec->experts) {
        const uint64_t worst = out->tokens * spec->experts_per_token + 31ull * spec->experts;
        out->row_max = worst / HD_ROW_BLOCK * HD_ROW_BLOCK;
    }
    layout_shape_weights(spec, out);
    layout_place_weights(spec, out);
    layout_place_section(spec, out);
    layout_place_payload(spec, out);
    layout_place_scratch(spec, ops, out);
}
