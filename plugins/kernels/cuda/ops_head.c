/* plugins/kernels/cuda/ops_head.c - kernels of the loss, a chunk of the vocabulary at a time. */
#include "device.h"

static uint32_t cuda_chunk_of(const struct hd_head_args *args)
{
    return args->vocabulary < HD_HEAD_CHUNK ? args->vocabulary : HD_HEAD_CHUNK;
}

static struct hd_matrix cuda_matrix(const void *data, uint32_t dtype, uint32_t rows,
                                    uint32_t columns)
{
    return (struct hd_matrix){
        .data = (void *)(uintptr_t)data, .dtype = dtype, .rows = rows, .columns = columns};
}

/* The chunk's rows of the weight, and their gradient. */
static struct hd_matrix cuda_weight_of(const struct hd_head_state *state)
{
    const uint16_t *weight = (const uint16_t *)state->op.weight;
    return cuda_matrix(weight + (uint64_t)state->first * state->op.width, HD_BF16, state->count,
                       state->op.width);
}

static hd_status cuda_make_logits(struct hd_ops_device *device, const struct hd_head_state *state)
{
    const uint32_t tokens = state->op.token_count;
    const struct hd_gemm_args args = {
        .a = cuda_matrix(state->op.x, HD_BF16, tokens, state->op.width),
        .b = cuda_weight_of(state),
        .c = cuda_matrix(state->logits, HD_F32, tokens, state->count),
        .form = HD_FPROP};
    return hd_cuda_gemm(device, &args);
}

/* Begins the next chunk; false after the last one. */
static bool cuda_next_chunk(struct hd_head_state *state)
{
    const uint32_t left = state->op.vocabulary - (state->first + state->count);
    state->first += state->count;
    state->count = left < cuda_chunk_of(&state->op) ? left : cuda_chunk_of(&state->op);
    return left > 0;
}

hd_status hd_cuda_head_loss(struct hd_ops_device *device, const struct hd_head_args *args)
{
    struct hd_cuda_arena arena = device->scratch;
    const uint32_t tokens = args->token_count;
    struct hd_head_state state = {.op = *args};
    state.logits = hd_cuda_take(&arena, (uint64_t)tokens * cuda_chunk_of(args) * sizeof(float));
    state.greatest = hd_cuda_take(&arena, tokens * sizeof(float));
    state.sum = hd_cuda_take(&arena, tokens * sizeof(float));
    state.wanted = hd_cuda_take(&arena, tokens * sizeof(float));
    HD_TRY(hd_cuda_run(device, HD_CUDA_head_begin, hd_cuda_blocks(tokens, 256), &state));
    while (cuda_next_chunk(&state)) {
        HD_TRY(cuda_make_logits(device, &state));
        HD_TRY(hd_cuda_run(device, HD_CUDA_head_chunk, tokens, &state));
    }
    return hd_cuda_run(device, HD_CUDA_head_end, 1, &state);
}

/* dx += dl W and dW += dl^T x of one chunk. */
static hd_status cuda_spread_dlogits(struct hd_ops_device *device,
                                     const struct hd_head_state *state, float *dx)
{
    const uint32_t tokens = state->op.token_count, width = state->op.width;
    float *dweight = (float *)state->op.dweight + (uint64_t)state->first * width;
    const struct hd_matrix dl = cuda_matrix(state->dlogits, HD_BF16, tokens, state->count);
    struct hd_gemm_args input = {.a = dl,
                                 .b = cuda_weight_of(state),
                                 .c = cuda_matrix(dx, HD_F32, tokens, width),
                                 .form = HD_DGRAD};
    const struct hd_gemm_args weight = {.a = dl,
                                        .b = cuda_matrix(state->op.x, HD_BF16, tokens, width),
                                        .c = cuda_matrix(dweight, HD_F32, state->count, width),
                                        .form = HD_WGRAD};
    if (state->first > 0) {
        input.add = input.c;
    }
    HD_TRY(hd_cuda_gemm(device, &input));
    return hd_cuda_gemm(device, &weight);
}

hd_status hd_cuda_head_loss_backward(struct hd_ops_device *device, const struct hd_head_args *args)
{
    struct hd_cuda_arena arena = device->scratch;
    const uint64_t tokens = args->token_count, columns = cuda_chunk_of(args);
    struct hd_head_state state = {.op = *args};
    state.logits = hd_cuda_take(&arena, tokens * columns * sizeof(float));
    state.dlogits = hd_cuda_take(&arena, tokens * columns * sizeof(uint16_t));
    float *dx = hd_cuda_take(&arena, tokens * args->width * sizeof *dx);
    /* The sums of the last chunk's products need no scratch: they are float32 already. */
    while (cuda_next_chunk(&state)) {
        HD_TRY(cuda_make_logits(device, &state));
        HD_TRY(hd_cuda_run(device, HD_CUDA_head_gradient, args->token_count, &state));
        HD_TRY(cuda_spread_dlogits(device, &state, dx));
    }
    const struct hd_rounded round = {dx, NULL, args->dx, tokens * args->width};
    return hd_cuda_run(device, HD_CUDA_round, hd_cuda_blocks(round.count, 256), &round);
}
