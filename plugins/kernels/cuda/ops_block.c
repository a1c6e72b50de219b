/* plugins/kernels/cuda/ops_block.c - kernels of embedding, norms, rotation and attention. */
#include "device.h"

#include <assert.h>

hd_status hd_cuda_embed(struct hd_ops_device *device, const struct hd_embed_args *args)
{
    return hd_cuda_run(device, HD_CUDA_embed, args->token_count, args);
}

hd_status hd_cuda_embed_backward(struct hd_ops_device *device, const struct hd_embed_args *args)
{
    return hd_cuda_run(device, HD_CUDA_embed_backward, args->token_count, args);
}

hd_status hd_cuda_rms_norm(struct hd_ops_device *device, const struct hd_norm_args *args)
{
    return hd_cuda_run(device, HD_CUDA_rms_norm, args->row_count, args);
}

/* The gradient of the weight comes first, because dx may be the same memory as dy. */
hd_status hd_cuda_rms_norm_backward(struct hd_ops_device *device, const struct hd_norm_args *args)
{
    struct hd_cuda_arena arena = device->scratch;
    const uint32_t chunks = hd_cuda_blocks(args->row_count, HD_CUDA_NORM_CHUNK);
    const uint32_t columns = hd_cuda_blocks(args->width, 256);
    float *partial = hd_cuda_take(&arena, (uint64_t)chunks * args->width * sizeof *partial);
    const struct hd_norm_weights weights = {*args, partial, HD_CUDA_NORM_CHUNK};
    const struct hd_chunk_sum sum = {partial, args->dweight, chunks, args->width};
    HD_TRY(device->launch(device, HD_CUDA_norm_weights, (struct hd_cuda_grid){columns, chunks, 1},
                          &weights));
    HD_TRY(hd_cuda_run(device, HD_CUDA_rms_norm_backward, args->row_count, args));
    return hd_cuda_run(device, HD_CUDA_sum_chunks, columns, &sum);
}

hd_status hd_cuda_rope(struct hd_ops_device *device, const struct hd_rope_args *args)
{
    return hd_cuda_run(device, HD_CUDA_rope, args->batch * args->sequence, args);
}

hd_status hd_cuda_attention(struct hd_ops_device *device, const struct hd_attention_args *args)
{
    const struct hd_cuda_grid grid = {hd_cuda_blocks(args->sequence, HD_QUERIES), args->heads,
                                      args->batch};
    assert(args->head_width <= HD_CUDA_HEAD_WIDTH_MAX);
    return device->launch(
        device, args->head_width <= 64 ? HD_CUDA_attention_64 : HD_CUDA_attention_128, grid, args);
}

hd_status hd_cuda_attention_backward(struct hd_ops_device *device,
                                     const struct hd_attention_args *args)
{
    struct hd_cuda_arena arena = device->scratch;
    const uint64_t rows = (uint64_t)args->batch * args->sequence * args->heads;
    const uint32_t tiles = hd_cuda_blocks(args->sequence, HD_QUERIES);
    const bool is_narrow = args->head_width <= 64;
    const struct hd_attention_gradient gradient = {*args,
                                                   hd_cuda_take(&arena, rows * sizeof(float))};
    assert(args->head_width <= HD_CUDA_HEAD_WIDTH_MAX);
    HD_TRY(hd_cuda_run(device, HD_CUDA_attention_inner, hd_cuda_blocks(rows, 4), &gradient));
    HD_TRY(device->launch(
        device, is_narrow ? HD_CUDA_attention_keys_64 : HD_CUDA_attention_keys_128,
        (struct hd_cuda_grid){tiles, args->key_value_heads, args->batch}, &gradient));
    return device->launch(device,
                          is_narrow ? HD_CUDA_attention_queries_64 : HD_CUDA_attention_queries_128,
                          (struct hd_cuda_grid){tiles, args->heads, args->batch}, &gradient);
}
