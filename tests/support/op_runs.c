/* tests/support/op_runs.c - the arguments of every op but those of MXFP8 (op_mxfp8.c). */
#include "support/op_arguments.h"
#include "support/check.h"

/* --- the ops -------------------------------------------------------------------------------- */

static void run_embed(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t act = run->ops->activation, tokens = hd_op_tokens(run);
    const uint64_t count = (uint64_t)tokens * shape->width;
    int32_t *entries = hd_op_take(run, HD_OP_I32, tokens);
    for (uint32_t token = 0; token < tokens; token++) {
        entries[token] = (int32_t)(token * 7 % shape->vocabulary);
    }
    struct hd_embed_args args = {
        .tokens = hd_op_there(run, entries),
        .table = hd_op_input(run, act, (uint64_t)shape->vocabulary * shape->width),
        .x = hd_op_output(run, "x", act, count),
        .dx = hd_op_input(run, act, count),
        .dtable = hd_op_sum(run, "dtable", (uint64_t)shape->vocabulary * shape->width),
        .token_count = tokens,
        .width = shape->width,
        .vocabulary = shape->vocabulary};
    HD_OP_RUN(embed, &args);
    HD_OP_RUN(embed_backward, &args);
}

static void run_norm(struct hd_op_run *run)
{
    const uint32_t act = run->ops->activation, tokens = hd_op_tokens(run),
                   width = run->shape->width;
    const uint64_t count = (uint64_t)tokens * width;
    struct hd_norm_args args = {.x = hd_op_input(run, act, count),
                                .weight = hd_op_input_at(run, HD_F32, width, 1),
                                .y = hd_op_output(run, "y", act, count),
                                .rstd = hd_op_output(run, "rstd", HD_F32, tokens),
                                .dy = hd_op_input(run, act, count),
                                .dx = hd_op_output(run, "dx", act, count),
                                .dweight = hd_op_sum(run, "dweight", width),
                                .row_count = tokens,
                                .width = width,
                                .epsilon = 1e-5};
    HD_OP_RUN(rms_norm, &args);
    HD_OP_RUN(rms_norm_backward, &args);
    args.add = hd_op_input(run, act, count);
    args.dx = hd_op_output(run, "dx with add", act, count);
    HD_OP_RUN(rms_norm_backward, &args);
}

static void run_rope(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t act = run->ops->activation, head_width = shape->width / shape->heads;
    const uint64_t count = (uint64_t)hd_op_tokens(run) * shape->width;
    const uint64_t pairs = (uint64_t)shape->sequence * (head_width / 2);
    struct hd_rope_args args = {.x = hd_op_input(run, act, count),
                                .y = hd_op_output(run, "y", act, count),
                                .cosine = hd_op_input(run, HD_F32, pairs),
                                .sine = hd_op_input(run, HD_F32, pairs),
                                .batch = shape->batch,
                                .sequence = shape->sequence,
                                .heads = shape->heads,
                                .head_width = head_width};
    HD_OP_RUN(rope, &args);
    args.inverse = 1;
    args.y = hd_op_output(run, "y, inverse", act, count);
    HD_OP_RUN(rope, &args);
}

static void run_attention(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t act = run->ops->activation, head_width = shape->width / shape->heads;
    const uint64_t count = (uint64_t)hd_op_tokens(run) * shape->width;
    const uint64_t shared = (uint64_t)hd_op_tokens(run) * head_width * shape->key_value_heads;
    struct hd_attention_args args = {
        .q = hd_op_input(run, act, count),
        .k = hd_op_input(run, act, shared),
        .v = hd_op_input(run, act, shared),
        .out = hd_op_output(run, "out", act, count),
        .lse = hd_op_output(run, "lse", HD_F32, (uint64_t)hd_op_tokens(run) * shape->heads),
        .dout = hd_op_input(run, act, count),
        .dq = hd_op_output(run, "dq", act, count),
        .dk = hd_op_output(run, "dk", act, shared),
        .dv = hd_op_output(run, "dv", act, shared),
        .batch = shape->batch,
        .sequence = shape->sequence,
        .heads = shape->heads,
        .key_value_heads = shape->key_value_heads,
        .head_width = head_width};
    HD_OP_RUN(attention, &args);
    HD_OP_RUN(attention_backward, &args);
}

static void run_route(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t act = run->ops->activation, tokens = hd_op_tokens(run);
    const uint64_t count = (uint64_t)tokens * shape->width, picks = (uint64_t)tokens * shape->picks;
    struct hd_route_args args = {
        .x = hd_op_input(run, act, count),
        .weight = hd_op_input(run, HD_F32, (uint64_t)shape->experts * shape->width),
        .probability = hd_op_output(run, "probability", HD_F32, (uint64_t)tokens * shape->experts),
        .lse = hd_op_output(run, "lse", HD_F32, tokens),
        .selected = hd_op_output(run, "selected", HD_OP_I32, picks),
        .gates = hd_op_output(run, "gates", HD_F32, picks),
        .counts = hd_op_output(run, "counts", HD_OP_I32, shape->experts),
        .balance = hd_op_output(run, "balance", HD_OP_F64, 1),
        .z = hd_op_output(run, "z", HD_OP_F64, 1),
        .dgates = hd_op_input(run, HD_F32, picks),
        .dx = hd_op_output(run, "dx", HD_F32, count),
        .dweight = hd_op_sum(run, "dweight", (uint64_t)shape->experts * shape->width),
        .token_count = tokens,
        .width = shape->width,
        .experts = shape->experts,
        .experts_per_token = shape->picks,
        .normalize = shape->picks > 2,
        .balance_scale = 0.01,
        .z_scale = 0.001};
    HD_OP_RUN(route, &args);
    HD_OP_RUN(route_backward, &args);
}

/* The three maps; the last expert of several gets no token. */
static struct hd_rows_args assign_rows(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t tokens = hd_op_tokens(run),
                   used = shape->experts > 3 ? shape->experts - 1 : shape->experts;
    const uint64_t picks = (uint64_t)tokens * shape->picks;
    int32_t *selected = hd_op_take(run, HD_OP_I32, picks);
    for (uint64_t pick = 0; pick < picks; pick++) {
        selected[pick] = (int32_t)((pick / shape->picks * 5 + pick % shape->picks) % used);
    }
    struct hd_rows_args args = {
        .selected = hd_op_there(run, selected),
        .offsets = hd_op_output(run, "offsets", HD_OP_I32, shape->experts + 1ull),
        .row_of = hd_op_output(run, "row_of", HD_OP_I32, picks),
        .source = hd_op_output(run, "source", HD_OP_I32, hd_op_row_max(shape)),
        .token_count = tokens,
        .width = shape->width,
        .experts = shape->experts,
        .experts_per_token = shape->picks};
    HD_OP_RUN(assign, &args);
    return args;
}

/* How many rows the experts have got, which is the device's to say. */
static uint64_t rows_of(struct hd_op_run *run, const struct hd_rows_args *args)
{
    const int32_t *offsets = hd_op_read(run, args->offsets);
    return (uint64_t)offsets[run->shape->experts];
}

static void run_rows(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t act = run->ops->activation;
    const uint64_t count = (uint64_t)hd_op_tokens(run) * shape->width;
    void *x = hd_op_input(run, act, count);
    struct hd_rows_args args = assign_rows(run);
    const uint64_t rows = rows_of(run, &args);
    args.x = x;
    args.rows = (struct hd_matrix){hd_op_output(run, "rows", act, rows * shape->width), NULL, act,
                                   (uint32_t)hd_op_row_max(shape), shape->width};
    args.add = hd_op_input(run, HD_F32, count);
    args.dx = hd_op_output(run, "dx", act, count);
    args.gates = hd_op_input(run, HD_F32, (uint64_t)hd_op_tokens(run) * shape->picks);
    args.residual = hd_op_input(run, act, count);
    args.out = hd_op_output(run, "out", act, count);
    HD_OP_RUN(permute, &args);
    HD_OP_RUN(permute_backward, &args);
    HD_OP_RUN(combine, &args);
}

static struct hd_matrix matrix(void *data, uint32_t dtype, uint64_t rows, uint64_t columns)
{
    return (struct hd_matrix){data, NULL, dtype, (uint32_t)rows, (uint32_t)columns};
}

static void run_gemm(struct hd_op_run *run)
{
    const uint32_t act = run->ops->activation, m = hd_op_tokens(run), k = run->shape->width;
    const uint32_t outer = 2 * run->shape->inner;
    void *x = hd_op_input(run, act, (uint64_t)m * k),
         *dy = hd_op_input(run, act, (uint64_t)m * outer);
    void *weight = hd_op_input(run, act, (uint64_t)outer * k);
    struct hd_gemm_args args = {.a = matrix(x, act, m, k), .b = matrix(weight, act, outer, k)};
    args.c = matrix(hd_op_output(run, "forward", act, (uint64_t)m * outer), act, m, outer);
    HD_OP_RUN(gemm, &args);
    args.add = matrix(hd_op_input(run, act, (uint64_t)m * outer), act, m, outer);
    args.c =
        matrix(hd_op_output(run, "forward, added to", act, (uint64_t)m * outer), act, m, outer);
    HD_OP_RUN(gemm, &args);
    args = (struct hd_gemm_args){.a = matrix(dy, act, m, outer), .b = args.b, .form = HD_DGRAD};
    args.c = matrix(hd_op_output(run, "dx", act, (uint64_t)m * k), act, m, k);
    HD_OP_RUN(gemm, &args);
    args.c = matrix(hd_op_sum(run, "dx in float32", (uint64_t)m * k), HD_F32, m, k);
    args.add = args.c;
    HD_OP_RUN(gemm, &args);
    args = (struct hd_gemm_args){.a = matrix(dy, act, m, outer), .form = HD_WGRAD};
    args.b = matrix(x, act, m, k);
    args.c = matrix(hd_op_sum(run, "dW", (uint64_t)outer * k), HD_F32, outer, k);
    HD_OP_RUN(gemm, &args);
}

static void run_experts(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t act = run->ops->activation;
    const uint64_t k = shape->width, outer = shape->inner, all = hd_op_row_max(shape),
                   each = outer * k;
    const struct hd_rows_args rows = assign_rows(run);
    const uint64_t count = rows_of(run, &rows);
    void *x = hd_op_input(run, act, count * k), *dy = hd_op_input(run, act, count * outer);
    void *weight = hd_op_input(run, act, shape->experts * each);
    struct hd_gemm_args args = {
        .a = matrix(x, act, all, k),
        .b = matrix(weight, act, outer, k),
        .c = matrix(hd_op_output(run, "forward", act, count * outer), act, all, outer),
        .expert_count = shape->experts,
        .offsets = rows.offsets};
    HD_OP_RUN(expert_gemm, &args);
    args.form = HD_DGRAD;
    args.a = matrix(dy, act, all, outer);
    args.c = matrix(hd_op_output(run, "dx", act, count * k), act, all, k);
    HD_OP_RUN(expert_gemm, &args);
    args.form = HD_WGRAD;
    args.b = matrix(x, act, all, k);
    args.c = matrix(hd_op_sum(run, "dW", shape->experts * each), HD_F32, outer, k);
    HD_OP_RUN(expert_gemm, &args);
}

static void run_swiglu(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t act = run->ops->activation;
    const uint64_t picks = (uint64_t)hd_op_tokens(run) * shape->picks;
    const struct hd_rows_args rows = assign_rows(run);
    const uint64_t count = rows_of(run, &rows) * shape->inner;
    struct hd_swiglu_args args = {.gate_up = hd_op_input(run, act, 2 * count),
                                  .h = hd_op_output(run, "h", act, count),
                                  .e = hd_op_input(run, act, count),
                                  .gates = hd_op_input(run, HD_F32, picks),
                                  .source = rows.source,
                                  .dgates = hd_op_output(run, "dgates", HD_F32, picks),
                                  .dgate_up = hd_op_output(run, "dgate_up", act, 2 * count),
                                  .weighted = hd_op_output(run, "weighted", act, count),
                                  .offsets = rows.offsets,
                                  .experts = shape->experts,
                                  .expert_width = shape->inner,
                                  .row_count = (uint32_t)hd_op_row_max(shape)};
    HD_OP_RUN(swiglu, &args);
    HD_OP_RUN(swiglu_backward, &args);
}

static void run_head(struct hd_op_run *run)
{
    const struct hd_op_shape *shape = run->shape;
    const uint32_t act = run->ops->activation, tokens = hd_op_tokens(run);
    const uint64_t count = (uint64_t)tokens * shape->width;
    const uint64_t weights = (uint64_t)shape->vocabulary * shape->width;
    int32_t *targets = hd_op_take(run, HD_OP_I32, tokens);
    for (uint32_t token = 0; token < tokens; token++) {
        targets[token] = token % 5 == 4 ? -1 : (int32_t)(token * 3 % shape->vocabulary);
    }
    struct hd_head_args args = {.x = hd_op_input(run, act, count),
                                .weight = hd_op_input(run, act, weights),
                                .targets = hd_op_there(run, targets),
                                .lse = hd_op_output(run, "lse", HD_F32, tokens),
                                .loss = hd_op_output(run, "loss", HD_OP_F64, 1),
                                .dx = hd_op_output(run, "dx", act, count),
                                .dweight = hd_op_sum(run, "dweight", weights),
                                .token_count = tokens,
                                .width = shape->width,
                                .vocabulary = shape->vocabulary,
                                .label_scale = 1.0 / tokens};
    HD_OP_RUN(head_loss, &args);
    HD_OP_RUN(head_loss_backward, &args);
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
    struct hd_optimizer_args args = {.master = hd_op_sum(run, "master", count),
                                     .moment1 = hd_op_sum(run, "moment1", count),
                                     .gradient = hd_op_input(run, HD_F32, count),
                                     .copy = hd_op_output(run, "converted", act, count),
                                     .squared = hd_op_output(run, "squared", HD_OP_F64, 1),
                                     .count = count,
                                     .decays = 1,
                                     .update = &update};
    HD_OP_RUN(convert, &args);
    HD_OP_RUN(square_sum, &args);
    args.moment2 = hd_op_input_at(run, HD_F32, count, 1); /* a mean of squares is positive */
    hd_op_watch(run, "moment2", args.moment2,
                (struct hd_op_output){.dtype = HD_F32, .count = count});
    args.copy = hd_op_output(run, "copy", act, count);
    HD_OP_RUN(adamw, &args);
}

/* In BF16 one rounding may fall the other way here and there; attention besides rounds its
   probabilities on the way, and its P V is divided before or after that. */
const struct hd_op_driver hd_op_drivers[] = {
    {"embed", run_embed, 0, 0},
    {"rms_norm", run_norm, 1e-3, 0},
    {"rope", run_rope, 1e-3, 0},
    {"attention", run_attention, 8e-3, 0},
    {"route", run_route, 1e-5, 0},
    {"assign, permute, combine", run_rows, 1e-3, 0},
    {"gemm", run_gemm, 1e-3, 0},
    {"expert_gemm", run_experts, 1e-3, 0},
    {"swiglu", run_swiglu, 1e-3, 0},
    {"head_loss", run_head, 4e-3, 0},
    {"convert, adamw, square_sum", run_optimizer, 1e-3, 0},
    {"image", hd_op_run_image, 0, 1},
    {"quantise, dequantise", hd_op_run_quantise, 0, 1},
    {"quantise, dequantise: the vectors", hd_op_run_vectors, 0, 1},
};

const unsigned hd_op_driver_count = HD_CHECK_COUNT(hd_op_drivers);

void hd_op_run(struct hd_op_run *run, const struct hd_op_driver *driver, int with_nan)
{
    run->used_bytes = run->sent_bytes = run->output_count = run->input_count = 0;
    run->draws = run->seed;
    run->with_nan = with_nan;
    driver->run(run);
    hd_op_fetch(run);
}
