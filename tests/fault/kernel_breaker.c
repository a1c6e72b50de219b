/*
 * A small kernel that learns, and breaks what it is told, for heddle conform.
 *
 *   embedding  x = E[token]
 *   block      y = x * w, element by element; its term is the mean of w squared
 *   head       the mean squared distance of x from the target's number
 *
 * All in float32; the payload keeps the input of every block behind the stamp.
 */
#include <heddle/kernel.h>

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STAMP_BYTES = 256, INDEX_BYTES = 64 };

#define STAMP 0x6272656b65726b6eull

struct hd_kernel {
    const struct hd_host *host;
    uint32_t pass_count; /* the state that a result must not depend on */
};

/* Elements of every tensor lie one after the other: the embedding, where it is, then the blocks. */
struct hd_stage {
    struct hd_kernel *kernel;
    struct hd_stage_spec spec;
    struct hd_stage_memory memory;
    uint64_t embedding_count, element_count;
};

static uint32_t does(const struct hd_host *host, const char *what)
{
    return strcmp(host->options[0].text, what) == 0 ? 1 : 0;
}

static uint32_t stage_does(const struct hd_stage *stage, const char *what)
{
    return does(stage->kernel->host, what);
}

static hd_status fail(const struct hd_host *host, hd_status status, const char *text)
{
    const struct hd_error error = {.size = sizeof error,
                                   .status = status,
                                   .rank = UINT32_MAX,
                                   .channel = UINT32_MAX,
                                   .text = text};
    return host->fail(host->context, &error);
}

static hd_status open_device(const struct hd_host *host, uint32_t ordinal, struct hd_device *device,
                             struct hd_kernel **out)
{
    struct hd_kernel *kernel = host->alloc(host->context, sizeof *kernel, 64, "breaker");
    struct hd_device filled = {.alignment = 64, .effective = "plain C, with faults"};

    (void)ordinal;
    if (kernel == NULL) {
        return HD_NO_MEMORY;
    }
    filled.size =
        does(host, "roomy") || device->size > sizeof filled ? sizeof filled : device->size;
    memcpy(device, &filled, filled.size);
    kernel->host = host;
    *out = kernel;
    return HD_OK;
}

static void close_device(struct hd_kernel *kernel)
{
    if (kernel != NULL && !does(kernel->host, "leaky")) {
        kernel->host->free(kernel->host->context, kernel);
    }
}

static uint64_t tokens_of(const struct hd_stage_spec *spec)
{
    return (uint64_t)spec->batch * spec->sequence;
}

static hd_status needs(const struct hd_host *host, const struct hd_stage_spec *spec,
                       struct hd_stage_needs *out)
{
    const uint64_t boundary_bytes = tokens_of(spec) * spec->width * sizeof(float);
    const uint64_t embedding_count = spec->has_embedding ? spec->vocabulary * spec->width : 0;
    const uint64_t element_count = embedding_count + spec->block_count * spec->width;
    static uint32_t asked_count;

    if (spec->precision != HD_PRECISION_F32 || spec->recompute != 0 || spec->half_batches > 1) {
        return does(host, "mute")
                   ? HD_UNSUPPORTED
                   : fail(host, HD_UNSUPPORTED, "computes in f32: set precision = f32");
    }
    const struct hd_stage_needs filled = {
        .size = out->size < sizeof filled ? out->size : sizeof filled,
        .tensor_count = spec->block_count + (spec->has_embedding ? 1 : 0),
        .term_count = spec->block_count + (spec->has_head ? 1 : 0),
        .boundary_dtype = HD_F32,
        .boundary_bytes = boundary_bytes,
        .parameter_bytes = element_count * sizeof(float),
        .optimizer_bytes = 2 * element_count * sizeof(float),
        .gradient_bytes = {element_count * sizeof(float), 0},
        .payload_bytes = STAMP_BYTES + (spec->block_count + 1) * boundary_bytes + INDEX_BYTES,
        .scratch_bytes = boundary_bytes,
        .private_bytes = does(host, "moody") ? ++asked_count : 0,
        .acquisitions = 1};
    memcpy(out, &filled, filled.size);
    return HD_OK;
}

static hd_status create(struct hd_kernel *kernel, const struct hd_stage_spec *spec,
                        const struct hd_stage_memory *memory, struct hd_stage **out)
{
    const struct hd_host *host = kernel->host;
    struct hd_stage *stage = host->alloc(host->context, sizeof *stage, 64, "breaker");

    if (stage == NULL) {
        return HD_NO_MEMORY;
    }
    stage->kernel = kernel;
    stage->spec = *spec;
    stage->memory = *memory;
    stage->embedding_count = spec->has_embedding ? (uint64_t)spec->vocabulary * spec->width : 0;
    stage->element_count = stage->embedding_count + (uint64_t)spec->block_count * spec->width;
    *out = stage;
    return HD_OK;
}

static void destroy(struct hd_stage *stage)
{
    if (stage != NULL) {
        stage->kernel->host->free(stage->kernel->host->context, stage);
    }
}

/* --- tensors ------------------------------------------------------------------------------- */

static hd_status tensor(struct hd_stage *stage, uint32_t index, struct hd_tensor *out)
{
    const uint32_t has_embedding = stage->spec.has_embedding ? 1 : 0;
    const int is_embedding = has_embedding && index == 0;
    struct hd_tensor filled = {
        .size = sizeof filled,
        .dtype = HD_F32,
        .initial = is_embedding ? HD_INITIAL_NORMAL : HD_INITIAL_ONE,
        .decays = is_embedding ? 1 : 0,
        .dimension_count = is_embedding ? 2 : 1,
        .shape = {is_embedding ? stage->spec.vocabulary : stage->spec.width, stage->spec.width}};

    if (index >= stage->spec.block_count + has_embedding) {
        return HD_INVALID;
    }
    const uint32_t block = index - has_embedding;
    if (is_embedding) {
        snprintf(filled.name, sizeof filled.name, "model.embed_tokens.weight");
    } else {
        filled.gradient_offset =
            (stage->embedding_count + (uint64_t)block * stage->spec.width) * sizeof(float);
        filled.gradient_offset -= stage_does(stage, "overlap") && block > 0 ? sizeof(float) : 0;
        snprintf(filled.name, sizeof filled.name, "model.layers.%u.scale.weight",
                 stage_does(stage, "namesake") ? 0 : stage->spec.first_block + block);
    }
    memcpy(out, &filled, out->size < sizeof filled ? out->size : sizeof filled);
    return HD_OK;
}

static float *copy_of(struct hd_stage *stage, uint32_t copy)
{
    float *moments = stage->memory.optimizer;
    return copy == HD_MASTER     ? stage->memory.parameters
           : copy == HD_GRADIENT ? stage->memory.gradients[HD_DENSE]
           : copy == HD_MOMENT1  ? moments
                                 : moments + stage->element_count;
}

static hd_status tensor_copy(struct hd_stage *stage, uint32_t index, uint32_t copy, uint32_t into,
                             void *host)
{
    struct hd_tensor about = {.size = sizeof about};
    const hd_status status = tensor(stage, index, &about);

    if (status != HD_OK) {
        return status;
    }
    float *device = copy_of(stage, copy) + about.gradient_offset / sizeof(float);
    const uint64_t count = about.shape[0] * (about.dimension_count > 1 ? about.shape[1] : 1);
    const int is_lost = stage_does(stage, "forgetful") && copy == HD_MOMENT2;
    if (!is_lost) {
        memcpy(into ? device : host, into ? host : device, count * sizeof(float));
    }
    return HD_OK;
}

/* --- passes -------------------------------------------------------------------------------- */

static const float *weights_of(struct hd_stage *stage, uint32_t block)
{
    return copy_of(stage, HD_MASTER) + stage->embedding_count + block * stage->spec.width;
}

/* The input of block `block` in the payload; block_count: what leaves the last. */
static float *kept(const struct hd_stage *stage, void *payload, uint32_t block)
{
    return (float *)(void *)((char *)payload + STAMP_BYTES) +
           block * tokens_of(&stage->spec) * stage->spec.width;
}

static void run_block(struct hd_stage *stage, uint32_t block, const float *input, float *output)
{
    const uint32_t width = stage->spec.width;
    const uint64_t count = tokens_of(&stage->spec) * width;

    for (uint64_t i = 0; i < count; i++) {
        const float value = input[i] * weights_of(stage, block)[i % width];
        output[i] = value;
        if (stage_does(stage, "rounded") && block + 1 == stage->spec.block_count) {
            output[i] += ldexpf(output[i], -16); /* only at the end of a stage */
        }
    }
}

static double term_of(struct hd_stage *stage, uint32_t block)
{
    double sum = 0;
    for (uint32_t i = 0; i < stage->spec.width; i++) {
        sum += (double)weights_of(stage, block)[i] * (double)weights_of(stage, block)[i];
    }
    return sum * stage->spec.balance_weight / stage->spec.width;
}

/* Half the squared distance of what leaves the last block from its target, summed. */
static double distance(struct hd_stage *stage, const struct hd_pass *pass, const float *values)
{
    const uint32_t width = stage->spec.width;
    double sum = 0;

    for (uint64_t token = 0; token < tokens_of(&stage->spec); token++) {
        const double wanted = (double)pass->targets[token] / stage->spec.vocabulary;
        for (uint32_t i = 0; i < width; i++) {
            const double off = (double)values[token * width + i] - wanted;
            sum += pass->targets[token] < 0 ? 0 : 0.5 * off * off;
        }
    }
    return sum;
}

static void give_output(struct hd_stage *stage, const struct hd_pass *pass, const float *values)
{
    const uint64_t count = tokens_of(&stage->spec) * stage->spec.width;
    float *output = pass->output;

    for (uint64_t i = 0; i + stage_does(stage, "partial") < count; i++) {
        output[i] = stage_does(stage, "reads") ? output[i] * 0.0f + values[i] : values[i];
    }
}

/* Two buffers of an evaluation: the scratch, and what the pass may write over. */
static hd_status forward(struct hd_stage *stage, const struct hd_pass *pass)
{
    const struct hd_host *host = stage->kernel->host;
    const uint32_t width = stage->spec.width, block_count = stage->spec.block_count;
    const uint64_t count = tokens_of(&stage->spec) * width;
    float *values = stage->memory.scratch;

    if (stage_does(stage, "leaves")) {
        _exit(0);
    }
    if (stage_does(stage, "wasteful")) {
        host->free(host->context, host->alloc(host->context, 64, 64, "breaker"));
    }
    for (uint64_t i = 0; i < count; i++) {
        const float *row = pass->tokens != NULL ? copy_of(stage, HD_MASTER) +
                                                      (uint64_t)pass->tokens[i / width] * width
                                                : (const float *)pass->input + i / width * width;
        values[i] = stage_does(stage, "quiet") && isnan(row[i % width]) ? 0 : row[i % width];
    }
    if (pass->payload[0] != NULL && !stage_does(stage, "unstamped")) {
        memcpy(pass->payload[0], (uint64_t[]){STAMP, pass->generation}, 2 * sizeof(uint64_t));
    }
    memset(pass->terms, 0, (block_count + (pass->targets != NULL)) * sizeof *pass->terms);
    for (uint32_t block = 0; block < block_count; block++) {
        if (pass->payload[0] != NULL) {
            memcpy(kept(stage, pass->payload[0], block), values, count * sizeof(float));
        }
        run_block(stage, block, values, values);
        pass->terms[stage_does(stage, "sums") ? 0 : block] +=
            term_of(stage, block) * pass->auxiliary_scale;
    }
    if (pass->payload[0] != NULL) {
        const uint64_t index_bytes = stage_does(stage, "overrun") ? INDEX_BYTES + 1 : INDEX_BYTES;
        memcpy(kept(stage, pass->payload[0], block_count), values, count * sizeof(float));
        memset(kept(stage, pass->payload[0], block_count + 1), 0, index_bytes);
    }
    if (pass->targets != NULL) {
        pass->terms[block_count] = distance(stage, pass, values) * pass->label_scale;
    } else {
        give_output(stage, pass, values);
    }
    if (stage_does(stage, "counts")) {
        pass->terms[0] += stage->kernel->pass_count++;
    } else if (stage_does(stage, "careless") && pass->payload[0] == NULL) {
        pass->terms[0] *= 1 + 1e-15;
    }
    return HD_OK;
}

static void add_block(struct hd_stage *stage, const struct hd_pass *pass, uint32_t block,
                      float *gradient)
{
    const uint32_t width = stage->spec.width;
    const float *input = kept(stage, pass->payload[0], block);
    float *sums = copy_of(stage, HD_GRADIENT) + stage->embedding_count + block * width;
    const float scale = stage_does(stage, "steep") ? 1.1f : 1.0f;

    for (uint32_t i = 0; i < width && stage_does(stage, "replaces"); i++) {
        sums[i] = 0;
    }
    for (uint64_t i = 0; i < tokens_of(&stage->spec) * width; i++) {
        if (!stage_does(stage, "half") || i % width < width / 2) {
            sums[i % width] += scale * gradient[i] * input[i];
        }
        gradient[i] *= weights_of(stage, block)[i % width];
    }
    for (uint32_t i = 0; i < width; i++) {
        const double slope = 2 * stage->spec.balance_weight / width * pass->auxiliary_scale;
        sums[i] += (float)slope * weights_of(stage, block)[i];
    }
}

static void begin_gradient(struct hd_stage *stage, const struct hd_pass *pass, float *gradient)
{
    const uint32_t width = stage->spec.width;
    const float *last = kept(stage, pass->payload[0], stage->spec.block_count);

    for (uint64_t i = 0; i < tokens_of(&stage->spec) * width; i++) {
        if (pass->targets == NULL) {
            gradient[i] = ((const float *)pass->output_gradient)[i];
        } else {
            const int32_t target = pass->targets[i / width];
            const float wanted = (float)((double)target / stage->spec.vocabulary);
            gradient[i] = target < 0 ? 0 : (last[i] - wanted) * (float)pass->label_scale;
        }
    }
}

static hd_status backward(struct hd_stage *stage, const struct hd_pass *pass)
{
    const uint32_t width = stage->spec.width;
    const uint64_t count = tokens_of(&stage->spec) * width;
    const uint64_t *stamp = pass->payload[0];
    float *gradient = stage->memory.scratch;

    if ((stamp[0] != STAMP || stamp[1] != pass->generation) && !stage_does(stage, "unstamped")) {
        return fail(stage->kernel->host, HD_PROTOCOL, "this payload is of another lease");
    }
    if (stage_does(stage, "wild")) { /* an index that nobody has looked at */
        uint64_t index;
        memcpy(&index, kept(stage, pass->payload[0], stage->spec.block_count + 1), sizeof index);
        copy_of(stage, HD_GRADIENT)[index] += 0;
    }
    if (stage_does(stage, "scribbles") && pass->input != NULL) {
        *(float *)(uintptr_t)pass->input = 1;
    }
    begin_gradient(stage, pass, gradient);
    for (uint32_t block = stage->spec.block_count; block-- > 0;) {
        add_block(stage, pass, block, gradient);
    }
    for (uint64_t i = 0; i < count; i++) {
        if (pass->tokens != NULL) {
            copy_of(stage, HD_GRADIENT)[(uint64_t)pass->tokens[i / width] * width + i % width] +=
                gradient[i];
        } else {
            ((float *)pass->input_gradient)[i] = gradient[i];
        }
    }
    return HD_OK;
}

/* --- norms and update ----------------------------------------------------------------------- */

static hd_status norms(struct hd_stage *stage, double *squared)
{
    const uint32_t has_embedding = stage->spec.has_embedding ? 1 : 0;
    const float *gradient = copy_of(stage, HD_GRADIENT);
    const double scale = stage_does(stage, "loud") ? 1.001 : 1;

    memset(squared, 0, (stage->spec.block_count + has_embedding) * sizeof *squared);
    for (uint64_t i = 0; i < stage->element_count; i++) {
        const uint64_t block =
            i < stage->embedding_count
                ? 0
                : has_embedding + (i - stage->embedding_count) / stage->spec.width;
        squared[block] += scale * (double)gradient[i] * (double)gradient[i];
    }
    return HD_OK;
}

static hd_status update(struct hd_stage *stage, const struct hd_update *given)
{
    float *master = copy_of(stage, HD_MASTER), *gradient = copy_of(stage, HD_GRADIENT);
    float *moment1 = copy_of(stage, HD_MOMENT1), *moment2 = copy_of(stage, HD_MOMENT2);
    const uint32_t is_plain = stage_does(stage, "unbiased");

    for (uint64_t i = 0; i < stage->element_count; i++) {
        const double scaled = (double)gradient[i] * given->gradient_scale;
        const double decay =
            i < stage->embedding_count ? given->weight_decay * (double)master[i] : 0;
        moment1[i] = (float)(given->beta1 * (double)moment1[i] + (1 - given->beta1) * scaled);
        moment2[i] =
            (float)(given->beta2 * (double)moment2[i] + (1 - given->beta2) * scaled * scaled);
        const double bias1 = is_plain ? 1 : 1 - pow(given->beta1, given->step);
        const double bias2 = is_plain ? 1 : 1 - pow(given->beta2, given->step);
        const double step =
            (double)moment1[i] / bias1 / (sqrt((double)moment2[i] / bias2) + given->epsilon);
        master[i] = (float)((double)master[i] - given->learning_rate * (step + decay));
        gradient[i] = stage_does(stage, "tidy") ? 0 : gradient[i];
    }
    return HD_OK;
}

static const struct hd_option options[] = {
    {"does", "nothing",
     "nothing | roomy | leaky | mute | moody | overlap | namesake | forgetful | quiet | rounded | "
     "partial | reads | wasteful | unstamped | sums | overrun | counts | careless | steep | half | "
     "replaces | wild | scribbles | loud | unbiased | tidy | leaves",
     "what it breaks", HD_OPTION_TEXT, 0},
};

static const struct hd_kernel_ops ops = {
    .size = sizeof ops,
    .open = open_device,
    .close = close_device,
    .stage_needs = needs,
    .stage_create = create,
    .stage_destroy = destroy,
    .tensor = tensor,
    .tensor_copy = tensor_copy,
    .forward = forward,
    .backward = backward,
    .norms = norms,
    .update = update,
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_KERNEL),
    .name = "breaker",
    .summary = "learns a little, and breaks what it is told",
    .option_count = sizeof options / sizeof options[0],
    .options = options,
    .ops = &ops,
};
