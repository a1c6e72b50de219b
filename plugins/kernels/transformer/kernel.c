/*
 * plugins/kernels/transformer/kernel.c - the table of kernel.h, over a plugin's ops.
 *
 * One table is for host memory: the core allocates, copies and reads the clock itself, and the
 * five members from abort to reached are NULL.  The other is for a device with its own memory.
 */
#include "address.h"
#include "pass.h"
#include "remote_stage.h"
#include "spec.h"
#include "tensors.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static hd_status kernel_open(const struct hd_host *host, uint32_t ordinal, struct hd_device *device,
                             struct hd_kernel **out)
{
    struct hd_kernel *kernel = host->alloc(host->context, sizeof *kernel, 64, "kernel");
    struct hd_device filled = {
        .memory = HD_MEMORY_HOST, .capabilities = HD_KERNEL_RECOMPUTE, .alignment = 64};
    if (kernel == NULL) {
        return hd_refuse(host, HD_NO_MEMORY, "cannot allocate the kernel's state");
    }
    const uint32_t option = hd_transformer_backend.stamp_option;
    kernel->host = host;
    kernel->checks_stamps = option >= host->option_count || host->options[option].integer != 0;
    const hd_status status = hd_transformer_backend.open(host, ordinal, &filled, &kernel->device);
    if (status != HD_OK) {
        host->free(host->context, kernel);
        return status;
    }
    if (hd_transformer_backend.ops(host, HD_PRECISION_MXFP8) != NULL) {
        filled.capabilities |= HD_KERNEL_MXFP8_EMULATED;
    }
    filled.size = device->size;
    memcpy(device, &filled, device->size < sizeof filled ? device->size : sizeof filled);
    *out = kernel;
    return HD_OK;
}

static void kernel_close(struct hd_kernel *kernel)
{
    if (kernel != NULL) {
        hd_transformer_backend.close(kernel->device);
        kernel->host->free(kernel->host->context, kernel);
    }
}

/* Reads and checks the spec, and finds the ops that serve it. */
static hd_status kernel_serve(const struct hd_host *host, const struct hd_stage_spec *given,
                              struct hd_stage_spec *spec, const struct hd_ops **ops)
{
    HD_TRY(hd_spec_read(host, given, spec));
    *ops = hd_transformer_backend.ops(host, spec->precision);
    if (*ops == NULL) {
        static const char *const names[] = {"bf16", "mxfp8", "f32"};
        return hd_refuse(host, HD_UNSUPPORTED,
                         "this kernel does not support precision %s with these options: use %s",
                         names[spec->precision],
                         spec->precision == HD_PRECISION_BF16 ? "f32" : "bf16");
    }
    return hd_transformer_backend.check != NULL ? hd_transformer_backend.check(host, spec) : HD_OK;
}

static uint64_t kernel_rope_bytes(const struct hd_stage_spec *spec, const struct hd_layout *layout)
{
    return (uint64_t)spec->sequence * (spec->width / spec->heads / 2) * layout->statistic_bytes;
}

static uint64_t kernel_own_bytes(const struct hd_stage_spec *spec, const struct hd_ops *ops,
                                 const struct hd_layout *layout)
{
    uint64_t bytes = sizeof(struct hd_stage) + 2 * kernel_rope_bytes(spec, layout);
    if (hd_transformer_backend.private_bytes != NULL) {
        bytes += hd_transformer_backend.private_bytes(ops, spec);
    }
    return bytes;
}

static hd_status kernel_stage_needs(const struct hd_host *host, const struct hd_stage_spec *given,
                                    struct hd_stage_needs *needs)
{
    struct hd_stage_spec spec;
    struct hd_layout layout;
    const struct hd_ops *ops;
    HD_TRY(kernel_serve(host, given, &spec, &ops));
    hd_layout_make(&spec, ops, &layout);
    const struct hd_stage_needs filled = {
        .size = needs->size,
        .tensor_count = hd_stage_tensor_count(&spec),
        .term_count = layout.term_count,
        .boundary_dtype = ops->activation,
        .boundary_bytes = spec.half_batches * layout.tokens * spec.width * layout.activation_bytes,
        .parameter_bytes = layout.parameter_bytes,
        .optimizer_bytes = layout.optimizer_bytes,
        .gradient_bytes = {layout.gradient_bytes[HD_DENSE], layout.gradient_bytes[HD_EXPERT]},
        .payload_bytes = layout.payload_bytes,
        .scratch_bytes = layout.scratch_bytes,
        .private_bytes = kernel_own_bytes(&spec, ops, &layout),
        .memory = hd_is_remote() ? HD_MEMORY_CUDA : HD_MEMORY_HOST,
        .forward_flops = hd_spec_forward_flops(&spec),
        .backward_flops = 2 * hd_spec_forward_flops(&spec),
        .acquisitions = spec.half_batches};
    memcpy(needs, &filled, needs->size < sizeof filled ? needs->size : sizeof filled);
    return HD_OK;
}

/* One entry of a table of S, from float64. */
static void kernel_put_statistic(void *table, uint32_t dtype, uint64_t index, double value)
{
    if (dtype == HD_F64) {
        ((double *)table)[index] = value;
    } else {
        ((float *)table)[index] = (float)value;
    }
}

static void kernel_fill_rope(const struct hd_stage *stage, void *cosine, void *sine)
{
    const struct hd_stage_spec *spec = &stage->spec;
    const uint32_t head_width = spec->width / spec->heads, pairs = head_width / 2;
    for (uint32_t pair = 0; pair < pairs; pair++) {
        const double frequency = pow(spec->rope_theta, -2.0 * pair / head_width);
        for (uint32_t position = 0; position < spec->sequence; position++) {
            const uint64_t index = (uint64_t)position * pairs + pair;
            const double angle = position * frequency;
            kernel_put_statistic(cosine, stage->ops->statistic, index, cos(angle));
            kernel_put_statistic(sine, stage->ops->statistic, index, sin(angle));
        }
    }
}

/* On a remote device: copies the tables there, and frees those of the host. */
static hd_status kernel_send_rope(struct hd_stage *stage, uint64_t bytes)
{
    const struct hd_host *host = stage->kernel->host;
    void **const tables[] = {&stage->cosine, &stage->sine};
    hd_status status = HD_OK;
    for (uint32_t i = 0; hd_is_remote() && i < 2; i++) {
        void *own = *tables[i], *there = NULL;
        *tables[i] = NULL;
        if (status == HD_OK) {
            status = hd_remote_allocate(stage->kernel, bytes, "rope", &there);
        }
        if (status == HD_OK) {
            *tables[i] = there;
            status = hd_copy_and_wait(stage->kernel, there, own, bytes);
        }
        host->free(host->context, own);
    }
    return status;
}

static hd_status kernel_make_rope(struct hd_stage *stage)
{
    const struct hd_host *host = stage->kernel->host;
    const uint64_t bytes = kernel_rope_bytes(&stage->spec, &stage->layout);
    stage->cosine = host->alloc(host->context, bytes, 64, "rope");
    stage->sine = host->alloc(host->context, bytes, 64, "rope");
    if (stage->cosine == NULL || stage->sine == NULL) {
        host->free(host->context, stage->cosine);
        host->free(host->context, stage->sine);
        stage->cosine = stage->sine = NULL;
        return hd_refuse(host, HD_NO_MEMORY, "cannot allocate the rotation tables of stage %u",
                         stage->spec.stage);
    }
    kernel_fill_rope(stage, stage->cosine, stage->sine);
    return kernel_send_rope(stage, bytes);
}

static void kernel_stage_destroy(struct hd_stage *stage)
{
    if (stage != NULL) {
        const struct hd_host *host = stage->kernel->host;
        if (!hd_is_remote()) { /* closing the device frees its own */
            host->free(host->context, stage->sine);
            host->free(host->context, stage->cosine);
        }
        host->free(host->context, stage);
    }
}

static void kernel_tell_stage(const struct hd_stage *stage)
{
    static const char *const precisions[] = {"bf16", "mxfp8", "f32"};
    static const char *const recomputes[] = {"none", "full", "experts"};
    const struct hd_stage_spec *spec = &stage->spec;
    const struct hd_layout *layout = &stage->layout;
    hd_tell(stage->kernel->host, HD_TELL_DEBUG,
            "stage %u: %u blocks from block %u on, precision %s, recompute %s, %u half batches of "
            "%llu tokens; payload %llu bytes, scratch %llu bytes, of which the ops use %llu",
            spec->stage, spec->block_count, spec->first_block, precisions[spec->precision],
            recomputes[spec->recompute], spec->half_batches, (unsigned long long)layout->tokens,
            (unsigned long long)layout->payload_bytes, (unsigned long long)layout->scratch_bytes,
            (unsigned long long)layout->ops_scratch_bytes);
}

static hd_status kernel_stage_create(struct hd_kernel *kernel, const struct hd_stage_spec *given,
                                     const struct hd_stage_memory *memory, struct hd_stage **out)
{
    const struct hd_host *host = kernel->host;
    struct hd_stage *stage = host->alloc(host->context, sizeof *stage, 64, "stage");
    if (stage == NULL) {
        return hd_refuse(host, HD_NO_MEMORY, "cannot allocate the state of a stage");
    }
    stage->kernel = kernel;
    hd_status status = kernel_serve(host, given, &stage->spec, &stage->ops);
    if (status == HD_OK) {
        memcpy(&stage->memory, memory,
               memory->size < sizeof *memory ? memory->size : sizeof *memory);
        hd_layout_make(&stage->spec, stage->ops, &stage->layout);
        hd_place_scratch(stage);
        stage->spec_hash = hd_spec_hash(&stage->spec, stage->ops);
        status = kernel_make_rope(stage);
    }
    if (status == HD_OK && hd_transformer_backend.prepare != NULL) {
        status = hd_transformer_backend.prepare(kernel->device, stage->ops, &stage->spec);
    }
    if (status != HD_OK) {
        kernel_stage_destroy(stage);
        return status;
    }
    kernel_tell_stage(stage);
    *out = stage;
    return HD_OK;
}

#define HD_MEMBERS_OF_BOTH                                                            \
    .size = sizeof(struct hd_kernel_ops), .open = kernel_open, .close = kernel_close, \
    .stage_needs = kernel_stage_needs, .stage_create = kernel_stage_create,           \
    .stage_destroy = kernel_stage_destroy, .tensor = hd_stage_tensor,                 \
    .tensor_copy = hd_stage_tensor_copy, .forward = hd_stage_forward,                 \
    .backward = hd_stage_backward, .norms = hd_stage_norms, .update = hd_stage_update

const struct hd_kernel_ops hd_transformer_kernel_ops = {HD_MEMBERS_OF_BOTH};

const struct hd_kernel_ops hd_transformer_remote_kernel_ops = {
    HD_MEMBERS_OF_BOTH,     .abort = hd_remote_abort, .allocate = hd_remote_allocate,
    .copy = hd_remote_copy, .mark = hd_remote_mark,   .reached = hd_remote_reached,
};
