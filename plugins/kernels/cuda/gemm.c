/*
 * plugins/kernels/cuda/gemm.c - which kernel computes a product.
 *
 *   dense, BF16      cuBLASLt, if it has an algorithm for the shape
 *   dense, MXFP8     cuBLASLt with scales (mxfp8.c), or BUSY: the stage program rounds to BF16
 *   experts, BF16    our tensor-core kernel, which reads the experts' row counts on the device
 *   rows that are not whole 16 bytes, or not BF16    the plain kernel, in float32
 *
 * A product of experts by cuBLASLt would need their row counts on the host, which takes a
 * synchronisation inside a step, or room for the worst expert: docs/decisions.
 */
#include "device.h"

#include <assert.h>

enum { ALIGNED = 8 }; /* elements in 16 bytes */

bool hd_cuda_tile_serves(const struct hd_gemm_args *args)
{
    const uint32_t columns = args->form == HD_FPROP ? args->b.rows : args->b.columns;
    return args->a.dtype == HD_BF16 && args->b.dtype == HD_BF16 && args->a.columns % ALIGNED == 0 &&
           args->b.columns % ALIGNED == 0 && columns % 2 == 0;
}

struct hd_cuda_grid hd_cuda_tile_grid(const struct hd_gemm_args *args)
{
    const uint32_t experts = args->offsets != NULL ? args->expert_count : 0;
    if (args->form == HD_WGRAD) {
        return (struct hd_cuda_grid){hd_cuda_blocks(args->b.columns, HD_TILE_COLUMNS),
                                     hd_cuda_blocks(args->a.columns, HD_TILE_ROWS),
                                     experts ? experts : 1};
    }
    return (struct hd_cuda_grid){hd_cuda_blocks(args->c.columns, HD_TILE_COLUMNS),
                                 experts ? hd_tile_count(args->a.rows, experts)
                                         : hd_cuda_blocks(args->a.rows, HD_TILE_ROWS),
                                 1};
}

static hd_status cuda_multiply_tiles(struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    static const enum hd_cuda_kernel kernels[] = {HD_CUDA_tile_fprop, HD_CUDA_tile_dgrad,
                                                  HD_CUDA_tile_wgrad};
    const uint32_t is_wgrad = args->form == HD_WGRAD;
    const struct hd_tile tile = {.a = args->a.data,
                                 .b = args->b.data,
                                 .add = args->add.data,
                                 .c = args->c.data,
                                 .offsets = args->offsets,
                                 .matrix = is_wgrad ? (uint64_t)args->a.columns * args->b.columns
                                                    : (uint64_t)args->b.rows * args->b.columns,
                                 .rows = is_wgrad ? args->a.columns : args->a.rows,
                                 .columns = is_wgrad ? args->b.columns : args->c.columns,
                                 .depth = is_wgrad ? args->a.rows : args->a.columns,
                                 .expert_count = args->expert_count,
                                 .c_is_f32 = args->c.dtype == HD_F32,
                                 .add_is_f32 = args->add.dtype == HD_F32,
                                 .adds_to_c = is_wgrad};
    return device->launch(device, kernels[args->form], hd_cuda_tile_grid(args), &tile);
}

static struct hd_product cuda_product_of(const struct hd_gemm_args *args)
{
    const uint32_t wide = args->a.columns, other = args->b.columns;
    struct hd_product product = {.a = args->a.data,
                                 .b = args->b.data,
                                 .add = args->add.data,
                                 .c = args->c.data,
                                 .offsets = args->offsets,
                                 .a_step = wide,
                                 .a_depth_step = 1,
                                 .b_step = 1,
                                 .b_depth_step = other,
                                 .matrix = (uint64_t)args->b.rows * other,
                                 .rows = args->a.rows,
                                 .columns = other,
                                 .depth = wide,
                                 .grouping = HD_GROUPED_ROWS,
                                 .a_is_f32 = args->a.dtype == HD_F32,
                                 .b_is_f32 = args->b.dtype == HD_F32,
                                 .c_is_f32 = args->c.dtype == HD_F32,
                                 .add_is_f32 = args->add.dtype == HD_F32};
    if (args->form == HD_FPROP) {
        product.b_step = other;
        product.b_depth_step = 1;
        product.columns = args->b.rows;
    } else if (args->form == HD_WGRAD) {
        product.a_step = 1;
        product.a_depth_step = wide;
        product.matrix = (uint64_t)wide * other;
        product.rows = wide;
        product.depth = args->a.rows;
        product.grouping = HD_GROUPED_DEPTH;
        product.adds_to_c = 1;
    }
    product.grouping = args->offsets != NULL ? product.grouping : HD_GROUPED_NOT;
    return product;
}

hd_status hd_cuda_product(struct hd_ops_device *device, const struct hd_product *product,
                          uint32_t groups)
{
    const struct hd_cuda_grid grid = {hd_cuda_blocks(product->columns, HD_PRODUCT_TILE),
                                      hd_cuda_blocks(product->rows, HD_PRODUCT_TILE), groups};
    return device->launch(device, HD_CUDA_product, grid, product);
}

static hd_status cuda_multiply_own(struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    if (hd_cuda_tile_serves(args)) {
        return cuda_multiply_tiles(device, args);
    }
    const struct hd_product product = cuda_product_of(args);
    return hd_cuda_product(device, &product, args->offsets != NULL ? args->expert_count : 1);
}

/* Our own kernel adds an addend that has not the type of C, and rounds the sum. */
static hd_status cuda_multiply_then_round(struct hd_ops_device *device,
                                          const struct hd_gemm_args *args)
{
    struct hd_cuda_arena arena = device->scratch;
    const uint64_t count = (uint64_t)args->c.rows * args->c.columns;
    struct hd_gemm_args product = *args;
    assert(args->add.dtype == HD_F32 && args->c.dtype == HD_BF16);
    product.c.data = hd_cuda_take(&arena, count * sizeof(float));
    product.c.dtype = HD_F32;
    product.add.data = NULL;
    const struct hd_rounded round = {product.c.data, args->add.data, args->c.data, count};
    HD_TRY(device->multiply(device, &product));
    return hd_cuda_run(device, HD_CUDA_round, hd_cuda_blocks(count, 256), &round);
}

/* BUSY without cuBLASLt, or if it has no algorithm. */
static hd_status cuda_multiply_blas(struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    if (device->multiply == NULL) {
        return HD_BUSY;
    }
    return args->add.data != NULL && args->add.dtype != args->c.dtype
               ? cuda_multiply_then_round(device, args)
               : device->multiply(device, args);
}

hd_status hd_cuda_gemm(struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    assert(args->offsets == NULL && args->form <= HD_WGRAD);
    if (args->is_mxfp8) {
        return hd_cuda_gemm_mxfp8(device, args);
    }
    const hd_status status = cuda_multiply_blas(device, args);
    return status == HD_BUSY ? cuda_multiply_own(device, args) : status;
}

hd_status hd_cuda_expert_gemm(struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    assert(args->offsets != NULL && args->form <= HD_WGRAD);
    return cuda_multiply_own(device, args);
}
