/*
 * tiny_mlp.c - a kernel plugin to copy: a residual network of tanh layers, float32, one thread.
 *
 *   tokens -> embed [vocabulary, width]
 *                 |
 *                 x ---------------------- + --> x of the next block
 *                 |                        |
 *                 +-> x W^T -> tanh = t ---+      one block, W [width, width]
 *                                                 ...
 *   x of the last block -> x H^T = logits -> cross-entropy        head, H [vocabulary, width]
 *
 * A stage holds the blocks [first_block, first_block + block_count), the embedding if it is the
 * first and the head if it is the last.  The model is small so that the contract can be seen:
 *
 *   payload  | stamp | x t | x t | .. | x, log-sum-exp |   what a forward keeps for its backward
 *            0       block 0  1         has_head
 *
 * Every tensor is float32 and has one copy, the master.  All sums run in one fixed order, so the
 * bits of a result depend on the arguments alone (law K3).
 */
#include "tiny_mlp.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* --- errors: reported once, by whoever decides them ---------------------------------------- */

hd_status tiny_fail(const struct hd_host *host, hd_status status, const char *text)
{
    const struct hd_error error = {.size = sizeof error,
                                   .status = status,
                                   .rank = UINT32_MAX,
                                   .channel = UINT32_MAX,
                                   .text = text};

    return host->fail(host->context, &error);
}

/* --- what a stage needs: arithmetic alone -------------------------------------------------- */

static uint32_t tiny_tensor_count(const struct hd_stage_spec *spec)
{
    return spec->has_embedding + spec->block_count + spec->has_head;
}

uint64_t tiny_rows(const struct hd_stage_spec *spec, uint32_t index)
{
    const bool is_embedding = spec->has_embedding && index == 0;
    const bool is_head = spec->has_head && index == tiny_tensor_count(spec) - 1;

    return is_embedding || is_head ? spec->vocabulary : spec->width;
}

/* Floats before tensor `index` in the region of parameters, and in that of gradients. */
static uint64_t tiny_offset(const struct hd_stage_spec *spec, uint32_t index)
{
    uint64_t offset = 0;

    for (uint32_t i = 0; i < index; i++) {
        offset += tiny_rows(spec, i) * spec->width;
    }
    return offset;
}

static uint64_t tiny_kept_floats(const struct hd_stage_spec *spec)
{
    const uint64_t tokens = (uint64_t)spec->batch * spec->sequence;

    return (2ull * spec->block_count + spec->has_head) * tokens * spec->width +
           spec->has_head * tokens;
}

/* Copies as many bytes as both sides know: the caller may be of an older or newer header. */
static void tiny_give(void *to, const void *from, uint32_t own_bytes)
{
    uint32_t room = 0;

    memcpy(&room, to, sizeof room);
    const uint32_t bytes = room < own_bytes ? room : own_bytes;
    memcpy((char *)to + sizeof room, (const char *)from + sizeof room, bytes - sizeof room);
}

static hd_status tiny_stage_needs(const struct hd_host *host, const struct hd_stage_spec *spec,
                                  struct hd_stage_needs *out)
{
    if (spec->precision != HD_PRECISION_F32 || spec->experts != 0) {
        return tiny_fail(host, HD_UNSUPPORTED,
                         "tiny_mlp serves dense models in float32: set kernels.precision = f32 and "
                         "model.experts = 0");
    }
    if (spec->recompute != HD_RECOMPUTE_NONE || spec->half_batches > 1) {
        return tiny_fail(host, HD_UNSUPPORTED,
                         "tiny_mlp cannot recompute or halve a batch: set kernels.recompute = none "
                         "and model.half_batches = 1");
    }
    const uint64_t activation = (uint64_t)spec->batch * spec->sequence * spec->width;
    const uint64_t parameters = tiny_offset(spec, tiny_tensor_count(spec));
    const uint64_t kept = tiny_kept_floats(spec) * sizeof(float);
    const double flops = 2.0 * (double)spec->batch * spec->sequence * (double)parameters;
    const struct hd_stage_needs needs = {
        .tensor_count = tiny_tensor_count(spec),
        .term_count = spec->has_head,
        .boundary_dtype = HD_F32,
        .boundary_bytes = activation * sizeof(float),
        .parameter_bytes = parameters * sizeof(float),
        .optimizer_bytes = 2 * parameters * sizeof(float),
        .gradient_bytes = {parameters * sizeof(float), 0},
        .payload_bytes = TINY_STAMP_BYTES + kept,
        /* The current activation or its gradient, a row of each kind, and what an evaluation
           would otherwise put in a payload. */
        .scratch_bytes = (activation + spec->width + spec->vocabulary) * sizeof(float) + kept,
        .private_bytes = sizeof(struct hd_stage),
        .forward_flops = flops,
        .backward_flops = 2 * flops,
        .acquisitions = 1,
        .memory = HD_MEMORY_HOST,
    };

    tiny_give(out, &needs, sizeof needs);
    return HD_OK;
}

/* --- opening ------------------------------------------------------------------------------- */

static hd_status tiny_open(const struct hd_host *host, uint32_t ordinal, struct hd_device *device,
                           struct hd_kernel **out)
{
    const struct hd_device found = {
        .memory = HD_MEMORY_HOST, .alignment = 64, .effective = "one thread, float32"};
    struct hd_kernel *kernel = host->alloc(host->context, sizeof *kernel, 64, "kernel");

    (void)ordinal;
    if (kernel == NULL) {
        return tiny_fail(host, HD_NO_MEMORY, "cannot allocate the kernel");
    }
    kernel->host = host;
    tiny_give(device, &found, sizeof found);
    *out = kernel;
    return HD_OK;
}

static void tiny_close(struct hd_kernel *kernel)
{
    if (kernel != NULL) {
        kernel->host->free(kernel->host->context, kernel);
    }
}

static hd_status tiny_stage_create(struct hd_kernel *kernel, const struct hd_stage_spec *spec,
                                   const struct hd_stage_memory *memory, struct hd_stage **out)
{
    const struct hd_host *host = kernel->host;
    struct hd_stage *stage = host->alloc(host->context, sizeof *stage, 64, "stage");

    if (stage == NULL) {
        return tiny_fail(host, HD_NO_MEMORY, "cannot allocate a stage");
    }
    stage->kernel = kernel;
    memcpy(&stage->spec, spec, spec->size < sizeof stage->spec ? spec->size : sizeof stage->spec);
    memcpy(&stage->memory, memory,
           memory->size < sizeof stage->memory ? memory->size : sizeof stage->memory);
    stage->tokens = (uint64_t)spec->batch * spec->sequence;
    stage->width = spec->width;
    stage->vocabulary = spec->vocabulary;
    *out = stage;
    return HD_OK;
}

static void tiny_stage_destroy(struct hd_stage *stage)
{
    if (stage != NULL) {
        stage->kernel->host->free(stage->kernel->host->context, stage);
    }
}

/* --- tensors: embedding, blocks, head ------------------------------------------------------ */

float *tiny_parameter(const struct hd_stage *stage, uint32_t index)
{
    return (float *)stage->memory.parameters + tiny_offset(&stage->spec, index);
}

float *tiny_gradient(const struct hd_stage *stage, uint32_t index)
{
    return (float *)stage->memory.gradients[HD_DENSE] + tiny_offset(&stage->spec, index);
}

/* Both moments of a tensor, one after the other. */
static float *tiny_moments(const struct hd_stage *stage, uint32_t index)
{
    return (float *)stage->memory.optimizer + 2 * tiny_offset(&stage->spec, index);
}

static uint64_t tiny_count(const struct hd_stage *stage, uint32_t index)
{
    return tiny_rows(&stage->spec, index) * stage->width;
}

uint32_t tiny_block_index(const struct hd_stage *stage, uint32_t block)
{
    return stage->spec.has_embedding + block;
}

uint32_t tiny_head_index(const struct hd_stage *stage)
{
    return stage->spec.has_embedding + stage->spec.block_count;
}

static hd_status tiny_tensor(struct hd_stage *stage, uint32_t index, struct hd_tensor *out)
{
    const struct hd_stage_spec *spec = &stage->spec;
    struct hd_tensor tensor = {
        .dtype = HD_F32,
        .group = HD_DENSE,
        .initial = HD_INITIAL_NORMAL,
        .decays = 1,
        .dimension_count = 2,
        .shape = {tiny_rows(spec, index), spec->width},
        .gradient_offset = tiny_offset(spec, index) * sizeof(float),
    };

    if (index >= tiny_tensor_count(spec)) {
        return tiny_fail(stage->kernel->host, HD_INVALID, "the stage has no such tensor");
    }
    if (spec->has_embedding && index == 0) {
        snprintf(tensor.name, sizeof tensor.name, "model.embed_tokens.weight");
    } else if (spec->has_head && index == tiny_head_index(stage)) {
        snprintf(tensor.name, sizeof tensor.name, "lm_head.weight");
    } else {
        snprintf(tensor.name, sizeof tensor.name, "model.layers.%u.mlp.weight",
                 spec->first_block + index - spec->has_embedding);
    }
    tiny_give(out, &tensor, sizeof tensor);
    return HD_OK;
}

static hd_status tiny_tensor_copy(struct hd_stage *stage, uint32_t index, uint32_t copy,
                                  uint32_t into, void *host)
{
    float *copies[] = {tiny_parameter(stage, index), tiny_moments(stage, index),
                       tiny_moments(stage, index) + tiny_count(stage, index),
                       tiny_gradient(stage, index)};
    const size_t bytes = tiny_count(stage, index) * sizeof(float);

    memcpy(into ? (void *)copies[copy] : host, into ? host : (void *)copies[copy], bytes);
    return HD_OK;
}

/* --- the update ---------------------------------------------------------------------------- */

static hd_status tiny_norms(struct hd_stage *stage, double *squared)
{
    for (uint32_t index = 0; index < tiny_tensor_count(&stage->spec); index++) {
        const float *gradient = tiny_gradient(stage, index);
        squared[index] = 0;
        for (uint64_t i = 0; i < tiny_count(stage, index); i++) {
            squared[index] += (double)gradient[i] * (double)gradient[i];
        }
    }
    return HD_OK;
}

/* AdamW: the gradient is scaled first, and the decay is of the master before the step. */
static hd_status tiny_update(struct hd_stage *stage, const struct hd_update *update)
{
    const double bias1 = 1 - pow(update->beta1, update->step);
    const double bias2 = 1 - pow(update->beta2, update->step);

    for (uint32_t index = 0; index < tiny_tensor_count(&stage->spec); index++) {
        float *master = tiny_parameter(stage, index);
        float *moment1 = tiny_moments(stage, index);
        float *moment2 = moment1 + tiny_count(stage, index);
        const float *gradient = tiny_gradient(stage, index);
        for (uint64_t i = 0; i < tiny_count(stage, index); i++) {
            const double g = (double)gradient[i] * update->gradient_scale;
            moment1[i] = (float)(update->beta1 * (double)moment1[i] + (1 - update->beta1) * g);
            moment2[i] = (float)(update->beta2 * (double)moment2[i] + (1 - update->beta2) * g * g);
            const double slope =
                ((double)moment1[i] / bias1) / (sqrt((double)moment2[i] / bias2) + update->epsilon);
            master[i] -=
                (float)(update->learning_rate * (slope + update->weight_decay * (double)master[i]));
        }
    }
    return HD_OK;
}

/* Synchronous and in host memory: what a stream would need (abort, allocate, copy, mark, reached)
   is NULL, and so are the two halves of a split backward. */
static const struct hd_kernel_ops tiny_ops = {
    .size = sizeof tiny_ops,
    .open = tiny_open,
    .close = tiny_close,
    .stage_needs = tiny_stage_needs,
    .stage_create = tiny_stage_create,
    .stage_destroy = tiny_stage_destroy,
    .tensor = tiny_tensor,
    .tensor_copy = tiny_tensor_copy,
    .forward = tiny_forward,
    .backward = tiny_backward,
    .norms = tiny_norms,
    .update = tiny_update,
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_KERNEL),
    .name = "tiny_mlp",
    .summary = "a residual network of tanh layers in float32, to copy",
    .vendor = "heddle's examples",
    .version = "1",
    .licence = "Apache-2.0",
    .source = "docs/writing_a_kernel.md",
    .ops = &tiny_ops,
};
