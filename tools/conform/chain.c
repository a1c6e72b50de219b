#include "conform/chain.h"
#include "base/try.h"

#include "conform/check.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* --- the chain ------------------------------------------------------------------------------ */

static void *chain_take(const struct hd_chain *chain, uint64_t bytes, int fill)
{
    void *memory = hd_guard_take(bytes, chain->harness->device.alignment, fill);
    assert(memory != NULL);
    return memory;
}

/* A kernel must not depend on unset memory: it is NaN in every float, or as the harness says. */
static void chain_take_regions(struct hd_chain *chain, struct hd_chain_stage *at)
{
    const int fill = chain->harness->fill;
    const int unset = fill != 0 ? fill : 0xff;
    const struct hd_stage_needs *needs = &at->needs;

    at->memory =
        (struct hd_stage_memory){.size = sizeof at->memory,
                                 .parameters = chain_take(chain, needs->parameter_bytes, fill),
                                 .optimizer = chain_take(chain, needs->optimizer_bytes, 0),
                                 .scratch = chain_take(chain, needs->scratch_bytes, unset),
                                 .gradients = {chain_take(chain, needs->gradient_bytes[0], 0),
                                               chain_take(chain, needs->gradient_bytes[1], 0)}};
    at->payload = chain_take(chain, needs->payload_bytes, unset);
    if (needs->acquisitions == 2) {
        at->second_payload = chain_take(chain, needs->payload_bytes, unset);
    }
    if (!at->spec.has_embedding) {
        at->input = chain_take(chain, needs->boundary_bytes, fill);
        at->input_gradient = chain_take(chain, needs->boundary_bytes, fill);
    }
}

static hd_status chain_open_stage(struct hd_chain *chain, uint32_t stage, uint32_t first_block,
                                  uint32_t block_count)
{
    const struct hd_kernel_ops *ops = chain->harness->ops;
    struct hd_chain_stage *at = &chain->stages[stage];
    at->spec = chain->model;
    at->spec.stage = stage;
    at->spec.first_block = first_block;
    at->spec.block_count = block_count;
    at->spec.has_embedding = stage == 0;
    at->spec.has_head = first_block + block_count == chain->model.layers;
    at->needs.size = sizeof at->needs;
    at->generation = 1;
    HD_TRY(ops->stage_needs(&chain->harness->host, &at->spec, &at->needs));
    chain_take_regions(chain, at);
    at->first_tensor = chain->tensor_count;
    at->first_term = chain->term_count;
    chain->tensor_count += at->needs.tensor_count;
    chain->term_count += at->needs.term_count;
    assert(chain->term_count <= HD_CHAIN_TERM_MAX);
    return ops->stage_create(chain->harness->kernel, &at->spec, &at->memory, &at->stage);
}

hd_status hd_chain_open(struct hd_chain *chain, struct hd_harness *harness,
                        const struct hd_stage_spec *model, const uint32_t *blocks,
                        uint32_t stage_count)
{
    const uint64_t tokens = (uint64_t)model->batch * model->sequence;
    uint32_t first_block = 0;
    assert(stage_count >= 1 && stage_count <= HD_CHAIN_STAGE_MAX);
    *chain = (struct hd_chain){.harness = harness,
                               .model = *model,
                               .label_scale = 1.0 / (double)tokens,
                               .auxiliary_scale = 1};
    chain->tokens = chain_take(chain, tokens * sizeof(int32_t), 0);
    chain->targets = chain_take(chain, tokens * sizeof(int32_t), 0);
    for (uint32_t stage = 0; stage < stage_count; stage++) {
        chain->stage_count++;
        const hd_status status = chain_open_stage(chain, stage, first_block, blocks[stage]);
        if (status != HD_OK) {
            return status;
        }
        first_block += blocks[stage];
    }
    assert(first_block == model->layers);
    return HD_OK;
}

void hd_chain_blocks(const struct hd_chain_stage *stage, void *blocks[HD_CHAIN_BLOCK_COUNT])
{
    void *const all[HD_CHAIN_BLOCK_COUNT] = {stage->memory.parameters,   stage->memory.optimizer,
                                             stage->memory.scratch,      stage->memory.gradients[0],
                                             stage->memory.gradients[1], stage->payload,
                                             stage->second_payload,      stage->input,
                                             stage->input_gradient};

    memcpy(blocks, all, sizeof all);
}

void hd_chain_close(struct hd_chain *chain)
{
    void *blocks[HD_CHAIN_BLOCK_COUNT];

    for (uint32_t stage = 0; stage < chain->stage_count; stage++) {
        struct hd_chain_stage *at = &chain->stages[stage];
        chain->harness->ops->stage_destroy(at->stage);
        hd_chain_blocks(at, blocks);
        for (unsigned i = 0; i < HD_CHAIN_BLOCK_COUNT; i++) {
            hd_guard_give(blocks[i]);
        }
    }
    hd_guard_give(chain->tokens);
    hd_guard_give(chain->targets);
    memset(chain, 0, sizeof *chain);
}

/* Tells the parent process that a call has returned. */
static hd_status chain_moved(const struct hd_chain *chain, hd_status status)
{
    if (chain->harness->moved != NULL) {
        atomic_fetch_add(chain->harness->moved, 1);
    }
    return status;
}

/* --- passes --------------------------------------------------------------------------------- */

static struct hd_pass chain_pass_of(const struct hd_chain *chain, uint32_t stage)
{
    const struct hd_chain_stage *at = &chain->stages[stage];
    const bool is_last = stage + 1 == chain->stage_count;
    return (struct hd_pass){.size = sizeof(struct hd_pass),
                            .microbatch = chain->microbatch,
                            .generation = at->generation,
                            .payload = {at->payload, at->second_payload},
                            .input = at->input,
                            .tokens = stage == 0 ? chain->tokens : NULL,
                            .targets = is_last ? chain->targets : NULL,
                            .output = is_last ? NULL : chain->stages[stage + 1].input,
                            .output_gradient =
                                is_last ? NULL : chain->stages[stage + 1].input_gradient,
                            .input_gradient = at->input_gradient,
                            .label_scale = chain->label_scale,
                            .auxiliary_scale = chain->auxiliary_scale};
}

hd_status hd_chain_forward_stage(struct hd_chain *chain, uint32_t stage, int evaluate)
{
    struct hd_pass pass = chain_pass_of(chain, stage);

    pass.terms = &chain->terms[chain->stages[stage].first_term];
    pass.output_gradient = NULL;
    pass.input_gradient = NULL;
    if (evaluate) {
        pass.payload[0] = pass.payload[1] = NULL;
    }
    return chain_moved(chain, chain->harness->ops->forward(chain->stages[stage].stage, &pass));
}

hd_status hd_chain_forward(struct hd_chain *chain, int evaluate)
{
    for (uint32_t stage = 0; stage < chain->stage_count; stage++) {
        HD_TRY(hd_chain_forward_stage(chain, stage, evaluate));
    }
    chain->loss = 0;
    for (uint32_t term = 0; term < chain->term_count; term++) {
        chain->loss += chain->terms[term];
    }
    return HD_OK;
}

hd_status hd_chain_backward_stage(struct hd_chain *chain, uint32_t stage)
{
    struct hd_pass pass = chain_pass_of(chain, stage);

    pass.output = NULL;
    return chain_moved(chain, chain->harness->ops->backward(chain->stages[stage].stage, &pass));
}

hd_status hd_chain_backward(struct hd_chain *chain)
{
    for (uint32_t stage = chain->stage_count; stage-- > 0;) {
        HD_TRY(hd_chain_backward_stage(chain, stage));
    }
    return HD_OK;
}

hd_status hd_chain_backward_split(struct hd_chain *chain)
{
    const struct hd_kernel_ops *ops = chain->harness->ops;
    hd_status status = HD_OK;

    for (uint32_t half = 0; half < 2; half++) {
        for (uint32_t stage = chain->stage_count; stage-- > 0 && status == HD_OK;) {
            struct hd_pass pass = chain_pass_of(chain, stage);
            pass.output = NULL;
            if (half == 1) { /* I has put into the payload what W needs */
                pass.input_gradient = NULL;
                pass.output_gradient = NULL;
            }
            status = (half == 0 ? ops->backward_input
                                : ops->backward_weight)(chain->stages[stage].stage, &pass);
            chain_moved(chain, status);
        }
    }
    return status;
}

void hd_chain_zero_gradients(struct hd_chain *chain)
{
    for (uint32_t stage = 0; stage < chain->stage_count; stage++) {
        struct hd_chain_stage *at = &chain->stages[stage];
        for (uint32_t group = 0; group < HD_GROUP_COUNT; group++) {
            memset(at->memory.gradients[group], 0, at->needs.gradient_bytes[group]);
        }
    }
}

/* --- tensors -------------------------------------------------------------------------------- */

static struct hd_chain_stage *chain_stage_of(struct hd_chain *chain, uint32_t tensor)
{
    uint32_t stage = 0;
    assert(tensor < chain->tensor_count);
    while (stage + 1 < chain->stage_count && chain->stages[stage + 1].first_tensor <= tensor) {
        stage++;
    }
    return &chain->stages[stage];
}

uint64_t hd_chain_tensor(struct hd_chain *chain, uint32_t tensor, struct hd_tensor *out)
{
    struct hd_chain_stage *at = chain_stage_of(chain, tensor);
    uint64_t count = 1;
    *out = (struct hd_tensor){.size = sizeof *out};
    const hd_status status = chain->harness->ops->tensor(at->stage, tensor - at->first_tensor, out);
    assert(status == HD_OK);
    for (uint32_t i = 0; i < out->dimension_count; i++) {
        count *= out->shape[i];
    }
    return count;
}

/* `into` 1: writes the tensor; 0: reads it. */
static void chain_exchange(struct hd_chain *chain, uint32_t tensor, uint32_t copy, uint32_t into,
                           double *values)
{
    struct hd_chain_stage *at = chain_stage_of(chain, tensor);
    struct hd_tensor about;
    const uint64_t count = hd_chain_tensor(chain, tensor, &about);
    float *narrow = malloc(count * sizeof *narrow);
    void *host = about.dtype == HD_F64 ? (void *)values : (void *)narrow;
    assert(narrow != NULL);
    for (uint64_t i = 0; into && i < count; i++) {
        narrow[i] = (float)values[i];
    }
    if (!into) { /* an element that is not read stays NaN */
        memset(host, 0xff, count * (about.dtype == HD_F64 ? sizeof *values : sizeof *narrow));
    }
    const hd_status status =
        chain_moved(chain, chain->harness->ops->tensor_copy(at->stage, tensor - at->first_tensor,
                                                            copy, into, host));
    assert(status == HD_OK);
    for (uint64_t i = 0; !into && about.dtype != HD_F64 && i < count; i++) {
        values[i] = (double)narrow[i];
    }
    free(narrow);
}

void hd_chain_read(struct hd_chain *chain, uint32_t tensor, uint32_t copy, double *values)
{
    chain_exchange(chain, tensor, copy, 0, values);
}

void hd_chain_write(struct hd_chain *chain, uint32_t tensor, uint32_t copy, const double *values)
{
    chain_exchange(chain, tensor, copy, 1, (double *)values);
}

/* --- drawing and comparing ------------------------------------------------------------------ */

static uint64_t chain_hash_bytes(uint64_t hash, const void *bytes, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3ull;
    }
    return hash;
}

static void chain_draw_tensor(struct hd_chain *chain, uint32_t tensor, uint64_t seed)
{
    struct hd_tensor about;
    const uint64_t count = hd_chain_tensor(chain, tensor, &about);
    const uint64_t key = chain_hash_bytes(hd_conform_mix(seed), about.name, strlen(about.name));
    double *values = malloc(count * sizeof *values);
    assert(values != NULL);
    /* About 1 / sqrt(columns), as a power of two, so that outputs are as large as inputs. */
    double scale = 1;
    for (uint64_t columns = about.shape[about.dimension_count - 1]; columns >= 4; columns /= 4) {
        scale /= 2;
    }
    for (uint64_t i = 0; i < count; i++) {
        const int64_t step = (int64_t)(hd_conform_mix(key ^ i) % 255) - 127;
        const bool is_norm = about.initial == HD_INITIAL_ONE;
        values[i] = is_norm ? 1 + (double)(step / 8) / 128 : 2 * scale * (double)step / 128;
    }
    hd_chain_write(chain, tensor, HD_MASTER, values);
    free(values);
}

void hd_chain_draw_tokens(struct hd_chain *chain, uint64_t seed)
{
    const uint64_t tokens = (uint64_t)chain->model.batch * chain->model.sequence;
    for (uint64_t i = 0; i < tokens; i++) {
        chain->tokens[i] = (int32_t)(hd_conform_mix(seed ^ (2 * i)) % chain->model.vocabulary);
        chain->targets[i] = (int32_t)(hd_conform_mix(seed ^ (2 * i + 1)) % chain->model.vocabulary);
    }
}

void hd_chain_draw(struct hd_chain *chain, uint64_t seed)
{
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        chain_draw_tensor(chain, tensor, seed);
    }
    hd_chain_draw_tokens(chain, seed);
}

uint64_t hd_chain_hash(struct hd_chain *chain, uint32_t copy)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        struct hd_tensor about;
        const uint64_t count = hd_chain_tensor(chain, tensor, &about);
        double *values = malloc(count * sizeof *values);
        assert(values != NULL);
        hd_chain_read(chain, tensor, copy, values);
        hash = chain_hash_bytes(hash, values, count * sizeof *values);
        free(values);
    }
    return hash;
}
