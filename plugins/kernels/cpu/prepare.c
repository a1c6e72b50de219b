/*
 * plugins/kernels/cpu/prepare.c - creates the primitives of a stage before its first pass (K2).
 *
 * It lists the shapes of the stage program's products, and of the tiles of attention and head.
 * They are lowered as in a pass, but nothing is computed.
 */
#include "device.h"

#include <stddef.h>

struct plan {
    struct hd_ops_device *device;
    const struct hd_stage_spec *spec;
    uint32_t activation; /* enum hd_dtype */
    uint32_t tokens, key_width;
    hd_status status; /* the first that is not OK */
};

enum addend { NO_ADDEND, OF_ACTIVATION, OF_SUMS, IN_PLACE };

/* A GEMM over `rows` rows, from `inner` to `outer` columns; its addresses only differ. */
struct shape {
    uint32_t form, rows, inner, outer;
    uint32_t result; /* enum hd_dtype */
    enum addend addend;
};

static void cpu_make_gemm(struct plan *plan, struct shape shape)
{
    static char places[4];
    const uint32_t activation = plan->activation;
    struct hd_gemm_args args = {.form = shape.form,
                                .a = {&places[0], NULL, activation, shape.rows, shape.inner},
                                .b = {&places[1], NULL, activation, shape.outer, shape.inner},
                                .c = {&places[2], NULL, shape.result, shape.rows, shape.outer}};
    if (shape.form == HD_WGRAD) {
        args.b = (struct hd_matrix){&places[1], NULL, activation, shape.rows, shape.outer};
    }
    if (shape.addend == OF_ACTIVATION) {
        args.add = (struct hd_matrix){&places[3], NULL, activation, shape.rows, shape.outer};
    } else if (shape.addend == OF_SUMS) {
        args.add = (struct hd_matrix){&places[3], NULL, HD_F32, shape.rows, shape.outer};
    } else if (shape.addend == IN_PLACE) {
        args.add = args.c;
    }
    if (plan->status == HD_OK) {
        plan->status = hd_cpu_gemm(plan->device, &args);
    }
}

static void cpu_make_attention_gemms(struct plan *plan)
{
    const uint32_t tokens = plan->tokens, width = plan->spec->width, keys = plan->key_width;
    const uint32_t activation = plan->activation;
    const struct shape shapes[] = {
        {HD_FPROP, tokens, width, width, activation, NO_ADDEND},
        {HD_FPROP, tokens, width, keys, activation, NO_ADDEND},
        {HD_FPROP, tokens, width, width, activation, OF_ACTIVATION},
        {HD_DGRAD, tokens, width, width, activation, NO_ADDEND},
        {HD_DGRAD, tokens, width, width, HD_F32, NO_ADDEND},
        {HD_DGRAD, tokens, keys, width, HD_F32, IN_PLACE},
        {HD_DGRAD, tokens, keys, width, activation, OF_SUMS},
        {HD_WGRAD, tokens, width, width, HD_F32, NO_ADDEND},
        {HD_WGRAD, tokens, keys, width, HD_F32, NO_ADDEND},
    };
    for (uint32_t shape = 0; shape < sizeof shapes / sizeof shapes[0]; shape++) {
        cpu_make_gemm(plan, shapes[shape]);
    }
}

static void cpu_make_expert_gemms(struct plan *plan, uint32_t rows)
{
    const uint32_t width = plan->spec->width, inner = plan->spec->expert_width;
    const uint32_t activation = plan->activation;
    const enum addend residual = plan->spec->experts ? NO_ADDEND : OF_ACTIVATION;
    const struct shape shapes[] = {
        {HD_FPROP, rows, width, 2 * inner, activation, NO_ADDEND},
        {HD_FPROP, rows, inner, width, activation, residual},
        {HD_DGRAD, rows, width, inner, activation, NO_ADDEND},
        {HD_DGRAD, rows, 2 * inner, width, activation, NO_ADDEND},
        {HD_WGRAD, rows, width, inner, HD_F32, NO_ADDEND},
        {HD_WGRAD, rows, 2 * inner, width, HD_F32, NO_ADDEND},
    };
    for (uint32_t shape = 0; shape < sizeof shapes / sizeof shapes[0]; shape++) {
        cpu_make_gemm(plan, shapes[shape]);
    }
}

static void cpu_make(struct plan *plan, const struct hd_cpu_product *product)
{
    if (plan->status == HD_OK) {
        plan->status = hd_cpu_multiply(plan->device, plan->device->scratch, product);
    }
}

static struct hd_cpu_operand cpu_operand(uint32_t dtype, uint32_t stride)
{
    static char place;
    return (struct hd_cpu_operand){.data = &place, .dtype = dtype, .stride = stride};
}

static void cpu_make_all(struct plan *plan, const struct hd_cpu_product products[3])
{
    for (uint32_t i = 0; i < 3; i++) {
        cpu_make(plan, &products[i]);
    }
}

/* As isa/attention.c: scores, their product with keys, and its transpose in the backward. */
static void cpu_make_tiles(struct plan *plan)
{
    const struct hd_stage_spec *spec = plan->spec;
    const uint32_t width = spec->width / spec->heads, dtype = plan->activation;
    const struct hd_cpu_operand queries = cpu_operand(dtype, spec->width), none = {0};
    const struct hd_cpu_operand keys = cpu_operand(dtype, plan->key_width);
    const struct hd_cpu_operand sums = cpu_operand(HD_F32, width);
    for (uint32_t first = 0; first < spec->sequence; first += HD_CPU_QUERIES) {
        const uint32_t left = spec->sequence - first;
        const uint32_t rows = left < HD_CPU_QUERIES ? left : HD_CPU_QUERIES, end = first + rows;
        const struct hd_cpu_operand tile = cpu_operand(dtype, end);
        const struct hd_cpu_operand scores = cpu_operand(HD_F32, end);
        const struct hd_cpu_product products[3] = {
            {queries, keys, scores, none, rows, end, width, HD_CPU_B, 0},
            {tile, keys, sums, none, rows, width, end, 0, 0},
            {tile, queries, sums, none, end, width, rows, HD_CPU_A, 1},
        };
        cpu_make_all(plan, products);
    }
}

/* As isa/head.c, for a chunk of `count` columns; `later` chunks add to dx. */
static void cpu_make_chunk(struct plan *plan, uint32_t count, uint32_t later)
{
    const uint32_t tokens = plan->tokens, width = plan->spec->width, dtype = plan->activation;
    const struct hd_cpu_operand matrix = cpu_operand(dtype, width), none = {0};
    const struct hd_cpu_operand chunk = cpu_operand(dtype, count);
    const struct hd_cpu_operand logits = cpu_operand(HD_F32, count);
    const struct hd_cpu_operand sums = cpu_operand(HD_F32, width);
    const struct hd_cpu_product products[3] = {
        {matrix, matrix, logits, none, tokens, count, width, HD_CPU_B, 0},
        {chunk, matrix, sums, none, tokens, width, count, 0, later},
        {chunk, matrix, sums, none, count, width, tokens, HD_CPU_A, 1},
    };
    cpu_make_all(plan, products);
}

static void cpu_make_head(struct plan *plan)
{
    const uint32_t vocabulary = plan->spec->vocabulary;
    const uint32_t widest = vocabulary < HD_HEAD_CHUNK ? vocabulary : HD_HEAD_CHUNK;
    cpu_make_chunk(plan, widest, 0);
    if (vocabulary >= 2 * HD_HEAD_CHUNK) {
        cpu_make_chunk(plan, widest, 1);
    }
    if (vocabulary > HD_HEAD_CHUNK && vocabulary % HD_HEAD_CHUNK) {
        cpu_make_chunk(plan, vocabulary % HD_HEAD_CHUNK, 1);
    }
}

static uint32_t cpu_piece_max(const struct hd_stage_spec *spec)
{
    const uint64_t tokens = (uint64_t)spec->batch * spec->sequence;
    const uint64_t rows = (tokens + HD_ROW_BLOCK - 1) / HD_ROW_BLOCK * HD_ROW_BLOCK;
    return rows < HD_CPU_ROW_PIECE ? (uint32_t)rows : HD_CPU_ROW_PIECE;
}

hd_status hd_cpu_prepare(struct hd_ops_device *device, const struct hd_ops *ops,
                         const struct hd_stage_spec *spec)
{
    struct plan plan = {.device = device,
                        .spec = spec,
                        .activation = ops->activation,
                        .tokens = spec->batch * spec->sequence,
                        .key_width = spec->width / spec->heads * spec->key_value_heads};
    device->only_make = true;
    cpu_make_attention_gemms(&plan);
    for (uint32_t rows = HD_ROW_BLOCK; spec->experts && rows <= cpu_piece_max(spec);
         rows += HD_ROW_BLOCK) {
        cpu_make_expert_gemms(&plan, rows);
    }
    if (spec->experts == 0) {
        cpu_make_expert_gemms(&plan, plan.tokens);
    }
    cpu_make_tiles(&plan);
    if (spec->has_head) {
        cpu_make_head(&plan);
    }
    device->only_make = false;
    hd_tell(device->host, HD_TELL_DEBUG, "stage %u: %llu oneDNN primitives are ready", spec->stage,
            (unsigned long long)hd_cpu_made_count(device->cache));
    return plan.status;
}

/* Measured with oneDNN 2.6.3: a primitive and its code; its table and scratchpad. */
#define PRIMITIVE_BYTES 110000u
#define TABLE_BYTES     2000000u

uint64_t hd_cpu_private_bytes(const struct hd_ops *ops, const struct hd_stage_spec *spec)
{
    (void)ops;
    const uint64_t tiles = (spec->sequence + HD_CPU_QUERIES - 1) / HD_CPU_QUERIES;
    const uint64_t pieces = spec->experts ? cpu_piece_max(spec) / HD_ROW_BLOCK : 1;
    const uint64_t primitives = 9 + 6 * pieces + 3 * tiles + (spec->has_head ? 9u : 0u);
    return TABLE_BYTES + primitives * PRIMITIVE_BYTES;
}
