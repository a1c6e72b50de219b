/* tests/support/op_runs.c - the arguments of every op. */
#include "support/op_runs.h"
#include "base/bf16.h"
#include "support/check.h"

#include <math.h>
#include <string.h>

/* --- arguments ------------------------------------------------------------------------------ */

static uint64_t size_of(uint32_t dtype)
{
    return dtype == HD_BF16 ? 2 : dtype == HD_OP_F64 ? 8 : 4;
}

static void *take(struct hd_op_run *run, uint32_t dtype, uint64_t count)
{
    void *memory = run->memory + run->used_bytes;
    run->used_bytes += (count * size_of(dtype) + 127) / 64 * 64;
    CU_ASSERT_FATAL(run->used_bytes <= HD_OP_MEMORY_BYTES);
    memset(memory, 0xFF, count * size_of(dtype));
    return memory;
}

static double draw(uint64_t seed)
{
    uint64_t value = (seed + 1) * 0x9e3779b97f4a7c15ull;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return (double)((value ^ (value >> 31)) >> 11) * 0x1p-52 - 1;
}

static void put(void *data, uint32_t dtype, uint64_t at, float value)
{
    if (dtype == HD_BF16) {
        ((uint16_t *)data)[at] = hd_bf16_from_float(value);
    } else {
        ((float *)data)[at] = value;
    }
}

double hd_op_value(const struct hd_op_output *output, uint64_t at)
{
    switch (output->dtype) {
    case HD_BF16:
        return (double)hd_bf16_to_float(((const uint16_t *)output->data)[at]);
    case HD_OP_I32:
        return ((const int32_t *)output->data)[at];
    case HD_OP_F64:
        return ((const double *)output->data)[at];
    default:
        return (double)((const float *)output->data)[at];
    }
}

/* Drawn around `middle`, the same for both tables. */
static void *input_at(struct hd_op_run *run, uint32_t dtype, uint64_t count, double middle)
{
    void *data = take(run, dtype, count);
    for (uint64_t at = 0; at < count; at++) {
        put(data, dtype, at, (float)(middle + 0.5 * draw(run->draws++)));
    }
    if (run->with_nan == 1) {
        put(data, dtype, count / 2, NAN);
        run->with_nan = 2;
    }
    return data;
}

static void *input(struct hd_op_run *run, uint32_t dtype, uint64_t count)
{
    return input_at(run, dtype, count, 0);
}

static void *watch(struct hd_op_run *run, const char *name, void *data, struct hd_op_output of)
{
    CU_ASSERT_FATAL(run->output_count < HD_OP_OUTPUT_MAX);
    run->outputs[run->output_count++] =
        (struct hd_op_output){.name = name, .data = data, .dtype = of.dtype, .count = of.count};
    return data;
}

static void *output(struct hd_op_run *run, const char *name, uint32_t dtype, uint64_t count)
{
    return watch(run, name, take(run, dtype, count),
                 (struct hd_op_output){.dtype = dtype, .count = count});
}

/* A gradient: what was there stays in the sum. */
static void *sum(struct hd_op_run *run, const char *name, uint64_t count)
{
    return watch(run, name, input(run, HD_F32, count),
                 (struct hd_op_output){.dtype = HD_F32, .count = count});
}

static uint32_t tokens_of(const struct hd_op_run *run)
{
    return run->shape->batch * run->shape->sequence;
}

#define RUN(op, args) CU_ASSERT_EQUAL(run->ops->op(run->device, args), HD_OK)

/* --- the ops -------------------------------------------------------------------------------- */

static void run_embed(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t act = run->ops->activation, tokens = tokens_of(run);
    const uint64_t count = (uint64_t)tokens * shape->width;
    int32_t *entries = take(run, HD_OP_I32, tokens);
    for (uint32_t token = 0; token < tokens; token++) {
        entries[token] = (int32_t)(token * 7 % shape->vocabulary);
    }
    struct hd_embed_args args = {
        .tokens = entries,
        .table = input(run, act, (uint64_t)shape->vocabulary * shape->width),
        .x = output(run, "x", act, count),
        .dx = input(run, act, count),
        .dtable = sum(run, "dtable", (uint64_t)shape->vocabulary * shape->width),
        .token_count = tokens,
        .width = shape->width,
        .vocabulary = shape->vocabulary};
    RUN(embed, &args);
    RUN(embed_backward, &args);
}

static void run_norm(struct hd_op_run *run)
{
    const uint32_t act = run->ops->activation, tokens = tokens_of(run), width = run->shape->width;
    const uint64_t count = (uint64_t)tokens * width;
    struct hd_norm_args args = {.x = input(run, act, count),
                                .weight = input_at(run, HD_F32, width, 1),
                                .y = output(run, "y", act, count),
                                .rstd = output(run, "rstd", HD_F32, tokens),
                                .dy = input(run, act, count),
                                .dx = output(run, "dx", act, count),
                                .dweight = sum(run, "dweight", width),
                                .row_count = tokens,
                                .width = width,
                                .epsilon = 1e-5};
    RUN(rms_norm, &args);
    RUN(rms_norm_backward, &args);
    args.add = input(run, act, count);
    args.dx = output(run, "dx with add", act, count);
    RUN(rms_norm_backward, &args);
}

static void run_rope(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t act = run->ops->activation, head_width = shape->width / shape->heads;
    const uint64_t count = (uint64_t)tokens_of(run) * shape->width;
    const uint64_t pairs = (uint64_t)shape->sequence * (head_width / 2);
    struct hd_rope_args args = {.x = input(run, act, count),
                                .y = output(run, "y", act, count),
                                .cosine = input(run, HD_F32, pairs),
                                .sine = input(run, HD_F32, pairs),
                                .batch = shape->batch,
                                .sequence = shape->sequence,
                                .heads = shape->heads,
                                .head_width = head_width};
    RUN(rope, &args);
    args.inverse = 1;
    args.y = output(run, "y, inverse", act, count);
    RUN(rope, &args);
}

static void run_attention(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t act = run->ops->activation, head_width = shape->width / shape->heads;
    const uint64_t count = (uint64_t)tokens_of(run) * shape->width;
    const uint64_t shared = (uint64_t)tokens_of(run) * head_width * shape->key_value_heads;
    struct hd_attention_args args = {
        .q = input(run, act, count),
        .k = input(run, act, shared),
        .v = input(run, act, shared),
        .out = output(run, "out", act, count),
        .lse = output(run, "lse", HD_F32, (uint64_t)tokens_of(run) * shape->heads),
        .dout = input(run, act, count),
        .dq = output(run, "dq", act, count),
        .dk = output(run, "dk", act, shared),
        .dv = output(run, "dv", act, shared),
        .batch = shape->batch,
        .sequence = shape->sequence,
        .heads = shape->heads,
        .key_value_heads = shape->key_value_heads,
        .head_width = head_width};
    RUN(attention, &args);
    RUN(attention_backward, &args);
}

static void run_route(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t act = run->ops->activation, tokens = tokens_of(run);
    const uint64_t count = (uint64_t)tokens * shape->width, picks = (uint64_t)tokens * shape->picks;
    struct hd_route_args args = {
        .x = input(run, act, count),
        .weight = input(run, HD_F32, (uint64_t)shape->experts * shape->width),
        .probability = output(run, "probability", HD_F32, (uint64_t)tokens * shape->experts),
        .lse = output(run, "lse", HD_F32, tokens),
        .selected = output(run, "selected", HD_OP_I32, picks),
        .gates = output(run, "gates", HD_F32, picks),
        .counts = output(run, "counts", HD_OP_I32, shape->experts),
        .balance = output(run, "balance", HD_OP_F64, 1),
        .z = output(run, "z", HD_OP_F64, 1),
        .dgates = input(run, HD_F32, picks),
        .dx = output(run, "dx", HD_F32, count),
        .dweight = sum(run, "dweight", (uint64_t)shape->experts * shape->width),
        .token_count = tokens,
        .width = shape->width,
        .experts = shape->experts,
        .experts_per_token = shape->picks,
        .normalize = shape->picks > 2,
        .balance_scale = 0.01,
        .z_scale = 0.001};
    RUN(route, &args);
    RUN(route_backward, &args);
}

static uint64_t row_max(const struct hd_op_shape *shape)
{
    const uint64_t picks = (uint64_t)shape->batch * shape->sequence * shape->picks;
    return (picks + 31ull * shape->experts) / HD_ROW_BLOCK * HD_ROW_BLOCK;
}

/* The three maps; the last expert of several gets no token. */
static struct hd_rows_args assign_rows(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t tokens = tokens_of(run),
                   used = shape->experts > 3 ? shape->experts - 1 : shape->experts;
    const uint64_t picks = (uint64_t)tokens * shape->picks;
    int32_t *selected = take(run, HD_OP_I32, picks);
    for (uint64_t pick = 0; pick < picks; pick++) {
        selected[pick] = (int32_t)((pick / shape->picks * 5 + pick % shape->picks) % used);
    }
    struct hd_rows_args args = {.selected = selected,
                                .offsets = output(run, "offsets", HD_OP_I32, shape->experts + 1ull),
                                .row_of = output(run, "row_of", HD_OP_I32, picks),
                                .source = output(run, "source", HD_OP_I32, row_max(shape)),
                                .token_count = tokens,
                                .width = shape->width,
                                .experts = shape->experts,
                                .experts_per_token = shape->picks};
    RUN(assign, &args);
    return args;
}

static void run_rows(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t act = run->ops->activation;
    const uint64_t count = (uint64_t)tokens_of(run) * shape->width;
    void *x = input(run, act, count);
    struct hd_rows_args args = assign_rows(run);
    const uint64_t rows = (uint64_t)args.offsets[shape->experts];
    args.x = x;
    args.rows = (struct hd_matrix){output(run, "rows", act, rows * shape->width), NULL, act,
                                   (uint32_t)row_max(shape), shape->width};
    args.add = input(run, HD_F32, count);
    args.dx = output(run, "dx", act, count);
    args.gates = input(run, HD_F32, (uint64_t)tokens_of(run) * shape->picks);
    args.residual = input(run, act, count);
    args.out = output(run, "out", act, count);
    RUN(permute, &args);
    RUN(permute_backward, &args);
    RUN(combine, &args);
}

static struct hd_matrix matrix(void *data, uint32_t dtype, uint64_t rows, uint64_t columns)
{
    return (struct hd_matrix){data, NULL, dtype, (uint32_t)rows, (uint32_t)columns};
}

static void run_gemm(struct hd_op_run *run)
{
    const uint32_t act = run->ops->activation, m = tokens_of(run), k = run->shape->width;
    const uint32_t outer = 2 * run->shape->inner;
    void *x = input(run, act, (uint64_t)m * k), *dy = input(run, act, (uint64_t)m * outer);
    void *weight = input(run, act, (uint64_t)outer * k);
    struct hd_gemm_args args = {.a = matrix(x, act, m, k), .b = matrix(weight, act, outer, k)};
    args.c = matrix(output(run, "forward", act, (uint64_t)m * outer), act, m, outer);
    RUN(gemm, &args);
    args.add = matrix(input(run, act, (uint64_t)m * outer), act, m, outer);
    args.c = matrix(output(run, "forward, added to", act, (uint64_t)m * outer), act, m, outer);
    RUN(gemm, &args);
    args = (struct hd_gemm_args){.a = matrix(dy, act, m, outer), .b = args.b, .form = HD_DGRAD};
    args.c = matrix(output(run, "dx", act, (uint64_t)m * k), act, m, k);
    RUN(gemm, &args);
    args.c = matrix(sum(run, "dx in float32", (uint64_t)m * k), HD_F32, m, k);
    args.add = args.c;
    RUN(gemm, &args);
    args = (struct hd_gemm_args){.a = matrix(dy, act, m, outer), .form = HD_WGRAD};
    args.b = matrix(x, act, m, k);
    args.c = matrix(sum(run, "dW", (uint64_t)outer * k), HD_F32, outer, k);
    RUN(gemm, &args);
}

static void run_experts(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t act = run->ops->activation;
    const uint64_t k = shape->width, outer = shape->inner, all = row_max(shape), each = outer * k;
    const struct hd_rows_args rows = assign_rows(run);
    const uint64_t count = (uint64_t)rows.offsets[shape->experts];
    void *x = input(run, act, count * k), *dy = input(run, act, count * outer);
    void *weight = input(run, act, shape->experts * each);
    struct hd_gemm_args args = {
        .a = matrix(x, act, all, k),
        .b = matrix(weight, act, outer, k),
        .c = matrix(output(run, "forward", act, count * outer), act, all, outer),
        .expert_count = shape->experts,
        .offsets = rows.offsets};
    RUN(expert_gemm, &args);
    args.form = HD_DGRAD;
    args.a = matrix(dy, act, all, outer);
    args.c = matrix(output(run, "dx", act, count * k), act, all, k);
    RUN(expert_gemm, &args);
    args.form = HD_WGRAD;
    args.b = matrix(x, act, all, k);
    args.c = matrix(sum(run, "dW", shape->experts * each), HD_F32, outer, k);
    RUN(expert_gemm, &args);
}

static void run_swiglu(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t act = run->ops->activation;
    const uint64_t picks = (uint64_t)tokens_of(run) * shape->picks;
    const struct hd_rows_args rows = assign_rows(run);
    const uint64_t count = (uint64_t)rows.offsets[shape->experts] * shape->inner;
    struct hd_swiglu_args args = {.gate_up = input(run, act, 2 * count),
                                  .h = output(run, "h", act, count),
                                  .e = input(run, act, count),
                                  .gates = input(run, HD_F32, picks),
                                  .source = rows.source,
                                  .dgates = output(run, "dgates", HD_F32, picks),
                                  .dgate_up = output(run, "dgate_up", act, 2 * count),
                                  .weighted = output(run, "weighted", act, count),
                                  .offsets = rows.offsets,
                                  .experts = shape->experts,
                                  .expert_width = shape->inner,
                                  .row_count = (uint32_t)row_max(shape)};
    RUN(swiglu, &args);
    RUN(swiglu_backward, &args);
}

static void run_head(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t act = run->ops->activation, tokens = tokens_of(run);
    const uint64_t count = (uint64_t)tokens * shape->width;
    const uint64_t weights = (uint64_t)shape->vocabulary * shape->width;
    int32_t *targets = take(run, HD_OP_I32, tokens);
    for (uint32_t token = 0; token < tokens; token++) {
        targets[token] = token % 5 == 4 ? -1 : (int32_t)(token * 3 % shape->vocabulary);
    }
    struct hd_head_args args = {.x = input(run, act, count),
                                .weight = input(run, act, weights),
                                .targets = targets,
                                .lse = output(run, "lse", HD_F32, tokens),
                                .loss = output(run, "loss", HD_OP_F64, 1),
                                .dx = output(run, "dx", act, count),
                                .dweight = sum(run, "dweight", weights),
                                .token_count = tokens,
                                .width = shape->width,
                                .vocabulary = shape->vocabulary,
                                .label_scale = 1.0 / tokens};
    RUN(head_loss, &args);
    RUN(head_loss_backward, &args);
}

static void run_optimizer(struct hd_op_run *run)
{
    static const struct hd_update update = {.size = sizeof update,
                                            .step = 3,
                                            .learning_rate = 1e-2,
                                            .beta1 = 0.9,
                                            .beta2 = 0.95,
                                            .epsilon = 1e-8,
                                            .weight_decay = 0.1,
                                            .gradient_scale = 0.5};
    const uint32_t act = run->ops->activation;
    const uint64_t count = (uint64_t)run->shape->width * run->shape->inner + 5;
    struct hd_optimizer_args args = {.master = sum(run, "master", count),
                                     .moment1 = sum(run, "moment1", count),
                                     .gradient = input(run, HD_F32, count),
                                     .copy = output(run, "converted", act, count),
                                     .squared = output(run, "squared", HD_OP_F64, 1),
                                     .count = count,
                                     .decays = 1,
                                     .update = &update};
    RUN(convert, &args);
    RUN(square_sum, &args);
    args.moment2 = input_at(run, HD_F32, count, 1); /* a mean of squares is positive */
    watch(run, "moment2", args.moment2, (struct hd_op_output){.dtype = HD_F32, .count = count});
    args.copy = output(run, "copy", act, count);
    RUN(adamw, &args);
}

/* In BF16 one rounding may fall the other way here and there; attention besides rounds its
   probabilities on the way, and its P V is divided before or after that. */
const struct hd_op_driver hd_op_drivers[] = {
    {"embed", run_embed, 0},
    {"rms_norm", run_norm, 1e-3},
    {"rope", run_rope, 1e-3},
    {"attention", run_attention, 8e-3},
    {"route", run_route, 1e-5},
    {"assign, permute, combine", run_rows, 1e-3},
    {"gemm", run_gemm, 1e-3},
    {"expert_gemm", run_experts, 1e-3},
    {"swiglu", run_swiglu, 1e-3},
    {"head_loss", run_head, 4e-3},
    {"convert, adamw, square_sum", run_optimizer, 1e-3},
};

const unsigned hd_op_driver_count = HD_CHECK_COUNT(hd_op_drivers);

void hd_op_run(struct hd_op_run *run, const struct hd_op_driver *driver, int with_nan)
{
    run->used_bytes = run->draws = run->output_count = 0;
    run->with_nan = with_nan;
    driver->run(run);
}
