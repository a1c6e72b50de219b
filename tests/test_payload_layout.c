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

enum { BF16 = HD_PRECISION_BF16, MXFP8 = HD_PRECISION_MXFP8 };
enum { NONE = HD_RECOMPUTE_NONE, FULL = HD_RECOMPUTE_FULL, EXPERTS = HD_RECOMPUTE_EXPERTS };

static const struct {
    const char *name;
    uint32_t is_bench, precision, recompute, block_count, has_head;
    uint64_t payload_bytes;
} slots[] = {
    {"demo bf16, none, n = 1", 0, BF16, NONE, 1, 0, 1986304},
    {"demo bf16, none, n = 2", 0, BF16, NONE, 2, 0, 4103424},
    {"demo bf16, none, n = 1 + has_head", 0, BF16, NONE, 1, 1, 1986304 + 135168},
    {"demo bf16, experts, n = 1", 0, BF16, EXPERTS, 1, 0, 1027840},
    {"demo bf16, experts, n = 2", 0, BF16, EXPERTS, 2, 0, 2186496},
    {"demo bf16, full, n = 1", 0, BF16, FULL, 1, 0, 256},
    {"demo bf16, full, n = 2", 0, BF16, FULL, 2, 0, 131328},
    {"demo bf16, full, n = 2 + has_head", 0, BF16, FULL, 2, 1, 131328 + 135168},
    {"demo mxfp8, none, n = 1", 0, MXFP8, NONE, 1, 0, 1831680},
    {"demo mxfp8, none, n = 2", 0, MXFP8, NONE, 2, 0, 3794176},
    {"demo mxfp8, experts, n = 1", 0, MXFP8, EXPERTS, 1, 0, 873216},
    {"demo mxfp8, experts, n = 2 + has_head", 0, MXFP8, EXPERTS, 2, 1, 1877248 + 135168},
    {"demo mxfp8, full, n = 1", 0, MXFP8, FULL, 1, 0, 256},
    {"bench-cpu bf16, none, n = 1", 1, BF16, NONE, 1, 0, 9072384},
    {"bench-cpu bf16, none, n = 2", 1, BF16, NONE, 2, 0, 18668800},
    {"bench-cpu bf16, none, n = 2 + has_head", 1, BF16, NONE, 2, 1, 18668800 + 528384},
    {"bench-cpu bf16, experts, n = 2", 1, BF16, EXPERTS, 2, 0, 8445184},
    {"bench-cpu bf16, full, n = 2", 1, BF16, FULL, 2, 0, 524544},
    {"bench-cpu mxfp8, none, n = 1", 1, MXFP8, NONE, 1, 0, 8453376},
    {"bench-cpu mxfp8, none, n = 2", 1, MXFP8, NONE, 2, 0, 17430784},
    {"bench-cpu mxfp8, experts, n = 1", 1, MXFP8, EXPERTS, 1, 0, 3341568},
    {"bench-cpu mxfp8, experts, n = 2", 1, MXFP8, EXPERTS, 2, 0, 7207168},
    {"bench-cpu mxfp8, full, n = 2", 1, MXFP8, FULL, 2, 0, 524544},
};

static void test_slot_bytes(void)
{
    for (unsigned i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        struct hd_stage_spec spec = slots[i].is_bench ? bench_cpu() : demo();
        spec.precision = slots[i].precision;
        spec.recompute = slots[i].recompute;
        spec.block_count = slots[i].block_count;
        spec.has_head = slots[i].has_head;
        const struct hd_stage_needs needs = needs_of(&spec);
        if (needs.payload_bytes != slots[i].payload_bytes) {
            printf("\n    %s: %llu, expected %llu", slots[i].name,
                   (unsigned long long)needs.payload_bytes,
                   (unsigned long long)slots[i].payload_bytes);
        }
        CU_ASSERT_EQUAL(needs.payload_bytes, slots[i].payload_bytes);
        CU_ASSERT_EQUAL(needs.boundary_bytes, slots[i].is_bench ? 524288 : 131072);
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

/* Quantised experts have two BF16 images, by rows for FPROP and by columns for DGRAD: 8 bytes. */
static void test_mxfp8_parameter_bytes(void)
{
    for (unsigned i = 0; i < 2; i++) {
        struct hd_stage_spec spec = i ? bench_cpu() : demo();
        const struct hd_stage_needs plain = needs_of(&spec);
        spec.precision = HD_PRECISION_MXFP8;
        const struct hd_stage_needs needs = needs_of(&spec);
        const uint64_t expert_count = plain.gradient_bytes[HD_EXPERT] / 4;
        CU_ASSERT_EQUAL(needs.parameter_bytes, plain.parameter_bytes + 2 * expert_count);
        CU_ASSERT_EQUAL(needs.optimizer_bytes, plain.optimizer_bytes);
    }
}

/* Each half has a slot, and everything in it is of half the samples. */
static void test_half_batches(void)
{
    struct hd_stage_spec whole = demo(), half = demo();
    whole.half_batches = 2;
    half.batch /= 2;
    const struct hd_stage_needs two = needs_of(&whole), one = needs_of(&half);
    CU_ASSERT_EQUAL(two.acquisitions, 2);
    CU_ASSERT_EQUAL(two.payload_bytes, one.payload_bytes);
    CU_ASSERT_EQUAL(two.boundary_bytes, 2 * one.boundary_bytes);
    CU_ASSERT_EQUAL(two.parameter_bytes, one.parameter_bytes);
    CU_ASSERT_EQUAL(two.term_count, one.term_count);
    CU_ASSERT_EQUAL(two.forward_flops, 2 * one.forward_flops);
}

static double flops_a_token(struct hd_stage_spec spec)
{
    spec.block_count = spec.layers;
    spec.has_embedding = spec.has_head = 1;
    const struct hd_stage_needs needs = needs_of(&spec);
    return (needs.forward_flops + needs.backward_flops) / (spec.batch * spec.sequence);
}

/* 6 x active matrix parameters + 6 x layers x width x sequence, per token
   (docs/benchmarks.md): 11.3 MF for demo, 5053.6 MF for conf/h200_1gpu.ini. */
static void test_flops(void)
{
    struct hd_stage_spec large = demo();
    large.layers = large.heads = 16;
    large.width = large.sequence = 2048;
    large.experts = 32;
    large.experts_per_token = 4;
    large.expert_width = 1024;
    large.vocabulary = 50304;
    large.batch = 2;
    CU_ASSERT_DOUBLE_EQUAL(flops_a_token(demo()), 6.0 * (1712128 + 32768) + 6.0 * 8 * 128 * 128, 1);
    CU_ASSERT_DOUBLE_EQUAL(flops_a_token(large), 6.0 * 775159808 + 6.0 * 16 * 2048 * 2048, 1000);
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
    uint32_t offset, value; /* one member of the spec, beside precision */
    uint32_t precision;
};

#define MEMBER(name) offsetof(struct hd_stage_spec, name)

static const struct refusal refusals[] = {
    {"split backward", "use a schedule with B", MEMBER(split_backward), 1, BF16},
    {"odd head width", "width / heads is even", MEMBER(heads), 128, BF16},
    {"uneven sharing", "a divisor of 4", MEMBER(key_value_heads), 3, BF16},
    {"an unknown precision", "use bf16, mxfp8 or f32", MEMBER(precision), 3, 3},
    {"an unknown recomputation", "use none, full or experts", MEMBER(recompute), 3, BF16},
    {"three half batches", "use half_batches = 1 or 2", MEMBER(half_batches), 3, BF16},
    {"C85: width over blocks of 32", "width 136 leaves a remainder of 8", MEMBER(width), 136,
     MXFP8},
    {"C85: expert_width over blocks", "expert_width 200 of 8", MEMBER(expert_width), 200, MXFP8},
    {"an unknown scale rule", "use up or floor", MEMBER(scale_rule), 2, MXFP8},
};

static void check_refused(const struct hd_stage_spec *spec, const char *remedy)
{
    struct hd_stage_needs needs = {.size = sizeof needs};
    harness.failure[0] = '\0';
    CU_ASSERT_EQUAL(harness.ops->stage_needs(&harness.host, spec, &needs), HD_UNSUPPORTED);
    CU_ASSERT_PTR_NOT_NULL(strstr(harness.failure, remedy));
    CU_ASSERT_EQUAL(needs.payload_bytes, 0);
}

static void test_refusals(void)
{
    for (unsigned i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *row = &refusals[i];
        struct hd_stage_spec spec = demo();
        spec.precision = row->precision;
        memcpy((char *)&spec + row->offset, &row->value, sizeof row->value);
        check_refused(&spec, row->remedy);
    }
    struct hd_stage_spec odd = demo();
    odd.batch = 3;
    odd.half_batches = 2;
    check_refused(&odd, "a microbatch of 3 samples cannot be split into 2 halves");
    struct hd_stage_spec dense = demo(); /* C85; rows of experts are padded */
    dense.precision = MXFP8;
    dense.experts = 0;
    dense.sequence = 132;
    dense.half_batches = 2;
    check_refused(&dense, "a multiple of 32 tokens without experts, but a microbatch has 264");
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
    {"mxfp8: an expert's parameter takes 8 bytes", test_mxfp8_parameter_bytes},
    {"two half batches take two slots of half the size", test_half_batches},
    {"flops are those of the model", test_flops},
    {"shorter structs are served, and not overrun", test_short_structs},
    {"names, shapes, order and groups are the checkpoint's", test_names_and_shapes},
    {"a dense block has the names of OLMo", test_dense_names},
    {"no two tensors overlap, in any copy", test_tensors_do_not_overlap},
    {"what is not served is refused with a remedy", test_refusals},
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
