/*
 * plugins/kernels/transformer/kernel.c - the table of kernel.h, over a plugin's ops.
 *
 * Synchronous, in the host's memory: the core allocates, copies and reads the clock
 * itself, so that the five members from abort to reached stay NULL.
 */
#include "stage.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static hd_status open_kernel(const struct hd_host *host, uint32_t ordinal, struct hd_device *device,
                             struct hd_kernel **out)
{
    struct hd_kernel *kernel = host->alloc(host->context, sizeof *kernel, 64, "kernel");
    struct hd_device filled = {
        .memory = HD_MEMORY_HOST, .capabilities = HD_KERNEL_RECOMPUTE, .alignment = 64};
    if (kernel == NULL) {
        return hd_refuse(host, HD_NO_MEMORY, "no memory for the kernel's own state");
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

static void close_kernel(struct hd_kernel *kernel)
{
    if (kernel != NULL) {
        hd_transformer_backend.close(kernel->device);
        kernel->host->free(kernel->host->context, kernel);
    }
}

/* Reads and checks the spec, and finds the ops that serve it. */
static hd_status serve(const struct hd_host *host, const struct hd_stage_spec *given,
                       struct hd_stage_spec *spec, const struct hd_ops **ops)
{
    const hd_status status = hd_spec_read(host, given, spec);
    if (status != HD_OK) {
        return status;
    }
    *ops = hd_transformer_backend.ops(host, spec->precision);
    if (*ops == NULL) {
        static const char *const names[] = {"bf16", "mxfp8", "f32"};
        return hd_refuse(host, HD_UNSUPPORTED,
                         "precision %s is not served by this kernel with these options: use %s",
                         names[spec->precision],
                         spec->precision == HD_PRECISION_BF16 ? "f32" : "bf16");
    }
    return HD_OK;
}

static uint64_t rope_bytes(const struct hd_stage_spec *spec, const struct hd_layout *layout)
{
    return (uint64_t)spec->sequence * (spec->width / spec->heads / 2) * layout->statistic_bytes;
}

static uint64_t own_bytes(const struct hd_stage_spec *spec, const struct hd_ops *ops,
                          const struct hd_layout *layout)
{
    uint64_t bytes = sizeof(struct hd_stage) + 2 * rope_bytes(spec, layout);
    if (hd_transformer_backend.private_bytes != NULL) {
        bytes += hd_transformer_backend.private_bytes(ops, spec);
    }
    return bytes;
}

static hd_status stage_needs(const struct hd_host *host, const struct hd_stage_spec *given,
                             struct hd_stage_needs *needs)
{
    struct hd_stage_spec spec;
    struct hd_layout layout;
    const struct hd_ops *ops;
    const hd_status status = serve(host, given, &spec, &ops);
    if (status != HD_OK) {
        return status;
    }
    hd_layout_make(&spec, ops, &layout);
    const struct hd_stage_needs filled = {
        .size = needs->size,
        .tensor_count = hd_tensor_count(&spec),
        .term_count = layout.term_count,
        .boundary_dtype = ops->activation,
        .boundary_bytes = spec.half_batches * layout.tokens * spec.width * layout.activation_bytes,
        .parameter_bytes = layout.parameter_bytes,
        .optimizer_bytes = layout.optimizer_bytes,
        .gradient_bytes = {layout.gradient_bytes[HD_DENSE], layout.gradient_bytes[HD_EXPERT]},
        .payload_bytes = layout.payload_bytes,
        .scratch_bytes = layout.scratch_bytes,
        .private_bytes = own_bytes(&spec, ops, &layout),
        .forward_flops = hd_spec_forward_flops(&spec),
        .backward_flops = 2 * hd_spec_forward_flops(&spec),
        .acquisitions = spec.half_batches};
    memcpy(needs, &filled, needs->size < sizeof filled ? needs->size : sizeof filled);
    return HD_OK;
}

/* One entry of a table of S, from float64. */
static void put_statistic(void *table, uint32_t dtype, uint64_t index, double value)
{
    if (dtype == HD_F64) {
        ((double *)table)[index] = value;
    } else {
        ((float *)table)[index] = (float)value;
    }
}

static hd_status make_rope(struct hd_stage *stage)
{
    const struct hd_host *host = stage->kernel->host;
    const struct hd_stage_spec *spec = &stage->spec;
    const uint32_t head_width = spec->width / spec->heads, pairs = head_width / 2;
    const uint64_t bytes = rope_bytes(spec, &stage->layout);
    stage->cosine = host->alloc(host->context, bytes, 64, "rope");
    stage->sine = host->alloc(host->context, bytes, 64, "rope");
    if (stage->cosine == NULL || stage->sine == NULL) {
        return hd_refuse(host, HD_NO_MEMORY, "no memory for the rotation tables of stage %u",
                         spec->stage);
    }
    for (uint32_t pair = 0; pair < pairs; pair++) {
        const double frequency = pow(spec->rope_theta, -2.0 * pair / head_width);
        for (uint32_t position = 0; position < spec->sequence; position++) {
            const uint64_t index = (uint64_t)position * pairs + pair;
            const double angle = position * frequency;
            put_statistic(stage->cosine, stage->ops->statistic, index, cos(angle));
            put_statistic(stage->sine, stage->ops->statistic, index, sin(angle));
        }
    }
    return HD_OK;
}

static void stage_destroy(struct hd_stage *stage)
{
    if (stage != NULL) {
        const struct hd_host *host = stage->kernel->host;
        host->free(host->context, stage->sine);
        host->free(host->context, stage->cosine);
        host->free(host->context, stage);
    }
}

static hd_status stage_create(struct hd_kernel *kernel, const struct hd_stage_spec *given,
                              const struct hd_stage_memory *memory, struct hd_stage **out)
{
    const struct hd_host *host = kernel->host;
    struct hd_stage *stage = host->alloc(host->context, sizeof *stage, 64, "stage");
    if (stage == NULL) {
        return hd_refuse(host, HD_NO_MEMORY, "no memory for the state of a stage");
    }
    stage->kernel = kernel;
    hd_status status = serve(host, given, &stage->spec, &stage->ops);
    if (status == HD_OK) {
        memcpy(&stage->memory, memory,
               memory->size < sizeof *memory ? memory->size : sizeof *memory);
        hd_layout_make(&stage->spec, stage->ops, &stage->layout);
        stage->spec_hash = hd_spec_hash(&stage->spec, stage->ops);
        status = make_rope(stage);
    }
    if (status == HD_OK && hd_transformer_backend.prepare != NULL) {
        status = hd_transformer_backend.prepare(kernel->device, stage->ops, &stage->spec);
    }
    if (status != HD_OK) {
        stage_destroy(stage);
        return status;
    }
    *out = stage;
    return HD_OK;
}

const struct hd_kernel_ops hd_transformer_kernel_ops = {
    .size = sizeof hd_transformer_kernel_ops,
    .open = open_kernel,
    .close = close_kernel,
    .stage_needs = stage_needs,
    .stage_create = stage_create,
    .stage_destroy = stage_destroy,
    .tensor = hd_stage_tensor,
    .tensor_copy = hd_stage_tensor_copy,
    .forward = hd_stage_forward,
    .backward = hd_stage_backward,
    .norms = hd_stage_norms,
    .update = hd_stage_update,
};
