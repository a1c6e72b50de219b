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
#include <heddle/kernel.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define TINY_STAMP       0x796e69742d6c6470ull
#define TINY_STAMP_BYTES 64u

struct tiny_stamp {
    uint64_t magic, generation;
};

struct hd_kernel {
    const struct hd_host *host;
};

struct hd_stage {
    struct hd_kernel *kernel;
    struct hd_stage_spec spec;
    struct hd_stage_memory memory;
    uint64_t tokens, width, vocabulary; /* tokens: batch x sequence */
};

/* Where a pass keeps what its backward needs: in the payload, or in scratch for an evaluation. */
struct tiny_kept {
    float *blocks; /* [block_count, 2, tokens, width]: x and t */
    float *head_x; /* [tokens, width] */
    float *lse;    /* [tokens] */
};

/* --- errors: reported once, by whoever decides them ---------------------------------------- */

static hd_status tiny_fail(const struct hd_host *host, hd_status status, const char *text)
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

static uint64_t tiny_rows(const struct hd_stage_spec *spec, uint32_t index)
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

static float *tiny_parameter(const struct hd_stage *stage, uint32_t index)
{
    return (float *)stage->memory.parameters + tiny_offset(&stage->spec, index);
}

static float *tiny_gradient(const struct hd_stage *stage, uint32_t index)
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

static uint32_t tiny_block_index(const struct hd_stage *stage, uint32_t block)
{
    return stage->spec.has_embedding + block;
}

static uint32_t tiny_head_index(const struct hd_stage *stage)
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

/* --- passes -------------------------------------------------------------------------------- */

static struct tiny_kept tiny_kept_at(const struct hd_stage *stage, void *place)
{
    const uint64_t activation = stage->tokens * stage->width;
    float *floats = place;

    return (struct tiny_kept){
        .blocks = floats,
        .head_x = floats + 2 * stage->spec.block_count * activation,
        .lse = floats + (2 * stage->spec.block_count + 1) * activation,
    };
}

/* Scratch: the activation or its gradient [tokens, width], a row of logits, a row of width. */
static float *tiny_logits(const struct hd_stage *stage)
{
    return (float *)stage->memory.scratch + stage->tokens * stage->width;
}

static float *tiny_row(const struct hd_stage *stage)
{
    return tiny_logits(stage) + stage->vocabulary;
}

static void tiny_read_input(const struct hd_stage *stage, const struct hd_pass *pass, float *x)
{
    const float *table = tiny_parameter(stage, 0);

    if (!stage->spec.has_embedding) {
        memcpy(x, pass->input, stage->tokens * stage->width * sizeof(float));
        return;
    }
    for (uint64_t token = 0; token < stage->tokens; token++) {
        memcpy(x + token * stage->width, table + (uint64_t)pass->tokens[token] * stage->width,
               stage->width * sizeof(float));
    }
}

/* out[row] = sum over column of weight[row, column] x[column] */
static void tiny_multiply(const float *weight, const float *x, uint64_t rows, uint64_t columns,
                          float *out)
{
    for (uint64_t row = 0; row < rows; row++) {
        float sum = 0;
        for (uint64_t column = 0; column < columns; column++) {
            sum += weight[row * columns + column] * x[column];
        }
        out[row] = sum;
    }
}

/* x and t [tokens, width] are kept; x becomes x + t. */
static void tiny_forward_block(const struct hd_stage *stage, uint32_t block, float *x,
                               float *kept_x, float *kept_t)
{
    const float *weight = tiny_parameter(stage, tiny_block_index(stage, block));

    memcpy(kept_x, x, stage->tokens * stage->width * sizeof(float));
    for (uint64_t token = 0; token < stage->tokens; token++) {
        float *t = kept_t + token * stage->width;
        tiny_multiply(weight, kept_x + token * stage->width, stage->width, stage->width, t);
        for (uint64_t i = 0; i < stage->width; i++) {
            t[i] = tanhf(t[i]);
            x[token * stage->width + i] += t[i];
        }
    }
}

/* The largest logit, or NaN if one is NaN (law K8). */
static float tiny_largest(const float *logits, uint64_t count)
{
    float largest = logits[0];

    for (uint64_t i = 1; i < count; i++) {
        largest = logits[i] > largest || isnan(logits[i]) ? logits[i] : largest;
    }
    return largest;
}

/* Keeps the log-sum-exp of every token's logits; returns the sum of the labels' losses. */
static double tiny_head_loss(const struct hd_stage *stage, const int32_t *targets, const float *x,
                             float *lse)
{
    float *logits = tiny_logits(stage);
    double loss = 0;

    for (uint64_t token = 0; token < stage->tokens; token++) {
        double sum = 0;
        tiny_multiply(tiny_parameter(stage, tiny_head_index(stage)), x + token * stage->width,
                      stage->vocabulary, stage->width, logits);
        const float largest = tiny_largest(logits, stage->vocabulary);
        for (uint64_t i = 0; i < stage->vocabulary; i++) {
            sum += exp((double)(logits[i] - largest));
        }
        lse[token] = (float)(largest + log(sum));
        if (targets[token] >= 0) {
            loss += (double)(lse[token] - logits[targets[token]]);
        }
    }
    return loss;
}

static hd_status tiny_forward(struct hd_stage *stage, const struct hd_pass *pass)
{
    const uint64_t activation = stage->tokens * stage->width;
    const struct tiny_stamp stamp = {TINY_STAMP, pass->generation};
    unsigned char *payload = pass->payload[0];
    float *x = stage->memory.scratch;
    void *place = payload != NULL ? (void *)(payload + TINY_STAMP_BYTES)
                                  : (void *)(tiny_row(stage) + stage->width);
    const struct tiny_kept kept = tiny_kept_at(stage, place);

    if (payload != NULL) {
        memcpy(payload, &stamp, sizeof stamp);
    }
    tiny_read_input(stage, pass, x);
    for (uint32_t block = 0; block < stage->spec.block_count; block++) {
        float *kept_x = kept.blocks + 2 * block * activation;
        tiny_forward_block(stage, block, x, kept_x, kept_x + activation);
    }
    if (stage->spec.has_head) {
        memcpy(kept.head_x, x, activation * sizeof(float));
        pass->terms[0] = tiny_head_loss(stage, pass->targets, x, kept.lse) * pass->label_scale;
    } else {
        memcpy(pass->output, x, activation * sizeof(float)); /* once (law K6) */
    }
    return HD_OK;
}

/* Adds a token's part to the gradient of a tensor of `rows` rows, and to dx [width]. */
static void tiny_backward_row(const struct hd_stage *stage, uint32_t index, const float *x,
                              const float *dout, float *dx)
{
    const uint64_t rows = tiny_rows(&stage->spec, index), width = stage->width;
    const float *weight = tiny_parameter(stage, index);
    float *gradient = tiny_gradient(stage, index);

    for (uint64_t row = 0; row < rows; row++) {
        for (uint64_t i = 0; i < width; i++) {
            gradient[row * width + i] += dout[row] * x[i];
            dx[i] += dout[row] * weight[row * width + i];
        }
    }
}

/* dx [tokens, width] = the gradient of the loss at the last block's output. */
static void tiny_backward_head(const struct hd_stage *stage, const struct hd_pass *pass,
                               const struct tiny_kept *kept, float *dx)
{
    const uint32_t index = tiny_head_index(stage);
    const float scale = (float)pass->label_scale;
    float *logits = tiny_logits(stage);

    memset(dx, 0, stage->tokens * stage->width * sizeof(float));
    for (uint64_t token = 0; token < stage->tokens; token++) {
        const float *x = kept->head_x + token * stage->width;
        const int32_t target = pass->targets[token];
        if (target < 0) {
            continue; /* without a label it adds nothing to the loss */
        }
        tiny_multiply(tiny_parameter(stage, index), x, stage->vocabulary, stage->width, logits);
        for (uint64_t i = 0; i < stage->vocabulary; i++) {
            const float probability = expf(logits[i] - kept->lse[token]);
            logits[i] = scale * (probability - (i == (uint64_t)target));
        }
        tiny_backward_row(stage, index, x, logits, dx + token * stage->width);
    }
}

/* dx is the gradient of the block's output, and becomes that of its input: the residual passes it
   on, and the layer adds to it. */
static void tiny_backward_block(const struct hd_stage *stage, uint32_t block, const float *x,
                                const float *t, float *dx)
{
    float *dz = tiny_row(stage);

    for (uint64_t token = 0; token < stage->tokens; token++) {
        const uint64_t at = token * stage->width;
        for (uint64_t i = 0; i < stage->width; i++) {
            dz[i] = dx[at + i] * (1 - t[at + i] * t[at + i]);
        }
        tiny_backward_row(stage, tiny_block_index(stage, block), x + at, dz, dx + at);
    }
}

static hd_status tiny_check_stamp(const struct hd_stage *stage, const struct hd_pass *pass)
{
    struct tiny_stamp stamp;
    char text[160];

    memcpy(&stamp, pass->payload[0], sizeof stamp);
    if (stamp.magic == TINY_STAMP && stamp.generation == pass->generation) {
        return HD_OK;
    }
    snprintf(text, sizeof text, "the payload has the stamp of lease %llu, not of %llu",
             (unsigned long long)stamp.generation, (unsigned long long)pass->generation);
    return tiny_fail(stage->kernel->host, HD_PROTOCOL, text);
}

static hd_status tiny_backward(struct hd_stage *stage, const struct hd_pass *pass)
{
    const uint64_t activation = stage->tokens * stage->width;
    float *dx = stage->memory.scratch;
    const hd_status status = tiny_check_stamp(stage, pass);

    if (status != HD_OK) {
        return status;
    }
    const struct tiny_kept kept =
        tiny_kept_at(stage, (unsigned char *)pass->payload[0] + TINY_STAMP_BYTES);
    if (stage->spec.has_head) {
        tiny_backward_head(stage, pass, &kept, dx);
    } else {
        memcpy(dx, pass->output_gradient, activation * sizeof(float));
    }
    for (uint32_t block = stage->spec.block_count; block-- > 0;) {
        const float *x = kept.blocks + 2 * block * activation;
        tiny_backward_block(stage, block, x, x + activation, dx);
    }
    if (!stage->spec.has_embedding) {
        memcpy(pass->input_gradient, dx, activation * sizeof(float));
        return HD_OK;
    }
    for (uint64_t i = 0; i < activation; i++) {
        const uint64_t token = (uint64_t)pass->tokens[i / stage->width];
        tiny_gradient(stage, 0)[token * stage->width + i % stage->width] += dx[i];
    }
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
