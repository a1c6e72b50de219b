/*
 * plugins/kernels/cuda/cuda.c - stages in the memory of a GPU, on one stream.
 *
 *   struct hd_ops ---+--> gemm.c, lt.c     dense products by cuBLASLt, experts' by our own kernel
 *                    +--> kernels/         all other ops, by our own kernels in one module
 *
 * Precision bf16 has BF16 operands and float32 sums.  mxfp8 is native in a dense feed-forward if
 * cuBLASLt has block-scaled products (mxfp8.c).  Otherwise it is emulated: operands are quantised,
 * and dequantised to BF16, which is exact.  Products of experts are always emulated, because only
 * the device knows their row counts.
 */
#include "driver.h"

#include <stdio.h>
#include <string.h>

enum {
    OPTION_RUNTIME,
    OPTION_PRODUCTS,
    OPTION_CUBLASLT,
    OPTION_DEVICE,
    OPTION_STAMP,
    OPTION_MXFP8,
    OPTION_COUNT
};

static const struct hd_option cuda_options[OPTION_COUNT] = {
    [OPTION_RUNTIME] = CUDA_RUNTIME_OPTION,
    [OPTION_PRODUCTS] = {.name = "products",
                         .initial = "cublaslt",
                         .range = "cublaslt | own",
                         .help = "what computes the dense products: cuBLASLt, or our own kernels",
                         .type = HD_OPTION_TEXT},
    [OPTION_CUBLASLT] = CUBLASLT_OPTION,
    [OPTION_DEVICE] = {.name = "device",
                       .initial = "-1",
                       .range = "-1..1023",
                       .help = "the device of every rank of a machine; -1: local rank i uses "
                               "device i modulo their number",
                       .type = HD_OPTION_INTEGER},
    [OPTION_STAMP] = HD_STAMP_OPTION,
    [OPTION_MXFP8] =
        {.name = "mxfp8",
         .initial = "auto",
         .range = "auto | emulated | native",
         .help = "dense products in MXFP8: auto: native if the device has them; emulated: in "
                 "BF16; native: native, or an error",
         .type = HD_OPTION_TEXT},
};

static const struct hd_ops *cuda_choose_ops(const struct hd_host *host, uint32_t precision)
{
    (void)host;
    return precision == HD_PRECISION_BF16 || precision == HD_PRECISION_MXFP8 ? &hd_cuda_ops : NULL;
}

static hd_status cuda_check_spec(const struct hd_host *host, const struct hd_stage_spec *spec)
{
    const uint32_t head_width = spec->width / spec->heads;
    return head_width <= HD_CUDA_HEAD_WIDTH_MAX
               ? HD_OK
               : hd_refuse(host, HD_UNSUPPORTED,
                           "width %u over %u heads gives heads of width %u, but the attention "
                           "kernels support at most %u: choose more heads",
                           spec->width, spec->heads, head_width, HD_CUDA_HEAD_WIDTH_MAX);
}

/* --- open ------------------------------------------------------------------------------------- */

static void cuda_close_device(struct hd_ops_device *device)
{
    if (device == NULL) {
        return;
    }
    const struct hd_host *host = device->host;
    struct hd_cuda *driver = device->driver;
    if (driver != NULL && !atomic_load(&driver->is_aborted)) {
        hd_cuda_stop(driver); /* after abort the device may still write, so its memory is leaked */
        host->free(host->context, driver);
    }
    host->free(host->context, device);
}

static void cuda_describe(struct hd_cuda *driver, const char *mxfp8)
{
    char products[160] = "our own products";
    if (driver->plans != NULL) {
        snprintf(products, sizeof products, "cuBLASLt %u.%u.%u", driver->blas.version / 10000,
                 driver->blas.version / 100 % 100, driver->blas.version % 100);
    }
    snprintf(driver->effective, sizeof driver->effective,
             "cuda:%d%s sm_%u, runtime %d.%d, %s, MXFP8 %s", driver->ordinal,
             cuda_standin_text(&driver->cuda), driver->capability,
             driver->cuda.runtime_version / 1000, driver->cuda.runtime_version % 1000 / 10,
             products, mxfp8);
}

static enum hd_cuda_wish cuda_wish_of(const char *text)
{
    return strcmp(text, "native") == 0     ? HD_CUDA_WISH_NATIVE
           : strcmp(text, "emulated") == 0 ? HD_CUDA_WISH_EMULATED
                                           : HD_CUDA_WISH_AUTO;
}

/* Whether a dense feed-forward may have native products, asked before a stage exists. */
static bool cuda_may_be_native(const struct hd_cuda *driver)
{
    const struct hd_cuda_mxfp8_facts facts = hd_cuda_mxfp8_facts_of(driver);
    return hd_cuda_mxfp8_way(driver->mxfp8_wish, hd_cuda_mxfp8_missing(&facts)) ==
           HD_CUDA_WAY_NATIVE;
}

hd_status hd_cuda_tell_mxfp8(struct hd_cuda *driver, uint32_t native_count, const char *missing)
{
    static const char *const ways[] = {"emulated in BF16", "native for one of two weights",
                                       "native"};
    cuda_describe(driver, ways[native_count]);
    if (missing == NULL) {
        return HD_OK;
    }
    if (driver->mxfp8_wish == HD_CUDA_WISH_NATIVE) {
        return hd_cuda_fail(driver, HD_UNSUPPORTED,
                            "cuda:%d: kernel.cuda.mxfp8 = native, but %s: use auto",
                            driver->ordinal, missing);
    }
    hd_tell(driver->host, HD_TELL_INFO, "cuda:%d: MXFP8 is %s: %s", driver->ordinal,
            ways[native_count], missing);
    return HD_OK;
}

static void cuda_log_paths(const struct hd_cuda *driver)
{
    hd_tell(driver->host, HD_TELL_INFO, "cuda:%d: runtime %s, products %s", driver->ordinal,
            driver->cuda.path, driver->plans != NULL ? driver->blas.path : "our own");
}

static hd_status cuda_start(struct hd_ops_device *device)
{
    struct hd_cuda *driver = device->driver;
    const struct hd_host *host = device->host;
    const bool wants_blas = strcmp(host->options[OPTION_PRODUCTS].text, "cublaslt") == 0;
    if (cuda_load(&driver->cuda, host->options[OPTION_RUNTIME].text) != HD_OK) {
        return hd_cuda_fail(driver, HD_UNSUPPORTED, "%s", driver->cuda.reason);
    }
    if (host->options[OPTION_DEVICE].integer < 0) { /* as cuda_ipc does: ranks may share a device */
        driver->ordinal %= driver->cuda.device_count;
    }
    void *partials = NULL;
    HD_TRY(hd_cuda_start(driver));
    HD_TRY(hd_cuda_remote.allocate(device, HD_CUDA_PARTIALS * sizeof(double), "kernel", &partials));
    device->partials = partials;
    if (wants_blas) {
        HD_TRY(hd_cuda_open_plans(driver, host->options[OPTION_CUBLASLT].text));
        device->multiply = hd_cuda_multiply;
        device->has_mxfp8 = hd_cuda_has_mxfp8;
    }
    return HD_OK;
}

static hd_status cuda_open_device(const struct hd_host *host, uint32_t ordinal,
                                  struct hd_device *device, struct hd_ops_device **out)
{
    struct hd_ops_device *made = host->alloc(host->context, sizeof *made, 64, "kernel");
    struct hd_cuda *driver = host->alloc(host->context, sizeof *driver, 64, "kernel");
    const int64_t wanted = host->options[OPTION_DEVICE].integer;
    if (made == NULL || driver == NULL) {
        host->free(host->context, driver);
        host->free(host->context, made);
        return hd_refuse(host, HD_NO_MEMORY, "cannot allocate the state of the kernel cuda");
    }
    driver->host = host;
    driver->mxfp8_wish = cuda_wish_of(host->options[OPTION_MXFP8].text);
    driver->ordinal = (int)(wanted >= 0 ? wanted : (int64_t)ordinal);
    made->host = host;
    made->driver = driver;
    made->launch = hd_cuda_launch;
    const hd_status status = cuda_start(made);
    if (status != HD_OK) {
        cuda_close_device(made);
        return status;
    }
    cuda_describe(driver, cuda_may_be_native(driver)
                              ? "native for dense feed-forwards, emulated for experts"
                              : "emulated in BF16");
    cuda_log_paths(driver);
    device->memory = HD_MEMORY_CUDA;
    device->capabilities |=
        HD_KERNEL_STREAM | (cuda_may_be_native(driver) ? HD_KERNEL_MXFP8_NATIVE : 0);
    device->alignment = 256;
    device->stream = driver->stream;
    device->effective = driver->effective;
    *out = made;
    return HD_OK;
}

static void cuda_bind_scratch(struct hd_ops_device *device, void *scratch, uint64_t bytes)
{
    device->scratch = (struct hd_cuda_arena){scratch, bytes};
}

static uint64_t cuda_private_bytes(const struct hd_ops *ops, const struct hd_stage_spec *spec)
{
    (void)ops, (void)spec;
    return HD_CUDA_WORKSPACE_BYTES + HD_CUDA_STAGING_BYTES + HD_CUDA_PARTIALS * sizeof(double);
}

const struct hd_transformer_backend hd_transformer_backend = {
    .ops = cuda_choose_ops,
    .stamp_option = OPTION_STAMP,
    .open = cuda_open_device,
    .close = cuda_close_device,
    .prepare = hd_cuda_prepare,
    .bind = cuda_bind_scratch,
    .private_bytes = cuda_private_bytes,
    .remote = &hd_cuda_remote,
    .check = cuda_check_spec,
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_KERNEL),
    .capabilities =
        HD_KERNEL_STREAM | HD_KERNEL_RECOMPUTE | HD_KERNEL_MXFP8_NATIVE | HD_KERNEL_MXFP8_EMULATED,
    .option_count = OPTION_COUNT,
    .options = cuda_options,
    .name = "cuda",
    .summary = "stages on a GPU: cuBLASLt and kernels of our own, BF16 with float32 sums",
    .vendor = "heddle",
    .version = "0.1.0",
    .licence = "Apache-2.0",
    .source = "cuBLASLt; Muennighoff et al. 2024 (OLMoE); Dao 2023 (arXiv:2307.08691)",
    .ops = &hd_transformer_remote_kernel_ops,
};
