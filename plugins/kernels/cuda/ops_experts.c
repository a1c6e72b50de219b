/* plugins/kernels/cuda/ops_experts.c - kernels of the router, the rows of experts, and MXFP8. */
#include "device.h"

#include <assert.h>

/* --- the router ------------------------------------------------------------------------------- */

hd_status hd_cuda_route(struct hd_ops_device *device, const struct hd_route_args *args)
{
    struct hd_cuda_arena arena = device->scratch;
    const struct hd_product logits = {.a = args->x,
                                      .b = args->weight,
                                      .c = args->probability,
                                      .a_step = args->width,
                                      .a_depth_step = 1,
                                      .b_step = args->width,
                                      .b_depth_step = 1,
                                      .rows = args->token_count,
                                      .columns = args->experts,
                                      .depth = args->width,
                                      .b_is_f32 = 1,
                                      .c_is_f32 = 1};
    const struct hd_route_sums sums = {*args, hd_cuda_take(&arena, args->experts * sizeof(double))};
    HD_TRY(hd_cuda_product(device, &logits, 1));
    HD_TRY(hd_cuda_run(device, HD_CUDA_route, hd_cuda_blocks(args->token_count, 4), args));
    HD_TRY(hd_cuda_run(device, HD_CUDA_route_experts, args->experts, &sums));
    return hd_cuda_run(device, HD_CUDA_route_terms, 1, &sums);
}

/* dweight is summed in chunks of tokens: without them only 32 blocks would run. */
static hd_status cuda_add_router_gradient(struct hd_ops_device *device, struct hd_cuda_arena arena,
                                          const struct hd_route_args *args, const float *dl)
{
    const uint32_t chunks = hd_cuda_blocks(args->token_count, HD_CUDA_ROUTER_CHUNK);
    const uint64_t matrix = (uint64_t)args->experts * args->width;
    float *partial = hd_cuda_take(&arena, chunks * matrix * sizeof *partial);
    const struct hd_product product = {.a = dl,
                                       .b = args->x,
                                       .c = partial,
                                       .a_step = 1,
                                       .a_depth_step = args->experts,
                                       .b_step = 1,
                                       .b_depth_step = args->width,
                                       .matrix = matrix,
                                       .rows = args->experts,
                                       .columns = args->width,
                                       .depth = args->token_count,
                                       .grouping = HD_GROUPED_CHUNKS,
                                       .chunk_depth = HD_CUDA_ROUTER_CHUNK,
                                       .a_is_f32 = 1,
                                       .c_is_f32 = 1};
    const struct hd_chunk_sum sum = {partial, args->dweight, chunks, (uint32_t)matrix};
    assert(matrix <= UINT32_MAX);
    HD_TRY(hd_cuda_product(device, &product, chunks));
    return hd_cuda_run(device, HD_CUDA_sum_chunks, hd_cuda_blocks(matrix, 256), &sum);
}

hd_status hd_cuda_route_backward(struct hd_ops_device *device, const struct hd_route_args *args)
{
    struct hd_cuda_arena arena = device->scratch;
    const uint64_t count = (uint64_t)args->token_count * args->experts;
    const struct hd_route_gradient gradient = {*args, hd_cuda_take(&arena, count * sizeof(float))};
    const struct hd_product dx = {.a = gradient.dl,
                                  .b = args->weight,
                                  .c = args->dx,
                                  .a_step = args->experts,
                                  .a_depth_step = 1,
                                  .b_step = 1,
                                  .b_depth_step = args->width,
                                  .rows = args->token_count,
                                  .columns = args->width,
                                  .depth = args->experts,
                                  .a_is_f32 = 1,
                                  .b_is_f32 = 1,
                                  .c_is_f32 = 1};
    HD_TRY(hd_cuda_run(device, HD_CUDA_route_backward, hd_cuda_blocks(args->token_count, 4),
                       &gradient));
    HD_TRY(hd_cuda_product(device, &dx, 1));
    return cuda_add_router_gradient(device, arena, args, gradient.dl);
}

/* --- rows ------------------------------------------------------------------------------------- */

static uint32_t cuda_row_max(const struct hd_rows_args *args)
{
    const uint64_t places = (uint64_t)args->token_count * args->experts_per_token;
    return (uint32_t)((places + (HD_ROW_BLOCK - 1) * (uint64_t)args->experts) / HD_ROW_BLOCK *
                      HD_ROW_BLOCK);
}

hd_status hd_cuda_assign(struct hd_ops_device *device, const struct hd_rows_args *args)
{
    struct hd_cuda_arena arena = device->scratch;
    const struct hd_assignment assignment = {
        *args, hd_cuda_take(&arena, args->experts * sizeof(int32_t)), cuda_row_max(args)};
    HD_TRY(hd_cuda_run(device, HD_CUDA_count_rows, args->experts, &assignment));
    HD_TRY(hd_cuda_run(device, HD_CUDA_place_experts, 1, &assignment));
    return hd_cuda_run(device, HD_CUDA_place_rows, args->experts, &assignment);
}

hd_status hd_cuda_permute(struct hd_ops_device *device, const struct hd_rows_args *args)
{
    return hd_cuda_run(device, HD_CUDA_permute, cuda_row_max(args), args);
}

hd_status hd_cuda_permute_backward(struct hd_ops_device *device, const struct hd_rows_args *args)
{
    return hd_cuda_run(device, HD_CUDA_permute_backward, args->token_count, args);
}

hd_status hd_cuda_combine(struct hd_ops_device *device, const struct hd_rows_args *args)
{
    return hd_cuda_run(device, HD_CUDA_combine, args->token_count, args);
}

/* row_count: all rows if dense, otherwise the largest possible number. */
hd_status hd_cuda_swiglu(struct hd_ops_device *device, const struct hd_swiglu_args *args)
{
    return hd_cuda_run(device, HD_CUDA_swiglu, args->row_count, args);
}

hd_status hd_cuda_swiglu_backward(struct hd_ops_device *device, const struct hd_swiglu_args *args)
{
    return hd_cuda_run(device, HD_CUDA_swiglu_backward, args->row_count, args);
}

/* --- MXFP8 ------------------------------------------------------------------------------------ */

hd_status hd_cuda_quantise(struct hd_ops_device *device, const struct hd_quantise_args *args)
{
    const uint64_t count = (uint64_t)args->rows * args->columns;
    assert(args->columns % HD_ROW_BLOCK == 0);
    assert(args->columnwise.data == NULL || args->rows % HD_ROW_BLOCK == 0);
    if (args->rowwise.data != NULL) {
        HD_TRY(hd_cuda_run(device, HD_CUDA_quantise_rows, hd_cuda_blocks(count / 8, 256), args));
    }
    if (args->columnwise.data == NULL) {
        return HD_OK;
    }
    return hd_cuda_run(device, HD_CUDA_quantise_columns, hd_cuda_blocks(count / HD_ROW_BLOCK, 256),
                       args);
}

hd_status hd_cuda_dequantise(struct hd_ops_device *device, const struct hd_quantise_args *args)
{
    const uint64_t count = (uint64_t)args->rows * args->columns;
    assert(args->columns % HD_ROW_BLOCK == 0);
    return hd_cuda_run(device, HD_CUDA_dequantise, hd_cuda_blocks(count, 256), args);
}

hd_status hd_cuda_image(struct hd_ops_device *device, const struct hd_image_args *args)
{
    const struct hd_cuda_grid grid = {hd_cuda_blocks(args->columns, HD_IMAGE_COLUMNS),
                                      hd_cuda_blocks(args->rows, HD_ROW_BLOCK), 1};
    assert(args->rows % HD_ROW_BLOCK == 0 && args->columns % HD_ROW_BLOCK == 0);
    return device->launch(device, HD_CUDA_image, grid, args);
}
