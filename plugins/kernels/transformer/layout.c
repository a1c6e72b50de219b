/*
 * plugins/kernels/transformer/layout.c - where everything lies: arithmetic on the spec.
 *
 * Nothing here depends on the routing: a payload is sized for the worst case, in which
 * every expert wastes 31 rows of padding.
 */
#include "stage.h"

#include <assert.h>

static uint64_t transformer_dtype_bytes(uint32_t dtype)
{
    return dtype == HD_F64 ? 8 : dtype == HD_BF16 ? 2 : 4;
}

/* Gives `bytes` a place at the cursor, which moves on to the next multiple of `align`. */
static uint64_t transformer_take(uint64_t *cursor, uint64_t bytes, uint64_t align)
{
    const uint64_t place = *cursor;
    *cursor = (place + bytes + align - 1) / align * align;
    return place;
}

static uint64_t transformer_most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* --- weights ----------------------------------------------------------------------------- */

static void transformer_shape_block(const struct hd_stage_spec *spec, struct hd_layout *out)
{
    const uint64_t width = spec->width, shared = out->key_value_width;
    const uint64_t inner = spec->expert_width, experts = spec->experts ? spec->experts : 1;
    const uint32_t group = spec->experts ? HD_EXPERT : HD_DENSE;
    const struct {
        enum hd_weight weight;
        uint64_t experts, rows, columns;
        uint32_t group, is_matrix, has_copy;
    } rows[] = {
        {HD_WEIGHT_NORM1, 1, 1, width, HD_DENSE, 0, 0},
        {HD_WEIGHT_Q, 1, width, width, HD_DENSE, 1, 1},
        {HD_WEIGHT_K, 1, shared, width, HD_DENSE, 1, 1},
        {HD_WEIGHT_V, 1, shared, width, HD_DENSE, 1, 1},
        {HD_WEIGHT_QNORM, 1, 1, width, HD_DENSE, 0, 0},
        {HD_WEIGHT_KNORM, 1, 1, shared, HD_DENSE, 0, 0},
        {HD_WEIGHT_O, 1, width, width, HD_DENSE, 1, 1},
        {HD_WEIGHT_NORM2, 1, 1, width, HD_DENSE, 0, 0},
        {HD_WEIGHT_ROUTER, spec->experts ? 1 : 0, spec->experts, width, HD_DENSE, 1, 0},
        {HD_WEIGHT_GATE_UP, experts, 2 * inner, width, group, 1, 1},
        {HD_WEIGHT_DOWN, experts, width, inner, group, 1, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        out->weights[rows[i].weight] = (struct hd_weight_place){.experts = rows[i].experts,
                                                                .rows = rows[i].rows,
                                                                .columns = rows[i].columns,
                                                                .group = rows[i].group,
                                                                .is_matrix = rows[i].is_matrix,
                                                                .has_copy = rows[i].has_copy,
                                                                .in_block = 1};
    }
}

static void transformer_shape_ends(const struct hd_stage_spec *spec, struct hd_layout *out)
{
    if (spec->has_embedding) {
        out->weights[HD_WEIGHT_EMBED] = (struct hd_weight_place){.experts = 1,
                                                                 .rows = spec->vocabulary,
                                                                 .columns = spec->width,
                                                                 .is_matrix = 1,
                                                                 .has_copy = 1};
    }
    if (spec->has_head) {
        out->weights[HD_WEIGHT_NORM] =
            (struct hd_weight_place){.experts = 1, .rows = 1, .columns = spec->width};
        out->weights[HD_WEIGHT_HEAD] = (struct hd_weight_place){.experts = 1,
                                                                .rows = spec->vocabulary,
                                                                .columns = spec->width,
                                                                .is_matrix = 1,
                                                                .has_copy = 1};
    }
}

/* Where the regions have got to. */
struct cursors {
    uint64_t parameters, optimizer, gradients[HD_GROUP_COUNT];
};

static void transformer_place_weight(struct hd_layout *out, enum hd_weight weight,
                                     struct cursors *at)
{
    struct hd_weight_place *place = &out->weights[weight];
    place->count = place->experts * place->rows * place->columns;
    const uint64_t bytes = place->count * out->statistic_bytes;
    /* A copy of the master's own dtype would be the master. */
    place->has_copy = place->has_copy && out->activation_bytes != out->statistic_bytes;
    place->master = transformer_take(&at->parameters, bytes, 64);
    place->copy = place->master;
    if (place->has_copy) {
        place->copy = transformer_take(&at->parameters, place->count * out->activation_bytes, 64);
    }
    place->dgrad_copy = place->copy;
    if (out->is_mxfp8 && (weight == HD_WEIGHT_GATE_UP || weight == HD_WEIGHT_DOWN)) {
        place->dgrad_copy =
            transformer_take(&at->parameters, place->count * out->activation_bytes, 64);
    }
    place->moment1 = transformer_take(&at->optimizer, bytes, 64);
    place->moment2 = transformer_take(&at->optimizer, bytes, 64);
    place->gradient = transformer_take(&at->gradients[place->group], bytes, 64);
}

static void transformer_place_weights(const struct hd_stage_spec *spec, struct hd_layout *out)
{
    struct cursors at = {0};
    transformer_place_weight(out, HD_WEIGHT_EMBED, &at);
    const struct cursors begin = at;
    for (uint32_t weight = HD_WEIGHT_NORM1; weight <= HD_WEIGHT_DOWN; weight++) {
        transformer_place_weight(out, weight, &at);
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
    transformer_place_weight(out, HD_WEIGHT_NORM, &at);
    transformer_place_weight(out, HD_WEIGHT_HEAD, &at);
    out->parameter_bytes = at.parameters;
    out->optimizer_bytes = at.optimizer;
    for (uint32_t group = 0; group < HD_GROUP_COUNT; group++) {
        out->gradient_bytes[group] = at.gradients[group];
    }
}

/* --- payload ----------------------------------------------------------------------------- */

/* Whether a forward keeps the line: see payload.md's table, by its three columns. */
static int transformer_is_kept(enum hd_line line, uint32_t recompute)
{
    return line == HD_LINE_X || recompute == HD_RECOMPUTE_NONE ||
           (recompute == HD_RECOMPUTE_EXPERTS && line != HD_LINE_GATE_UP);
}

static void transformer_place_section(const struct hd_stage_spec *spec, struct hd_layout *out)
{
    const uint64_t a = out->activation_bytes, s = out->statistic_bytes, tokens = out->tokens;
    const uint64_t wide = tokens * spec->width * a, shared = tokens * out->key_value_width * a;
    const uint64_t routed = spec->experts ? 1 : 0, experts = spec->experts;
    const uint64_t chosen = routed * tokens * spec->experts_per_token;
    const uint64_t rows = routed * out->row_max * spec->width;
    const uint64_t bytes[HD_LINE_COUNT] = {
        [HD_LINE_X] = wide,
        [HD_LINE_R1] = tokens * s,
        [HD_LINE_RQ] = tokens * s,
        [HD_LINE_RK] = tokens * s,
        [HD_LINE_R2] = tokens * s,
        [HD_LINE_Q] = wide,
        [HD_LINE_K] = shared,
        [HD_LINE_V] = shared,
        [HD_LINE_O] = wide,
        [HD_LINE_LSE] = tokens * spec->heads * s,
        [HD_LINE_X1] = wide,
        [HD_LINE_P] = tokens * experts * s,
        [HD_LINE_Z] = routed * tokens * s,
        [HD_LINE_GATES] = chosen * s,
        [HD_LINE_SELECTED] = chosen * sizeof(int32_t),
        [HD_LINE_ROW_OF] = chosen * sizeof(int32_t),
        [HD_LINE_COUNTS] = experts * sizeof(int32_t),
        [HD_LINE_OFFSETS] = routed * (experts + 1) * sizeof(int32_t),
        [HD_LINE_SOURCE] = routed * out->row_max * sizeof(int32_t),
        [HD_LINE_ROWS] = out->is_mxfp8 ? rows : rows * a,
        [HD_LINE_SCALES] = out->is_mxfp8 ? rows / HD_ROW_BLOCK : 0,
        [HD_LINE_GATE_UP] = out->row_max * 2 * spec->expert_width * a,
    };
    for (uint32_t line = 0; line < HD_LINE_COUNT; line++) {
        out->line[line] = transformer_take(&out->section_bytes, bytes[line], HD_LINE_BYTES);
        out->kept[line] = transformer_is_kept(line, spec->recompute)
                              ? transformer_take(&out->kept_stride, bytes[line], HD_LINE_BYTES)
                              : HD_NOT_KEPT;
    }
    out->first_shift = out->line[HD_LINE_R1];
}

static void transformer_place_payload(const struct hd_stage_spec *spec, struct hd_layout *out)
{
    uint64_t cursor = HD_LINE_BYTES + spec->block_count * out->kept_stride - out->first_shift;
    if (spec->has_head) {
        const uint64_t wide = out->tokens * spec->width * out->activation_bytes;
        const uint64_t statistic = out->tokens * out->statistic_bytes;
        out->head[HD_HEAD_X] = transformer_take(&cursor, wide, HD_LINE_BYTES);
        out->head[HD_HEAD_RSTD] = transformer_take(&cursor, statistic, HD_LINE_BYTES);
        out->head[HD_HEAD_LSE] = transformer_take(&cursor, statistic, HD_LINE_BYTES);
    }
    out->payload_bytes = cursor;
}

/* --- scratch ----------------------------------------------------------------------------- */

/* Places the lines first..last from `begin`; returns where they end. */
static uint64_t transformer_place_phase(struct hd_layout *out, const uint64_t *bytes,
                                        enum hd_work first, enum hd_work last, uint64_t begin)
{
    for (uint32_t work = first; work <= last; work++) {
        out->work[work] = transformer_take(&begin, bytes[work], HD_LINE_BYTES);
    }
    return begin;
}

static void transformer_place_scratch(const struct hd_stage_spec *spec, const struct hd_ops *ops,
                                      struct hd_layout *out)
{
    const uint64_t a = out->activation_bytes, s = out->statistic_bytes, rows = out->row_max;
    const uint64_t wide = out->tokens * spec->width * a, inner = rows * spec->expert_width * a;
    const uint64_t shared = out->tokens * out->key_value_width * a;
    const uint64_t only_mxfp8 = out->is_mxfp8, only_dense = out->is_mxfp8_dense;
    const uint64_t widest = transformer_most(spec->width, 2ull * spec->expert_width);
    const uint64_t weight = 2ull * spec->expert_width * spec->width;
    const uint64_t source = out->tokens * transformer_most(spec->width, spec->expert_width);
    const uint64_t bytes[HD_WORK_COUNT] = {
        [HD_WORK_TERMS] = out->term_count * sizeof(double),
        [HD_WORK_SLAB] =
            ops->image ? 0 : (only_mxfp8 + only_dense) * 2 * (HD_ROW_BLOCK + 1) * widest,
        [HD_WORK_G] = wide,
        [HD_WORK_DX1] = wide,
        [HD_WORK_XN] = wide,
        [HD_WORK_QN] = wide,
        [HD_WORK_KN] = shared,
        [HD_WORK_DO] = wide,
        [HD_WORK_DQ] = wide,
        [HD_WORK_DK] = shared,
        [HD_WORK_DV] = shared,
        [HD_WORK_SUM] = wide / a * s,
        [HD_WORK_DXR] = wide / a * s,
        [HD_WORK_DXN] = wide,
        [HD_WORK_DGATES] = out->tokens * spec->experts_per_token * s,
        [HD_WORK_WIDE] = rows * spec->width * a,
        [HD_WORK_E] = inner,
        [HD_WORK_WEIGHTED] = inner,
        [HD_WORK_DGATE_UP] = 2 * inner,
        [HD_WORK_WIDE_COLUMNS] = only_mxfp8 * rows * spec->width * a,
        [HD_WORK_DGATE_UP_COLUMNS] = only_mxfp8 * 2 * inner,
        [HD_WORK_IMAGE_A] = only_dense * out->tokens * widest * a,
        [HD_WORK_IMAGE_B] = only_dense * transformer_most(weight, source) * a,
    };
    uint64_t begin = out->section_bytes;
    begin = transformer_place_phase(out, bytes, HD_WORK_TERMS, HD_WORK_XN, begin);
    const uint64_t attention = transformer_place_phase(out, bytes, HD_WORK_QN, HD_WORK_SUM, begin);
    const uint64_t experts =
        transformer_place_phase(out, bytes, HD_WORK_DXR, HD_WORK_IMAGE_B, begin);
    out->ops_scratch = transformer_most(attention, experts);
    out->ops_scratch_bytes = ops->scratch_bytes(spec);
    out->scratch_bytes = out->ops_scratch + out->ops_scratch_bytes;
}

void hd_layout_make(const struct hd_stage_spec *spec, const struct hd_ops *ops,
                    struct hd_layout *out)
{
    const int is_mxfp8 = spec->precision == HD_PRECISION_MXFP8;
    assert(spec->block_count > 0 && spec->heads > 0 && spec->key_value_heads > 0);
    *out = (struct hd_layout){.activation_bytes = transformer_dtype_bytes(ops->activation),
                              .statistic_bytes = transformer_dtype_bytes(ops->statistic),
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
    transformer_shape_block(spec, out);
    transformer_shape_ends(spec, out);
    transformer_place_weights(spec, out);
    transformer_place_section(spec, out);
    transformer_place_payload(spec, out);
    transformer_place_scratch(spec, ops, out);
}
