/* isa/rows.c - copies of rows: the embedding, and tokens to experts and back. */
#include "isa.h"

#include <assert.h>

/* An index from damaged memory stays in range (K8). */
INLINE uint32_t isa_inside(int32_t index, uint32_t count)
{
    return (uint32_t)index < count ? (uint32_t)index : 0;
}

INLINE uint64_t isa_row_bytes(uint32_t width, bool bf16)
{
    return (uint64_t)width * (bf16 ? sizeof(uint16_t) : sizeof(float));
}

INLINE uint32_t isa_row_limit(const struct hd_rows_args *args)
{
    const uint64_t picks = (uint64_t)args->token_count * args->experts_per_token;
    return (uint32_t)((picks + (HD_ROW_BLOCK - 1) * (uint64_t)args->experts) / HD_ROW_BLOCK) *
           HD_ROW_BLOCK;
}

INLINE hd_status isa_embed(struct hd_ops_device *device, const struct hd_embed_args *args,
                           bool bf16)
{
    (void)device;
    const uint64_t bytes = isa_row_bytes(args->width, bf16);
    for (uint32_t token = 0; token < args->token_count; token++) {
        const uint32_t entry = isa_inside(args->tokens[token], args->vocabulary);
        memcpy((char *)args->x + token * bytes, (const char *)args->table + entry * bytes, bytes);
    }
    return HD_OK;
}

INLINE hd_status isa_embed_backward(struct hd_ops_device *device, const struct hd_embed_args *args,
                                    bool bf16)
{
    (void)device;
    const struct view dx = view_of(args->dx, bf16);
    for (uint32_t token = 0; token < args->token_count; token++) {
        const uint32_t entry = isa_inside(args->tokens[token], args->vocabulary);
        float *row = (float *)args->dtable + (uint64_t)entry * args->width;
        const uint64_t first = (uint64_t)token * args->width;
        for (uint32_t at = 0; at < args->width; at += LANES) {
            const uint32_t step = step_of(at, args->width);
            store_f32(row + at, step, load_f32(row + at, step) + load(dx, first + at, step));
        }
    }
    return HD_OK;
}

/* The end of each expert is its cursor; at last it is rounded up to the begin of the next. */
INLINE hd_status isa_assign(struct hd_ops_device *device, const struct hd_rows_args *args,
                            bool bf16)
{
    (void)device, (void)bf16;
    const uint32_t picks = args->token_count * args->experts_per_token;
    const uint32_t experts = args->experts;
    int32_t *offsets = args->offsets;
    memset(offsets, 0, (experts + 1) * sizeof offsets[0]);
    for (uint32_t pick = 0; pick < picks; pick++) {
        offsets[isa_inside(args->selected[pick], experts) + 1]++;
    }
    int32_t begin = 0;
    for (uint32_t expert = 0; expert < experts; expert++) {
        const int32_t rows = offsets[expert + 1];
        offsets[expert + 1] = begin;
        begin += (rows + (int32_t)HD_ROW_BLOCK - 1) / (int32_t)HD_ROW_BLOCK * (int32_t)HD_ROW_BLOCK;
    }
    assert((uint32_t)begin <= isa_row_limit(args));
    memset(args->source, 0xFF, isa_row_limit(args) * sizeof args->source[0]);
    for (uint32_t pick = 0; pick < picks; pick++) {
        const int32_t row = offsets[isa_inside(args->selected[pick], experts) + 1]++;
        args->row_of[pick] = row;
        args->source[row] = (int32_t)pick;
    }
    for (uint32_t expert = 1; expert <= experts; expert++) {
        const int32_t block = (int32_t)HD_ROW_BLOCK;
        offsets[expert] = (offsets[expert] + block - 1) / block * block;
    }
    return HD_OK;
}

INLINE hd_status isa_permute(struct hd_ops_device *device, const struct hd_rows_args *args,
                             bool bf16)
{
    (void)device;
    const uint64_t bytes = isa_row_bytes(args->width, bf16);
    const uint32_t picks = args->token_count * args->experts_per_token;
    const uint32_t limit = isa_row_limit(args);
    const uint32_t end = (uint32_t)args->offsets[args->experts];
    char *rows = args->rows.data;
    for (uint32_t row = 0; row < (end < limit ? end : limit); row++) {
        const uint32_t pick = (uint32_t)args->source[row];
        if (pick < picks) {
            const uint64_t token = pick / args->experts_per_token;
            memcpy(rows + row * bytes, (const char *)args->x + token * bytes, bytes);
        } else {
            memset(rows + row * bytes, 0, bytes);
        }
    }
    return HD_OK;
}

/* target[t] = base[t] + sum over j of (gates) rows[row_of[t,j]]. */
INLINE void isa_gather(const struct hd_rows_args *args, struct view base, struct view target,
                       bool weighted, bool bf16)
{
    const struct view rows = view_of(args->rows.data, bf16);
    const uint32_t picks = args->row_of == NULL ? 1 : args->experts_per_token;
    const float *gates = weighted ? args->gates : NULL;
    const uint32_t limit = args->row_of == NULL ? args->token_count : isa_row_limit(args);
    for (uint32_t token = 0; token < args->token_count; token++) {
        const uint64_t first = (uint64_t)token * args->width;
        for (uint32_t at = 0; at < args->width; at += LANES) {
            const uint32_t step = step_of(at, args->width);
            vf sum = {0};
            for (uint32_t pick = 0; pick < picks; pick++) {
                const uint64_t place = (uint64_t)token * picks + pick;
                const uint64_t row =
                    args->row_of == NULL ? token : isa_inside(args->row_of[place], limit);
                const vf value = load(rows, row * args->width + at, step);
                sum = gates != NULL ? multiply_add(splat(gates[place]), value, sum) : sum + value;
            }
            if (base.data != NULL) {
                sum += load(base, first + at, step);
            }
            store(target, first + at, step, sum);
        }
    }
}

INLINE hd_status isa_permute_backward(struct hd_ops_device *device, const struct hd_rows_args *args,
                                      bool bf16)
{
    (void)device;
    isa_gather(args, view_of(args->add, false), view_of(args->dx, bf16), false, bf16);
    return HD_OK;
}

INLINE hd_status isa_combine(struct hd_ops_device *device, const struct hd_rows_args *args,
                             bool bf16)
{
    (void)device;
    isa_gather(args, view_of(args->residual, bf16), view_of(args->out, bf16), true, bf16);
    return HD_OK;
}

ISA_OP(embed, hd_embed_args)
ISA_OP(embed_backward, hd_embed_args)
ISA_OP(assign, hd_rows_args)
ISA_OP(permute, hd_rows_args)
ISA_OP(permute_backward, hd_rows_args)
ISA_OP(combine, hd_rows_args)
