/*
 * plugins/kernels/synthetic/synthetic.c - stages that sleep, and send patterns that can be checked.
 *
 * A stage sleeps for its time in [cost], so that dozens of ranks fit on two cores, and a schedule
 * or a transport is measured without a model.  Boundaries carry a pattern, and every pass checks
 * its inputs:
 *
 *   forward    input  w0 d1 d2 ...   are d1, d2, ... derived from w0?
 *              output v0 d1 d2 ...   v0 mixes the stage with w0; the payload keeps w0
 *   backward   input                 still w0 (else its slot was reused before its backward)
 *              output_gradient       g0 and what derives from it
 *              input_gradient        mixes the stage, g0 and the payload's w0
 *
 * So a message that is torn, stale, from another microbatch's slot or overwritten under its lease
 * is an error, not a wrong number.  There are no tensors and no terms, except with model = on
 * (model.c).  With check = off it only sleeps: the null transport fills its slots with its own
 * pattern.
 *
 * With memory = cuda all of this happens in a CUDA stream, on slots in device memory.  This
 * measures and checks how the core runs a device, and transports between devices, without a model
 * (device.c).
 *
 * tests/test_oracle_device.c and heddle bench step use it.
 */
#include "synthetic.h"

#ifdef SYNTHETIC_HAS_CUDA
#include "cuda_library.h"
#endif

#include <heddle/schedule.h>

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

hd_status synthetic_report(const struct hd_host *host, hd_status status, const char *format, ...)
{
    char text[512];
    const struct hd_error error = {.size = sizeof error,
                                   .status = status,
                                   .rank = UINT32_MAX,
                                   .channel = UINT32_MAX,
                                   .text = text};
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return host->fail(host->context, &error);
}

static hd_status synthetic_run(struct hd_stage *stage, uint32_t kind, const struct hd_pass *pass)
{
#ifdef SYNTHETIC_HAS_CUDA
    if (stage->kernel->device != NULL) {
        return synthetic_device_pass(stage, kind, pass);
    }
#endif
    return synthetic_pass(stage, kind, pass);
}

#define SYNTHETIC_RUN(name, kind)                                                             \
    static hd_status synthetic_run_##name(struct hd_stage *stage, const struct hd_pass *pass) \
    {                                                                                         \
        return synthetic_run(stage, kind, pass);                                              \
    }

SYNTHETIC_RUN(forward, HD_FORWARD)
SYNTHETIC_RUN(backward, HD_BACKWARD)
SYNTHETIC_RUN(backward_input, HD_BACKWARD_INPUT)
SYNTHETIC_RUN(backward_weight, HD_BACKWARD_WEIGHT)

enum { TENSOR_BYTES = SYNTHETIC_TENSOR_VALUES * sizeof(float) };

static bool synthetic_has_model(const struct hd_host *host)
{
    return host->option_count > OPTION_MODEL && host->options[OPTION_MODEL].integer != 0;
}

#ifdef SYNTHETIC_HAS_CUDA
/* enum hd_memory. */
static uint32_t synthetic_memory_of(const struct hd_host *host)
{
    const char *name =
        host->option_count > OPTION_MEMORY ? host->options[OPTION_MEMORY].text : "host";
    return strcmp(name, "cuda") == 0     ? HD_MEMORY_CUDA
           : strcmp(name, "pinned") == 0 ? HD_MEMORY_HOST_PINNED
                                         : HD_MEMORY_HOST;
}
#endif

static uint64_t synthetic_boundary_bytes_of(const struct hd_host *host,
                                            const struct hd_stage_spec *spec)
{
    const int64_t asked = host->option_count > OPTION_BOUNDARY_BYTES
                              ? host->options[OPTION_BOUNDARY_BYTES].integer
                              : 0;
    const uint64_t bytes =
        asked > 0 ? (uint64_t)asked : 2ull * spec->batch * spec->sequence * spec->width;
    return (bytes + 7) / 8 * 8;
}

static hd_status synthetic_stage_needs(const struct hd_host *host, const struct hd_stage_spec *spec,
                                       struct hd_stage_needs *needs)
{
    struct hd_stage_needs own = {
        .size = sizeof own,
        .boundary_dtype = HD_BF16,
        .boundary_bytes = synthetic_boundary_bytes_of(host, spec),
        .payload_bytes = sizeof(struct synthetic_payload),
        .acquisitions = spec->half_batches > 1 ? HD_ACQUISITION_MAX : 1,
    };
    const uint32_t room = needs->size;

    if (synthetic_has_model(host)) {
        own.tensor_count = spec->block_count;
        own.term_count = spec->has_head ? 1 : 0;
        own.parameter_bytes = (uint64_t)spec->block_count * TENSOR_BYTES;
        own.optimizer_bytes = 2 * own.parameter_bytes;
        own.gradient_bytes[HD_DENSE] = own.parameter_bytes;
    }
#ifdef SYNTHETIC_HAS_CUDA
    own.memory = synthetic_memory_of(host);
    if (own.memory != HD_MEMORY_HOST) {
        own.private_bytes =
            synthetic_device_stage_bytes(spec, own.boundary_bytes, synthetic_has_model(host));
    }
#endif
    memcpy(needs, &own, room < own.size ? room : own.size);
    return HD_OK;
}

static hd_status synthetic_stage_create(struct hd_kernel *kernel, const struct hd_stage_spec *spec,
                                        const struct hd_stage_memory *memory, struct hd_stage **out)
{
    const struct hd_host *host = kernel->host;
    struct hd_stage *stage = host->alloc(host->context, sizeof *stage, 64, "synthetic");

    if (stage == NULL) {
        return synthetic_report(host, HD_NO_MEMORY, "cannot allocate the state of a stage");
    }
    memcpy(&stage->spec, spec, spec->size < sizeof *spec ? spec->size : sizeof *spec);
    stage->host = host;
    stage->kernel = kernel;
    stage->boundary_words = synthetic_boundary_bytes_of(host, spec) / 8;
    stage->is_checked = host->options[OPTION_CHECK].integer != 0;
    stage->has_model = synthetic_has_model(host);
    stage->memory = (struct synthetic_memory){memory->parameters, memory->optimizer,
                                              memory->gradients[HD_DENSE]};
    stage->touch = stage->memory;
#ifdef SYNTHETIC_HAS_CUDA
    const hd_status status = kernel->device != NULL ? synthetic_device_stage_create(stage) : HD_OK;
    if (status != HD_OK) {
        host->free(host->context, stage);
        return status;
    }
#endif
    *out = stage;
    return HD_OK;
}

static void synthetic_stage_destroy(struct hd_stage *stage)
{
    bool may_free = stage != NULL;

#ifdef SYNTHETIC_HAS_CUDA
    may_free = may_free && synthetic_device_stage_destroy(stage);
#endif
    if (may_free) {
        stage->host->free(stage->host->context, stage);
    }
}

static hd_status synthetic_tensor_copy(struct hd_stage *stage, uint32_t index, uint32_t copy,
                                       uint32_t into, void *host)
{
    float *values = stage->has_model && index < stage->spec.block_count
                        ? synthetic_model_copy(&stage->memory, stage->spec.block_count, index, copy)
                        : NULL;

    if (values == NULL) {
        return HD_INVALID;
    }
#ifdef SYNTHETIC_HAS_CUDA
    if (stage->kernel->device != NULL) {
        return synthetic_device_values(stage, values, host, into != 0);
    }
#endif
    memcpy(into ? values : host, into ? host : values, TENSOR_BYTES);
    return HD_OK;
}

static hd_status synthetic_norms(struct hd_stage *stage, double *squared)
{
    if (!stage->has_model) {
        return HD_OK;
    }
#ifdef SYNTHETIC_HAS_CUDA
    if (stage->kernel->device != NULL) {
        return synthetic_device_norms(stage, squared);
    }
#endif
    synthetic_model_norms(stage, squared);
    return HD_OK;
}

static hd_status synthetic_update(struct hd_stage *stage, const struct hd_update *parameters)
{
    if (!stage->has_model) {
        return HD_OK;
    }
#ifdef SYNTHETIC_HAS_CUDA
    if (stage->kernel->device != NULL) {
        return synthetic_device_update(stage, parameters);
    }
#endif
    synthetic_model_update(stage, parameters);
    return HD_OK;
}

static hd_status synthetic_open_kernel(const struct hd_host *host, uint32_t ordinal,
                                       struct hd_device *device, struct hd_kernel **out)
{
    struct hd_kernel *kernel = host->alloc(host->context, sizeof *kernel, 64, "synthetic");
    struct hd_device own = {
        .size = sizeof own,
        .memory = HD_MEMORY_HOST,
        .alignment = 64,
        .effective = "synthetic: sleeps and fills patterns",
    };

    (void)ordinal;
    if (kernel == NULL) {
        return synthetic_report(host, HD_NO_MEMORY,
                                "cannot allocate the state of the kernel synthetic");
    }
    kernel->host = host;
#ifdef SYNTHETIC_HAS_CUDA
    own.memory = synthetic_memory_of(host);
#endif
    /* The default slack of 50 us would lengthen every stage. */
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
#ifdef SYNTHETIC_HAS_CUDA
    const hd_status status = synthetic_memory_of(host) != HD_MEMORY_HOST
                                 ? synthetic_device_open(kernel, ordinal, &own)
                                 : HD_OK;
    if (status != HD_OK) {
        host->free(host->context, kernel);
        return status;
    }
#endif
    memcpy(device, &own, device->size < own.size ? device->size : own.size);
    *out = kernel;
    return HD_OK;
}

static void synthetic_close_kernel(struct hd_kernel *kernel)
{
    if (kernel != NULL) {
#ifdef SYNTHETIC_HAS_CUDA
        synthetic_close(kernel);
#endif
        kernel->host->free(kernel->host->context, kernel);
    }
}

static const struct hd_kernel_ops synthetic_ops = {
    .size = sizeof synthetic_ops,
    .open = synthetic_open_kernel,
    .close = synthetic_close_kernel,
#ifdef SYNTHETIC_HAS_CUDA
    .abort = synthetic_abort,
    .allocate = synthetic_allocate,
    .copy = synthetic_copy,
    .mark = synthetic_mark,
    .reached = synthetic_reached,
#endif
    .stage_needs = synthetic_stage_needs,
    .stage_create = synthetic_stage_create,
    .stage_destroy = synthetic_stage_destroy,
    .tensor = synthetic_model_tensor,
    .tensor_copy = synthetic_tensor_copy,
    .forward = synthetic_run_forward,
    .backward = synthetic_run_backward,
    .backward_input = synthetic_run_backward_input,
    .backward_weight = synthetic_run_backward_weight,
    .norms = synthetic_norms,
    .update = synthetic_update,
};

static const struct hd_option synthetic_options[] = {
    {"check", "on", NULL, "check the pattern of every message and the stamp of every payload",
     HD_OPTION_FLAG, 0},
    {"boundary_bytes", "0", "0..1073741824",
     "bytes of a message; 0: as many as the model would send", HD_OPTION_BYTES, 0},
    {"model", "off", NULL,
     "a tensor for each block and a loss, computed from the patterns, to compare runs",
     HD_OPTION_FLAG, 0},
#ifdef SYNTHETIC_HAS_CUDA
    {"memory", "host", "host | cuda | pinned",
     "memory of the passes: of the host, of a GPU, or of the host in a CUDA stream", HD_OPTION_TEXT,
     0},
    CUDA_RUNTIME_OPTION,
#endif
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_KERNEL),
    .option_count = sizeof synthetic_options / sizeof synthetic_options[0],
    .options = synthetic_options,
#ifdef SYNTHETIC_HAS_CUDA
    .capabilities = HD_KERNEL_STREAM,
#endif
    .name = "synthetic",
    .summary = "sleeps as long as [cost] says and fills checkable patterns; no model",
    .vendor = "heddle",
    .version = "0.1.0",
    .licence = "Apache-2.0",
    .source = "report, section 6.5: what a schedule costs without its kernels",
    .ops = &synthetic_ops,
};
