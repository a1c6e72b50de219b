/*
 * isa/attention.c - causal attention in tiles of HD_CPU_QUERIES rows.
 *
 *            keys 0 .. first + rows - 1
 *   queries  [ scores of one tile, float32 ]   one product
 *   first .. [ probabilities, A            ]   zero above the diagonal
 *            then times v: another product
 *
 * A tile has whole rows of scores, so it needs no running maximum; a T x T matrix never exists.
 * The backward computes the probabilities again from lse, and sums dk and dv in float32 over all
 * tiles.
 *
 * A product multiplies the zeros above the diagonal too, and 0 times NaN is NaN.  So a tile with a
 * value that is not finite on its diagonal is summed pair by pair, without the pairs above it.
 */
#include "isa.h"

#include <math.h>

/* One head of one batch entry, and the scratch of its tiles. */
struct tiles {
    const struct hd_attention_args *args;
    struct hd_cpu_arena arena; /* the rest, for the products */
    bool bf16;
    uint32_t batch, head, key_head;
    uint32_t first, rows, keys; /* of this tile */
    float *scores, *slopes;     /* [HD_CPU_QUERIES, sequence] */
    void *probability, *dscore; /* A [HD_CPU_QUERIES, sequence] */
    float *sums;                /* [HD_CPU_QUERIES, head_width] */
    float *dk, *dv;             /* [sequence, head_width] */
    float inverse[HD_CPU_QUERIES];
};

INLINE uint32_t isa_dtype_of(bool bf16)
{
    return bf16 ? (uint32_t)HD_BF16 : (uint32_t)HD_F32;
}

INLINE uint64_t isa_size_of(bool bf16)
{
    return bf16 ? sizeof(uint16_t) : sizeof(float);
}

INLINE float isa_scale_of(const struct hd_attention_args *args)
{
    return (float)(1.0 / sqrt(args->head_width));
}

/* Rows [first ..) of this batch entry, of one head of `heads`. */
INLINE struct hd_cpu_operand isa_head_of(const struct tiles *tiles, const void *data,
                                         uint32_t heads, uint32_t head, uint32_t first)
{
    const uint64_t token = (uint64_t)tiles->batch * tiles->args->sequence + first;
    const uint64_t place = (token * heads + head) * tiles->args->head_width;
    return (struct hd_cpu_operand){.data =
                                       (char *)(uintptr_t)data + place * isa_size_of(tiles->bf16),
                                   .dtype = isa_dtype_of(tiles->bf16),
                                   .stride = heads * tiles->args->head_width};
}

INLINE struct hd_cpu_operand isa_queries_of(const struct tiles *tiles, const void *data)
{
    return isa_head_of(tiles, data, tiles->args->heads, tiles->head, tiles->first);
}

INLINE struct hd_cpu_operand isa_keys_of(const struct tiles *tiles, const void *data)
{
    return isa_head_of(tiles, data, tiles->args->key_value_heads, tiles->key_head, 0);
}

INLINE struct hd_cpu_operand isa_floats_of(float *data, uint32_t stride)
{
    return (struct hd_cpu_operand){.data = data, .dtype = HD_F32, .stride = stride};
}

INLINE struct hd_cpu_operand isa_tile_of(const struct tiles *tiles, void *data)
{
    return (struct hd_cpu_operand){
        .data = data, .dtype = isa_dtype_of(tiles->bf16), .stride = tiles->keys};
}

/* [rows, keys] = queries keys^T. */
INLINE hd_status isa_score(struct hd_ops_device *device, const struct tiles *tiles, float *target,
                           struct hd_cpu_operand queries, struct hd_cpu_operand keys)
{
    const struct hd_cpu_product product = {.a = queries,
                                           .b = keys,
                                           .c = isa_floats_of(target, tiles->keys),
                                           .m = tiles->rows,
                                           .n = tiles->keys,
                                           .k = tiles->args->head_width,
                                           .layout = HD_CPU_B};
    return hd_cpu_multiply(device, tiles->arena, &product);
}

/* Whether every value of the tile's rows is finite, from row `first` of `operand` on. */
INLINE bool isa_is_finite(const struct tiles *tiles, struct hd_cpu_operand operand, uint32_t first)
{
    const struct view view = view_of(operand.data, tiles->bf16);
    const uint32_t width = tiles->args->head_width;
    vf zeros = {0};
    for (uint32_t row = 0; row < tiles->rows; row++) {
        const uint64_t begin = (uint64_t)(first + row) * operand.stride;
        for (uint32_t at = 0; at < width; at += LANES) {
            zeros = multiply_add(load(view, begin + at, step_of(at, width)), (vf){0}, zeros);
        }
    }
    return sum_of(zeros) == 0;
}

/* target += factor times row `row` of `operand`. */
INLINE void isa_add_row(const struct tiles *tiles, float *target, float factor,
                        struct hd_cpu_operand operand, uint32_t row)
{
    const struct view view = view_of(operand.data, tiles->bf16);
    const uint32_t width = tiles->args->head_width;
    for (uint32_t at = 0; at < width; at += LANES) {
        const uint32_t step = step_of(at, width);
        const vf value = load(view, (uint64_t)row * operand.stride + at, step);
        const vf sum = multiply_add(splat(factor), value, load_f32(target + at, step));
        store_f32(target + at, step, sum);
    }
}

/* isa_mix (target [rows, width], operand: keys) or isa_spread (target [keys, width], operand:
   queries) without the pairs above the diagonal. */
INLINE hd_status isa_add_pairs(const struct tiles *tiles, float *target, const void *tile,
                               struct hd_cpu_operand operand, bool is_spread)
{
    const struct view factors = view_of(tile, tiles->bf16);
    const uint64_t width = tiles->args->head_width;
    for (uint32_t row = 0; row < tiles->rows; row++) {
        for (uint32_t key = 0; key <= tiles->first + row; key++) {
            const float factor = load(factors, (uint64_t)row * tiles->keys + key, 1)[0];
            isa_add_row(tiles, target + (is_spread ? key : row) * width, factor, operand,
                        is_spread ? row : key);
        }
    }
    return HD_OK;
}

/* [rows, width] = tile keys. */
INLINE hd_status isa_mix(struct hd_ops_device *device, const struct tiles *tiles, void *tile,
                         struct hd_cpu_operand keys)
{
    if (!isa_is_finite(tiles, keys, tiles->first)) {
        memset(tiles->sums, 0, (uint64_t)tiles->rows * tiles->args->head_width * sizeof(float));
        return isa_add_pairs(tiles, tiles->sums, tile, keys, false);
    }
    const struct hd_cpu_product product = {.a = isa_tile_of(tiles, tile),
                                           .b = keys,
                                           .c = isa_floats_of(tiles->sums, tiles->args->head_width),
                                           .m = tiles->rows,
                                           .n = tiles->args->head_width,
                                           .k = tiles->keys};
    return hd_cpu_multiply(device, tiles->arena, &product);
}

/* [keys, width] += tile^T queries. */
INLINE hd_status isa_spread(struct hd_ops_device *device, const struct tiles *tiles, float *target,
                            void *tile, struct hd_cpu_operand queries)
{
    if (!isa_is_finite(tiles, queries, 0)) {
        return isa_add_pairs(tiles, target, tile, queries, true);
    }
    const struct hd_cpu_product product = {.a = isa_tile_of(tiles, tile),
                                           .b = queries,
                                           .c = isa_floats_of(target, tiles->args->head_width),
                                           .m = tiles->keys,
                                           .n = tiles->args->head_width,
                                           .k = tiles->rows,
                                           .layout = HD_CPU_A,
                                           .accumulate = 1};
    return hd_cpu_multiply(device, tiles->arena, &product);
}

INLINE void isa_clear(struct view tile, uint64_t first, uint32_t from, uint32_t to)
{
    if (tile.bf16) {
        memset((uint16_t *)tile.data + first + from, 0, (to - from) * sizeof(uint16_t));
    } else {
        memset((float *)tile.data + first + from, 0, (to - from) * sizeof(float));
    }
}

/* Row `row` of the tile: exp(scale (score - largest)), its sum and its lse. */
INLINE void isa_soften(struct tiles *tiles, uint32_t row)
{
    const struct hd_attention_args *args = tiles->args;
    const uint32_t count = tiles->first + row + 1;
    const uint64_t first = (uint64_t)row * tiles->keys;
    const float *scores = tiles->scores + first;
    const struct view probability = view_of(tiles->probability, tiles->bf16);
    const float scale = isa_scale_of(args);
    vf top = splat(scores[0]);
    uint32_t at = 0;
    for (; at + LANES <= count; at += LANES) {
        top = larger(load_f32(scores + at, LANES), top);
    }
    float largest = max_of(top);
    for (; at < count; at++) {
        largest = scores[at] > largest ? scores[at] : largest;
    }
    const vf shift = splat(largest), factor = splat(scale);
    vf sum = {0};
    for (at = 0; at < count; at += LANES) {
        const uint32_t step = step_of(at, count);
        const vf value = exp_of((load_f32(scores + at, step) - shift) * factor);
        store(probability, first + at, step, value);
        sum += first_of(value, step);
    }
    const float total = sum_of(sum);
    tiles->inverse[row] = 1.0f / total;
    ((float *)args->lse)[((uint64_t)tiles->batch * args->heads + tiles->head) * args->sequence +
                         tiles->first + row] = largest * scale + logf(total);
    isa_clear(probability, first, count, tiles->keys);
}

/* The sums of the tile, row by row times `factor`, rounded to A. */
INLINE void isa_write_rows(const struct tiles *tiles, const float *factor, void *target)
{
    const struct hd_cpu_operand to = isa_queries_of(tiles, target);
    const struct view out = view_of(to.data, tiles->bf16);
    const uint32_t width = tiles->args->head_width;
    for (uint32_t row = 0; row < tiles->rows; row++) {
        for (uint32_t at = 0; at < width; at += LANES) {
            const uint32_t step = step_of(at, width);
            const vf value = load_f32(tiles->sums + (uint64_t)row * width + at, step);
            store(out, (uint64_t)row * to.stride + at, step, value * splat(factor[row]));
        }
    }
}

INLINE hd_status isa_forward_tile(struct hd_ops_device *device, struct tiles *tiles)
{
    const struct hd_attention_args *args = tiles->args;
    HD_TRY(isa_score(device, tiles, tiles->scores, isa_queries_of(tiles, args->q),
                     isa_keys_of(tiles, args->k)));
    for (uint32_t row = 0; row < tiles->rows; row++) {
        isa_soften(tiles, row);
    }
    HD_TRY(isa_mix(device, tiles, tiles->probability, isa_keys_of(tiles, args->v)));
    isa_write_rows(tiles, tiles->inverse, args->out);
    return HD_OK;
}

/* Row `row`: the probabilities again, and dS = P (dP - D) with D = <dout, out>. */
INLINE void isa_bend(const struct tiles *tiles, uint32_t row)
{
    const struct hd_attention_args *args = tiles->args;
    const uint32_t count = tiles->first + row + 1, width = args->head_width;
    const uint64_t first = (uint64_t)row * tiles->keys;
    const struct hd_cpu_operand out_rows = isa_queries_of(tiles, args->out);
    const struct view out = view_of(out_rows.data, tiles->bf16);
    const struct view dout = view_of(isa_queries_of(tiles, args->dout).data, tiles->bf16);
    vf inner = {0};
    for (uint32_t at = 0; at < width; at += LANES) {
        const uint32_t step = step_of(at, width);
        const uint64_t place = (uint64_t)row * out_rows.stride + at;
        inner = multiply_add(load(out, place, step), load(dout, place, step), inner);
    }
    const uint64_t begin = ((uint64_t)tiles->batch * args->heads + tiles->head) * args->sequence;
    const vf shift = splat(((const float *)args->lse)[begin + tiles->first + row]);
    const vf factor = splat(isa_scale_of(args)), mean = splat(sum_of(inner));
    const struct view probability = view_of(tiles->probability, tiles->bf16);
    const struct view dscore = view_of(tiles->dscore, tiles->bf16);
    for (uint32_t at = 0; at < count; at += LANES) {
        const uint32_t step = step_of(at, count);
        const vf value = exp_of(load_f32(tiles->scores + first + at, step) * factor - shift);
        store(probability, first + at, step, value);
        store(dscore, first + at, step,
              value * (load_f32(tiles->slopes + first + at, step) - mean));
    }
    isa_clear(probability, first, count, tiles->keys);
    isa_clear(dscore, first, count, tiles->keys);
}

/* dq is written last, because it may be the same memory as q. */
INLINE hd_status isa_backward_tile(struct hd_ops_device *device, struct tiles *tiles)
{
    const struct hd_attention_args *args = tiles->args;
    const struct hd_cpu_operand q = isa_queries_of(tiles, args->q), k = isa_keys_of(tiles, args->k);
    const struct hd_cpu_operand dout = isa_queries_of(tiles, args->dout);
    HD_TRY(isa_score(device, tiles, tiles->scores, q, k));
    HD_TRY(isa_score(device, tiles, tiles->slopes, dout, isa_keys_of(tiles, args->v)));
    for (uint32_t row = 0; row < tiles->rows; row++) {
        isa_bend(tiles, row);
    }
    HD_TRY(isa_spread(device, tiles, tiles->dv, tiles->probability, dout));
    HD_TRY(isa_spread(device, tiles, tiles->dk, tiles->dscore, q));
    HD_TRY(isa_mix(device, tiles, tiles->dscore, k));
    isa_write_rows(tiles, tiles->inverse, args->dq);
    return HD_OK;
}

/* All tiles of one head. */
INLINE hd_status isa_each_tile(struct hd_ops_device *device, struct tiles *tiles, bool is_backward)
{
    const uint32_t sequence = tiles->args->sequence;
    hd_status status = HD_OK;
    for (uint32_t first = 0; status == HD_OK && first < sequence; first += HD_CPU_QUERIES) {
        const uint32_t left = sequence - first;
        tiles->first = first;
        tiles->rows = left < HD_CPU_QUERIES ? left : HD_CPU_QUERIES;
        tiles->keys = first + tiles->rows;
        status = is_backward ? isa_backward_tile(device, tiles) : isa_forward_tile(device, tiles);
    }
    return status;
}

INLINE struct tiles isa_tiles_of(const struct hd_ops_device *device,
                                 const struct hd_attention_args *args, bool bf16)
{
    struct tiles tiles = {.args = args, .arena = device->scratch, .bf16 = bf16};
    const uint64_t count = (uint64_t)HD_CPU_QUERIES * args->sequence;
    const uint64_t width = args->head_width;
    tiles.scores = hd_cpu_take(&tiles.arena, count * sizeof(float));
    tiles.slopes = hd_cpu_take(&tiles.arena, count * sizeof(float));
    tiles.probability = hd_cpu_take(&tiles.arena, count * sizeof(float));
    tiles.dscore = hd_cpu_take(&tiles.arena, count * sizeof(float));
    tiles.sums = hd_cpu_take(&tiles.arena, HD_CPU_QUERIES * width * sizeof(float));
    tiles.dk = hd_cpu_take(&tiles.arena, args->sequence * width * sizeof(float));
    tiles.dv = hd_cpu_take(&tiles.arena, args->sequence * width * sizeof(float));
    return tiles;
}

INLINE hd_status isa_attention(struct hd_ops_device *device, const struct hd_attention_args *args,
                               bool bf16)
{
    struct tiles tiles = isa_tiles_of(device, args, bf16);
    const uint32_t group = args->heads / args->key_value_heads;
    hd_status status = HD_OK;
    for (uint32_t batch = 0; batch < args->batch; batch++) {
        for (uint32_t head = 0; status == HD_OK && head < args->heads; head++) {
            tiles.batch = batch;
            tiles.head = head;
            tiles.key_head = head / group;
            status = isa_each_tile(device, &tiles, false);
        }
    }
    return status;
}

/* Writes the sums over all queries, rounded to A, to the key head. */
INLINE void isa_write_keys(const struct tiles *tiles, const float *sums, void *target, float factor)
{
    const struct hd_cpu_operand to = isa_keys_of(tiles, target);
    const struct view out = view_of(to.data, tiles->bf16);
    const uint32_t width = tiles->args->head_width;
    for (uint32_t row = 0; row < tiles->args->sequence; row++) {
        for (uint32_t at = 0; at < width; at += LANES) {
            const uint32_t step = step_of(at, width);
            const vf value = load_f32(sums + (uint64_t)row * width + at, step);
            store(out, (uint64_t)row * to.stride + at, step, value * splat(factor));
        }
    }
}

INLINE hd_status isa_attention_backward(struct hd_ops_device *device,
                                        const struct hd_attention_args *args, bool bf16)
{
    struct tiles tiles = isa_tiles_of(device, args, bf16);
    const uint32_t group = args->heads / args->key_value_heads;
    const uint64_t bytes = (uint64_t)args->sequence * args->head_width * sizeof(float);
    for (uint32_t row = 0; row < HD_CPU_QUERIES; row++) {
        tiles.inverse[row] = isa_scale_of(args);
    }
    hd_status status = HD_OK;
    for (uint32_t pair = 0; pair < args->batch * args->key_value_heads; pair++) {
        tiles.batch = pair / args->key_value_heads;
        tiles.key_head = pair % args->key_value_heads;
        memset(tiles.dk, 0, bytes);
        memset(tiles.dv, 0, bytes);
        for (uint32_t member = 0; status == HD_OK && member < group; member++) {
            tiles.head = tiles.key_head * group + member;
            status = isa_each_tile(device, &tiles, true);
        }
        if (status != HD_OK) {
            return status;
        }
        isa_write_keys(&tiles, tiles.dk, args->dk, isa_scale_of(args));
        isa_write_keys(&tiles, tiles.dv, args->dv, 1.0f);
    }
    return HD_OK;
}

ISA_OP(attention, hd_attention_args)
ISA_OP(attention_backward, hd_attention_args)
