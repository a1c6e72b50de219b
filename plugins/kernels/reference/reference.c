/*
 * plugins/kernels/reference/reference.c - the specification, as a plugin.
 *
 * Plain C, in the order of ops.h.  Results of other kernels are compared with it, by residual.  The
 * stage program is shared; this file chooses the op table:
 *
 *   precision bf16 -> bf16 activations, float32 sums; mxfp8 is emulated with the same
 *   precision f32  -> float32, or with `float64 = on` float64 throughout
 */
#include "reference.h"

#include <stdbool.h>
#include <stddef.h>

static const struct hd_option reference_options[] = {
    {.name = "float64",
     .initial = "off",
     .help = "compute precision f32 in float64, boundaries and masters too",
     .type = HD_OPTION_FLAG},
    HD_STAMP_OPTION,
};

static const struct hd_ops *reference_choose_ops(const struct hd_host *host, uint32_t precision)
{
    if (precision == HD_PRECISION_BF16 || precision == HD_PRECISION_MXFP8) {
        return &reference_ops_bf16;
    }
    if (precision != HD_PRECISION_F32) {
        return NULL;
    }
    const bool is_double = host->option_count > 0 && host->options[0].integer != 0;
    return is_double ? &reference_ops_f64 : &reference_ops_f32;
}

static hd_status reference_open_device(const struct hd_host *host, uint32_t ordinal,
                                       struct hd_device *device, struct hd_ops_device **out)
{
    struct hd_ops_device *opened = host->alloc(host->context, sizeof *opened, 64, "reference");
    (void)ordinal;
    if (opened == NULL) {
        return hd_refuse(host, HD_NO_MEMORY, "cannot allocate the state of the kernel reference");
    }
    opened->host = host;
    device->memory = HD_MEMORY_HOST;
    device->alignment = 64;
    device->effective = "plain C, one thread, MXFP8 emulated in BF16";
    *out = opened;
    return HD_OK;
}

static void reference_close_device(struct hd_ops_device *device)
{
    if (device != NULL) {
        device->host->free(device->host->context, device);
    }
}

static void reference_bind_scratch(struct hd_ops_device *device, void *scratch, uint64_t bytes)
{
    device->scratch = scratch;
    device->scratch_bytes = bytes;
}

const struct hd_transformer_backend hd_transformer_backend = {
    .ops = reference_choose_ops,
    .stamp_option = 1,
    .open = reference_open_device,
    .close = reference_close_device,
    .bind = reference_bind_scratch,
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_KERNEL),
    .capabilities = HD_KERNEL_RECOMPUTE | HD_KERNEL_MXFP8_EMULATED,
    .option_count = sizeof reference_options / sizeof reference_options[0],
    .options = reference_options,
    .name = "reference",
    .summary = "the specification in plain C: bf16, mxfp8, f32, or float64 throughout",
    .vendor = "heddle",
    .version = "0.1.0",
    .licence = "Apache-2.0",
    .source = "Muennighoff et al. 2024 (OLMoE)",
    .ops = &hd_transformer_kernel_ops,
};
