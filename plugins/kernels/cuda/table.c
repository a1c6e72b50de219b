/* plugins/kernels/cuda/table.c - the op table, the module's rows, and the scratch of the ops. */
#include "device.h"

#include <assert.h>

#define ROW(kernel, most_threads, args_type, shared_type)             \
    [HD_CUDA_##kernel] = {.symbol = "hd_" #kernel,                    \
                          .threads = most_threads,                    \
                          .shared_bytes = sizeof(struct shared_type), \
                          .argument_bytes = sizeof(struct args_type)},
const struct hd_cuda_row hd_cuda_rows[HD_CUDA_KERNEL_COUNT] = {HD_CUDA_KERNELS(ROW)};

enum { PART_BYTES = 256 };

uint64_t hd_cuda_part_bytes(uint64_t bytes)
{
    return (bytes + PART_BYTES - 1) / PART_BYTES * PART_BYTES;
}

void *hd_cuda_take(struct hd_cuda_arena *arena, uint64_t bytes)
{
    assert(hd_cuda_part_bytes(bytes) <= arena->left_bytes);
    void *part = arena->at;
    arena->at += hd_cuda_part_bytes(bytes);
    arena->left_bytes -= hd_cuda_part_bytes(bytes);
    return part;
}

static uint64_t cuda_table_larger(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

static uint64_t cuda_floats(uint64_t count)
{
    return hd_cuda_part_bytes(count * sizeof(float));
}

static uint64_t cuda_head_bytes(const struct hd_stage_spec *spec, uint64_t tokens)
{
    const uint64_t columns = spec->vocabulary < HD_HEAD_CHUNK ? spec->vocabulary : HD_HEAD_CHUNK;
    return cuda_floats(tokens * columns) + hd_cuda_part_bytes(tokens * columns * sizeof(uint16_t)) +
           cuda_table_larger(cuda_floats(tokens * spec->width), 3 * cuda_floats(tokens));
}

static uint64_t cuda_router_bytes(const struct hd_stage_spec *spec, uint64_t tokens)
{
    const uint64_t chunks = hd_cuda_blocks(tokens, HD_CUDA_ROUTER_CHUNK);
    return cuda_floats(tokens * spec->experts) + cuda_floats(chunks * spec->experts * spec->width) +
           hd_cuda_part_bytes(spec->experts * sizeof(double));
}

uint64_t hd_cuda_scratch_bytes(const struct hd_stage_spec *spec)
{
    const uint64_t tokens = (uint64_t)spec->batch * spec->sequence;
    uint64_t bytes =
        cuda_floats(hd_cuda_blocks(tokens, HD_CUDA_NORM_CHUNK) * (uint64_t)spec->width);
    bytes = cuda_table_larger(bytes, cuda_floats(tokens * spec->heads));
    bytes = cuda_table_larger(
        bytes, cuda_floats(tokens * spec->width)); /* a product's sum before it is rounded */
    bytes = cuda_table_larger(bytes, cuda_router_bytes(spec, tokens));
    bytes = cuda_table_larger(bytes, hd_cuda_mxfp8_bytes(spec));
    return spec->has_head ? cuda_table_larger(bytes, cuda_head_bytes(spec, tokens)) : bytes;
}

#define MEMBER(name, args) .name = hd_cuda_##name,
const struct hd_ops hd_cuda_ops = {.size = sizeof hd_cuda_ops,
                                   .activation = HD_BF16,
                                   .statistic = HD_F32,
                                   .native_mxfp8 = 1,
                                   .scratch_bytes = hd_cuda_scratch_bytes,
                                   .gemm = hd_cuda_gemm,
                                   .expert_gemm = hd_cuda_expert_gemm,
                                   .image = hd_cuda_image,
                                   HD_OPS_EACH(MEMBER)};
