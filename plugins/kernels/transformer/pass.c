/*
 * plugins/kernels/transformer/pass.c - a pass is read, its payload checked, its halves run.
 *
 * Two half batches (two-batch overlap) are two microbatches of half the samples to everything
 * below: each routes its own tokens, has its own payload slot and its own terms.  A term of
 * the pass is that of the first half plus that of the second.  The router's terms, whose weight
 * is shared among the microbatches of the step, are weighted by half of it; so the bits of the
 * gradients are those of twice as many microbatches of half the size, whatever the plan.
 */
#include "remote_stage.h"

#include <assert.h>
#include <string.h>

#define TRY(step)                       \
    do {                                \
        const hd_status tried = (step); \
        if (tried != HD_OK) {           \
            return tried;               \
        }                               \
    } while (0)

static struct hd_pass transformer_read_pass(const struct hd_pass *given)
{
    struct hd_pass pass = {0};
    memcpy(&pass, given, given->size < sizeof pass ? given->size : sizeof pass);
    return pass;
}

static const int32_t *transformer_half_of_tokens(const int32_t *tokens, uint64_t offset)
{
    return tokens == NULL ? NULL : tokens + offset;
}

static void *transformer_half_of_boundary(const void *tensor, uint64_t offset_bytes)
{
    return tensor == NULL ? NULL : (char *)(uintptr_t)tensor + offset_bytes;
}

/* The pass of one half, which has the payload of its own as payload[0]. */
static struct hd_pass transformer_half_of(const struct hd_stage *stage, const struct hd_pass *whole,
                                          uint32_t half)
{
    const uint64_t tokens = half * stage->layout.tokens;
    const uint64_t bytes = tokens * stage->spec.width * stage->layout.activation_bytes;
    struct hd_pass pass = *whole;
    pass.payload[0] = whole->payload[half];
    pass.payload[1] = NULL;
    pass.tokens = transformer_half_of_tokens(whole->tokens, tokens);
    pass.targets = transformer_half_of_tokens(whole->targets, tokens);
    pass.input = transformer_half_of_boundary(whole->input, bytes);
    pass.output = transformer_half_of_boundary(whole->output, bytes);
    pass.output_gradient = transformer_half_of_boundary(whole->output_gradient, bytes);
    pass.input_gradient = transformer_half_of_boundary(whole->input_gradient, bytes);
    pass.auxiliary_scale = whole->auxiliary_scale / stage->spec.half_batches;
    return pass;
}

static void transformer_bind(const struct hd_stage *stage)
{
    hd_transformer_backend.bind(stage->kernel->device,
                                (char *)stage->memory.scratch + stage->layout.ops_scratch,
                                stage->layout.ops_scratch_bytes);
}

/* --- forward ---------------------------------------------------------------------------------- */

struct hd_stamp hd_stamp_of(const struct hd_stage *stage, const struct hd_pass *pass, uint32_t half,
                            uint64_t row_count)
{
    return (struct hd_stamp){.magic = HD_STAMP_MAGIC,
                             .generation = pass->generation,
                             .microbatch = pass->microbatch,
                             .spec_hash = stage->spec_hash,
                             .row_count = row_count,
                             .half = half};
}

static hd_status transformer_write_stamp(const struct hd_stage *stage, const struct hd_pass *pass,
                                         uint32_t half, uint64_t row_count)
{
    struct hd_stamp_args args = {pass->payload[0], hd_stamp_of(stage, pass, half, row_count)};
    if (hd_is_remote()) {
        args.stamp.row_count = 0;
        return hd_transformer_backend.remote->write_stamp(stage->kernel->device, &args);
    }
    memcpy(pass->payload[0], &args.stamp, sizeof args.stamp);
    return HD_OK;
}

static hd_status transformer_add_terms(const struct hd_stage *stage, double *terms,
                                       const double *more)
{
    const struct hd_terms_args args = {terms, more, stage->layout.term_count};
    if (hd_is_remote()) {
        return hd_transformer_backend.remote->add_terms(stage->kernel->device, &args);
    }
    for (uint32_t term = 0; term < args.count; term++) {
        terms[term] += more[term];
    }
    return HD_OK;
}

hd_status hd_stage_forward(struct hd_stage *stage, const struct hd_pass *given)
{
    const struct hd_pass pass = transformer_read_pass(given);
    assert(stage->spec.has_embedding ? pass.tokens != NULL : pass.input != NULL);
    assert(stage->spec.has_head ? pass.targets != NULL : pass.output != NULL);
    transformer_bind(stage);
    for (uint32_t half = 0; half < stage->spec.half_batches; half++) {
        struct hd_pass part = transformer_half_of(stage, &pass, half);
        uint64_t row_count = 0;
        assert((part.payload[0] != NULL) == (pass.payload[0] != NULL));
        part.terms = half == 0 ? pass.terms : hd_work_at(stage, HD_WORK_TERMS);
        TRY(hd_forward_half(stage, &part, &row_count));
        if (half > 0) {
            TRY(transformer_add_terms(stage, pass.terms, part.terms));
        }
        if (part.payload[0] != NULL) {
            TRY(transformer_write_stamp(stage, &part, half, row_count));
        }
    }
    return HD_OK;
}

/* --- what a payload is trusted with ----------------------------------------------------------- */

static hd_status transformer_check_stamp(const struct hd_stage *stage, const struct hd_pass *pass,
                                         uint32_t half)
{
    struct hd_stamp stamp;
    struct hd_fault fault = {
        .stage = stage->spec.stage, .microbatch = pass->microbatch, .generation = pass->generation};
    if (!stage->kernel->checks_stamps) {
        return HD_OK;
    }
    memcpy(&stamp, pass->payload[0], sizeof stamp);
    fault.found_magic = stamp.magic;
    fault.found_generation = stamp.generation;
    fault.found_microbatch = stamp.microbatch;
    if (stamp.magic != HD_STAMP_MAGIC || stamp.spec_hash != stage->spec_hash ||
        stamp.half != half) {
        fault.code = HD_FAULT_OTHER_STAGE;
    } else if (stamp.generation != pass->generation || stamp.microbatch != pass->microbatch) {
        fault.code = HD_FAULT_STALE;
    }
    return fault.code ? hd_fault_refuse(stage->kernel->host, &fault) : HD_OK;
}

static int transformer_in_range(const int32_t *index, uint64_t count, int64_t least, int64_t limit)
{
    for (uint64_t i = 0; i < count; i++) {
        if (index[i] < least || index[i] >= limit) {
            return 0;
        }
    }
    return 1;
}

/* Whether every index that the ops will follow stays within its tensor (K8). */
static int transformer_maps_hold(const struct hd_frame *frame)
{
    const struct hd_layout *layout = &frame->stage->layout;
    const uint32_t experts = frame->stage->spec.experts;
    const uint64_t chosen = layout->tokens * frame->stage->spec.experts_per_token;
    const int64_t row_max = (int64_t)layout->row_max;
    const int32_t *offsets = hd_line_at(frame, HD_LINE_OFFSETS);
    int holds = offsets[0] == 0 && transformer_in_range(offsets, experts + 1u, 0, row_max + 1);
    for (uint32_t expert = 0; expert < experts; expert++) {
        holds = holds && offsets[expert] <= offsets[expert + 1] &&
                offsets[expert + 1] % (int32_t)HD_ROW_BLOCK == 0;
    }
    return holds && transformer_in_range(hd_line_at(frame, HD_LINE_SELECTED), chosen, 0, experts) &&
           transformer_in_range(hd_line_at(frame, HD_LINE_ROW_OF), chosen, 0, offsets[experts]) &&
           transformer_in_range(hd_line_at(frame, HD_LINE_SOURCE), layout->row_max, -1,
                                (int64_t)chosen);
}

static hd_status transformer_check_payload(const struct hd_stage *stage, const struct hd_pass *pass,
                                           uint32_t half)
{
    const int keeps_routing = stage->layout.kept[HD_LINE_OFFSETS] != HD_NOT_KEPT;
    if (hd_is_remote()) {
        return hd_remote_check(stage, pass, half);
    }
    TRY(transformer_check_stamp(stage, pass, half));
    for (uint32_t block = 0;
         stage->spec.experts && keeps_routing && block < stage->spec.block_count; block++) {
        const struct hd_frame frame = hd_frame_at(stage, pass, block);
        if (!transformer_maps_hold(&frame)) {
            const struct hd_fault fault = {.code = HD_FAULT_ROUTING,
                                           .stage = stage->spec.stage,
                                           .block = stage->spec.first_block + block,
                                           .microbatch = pass->microbatch,
                                           .generation = pass->generation};
            return hd_fault_refuse(stage->kernel->host, &fault);
        }
    }
    return HD_OK;
}

/* --- backward --------------------------------------------------------------------------------- */

hd_status hd_stage_backward(struct hd_stage *stage, const struct hd_pass *given)
{
    const struct hd_pass pass = transformer_read_pass(given);
    assert(stage->spec.has_embedding ? pass.tokens != NULL : pass.input_gradient != NULL);
    assert(stage->spec.has_head ? pass.targets != NULL : pass.output_gradient != NULL);
    for (uint32_t half = 0; half < stage->spec.half_batches; half++) {
        const struct hd_pass part = transformer_half_of(stage, &pass, half);
        assert(part.payload[0] != NULL);
        TRY(transformer_check_payload(stage, &part, half));
    }
    transformer_bind(stage);
    for (uint32_t half = 0; half < stage->spec.half_batches; half++) {
        const struct hd_pass part = transformer_half_of(stage, &pass, half);
        TRY(hd_backward_half(stage, &part));
    }
    return HD_OK;
}
