/*
 * A small kernel that learns, and breaks what it is told, for heddle conform.
 *
 *   embedding  x = E[token]
 *   block      y = x * w, element by element; its term is the mean of w squared
 *   head       the mean squared distance of x from the target's number
 *
 * All in float32; the payload keeps the input of every block behind the stamp.
 */
#include "breaker.h"

#include <time.h>
#include <unistd.h>

enum { STAMP_BYTES = 256, INDEX_BYTES = 64 };

#define STAMP 0x6272656b65726b6eull

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
        .payload_bytes = STAMP_BYTES + (spec->block_count + 1) * boundary_bytes + INDEX_BYTES +
                         (spec->split_backward ? (spec->block_count + 1) * boundary_bytes : 0),
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

/* Takes long, or does not return. */
static void take_time(const struct hd_stage *stage)
{
    const struct timespec long_pass = {0, 100000000};

    if (stage_does(stage, "slow")) {
        nanosleep(&long_pass, NULL);
    }
    while (stage_does(stage, "hangs")) {
        pause();
    }
    if (stage_does(stage, "leaves")) {
        _exit(0);
    }
}

/* Two buffers of an evaluation: the scratch, and what the pass may write over. */
static hd_status forward(struct hd_stage *stage, const struct hd_pass *pass)
{
    const struct hd_host *host = stage->kernel->host;
    const uint32_t width = stage->spec.width, block_count = stage->spec.block_count;
    const uint64_t count = tokens_of(&stage->spec) * width;
    float *values = stage->memory.scratch;

    catch_up(stage);
    take_time(stage);
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

/* The gradient of what leaves a block adds to that of its weights ... */
static void add_weights(struct hd_stage *stage, const struct hd_pass *pass, uint32_t block,
                        const float *gradient)
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
    }
    for (uint32_t i = 0; i < width; i++) {
        const double slope = 2 * stage->spec.balance_weight / width * pass->auxiliary_scale;
        sums[i] += (float)slope * weights_of(stage, block)[i];
    }
}

/* ... and becomes the gradient of what enters it. */
static void pull_back(struct hd_stage *stage, uint32_t block, float *gradient)
{
    for (uint64_t i = 0; i < tokens_of(&stage->spec) * stage->spec.width; i++) {
        gradient[i] *= weights_of(stage, block)[i % stage->spec.width];
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

/* What enters the stage: to the embedding's rows, or to the stage before. */
static void end_gradient(struct hd_stage *stage, const struct hd_pass *pass, const float *gradient)
{
    const uint32_t width = stage->spec.width;
    const uint64_t count = tokens_of(&stage->spec) * width;

    for (uint64_t i = 0; i < count && pass->tokens != NULL; i++) {
        copy_of(stage, HD_GRADIENT)[(uint64_t)pass->tokens[i / width] * width + i % width] +=
            gradient[i];
    }
}

static void give_gradient(struct hd_stage *stage, const struct hd_pass *pass, const float *gradient)
{
    if (pass->input_gradient != NULL) {
        memcpy(pass->input_gradient, gradient,
               tokens_of(&stage->spec) * stage->spec.width * sizeof(float));
    }
}

/* Before any backward: is the payload this lease's, and what else is broken in it? */
static hd_status begin_backward(struct hd_stage *stage, const struct hd_pass *pass)
{
    const uint64_t *stamp = pass->payload[0];

    catch_up(stage);
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
    return HD_OK;
}

static hd_status backward(struct hd_stage *stage, const struct hd_pass *pass)
{
    float *gradient = stage->memory.scratch;
    const hd_status status = begin_backward(stage, pass);

    if (status != HD_OK) {
        return status;
    }
    begin_gradient(stage, pass, gradient);
    for (uint32_t block = stage->spec.block_count; block-- > 0;) {
        add_weights(stage, pass, block, gradient);
        pull_back(stage, block, gradient);
    }
    end_gradient(stage, pass, gradient);
    give_gradient(stage, pass, gradient);
    if (stage_does(stage, "lingers")) {
        stage->kernel->late_place = copy_of(stage, HD_GRADIENT) + stage->embedding_count;
        stage->kernel->late_value = *stage->kernel->late_place;
        *stage->kernel->late_place = 0;
    }
    return HD_OK;
}

/* What I leaves in the payload for W: the gradient behind block `block`; block_count: before
   all. */
static float *left(const struct hd_stage *stage, void *payload, uint32_t block)
{
    return kept(stage, payload, stage->spec.block_count + 1 + block) + INDEX_BYTES / sizeof(float);
}

static hd_status backward_input(struct hd_stage *stage, const struct hd_pass *pass)
{
    const uint64_t bytes = tokens_of(&stage->spec) * stage->spec.width * sizeof(float);
    float *gradient = stage->memory.scratch;
    const hd_status status = begin_backward(stage, pass);

    if (status != HD_OK) {
        return status;
    }
    begin_gradient(stage, pass, gradient);
    for (uint32_t block = stage->spec.block_count; block-- > 0;) {
        memcpy(left(stage, pass->payload[0], block), gradient, bytes);
        pull_back(stage, block, gradient);
    }
    memcpy(left(stage, pass->payload[0], stage->spec.block_count), gradient, bytes);
    give_gradient(stage, pass, gradient);
    return HD_OK;
}

static hd_status backward_weight(struct hd_stage *stage, const struct hd_pass *pass)
{
    const uint32_t block_count = stage->spec.block_count;
    const hd_status status = begin_backward(stage, pass);

    for (uint32_t i = 0; status == HD_OK && i < block_count; i++) {
        add_weights(stage, pass, i, left(stage, pass->payload[0], i));
    }
    if (status == HD_OK) {
        end_gradient(stage, pass, left(stage, pass->payload[0], block_count));
        copy_of(stage, HD_GRADIENT)[stage->embedding_count] *=
            stage_does(stage, "uneven") ? 1.0000002f : 1.0f;
    }
    return status;
}

static const struct hd_option options[] = {
    {"does", "nothing",
     "nothing | roomy | leaky | mute | moody | overlap | namesake | forgetful | quiet | rounded | "
     "partial | reads | wasteful | unstamped | sums | overrun | counts | careless | steep | half | "
     "replaces | wild | scribbles | loud | unbiased | tidy | leaves | uneven | lingers | slow | "
     "hangs",
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
    .backward_input = backward_input,
    .backward_weight = backward_weight,
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
