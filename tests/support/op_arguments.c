/* tests/support/op_arguments.c - what ops are given, here and where they work. */
#include "support/op_arguments.h"
#include "base/bf16.h"
#include "support/check.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

static uint64_t size_of(uint32_t dtype)
{
    return dtype == HD_OP_U8 ? 1 : dtype == HD_BF16 ? 2 : dtype == HD_OP_F64 ? 8 : 4;
}

void *hd_op_take(struct hd_op_run *run, uint32_t dtype, uint64_t count)
{
    void *memory = run->memory + run->used_bytes;
    run->used_bytes += (count * size_of(dtype) + 127) / 64 * 64;
    CU_ASSERT_FATAL(run->used_bytes <= HD_OP_MEMORY_BYTES);
    memset(memory, 0xFF, count * size_of(dtype));
    return memory;
}

void *hd_op_there(const struct hd_op_run *run, const void *here)
{
    const ptrdiff_t at = (const char *)here - run->memory;
    return run->mover == NULL ? run->memory + at : run->mover->memory + at;
}

static void *here_of(const struct hd_op_run *run, const void *there)
{
    const char *begin = run->mover == NULL ? run->memory : run->mover->memory;
    return run->memory + ((const char *)there - begin);
}

/* What has been drawn since the last time. */
void hd_op_send(struct hd_op_run *run)
{
    const struct hd_op_mover *mover = run->mover;
    if (mover != NULL) {
        CU_ASSERT_EQUAL_FATAL(mover->send(mover, run->memory, run->sent_bytes, run->used_bytes),
                              HD_OK);
    }
    run->sent_bytes = run->used_bytes;
}

void hd_op_fetch(struct hd_op_run *run)
{
    const struct hd_op_mover *mover = run->mover;
    if (mover != NULL) {
        CU_ASSERT_EQUAL_FATAL(mover->fetch(mover, run->memory, run->used_bytes), HD_OK);
    }
}

const void *hd_op_read(struct hd_op_run *run, const void *there)
{
    hd_op_fetch(run);
    return here_of(run, there);
}

double hd_op_draw(uint64_t seed)
{
    uint64_t value = (seed + 1) * 0x9e3779b97f4a7c15ull;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return (double)((value ^ (value >> 31)) >> 11) * 0x1p-52 - 1;
}

void hd_op_put(void *data, uint32_t dtype, uint64_t at, float value)
{
    if (dtype == HD_BF16) {
        ((uint16_t *)data)[at] = hd_bf16_from_float(value);
    } else {
        ((float *)data)[at] = value;
    }
}

double hd_op_value(const struct hd_op_output *output, uint64_t at)
{
    switch (output->dtype) {
    case HD_BF16:
        return (double)hd_bf16_to_float(((const uint16_t *)output->data)[at]);
    case HD_OP_U8:
        return ((const uint8_t *)output->data)[at];
    case HD_OP_I32:
        return ((const int32_t *)output->data)[at];
    case HD_OP_F64:
        return ((const double *)output->data)[at];
    default:
        return (double)((const float *)output->data)[at];
    }
}

/* Drawn around `middle`, the same for both tables. */
void *hd_op_input_at(struct hd_op_run *run, uint32_t dtype, uint64_t count, double middle)
{
    void *data = hd_op_take(run, dtype, count);
    for (uint64_t at = 0; at < count; at++) {
        hd_op_put(data, dtype, at, (float)(middle + 0.5 * hd_op_draw(run->draws++)));
    }
    if (run->with_nan == 1 && run->input_count == run->nan_input) {
        hd_op_put(data, dtype, count / 2, NAN);
    }
    run->input_count++;
    return hd_op_there(run, data);
}

void *hd_op_input(struct hd_op_run *run, uint32_t dtype, uint64_t count)
{
    return hd_op_input_at(run, dtype, count, 0);
}

void *hd_op_watch(struct hd_op_run *run, const char *name, void *data, struct hd_op_output of)
{
    CU_ASSERT_FATAL(run->output_count < HD_OP_OUTPUT_MAX);
    run->outputs[run->output_count++] = (struct hd_op_output){
        .name = name, .data = here_of(run, data), .dtype = of.dtype, .count = of.count};
    return data;
}

void *hd_op_output(struct hd_op_run *run, const char *name, uint32_t dtype, uint64_t count)
{
    return hd_op_watch(run, name, hd_op_there(run, hd_op_take(run, dtype, count)),
                       (struct hd_op_output){.dtype = dtype, .count = count});
}

/* A gradient: what was there stays in the sum. */
void *hd_op_sum(struct hd_op_run *run, const char *name, uint64_t count)
{
    return hd_op_watch(run, name, hd_op_input(run, HD_F32, count),
                       (struct hd_op_output){.dtype = HD_F32, .count = count});
}

uint32_t hd_op_tokens(const struct hd_op_run *run)
{
    return run->shape->batch * run->shape->sequence;
}

uint64_t hd_op_row_max(const struct hd_op_shape *shape)
{
    const uint64_t picks = (uint64_t)shape->batch * shape->sequence * shape->picks;
    return (picks + 31ull * shape->experts) / HD_ROW_BLOCK * HD_ROW_BLOCK;
}
