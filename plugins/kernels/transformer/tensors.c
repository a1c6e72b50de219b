/*
 * plugins/kernels/transformer/tensors.c - the named tensors of a stage, and the optimizer.
 *
 * Storage has 14 kinds of weight, with all experts of a block in one; the core sees
 * one tensor per name of the checkpoint, each of them a contiguous part of a weight:
 *
 *   GATE_UP [E, 2f, d]   expert 0: gate rows, up rows; expert 1: gate rows, up rows; ..
 *   DOWN    [E, d, f]    expert 0; expert 1; ..
 */
#include "tensors.h"

#include "mxfp8.h"
#include "remote_stage.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* The place of a named tensor within its weight. */
struct part {
    enum hd_weight weight;
    uint32_t block;         /* within the stage */
    uint64_t first, count;  /* elements, within the weight */
    uint64_t rows, columns; /* rows 0: a vector */
    uint32_t expert;
    const char *suffix; /* static; what follows "model.layers.N." in a block */
};

static const struct {
    enum hd_weight weight;
    const char *suffix;
} tensors_block_names[] = {
    {HD_WEIGHT_NORM1, "input_layernorm"},  {HD_WEIGHT_Q, "self_attn.q_proj"},
    {HD_WEIGHT_K, "self_attn.k_proj"},     {HD_WEIGHT_V, "self_attn.v_proj"},
    {HD_WEIGHT_QNORM, "self_attn.q_norm"}, {HD_WEIGHT_KNORM, "self_attn.k_norm"},
    {HD_WEIGHT_O, "self_attn.o_proj"},     {HD_WEIGHT_NORM2, "post_attention_layernorm"},
    {HD_WEIGHT_ROUTER, "mlp.gate"},
};

#define BLOCK_NAME_COUNT (uint32_t)(sizeof tensors_block_names / sizeof tensors_block_names[0])

/* Tensors of a block before its experts: a dense one has no router. */
static uint32_t tensors_shared_count(const struct hd_stage_spec *spec)
{
    return spec->experts ? BLOCK_NAME_COUNT : BLOCK_NAME_COUNT - 1;
}

static uint32_t tensors_per_block(const struct hd_stage_spec *spec)
{
    return tensors_shared_count(spec) + 3 * (spec->experts ? spec->experts : 1);
}

uint32_t hd_stage_tensor_count(const struct hd_stage_spec *spec)
{
    return (spec->has_embedding ? 1 : 0) + spec->block_count * tensors_per_block(spec) +
           (spec->has_head ? 2 : 0);
}

static struct part tensors_whole(const struct hd_stage *stage, enum hd_weight weight,
                                 uint32_t block, const char *suffix)
{
    const struct hd_weight_place *place = &stage->layout.weights[weight];
    return (struct part){.weight = weight,
                         .block = block,
                         .count = place->count,
                         .rows = place->is_matrix ? place->rows : 0,
                         .columns = place->columns,
                         .suffix = suffix};
}

static struct part tensors_expert_part(const struct hd_stage *stage, uint32_t block,
                                       uint32_t within)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    const uint64_t matrix = (uint64_t)stage->spec.width * stage->spec.expert_width;
    const uint32_t expert = within / 3, kind = within % 3;
    struct part part = {.weight = kind < 2 ? HD_WEIGHT_GATE_UP : HD_WEIGHT_DOWN,
                        .block = block,
                        .count = matrix,
                        .rows = kind < 2 ? stage->spec.expert_width : stage->spec.width,
                        .columns = kind < 2 ? stage->spec.width : stage->spec.expert_width,
                        .expert = expert,
                        .suffix = names[kind]};
    part.first = kind < 2 ? (2ull * expert + kind) * matrix : expert * matrix;
    return part;
}

static struct part tensors_find_part(const struct hd_stage *stage, uint32_t index)
{
    const struct hd_stage_spec *spec = &stage->spec;
    if (spec->has_embedding) {
        if (index == 0) {
            return tensors_whole(stage, HD_WEIGHT_EMBED, 0, "model.embed_tokens");
        }
        index--;
    }
    const uint32_t block = index / tensors_per_block(spec),
                   within = index % tensors_per_block(spec);
    if (block >= spec->block_count) {
        return within == 0 ? tensors_whole(stage, HD_WEIGHT_NORM, 0, "model.norm")
                           : tensors_whole(stage, HD_WEIGHT_HEAD, 0, "lm_head");
    }
    if (within < tensors_shared_count(spec)) {
        return tensors_whole(stage, tensors_block_names[within].weight, block,
                             tensors_block_names[within].suffix);
    }
    return tensors_expert_part(stage, block, within - tensors_shared_count(spec));
}

static void tensors_write_name(const struct hd_stage *stage, const struct part *part, char *name)
{
    const struct hd_weight_place *place = &stage->layout.weights[part->weight];
    const unsigned layer = stage->spec.first_block + part->block;
    if (!place->in_block) {
        snprintf(name, HD_TENSOR_NAME_MAX, "%s.weight", part->suffix);
    } else if (part->weight != HD_WEIGHT_GATE_UP && part->weight != HD_WEIGHT_DOWN) {
        snprintf(name, HD_TENSOR_NAME_MAX, "model.layers.%u.%s.weight", layer, part->suffix);
    } else if (stage->spec.experts) {
        snprintf(name, HD_TENSOR_NAME_MAX, "model.layers.%u.mlp.experts.%u.%s.weight", layer,
                 part->expert, part->suffix);
    } else {
        snprintf(name, HD_TENSOR_NAME_MAX, "model.layers.%u.mlp.%s.weight", layer, part->suffix);
    }
}

hd_status hd_stage_tensor(struct hd_stage *stage, uint32_t index, struct hd_tensor *out)
{
    if (index >= hd_stage_tensor_count(&stage->spec)) {
        return HD_INVALID;
    }
    const struct part part = tensors_find_part(stage, index);
    const struct hd_weight_place *place = &stage->layout.weights[part.weight];
    const struct hd_layout *layout = &stage->layout;
    struct hd_tensor tensor = {.dtype = stage->ops->statistic,
                               .group = place->group,
                               .initial = place->is_matrix ? HD_INITIAL_NORMAL : HD_INITIAL_ONE,
                               .decays = place->is_matrix,
                               .dimension_count = place->is_matrix ? 2 : 1};
    tensor.shape[0] = place->is_matrix ? part.rows : part.columns;
    tensor.shape[1] = place->is_matrix ? part.columns : 0;
    tensor.gradient_offset = place->gradient + part.block * layout->gradient_stride[place->group] +
                             part.first * layout->statistic_bytes;
    tensors_write_name(stage, &part, tensor.name);
    tensor.size = out->size;
    memcpy(out, &tensor, out->size < sizeof tensor ? out->size : sizeof tensor);
    return HD_OK;
}

/* The address of a weight's copy in the core's regions. */
static char *tensors_weight_at(const struct hd_stage *stage, enum hd_weight weight, uint32_t block,
                               uint32_t copy)
{
    const struct hd_weight_place *place = &stage->layout.weights[weight];
    char *const optimizer = (char *)stage->memory.optimizer +
                            (place->in_block ? block * stage->layout.optimizer_stride : 0);
    switch (copy) {
    case HD_MOMENT1:
        return optimizer + place->moment1;
    case HD_MOMENT2:
        return optimizer + place->moment2;
    case HD_GRADIENT:
        return hd_gradient_at(stage, weight, block);
    default:
        return hd_master_at(stage, weight, block);
    }
}

/* In MXFP8 a renewed copy of an expert's weight becomes two, one for each contraction. */
static hd_status tensors_round_copies(const struct hd_stage *stage, const struct part *part)
{
    const struct hd_weight_place *place = &stage->layout.weights[part->weight];
    if (place->dgrad_copy == place->copy) {
        return HD_OK;
    }
    char *const copy = (char *)hd_copy_at(stage, part->weight, part->block) +
                       part->first * stage->layout.activation_bytes;
    const struct hd_rounding rounding = {.source = copy,
                                         .rowwise = copy,
                                         .columnwise = copy + (place->dgrad_copy - place->copy),
                                         .rows = part->count / part->columns,
                                         .columns = part->columns};
    return hd_round(stage, &rounding);
}

hd_status hd_stage_tensor_copy(struct hd_stage *stage, uint32_t index, uint32_t copy, uint32_t into,
                               void *host)
{
    if (index >= hd_stage_tensor_count(&stage->spec) || copy > HD_GRADIENT || host == NULL) {
        return HD_INVALID;
    }
    const struct part part = tensors_find_part(stage, index);
    const uint64_t element = stage->layout.statistic_bytes;
    char *device = tensors_weight_at(stage, part.weight, part.block, copy) + part.first * element;
    if (!into) {
        return hd_copy_and_wait(stage->kernel, host, device, part.count * element);
    }
    HD_TRY(hd_copy_and_wait(stage->kernel, device, host, part.count * element));
    if (copy != HD_MASTER || !stage->layout.weights[part.weight].has_copy) {
        return HD_OK;
    }
    const struct hd_optimizer_args args = {.master = device,
                                           .copy =
                                               (char *)hd_copy_at(stage, part.weight, part.block) +
                                               part.first * stage->layout.activation_bytes,
                                           .count = part.count};
    HD_TRY(stage->ops->convert(stage->kernel->device, &args));
    return tensors_round_copies(stage, &part);
}

hd_status hd_stage_norms(struct hd_stage *stage, double *squared)
{
    const uint32_t count = hd_stage_tensor_count(&stage->spec);
    for (uint32_t index = 0; index < count; index++) {
        const struct part part = tensors_find_part(stage, index);
        const struct hd_optimizer_args args = {
            .gradient = tensors_weight_at(stage, part.weight, part.block, HD_GRADIENT) +
                        part.first * stage->layout.statistic_bytes,
            .squared = &squared[index],
            .count = part.count};
        HD_TRY(stage->ops->square_sum(stage->kernel->device, &args));
    }
    return HD_OK;
}

static hd_status tensors_update_weight(struct hd_stage *stage, enum hd_weight weight,
                                       uint32_t block, const struct hd_update *update)
{
    const struct hd_weight_place *place = &stage->layout.weights[weight];
    if (place->count == 0) {
        return HD_OK;
    }
    const struct hd_optimizer_args args = {
        .master = hd_master_at(stage, weight, block),
        .moment1 = tensors_weight_at(stage, weight, block, HD_MOMENT1),
        .moment2 = tensors_weight_at(stage, weight, block, HD_MOMENT2),
        .gradient = hd_gradient_at(stage, weight, block),
        .copy = place->has_copy ? hd_copy_at(stage, weight, block) : NULL,
        .count = place->count,
        .decays = place->is_matrix,
        .update = update};
    const struct part all = tensors_whole(stage, weight, block, NULL);
    HD_TRY(stage->ops->adamw(stage->kernel->device, &args));
    return tensors_round_copies(stage, &all);
}

/* AdamW works on single elements, so a whole weight at once gets the bits of its tensors one by
   one. */
hd_status hd_stage_update(struct hd_stage *stage, const struct hd_update *given)
{
    struct hd_update update = {0};
    memcpy(&update, given, given->size < sizeof update ? given->size : sizeof update);
    assert(update.step >= 1);
    for (uint32_t weight = 0; weight < HD_WEIGHT_COUNT; weight++) {
        const uint32_t blocks =
            stage->layout.weights[weight].in_block ? stage->spec.block_count : 1;
        for (uint32_t block = 0; block < blocks; block++) {
            HD_TRY(tensors_update_weight(stage, weight, block, &update));
        }
    }
    return HD_OK;
}
