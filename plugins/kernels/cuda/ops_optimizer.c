/* plugins/kernels/cuda/ops_optimizer.c - kernels of AdamW, copies and norms.  They run outside a
 * pass, so without scratch. */
#include "device.h"

#include <math.h>

/* Enough blocks to fill any device; each thread loops over the rest of a long array. */
static uint32_t cuda_blocks_of(uint64_t count, uint32_t most)
{
    const uint32_t blocks = hd_cuda_blocks(count, 256 * 8);
    return blocks < most ? blocks : most;
}

hd_status hd_cuda_convert(struct hd_ops_device *device, const struct hd_optimizer_args *args)
{
    return hd_cuda_run(device, HD_CUDA_convert, cuda_blocks_of(args->count, 4096), args);
}

hd_status hd_cuda_adamw(struct hd_ops_device *device, const struct hd_optimizer_args *args)
{
    const struct hd_update *u = args->update;
    struct hd_adamw adamw = {.op = *args,
                             .beta1 = (float)u->beta1,
                             .beta2 = (float)u->beta2,
                             .rest1 = (float)(1 - u->beta1),
                             .rest2 = (float)(1 - u->beta2),
                             .step = (float)(u->learning_rate / (1 - pow(u->beta1, u->step))),
                             .root = (float)sqrt(1 - pow(u->beta2, u->step)),
                             .keep =
                                 (float)(args->decays ? 1 - u->learning_rate * u->weight_decay : 1),
                             .clip = (float)u->gradient_scale,
                             .epsilon = (float)u->epsilon};
    adamw.op.update = NULL; /* host memory */
    return hd_cuda_run(device, HD_CUDA_adamw, cuda_blocks_of(args->count, 4096), &adamw);
}

hd_status hd_cuda_square_sum(struct hd_ops_device *device, const struct hd_optimizer_args *args)
{
    const uint32_t blocks = cuda_blocks_of(args->count, HD_CUDA_PARTIALS);
    const struct hd_square_sum sum = {args->gradient, device->partials, args->squared, args->count,
                                      blocks};
    HD_TRY(hd_cuda_run(device, HD_CUDA_square_sum, blocks, &sum));
    return hd_cuda_run(device, HD_CUDA_square_end, 1, &sum);
}
