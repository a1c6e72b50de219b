/*
 * plugins/kernels/transformer/pass.c - reads a pass and runs its half batches.
 *
 * Two half batches (two-batch overlap) are two microbatches of half the samples to everything
 * below: each routes its own tokens, and has its own payload slot and its own terms.  A term of
 * the pass is that of the first half plus that of the second.  The router's terms, whose weight
 * is shared among the microbatches of the step, get half of that weight.  So the bits of the
 * gradients are those of twice as many microbatches of half the size, for every plan.
 */
#include "pass.h"

#include "backward.h"
#include "forward.h"
#include "payload.h"
#include "remote_stage.h"

#include <assert.h>
#include <string.h>

static struct hd_pass pass_read(const struct hd_pass *given)
{
    struct hd_pass pass = {0};
    memcpy(&pass, given, given->size < sizeof pass ? given->size : sizeof pass);
    return pass;
}

static void *pass_advance(const void *tensor, uint64_t bytes)
{
    return tensor == NULL ? NULL : (char *)(uintptr_t)tensor + bytes;
}

/* The pass of one half, with its own payload as payload[0]. */
static struct hd_pass pass_half(const struct hd_stage *stage, const struct hd_pass *whole,
                                uint32_t half)
{
    const uint64_t tokens = half * stage->layout.tokens, token_bytes = tokens * sizeof(int32_t);
    const uint64_t bytes = tokens * stage->spec.width * stage->layout.activation_bytes;
    struct hd_pass pass = *whole;
    pass.payload[0] = whole->payload[half];
    pass.payload[1] = NULL;
    pass.tokens = pass_advance(whole->tokens, token_bytes);
    pass.targets = pass_advance(whole->targets, token_bytes);
    pass.input = pass_advance(whole->input, bytes);
    pass.output = pass_advance(whole->output, bytes);
    pass.output_gradient = pass_advance(whole->output_gradient, bytes);
    pass.input_gradient = pass_advance(whole->input_gradient, bytes);
    pass.auxiliary_scale = whole->auxiliary_scale / stage->spec.half_batches;
    return pass;
}

static void pass_bind(const struct hd_stage *stage)
{
    hd_transformer_backend.bind(stage->kernel->device,
                                (char *)stage->memory.scratch + stage->layout.ops_scratch,
                                stage->layout.ops_scratch_bytes);
}

static hd_status pass_add_terms(const struct hd_stage *stage, double *terms, const double *more)
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
    const struct hd_pass pass = pass_read(given);
    assert(stage->spec.has_embedding ? pass.tokens != NULL : pass.input != NULL);
    assert(stage->spec.has_head ? pass.targets != NULL : pass.output != NULL);
    pass_bind(stage);
    for (uint32_t half = 0; half < stage->spec.half_batches; half++) {
        struct hd_pass part = pass_half(stage, &pass, half);
        uint64_t row_count = 0;
        assert((part.payload[0] != NULL) == (pass.payload[0] != NULL));
        part.terms = half == 0 ? pass.terms : stage->work.terms;
        HD_TRY(hd_forward_half(stage, &part, &row_count));
        if (half > 0) {
            HD_TRY(pass_add_terms(stage, pass.terms, part.terms));
        }
        if (part.payload[0] != NULL) {
            HD_TRY(hd_payload_stamp(stage, &part, half, row_count));
        }
    }
    return HD_OK;
}

hd_status hd_stage_backward(struct hd_stage *stage, const struct hd_pass *given)
{
    const struct hd_pass pass = pass_read(given);
    assert(stage->spec.has_embedding ? pass.tokens != NULL : pass.input_gradient != NULL);
    assert(stage->spec.has_head ? pass.targets != NULL : pass.output_gradient != NULL);
    for (uint32_t half = 0; half < stage->spec.half_batches; half++) {
        const struct hd_pass part = pass_half(stage, &pass, half);
        assert(part.payload[0] != NULL);
        HD_TRY(hd_payload_check(stage, &part, half));
    }
    pass_bind(stage);
    for (uint32_t half = 0; half < stage->spec.half_batches; half++) {
        const struct hd_pass part = pass_half(stage, &pass, half);
        HD_TRY(hd_backward_half(stage, &part));
    }
    return HD_OK;
}
