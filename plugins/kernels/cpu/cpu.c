/*
 * plugins/kernels/cpu/cpu.c - stages on the processor, with oneDNN.
 *
 *   struct hd_ops ---+--> gemm.c, cache.c   every product, by a oneDNN primitive of its shape
 *                    +--> isa/            all other ops, for AVX-512 or for any processor
 *
 * One thread per rank: the pipeline is the parallelism.  Precision bf16 has BF16 operands and
 * float32 sums; f32 is float32 throughout.
 */
#include "device.h"

#include <dnnl.h>
#include <stdio.h>

static const struct hd_option cpu_options[] = {
    {.name = "instructions",
     .initial = "auto",
     .range = "auto | avx512 | plain",
     .help = "instruction set of our own loops; with plain, BF16 products run in float32",
     .type = HD_OPTION_TEXT},
    HD_STAMP_OPTION,
};

/* The instruction set that the option names; NULL if this processor does not support it. */
static const struct hd_cpu_isa *cpu_choose_isa(const struct hd_host *host)
{
    const char *asked = host->option_count > 0 ? host->options[0].text : NULL;
    return hd_cpu_isa(asked != NULL ? asked : "auto");
}

static const struct hd_ops *cpu_choose_ops(const struct hd_host *host, uint32_t precision)
{
    const struct hd_cpu_isa *isa = cpu_choose_isa(host);
    if (isa == NULL) {
        return NULL;
    }
    switch (precision) {
    case HD_PRECISION_BF16:
    case HD_PRECISION_MXFP8:
        return &isa->bf16;
    case HD_PRECISION_F32:
        return &isa->f32;
    default:
        return NULL;
    }
}

static const char *cpu_products_of(bool native_bf16)
{
#ifdef __x86_64__
    if (native_bf16 && (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_amx) ==
                           dnnl_cpu_isa_avx512_core_amx) {
        return "BF16 by AMX";
    }
#endif
    return native_bf16 ? "BF16 by AVX-512" : "BF16 as float32";
}

static void cpu_close(struct hd_ops_device *device)
{
    if (device != NULL) {
        const struct hd_host *host = device->host;
        hd_cpu_cache_destroy(device->cache);
        host->free(host->context, device);
    }
}

static hd_status cpu_open(const struct hd_host *host, uint32_t ordinal, struct hd_device *device,
                          struct hd_ops_device **out)
{
    (void)ordinal;
    const struct hd_cpu_isa *isa = cpu_choose_isa(host);
    if (isa == NULL) {
        return hd_refuse(host, HD_UNSUPPORTED,
                         "kernel.cpu.instructions = %s: this processor does not support it: use "
                         "auto",
                         host->options[0].text);
    }
    struct hd_ops_device *made = host->alloc(host->context, sizeof *made, 64, "kernel");
    if (made == NULL) {
        return hd_refuse(host, HD_NO_MEMORY, "cannot allocate the state of the kernel cpu");
    }
    made->host = host;
    made->isa = isa;
    made->native_bf16 = isa->pack_weights != NULL && hd_cpu_native_bf16();
    made->cache = hd_cpu_cache_create(host);
    if (made->cache == NULL) {
        cpu_close(made);
        return HD_DEVICE;
    }
    const dnnl_version_t *version = dnnl_version();
    snprintf(made->effective, sizeof made->effective,
             "cpu oneDNN %d.%d.%d, %s, %s, MXFP8 emulated in BF16", version->major, version->minor,
             version->patch, cpu_products_of(made->native_bf16), isa->name);
    hd_tell(host, HD_TELL_DEBUG, "%s", made->effective);
    device->memory = HD_MEMORY_HOST;
    device->alignment = 64;
    device->effective = made->effective;
    *out = made;
    return HD_OK;
}

static void cpu_bind_scratch(struct hd_ops_device *device, void *scratch, uint64_t bytes)
{
    device->scratch = (struct hd_cpu_arena){.at = scratch, .left_bytes = bytes};
}

const struct hd_transformer_backend hd_transformer_backend = {
    .ops = cpu_choose_ops,
    .stamp_option = 1,
    .open = cpu_open,
    .close = cpu_close,
    .prepare = hd_cpu_prepare,
    .bind = cpu_bind_scratch,
    .private_bytes = hd_cpu_private_bytes,
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_KERNEL),
    .capabilities = HD_KERNEL_RECOMPUTE | HD_KERNEL_MXFP8_EMULATED,
    .option_count = sizeof cpu_options / sizeof cpu_options[0],
    .options = cpu_options,
    .name = "cpu",
    .summary = "stages on the processor: BF16 or float32 products by oneDNN, on one thread",
    .vendor = "heddle",
    .version = "0.1.0",
    .licence = "Apache-2.0",
    .source = "oneDNN; Muennighoff et al. 2024 (OLMoE)",
    .ops = &hd_transformer_kernel_ops,
};
