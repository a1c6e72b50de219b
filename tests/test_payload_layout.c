/*
 * tests/test_payload_layout.c - what a stage needs, to the byte, and what it refuses.
 *
 * A dry run prints these numbers before anything is allocated, so they are held against
 * the tables of the project's facts (payload.md: bytes of one slot; olmoe_names.md: names,
 * shapes, order and counts of parameters), which were computed apart from this code.
 */
#include "support/check.h"
#include "support/kernel_harness.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static struct hd_harness harness;

static struct hd_stage_spec demo(void)
{
    return (struct hd_stage_spec){.size = sizeof(struct hd_stage_spec),
                                  .layers = 8,
                                  .width = 128,
                                  .heads = 4,
                                  .experts = 8,
                                  .experts_per_token = 2,
                                  .expert_width = 192,
                                  .vocabulary = 256,
                                  .sequence = 128,
                                  .batch = 4,
                                  .block_count = 1};
}

static struct hd_stage_spec bench_cpu(void)
{
    struct hd_stage_spec spec = demo();
    spec.width = 512;
    spec.heads = 8;
    spec.expert_width = 1024;
    spec.sequence = 256;
    spec.batch = 2;
    return spec;
}

static struct hd_stage_needs needs_of(const struct hd_stage_spec *spec)
{
    struct hd_stage_needs needs = {.size = sizeof needs};
    CU_ASSERT_EQUAL(harness.ops->stage_needs(&harness.host, spec, &needs), HD_OK);
    return needs;
}

/* --- bytes ------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    uint32_t is_bench, block_count, has_head;
    uint64_t payload_bytes, boundary_bytes;
} slots[] = {
    {"demo bf16, n = 1", 0, 1, 0, 1986304, 131072},
    {"demo bf16, n = 2", 0, 2, 0, 4103424, 131072},
    {"demo bf16, n = 1 + has_head", 0, 1, 1, 1986304 + 135168, 131072},
    {"bench-cpu bf16, n = 1", 1, 1, 0, 9072384, 524288},
    {"bench-cpu bf16, n = 2", 1, 2, 0, 18668800, 524288},
    {"bench-cpu bf16, n = 2 + has_head", 1, 2, 1, 18668800 + 528384, 524288},
};

static void test_slot_bytes(void)
{
    for (unsigned i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        struct hd_stage_spec spec = slots[i].is_bench ? bench_cpu() : demo();
        spec.block_count = slots[i].block_count;
        spec.has_head = slots[i].has_head;
        const struct hd_stage_needs needs = needs_of(&spec);
        if (needs.payload_bytes != slots[i].payload_bytes) {
            printf("\n    %s: %llu, expected %llu", slots[i].name,
                   (unsigned long long)needs.payload_bytes,
                   (unsigned long long)slots[i].payload_bytes);
        }
        CU_ASSERT_EQUAL(needs.payload_bytes, slots[i].payload_bytes);
        CU_ASSERT_EQUAL(needs.boundary_bytes, slots[i].boundary_bytes);
        CU_ASSERT_EQUAL(needs.boundary_dtype, HD_BF16);
        CU_ASSERT_EQUAL(needs.acquisitions, 1);
        CU_ASSERT_EQUAL(needs.term_count, 2 * spec.block_count + spec.has_head);
    }
}

static void test_parameter_counts(void)
{
    static const uint64_t expected[] = {5320832, 109363712};
    for (unsigned i = 0; i < 2; i++) {
        struct hd_stage_spec spec = i ? bench_cpu() : demo();
        spec.block_count = spec.layers;
        spec.has_embedding = spec.has_head = 1;
        const struct hd_stage_needs needs = needs_of(&spec);
        /* Every line of these two models is a multiple of 64 bytes: nothing is padded. */
        CU_ASSERT_EQUAL((needs.gradient_bytes[0] + needs.gradient_bytes[1]) / 4, expected[i]);
        CU_ASSERT_EQUAL(needs.optimizer_bytes, 8 * expected[i]);
        /* Norms (4 d a block, d at the end) and routers have no bf16 copy. */
        const uint64_t alone = 8ull * (4 * spec.width + 8 * spec.width) + spec.width;
        CU_ASSERT_EQUAL(needs.parameter_bytes, 6 * expected[i] - 2 * alone);
        CU_ASSERT_EQUAL(needs.tensor_count, 267);
    }
}

/* 6 x active matrix parameters + 6 x layers x width x sequence, per token: 11.3 MF for demo. */
static void test_flops(void)
{
    struct hd_stage_spec spec = demo();
    spec.block_count = spec.layers;
    spec.has_embedding = spec.has_head = 1;
    const struct hd_stage_needs needs = needs_of(&spec);
    const double per_token = (needs.forward_flops + needs.backward_flops) / (4 * 128);
    CU_ASSERT_DOUBLE_EQUAL(per_token, 6.0 * (1712128 + 32768) + 6.0 * 8 * 128 * 128, 1);
}

/* A stage of the core's older, shorter structs is served; what is unset has its default. */
static void test_short_structs(void)
{
    struct hd_stage_spec spec = demo();
    const struct hd_stage_needs whole = needs_of(&spec);
    struct hd_stage_needs needs;
    memset(&needs, 0x5a, sizeof needs);
    needs.size = offsetof(struct hd_stage_needs, parameter_bytes);
    spec.size = offsetof(struct hd_stage_spec, expert_first);
    spec.key_value_heads = spec.heads;
    CU_ASSERT_EQUAL(harness.ops->stage_needs(&harness.host, &spec, &needs), HD_OK);
    CU_ASSERT_EQUAL(needs.boundary_bytes, whole.boundary_bytes);
    CU_ASSERT_EQUAL(needs.size, offsetof(struct hd_stage_needs, parameter_bytes));
    CU_ASSERT_EQUAL(needs.parameter_bytes, 0x5a5a5a5a5a5a5a5aull);
}

/* --- names ------------------------------------------------------------------------------------ */

struct row {
    const char *name;
    uint64_t rows, columns; /* columns 0: a vector */
    uint32_t group;
};

static void check_tensor(struct hd_chain *chain, uint32_t tensor, const struct row *row)
{
    struct hd_tensor about;
    hd_chain_tensor(chain, tensor, &about);
    const uint32_t is_matrix = row->columns > 0;
    CU_ASSERT_STRING_EQUAL(about.name, row->name);
    CU_ASSERT_EQUAL(about.dimension_count, is_matrix ? 2 : 1);
    CU_ASSERT_EQUAL(about.shape[0], row->rows);
    CU_ASSERT_EQUAL(about.shape[1], row->columns);
    CU_ASSERT_EQUAL(about.group, row->group);
    CU_ASSERT_EQUAL(about.decays, is_matrix);
    CU_ASSERT_EQUAL(about.initial, is_matrix ? HD_INITIAL_NORMAL : HD_INITIAL_ONE);
    CU_ASSERT_EQUAL(about.dtype, HD_F32);
}

#define BLOCK(i) "model.layers." #i "."

static const struct row moe_rows[] = {
    {"model.embed_tokens.weight", 11, 8, HD_DENSE},
    {BLOCK(0) "input_layernorm.weight", 8, 0, HD_DENSE},
    {BLOCK(0) "self_attn.q_proj.weight", 8, 8, HD_DENSE},
    {BLOCK(0) "self_attn.k_proj.weight", 4, 8, HD_DENSE},
    {BLOCK(0) "self_attn.v_proj.weight", 4, 8, HD_DENSE},
    {BLOCK(0) "self_attn.q_norm.weight", 8, 0, HD_DENSE},
    {BLOCK(0) "self_attn.k_norm.weight", 4, 0, HD_DENSE},
    {BLOCK(0) "self_attn.o_proj.weight", 8, 8, HD_DENSE},
    {BLOCK(0) "post_attention_layernorm.weight", 8, 0, HD_DENSE},
    {BLOCK(0) "mlp.gate.weight", 2, 8, HD_DENSE},
    {BLOCK(0) "mlp.experts.0.gate_proj.weight", 6, 8, HD_EXPERT},
    {BLOCK(0) "mlp.experts.0.up_proj.weight", 6, 8, HD_EXPERT},
    {BLOCK(0) "mlp.experts.0.down_proj.weight", 8, 6, HD_EXPERT},
    {BLOCK(0) "mlp.experts.1.gate_proj.weight", 6, 8, HD_EXPERT},
    {BLOCK(0) "mlp.experts.1.up_proj.weight", 6, 8, HD_EXPERT},
    {BLOCK(0) "mlp.experts.1.down_proj.weight", 8, 6, HD_EXPERT},
    {BLOCK(1) "input_layernorm.weight", 8, 0, HD_DENSE},
};

static const struct row dense_rows[] = {
    {BLOCK(0) "post_attention_layernorm.weight", 8, 0, HD_DENSE},
    {BLOCK(0) "mlp.gate_proj.weight", 6, 8, HD_DENSE},
    {BLOCK(0) "mlp.up_proj.weight", 6, 8, HD_DENSE},
    {BLOCK(0) "mlp.down_proj.weight", 8, 6, HD_DENSE},
    {BLOCK(1) "input_layernorm.weight", 8, 0, HD_DENSE},
};

static struct hd_stage_spec small_model(uint32_t experts)
{
    struct hd_stage_spec model = hd_chain_model();
    model.experts = experts;
    model.key_value_heads = experts ? 1 : 2;
    return model;
}

static void test_names_and_shapes(void)
{
    struct hd_chain chain;
    const struct hd_stage_spec model = small_model(2);
    CU_ASSERT_EQUAL_FATAL(hd_chain_open(&chain, &harness, &model, (uint32_t[]){2}, 1), HD_OK);
    CU_ASSERT_EQUAL(chain.tensor_count, 3 + 2 * (9 + 3 * 2));
    for (uint32_t i = 0; i < sizeof moe_rows / sizeof moe_rows[0]; i++) {
        check_tensor(&chain, i, &moe_rows[i]);
    }
    check_tensor(&chain, chain.tensor_count - 2,
                 &(struct row){"model.norm.weight", 8, 0, HD_DENSE});
    check_tensor(&chain, chain.tensor_count - 1, &(struct row){"lm_head.weight", 11, 8, HD_DENSE});
    hd_chain_close(&chain);
}

static void test_dense_names(void)
{
    struct hd_chain chain;
    const struct hd_stage_spec model = small_model(0);
    CU_ASSERT_EQUAL_FATAL(hd_chain_open(&chain, &harness, &model, (uint32_t[]){1, 1}, 2), HD_OK);
    CU_ASSERT_EQUAL(chain.tensor_count, 3 + 2 * (8 + 3));
    for (uint32_t i = 0; i < sizeof dense_rows / sizeof dense_rows[0]; i++) {
        check_tensor(&chain, 8 + i, &dense_rows[i]);
    }
    hd_chain_close(&chain);
}

/* Every named tensor is a part of its own: what is written under one name is read under it, by
   copy and in the gradient's region, and no two overlap. */
static void test_tensors_do_not_overlap(void)
{
    struct hd_chain chain;
    const struct hd_stage_spec model = small_model(2);
    double values[88];
    CU_ASSERT_EQUAL_FATAL(hd_chain_open(&chain, &harness, &model, (uint32_t[]){2}, 1), HD_OK);
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t code = 0; code < 4 * chain.tensor_count; code++) {
            struct hd_tensor about;
            const uint32_t tensor = code / 4, copy = code % 4;
            const uint64_t count = hd_chain_tensor(&chain, tensor, &about);
            CU_ASSERT_FATAL(count <= 88);
            for (uint64_t i = 0; pass == 0 && i < count; i++) {
                values[i] = code * 100.0 + (double)i;
            }
            if (pass == 0) {
                hd_chain_write(&chain, tensor, copy, values);
                continue;
            }
            hd_chain_read(&chain, tensor, copy, values);
            for (uint64_t i = 0; i < count; i++) {
                CU_ASSERT_EQUAL(values[i], code * 100.0 + (double)i);
            }
            const char *region = chain.stages[0].memory.gradients[about.group];
            float first;
            memcpy(&first, region + about.gradient_offset, sizeof first);
            CU_ASSERT_EQUAL(first, (float)((tensor * 4 + HD_GRADIENT) * 100));
        }
    }
    hd_chain_close(&chain);
}

/* --- refusals --------------------------------------------------------------------------------- */

struct refusal {
    const char *name, *remedy;
    hd_status status;
    uint32_t precision, recompute, half_batches, split_backward, heads, key_value_heads;
};

static const struct refusal refusals[] = {
    {"mxfp8", "use precision = bf16", HD_UNSUPPORTED, HD_PRECISION_MXFP8, 0, 0, 0, 4, 0},
    {"recompute", "use recompute = none", HD_UNSUPPORTED, 0, HD_RECOMPUTE_FULL, 0, 0, 4, 0},
    {"half batches", "use half_batches = 1", HD_UNSUPPORTED, 0, 0, 2, 0, 4, 0},
    {"split backward", "use a schedule with B", HD_UNSUPPORTED, 0, 0, 0, 1, 4, 0},
    {"odd head width", "width / heads is even", HD_UNSUPPORTED, 0, 0, 0, 0, 128, 0},
    {"uneven sharing", "a divisor of 4", HD_UNSUPPORTED, 0, 0, 0, 0, 4, 3},
};

static void test_refusals(void)
{
    for (unsigned i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *row = &refusals[i];
        struct hd_stage_spec spec = demo();
        struct hd_stage_needs needs = {.size = sizeof needs};
        spec.precision = row->precision;
        spec.recompute = row->recompute;
        spec.half_batches = row->half_batches;
        spec.split_backward = row->split_backward;
        spec.heads = row->heads;
        spec.key_value_heads = row->key_value_heads;
        harness.failure[0] = '\0';
        CU_ASSERT_EQUAL(harness.ops->stage_needs(&harness.host, &spec, &needs), row->status);
        CU_ASSERT_PTR_NOT_NULL(strstr(harness.failure, row->remedy));
        CU_ASSERT_EQUAL(needs.payload_bytes, 0);
    }
}

static void test_float64_boundary(void)
{
    struct hd_harness exact;
    struct hd_stage_spec spec = demo();
    struct hd_stage_needs needs = {.size = sizeof needs};
    spec.precision = HD_PRECISION_F32;
    CU_ASSERT_EQUAL(needs_of(&spec).boundary_dtype, HD_F32);
    CU_ASSERT_EQUAL(needs_of(&spec).boundary_bytes, 2 * 131072);
    CU_ASSERT_EQUAL_FATAL(hd_harness_open(&exact, "reference", "float64=on"), 0);
    CU_ASSERT_EQUAL(exact.ops->stage_needs(&exact.host, &spec, &needs), HD_OK);
    CU_ASSERT_EQUAL(needs.boundary_dtype, HD_F64);
    CU_ASSERT_EQUAL(needs.boundary_bytes, 4 * 131072);
    hd_harness_close(&exact);
}

static const struct hd_check checks[] = {
    {"a slot has the bytes of payload.md", test_slot_bytes},
    {"regions have the parameters of olmoe_names.md", test_parameter_counts},
    {"flops are those of the model", test_flops},
    {"shorter structs are served, and not overrun", test_short_structs},
    {"names, shapes, order and groups are the checkpoint's", test_names_and_shapes},
    {"a dense block has the names of OLMo", test_dense_names},
    {"no two tensors overlap, in any copy", test_tensors_do_not_overlap},
    {"what is not built is refused with a remedy", test_refusals},
    {"precision f32 has float32 boundaries, float64 with the option", test_float64_boundary},
};

int main(void)
{
    if (hd_harness_open(&harness, "reference", NULL) != 0) {
        return 1;
    }
    const int code = hd_check_main("payload_layout", checks, HD_CHECK_COUNT(checks));
    hd_harness_close(&harness);
    return code;
}
