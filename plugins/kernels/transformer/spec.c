/*
 * plugins/kernels/transformer/spec.c - which models are served, and their costs.
 *
 * A spec is read once, and its defaults are filled in.  What is not implemented is refused; the
 * error says what to use instead.
 */
#include "spec.h"

#include "remote.h"

#include <string.h>

static void spec_fill_defaults(struct hd_stage_spec *spec)
{
    spec->key_value_heads = spec->key_value_heads ? spec->key_value_heads : spec->heads;
    spec->half_batches = spec->half_batches ? spec->half_batches : 1;
    spec->expert_count = spec->expert_count ? spec->expert_count : spec->experts;
    spec->rope_theta = spec->rope_theta > 0 ? spec->rope_theta : 1e4;
    spec->norm_epsilon = spec->norm_epsilon > 0 ? spec->norm_epsilon : 1e-5;
    spec->init_std = spec->init_std > 0 ? spec->init_std : 0.02;
}

/* What kernel.h has and this program does not implement. */
static hd_status spec_check_built(const struct hd_host *host, const struct hd_stage_spec *spec)
{
    if (spec->precision > HD_PRECISION_F32) {
        return hd_refuse(host, HD_UNSUPPORTED, "precision %u is unknown: use bf16, mxfp8 or f32",
                         spec->precision);
    }
    if (spec->recompute > HD_RECOMPUTE_EXPERTS) {
        return hd_refuse(host, HD_UNSUPPORTED, "recompute %u is unknown: use none, full or experts",
                         spec->recompute);
    }
    if (spec->half_batches > HD_ACQUISITION_MAX) {
        return hd_refuse(host, HD_UNSUPPORTED,
                         "half_batches is %u, but must be 1 or 2: use half_batches = 1 or 2",
                         spec->half_batches);
    }
    if (spec->split_backward) {
        return hd_refuse(host, HD_UNSUPPORTED,
                         "a split backward (I and W) is not implemented: use a schedule with B");
    }
    if (spec->expert_first != 0 || spec->expert_count != spec->experts) {
        return hd_refuse(
            host, HD_UNSUPPORTED,
            "experts %u..%u of %u: sharded experts are not implemented: use all of them",
            spec->expert_first, spec->expert_first + spec->expert_count, spec->experts);
    }
    return HD_OK;
}

/* Blocks of 32 run along both dimensions of a feed-forward's matrices.  Rows of experts are padded
   to 32; the tokens of a dense block are not. */
static hd_status spec_check_mxfp8(const struct hd_host *host, const struct hd_stage_spec *spec)
{
    if (spec->precision != HD_PRECISION_MXFP8) {
        return HD_OK;
    }
    const uint64_t tokens = (uint64_t)spec->batch / spec->half_batches * spec->sequence;
    if (spec->experts == 0 && tokens % HD_ROW_BLOCK) {
        return hd_refuse(host, HD_UNSUPPORTED,
                         "precision mxfp8 needs a multiple of 32 tokens without experts, but a "
                         "microbatch has %llu: make microbatch_size x sequence a multiple of 32",
                         (unsigned long long)tokens);
    }
    if (spec->width % HD_ROW_BLOCK || spec->expert_width % HD_ROW_BLOCK) {
        return hd_refuse(
            host, HD_UNSUPPORTED,
            "precision mxfp8 has blocks of 32, but width %u leaves a remainder of %u, expert_width "
            "%u of %u: make both multiples of 32",
            spec->width, spec->width % HD_ROW_BLOCK, spec->expert_width,
            spec->expert_width % HD_ROW_BLOCK);
    }
    if (spec->scale_rule > 1) {
        return hd_refuse(host, HD_UNSUPPORTED, "scale_rule %u is unknown: use up or floor",
                         spec->scale_rule);
    }
    return HD_OK;
}

/* Shapes that are impossible; the core has checked most of them. */
static hd_status spec_check_shape(const struct hd_host *host, const struct hd_stage_spec *spec)
{
    if (spec->width == 0 || spec->layers == 0 || spec->block_count == 0 || spec->sequence == 0 ||
        spec->batch == 0 || spec->expert_width == 0 || spec->vocabulary == 0) {
        return hd_refuse(host, HD_INVALID,
                         "width, expert_width, layers, blocks, sequence, microbatch_size and "
                         "vocabulary must each be at least 1: set the one that is 0");
    }
    if (spec->heads == 0 || spec->width % spec->heads || spec->width / spec->heads % 2) {
        return hd_refuse(
            host, HD_UNSUPPORTED,
            "width %u over %u heads: the width of a head must be a whole, even number: "
            "choose heads so that width / heads is even",
            spec->width, spec->heads);
    }
    if (spec->heads % spec->key_value_heads) {
        return hd_refuse(
            host, HD_UNSUPPORTED,
            "heads (%u) must be a multiple of key_value_heads (%u): choose a divisor of %u",
            spec->heads, spec->key_value_heads, spec->heads);
    }
    if (spec->experts &&
        (spec->experts_per_token == 0 || spec->experts_per_token > spec->experts)) {
        return hd_refuse(host, HD_UNSUPPORTED,
                         "experts_per_token is %u of %u experts, but must be 1..%u: change it",
                         spec->experts_per_token, spec->experts, spec->experts);
    }
    if (spec->batch % spec->half_batches) {
        return hd_refuse(host, HD_UNSUPPORTED,
                         "a microbatch of %u samples cannot be split into %u halves: use an even "
                         "microbatch_size, or half_batches = 1",
                         spec->batch, spec->half_batches);
    }
    const uint64_t rows =
        (uint64_t)spec->batch * spec->sequence * (spec->experts ? spec->experts_per_token : 1);
    if (rows + 32ull * spec->experts > INT32_MAX) {
        return hd_refuse(
            host, HD_UNSUPPORTED,
            "%llu rows of experts in a microbatch exceed a 32-bit index: use a smaller "
            "microbatch_size",
            (unsigned long long)rows);
    }
    return HD_OK;
}

hd_status hd_spec_read(const struct hd_host *host, const struct hd_stage_spec *given,
                       struct hd_stage_spec *out)
{
    struct hd_stage_spec spec = {0};
    memcpy(&spec, given, given->size < sizeof spec ? given->size : sizeof spec);
    spec.size = sizeof spec;
    spec_fill_defaults(&spec);
    HD_TRY(spec_check_built(host, &spec));
    HD_TRY(spec_check_shape(host, &spec));
    HD_TRY(spec_check_mxfp8(host, &spec));
    spec.batch /= spec.half_batches;
    *out = spec;
    return HD_OK;
}

static uint64_t spec_mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    return hash ^ (hash >> 29);
}

uint64_t hd_spec_hash(const struct hd_stage_spec *spec, const struct hd_ops *ops)
{
    const uint32_t words[] = {
        spec->layers,        spec->width,        spec->heads,       spec->key_value_heads,
        spec->experts,       spec->expert_width, spec->vocabulary,  spec->experts_per_token,
        spec->sequence,      spec->batch,        spec->precision,   spec->normalize_gates,
        spec->stage,         spec->first_block,  spec->block_count, spec->recompute,
        spec->has_embedding, spec->has_head,     ops->activation,   ops->statistic,
        spec->scale_rule,    spec->half_batches};
    uint64_t hash = HD_STAMP_MAGIC;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        hash = spec_mix(hash, words[i]);
    }
    return hash;
}

uint32_t hd_term_count(const struct hd_stage_spec *spec)
{
    return (spec->experts ? 2 * spec->block_count : 0) + (spec->has_head ? 1 : 0);
}

double hd_spec_forward_flops(const struct hd_stage_spec *spec)
{
    const double tokens = (double)spec->half_batches * spec->batch * spec->sequence;
    const double width = spec->width;
    const double shared = width / spec->heads * spec->key_value_heads;
    const double chosen = spec->experts ? spec->experts_per_token : 1;
    /* Q and O, K and V, causal attention (half of two full products), router, SwiGLU. */
    const double block = 2 * width * width + 2 * width * shared + width * spec->sequence +
                         width * spec->experts + 3 * chosen * width * spec->expert_width;
    const double head = spec->has_head ? width * spec->vocabulary : 0;
    return 2 * tokens * (spec->block_count * block + head);
}
