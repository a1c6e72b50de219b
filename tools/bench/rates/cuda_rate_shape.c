/* rates/cuda_rate_shape.c - the products of a stage, and operands for them. */
#include "cuda_rate.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define DRAWN_BYTES (16u << 20)

/* --- products -------------------------------------------------------------------------------- */

/* C [rows, columns] over `depth`, of each expert; rate_place sets the addresses. */
static void cuda_rate_shape_add_product(struct rate *rate, const char *name, uint32_t form,
                                        const struct rate_product *shape)
{
    struct rate_product *product = &rate->products[rate->product_count++];
    const uint32_t experts = shape->experts > 0 ? shape->experts : 1;
    const uint32_t is_wgrad = form == HD_WGRAD;

    assert(rate->product_count <= RATE_PRODUCT_MAX);
    *product = *shape;
    product->name = name;
    product->args = (struct hd_gemm_args){
        .form = form,
        .expert_count = shape->experts,
        .a = {.dtype = HD_BF16, .rows = shape->rows * experts, .columns = shape->depth},
        .b = {.dtype = HD_BF16, .rows = shape->depth, .columns = shape->columns},
        .c = {.dtype = is_wgrad || strcmp(name, "head") == 0 ? HD_F32 : HD_BF16,
              .rows = is_wgrad ? shape->rows : shape->rows * experts,
              .columns = shape->columns}};
    if (form == HD_FPROP) {
        product->args.b.rows = shape->columns;
        product->args.b.columns = shape->depth;
    } else if (is_wgrad) {
        product->args.a.rows = product->args.b.rows = shape->depth * experts;
        product->args.a.columns = shape->rows;
    }
}

/* y = x W^T with W [out, in]: forward, gradient of x, gradient of W. */
static void cuda_rate_shape_add_weight(struct rate *rate, const char *name, uint32_t out,
                                       uint32_t in)
{
    const struct hd_stage_spec *spec = &rate->spec;
    const int is_expert = strncmp(name, "experts", 7) == 0 && spec->experts > 0;
    const uint32_t tokens = spec->batch * spec->sequence;
    const uint32_t experts = is_expert ? spec->experts : 0;
    const uint32_t share = is_expert ? tokens * spec->experts_per_token / spec->experts : tokens;
    const uint32_t rows =
        is_expert ? (share + HD_ROW_BLOCK - 1) / HD_ROW_BLOCK * HD_ROW_BLOCK : share;
    const struct rate_product forward = {
        .experts = experts, .rows = rows, .columns = out, .depth = in};
    const struct rate_product back = {
        .experts = experts, .rows = rows, .columns = in, .depth = out};
    const struct rate_product weight = {
        .experts = experts, .rows = out, .columns = in, .depth = rows};

    cuda_rate_shape_add_product(rate, name, HD_FPROP, &forward);
    cuda_rate_shape_add_product(rate, name, HD_DGRAD, &back);
    cuda_rate_shape_add_product(rate, name, HD_WGRAD, &weight);
}

void rate_add_stage(struct rate *rate)
{
    const struct hd_stage_spec *spec = &rate->spec;
    const uint32_t shared = spec->width / spec->heads * spec->key_value_heads;
    const uint32_t is_shared = shared != spec->width;
    const uint32_t chunk = spec->vocabulary < HD_HEAD_CHUNK ? spec->vocabulary : HD_HEAD_CHUNK;

    cuda_rate_shape_add_weight(rate, is_shared ? "q,o" : "q,k,v,o", spec->width, spec->width);
    if (is_shared) {
        cuda_rate_shape_add_weight(rate, "k,v", shared, spec->width);
    }
    cuda_rate_shape_add_weight(rate, spec->experts > 0 ? "experts-up" : "up",
                               2 * spec->expert_width, spec->width);
    cuda_rate_shape_add_weight(rate, spec->experts > 0 ? "experts-down" : "down", spec->width,
                               spec->expert_width);
    cuda_rate_shape_add_weight(rate, "head", chunk, spec->width);
}

void rate_add_squares(struct rate *rate)
{
    static const uint32_t sizes[] = {2048, 4096, 8192, 16384}, simulated[] = {32, 64};
    const int is_standin = rate->device->driver->cuda.is_standin;

    for (uint32_t i = 0; i < (is_standin ? 2 : 4); i++) {
        const uint32_t size = is_standin ? simulated[i] : sizes[i];
        const struct rate_product square = {.rows = size, .columns = size, .depth = size};
        cuda_rate_shape_add_product(rate, "square", HD_FPROP, &square);
    }
}

/* --- memory ---------------------------------------------------------------------------------- */

void *rate_allocate(struct rate *rate, uint64_t bytes)
{
    void *memory = NULL;

    hd_transformer_backend.remote->allocate(rate->device, bytes, "bench", &memory);
    return memory;
}

/* Random values of eight bits in [-1, 1), exact in BF16; one block, repeated. */
static void cuda_rate_shape_draw(struct rate *rate, void *target, uint64_t bytes)
{
    const struct hd_remote *remote = hd_transformer_backend.remote;
    uint16_t *drawn = malloc(DRAWN_BYTES);
    uint64_t state = 1;

    if (drawn == NULL) {
        rate_give_up("cannot allocate the operands");
    }
    for (uint64_t i = 0; i < DRAWN_BYTES / sizeof *drawn; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        const float value = (float)(int32_t)(state >> 56) / 128 - 1;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        drawn[i] = (uint16_t)(bits >> 16);
    }
    for (uint64_t at = 0; at < bytes; at += DRAWN_BYTES) {
        const uint64_t left = bytes - at < DRAWN_BYTES ? bytes - at : DRAWN_BYTES;
        remote->copy(rate->device, (char *)target + at, drawn, left, 0);
    }
    remote->drain(rate->device);
    free(drawn);
}

static uint64_t cuda_rate_shape_bytes_of(const struct hd_matrix *matrix, uint32_t batch)
{
    const uint64_t each = matrix->dtype == HD_F32 ? sizeof(float) : sizeof(uint16_t);
    return (uint64_t)matrix->rows * matrix->columns * each * batch;
}

static uint64_t cuda_rate_shape_greater(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

void rate_take_operands(struct rate *rate)
{
    uint64_t a_bytes = 0, b_bytes = 0, c_bytes = 0;

    for (uint32_t i = 0; i < rate->product_count; i++) {
        const struct rate_product *product = &rate->products[i];
        const uint32_t experts = product->experts > 0 ? product->experts : 1;
        const uint32_t is_wgrad = product->args.form == HD_WGRAD;
        a_bytes = cuda_rate_shape_greater(a_bytes, cuda_rate_shape_bytes_of(&product->args.a, 1));
        b_bytes = cuda_rate_shape_greater(
            b_bytes, cuda_rate_shape_bytes_of(&product->args.b, is_wgrad ? 1 : experts));
        c_bytes = cuda_rate_shape_greater(
            c_bytes, cuda_rate_shape_bytes_of(&product->args.c, is_wgrad ? experts : 1));
    }
    rate->a = rate_allocate(rate, a_bytes);
    rate->b = rate_allocate(rate, b_bytes);
    rate->c = rate_allocate(rate, c_bytes);
    cuda_rate_shape_draw(rate, rate->a, a_bytes);
    cuda_rate_shape_draw(rate, rate->b, b_bytes);
    rate->c_bytes = c_bytes;
    rate->offsets = rate_allocate(rate, (rate->spec.experts + 1) * sizeof(int32_t));
}

void rate_place(struct rate *rate, struct rate_product *product)
{
    const uint32_t share = product->args.form == HD_WGRAD ? product->depth : product->rows;
    int32_t *offsets;

    product->args.a.data = rate->a;
    product->args.b.data = rate->b;
    product->args.c.data = rate->c;
    hd_transformer_backend.remote->copy(rate->device, rate->c, NULL, rate->c_bytes, 0);
    if (product->experts == 0) {
        return;
    }
    offsets = malloc((product->experts + 1) * sizeof *offsets);
    if (offsets == NULL) {
        rate_give_up("cannot allocate the rows of experts");
    }
    for (uint32_t expert = 0; expert <= product->experts; expert++) {
        offsets[expert] = (int32_t)(expert * share);
    }
    hd_transformer_backend.remote->copy(rate->device, rate->offsets, offsets,
                                        (product->experts + 1) * sizeof *offsets, 0);
    hd_transformer_backend.remote->drain(rate->device);
    free(offsets);
    product->args.offsets = rate->offsets;
}
